import json
import os

import pytest
from PIL import Image
from slow import slow_but

from trl_prorl.cli.variants import DIFFERENT_OBJECTIVE
from trl_prorl.eval import compare, report
from trl_prorl.eval.run_folder.reading import find_recorded_runs


@pytest.fixture
def demo(make_run, make_rows, passk_result):
    """Three variants, of which the plain one was neither evaluated nor timed."""
    files = {"passk": passk_result([1] * 8, [6] * 8)}
    for began, variant, cost in ((100.0, "A", {"kl_ref": 0.01, "time_ref": 0.1}), (200.0, "B", {"kl_old": 1e-5})):
        rows = make_rows(20, reward=0.5, time_step=1.0, time_ended=lambda step, began=began: began + step, **cost)
        make_run(variant, variant, rows, **files)
    return make_run("plain", "plain", make_rows(20, reward=0.25)).parent


def headings(folder):
    return {line for line in (folder / "report.md").read_text().splitlines() if line.startswith("## ")}


def test_a_quoted_glob_and_the_sections_for_what_its_runs_have(demo, tmp_path, capsys):
    (demo / "notes.txt").write_text("not a run")
    assert report.main(["--runs", f"{demo}/*"]) == 0
    text = (demo / "report.md").read_text()
    for picture in ("summary.png", "ref_cost.png"):
        assert f"]({picture})" in text
        with Image.open(demo / picture) as image:
            image.load()
    (plain,) = [line for line in text.splitlines() if line.startswith("| plain | no KL")]
    assert plain == "| plain | no KL | none | 0 | 20 | 0.250 → 0.250 | – | – | – | – | – | – |"
    said = "A and B share the highest held-out pass@1, 0.750 (base 0.125)"
    out = " ".join(capsys.readouterr().out.split())
    assert said in text and said in out
    assert f"Run `trl-prorl passk --run {demo / 'plain'}`" in text
    assert out.count(DIFFERENT_OBJECTIVE) == text.count(DIFFERENT_OBJECTIVE) == 1
    assert not list(demo.glob(".*.part"))
    out = tmp_path / "new" / "folder"
    assert report.main(["--runs", str(demo / "plain"), "--out", str(out)]) == 0
    assert headings(out) < headings(demo)
    assert "## pass@k against k" in headings(demo) - headings(out)
    assert DIFFERENT_OBJECTIVE not in (out / "report.md").read_text()


def test_variants_that_trained_at_the_same_time_have_no_step_time(demo, make_run, make_rows):
    """Neither in a table nor in a picture; the one that trained alone keeps its own."""
    keys = {"reward": 0.5, "time_step": 1.0, "tokens_per_second": 777.0, "time_update": 1.0}
    for name, began in (("C", 1000.0), ("control", 1000.5)):
        make_run(name, name, make_rows(20, **keys, time_ended=lambda step, began=began: began + step))
    runs = [str(demo / name) for name in ("A", "C", "control")]
    assert report.main(["--runs", *runs]) == 0
    text = (demo / "report.md").read_text()
    untimed = next(line for line in text.splitlines() if line.startswith("No step time"))
    assert "`control`" in untimed and "`C`" in untimed
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
def test_somebody_else_s_file_is_not_overwritten(demo, name):
    (demo / name).write_text("mine")
    out = demo if name.startswith("report") else demo / name
    assert report.main(["--runs", str(demo / "A"), "--out", str(out)]) == 2
    assert (demo / name).read_text() == "mine"
    assert not list(demo.glob("*.png"))


@pytest.mark.parametrize("name", slow_but(["summary.png", "ref_cost.svg"], "ref_cost.svg"))
def test_somebody_else_s_picture_is_not_overwritten(demo, name, capsys):
    (demo / name).write_text("mine")
    command = ["--runs", str(demo / "A"), str(demo / "B"), "--out", str(demo)]
    assert report.main(command) == 2
    assert name in capsys.readouterr().err
    assert (demo / name).read_text() == "mine"
    assert not (demo / "report.md").exists()
    (demo / name).unlink()
    assert report.main(command) == report.main(command) == 0


def test_a_page_of_gigabytes_is_not_read(demo):
    (demo / "report.md").touch()
    os.truncate(demo / "report.md", 50 * 2**30)
    assert report.main(["--runs", str(demo / "A"), "--out", str(demo)]) == 2


@pytest.mark.parametrize("name", slow_but(["report.html", "*.svg"], "*.svg"))
def test_a_folder_in_place_of_a_page_is_one_line(demo, name, capsys):
    assert report.main(["--runs", str(demo / "A"), "--out", str(demo)]) == 0
    file = next(demo.glob(name))
    file.unlink()
    file.mkdir()
    capsys.readouterr()
    assert report.main(["--runs", str(demo / "A"), "--out", str(demo)]) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert file.name in line


def test_runs_of_several_folders_need_an_out_folder(demo, make_run, make_rows, tmp_path, capsys):
    runs = ["--runs", str(demo / "A"), str(make_run("study/C", "C", make_rows(3)))]
    assert report.main(runs) == 2
    assert "--out" in capsys.readouterr().err
    assert not list(demo.parent.rglob("report.html"))
    assert report.main([*runs, "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "report.html").is_file()


@pytest.fixture
def any_folder(make_run, make_rows, passk_result):
    """Runs as they lie about: two were evaluated, two were not, others crashed, are damaged, or are none."""
    for name, solved in (("first", 2), ("second", 6)):
        make_run(name, "A", make_rows(3), passk=passk_result([1] * 8, [solved] * 8), config={"beta": 0.1 * solved})
    root = make_run("bare", "plain", make_rows(3)).parent
    for name in ("second.1", "deep/er/run", "damaged"):
        make_run(name, "plain", make_rows(2))
    (root / "second.1" / "set_aside").touch()
    (root / "damaged" / "env.json").write_text("{")
    make_run("crashed", "plain", [])
    (root / "notes" / "old").mkdir(parents=True)
    (root / "notes.txt").write_text("not a run")
    return root


def test_whatever_has_nothing_to_show_is_left_out_and_named(any_folder, capsys):
    """On the page and on the terminal, a line each; a comparison does so, too."""
    runs = ["--runs", f"{any_folder}/*", f"{any_folder}/second/*"]
    assert report.main(runs) == 0
    text = (any_folder / "report.md").read_text()
    said = "".join(capsys.readouterr().out.split())  # a long path is broken into lines
    left_out = text[text.index("## Left out") : text.index("## How to")]
    for name in ("crashed", "damaged", "notes", "second.1"):
        assert left_out.count(f"\n- `{any_folder / name}`") == 1
        assert f"`{any_folder / name}`isleftout:" in said
    for name in ("first", "second", "bare", "run"):
        assert f"\n| {name} " in text

    out = any_folder / "numbers.json"
    assert compare.main([*runs, "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert [row["difference"][0] for row in found["comparisons"] if row["k"] == 1] == [-0.5]
    assert len([line for line in found["notes"] if "is left out" in line]) == 4 + 2  # `bare`, `run`


def test_a_folder_of_runs_is_all_runs_below_it(any_folder):
    """A run that was set aside counts where it is named outright."""
    names = ("bare", "damaged", "deep/er/run", "first", "second")
    assert find_recorded_runs([str(any_folder)]).folders == [any_folder / name for name in names]
    earlier = any_folder / "second.1"
    assert find_recorded_runs([f"{earlier}/"]).folders == [earlier]


@pytest.mark.parametrize("name", ["crashed", "notes", "notes.txt"])
@pytest.mark.parametrize("main", [report.main, compare.main])
def test_nothing_at_all_is_an_error(any_folder, main, name, capsys):
    assert main(["--runs", str(any_folder / name)]) == 2
    (message,) = capsys.readouterr().err.splitlines()
    assert "no run folder" in message


def test_a_comparison_of_fewer_than_two_says_what_evaluates_the_others(any_folder, make_run, make_rows, capsys):
    bare = any_folder / "bare"
    assert compare.main(["--runs", str(any_folder / "first"), str(bare)]) == 2
    assert f"`trl-prorl passk --run {bare}`" in capsys.readouterr().err
    keys = {"config": {"model_name_or_path": None, "task": None}, "env": {"command": "python mine.py"}}
    scripts = [str(make_run(name, "plain", make_rows(2), **keys)) for name in ("x", "y")]
    assert compare.main(["--runs", *scripts]) == 2
    assert f"`trl-prorl passk --plugin FILE.py --run {scripts[0]}`" in capsys.readouterr().err


def test_runs_of_scripts_have_the_model_s_name(make_run, make_rows):
    """`config.yaml` names neither model nor task; `env.json` has the model. Two models are two variants."""
    config = {"model_name_or_path": None, "task": None, "task_level": None}
    for name, model in (("mine", "Qwen/Qwen2.5-0.5B"), ("other", "HuggingFaceTB/SmolLM2-135M")):
        env = {"base_model": {"name": model}}
        root = make_run(name, "plain", make_rows(3), env=env, config=config).parent
    assert report.main(["--runs", str(root)]) == 0
    assert "| mine (no KL, Qwen2.5-0.5B) | " in (root / "report.md").read_text()
