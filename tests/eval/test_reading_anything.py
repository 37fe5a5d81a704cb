"""A run folder as it is read."""

import json

import pytest
import yaml

from trl_prorl.errors import InputError
from trl_prorl.eval.run_folder.reading import load_run
from trl_prorl.run.log_files import JsonLines, read_jsonl


SIDE = {"correct": [0, 1, 2], "pass@1": 0.5, "interval@1": [0.1, 0.9], "mean_tokens": 3.0, "truncated": 0.0}
SETTINGS = {"split": "test", "prompts": 3, "n": 2, "k": [1], "temperature": 1.0, "seed": 0, "max_new_tokens": 8}
PASSK = {
    **SETTINGS,
    **{"task": "parity", "level": 1},
    **{"base": SIDE, "trained": SIDE, "gain": {"pass@1": [0.0, None, None]}, "step": 4, "steps_on_record": 4},
    "prompt_ids": ["a", "b", "c"],
    "checkpoints": [{"step": step, **SIDE} for step in (1, 2, 4)],
    "by": [{"task": "parity", "level": 1, "prompts": 3, "base": SIDE, "trained": SIDE}],
    "others": {"x": {**SETTINGS, "task": "sorting", "level": 2, "base": SIDE, "trained": SIDE}},
    "greedy": {
        **{side: {"accuracy": 1 / 3, "interval": [0, 1], "correct": [0, 0, 1]} for side in ("base", "trained")},
        "gain": [0.0, None, None],
    },
}
ENV = {
    **{"variant": "A", "seed": 0, "versions": {"trl": "1"}, "git_commit": "0"},
    "execution": {"old_logps": "forward", "merged_copy_bytes": 4},
    **{"hardware": {"cpus": 2}, "parameters": 4, "trainable_parameters": 2, "run_id": "1"},
    "base_model": {"name": "tiny", "hub_id": None, "commit": None},
    "command": "trl-prorl train x.yaml",
}
CONFIG = {"model_name_or_path": "tiny", "task": "parity", "task_level": 1, "max_steps": 4, "output_dir": "x"}
OF_LOSS = {"learning_rate": 1e-5, "loss_type": "dapo"}
POINT = {"kl_to_base": 0.1, "interval": [0.0, 0.2], "token_agreement": 1.0, "base_entropy": 1.0, "entropy": 1.0}
ROW = {"reward": 0.5, "kl_ref": 0.1, "time_step": 1.0, "grad_norm": 1.0}
FILES = {
    "config.yaml": CONFIG | {"temperature": 1, "hub_model_id": "a/b", "chat_template_kwargs": {}, **OF_LOSS},
    "env.json": ENV,
    "metrics.jsonl": [{"step": n, **ROW} for n in (1, 2, 3, 4)],
    "events.jsonl": [{"event": "reset", "step_requested": 1, "step_applied": n, "reason": "every"} for n in (1, 3)],
    "evaluations.jsonl": [{"step": 2, "eval_reward": 0.5}, {"step": 4, "eval_reward": 0.6}],
    "passk.json": PASSK,
    "drift.json": {"prompts": 3, "points": [{**POINT, "mean_tokens": 2, "step": step} for step in (0, 4)]},
}


def written(file, content):
    if file.endswith(".yaml"):
        return yaml.safe_dump(content).encode()
    if file.endswith(".jsonl"):
        return "".join(json.dumps(row) + "\n" for row in content).encode()
    return json.dumps(content).encode()


@pytest.fixture
def folders(tmp_path):
    """A run that is damaged, and a sound one beside it."""
    root = tmp_path / "runs"
    root.mkdir()
    for name in ("damaged", "sound"):
        (root / name).mkdir()
        for file, content in FILES.items():
            (root / name / file).write_bytes(written(file, content))
    (root / "sound" / "env.json").write_text(json.dumps({**ENV, "variant": "control"}))
    return root


def replace(folders, file, content):
    path = folders / "damaged" / file
    path.unlink()
    if content is not None:
        path.write_bytes(content)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("passk.json", b"{"),
        ("drift.json", b"[]"),
        ("env.json", b"\xff"),
        ("metrics.jsonl", b""),
        ("config.yaml", b"a: ["),
        ("config.yaml", b"- a list"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(folders, file, content):
    replace(folders, file, content)
    with pytest.raises(InputError, match=f"damaged/{file}"):
        load_run(folders / "damaged")


def test_a_log_that_a_kill_cuts_anywhere_loses_its_last_line(tmp_path):
    """At any byte; and a line that the resumed process appends is read."""
    rows = [{key: row[key] for key in ("step", "reward")} for row in FILES["metrics.jsonl"]]
    whole = written("metrics.jsonl", rows)
    path = tmp_path / "metrics.jsonl"
    for cut in range(len(whole) + 1):
        *lines, begun = whole[:cut].split(b"\n")
        is_whole = begun == whole.split(b"\n")[len(lines)] != b""
        path.write_bytes(whole[:cut])
        assert read_jsonl(path) == rows[: len(lines) + is_whole], cut
    path.write_bytes(whole[:-9])
    JsonLines(path, resumes=True).write({"step": 4, "attempt": 1})
    assert read_jsonl(path) == [*rows[:-1], {"step": 4, "attempt": 1}]


def test_absent_is_not_zero_and_steps_are_sorted(make_run):
    rows = [{"step": 2, "reward": 0.0, "kl_ref": 0.1}, {"step": 1, "reward": 0.5}, {"step": 3, "kl_ref": None}]
    run = load_run(make_run("A", "A", rows))
    assert list(run.measured("reward").items()) == [(1, 0.5), (2, 0.0)]
    assert run.measured("kl_ref").to_dict() == {2: 0.1}
    assert run.measured("entropy") is run.total("entropy") is None


def test_resets_are_told_from_other_events(read_run):
    events = [{"event": "reset", "step_applied": 5}, {"event": "growth", "step_applied": 7}]
    found = [read_run("A", seed, events=these).reset_steps() for seed, these in enumerate([events, [], None])]
    assert found == [[5], [], None]
