import pytest
from PIL import Image

from eval import report
from eval.run_folder.reading import find_recorded_runs, load_runs
from trl_prorl.variants import DIFFERENT_OBJECTIVE


@pytest.fixture
def demo(make_run, make_rows, passk_result):
    """Three arms, of which the plain one was neither evaluated nor timed."""
    events = [{"event": "reset", "step_requested": 9, "step_applied": 10}]
    cost = {"ref_forward_calls": 2, "time_ref": 0.1, "time_step": 1.0, "time_ended": lambda step: 100.0 + step}
    rows = make_rows(20, reward=0.5, kl_ref=0.01, kl_old=1e-5, **cost)
    make_run("A", "A", rows, events=events, passk=passk_result([1] * 8, [6] * 8), config={"beta": 0.04})
    cost = {"ref_forward_calls": 0, "time_step": 1.0, "time_ended": lambda step: 200.0 + step}
    rows = make_rows(20, reward=0.5, kl_old=1e-5, **cost)
    make_run("B", "B", rows, passk=passk_result([1] * 8, [6] * 8), config={"beta_old": 0.04})
    return make_run("plain", "plain", make_rows(20, reward=0.25)).parent


def test_report_from_a_quoted_glob(demo, capsys):
    (demo / "notes.txt").write_text("not a run")
    (demo / "empty").mkdir()
    assert report.main(["--runs", f"{demo}/*"]) == 0
    text = (demo / "report.md").read_text()
    for picture in ("summary.png", "ref_cost.png"):
        assert f"]({picture})" in text
        with Image.open(demo / picture) as image:
            assert image.width == (1872 if picture == "summary.png" else 624)
    lines = text.splitlines()
    plain = next(line for line in lines if line.startswith("| plain | plain"))
    assert plain == "| plain | plain | none | 0 | 20 | 0.250 → 0.250 | – | – | – | – | – | – |"
    assert lines.index(plain) < next(i for i, line in enumerate(lines) if line.startswith("| A | A |"))
    said = "A and B share the highest held-out pass@1, 0.750 (base 0.125), but not told apart from base."
    assert f"**{said}**" in text
    assert "No step time" not in text
    assert f"Run `trl-prorl passk --run {demo / 'plain'}`" in text
    assert text.count("n/a: fewer than 20 prompts give no interval") == 1
    assert [line.removeprefix("## ") for line in lines if line.startswith("## ")] == HEADINGS
    out = capsys.readouterr().out
    assert "Held-out pass@1" in out
    assert f"- {said}" in " ".join(out.split())
    assert f"Wrote {demo / 'report.html'}" in out
    assert not list(demo.glob(".*.part"))


def test_arms_that_trained_at_the_same_time_have_no_step_time(demo, make_run, make_rows, capsys):
    """Neither in a table nor in a picture; the one that trained alone keeps its own."""
    keys = {"reward": 0.5, "time_step": 1.0, "tokens_per_second": 777.0, "time_update": 1.0}
    for name, began in (("C", 1000.0), ("control", 1000.5)):
        make_run(name, name, make_rows(20, **keys, time_ended=lambda step, began=began: began + step))
    runs = [str(demo / name) for name in ("A", "C", "control")]
    assert report.main(["--runs", *runs]) == 0
    text = (demo / "report.md").read_text()
    (note,) = {line for line in text.splitlines() if line.startswith("No step time")}
    assert note.startswith("No step time is shown for `control` and `C`: these runs trained at the same time")
    assert "777" not in text
    assert "![Mean time of a step by stage](ref_cost.png)" in text
    shown = " ".join(capsys.readouterr().out.split())
    assert "No step time is shown for `control` and `C`" in shown
    assert report.main(["--runs", *runs[1:]]) == 0
    assert "ref_cost.png" not in (demo / "report.md").read_text()


@pytest.mark.parametrize("name", ["report.md", "report.html"])
def test_somebody_else_s_report_is_not_overwritten(demo, capsys, name):
    (demo / name).write_text("# My report\n")
    assert report.main(["--runs", f"{demo}/*"]) == 2
    assert f"error: {demo / name} is no report of this command" in capsys.readouterr().err
    assert (demo / name).read_text() == "# My report\n"
    assert not list(demo.glob("*.png"))


HEADINGS = [
    "Verdict",
    "Result matrix",
    "Curves",
    "Around a reset",
    "Arms against plain, control and A",
    "What was learned",
    "pass@k against k",
    "Newly solved and lost prompts",
    "Dips and reconvergence after the resets",
    "What it cost",
    "Caveats",
    "Left out",
    "How to reproduce",
]


def test_b_is_told_from_a_once_above_the_first_comparison(demo, capsys):
    report.main(["--runs", f"{demo}/*"])
    assert " ".join(capsys.readouterr().out.split()).count(DIFFERENT_OBJECTIVE) == 1
    text = (demo / "report.md").read_text()
    assert text.count(DIFFERENT_OBJECTIVE) == 1
    assert text.index("## Verdict") < text.index(DIFFERENT_OBJECTIVE) < text.index("\n| ")
    assert "same objective" not in text

    report.main(["--runs", str(demo / "A"), str(demo / "plain")])
    assert DIFFERENT_OBJECTIVE not in (demo / "report.md").read_text()


def test_out_folder(demo, tmp_path):
    assert report.main(["--runs", str(demo / "A"), "--out", str(tmp_path / "new" / "folder")]) == 0
    text = (tmp_path / "new" / "folder" / "report.md").read_text()
    assert f"trl-prorl report --runs {demo / 'A'} --out {tmp_path / 'new' / 'folder'}" in text
    assert "--split test --prompts 8 --n 8 --k 1 4 8 --temperature 1 --seed 0" in text
    assert not (demo / "report.md").exists()


def test_arms_of_several_folders_keep_distinct_names(make_run, make_rows):
    first = make_run("seed0/A", "A", make_rows(3))
    second = make_run("seed1/A", "A", make_rows(3))
    runs, left_out = load_runs(find_recorded_runs([str(first), str(second), str(first)]).folders)
    assert [run.name for run in runs] == ["seed0/A", "seed1/A"]
    assert left_out == []


def test_runs_of_several_folders_need_an_out_folder(demo, make_run, make_rows, tmp_path, capsys):
    elsewhere = make_run("study/C", "C", make_rows(3))
    before = sorted(demo.parent.rglob("*"))
    assert report.main(["--runs", str(demo / "A"), str(elsewhere)]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "--out" in message
    assert f"'{demo}', '{elsewhere.parent}'" in message
    assert sorted(demo.parent.rglob("*")) == before
    assert report.main(["--runs", str(demo / "A"), str(elsewhere), "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "report.html").is_file()
