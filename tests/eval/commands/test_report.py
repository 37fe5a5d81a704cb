import html

import pytest

from trl_prorl.cli.variants import DIFFERENT_OBJECTIVE
from trl_prorl.eval import compare, report
from trl_prorl.eval.run_folder.reading import find_runs


@pytest.fixture
def demo(make_run, make_rows, passk_result):
    """Three variants, of which the plain one was neither evaluated nor timed."""
    files = {"passk": passk_result([1] * 8, [6] * 8)}
    for began, variant, cost in ((100.0, "A", {"kl_ref": 0.01, "time_ref": 0.1}), (200.0, "B", {"kl_old": 1e-5})):
        rows = make_rows(20, reward=0.5, time_step=1.0, time_ended=lambda step, began=began: began + step, **cost)
        make_run(variant, variant, rows, **files)
    return make_run("plain", "plain", make_rows(20, reward=0.25)).parent


def test_a_quoted_glob_and_the_sections_for_what_its_runs_have(demo, tmp_path, capsys):
    (demo / "notes.txt").write_text("not a run")
    assert report.main(["--runs", f"{demo}/*"]) == 0
    text = html.unescape((demo / "report.html").read_text())
    out = " ".join(capsys.readouterr().out.split())
    assert f"trl-prorl passk --run {demo / 'plain'}" in text
    assert out.count(DIFFERENT_OBJECTIVE) == text.count(DIFFERENT_OBJECTIVE) == 1
    assert not list(demo.glob(".*.part"))
    out = tmp_path / "new" / "folder"
    assert report.main(["--runs", str(demo / "plain"), "--out", str(out)]) == 0
    assert [file.name for file in out.iterdir()] == ["report.html"]
    page = (out / "report.html").read_text()
    assert "pass@k against k" in text and "pass@k against k" not in page
    assert DIFFERENT_OBJECTIVE not in page


def test_a_page_by_name_is_the_page_alone(demo, tmp_path):
    page = tmp_path / "new" / "mine.html"
    for _ in range(2):  # the second time it is there already, its own
        assert report.main(["--runs", str(demo / "A"), "--out", str(page)]) == 0
    assert [file.name for file in page.parent.iterdir()] == ["mine.html"]


@pytest.mark.parametrize("name", ["report.html", "other.html"])
def test_somebody_else_s_file_is_not_overwritten(demo, name):
    (demo / name).write_text("mine")
    out = demo if name.startswith("report") else demo / name
    assert report.main(["--runs", str(demo / "A"), "--out", str(out)]) == 2
    assert (demo / name).read_text() == "mine"


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


def test_a_folder_of_runs_is_all_runs_below_it(any_folder):
    """A run that was set aside counts where it is named outright."""
    names = ("bare", "crashed", "damaged", "deep/er/run", "first", "second")
    assert find_runs([str(any_folder)]) == [any_folder / name for name in names]
    earlier = any_folder / "second.1"
    assert find_runs([str(earlier)]) == [earlier]


def test_a_run_of_another_trainer_is_told_the_callback(tmp_path, capsys):
    (tmp_path / "plain" / "checkpoint-4").mkdir(parents=True)
    (tmp_path / "plain" / "checkpoint-4" / "trainer_state.json").write_text("{}")
    assert report.main(["--runs", str(tmp_path / "plain")]) == 2
    assert "callbacks=[RunRecorder()]" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["crashed", "notes", "notes.txt"])
@pytest.mark.parametrize("main", [report.main, compare.main])
def test_nothing_at_all_is_an_error(any_folder, main, name, capsys):
    assert main(["--runs", str(any_folder / name)]) == 2
    (message,) = capsys.readouterr().err.splitlines()
    assert name in message


def test_a_comparison_of_fewer_than_two_says_what_evaluates_the_others(any_folder, capsys):
    bare = any_folder / "bare"
    assert compare.main(["--runs", str(any_folder / "first"), str(bare)]) == 2
    assert f"`trl-prorl passk --run {bare}`" in capsys.readouterr().err
