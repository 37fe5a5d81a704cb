import pytest

from trl_prorl.eval import report
from trl_prorl.eval.run_folder.reading import find_runs


@pytest.fixture
def runs(make_run, make_rows, passk_result):
    """Runs as they lie about: one was evaluated, the others were not, and one was set aside."""
    root = make_run("first", "A", make_rows(20, reward=0.5), passk=passk_result([1] * 8, [6] * 8)).parent
    for name in ("second", "second.1", "deep/er/run"):
        make_run(name, "plain", make_rows(3))
    (root / "second.1" / "set_aside").touch()
    (root / "notes" / "old").mkdir(parents=True)
    (root / "notes.txt").write_text("not a run")
    return root


@pytest.mark.parametrize(("out", "page"), [("new/folder", "new/folder/report.html"), ("new/mine.html",) * 2])
def test_a_page_is_written_alone_and_again(runs, tmp_path, out, page):
    for name in ("first", "second"):
        assert report.main(["--runs", str(runs / name), "--out", str(tmp_path / out)]) == 0
    assert [path for path in (tmp_path / "new").rglob("*") if path.is_file()] == [tmp_path / page]
    assert "pass@k against k" not in (tmp_path / page).read_text()  # no run on it was evaluated


@pytest.mark.parametrize("name", ["report.html", "other.html"])
def test_somebody_else_s_file_is_not_overwritten(runs, name):
    (runs / name).write_text("mine")
    out = runs if name.startswith("report") else runs / name
    assert report.main(["--runs", str(runs / "first"), "--out", str(out)]) == 2
    assert (runs / name).read_text() == "mine"


def test_a_folder_of_runs_is_all_runs_below_it(runs):
    """A run that was set aside counts where it is named outright."""
    assert find_runs([str(runs)]) == [runs / name for name in ("deep/er/run", "first", "second")]
    earlier = runs / "second.1"
    assert find_runs([str(earlier)]) == [earlier]
