import json

import pytest
from PIL import Image

from trl_prorl.eval import compare, report
from trl_prorl.eval.run_folder.reading import find_recorded_runs, load_runs
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
    said = "A and B share the highest held-out pass@1, 0.750 (base 0.125), with no significant difference from base."
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
    "Variants, pair by pair",
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


def test_a_page_by_name_is_the_page_alone(demo, tmp_path, capsys):
    page = tmp_path / "new" / "mine.html"
    assert report.main(["--runs", str(demo / "A"), "--out", str(page)]) == 0
    assert f"--out {page}" in page.read_text()
    assert [file.name for file in page.parent.iterdir()] == ["mine.html"]
    assert report.main(["--runs", str(demo / "A"), "--out", str(page)]) == 0  # its own
    for name in ("other.html", "notes.txt"):
        (tmp_path / name).write_text("mine")
        assert report.main(["--runs", str(demo / "A"), "--out", str(tmp_path / name)]) == 2
        assert f"{tmp_path / name} is" in capsys.readouterr().err
        assert (tmp_path / name).read_text() == "mine"


def test_b_is_not_judged_by_a_study(demo):
    """A user's B has no share of A to keep."""
    report.main(["--runs", f"{demo}/*"])
    text = (demo / "report.md").read_text()
    assert "success" not in text
    assert "80 to 90" not in text


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


@pytest.fixture
def any_folder(make_run, make_rows, passk_result):
    """Runs as they lie about: two were evaluated, one was not, others crashed, are damaged, or are none."""
    for name, solved in (("first", 2), ("second", 6)):
        make_run(name, "A", make_rows(3), passk=passk_result([1] * 8, [solved] * 8), config={"beta": 0.1 * solved})
    root = make_run("bare", "plain", make_rows(3)).parent
    make_run("second/earlier-1", "A", make_rows(2))
    make_run("deep/er/run", "plain", make_rows(2))
    make_run("crashed", "plain", [])
    make_run("crashed-before-its-record", "plain", None)
    (make_run("damaged", "plain", make_rows(3)) / "env.json").write_text("{")
    (root / "notes" / "old").mkdir(parents=True)
    (root / "notes.txt").write_text("not a run")
    return root


LEFT_OUT = {
    "crashed": "no finished step is on record",
    "crashed-before-its-record": "no finished step is on record",
    "damaged": "is not JSON",
    "notes": "it holds no run",
    "second/earlier-1": "another run took its folder, and it was set aside",
}


def test_whatever_has_nothing_to_show_is_left_out_and_named(any_folder, capsys):
    """On the page and on the terminal, a line each, whose first word is the folder."""
    assert report.main(["--runs", f"{any_folder}/*", f"{any_folder}/second/*"]) == 0
    text = (any_folder / "report.md").read_text()
    said = "".join(capsys.readouterr().out.split())  # a long path is broken into lines
    listed = text[text.index("## Left out") : text.index("## How to")].splitlines()
    lines = [line for line in listed if line.startswith("- ")]
    assert len(lines) == len(LEFT_OUT)
    for name, why in LEFT_OUT.items():
        (line,) = [line for line in lines if line.startswith(f"- `{any_folder / name}` is left out: ")]
        assert why in line
        assert f"`{any_folder / name}`isleftout:" in said
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    for name in ("first", "second", "bare", "run"):
        assert any(line.startswith(f"| {name} ") for line in rows)


def test_a_folder_of_runs_is_all_runs_below_it(any_folder, capsys):
    """Its report goes into it; a run that was set aside counts where it is named outright."""
    assert find_recorded_runs([str(any_folder)]).folders == [
        any_folder / name for name in ("bare", "damaged", "deep/er/run", "first", "second")
    ]
    assert report.main(["--runs", str(any_folder)]) == 0
    assert (any_folder / "report.html").is_file()
    earlier = any_folder / "second" / "earlier-1"
    assert find_recorded_runs([str(any_folder / "first"), f"{earlier}/"]).folders == [any_folder / "first", earlier]


@pytest.mark.parametrize("name", ["crashed", "notes", "notes.txt"])
@pytest.mark.parametrize("main", [report.main, compare.main])
def test_nothing_at_all_is_an_error_with_the_reason_and_a_cure(any_folder, main, name, capsys):
    assert main(["--runs", str(any_folder / name)]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "no run folder with a finished step is there" in message
    assert LEFT_OUT.get(name, "") in message
    assert "give the folder of a run that was trained for at least one step" in message


def test_a_comparison_is_of_the_runs_that_were_evaluated(any_folder, capsys):
    out = any_folder / "numbers.json"
    assert compare.main(["--runs", f"{any_folder}/*", "--json", str(out)]) == 0
    said = "".join(capsys.readouterr().out.split())  # a long path is broken into lines
    bare = any_folder / "bare"
    for line in (
        "pass@1: `first` − `second` -0.500",
        f"`bare` is left out: it has no held-out evaluation. `trl-prorl passk --run {bare}` makes one.",
        f"`{any_folder / 'crashed'}` is left out: no finished step is on record.",
    ):
        assert "".join(line.split()) in said
    notes = json.loads(out.read_text())["notes"]
    assert len([line for line in notes if "is left out" in line]) == len(LEFT_OUT) - 1 + 2


def test_a_comparison_of_fewer_than_two_says_what_evaluates_the_others(any_folder, make_run, make_rows, capsys):
    bare = any_folder / "bare"
    crashed = any_folder / "crashed"
    assert compare.main(["--runs", str(any_folder / "first"), str(bare), str(crashed)]) == 2
    captured = capsys.readouterr()
    message = "a comparison needs two runs with a held-out evaluation, and only 'first' has one; run "
    assert captured.err == f"error: --runs: {message}`trl-prorl passk --run {bare}`, then this again\n"
    assert f"`{crashed}`isleftout" in "".join(captured.out.split())
    keys = {"config": {"model_name_or_path": None, "task": None}, "env": {"command": "python mine.py"}}
    scripts = [str(make_run(name, "plain", make_rows(2), **keys)) for name in ("x", "y")]
    assert compare.main(["--runs", *scripts]) == 2
    said = capsys.readouterr().err
    assert "and none of these 2 has one; `evaluate(trainer, rows, verifier)` " in said
    assert f"`trl-prorl passk --plugin FILE.py --run {scripts[0]}` makes one\n" in said


def test_runs_of_scripts_have_the_model_s_name_and_no_empty_words(make_run, make_rows):
    """`config.yaml` names neither model nor task nor rate; `env.json` has the model."""
    keys = {"config": {"model_name_or_path": None, "task": None, "task_level": None}}
    models = {"mine": "Qwen/Qwen2.5-0.5B", "other": "HuggingFaceTB/SmolLM2-135M"}
    for name, model in models.items():
        root = make_run(name, "plain", make_rows(3), env={"base_model": {"name": model}}, **keys).parent
    assert report.main(["--runs", str(root)]) == 0
    lead = (root / "report.md").read_text().splitlines()[2]
    assert lead.startswith(f"Model `{models['mine']}`, `{models['other']}`; learning rate TRL's default. Base means")
    matrix = [line.split(" | ")[0] for line in (root / "report.md").read_text().splitlines() if line.startswith("| ")]
    assert "| mine (plain Qwen2.5-0.5B)" in matrix  # two models are two arms
