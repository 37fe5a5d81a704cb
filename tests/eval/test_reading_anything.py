"""A run folder as it is read: whatever its files hold, commands end well, or say in a line which file is wrong."""

import json
import os
import shutil

import pandas as pd
import pytest
import yaml
from any_content import QUICK, changed, places
from hypothesis import given, settings
from hypothesis import strategies as st

from trl_prorl.errors import InputError
from trl_prorl.eval import report
from trl_prorl.eval.analysis.frame import Frame
from trl_prorl.eval.compare import compare_runs
from trl_prorl.eval.report import build_report
from trl_prorl.eval.run_folder import reading
from trl_prorl.eval.run_folder.reading import load_run
from trl_prorl.eval.samples.models import check_trained_model
from trl_prorl.eval.samples.run_samples import check_run
from trl_prorl.eval.why import explain
from trl_prorl.hub.card import model_card
from trl_prorl.run.log_files import JsonLines, next_attempt, read_jsonl, read_yaml


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
# 429 bytes that stand for 10 to the power of 9 values.
LAUGHS = b"a: &a [x, x, x, x, x, x, x, x, x, x]\n" + b"".join(
    b"%c: &%c [%s]\n" % (name, name, b", ".join([b"*%c" % (name - 1)] * 10)) for name in b"bcdefghi"
)


def written(file, content):
    if file.endswith(".yaml"):
        return yaml.safe_dump(content).encode()
    if file.endswith(".jsonl"):
        return "".join(json.dumps(row) + "\n" for row in content).encode()
    return json.dumps(content).encode()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A run that is damaged, and a sound one beside it."""
    root = tmp_path_factory.mktemp("runs")
    for name in ("damaged", "sound"):
        (root / name).mkdir()
        for file, content in FILES.items():
            (root / name / file).write_bytes(written(file, content))
    (root / "sound" / "env.json").write_text(json.dumps({**ENV, "variant": "control"}))
    return root


@pytest.fixture
def readers(folders):
    """Everything that reads the run folder, pictures aside; each ends, or raises an `InputError`."""
    run = folders / "damaged"
    other = folders / "sound"
    return {
        "report": lambda: build_report(Frame([load_run(run), load_run(other)]), "report"),
        "card": lambda: model_card(run, run, repo="a/b"),
        "compare": lambda: compare_runs([load_run(run), load_run(other)], [1]),
        "why": lambda: explain(load_run(run)),
        "passk": lambda: check_run(run),
        "push": lambda: check_trained_model(run, {}),
        "resume": lambda: next_attempt(run),
    }


def damage():
    """A file, and what a power loss or another program may have left of it."""

    def of(file):
        whole = written(file, FILES[file])
        cut = st.tuples(st.integers(0, len(whole)), st.sampled_from([b"", b"\0" * 9, b"\n", b"\xff"]))
        others = [b"[" * 99, *b"{} [] [1,2] 5 null \xff".split(), b"", b"&a [*a]", b"a: &a {b: *a}"]
        return st.tuples(
            st.just(file),
            cut.map(lambda cut: whole[: cut[0]] + cut[1]) | st.binary(max_size=20) | st.sampled_from(others),
        )

    return st.sampled_from(sorted(FILES)).flatmap(of)


def read_damaged(folders, readers, file, content):
    """What those said that refused the file."""
    path = folders / "damaged" / file
    refused = []
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    try:
        for name, read in readers.items():
            try:
                read()
            except InputError as error:
                assert "damaged" in str(error) and len(str(error)) <= 500, (name, error)
                refused += [str(error)] if file in str(error) else []
        return refused
    finally:
        path.write_bytes(written(file, FILES[file]))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("examples", [15, pytest.param(1500, marks=pytest.mark.slow)])
def test_no_content_of_a_file_ends_in_a_traceback(folders, readers, examples):
    @given(damage())
    @settings(max_examples=examples, **QUICK)
    def read(damage):
        read_damaged(folders, readers, *damage)

    read()


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("passk.json", b"{}", "'split'"),
        (
            "passk.json",
            written("passk.json", {key: PASSK[key] for key in PASSK if key != "prompt_ids"}),
            "'prompt_ids'",
        ),
        ("env.json", b"[" * 100_000, "not JSON"),
        ("env.json", b"\xff", "byte 0"),
        ("env.json", b'{"seed": 0, "seed": 1}', "'seed' is given twice"),
        ("env.json", None, "missing"),
        ("metrics.jsonl", b'{"step": 1}\n5\n', "line 2 contains 5,"),
        ("metrics.jsonl", b'{"step": 1}\n{"step": 2, "re\n{"step": 3}\n', "line 2 is not JSON"),
        ("metrics.jsonl", b'{"step": 1}\n' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"\n", "line 2"),
        ("metrics.jsonl", b'{"step": 1}\n{"step": 1}\n', "step 1 twice"),
        ("metrics.jsonl", b"", "no step"),
        ("events.jsonl", b'{"event": "reset"}\n', "line 1 has no 'step_applied'"),
        ("config.yaml", b"a: &a {b: *a}", "not YAML"),
        ("config.yaml", LAUGHS, "1,048,576 values"),
        # Python stops at the depth of its stack, newer versions of libyaml before that.
        ("config.yaml", b"a: " + b"[" * 10_000, "not YAML"),
        ("config.yaml", b"- a list", "a list"),
    ],
)
def test_what_is_said(folders, readers, file, content, said):
    assert any(said in line for line in read_damaged(folders, readers, file, content))


# What a report, a comparison and a card met with a traceback, or went on for ever with.
KINDS = [
    *[("passk.json", at, value) for at, value in {("k",): [], ("n",): 0, ("prompts",): -1, ("split",): 5}.items()],
    *[("passk.json", ("n",), value) for value in (10**9, "8 ; touch PWNED #", None, 10**400)],
    *[("passk.json", ("max_new_tokens",), value) for value in ("8 ; touch PWNED #", [8], -1)],
    *[("passk.json", ("seed",), value) for value in ("0; x", {})],
    ("passk.json", ("k",), [10**9]),
    ("passk.json", ("k",), [None]),
    ("passk.json", ("k",), [1] * 2000),
    ("passk.json", ("prompts",), 10**6),
    ("passk.json", ("checkpoints",), [{"step": 1, **SIDE}] * 2000),
    ("passk.json", ("by",), [{"task": "parity", "level": 1, "prompts": 3, "base": SIDE, "trained": SIDE}] * 2000),
    ("passk.json", ("others",), {str(number): PASSK["others"]["x"] for number in range(2000)}),
    ("drift.json", ("points",), [{**POINT, "mean_tokens": 2, "step": 1}] * 2000),
    ("passk.json", ("temperature",), float("nan")),
    ("passk.json", ("trained", "correct"), [None, None, None]),
    ("passk.json", ("trained", "correct"), [0, 1, 3]),
    ("passk.json", ("trained", "correct"), [0]),
    ("passk.json", ("trained", "pass@1"), "x"),
    ("passk.json", ("base", "interval@1"), [0.1]),
    ("passk.json", ("prompt_ids", 0), ["a"]),
    ("passk.json", ("checkpoints", 0, "step"), None),
    ("passk.json", ("checkpoints", 0, "correct"), [0]),
    ("passk.json", ("by", 0, "base"), []),
    ("passk.json", ("others", "x", "split"), 5),
    ("passk.json", ("others",), [1]),
    ("passk.json", ("greedy", "trained", "accuracy"), "x"),
    ("passk.json", ("greedy", "trained", "correct"), []),
    ("passk.json", ("base", "mean_tokens"), 1e308),
    ("passk.json", ("gain", "pass@1"), 0.5),
    ("drift.json", ("points",), {}),
    ("drift.json", ("points", 0, "kl_to_base"), None),
    ("metrics.jsonl", (0, "reward"), [1]),
    ("metrics.jsonl", (0, "reward"), "x"),
    ("metrics.jsonl", (0, "reward"), 10**400),
    ("metrics.jsonl", (0, "step"), {}),
    ("metrics.jsonl", (0, "step"), -1),
    ("evaluations.jsonl", (0, "eval_reward"), {}),
    ("events.jsonl", (0, "step_applied"), "x"),
    ("events.jsonl", (0, "reason"), 5),
    ("env.json", ("versions",), [1]),
    ("env.json", ("base_model", "name"), 5),
    ("env.json", ("command",), ["python"]),
    ("config.yaml", ("model_name_or_path",), 5),
    ("config.yaml", ("max_steps",), "x"),
    ("config.yaml", ("task_level",), [1]),
    ("config.yaml", ("temperature",), "x"),
    ("config.yaml", ("hub_model_id",), [1]),
    ("config.yaml", ("learning_rate",), "x"),
    ("config.yaml", ("learning_rate",), [1]),
    ("config.yaml", ("loss_type",), [1]),
    ("config.yaml", ("chat_template_kwargs",), 5),
]


@pytest.mark.parametrize(("file", "at", "value"), KINDS)
def test_what_a_file_may_not_hold_is_named_with_its_place(folders, readers, file, at, value):
    content = written(file, changed(FILES[file], at, value))
    said = read_damaged(folders, {name: readers[name] for name in ("report", "card", "compare")}, file, content)
    assert len(said) in (2, 3)  # the card reads no drift.json and no evaluations.jsonl
    assert all(str([place for place in at if isinstance(place, str)][-1]) in line for line in said)


@pytest.mark.parametrize(
    ("file", "at", "value"),
    [
        ("env.json", ("base_model", "name"), ...),
        ("env.json", ("parameters",), None),
        ("config.yaml", ("learning_rate",), None),
        ("env.json", ("parameters",), 0),  # of a model in parts
        ("passk.json", ("gain", "pass@1", 0), None),
        ("passk.json", ("base", "pass@1"), ...),
    ],
)
def test_what_is_not_known_is_left_out(folders, readers, file, at, value):
    assert read_damaged(folders, readers, file, written(file, changed(FILES[file], at, value))) == []


@pytest.mark.parametrize("at", [("seed",), ("task",), ("others", "x", "seed")])
def test_what_every_evaluation_notes_is_needed(folders, readers, at):
    """A report shows it, and a model card names it."""
    content = written("passk.json", changed(PASSK, at, ...))
    said = read_damaged(folders, readers, "passk.json", content)
    assert [f"an object with {at[-1]!r}" in line for line in said] == [True] * 4  # report, card, compare, why


@pytest.mark.parametrize("number", [1e308, -1e308, float("inf")])
def test_a_number_too_large_to_be_squared_is_not_measured(folders, readers, number):
    rows = changed(FILES["metrics.jsonl"], (1, "time_step"), number)
    path = folders / "damaged" / "metrics.jsonl"
    path.write_bytes(written("metrics.jsonl", rows))
    try:
        readers["report"]()
        times = load_run(folders / "damaged").measured("time_step")
        assert list(times.index) == [1, 3, 4]
    finally:
        path.write_bytes(written("metrics.jsonl", FILES["metrics.jsonl"]))


@pytest.mark.parametrize("step", ["x", None, [1], -1, True, 1.5, 10**400])
def test_a_step_is_a_whole_number_to_whoever_reads_lines(tmp_path, step):
    """passk and branch read no more of a record than its steps."""
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps({"step": step}))
    with pytest.raises(InputError, match="line 1 has step"):
        read_jsonl(path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("file", sorted(FILES))
def test_no_value_in_any_place_ends_in_a_traceback(folders, readers, file):
    values = [..., None, [], {}, "x", -1, 0, 10**9, float("nan"), float("inf"), True, 0.5, [None], {"a": None}, "1"]
    for at in places(FILES[file]):
        for value in values if at else ():
            read_damaged(folders, readers, file, written(file, changed(FILES[file], at, value)))


@pytest.mark.parametrize(("file", "size"), [("metrics.jsonl", 3 * 2**30), ("passk.json", 50 * 2**30)])
def test_a_file_of_gigabytes_is_not_read(folders, readers, file, size):
    """Sparse, so that it takes no room."""
    path = folders / "damaged" / file
    whole = path.read_bytes()
    os.truncate(path, size)
    try:
        for name in ("report", "card"):
            with pytest.raises(InputError, match=f"{file}' has {size:,} bytes, more than"):
                readers[name]()
    finally:
        path.write_bytes(whole)


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


LARGE = {
    "lines": b"".join(b'{"step":%d}\n' % step for step in range(2**20 + 2)),
    "a line": lines([{"step": 1} | dict.fromkeys(map(str, range(10**5)), 1.0)]),
    "different keys": lines({"step": step, f"key {step}": 1.0} for step in range(2100)),
    "cells": lines(
        [*({"step": step} for step in range(10**5)), {"step": 10**5} | dict.fromkeys(map(str, range(1500)))]
    ),
}


@pytest.mark.parametrize("name", LARGE)
def test_a_small_log_that_is_a_large_table_is_one_line(folders, readers, name):
    (line,) = read_damaged(folders, {"report": readers["report"]}, "metrics.jsonl", LARGE[name])
    assert "metrics.jsonl" in line


def test_a_key_of_a_row_writes_nothing_to_the_terminal(folders, readers, caplog):
    rows = [{**row, "\x1b]0;\x07\u202e": float("inf")} for row in FILES["metrics.jsonl"]]
    read_damaged(folders, {"report": readers["report"]}, "metrics.jsonl", lines(rows))
    assert "infinite or huge" in caplog.text
    assert all(record.getMessage().isprintable() for record in caplog.records)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("damage", ["value", "bug", "samples"])
def test_one_damaged_run_does_not_hide_the_others(folders, tmp_path, monkeypatch, capsys, damage):
    """A value of another kind; an error that nobody foresaw; samples of other columns, which alone are left out."""
    shutil.copytree(folders, tmp_path / "runs")
    run = tmp_path / "runs" / "damaged"
    if damage == "value":
        (run / "passk.json").write_text(json.dumps(PASSK | {"k": []}))
    elif damage == "bug":
        known = reading.read_env
        monkeypatch.setattr(reading, "read_env", lambda path: 1 / 0 if path.name == "damaged" else known(path))
    else:
        (run / "samples" / "base-1").mkdir(parents=True)
        (run / "samples" / "base-1" / "_settings.json").write_text("{}")
        pd.DataFrame({"a": [1]}).to_parquet(run / "samples" / "base-1" / "x.parquet")
    assert report.main(["--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "page.html")]) == 0
    said = capsys.readouterr().out
    assert "control" in said
    assert (f"`{run}`isleftout" in "".join(said.split())) == (damage != "samples")  # wherever the line is wrapped


def test_a_few_anchors_are_read(tmp_path):
    """Of a text, a list and a mapping, also merged."""
    path = tmp_path / "few.yaml"
    path.write_text("a: &a [1, 2]\nc: &c {x: *a, y: 1}\nd: {<<: *c, y: 2}\ntask: &t parity\nrun_name: *t\n")
    read = read_yaml(path)
    assert read["d"] == {"x": [1, 2], "y": 2}
    assert read["run_name"] == "parity"


SLOW = [pytest.param(value, marks=pytest.mark.slow) for value in (None, True)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e308, *SLOW])
@pytest.mark.parametrize("file, key", [("metrics.jsonl", "grad_norm"), ("evaluations.jsonl", "eval_reward")])
def test_any_number_of_a_row_is_read(folders, readers, caplog, file, key, value):
    """In the first row and in all; an infinite one, as fp16 leaves in `grad_norm`, is not measured, which is said."""
    first, *others = FILES[file]
    for rows in ([{**first, key: value}, *others], [{**row, key: value} for row in FILES[file]]):
        caplog.clear()
        assert read_damaged(folders, readers, file, written(file, rows)) == []
        assert ("huge values" in caplog.text) == (value in (float("inf"), 1e308))


def test_a_file_that_is_cut_anywhere_loses_its_last_line_and_says_so(tmp_path, caplog):
    """A power loss: at any byte, with the rest of the block in zeros or not, or a line that was begun after it."""
    rows = [{key: row[key] for key in ("step", "reward")} for row in FILES["metrics.jsonl"]]
    whole = written("metrics.jsonl", rows)
    path = tmp_path / "metrics.jsonl"
    for cut in range(len(whole) + 1):
        *lines, begun = whole[:cut].split(b"\n")
        is_whole = begun == whole.split(b"\n")[len(lines)] != b""
        for end in (b"", b"\0" * 9, b"\n"):
            path.write_bytes(whole[:cut] + end)
            caplog.clear()
            assert read_jsonl(path) == rows[: len(lines) + is_whole], (cut, end)
            assert ("truncated" in caplog.text) == (begun != b"" and not is_whole), (cut, end)
    path.write_bytes(whole[:-9])
    JsonLines(path, resumes=True).write({"step": 4, "attempt": 1})
    assert read_jsonl(path) == [*rows[:-1], {"step": 4, "attempt": 1}]
    path.write_bytes(whole[:-9])
    JsonLines(path, resumes=True).write({"step": 4})
    with pytest.raises(InputError, match="line 4 is not JSON"):
        read_jsonl(path)  # no kill cuts a line of a process that writes on


def test_a_last_line_with_a_huge_number_is_not_taken_for_one_that_is_cut_off(tmp_path, caplog):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2, "reward": ' + "1" * 5000 + "}\n")
    with pytest.raises(InputError, match="line 2 is not JSON"):
        read_jsonl(path)
    assert "truncated" not in caplog.text


@pytest.mark.parametrize("file", ["metrics.jsonl", "env.json", "config.yaml"])
def test_a_byte_order_mark_is_read_over(make_run, make_rows, file):
    path = make_run("a", "A", make_rows(2)) / file
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    load_run(path.parent)


def test_absent_is_not_zero_and_steps_are_sorted(make_run):
    rows = [{"step": 2, "reward": 0.0, "kl_ref": 0.1}, {"step": 1, "reward": 0.5}, {"step": 3, "kl_ref": None}]
    run = load_run(make_run("A", "A", rows))
    assert list(run.measured("reward").items()) == [(1, 0.5), (2, 0.0)]
    assert run.measured("kl_ref").to_dict() == {2: 0.1}
    assert run.measured("entropy") is run.total("entropy") is None


def test_stage_totals(make_run, read_run):
    cached = [{"step": 1, "time_ref": 2.0, "ref_forward_calls": 1}, {"step": 2, "ref_forward_calls": 0}]
    assert load_run(make_run("A", "A", cached)).stage_total("ref") == 2.0
    assert read_run("B", ref_forward_calls=0).stage_total("ref") == 0.0
    # Calls that were counted but not timed took time nobody knows.
    assert read_run("C", ref_forward_calls=2).stage_total("ref") is read_run("plain").stage_total("ref") is None


def test_resets_are_told_from_other_events(read_run):
    events = [{"event": "reset", "step_applied": 5}, {"event": "growth", "step_applied": 7}]
    found = [read_run("A", seed, events=these).reset_steps() for seed, these in enumerate([events, [], None])]
    assert found == [[5], [], None]


def test_metrics_are_read_under_their_former_names(read_run):
    former = {**POINT, "mean_tokens": 2, "gold": 0.25}
    drift = {"prompts": 3, "points": [{**former, "step": 4, "others": {"x": former}}]}
    run = read_run("plain", gold=0.5, drift=drift)
    assert list(run.metrics["accuracy"]) == [0.5] * 4
    (point,) = run.drift["points"]
    assert point["accuracy"] == point["others"]["x"]["accuracy"] == 0.25
    assert "gold" not in {*run.metrics, *point, *point["others"]["x"]}
