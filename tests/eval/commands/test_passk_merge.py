"""A second evaluation of a run completes the first or is refused; none is lost without being asked for."""

import json
import shutil

import pytest
from safetensors.torch import load_file, save_file

from eval import passk


KEPT = {}  # what a first evaluation has left, by its options: it is done once for all tests


@pytest.fixture
def evaluate(run_dir, task, add_checkpoints, tmp_path_factory):
    """Evaluates a run of 30 steps with checkpoints at 10 and 20, and returns the exit code and `passk.json`."""
    add_checkpoints(run_dir, 10, 20)
    (run_dir / "metrics.jsonl").write_text(json.dumps({"step": 30}) + "\n")

    def run(*options, prompts=6, n=4):
        code, asked = 0, None if (run_dir / "passk.json").exists() else (options, prompts, n)
        if asked in KEPT:
            shutil.copytree(KEPT[asked], run_dir, dirs_exist_ok=True)
        else:
            code = passk.main(["--run", str(run_dir), "--prompts", str(prompts), "--n", str(n), *options])
            if asked:
                KEPT[asked] = shutil.copytree(run_dir, tmp_path_factory.mktemp("kept"), dirs_exist_ok=True)
        return code, json.loads((run_dir / "passk.json").read_text())

    return run


ALL = ("--checkpoints", "all", "--others", "parity@2", "sorting")


def test_parts_asked_one_by_one_are_the_whole(evaluate, run_dir):
    parts = ["--no-greedy", "--checkpoints 20 --k 2", "--others sorting", "--no-greedy --k 1"]
    parts += ["--checkpoints 10 --no-greedy", "--others parity@2 --k 3", "--no-greedy"]
    for part in parts:
        code, result = evaluate(*part.split())
        assert code == 0
    (run_dir / "passk.json").unlink()
    _, whole = evaluate(*ALL, "--k", "1", "2", "3", "4")
    assert result == whole
    assert list(whole["others"]) != list(result["others"])  # in the order they were asked for


def test_new_numbers_win(evaluate, run_dir):
    _, before = evaluate(*ALL)
    changed = json.loads(json.dumps(before))
    for part in (changed["checkpoints"][0], changed["others"]["sorting"]["trained"], changed["greedy"]["trained"]):
        part["correct"] = [0] * 6
    (run_dir / "passk.json").write_text(json.dumps(changed))
    assert evaluate(*ALL)[1] == before


OTHERS = [
    ({"prompts": 5}, "prompts 6 (asked: 5)"),
    ({"n": 5}, "n 4 (asked: 5)"),
    ({"prompts": 8, "n": 3}, "prompts 6 (asked: 8), n 4 (asked: 3)"),
    (("--seed", "1"), "seed 0 (asked: 1)"),
    (("--temperature", "0.5"), "temperature 0.7 (asked: 0.5)"),
    (("--max-new-tokens", "3"), "max_new_tokens 6 (asked: 3)"),
    (("--split", "validation"), "split test (asked: validation)"),
]


def test_another_evaluation_is_refused_before_sampling(evaluate, task, capsys):
    _, before = evaluate("--checkpoints", "all")
    seen = len(task.seen)
    for options, named in OTHERS:
        options, sizes = ((), options) if isinstance(options, dict) else (options, {})
        assert evaluate(*options, **sizes) == (2, before)
        message = capsys.readouterr().err.splitlines()[-1]
        assert f"passk.json' holds another evaluation: {named}; ask for the same to complete it, or" in message
        assert len(task.seen) == seen
    for options, sizes in ((("--seed", "1"), {}), ((), {"n": 3})):
        code, after = evaluate(*options, "--replace", **sizes)
        assert code == 0 and "checkpoints" not in after


def test_nothing_is_drawn_for_any_run_if_one_is_refused(evaluate, run_dir, task, tmp_path):
    first = tmp_path / "first"
    shutil.copytree(run_dir, first)
    evaluate()
    seen = len(task.seen)
    assert passk.main(["--run", str(first), "--run", str(run_dir), "--prompts", "3", "--n", "2"]) == 2
    assert len(task.seen) == seen and not (first / "samples").exists()


def test_what_was_decoded_greedily_says_so(evaluate, capsys):
    evaluate("--greedy", n=1)
    assert evaluate()[0] == 2
    assert "temperature 0.0 (asked: 0.7)" in capsys.readouterr().err.splitlines()[-1]


def test_other_weights_are_not_mixed(evaluate, run_dir, capsys):
    evaluate(*ALL)
    path = run_dir / "adapter_model.safetensors"
    save_file({name: tensor * 3 for name, tensor in load_file(path).items()}, path)
    code, result = evaluate("--no-greedy")
    assert code == 0 and not {"checkpoints", "others", "greedy"} & set(result)
    assert "was of other weights" in capsys.readouterr().out
    evaluate("--checkpoints", "all")
    (run_dir / "metrics.jsonl").write_text(json.dumps({"step": 31}) + "\n")
    assert "checkpoints" not in evaluate()[1]


def test_older_files_are_not_taken_for_the_same(evaluate, run_dir, capsys):
    _, before = evaluate(*ALL)
    older = {key: value for key, value in before.items() if key not in ("prompt_ids", "max_new_tokens")}
    (run_dir / "passk.json").write_text(json.dumps(older))
    assert evaluate() == (2, older)
    message = capsys.readouterr().err.splitlines()[-1]
    assert "another evaluation: max_new_tokens not recorded (asked: 6); ask for the same" in message
