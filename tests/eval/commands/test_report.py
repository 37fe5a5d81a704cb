import json

import pytest
from PIL import Image

from trl_prorl.eval import compare, report
from trl_prorl.eval.run_folder.reading import find_recorded_runs
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


def headings(folder):
    return [line[3:] for line in (folder / "report.md").read_text().splitlines() if line.startswith("## ")]


ALWAYS = {"Verdict", "Result matrix", "Curves", "What was learned", "What it cost", "Caveats", "How to reproduce"}
WHERE_MEASURED = {"Around a reset", "Variants, pair by pair", "pass@k against k", "Newly solved and lost prompts"}
WHERE_MEASURED |= {"Dips and reconvergence after the resets"}


def test_a_quoted_glob_and_the_sections_for_what_its_runs_have(demo, tmp_path, capsys):
    (demo / "notes.txt").write_text("not a run")
    (demo / "empty").mkdir()
    assert report.main(["--runs", f"{demo}/*"]) == 0
    assert set(headings(demo)) == {*ALWAYS, *WHERE_MEASURED, "Left out"}
    text = (demo / "report.md").read_text()
    for picture in ("summary.png", "ref_cost.png"):
        assert f"]({picture})" in text
        with Image.open(demo / picture) as image:
            image.load()
    lines = text.splitlines()
    plain = next(line for line in lines if line.startswith("| plain | plain"))
    assert plain == "| plain | plain | none | 0 | 20 | 0.250 → 0.250 | – | – | – | – | – | – |"
    assert lines.index(plain) < next(i for i, line in enumerate(lines) if line.startswith("| A | A |"))
    said = "A and B share the highest held-out pass@1, 0.750 (base 0.125)"
    assert said in text
    assert f"Run `trl-prorl passk --run {demo / 'plain'}`" in text
    out = " ".join(capsys.readouterr().out.split())
    assert said in out
    assert str(demo / "report.html") in out
    assert not list(demo.glob(".*.part"))
    # B optimises another objective: said once, above the first comparison, where B is there.
    assert out.count(DIFFERENT_OBJECTIVE) == text.count(DIFFERENT_OBJECTIVE) == 1
    assert text.index("## Verdict") < text.index(DIFFERENT_OBJECTIVE) < text.index("\n| ")
    out = tmp_path / "new" / "folder"
    assert report.main(["--runs", str(demo / "plain"), "--out", str(out)]) == 0
    assert set(headings(out)) == ALWAYS
    text = (out / "report.md").read_text()
    assert DIFFERENT_OBJECTIVE not in text
    assert f"trl-prorl report --runs {demo / 'plain'} --out {out}" in text


def test_arms_that_trained_at_the_same_time_have_no_step_time(demo, make_run, make_rows, capsys):
    """Neither in a table nor in a picture; the one that trained alone keeps its own."""
    keys = {"reward": 0.5, "time_step": 1.0, "tokens_per_second": 777.0, "time_update": 1.0}
    for name, began in (("C", 1000.0), ("control", 1000.5)):
        make_run(name, name, make_rows(20, **keys, time_ended=lambda step, began=began: began + step))
    runs = [str(demo / name) for name in ("A", "C", "control")]
    assert report.main(["--runs", *runs]) == 0
    text = (demo / "report.md").read_text()
    (note,) = {line for line in text.splitlines() if line.startswith("No step time")}
    assert "`control` and `C`" in note
    assert note.split(":")[0] in " ".join(capsys.readouterr().out.split())
    assert "777" not in text
    assert "](ref_cost.png)" in text
    assert report.main(["--runs", *runs[1:]]) == 0
    assert "ref_cost.png" not in (demo / "report.md").read_text()


def test_a_page_by_name_is_the_page_alone(demo, tmp_path):
    page = tmp_path / "new" / "mine.html"
    for _ in range(2):  # the second time it is there already, its own
        assert report.main(["--runs", str(demo / "A"), "--out", str(page)]) == 0
    assert f"--out {page}" in page.read_text()
    assert [file.name for file in page.parent.iterdir()] == ["mine.html"]


@pytest.mark.parametrize("name", ["report.md", "report.html", "other.html", "notes.txt"])
def test_somebody_else_s_file_is_not_overwritten(demo, capsys, name):
    (demo / name).write_text("mine")
    out = demo if name.startswith("report") else demo / name
    assert report.main(["--runs", str(demo / "A"), "--out", str(out)]) == 2
    assert f"{demo / name} is" in capsys.readouterr().err
    assert (demo / name).read_text() == "mine"
    assert not list(demo.glob("*.png"))


def test_runs_of_several_folders_need_an_out_folder(demo, make_run, make_rows, tmp_path, capsys):
    elsewhere = make_run("study/C", "C", make_rows(3))
    before = sorted(demo.parent.rglob("*"))
    assert report.main(["--runs", str(demo / "A"), str(elsewhere)]) == 2
    assert "--out" in capsys.readouterr().err
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


LEFT_OUT = ("crashed", "crashed-before-its-record", "damaged", "notes", "second/earlier-1")


def test_whatever_has_nothing_to_show_is_left_out_and_named(any_folder, capsys):
    """On the page and on the terminal, a line each, whose first word is the folder; a comparison does so, too."""
    runs = ["--runs", f"{any_folder}/*", f"{any_folder}/second/*"]
    assert report.main(runs) == 0
    text = (any_folder / "report.md").read_text()
    said = "".join(capsys.readouterr().out.split())  # a long path is broken into lines
    listed = text[text.index("## Left out") : text.index("## How to")].splitlines()
    lines = [line for line in listed if line.startswith("- ")]
    assert sorted(line.split("`")[1] for line in lines) == [str(any_folder / name) for name in LEFT_OUT]
    for name in LEFT_OUT:
        assert f"`{any_folder / name}`isleftout:" in said
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    for name in ("first", "second", "bare", "run"):
        assert any(line.startswith(f"| {name} ") for line in rows)

    out = any_folder / "numbers.json"
    assert compare.main([*runs, "--json", str(out)]) == 0
    said = "".join(capsys.readouterr().out.split())
    assert f"trl-prorl passk --run {any_folder / 'bare'}".replace(" ", "") in said
    found = json.loads(out.read_text())
    assert [row["difference"][0] for row in found["comparisons"] if row["k"] == 1] == [-0.5]
    assert len([line for line in found["notes"] if "is left out" in line]) == len(LEFT_OUT) + 2  # `bare`, `run`


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
def test_nothing_at_all_is_an_error(any_folder, main, name, capsys):
    assert main(["--runs", str(any_folder / name)]) == 2
    (message,) = capsys.readouterr().err.splitlines()
    assert "no run folder with a finished step" in message


def test_a_comparison_of_fewer_than_two_says_what_evaluates_the_others(any_folder, make_run, make_rows, capsys):
    bare = any_folder / "bare"
    assert compare.main(["--runs", str(any_folder / "first"), str(bare), str(any_folder / "crashed")]) == 2
    assert f"`trl-prorl passk --run {bare}`" in capsys.readouterr().err
    keys = {"config": {"model_name_or_path": None, "task": None}, "env": {"command": "python mine.py"}}
    scripts = [str(make_run(name, "plain", make_rows(2), **keys)) for name in ("x", "y")]
    assert compare.main(["--runs", *scripts]) == 2
    assert f"`trl-prorl passk --plugin FILE.py --run {scripts[0]}`" in capsys.readouterr().err


def test_runs_of_scripts_have_the_model_s_name(make_run, make_rows):
    """`config.yaml` names neither model nor task; `env.json` has the model."""
    keys = {"config": {"model_name_or_path": None, "task": None, "task_level": None}}
    models = {"mine": "Qwen/Qwen2.5-0.5B", "other": "HuggingFaceTB/SmolLM2-135M"}
    for name, model in models.items():
        root = make_run(name, "plain", make_rows(3), env={"base_model": {"name": model}}, **keys).parent
    assert report.main(["--runs", str(root)]) == 0
    text = (root / "report.md").read_text()
    assert all(f"`{model}`" in text for model in models.values())
    assert "| mine (plain Qwen2.5-0.5B) | " in text  # two models are two arms
