"""The study's tables: what is read is what was written, bytes depend on rows alone, and what is wrong is one line."""

import gzip
import json
import random
import shutil
import subprocess
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from study.matrix import RunKey
from study.tables import (
    BASES,
    CURVE_COLUMNS,
    CURVES,
    CURVES4,
    FOLDER,
    PASSK,
    POINTS,
    PROMPTS,
    RUNS,
    STOPS,
    TEXTS,
    Tables,
    read_folder,
    read_tables,
    write_folder,
    write_tables,
)
from trl_prorl.errors import InputError


ROOT = Path(__file__).parent.parent.parent
KEYS = [RunKey("sums", arm, base, seed, 3) for arm in ("plain", "A") for base, seed in ((1, 1), (2, 1), (10, 2))]


@pytest.fixture(scope="module")
def made(tmp_path_factory, add):
    root = tmp_path_factory.mktemp("made")
    tables = Tables()
    for key in KEYS:
        add(tables, key)
    write_tables(root, tables)
    return root, tables


@pytest.fixture
def written(made, tmp_path):
    """A root with tables of its own, and what was written there."""
    shutil.copytree(made[0], tmp_path, dirs_exist_ok=True)
    return tmp_path, deepcopy(made[1])


def same(one, other):
    for name in ("runs", "bases", "curves", "prompts", "points", "stops", "passk", "texts"):
        pd.testing.assert_frame_equal(getattr(one, name), getattr(other, name))


def bytes_of(root):
    return {path.name: path.read_bytes() for path in (root / FOLDER).iterdir()}


def test_what_is_read_is_what_was_written(written, tmp_path):
    root, tables = written
    read = read_tables(root)
    row = read.runs.loc[KEYS[0]]
    made = tables.runs.loc[KEYS[0]]
    assert row["drift"] == 0.333333
    assert row["base_pass@1"] == 0.25  # from the base's row
    assert row.drop(["drift", "proxy"]).equals(made.drop(["drift", "proxy"]))
    assert pd.isna(row["proxy"])
    write_tables(tmp_path / "again", read)
    assert bytes_of(tmp_path / "again") == bytes_of(root)
    same(read_tables(tmp_path / "again"), read)
    same(read_tables(root / "elsewhere"), Tables())


@pytest.mark.slow
def test_the_study_s_tables_are_read_and_written_to_the_byte(tmp_path):
    write_tables(tmp_path, read_tables(ROOT))
    assert all((ROOT / FOLDER / name).read_bytes() == content for name, content in bytes_of(tmp_path).items())
    assert {RUNS, BASES, CURVES, PROMPTS} <= {path.name for path in (tmp_path / FOLDER).iterdir()}


def test_text_that_looks_like_a_number_stays_text(tmp_path, add):
    tables = Tables()
    add(tables, KEYS[0], recipe="001e05", commit="1234567", block="nan")
    write_tables(tmp_path, tables)
    row = read_tables(tmp_path).runs.loc[KEYS[0]]
    assert list(row[["recipe", "commit", "block"]]) == ["001e05", "1234567", "nan"]


def test_points_are_a_table_of_their_own(written, add):
    root, tables = written
    assert not (root / FOLDER / POINTS).exists()
    rows = [{"step": step, "task": "sums", "gold": 0.1 * step} for step in (0, 3)]
    points = {"run": tables.runs.loc[KEYS[0]].to_dict(), "curve": [], "prompts": [], "points": rows}
    assert tables.add(KEYS[0]._replace(arm="B"), points)
    key = KEYS[0]._replace(arm="B")
    assert tables.points.loc[key, "gold"].tolist() == pytest.approx([0, 0.3])
    assert tables.without([key]).points.empty


def test_stops_are_a_table_of_their_own_and_the_base_s_row_is_kept(written):
    root, tables = written
    assert not (root / FOLDER / STOPS).exists()
    scored = {"gold": 0.5, "greedy": 0.25, "reward": 0.75, "kl_to_base": 0.125}
    rows = {"run": tables.runs.loc[KEYS[0]].to_dict(), "curve": [], "prompts": []}
    rows["stops"] = [{"step": step, **scored, "validation_gold": 0.5, "guard_gap": 2} for step in (1, 3)]
    key = KEYS[0]._replace(arm="B")
    other = KEYS[0]._replace(arm="C")
    for one, best in ((key, 0.5), (other, 0.625)):  # the first measurement of a base stays
        base_stops = [{"step": 0, **scored, "best_of_8": best}]
        assert tables.add(one, {**rows, "base_stops": base_stops})
    assert tables.stops.loc[[key], "step"].tolist() == [1, 3]
    assert tables.stops.loc[[key.base], "best_of_8"].tolist() == [0.5]
    tables = tables.without([other])  # whose rows of other tables are not those of a run
    write_tables(root, replace(tables, runs=tables.runs.drop([key])))
    lines = (root / FOLDER / STOPS).read_text().splitlines()
    assert (
        lines[0]
        == "family,arm,base_seed,seed,steps,step,gold,greedy,reward,kl_to_base,validation_gold,guard_gap,best_of_8"
    )
    assert lines[1:3] == ["sums,B,1,1,3,1,0.5,0.25,0.75,0.125,0.5,2,", "sums,B,1,1,3,3,0.5,0.25,0.75,0.125,0.5,2,"]
    assert lines[3] == "sums,base,1,0,0,0,0.5,0.25,0.75,0.125,,,0.5"
    assert len(lines) == 4
    pd.testing.assert_frame_equal(read_tables(root).stops, tables.stops)
    every = {one for one in KEYS if one.base_seed == 1} | {key}
    assert tables.without(every).stops.empty


def test_many_samples_are_a_table_of_their_own_and_the_base_s_rows_are_kept(written):
    root, tables = written
    assert not (root / FOLDER / PASSK).exists()
    rows = {"run": tables.runs.loc[KEYS[0]].to_dict(), "curve": [], "prompts": []}
    rows["passk"] = [{"prompt": place, "n": 32, "correct": right} for place, right in enumerate((7, 0))]
    key = KEYS[0]._replace(arm="B")
    other = KEYS[0]._replace(arm="C")
    for one, of_base in ((key, 3), (other, 4)):  # the first measurement of a base stays
        assert tables.add(one, {**rows, "base_passk": [{"prompt": 0, "n": 32, "correct": of_base}]})
    assert tables.passk.loc[[key], "correct"].tolist() == [7, 0]
    assert tables.passk.loc[[key.base], "correct"].tolist() == [3]
    tables = tables.without([other])  # whose rows of other tables are not those of a run
    write_tables(root, replace(tables, runs=tables.runs.drop([key])))
    lines = gzip.decompress((root / FOLDER / PASSK).read_bytes()).decode().splitlines()
    assert lines == ["family,arm,base_seed,seed,steps,prompt,n,correct", *[f"sums,{row}" for row in OF_PASSK]]
    pd.testing.assert_frame_equal(read_tables(root).passk, tables.passk)


def test_texts_are_a_table_of_their_own_and_a_row_is_a_line(written):
    """Whatever stands in a text: quotes, new lines, and the other signs at which Python splits lines."""
    root, tables = written
    assert not (root / FOLDER / TEXTS).exists()
    texts = ['two\nlines, "quoted"', "", "a\u2028b\x0bc\r", "nan"]
    rows = {"run": tables.runs.loc[KEYS[0]].to_dict(), "curve": [], "prompts": []}
    common = {"split": "test", "greedy": 0, "prompt": 0, "asked": json.dumps("Sing\n"), "right": 1}
    rows["texts"] = [{"step": 3, **common, "text": json.dumps(text)} for text in texts]
    key = KEYS[0]._replace(arm="B")
    other = KEYS[0]._replace(arm="C")
    for one, of_base in ((key, "first"), (other, "second")):  # the first measurement of a base stays
        base_texts = [{"step": 0, **common, "text": json.dumps(of_base)}]
        assert tables.add(one, {**rows, "base_texts": base_texts})
    tables = tables.without([other])  # whose rows of other tables are not those of a run
    write_tables(root, replace(tables, runs=tables.runs.drop([key])))
    read = read_tables(root)
    assert [json.loads(text) for text in read.texts.loc[[key], "text"]] == texts
    assert [json.loads(text) for text in read.texts.loc[[key.base], "text"]] == ["first"]
    lines = gzip.decompress((root / FOLDER / TEXTS).read_bytes()).decode().splitlines()
    assert len(lines) == 1 + len(texts) + 1
    assert tables.without([key]).texts.index.unique().tolist() == [key.base]


OF_PASSK = ("B,1,1,3,0,32,7", "B,1,1,3,1,32,0", "base,1,0,0,0,32,3")


def test_bytes_depend_on_the_rows_and_not_on_their_order(written, tmp_path, add):
    root, _ = written
    shuffled = Tables()
    for key in random.Random(0).sample(KEYS, len(KEYS)):
        add(shuffled, key)
        write_tables(tmp_path / "other", shuffled)
        shuffled = read_tables(tmp_path / "other")
    assert bytes_of(tmp_path / "other") == bytes_of(root)
    assert (root / FOLDER / CURVES).read_bytes()[4:8] == b"\0" * 4  # the time, in a header of gzip


def test_new_curves_stand_without_those_of_earlier_runs(written, add):
    """In a folder that has lost `curves.csv.gz`; one of the new runs has too few rows."""
    root, tables = written
    folder = root / FOLDER
    (folder / CURVES).unlink()
    earlier = read_folder(folder, tables.curves)
    same(earlier, tables)
    new = RunKey("sums", "new", 1, 1, 3)
    add(earlier, new, file=CURVES4, curve={"gold": 0.25})
    write_folder(folder, earlier, with_curves=False)
    assert not (folder / CURVES).exists()
    back = read_folder(folder, tables.curves)
    assert back.curves4.loc[[new], "gold"].tolist() == [0.25] * 3
    assert new not in back.curves.index
    with pytest.raises(InputError, match="curves.csv.gz: .* has 0 of 3 rows"):
        read_folder(folder)
    back.curves4 = back.curves4[:2]
    write_folder(folder, back, with_curves=False)
    with pytest.raises(InputError, match="curves4.csv.gz: sums, new, .* has 2 of 3 rows"):
        read_folder(folder, tables.curves)


def test_others_read_the_tables_too(written):
    root, tables = written
    curves = pd.read_csv(root / FOLDER / CURVES)
    assert list(curves.columns) == list(CURVE_COLUMNS)
    assert len(curves) == 3 * len(KEYS)
    text = subprocess.run(["gzip", "-dc", str(root / FOLDER / PROMPTS)], capture_output=True, text=True, check=True)
    assert len(text.stdout.splitlines()) == 1 + 4 * (len(KEYS) + 3)  # three bases
    runs = pd.read_csv(root / FOLDER / RUNS)
    assert list(runs["base_seed"]) == [1, 2, 10, 1, 2, 10]
    assert list(runs["arm"]) == ["A"] * 3 + ["plain"] * 3


def test_a_new_run_leaves_the_bytes_of_the_others(written, add):
    """So git stores little more than the new ones."""
    root, tables = written
    before = (root / FOLDER / CURVES).read_bytes()
    add(tables, RunKey("sums", "B", 1, 1, 3))
    write_tables(root, tables)
    after = (root / FOLDER / CURVES).read_bytes()
    grown = len(after) - len(before)
    place = next(place for place in range(len(before)) if before[place] != after[place])
    # What differs is one stretch: without it, from the first difference or a little before, the rest is as before.
    cuts = range(max(0, place - grown), place + 1)
    assert grown > 0
    assert any(after[:cut] + after[cut + grown :] == before for cut in cuts)


def test_dropping_takes_the_base_with_its_last_run(written):
    _, tables = written
    kept = tables.without(key for key in KEYS if key.base_seed == 10)
    left = {key for key in KEYS if key.base_seed != 10}
    assert set(kept.runs.index) == set(kept.curves.index) == left
    bases = {key.base for key in left}
    assert set(kept.bases.index) == bases
    assert set(kept.prompts.index) == left | bases
    assert set(tables.without(key for key in KEYS if key.arm == "A").bases.index) == set(tables.bases.index)
    same(tables.without([]), tables)


def test_another_base_is_refused(written, add):
    _, tables = written
    with pytest.raises(InputError, match="sums, base seed 1: the weights here have SHA-256 cd…, in .* ab…, and runs"):
        add(tables, RunKey("sums", "B", 1, 1, 3), base_hash="cd")
    assert len(tables.runs) == len(KEYS)


def test_a_run_without_a_policy_waits_for_its_base(written):
    _, tables = written
    row = tables.runs.loc[KEYS[0]].to_dict()
    stopped = {"run": row, "curve": [], "prompts": []}
    assert not tables.add(RunKey("sums", "A", 3, 3, 3), stopped)
    assert len(tables.runs) == len(KEYS)
    assert tables.add(KEYS[0]._replace(arm="B"), stopped)


@pytest.mark.parametrize(
    "file, old, new, message",
    [
        (RUNS, "sums,A,1,1,3", "sums,A,1,1,x", "runs.csv cannot be read .*x"),
        (RUNS, "sums,A,2,1,3", "sums,A,1,1,3", "runs.csv: sums, A, base seed 1, seed 1, 3 steps is there twice"),
        (RUNS, ",0.5,0.9", ",,0.9", "runs.csv: pass@1 is empty in line 2"),
        (RUNS, "collapsed", "fallen", "its columns are not those of this version: (collapsed, f|fallen, c)"),
        (RUNS, ",c\n", "\n", "runs.csv: commit is empty in line 2"),
        (RUNS, "sums,A,1,1,3", "sums,B,1,1,3", "curves.csv.gz: sums, A, base seed 1, seed 1, 3 steps has 3 of 0 rows"),
        (CURVES, "sums,A,1,1,3,2,", "sums,A,2,1,3,2,", "base seed 1, seed 1, 3 steps has 2 of 3 rows"),
        (PROMPTS, "sums,base,1,0,0,2,", "sums,base,2,0,0,2,", "sums, base, base seed 1, .* has 3 of 4 rows"),
        (BASES, "sums,1,ab", "sums,1,cd", "A, base seed 1, seed 1, 3 steps has no base of its hash in bases.csv"),
        (BASES, "sums,1,ab", "sums,2,ab", "bases.csv: sums, base, base seed 2, seed 0, 0 steps is there twice"),
    ],
)
def test_what_is_wrong_is_one_line(written, file, old, new, message):
    root, _ = written
    path = root / FOLDER / file
    packed = path.suffix == ".gz"
    text = (gzip.decompress(path.read_bytes()) if packed else path.read_bytes()).decode()
    assert old in text
    changed = text.replace(old, new, 1).encode()
    path.write_bytes(gzip.compress(changed) if packed else changed)
    with pytest.raises(InputError, match=message) as caught:
        read_tables(root)
    assert "\n" not in str(caught.value)


def test_a_cut_file_is_one_line(written):
    root, _ = written
    path = root / FOLDER / CURVES
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(InputError, match="curves.csv.gz cannot be read .*restore it with git checkout"):
        read_tables(root)
