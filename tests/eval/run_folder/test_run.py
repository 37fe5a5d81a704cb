import json

import pytest

from eval.run_folder.reading import load_config, load_run
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


def test_stage_totals(make_run, make_rows):
    cached = [{"step": 1, "time_ref": 2.0, "ref_forward_calls": 1}, {"step": 2, "ref_forward_calls": 0}]
    assert load_run(make_run("A", "A", cached)).stage_total("ref") == 2.0
    counted = make_rows(3, ref_forward_calls=0)
    assert load_run(make_run("B", "B", counted)).stage_total("ref") == 0.0
    assert load_run(make_run("plain", "plain", make_rows(3, time_step=1.0))).stage_total("ref") is None
    # Calls that were counted but not timed took time nobody knows.
    assert load_run(make_run("C", "C", make_rows(3, ref_forward_calls=2))).stage_total("ref") is None


def test_resets_are_told_from_other_events(make_run, make_rows):
    events = [{"event": "reset", "step_applied": 5}, {"event": "growth", "step_applied": 7}]
    assert load_run(make_run("A", "A", make_rows(), events=events)).reset_steps() == [5]
    assert load_run(make_run("control", "control", make_rows(), events=[])).reset_steps() == []
    assert load_run(make_run("plain", "plain", make_rows(), events=None)).reset_steps() is None


def test_order(make_run, make_rows):
    names = ["C", "own", "B", "A", "control", "plain"]
    runs = sort_runs([load_run(make_run(name, name, make_rows(2))) for name in names])
    assert [run.variant for run in runs] == ["plain", "control", "A", "B", "C", "own"]


def test_broken_folders_say_what_to_do(make_run, make_rows, tmp_path):
    with pytest.raises(InputError, match="does not exist; give"):
        load_config(tmp_path / "nowhere")
    with pytest.raises(InputError, match="config.yaml' is missing"):
        load_config(tmp_path)
    folder = make_run("A", "A", make_rows(2))
    (folder / "config.yaml").write_text("- a list")
    with pytest.raises(InputError, match="holds a list"):
        load_run(folder)
    folder = make_run("B", "B", make_rows(2))
    (folder / "metrics.jsonl").write_text("no json\n")
    with pytest.raises(InputError, match="line 1 is not JSON"):
        load_run(folder)
    (folder / "metrics.jsonl").write_text("")
    with pytest.raises(InputError, match="records no step"):
        load_run(folder)
    (folder / "env.json").unlink()
    with pytest.raises(InputError, match="env.json' is missing"):
        load_run(folder)


@pytest.mark.parametrize("file", ["passk.json", "drift.json"])
def test_an_evaluation_of_the_run_that_had_the_folder_before_is_not_this_runs(make_run, make_rows, passk_result, file):
    folder = make_run("A", "A", make_rows(2), env={"run_id": "2"})
    content = passk_result([1, 2], [3, 4]) if file == "passk.json" else {"points": []}
    (folder / file).write_text(json.dumps({**content, "run_id": "1"}))
    with pytest.raises(InputError, match=f"{file}' is of another run, .* remove it"):
        load_run(folder)
