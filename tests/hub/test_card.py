"""Run folders as model cards, read back with the Hub's own client."""

import json
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from run_record import write_run

from trl_prorl.hub.card import model_card, remove_secrets
from trl_prorl.record.base_model import identify


SECRET = "hf_" + "S" * 34
EVALUATION = {"prompts": 4, "n": 4, "temperature": 0.7, "seed": 5}
# pass@1 = mean(c / 4); pass@2 = mean(1 - C(4 - c, 2) / 6)
BASE = {"pass@1": 0.25, "interval@1": [0.0, 0.5], "pass@2": 0.5, "interval@2": [0.25, 0.75], "correct": [1] * 4}
TRAINED = {
    "pass@1": 0.5,
    "interval@1": [0.125, 0.875],
    "pass@2": 2 / 3,
    "interval@2": [0.5, 0.9],
    "correct": [0, 2, 2, 4],
}
PASSK = {
    "split": "test",
    **EVALUATION,
    "k": [1, 2],
    "task": "sorting",
    "level": 2,
    "base": BASE,
    "trained": TRAINED,
    "gain": {"pass@1": [0.25, -0.125, 0.625], "pass@2": [1 / 6, -0.25, 0.5]},
}


@pytest.fixture
def folder(tmp_path):
    """A function that writes a run folder: `folder(passk=..., env={...}, ...)`; `None` leaves a file out."""

    def write(events=(), passk=None, config=None, env=None, steps=7, adapter="Qwen/Qwen2.5-0.5B-Instruct"):
        config = {"task": "sorting", "task_level": 2, "model_name_or_path": adapter} | (config or {})
        config = {key: value for key, value in config.items() if value is not None}
        versions = {"trl-prorl": "0.1.0", "trl": "1.16.0"}
        env = {"variant": "A", "seed": 3, "git_commit": "c0ffee", "versions": versions} | (env or {})
        others = {"env": env, "adapter_config": {"base_model_name_or_path": adapter}, "passk": passk}
        return write_run(tmp_path / "sorted-A", config, [{"step": n + 1} for n in range(steps)], events, **others)

    return write


def reset(requested, applied, reason="periodic", **more):
    return {"event": "reset", "step_requested": requested, "step_applied": applied, "reason": reason, **more}


def row(card, first):
    """The cells of the body's table row that begins so."""
    lines = [line for line in card.text.splitlines() if line.startswith(f"| {first} |")]
    assert len(lines) == 1, lines
    return [cell.strip() for cell in lines[0].strip("|").split("|")]


def test_numbers_intervals_and_settings_stand_in_the_model_index(folder, tmp_path):
    run = folder(passk=PASSK)
    path = tmp_path / "README.md"
    path.write_text(str(model_card(run, repo="someone/sorted")))
    data = ModelCard.load(path).data
    assert data.model_name == "sorted"
    assert data.library_name == "peft"
    assert data.pipeline_tag == "text-generation"
    assert data.base_model == "Qwen/Qwen2.5-0.5B-Instruct"
    assert "license" not in data.to_dict()
    assert {"trl-prorl", "grpo", "trl", "variant-A", "lora"} <= set(data.tags)
    found = {result.metric_type: result for result in data.eval_results}
    assert set(found) == {"pass@1", "pass@2"}
    for k in (1, 2):
        result = found[f"pass@{k}"]
        assert result.metric_value == TRAINED[f"pass@{k}"]
        assert (result.task_type, result.dataset_name, result.dataset_split) == ("text-generation", "sorting", "test")
        assert result.dataset_config == "level 2"
        intervals = {"interval_95": TRAINED[f"interval@{k}"], "base_interval_95": BASE[f"interval@{k}"]}
        assert result.metric_args == {**intervals, "base": BASE[f"pass@{k}"], **EVALUATION}
    assert found["pass@1"].metric_name == "pass@1, 95 % interval [0.125, 0.875]"


def test_the_body_has_base_trained_and_the_paired_gain(folder):
    card = model_card(folder(passk=PASSK))
    assert row(card, "pass@1")[:3] == ["pass@1", "0.250 [0.000, 0.500]", "0.500 [0.125, 0.875]"]
    assert row(card, "pass@1")[3] == "+0.250 [-0.125, +0.625]"
    assert row(card, "pass@2")[3] == "+0.167 [-0.250, +0.500]"
    assert "4 prompts of the split `test`, 4 samples each at temperature 0.7, seed 5" in card.text
    assert "--prompts 4 --n 4 --k 1 2 --seed 5 --temperature 0.7" in card.text
    assert "commit `c0ffee`" in card.text
    assert "| trl | 1.16.0 |" in card.text
    for cited in ("2505.24864", "2402.03300", "vonwerra2020trl"):
        assert cited in card.text


def test_resets_are_listed_with_request_reason_and_optimizer(folder):
    events = [
        reset(3, 4, "kl_spike", optimizer_reset="soft", alpha=0.25, kl_before=0.0125),
        {"event": "resume", "step_requested": 5, "step_applied": 5},
        reset(6, 6, optimizer_reset="keep"),
    ]
    card = model_card(folder(events=events))
    assert "Resets applied: 2." in card.text
    assert "resumed at step 5" in card.text
    table = card.text.split("Resets applied")[1].split("## Results")[0]
    assert table.count("\n| ") == 2 + 2, "header, rule, and a row for each reset alone"
    assert row(card, "3") == ["3", "4", "kl_spike", "soft, α = 0.25", "0.0125"]
    assert row(card, "6") == ["6", "6", "periodic", "keep", "–"]
    many = model_card(folder(events=[reset(step, step, optimizer_reset="keep") for step in range(1, 74)]))
    assert "Resets applied: 73." in many.text
    assert "And 23 more" in many.text
    assert row(many, "50")
    assert "| 51 | 51 |" not in many.text


@pytest.mark.parametrize("passk", [None, {**PASSK, "step": 3}], ids=["not evaluated", "other weights"])
@pytest.mark.parametrize("missing", ["task", "model_name_or_path", None])
def test_evaluating_is_recommended_where_it_is_possible(folder, passk, missing):
    """A run from plain Python has no task, and `eval.passk` needs a file with its rows."""
    card = model_card(folder(passk=passk, config={missing: None} if missing else None))
    assert ("Not evaluated yet." if passk is None else "numbers are left out.") in card.text
    said = card.text.split("## Use it")[0]
    assert "trl-prorl passk" in said
    assert ("--plugin FILE.py" in said) == (missing == "task")
    assert ("`evaluate(trainer, rows, verifier)` at the end of the script" in said) == (missing == "task")


def test_what_the_record_lacks_is_said_and_not_invented(folder, tmp_path):
    card = model_card(folder(events=None))
    assert "Not evaluated yet" in card.text
    assert card.data.eval_results is None
    assert "pass@1" not in card.text
    assert "no events" in card.text
    empty = tmp_path / "empty"
    empty.mkdir()
    card = model_card(empty, adapter=False)
    assert "the record does not name it" in card.text
    assert card.data.base_model is None
    assert card.data.library_name == "transformers"
    assert "There is no recipe" in card.text


def test_numbers_of_other_weights_are_left_out(folder):
    card = model_card(folder(passk=PASSK | {"step": 3}))
    assert card.data.eval_results is None
    assert "those of step 7; the last evaluation is of step 3" in card.text
    assert not any(line.startswith("| pass@") for line in card.text.splitlines())
    for steps in ({"step": 7}, {"step": 3, "steps_on_record": 7}):  # of the last, of the best checkpoint
        assert model_card(folder(passk=PASSK | steps)).data.eval_results


def test_an_interval_that_was_not_given_is_left_out(folder):
    sides = {side: PASSK[side] | {"interval@1": [None, None]} for side in ("base", "trained")}
    results = model_card(folder(passk=PASSK | sides | {"step": 7})).data.eval_results
    found = next(one for one in results if one.metric_type == "pass@1")
    assert found.metric_name == "pass@1"  # without an interval that there is not
    assert set(found.metric_args) == {"base", *EVALUATION}


def test_greedy_and_tasks_that_were_not_trained(folder):
    greedy = {"accuracy": 0.5, "interval": [0.0, 1.0], "correct": [0, 0, 1, 1]}
    base = {"accuracy": 0.25, "interval": [0.0, 0.75], "correct": [0, 0, 0, 1]}
    other = {key: PASSK[key] for key in ("prompts", "n", "k", "base", "trained")} | {"task": "parity", "level": 9}
    passk = PASSK | {"greedy": {"base": base, "trained": greedy}, "others": {"parity@9": other}}
    card = model_card(folder(passk=passk))
    found = {(result.dataset_name, result.metric_type): result for result in card.data.eval_results}
    assert found["sorting", "accuracy"].metric_value == 0.5
    assert found["parity", "pass@2"].metric_value == PASSK["trained"]["pass@2"]
    assert found["parity", "pass@2"].dataset_config == "level 9"
    assert row(card, "greedy")[:3] == ["greedy", "0.250 [0.000, 0.750]", "0.500 [0.000, 1.000]"]
    assert "On `parity@9`, which was not trained" in card.text


def test_a_local_base_is_named_and_no_hub_name_is_invented(folder, tmp_path):
    local = tmp_path / "models" / "my-qwen"
    local.mkdir(parents=True)
    (local / "config.json").write_text(json.dumps({"_name_or_path": "Qwen/Qwen2.5-0.5B"}))
    card = model_card(folder(adapter=str(local)))
    assert card.data.base_model is None
    assert "None" not in card.text
    assert "PATH/TO/my-qwen" in card.text
    assert "`my-qwen`, a local folder" in card.text
    assert "made from [Qwen/Qwen2.5-0.5B](https://huggingface.co/Qwen/Qwen2.5-0.5B)" in card.text


def test_the_base_is_what_it_was_where_it_was_trained(folder):
    """`models/qwen` was a folder there; here it looks like a name of the Hub."""
    noted = {"name": "models/qwen", "hub_id": None, "origin": None}
    card = model_card(folder(adapter="models/qwen", env={"base_model": noted}))
    assert card.data.base_model is None
    assert "`qwen`, a local folder" in card.text


def test_what_is_a_name_of_the_hub():
    for name in ("Qwen/Qwen2.5-0.5B", "HuggingFaceTB/SmolLM2-135M-Instruct"):
        assert identify(name).hub_id == name
    cached = "/root/.cache/huggingface/hub/models--Qwen--Qwen2.5-0.5B/snapshots/0a1b2c"
    assert identify(cached).hub_id == "Qwen/Qwen2.5-0.5B"
    others = "embedded embedded:reverse_digits:0 runs/embedded/2d64bc794f3d /data/models/qwen ./qwen qwen"
    for name in others.split():
        assert identify(name).hub_id is None, name


def test_secrets_are_in_no_recipe(folder):
    secrets = {"hub_token": SECRET, "model_init_kwargs": {"token": SECRET, "dtype": "float32"}, "eos_token": "<|end|>"}
    run = folder(config=secrets | {"run_name": f"with {SECRET} inside", "thinking_budget": 8})
    text = str(model_card(run))
    assert SECRET not in text
    assert "hub_token" not in text
    assert "eos_token: <|end|>" in text
    assert "dtype: float32" in text
    assert "thinking_budget: 8" in text
    assert "with [removed] inside" in text
    kept = {"max_completion_length": 3, "pad_token": "x", "num_tokens": 4, "token_entropy": 1}
    assert remove_secrets(kept) == kept
    assert remove_secrets({"api_key": "x", "password": 1, "list": [{"hub_token": "y"}]}) == {"list": [{}]}


def test_how_a_run_is_trained_again(folder):
    """One that pushed, without pushing; the run of a script of its own has no command."""
    assert "--push_to_hub false" in model_card(folder(config={"push_to_hub": True})).text
    card = model_card(folder(config={"task": None, "task_level": None}))
    assert "script of its own" in card.text
    assert "python recipes/" not in card.text


def test_the_lines_that_load_the_model_find_it(make_trainer, tmp_path):
    """In a checkpoint, as long as nothing was saved beside the record; then there."""
    trainer = make_trainer(max_steps=2, save_strategy="steps", save_steps=2)
    trainer.train()
    out = Path(trainer.args.output_dir)
    for folder, save in ((out / "checkpoint-2", lambda: None), (out, trainer.save_model)):
        save()
        assert f'PeftModel.from_pretrained(base, "{folder}")' in (out / "README.md").read_text()
        assert (folder / "adapter_config.json").is_file()
        assert (folder / "tokenizer.json").is_file()
