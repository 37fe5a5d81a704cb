"""A run of a reward and data of one's own: pass@k and drift, from its script and by the commands."""

import json
import shutil
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from datasets import Dataset
from run_record import error_lines
from transformers import AutoModelForCausalLM

from trl_prorl import drift, evaluate
from trl_prorl.errors import InputError, RunError
from trl_prorl.eval import boundary, compare, report
from trl_prorl.eval.run_folder.reading import load_run
from trl_prorl.eval.samples.sampling import progress
from trl_prorl.hub.card import model_card
from trl_prorl.pass_at_k import pass_at_k


def rows_of(prompts):
    return Dataset.from_dict({"prompt": prompts, "letter": ["e"] * len(prompts)})


SIDES = ("base", "trained")
ROWS = rows_of([f"say {word}" for word in "one two three four".split()])


def holds_letter(completion, row):
    return row["letter"] in completion


def frames(run_dir, side):
    """The samples of a side, by temperature."""
    return {
        json.loads((folder / "_settings.json").read_text())["temperature"]: pd.read_parquet(folder / "samples.parquet")
        for folder in (Path(run_dir) / "samples").glob(f"{side}-*")
    }


@pytest.mark.parametrize("lora", [True, False])
def test_the_numbers_are_the_verdicts_of_the_samples(run, lora, tmp_path, capsys):
    trained = run(lora=lora, max_steps=2)
    before = {name: value.clone() for name, value in trained.model.named_parameters()}
    result = evaluate(trained, ROWS, holds_letter, n=6, k=[1, 2], max_new_tokens=8)
    passk = load_run(trained.run_dir).passk
    assert [passk[side]["correct"] for side in SIDES] == [result[side]["correct"] for side in SIDES]
    assert passk["task"] == "own"
    assert passk["step"] == 2
    for side in SIDES:
        (frame,) = (frame for temperature, frame in frames(trained.run_dir, side).items() if temperature)
        assert [holds_letter(text, {"letter": "e"}) for text in frame["completion"]] == list(frame["correct"])
        counts = frame.groupby("prompt_id", sort=False)["correct"].sum()
        assert len(frame) == 24
        assert result[side]["pass@2"] == pytest.approx(sum(pass_at_k(6, int(c), 2) for c in counts) / 4)
    assert all(torch.equal(before[name], value) for name, value in trained.model.named_parameters())
    # Base is the model that training began from: its greedy completions are.
    model = AutoModelForCausalLM.from_pretrained(trained.base_name())
    greedy = frames(trained.run_dir, "base")[0.0]
    assert sorted(greedy["prompt"]) == sorted(ROWS["prompt"])
    for text, ids in zip(greedy["prompt"], greedy["ids"], strict=True):
        (prompt,) = trained.tokenize_prompts([text])
        expected = model.generate(torch.tensor([prompt]), max_new_tokens=8, do_sample=False)[0, len(prompt) :]
        assert list(ids) == expected[: len(ids)].tolist()
    capsys.readouterr()
    again = evaluate(trained, ROWS, lambda completion, row: not holds_letter(completion, row), n=6, max_new_tokens=8)
    assert "the verifier has changed" in capsys.readouterr().out
    assert [6 - c for c in again["trained"]["correct"]] == result["trained"]["correct"]

    # What reads a task's reads it, too.
    evaluate(trained, rows_of([f"say {i}" for i in range(20)]), holds_letter, n=2, max_new_tokens=4, greedy=False)
    run_dir = str(trained.run_dir)
    assert boundary.main(["--run", run_dir]) == report.main(["--runs", run_dir, "--out", str(tmp_path / "r")]) == 0
    assert compare.main(["--runs", run_dir, run_dir]) == 2  # one run
    assert "evaluate(trainer, rows, verifier)" in (tmp_path / "r" / "report.md").read_text()
    assert "evaluate(trainer, rows, verifier)" not in str(model_card(run_dir))  # it is evaluated


@pytest.mark.parametrize(
    "lora, bf16, weights, computes",
    [
        (True, False, torch.bfloat16, "bfloat16"),
        (True, False, torch.float32, "float32"),
        (False, False, torch.bfloat16, "bfloat16"),
        (False, True, torch.float32, "bfloat16"),  # in autocast
    ],
)
def test_samples_are_filed_under_the_precision_of_the_policy(run, lora, bf16, weights, computes):
    """As it is in memory: a command may load the same weights in another one, and would draw other samples."""
    trained = run(lora=lora, bf16=bf16, max_steps=1)
    trained.model.to(weights)
    seen = set()
    policy = trained.accelerator.unwrap_model(trained.model)
    (projection, *_) = (module for name, module in policy.named_modules() if name.endswith("q_proj"))
    projection.register_forward_hook(lambda module, inputs, output: seen.add(output.dtype))
    evaluate(trained, ROWS, holds_letter, n=1, max_new_tokens=4)
    settings = (Path(trained.run_dir) / "samples").glob("trained-*/_settings.json")
    assert {json.loads(file.read_text())["dtype"] for file in settings} == {computes}
    assert seen == {getattr(torch, computes)}


def test_not_evaluated_yet(run):
    card = str(model_card(run(max_steps=1).run_dir))
    assert "Not evaluated yet. `evaluate(trainer, rows, verifier)`" in card
    assert "started by `" in card


@pytest.mark.parametrize(
    ("rows", "settings", "said"),
    [
        ([{"prompt": "x"}], {}, "rows: a datasets.Dataset"),
        (Dataset.from_dict({"question": ["x", "y"]}), {}, "a column prompt is needed, and this is one with question"),
        (rows_of(["x"]), {}, "rows: 1 prompts; at least 2"),
        (ROWS, {"n": 0}, "--n 0"),
        (ROWS, {"k": [20]}, "--k 20"),
    ],
)
def test_refused(make_trainer, rows, settings, said):
    with pytest.raises(InputError, match=said):
        evaluate(make_trainer(), rows, holds_letter, **settings)


def test_a_result_is_shown_as_its_table_and_is_a_dictionary_of_json(run, capsys):
    trained = run(max_steps=1)
    result = evaluate(trained, rows_of([f"say {i}" for i in range(20)]), holds_letter, n=2, max_new_tokens=4)
    moved = drift(trained, ROWS, samples=2, max_new_tokens=4)
    printed = capsys.readouterr().out
    for one, file, title in ((result, "passk.json", "pass@k of"), (moved, "drift.json", "Drift of")):
        assert repr(one).strip().startswith(title)
        assert repr(one).splitlines()[-1] in printed
        assert set(one) == set(json.loads((Path(trained.run_dir) / file).read_text()))
    assert json.loads(json.dumps(result)) == json.loads((Path(trained.run_dir) / "passk.json").read_text())
    assert f"{result['gain']['pass@1'][0]:+.3f}" in repr(result)
    rows = [line.split()[0] for line in repr(result).splitlines() if "│" in line]
    assert rows == ["pass@1", "greedy"]  # and none of the rows' ids
    assert result["prompt_ids"][0] not in repr(result)


@pytest.mark.parametrize("lora", [True, False])
def test_drift_is_that_of_a_plain_loop_over_its_samples(run, lora, capsys):
    trained = run(lora=lora, max_steps=3)
    before = {name: value.clone() for name, value in trained.model.named_parameters()}
    result = drift(trained, ROWS, holds_letter, samples=3, max_new_tokens=6)
    assert "drift of trained" in capsys.readouterr().out
    base, last = result["points"]
    assert (base["step"], base["kl_to_base"], last["step"]) == (0, pytest.approx(0.0, abs=1e-6), 3)
    assert (result["task"], result["split"], result["prompts"], result["samples"]) == ("own", "test", 4, 3)
    (frame,) = frames(trained.run_dir, "trained").values()
    plain = AutoModelForCausalLM.from_pretrained(trained.base_name()).eval()
    policy = trained.model.eval()
    kl = []
    for prompt, ids in zip(frame["prompt"], frame["ids"], strict=True):
        (question,) = trained.tokenize_prompts([prompt])
        for place in range(len(ids)):
            so_far = torch.tensor([[*question, *ids[:place]]])
            with torch.no_grad():
                p, q = (torch.softmax(model(so_far).logits[0, -1], -1) for model in (policy, plain))
            kl.append(float((p * (p / q).log()).sum()))
    assert last["kl_to_base"] == pytest.approx(sum(kl) / len(kl), rel=1e-3)
    assert last["kl_to_base"] > 1e-6
    assert last["gold"] == sum(map(holds_letter, frame["completion"], [{"letter": "e"}] * 12)) / 12
    assert "reward" not in last  # which rows do not have
    assert all(torch.equal(before[name], value) for name, value in trained.model.named_parameters())
    assert load_run(trained.run_dir).drift["points"][1]["kl_to_base"] == last["kl_to_base"]


def test_samples_that_nothing_judged_are_judged_by_the_verifier_that_comes_later(run, capsys):
    trained = run(max_steps=1)
    moved = drift(trained, ROWS, samples=4, max_new_tokens=8)
    assert not {"gold", "reward"} & set(moved["points"][1])
    assert [set(frame["correct"]) for frame in frames(trained.run_dir, "trained").values()] == [{None}]
    result = evaluate(trained, ROWS, holds_letter, n=6, k=[1], greedy=False, max_new_tokens=8)
    (frame,) = frames(trained.run_dir, "trained").values()
    assert list(frame["correct"]) == [holds_letter(text, {"letter": "e"}) for text in frame["completion"]]
    assert sum(result["trained"]["correct"]) == sum(frame["correct"])
    assert "has changed" not in capsys.readouterr().out
    assert "gold" not in drift(trained, ROWS, samples=4, max_new_tokens=8)["points"][1]
    (again,) = frames(trained.run_dir, "trained").values()
    assert list(again["correct"]) == list(frame["correct"])


def graded(completion, row):
    return 0.5


def of_trl(completions, letter, **columns):
    return [letter in completion for completion in completions]


def one_argument(completion):
    return True


def forgets_to_return(completion, row):
    row["letter"] in completion  # noqa: B015


def says_it_in_words(completion, row):
    return completion.split()[-1] == row["letter"]


def misspells(completion, row):
    return row["leter"] in completion


WRONG = [
    (graded, "verifier('', row) returned 0.5, a float; write it as verifier(completion, row)"),
    (of_trl, "verifier('', row) returned [], a list"),
    (one_argument, "verifier takes (completion); write it as verifier(completion, row)"),
    (forgets_to_return, "verifier('', row) returned None, a NoneType"),
    (says_it_in_words, "verifier('', row) raised IndexError: list index out of range; the row has prompt, letter"),
    (misspells, "verifier('', row) raised KeyError: 'leter'; the row has prompt, letter"),
    ("holds_letter", "verifier='holds_letter' is no function"),
    (None, "verifier=None: pass@k needs one"),
]


@pytest.mark.parametrize(("verifier", "said"), WRONG)
def test_a_wrong_verifier_is_named_before_anything_is_sampled(make_trainer, verifier, said):
    trainer = make_trainer()
    with pytest.raises(InputError) as refused:
        evaluate(trainer, ROWS, verifier)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not (Path(trainer.run_dir) / "samples").exists()


def test_a_link_out_of_the_run_s_folder_and_out_of_a_reward_model_s(make_trainer, tmp_path):
    trainer = make_trainer()
    out = Path(trainer.args.output_dir)
    (out / "merges.txt").symlink_to(tmp_path / "mine")
    for measure in (evaluate, drift):
        with pytest.raises(InputError, match="contains the link 'merges.txt'"):
            measure(trainer, ROWS, holds_letter)
    with pytest.raises(InputError, match=r"reward_funcs=.* contains the link 'merges.txt'"):
        make_trainer(reward=str(out))


def test_a_verifier_that_raises_later_is_named_with_the_completion(run):
    def picky(completion, row):
        if completion not in ("", "42"):
            raise ZeroDivisionError("division by zero")
        return True

    with pytest.raises(RunError, match="verifier raised ZeroDivisionError: division by zero, on the completion '"):
        evaluate(run(max_steps=1), ROWS, picky, n=2, k=[1], max_new_tokens=8)


@pytest.mark.parametrize("verdict", ["False", 0.5, None])
def test_a_verdict_that_is_neither_true_nor_false_later_ends_the_evaluation(run, verdict):
    def unsure(completion, row):
        return False if completion in ("", "42") else verdict

    with pytest.raises(RunError, match="neither true nor false"):
        evaluate(run(max_steps=1), ROWS, unsure, n=2, k=[1], max_new_tokens=8)


def test_a_notebook_shows_progress_at_once(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ipykernel", None)
    with progress(40, "runs/A: trained") as bar:
        bar.update(4)
    assert "runs/A: trained" in capsys.readouterr().err


@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_a_line_has_the_kl_of_a_run_that_has_one(run, capsys, beta):
    trained = run(max_steps=2, beta=beta, skip_zero_rows=True)
    assert any("prorl/kl_old" in logs for logs in trained.state.log_history)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step ")]
    assert len(lines) == 2
    assert ["kl_old" in line for line in lines] == [beta > 0] * 2


SCRIPT = """
from datasets import Dataset
from peft import LoraConfig
from trl_prorl import ProRLConfig, ProRLTrainer, drift, embedded_model, evaluate


def rows(numbers):
    prompts = [[{"role": "user", "content": f"reverse {number}"}] for number in numbers]
    return Dataset.from_dict({"prompt": prompts, "digit": [str(number * 7 % 10) for number in numbers]})


def verify(completion, row):
    return row["digit"] in completion


def reward(completions, digit, **columns):
    return [float(verify(c[0]["content"], {"digit": d})) for c, d in zip(completions, digit)]


def held_out_rows():
    return rows(range(11, 91, 4))


if __name__ == "__main__":
    args = ProRLConfig("runs/mine", max_steps=4, per_device_train_batch_size=8, num_generations=4, use_cpu=True,
                       max_completion_length=6, bf16=False, save_strategy="steps", save_steps=1, report_to="none")
    trainer = ProRLTrainer(embedded_model("embedded"), reward, args, rows(range(10, 90, 4)), peft_config=LoraConfig())
    trainer.train()
    trainer.save_model()
    evaluate(trainer, held_out_rows(), verify, n=4)
    drift(trainer, held_out_rows(), verify, samples=2)
"""
SETTINGS = (
    "split prompts n temperature max_new_tokens seed task level prompt_ids run_id step steps_on_record k".split()
)


@pytest.fixture(scope="module")
def of_script(forks, tmp_path_factory):
    """The folder in which a script has trained and measured `runs/mine`."""
    folder = tmp_path_factory.mktemp("script")
    (folder / "mine.py").write_text(SCRIPT)
    status, written = forks.run("mine.py", cwd=folder)
    assert status == 0, written[-3000:]
    return folder


@pytest.fixture
def command(forks, of_script, tmp_path):
    """A function that runs `trl-prorl` beside a copy of the script and its run: exit status, and what it wrote."""
    shutil.copytree(of_script, tmp_path, dirs_exist_ok=True)
    return lambda line: forks.run("-m", "trl_prorl", *line.split(), cwd=tmp_path, env={"COLUMNS": "200"})


def measured(folder, name):
    return json.loads((folder / "runs" / "mine" / name).read_text())


def test_the_commands_measure_what_the_script_measured(command, tmp_path):
    own = measured(tmp_path, "passk.json")
    status, written = command("passk --run runs/mine --plugin mine.py --n 4 --replace --no-greedy")
    assert status == 0, written[-3000:]
    again = measured(tmp_path, "passk.json")
    assert {key: again[key] for key in SETTINGS} == {key: own[key] for key in SETTINGS}
    assert again["base"]["correct"] == own["base"]["correct"]
    assert 0 < sum(own["base"]["correct"]) < 80
    assert again["in_training"] == own["in_training"] == 0  # which the script alone could find out
    own = measured(tmp_path, "drift.json")
    status, written = command("drift --run runs/mine --plugin mine.py --samples 2 --checkpoints all")
    assert status == 0, written[-3000:]
    again = measured(tmp_path, "drift.json")
    assert [point["step"] for point in again["points"]] == [0, 1, 2, 3, 4]
    assert again["points"][0]["gold"] == own["points"][0]["gold"]
    assert again["points"][0]["entropy"] == pytest.approx(own["points"][0]["entropy"])
    assert {**again, "points": None} == {**own, "points": None}


def test_a_command_adds_to_what_the_script_measured(command, tmp_path):
    """Its checkpoints, which a trainer no longer has, and from which the trajectory is drawn."""
    status, written = command("trajectory --run runs/mine")
    assert status == 2
    assert "run `trl-prorl passk --plugin FILE.py --run runs/mine --checkpoints all`" in written
    status, written = command("passk --plugin mine.py --run runs/mine --n 4 --checkpoints all")
    assert status == 0, written[-3000:]
    assert [point["step"] for point in measured(tmp_path, "passk.json")["checkpoints"]] == [1, 2, 3, 4]
    for line in ("trajectory --run runs/mine", "boundary --run runs/mine", "report --runs runs/mine"):
        status, written = command(line)
        assert status == 0, written[-3000:]
    status, written = command("push --run runs/mine --dry-run")
    assert status == 0
    assert "The recipe" not in written


ONLY_ROWS = SCRIPT.replace("def verify", "def is_right").replace("verify(", "is_right(")
REFUSED = {
    "passk --run runs/mine": "is the run of a script, and its rows and its verifier are not on record: give --plugin",
    "drift --run runs/mine": "or call evaluate(trainer, rows, verifier) and drift(trainer, rows) in the script (`",
    "passk --run runs/mine --plugin mine.py --prompts 21": "held_out_rows() of mine.py has 20 rows; ask for fewer",
    "passk --run runs/mine --plugin mine.py --split train": "held_out_rows() of mine.py has no splits; leave out",
    "passk --run runs/mine --plugin only_rows.py": "pass@k needs verify(completion, row) there, too",
    "passk --run runs/mine --plugin wrong.py": "verify of wrong.py('', row) returned 0.5, a float",
    "passk --run runs/mine --plugin raises.py": "held_out_rows() of raises.py raised FileNotFoundError: rows.jsonl",
    "passk --run runs/mine --plugin a_list.py": "held_out_rows() of a_list.py: a datasets.Dataset with a column",
    "passk --run runs/mine --plugin mine.py --plugin wrong.py": "mine.py and wrong.py have held_out_rows()",
    "passk --run runs/mine --plugin nothing.py": "for the run of a script, functions held_out_rows() and verify(",
    "passk --run runs/mine --plugin trains.py": "put what trains below `if __name__ == '__main__':`",
    "train tiny/variantA --plugin mine.py --output_dir runs/other": "registers no task; it needs TASKS['NAME']",
}
FILES = {
    "only_rows.py": ONLY_ROWS,
    "wrong.py": SCRIPT.replace('return row["digit"] in completion', "return 0.5"),
    "raises.py": SCRIPT.replace(
        "return rows(range(11", "raise FileNotFoundError('rows.jsonl')\n    return rows(range(11"
    ),
    "a_list.py": SCRIPT.replace("return rows(range(11, 91, 4))", "return [1, 2]"),
    "nothing.py": "x = 1",
    "trains.py": SCRIPT.replace('if __name__ == "__main__":', "if True:"),
}


@pytest.mark.parametrize("line", REFUSED)
def test_a_command_that_lacks_rows_or_verifier_is_one_line(command, tmp_path, line):
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)
    before = sorted(path.name for path in (tmp_path / "runs").rglob("*"))
    status, written = command(line)
    (said,) = error_lines(written)
    assert status == 2
    assert REFUSED[line] in said
    assert sorted(path.name for path in (tmp_path / "runs").rglob("*")) == before


def test_drift_needs_no_verifier(command, tmp_path):
    (tmp_path / "only_rows.py").write_text(ONLY_ROWS)
    status, written = command("drift --run runs/mine --plugin only_rows.py --samples 1")
    assert status == 0, written[-3000:]
    assert "gold" not in measured(tmp_path, "drift.json")["points"][1]


def test_a_script_that_did_not_save_its_model(command, tmp_path):
    (tmp_path / "runs" / "mine" / "adapter_config.json").unlink()
    status, written = command("passk --run runs/mine --plugin mine.py")
    assert status == 2
    assert "let the script end with trainer.save_model(), or copy a checkpoint's files there" in written
