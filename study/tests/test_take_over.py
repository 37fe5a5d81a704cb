"""Runs of another branch or checkout come into the tables: each once, from the old place too, and none by force."""

import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from study.__main__ import KEPT, main
from study.matrix import RunKey
from study.tables import FOLDER, STOPS, Tables, read_tables, write_tables
from study.take_over import EARLIER_FOLDER, merge, read_source
from trl_prorl.errors import InputError
from trl_prorl.eval.command import command


ROOT = Path(__file__).parent.parent.parent
FIRST, SECOND = (RunKey("sums", arm, 1, 1, 3) for arm in ("plain", "A"))
ON_ANOTHER_BASE = RunKey("sums", "A", 2, 2, 3)
SCORED = {"step": 0, "gold": 0.5, "greedy": 0.25, "reward": 0.75, "kl_to_base": 0.0, "best_of_8": 0.5}


def made(add, *keys, **row):
    tables = Tables()
    for key in keys:
        add(tables, key, **row)
    return tables


def bytes_of(root):
    return {path.name: path.read_bytes() for path in (root / FOLDER).iterdir()}


@pytest.fixture
def here(tmp_path, add):
    """A checkout whose tables have one run."""
    write_tables(tmp_path / "here", made(add, FIRST))
    return tmp_path / "here"


@pytest.fixture
def there(tmp_path, add, git):
    """A repository from before the move: its branch `runs` has three runs."""
    root = tmp_path / "there"
    tables = made(add, FIRST, SECOND, ON_ANOTHER_BASE)
    rows = {"run": tables.runs.loc[SECOND].to_dict(), "curve": [], "prompts": []}
    rows["curve"] = tables.curves.loc[[SECOND]].to_dict("records")
    rows["prompts"] = tables.prompts.loc[[SECOND]].to_dict("records")
    tables.add(SECOND, {**rows, "base_stops": [SCORED]})  # the base is measured here, without its row of stops
    write_tables(root, tables)
    (root / "docs").mkdir()
    (root / FOLDER).rename(root / EARLIER_FOLDER)
    git(root.parent, "init", "--quiet", str(root))
    git(root, "add", ".")
    git(root, "commit", "--quiet", "-m", "Three runs")
    git(root, "branch", "runs")
    return root


def run(root, *arguments):
    return command(main, kept=KEPT)(["take-over", *arguments, "--root", str(root)])


def test_runs_of_a_checkout_are_taken_over_once(here, there, capsys):
    before = bytes_of(here)
    assert run(here, str(there)) == 0
    written = capsys.readouterr().out
    assert f"taken over: {SECOND}\n" in written
    assert "2 of 3 runs of" in written
    tables = read_tables(here)
    assert set(tables.runs.index) == {FIRST, SECOND, ON_ANOTHER_BASE}
    assert set(tables.bases.index) == {FIRST.base, ON_ANOTHER_BASE.base}
    assert tables.stops.loc[[FIRST.base], "best_of_8"].tolist() == [0.5]
    wanted = read_source(here, str(there))
    for name, table in vars(tables).items():
        pd.testing.assert_frame_equal(table, getattr(wanted, name))
    after = bytes_of(here)
    assert after.keys() == before.keys() | {STOPS}
    assert all(after[name] != before[name] for name in before)
    assert run(here, str(there)) == 0
    assert "0 of 3 runs of" in capsys.readouterr().out
    assert bytes_of(here) == after


def test_a_branch_is_read_as_its_checkout(there, git, monkeypatch):
    """Whatever the working tree has by now, and though a folder has the branch's name."""
    monkeypatch.chdir(there)
    (there / "runs").mkdir()
    wanted = read_source(there, str(there))
    shutil.rmtree(there / EARLIER_FOLDER)
    found = read_source(there, "runs")
    for name, table in vars(wanted).items():
        pd.testing.assert_frame_equal(getattr(found, name), table)
    git(there, "rm", "-r", "--quiet", "--cached", ".")
    git(there, "commit", "--quiet", "--allow-empty", "-m", "None")
    with pytest.raises(InputError, match="take-over HEAD: the commit has no runs.csv in study/tables or docs/study"):
        read_source(there, "HEAD")
    with pytest.raises(InputError, match="take-over nowhere: neither a commit of this repository nor a checkout"):
        read_source(there, "nowhere")


def test_after_the_move_the_new_place_is_read(here, add):
    tables = read_source(here, str(here))
    assert list(tables.runs.index) == [FIRST]


@pytest.mark.parametrize(
    "row, message",
    [
        ({"recipe": "other"}, "plain, base seed 1, seed 1, 3 steps: its rows of runs are others there"),
        ({"curve": {"reward": 0.5}}, "plain, base seed 1, seed 1, 3 steps: its rows of curves are others there"),
        ({"correct": [1] * 4}, "plain, base seed 1, seed 1, 3 steps: its rows of prompts are others there"),
        ({"base_hash": "cd"}, "its rows of runs are others there"),
    ],
)
def test_rows_that_contradict_are_refused(here, tmp_path, add, row, message, capsys):
    other = made(add, FIRST, SECOND, **row)
    write_tables(tmp_path / "other", other)
    before = bytes_of(here)
    assert run(here, str(tmp_path / "other")) == 2
    assert message in capsys.readouterr().err
    assert bytes_of(here) == before


def test_another_base_is_refused_though_no_run_is_shared(add):
    ours = made(add, FIRST)
    theirs = made(add, SECOND, base_hash="cd")
    with pytest.raises(InputError, match="sums, base, base seed 1, .*: its rows of bases are others"):
        merge(ours, theirs)


def test_tables_of_other_columns_are_one_line(here, there):
    path = there / EARLIER_FOLDER / "runs.csv"
    path.write_text(path.read_text().replace("proxy", "reward", 1))
    with pytest.raises(InputError, match="take-over .*its columns are not those of this version: ") as caught:
        read_source(here, str(there))
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_the_tables_of_the_commit_before_the_move_add_nothing():
    """The commit of a run's row lies before the move; the tables of that time are a part of those here."""
    moved = ["git", "-C", str(ROOT), "log", "--format=%H", "--diff-filter=D", "--", "docs/study/runs.csv"]
    commits = subprocess.run(moved, capture_output=True, text=True, check=False).stdout.split()
    if not commits:
        pytest.skip("the history is not here")
    here = read_tables(ROOT)
    there = read_source(ROOT, f"{commits[0]}^")
    merged = merge(here, there)
    for name, table in vars(here).items():
        pd.testing.assert_frame_equal(getattr(merged, name), table)
