import json

import pandas as pd
import pytest

from eval.run_folder import reading
from eval.run_folder.reading import load_run
from eval.run_folder.run import sort_runs
from trl_prorl.errors import InputError


def test_absent_is_not_zero(make_run):
    rows = [{"step": 1, "reward": 0.5}, {"step": 2, "reward": 0.0, "kl_ref": 0.1}, {"step": 3, "kl_ref": None}]
    run = load_run(make_run("A", "A", rows))
    assert run.measured("reward").to_dict() == {1: 0.5, 2: 0.0}
    assert run.measured("kl_ref").to_dict() == {2: 0.1}
    assert run.measured("entropy") is None
    assert run.total("entropy") is None


def test_steps_are_sorted_and_a_cut_line_is_left_out(make_run):
    folder = make_run("A", "A", [{"step": 2, "reward": 2.0}, {"step": 1, "reward": 1.0}])
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"step": 3, "rew')
    assert load_run(folder).metrics["step"].tolist() == [1, 2]


def test_stage_totals(make_run, read_run):
    cached = [{"step": 1, "time_ref": 2.0, "ref_forward_calls": 1}, {"step": 2, "ref_forward_calls": 0}]
    assert load_run(make_run("A", "A", cached)).stage_total("ref") == 2.0
    assert read_run("B", ref_forward_calls=0).stage_total("ref") == 0.0
    assert read_run("plain", time_step=1.0).stage_total("ref") is None
    # Calls that were counted but not timed took time nobody knows.
    assert read_run("C", ref_forward_calls=2).stage_total("ref") is None


def test_resets_are_told_from_other_events(read_run):
    events = [{"event": "reset", "step_applied": 5}, {"event": "growth", "step_applied": 7}]
    found = [read_run("A", seed, events=these).reset_steps() for seed, these in enumerate([events, [], None])]
    assert found == [[5], [], None]


def test_order(read_run):
    runs = sort_runs([read_run(variant) for variant in ("C", "own", "B", "A", "control", "plain")])
    assert [run.variant for run in runs] == ["plain", "control", "A", "B", "C", "own"]


@pytest.mark.parametrize("file", ["passk.json", "drift.json"])
def test_an_evaluation_of_the_run_that_had_the_folder_before_is_not_this_runs(make_run, make_rows, passk_result, file):
    folder = make_run("A", "A", make_rows(2), env={"run_id": "2"})
    content = passk_result([1, 2], [3, 4]) if file == "passk.json" else {"points": []}
    (folder / file).write_text(json.dumps({**content, "run_id": "1"}))
    with pytest.raises(InputError, match=f"{file}' is of another run, .* remove it"):
        load_run(folder)


AT_ONCE = ('{"step": 2, "a": 0.30000000000000004}\n{"step": 1, "b": 1e-300}\n', '{"step": 1, "a": NaN}\n')
LINE_BY_LINE = [
    *('{"step": 1, "a": 9007199254740993}\n', '{"step": 1}\n\n{"step": 2}\n', '{"step": 1}\n{"st', '{"a": 1}\n'),
    *('{"step": 1}{"step": 2}\n{"step": 3}\n', '{"step": 1}\n{"step": 1}\n', '{"step": 1.0}\n', '{"step": -1}\n'),
]


@pytest.mark.parametrize("text", [*AT_ONCE, *LINE_BY_LINE])
def test_a_record_is_read_at_once_where_it_has_no_fault(tmp_path, monkeypatch, text):
    (tmp_path / "metrics.jsonl").write_text(text)
    found = reading._plain_rows(tmp_path / "metrics.jsonl")
    assert (found is not None) == (text in AT_ONCE)
    monkeypatch.setattr(reading, "_plain_rows", lambda path: None)
    if found is not None:
        pd.testing.assert_frame_equal(found, reading._read_rows(tmp_path / "metrics.jsonl"), check_exact=True)
