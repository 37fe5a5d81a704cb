"""Run folders as model cards, read back with the Hub's own client."""

import ast
import hashlib
from collections import Counter
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt
from run_record import write_run
from safetensors.torch import save_file

from trl_prorl.embedded.shipped import byte_tokenizer
from trl_prorl.eval import push
from trl_prorl.hub.card import model_card, remove_secrets
from trl_prorl.run import log_files
from trl_prorl.run.files import read_text


SECRET = "hf_" + "S" * 34
EVALUATION = {"prompts": 4, "n": 4, "temperature": 0.7, "max_new_tokens": 1024, "seed": 5}
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
    "prompt_ids": ["a", "b", "c", "d"],
    "task": "sorting",
    "level": 2,
    "base": BASE,
    "trained": TRAINED,
    "gain": {"pass@1": [0.25, -0.125, 0.625], "pass@2": [1 / 6, -0.25, 0.5]},
}


@pytest.fixture
def folder(tmp_path):
    """A function that writes a run folder: `folder(passk=..., env={...}, ...)`; `None` leaves a file out."""

    def write(events=(), passk=None, config=None, env=None, steps=7, adapter="Qwen/Qwen2.5-0.5B-Instruct", **more):
        config = {"task": "sorting", "task_level": 2, "model_name_or_path": adapter} | (config or {})
        config = {key: value for key, value in config.items() if value is not None}
        versions = {"trl-prorl": "0.1.0", "trl": "1.16.0"}
        env = {"variant": "A", "seed": 3, "git_commit": "c0ffee", "versions": versions} | (env or {})
        others = more | {"env": env, "adapter_config": {"base_model_name_or_path": adapter}, "passk": passk}
        return write_run(tmp_path / "sorted-A", config, [{"step": n + 1} for n in range(steps)], events, **others)

    return write


def row(card, first):
    """The cells of the body's table row that begins so."""
    lines = [line for line in card.text.splitlines() if line.startswith(f"| {first} |")]
    assert len(lines) == 1, lines
    return [cell.strip() for cell in lines[0].strip("|").split("|")]


def test_numbers_intervals_and_settings_stand_in_the_model_index(folder, tmp_path):
    path = tmp_path / "README.md"
    card = model_card(folder(passk=PASSK), repo="someone/sorted")
    path.write_text(str(card))
    data = ModelCard.load(path).data
    assert (data.model_name, data.library_name) == ("sorted", "peft")
    assert data.base_model == "Qwen/Qwen2.5-0.5B-Instruct"
    assert "license" not in data.to_dict()
    assert {"trl-prorl", "grpo", "trl", "variant-A", "lora"} <= set(data.tags)
    found = {result.metric_type: result for result in data.eval_results}
    assert set(found) == {"pass@1", "pass@2"}
    for k in (1, 2):
        result = found[f"pass@{k}"]
        assert result.metric_value == TRAINED[f"pass@{k}"]
        assert (result.dataset_name, result.dataset_config, result.dataset_split) == ("sorting", "level 2", "test")
        intervals = {"interval_95": TRAINED[f"interval@{k}"], "base_interval_95": BASE[f"interval@{k}"]}
        assert result.metric_args == {**intervals, "base": BASE[f"pass@{k}"], **EVALUATION}
    assert "4 samples each of at most 1024 tokens at temperature 0.7, seed 5" in card.text
    options = "--prompts 4 --n 4 --k 1 2 --split test --temperature 0.7 --max-new-tokens 1024 --seed 5"
    assert f"trl-prorl passk --run runs/again {options}\n" in card.text
    assert row(card, "pass@1")[1:3] == ["0.250 [0.000, 0.500]", "0.500 [0.125, 0.875]"]
    assert row(card, "pass@1")[3] == "+0.250 [-0.125, +0.625]"
    assert row(card, "pass@2")[3] == "+0.167 [-0.250, +0.500]"


def test_resets_are_listed_and_counted(folder):
    reset = {"event": "reset", "reason": "kl_spike", "optimizer_reset": "soft", "alpha": 0.25, "kl_before": 0.0125}
    events = [reset | {"step_requested": step, "step_applied": step + 1} for step in range(1, 74)]
    card = model_card(folder(events=[*events, {"event": "resume", "step_requested": 5, "step_applied": 5}]))
    assert "Resets applied: 73." in card.text
    assert row(card, "50") == ["50", "51", "kl_spike", "soft, α = 0.25", "0.0125"]
    assert "| 51 | 52 |" not in card.text


@pytest.mark.parametrize(
    "changed, has_numbers, names_step",
    [
        ({"step": 7}, True, False),
        ({"step": 3, "steps_on_record": 7}, True, True),  # of the best checkpoint
        ({"step": 3}, False, False),
        ({"step": None, "steps_on_record": 3}, False, False),
    ],
)
def test_numbers_of_other_weights_are_left_out(folder, changed, has_numbers, names_step):
    card = model_card(folder(passk=PASSK | changed))
    assert "step None" not in card.text
    assert bool(card.data.eval_results) == has_numbers
    assert ("\n| pass@1 |" in card.text) == has_numbers
    assert "for 7 optimizer steps" in card.text
    assert ("; these weights are those of step 3." in card.text) == names_step


@pytest.mark.parametrize(("content", "step", "has_numbers"), [(b"weights", 6, True), (b"others", 7, False)])
def test_numbers_belong_to_the_weights_whose_hash_they_note(folder, content, step, has_numbers):
    """The log goes on to step 7; the folder has the weights of step 6."""
    noted = {"adapter_model.safetensors": hashlib.sha256(b"weights").hexdigest()}
    run = folder(passk=PASSK | {"step": step, "weights": noted}, prorl_run={"run_id": "a", "step": 6})
    (run / "adapter_model.safetensors").write_bytes(content)
    (run / "training_args.bin").write_bytes(b"no weights")
    card = model_card(run)
    assert bool(card.data.eval_results) == ("\n| pass@1 |" in card.text) == has_numbers
    assert "for 7 optimizer steps on the task `sorting` (level 2); these weights are those of step 6." in card.text


def test_what_the_record_lacks_is_not_invented(folder, tmp_path):
    sides = {side: PASSK[side] | {"interval@1": [None, None]} for side in ("base", "trained")}
    passk = PASSK | sides
    found = {one.metric_type: one for one in model_card(folder(passk=passk)).data.eval_results}
    assert set(found["pass@1"].metric_args) == {"base", *EVALUATION}
    (tmp_path / "empty").mkdir()
    card = model_card(tmp_path / "empty", adapter=False)
    assert (card.data.base_model, card.data.eval_results, card.data.library_name) == (None, None, "transformers")
    assert "pass@1" not in card.text


def test_a_script_s_run_is_reproduced_by_its_command_alone(folder):
    card = model_card(folder(config={"task": None}, env={"command": "accelerate launch mine.py --fast"}))
    reproduce = card.text.partition("## Reproduce")[2].partition("## Citations")[0]
    assert "`accelerate launch mine.py --fast`" in reproduce
    assert "recipes/" not in reproduce
    assert "trl-prorl train" not in reproduce


def test_a_run_that_moved_is_reproduced_from_its_first_step(folder):
    card = model_card(folder(config={"resume_from_checkpoint": "hub:someone/moved"}))
    assert "config.yaml --output_dir runs/again --resume_from_checkpoint false" in " ".join(card.text.split())


def test_greedy_and_tasks_that_were_not_trained(folder):
    greedy = {"accuracy": 0.5, "interval": [0.0, 1.0], "correct": [0, 0, 1, 1]}
    base = {"accuracy": 0.25, "interval": [0.0, 0.75], "correct": [0, 0, 0, 1]}
    other = PASSK | {"task": "parity", "level": 9, "max_new_tokens": 64}
    passk = PASSK | {"split": "train", "in_training": 4}
    passk |= {"greedy": {"base": base, "trained": greedy}, "others": {"parity@9": other}}
    card = model_card(folder(passk=passk))
    found = {(result.dataset_name, result.metric_type): result for result in card.data.eval_results}
    assert found["sorting", "accuracy"].metric_value == 0.5
    assert found["parity", "pass@2"].metric_value == PASSK["trained"]["pass@2"]
    assert found["parity", "pass@2"].dataset_config == "level 9"
    assert found["parity", "pass@2"].dataset_split == "test"
    assert found["parity", "pass@2"].metric_args["max_new_tokens"] == 64
    assert found["sorting", "pass@2"].dataset_split == "train (all prompts occur in the training set)"
    assert row(card, "greedy")[1:3] == ["0.250 [0.000, 0.750]", "0.500 [0.000, 1.000]"]


def test_no_hub_name_is_invented_for_a_local_base(folder, tmp_path):
    local = tmp_path / "models" / "my-qwen"
    local.mkdir(parents=True)
    assert model_card(folder(adapter=str(local))).data.base_model is None
    # `models/qwen` was a folder where it was trained; here it looks like a name of the Hub.
    noted = {"name": "models/qwen", "hub_id": None}
    assert model_card(folder(adapter="models/qwen", env={"base_model": noted})).data.base_model is None


def test_the_usage_loads_the_base_s_trained_revision(folder):
    name = "Qwen/Qwen2.5-0.5B-Instruct"
    noted = {"name": name, "hub_id": name}
    load = f'AutoModelForCausalLM.from_pretrained("{name}"'
    assert (
        f'{load}, revision="7ae557604adf")\n'
        in model_card(folder(env={"base_model": noted | {"commit": "7ae557604adf"}})).text
    )
    assert f"{load})\n" in model_card(folder(env={"base_model": noted})).text
    local = {"base_model": {"name": "models/qwen", "commit": "7ae557604adf"}}
    assert "revision=" not in model_card(folder(env=local)).text


def test_secrets_are_in_no_recipe(folder):
    secrets = {"hub_token": SECRET, "model_init_kwargs": {"token": SECRET, "dtype": "float32"}, "eos_token": "<|end|>"}
    text = str(model_card(folder(config=secrets | {"run_name": f"with {SECRET} inside"})))
    assert SECRET not in text
    assert "hub_token" not in text
    assert "eos_token: <|end|>" in text
    kept = {"max_completion_length": 3, "pad_token": "x", "num_tokens": 4, "token_entropy": 1}
    assert remove_secrets(kept) == kept
    assert remove_secrets({"api_key": "x", "password": 1, "list": [{"hub_token": "y"}]}) == {"list": [{}]}


# What a stranger's files may say, in words that would act in Markdown or HTML.
EVIL = "<script>x</script> [a](javascript:x) ![i](http://e.com/i.png) `</code>` www.e.com\n# Heading\n\u202e````\n| z"


def rendered(card):
    """The tokens of the card as GitHub reads it, those inside of paragraphs included."""
    tokens = MarkdownIt("gfm-like", {"html": True, "linkify": False}).parse(card.text)
    return [inner for token in tokens for inner in (token, *(token.children or []))]


def test_no_text_of_a_stranger_acts_in_the_card(folder):
    """In every place where the card shows a text of a file; it has the tags, links and headings of any other card."""
    sound = rendered(model_card(folder([{"event": "reset", "step_applied": 2}], PASSK | {"others": {"x": PASSK}})))
    events = [{"event": "reset", "step_applied": 2, "reason": EVIL, "optimizer_reset": EVIL}]
    others = {EVIL: PASSK | {"task": EVIL, "split": EVIL, "level": EVIL}}
    passk = PASSK | {"task": EVIL, "split": EVIL, "level": EVIL, "others": others}
    keys = dict.fromkeys(("variant", "git_commit", "command", "model_class"), EVIL)
    noted = {"name": EVIL, "hub_id": EVIL, "commit": EVIL, "sha256": EVIL}
    env = keys | {"base_model": noted, "versions": {EVIL: EVIL, "trl-prorl": EVIL}, "hardware": {"gpu": EVIL}}
    for changes in ({"task": EVIL}, {"task": None}):
        for base in (noted, noted | {"hub_id": None}):
            config = {"task_level": EVIL, "run_name": EVIL, "model_name_or_path": EVIL, **changes}
            card = model_card(folder(events, passk, config, env | {"base_model": base}))
            assert "\u202e" not in str(card)
            assert not {token.type for token in rendered(card)} - {token.type for token in sound} - {"softbreak"}
            for kind in ("link_open", "heading_open", "html_inline", "image"):
                allowed = [(token.type, token.attrs.get("href")) for token in sound if token.type == kind]
                found = [(token.type, token.attrs.get("href")) for token in rendered(card) if token.type == kind]
                assert len(found) <= len(allowed) and set(found) <= set(allowed), found
            html = [token.content for token in rendered(card) if token.type.startswith("html")]
            assert not [one for one in html if "details" not in one and "code>" not in one]


def test_the_usage_of_a_hostile_run_is_strings(folder):
    evil = 'x"); import os; os.system("touch PWNED") #'
    card = model_card(folder(env={"base_model": {"name": evil, "hub_id": evil, "commit": evil}}), repo="a/b")
    code = card.text.partition("```python\n")[2].partition("```")[0]
    strings = [node.value for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Constant)]
    assert strings.count(evil) == 2
    assert not any(isinstance(node, ast.Import) for node in ast.walk(ast.parse(code)))


def test_the_dry_run_prints_nothing_that_acts(folder, capsys):
    run = folder(config={"hub_model_id": "a/b\u202e\x1b[31m"})
    save_file({"a": torch.zeros(1)}, run / "adapter_model.safetensors")
    byte_tokenizer().save_pretrained(run)
    assert push.main(["--run", str(run), "--dry-run"]) == 0
    assert not set("\u202e\x1b") & set(capsys.readouterr().out)


def test_a_save_does_not_read_the_rows_of_all_steps(run, monkeypatch):
    """Each save writes the card: after 100,000 steps that would be 180 MB."""
    read = Counter()

    def count(path):
        read[Path(path).name] += 1
        return read_text(path)

    monkeypatch.setattr(log_files, "read_text", count)
    trainer = run(save_strategy="steps", save_steps=1)
    assert read["events.jsonl"] >= 4
    assert read["metrics.jsonl"] == 0
    assert "4 optimizer steps" in Path(trainer.args.output_dir, "README.md").read_text()
