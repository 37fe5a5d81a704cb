"""Sections on held-out evaluations: curves, forgetting, boundaries, and arms against one another."""

import math
import re

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image
from scipy import stats

from trl_prorl.eval import boundary as command_of_boundary
from trl_prorl.eval.analysis import compare, passk
from trl_prorl.eval.analysis.boundary import boundary
from trl_prorl.eval.analysis.frame import Frame
from trl_prorl.eval.pages import boundary as page_of_boundary
from trl_prorl.eval.pages import comparison, drift, runs
from trl_prorl.eval.pages import passk as page
from trl_prorl.eval.pages.boundary import boundary_statements, boundary_table, plot_boundary
from trl_prorl.eval.pages.document import Bullets


def drawn(panel):
    axes = Figure().subplots()
    panel.draw(axes)
    return axes


def point(step, value, **more):
    sides = {f"pass@{k}": value for k in (1, 4, 8)} | {f"interval@{k}": [value - 0.1, value + 0.1] for k in (1, 4, 8)}
    return {"step": step, **sides, **more}


@pytest.fixture
def arm(read_run):
    """A run whose prompts have these numbers of 8 samples right."""

    def make(variant="A", seed=0, drift=None, base=None, trained=None, name=None, beta=0.0, **passk):
        name = f"{name or variant}{seed}"
        config = {"beta": beta}
        trained = trained or [4] * len(base or [2] * 40)
        base = base or [2] * len(trained)
        return read_run(variant, seed, name, 3, base, trained, passk, config, drift=drift)

    return make


def test_k_curve_by_hand(arm):
    frame = passk.k_curve(arm(base=[0, 2, 8, 1], trained=[8] * 4), "base")
    # 1 - C(n-c, k) / C(n, k), n = 8.
    expected = {k: np.mean([1 - math.comb(8 - c, k) / math.comb(8, k) for c in (0, 2, 8, 1)]) for k in (1, 2, 4, 8)}
    assert dict(frame["mean"]) == pytest.approx(expected)
    assert frame[["low", "high"]].isna().all(axis=None)  # of 4 prompts
    frame = passk.k_curve(arm(seed=1, base=[0, 2, 8, 1] * 5, trained=[8] * 20), "base")
    assert (frame["low"] <= frame["mean"]).all()
    assert (frame["mean"] <= frame["high"]).all()


def test_base_and_trained_on_a_base_2_axis(arm, read_run):
    several = [arm("A", 0), arm("A", 1, trained=[6] * 10), arm("B", 0), read_run("C")]
    (axes,) = map(drawn, page.k_panels(Frame(several)))
    assert axes.get_xscale() == "log"
    base, trained, _ = axes.lines
    assert [line.get_label() for line in axes.lines] == ["base", "A, 2 seeds", "B0"]
    assert trained.get_ydata()[0] == pytest.approx(0.625)  # the mean of 4/8 and 6/8
    assert list(base.get_xdata()) == [1, 2, 4, 8]


def test_checkpoints_with_base_at_0(arm):
    run = arm(checkpoints=[point(10, 0.4), point(20, 0.7), point(30, 0.6)])
    frame = passk.checkpoint_curve(run, 1)
    assert dict(frame["mean"]) == pytest.approx({0: 0.25, 10: 0.4, 20: 0.7, 30: 0.6})
    assert frame["low"][0] == pytest.approx(0.2)
    panels = page.checkpoint_panels(Frame([run]))
    assert [drawn(panel).get_title() for panel in panels] == ["Held-out pass@1", "Held-out pass@8"]
    table = page.checkpoints_table(Frame([run]))
    assert table.rows[0] == ["A0", "1", "0.250", "at 20: 0.700 [0.600, 0.800]", "at 30: 0.600 [0.500, 0.700]"]
    assert [row[1] for row in table.rows] == ["1", "8"]


def test_checkpoints_over_seeds(arm):
    several = [arm("A", seed, checkpoints=[point(10, value)]) for seed, value in ((0, 0.4), (1, 0.8))]
    axes = drawn(page.checkpoint_panels(Frame(several))[0])
    (line,) = axes.lines
    assert list(line.get_ydata()) == pytest.approx([0.25, 0.6])
    corners = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (corners.min(), corners.max()) == pytest.approx((0.25, 0.8))


def test_older_files_have_none_of_it(arm):
    frame = Frame([arm("A"), arm("B")])
    for view in (page.checkpoints_table, page.tasks_table, page.forgetting_table, drift.runs_table):
        assert view(frame) is None
    assert page.checkpoint_panels(frame) == []


def other(base, trained):
    sides = {"base": {"correct": base}, "trained": {"correct": trained}}
    return {"parity@2": {"task": "parity", "level": 2, "prompts": len(base), "n": 8, "k": [1], **sides}}


CHANGES = [(2, "[-0.354, -0.076]"), (6, "[+0.076, +0.354]"), (4, "[-0.139, +0.139]")]


@pytest.mark.parametrize(("trained", "interval"), CHANGES)
def test_forgetting_is_paired(arm, trained, interval):
    # Prompts differ a great deal, the change from prompt to prompt not at all: only pairing shows it.
    # 20 prompts that agree do not exclude 1 - 0.05^(1/20) = 13.9 % of others, from -1 to 1.
    base = [2, 6] * 10
    table = page.forgetting_table(Frame([arm(others=other(base, [count + trained - 4 for count in base]))]))
    change = (trained - 4) / 8
    assert table.rows == [["A0", "parity", "2", "20", f"0.500 → {0.5 + change:.3f}", f"{change:+.3f} {interval}"]]


def test_tasks_table(arm):
    part = {"task": "add", "level": 1, "prompts": 5, "base": point(0, 0.2), "trained": point(0, 0.6)}
    table = page.tasks_table(Frame([arm(by=[part, {**part, "level": 2}])]))
    assert table.rows[0] == ["A0", "add", "1", "5", "0.200 → 0.600 [0.500, 0.700]"]
    assert table.rows[1][2] == "2"


def test_greedy_decoding_is_a_column_where_it_was_measured(arm):
    greedy = {side: {"accuracy": value} for side, value in (("base", 0.25), ("trained", 0.5))}
    table = runs.learning_table(Frame([arm(greedy=greedy), arm("B")]))
    assert [row[table.header.index("greedy accuracy")] for row in table.rows] == ["0.250 → 0.500", "–"]
    assert "greedy accuracy" not in runs.learning_table(Frame([arm("B")])).header


def test_drift(arm):
    points = [
        {"step": step, "kl_to_base": step / 100, "interval": [step / 200, step / 50], "token_agreement": 0.9}
        for step in (10, 20)
    ]
    frame = Frame([arm("A", drift={"points": points}), arm("B")])
    assert drift.runs_table(frame).rows == [["A0", "20", "0.2000 [0.1000, 0.4000]", "0.900", "–", "–"]]


def test_solved_and_lost_by_hand(arm, read_run):
    # 8 samples, 40 prompts: 3 go from 0 to 8, 2 from 0 to 1, 1 from 8 to 0; 30 are solved by both, 4 by neither.
    base = [0] * 5 + [8] + [4] * 30 + [0] * 4
    trained = [8] * 3 + [1] * 2 + [0] + [4] * 30 + [0] * 4
    bare = read_run("plain")
    table = page_of_boundary.runs_table(Frame([arm("A", base=base, trained=trained), bare]))
    # 1.6e-4 is Fisher's p of 0 against 8 of 8, times at most 40 by Holm; of 0 against 1 it is 1.
    # McNemar: 5 against 1, 2·(1 + 6)/2⁶ = 0.22. 1 - 0.05^(1/8) = 0.312.
    assert table.rows == [["A0", "40 × 8", "5 (3)", "1 (1)", "30", "4", "0.22", "0.312"]]
    assert page_of_boundary.runs_table(Frame([bare])) is None


def test_arms_stand_against_plain_control_the_best_a_and_the_best(arm):
    """Each pair once; of two arms of A the one with the higher score. B is the best."""
    scores = {"plain": 3, "control": 2, "A": 4, "B": 5}
    runs = [arm(variant, seed, trained=[score] * 40) for seed in (0, 1) for variant, score in scores.items()]
    runs += [arm("A", seed, trained=[1] * 40, name="worse", beta=0.5) for seed in (0, 1)]
    rows, left = compare.compare_with_references(Frame(runs))
    assert not left
    assert all(row.seeds == 2 for row in rows)
    worse = "worse (A β=0.5)"
    assert [(row.first, row.second) for row in rows] == [
        *((first, "plain") for first in ("B", "A", "control", worse)),
        *((first, "control") for first in ("B", "A", worse)),
        *(("B", "A"), ("B", worse), ("A", worse)),
    ]


def test_paired_table_by_hand(arm):
    runs = [arm("A", trained=[0] * 20 + [8] * 20), arm("B", trained=[8] * 40)]
    (table,) = comparison.sections(Frame(runs))[0].blocks
    (row,) = table.rows
    assert row[:4] == ["B0 − A0", "pass@1", "1.000", "0.500"]
    assert row[4].startswith("+0.500 [+0.3")
    # 20 differences of 1 and 20 of 0: their standard error is 1/sqrt(156).
    assert float(row[5]) == pytest.approx(2 * stats.t.sf(0.5 * math.sqrt(156), 39), rel=0.1)
    assert row[6] == "1"
    assert len(row) == 9  # neither was timed
    # A's mean is .5 ± 1.96 · .5 / √40: the ratio is 1 over it.
    ratio = re.fullmatch(r"200 % \[(\d+) %, (\d+) %\]", row[8])
    assert [float(end) for end in ratio.groups()] == pytest.approx([100 / 0.655, 100 / 0.345], rel=0.06)


def test_equal_arms_say_what_would_be_found(arm):
    noisy = [2, 6] * 20
    frame = Frame([arm("control", trained=noisy), arm("A", trained=noisy[::-1])])
    row = comparison.sections(frame)[0].blocks[0].rows[0]
    difference = row[4]
    found = row[7]
    assert difference.startswith(("+0.000", "-0.000"))
    # ±0.5 per prompt, 40 prompts: (1.96 + 0.84) · 0.5 / √40 = 0.221.
    assert float(found) == pytest.approx(0.221, abs=0.02)


def test_other_prompts_are_said_not_compared(arm):
    ((blocks,),) = [[section.blocks] for section in comparison.sections(Frame([arm("control"), arm("A", split="x")]))]
    assert [type(block) for block in blocks] == [Bullets]
    assert "not evaluated on the same prompts" in blocks[0].items[0]
    assert comparison.sections(Frame([arm("B", 5)])) == []


def test_two_steps_have_no_ratio_to_the_control(read_run):
    control, short = Frame([read_run("control", time_step=1.0), read_run("A", steps=2, time_step=9.0)]).rows
    assert control.over_control == 1.0
    assert short.over_control is None


def test_control_of_the_same_seed(read_run):
    runs = [read_run(variant, seed) for variant, seed in (("control", 0), ("control", 1), ("A", 1), ("A", 2))]
    of_a, other = Frame(runs).rows[2:]
    assert (of_a.control.name, other.control.name) == ("control1", "control0")
    assert (of_a.own_control.name, other.own_control) == ("control1", None)
    assert Frame(runs[2:]).rows[0].control is None


def test_statements_say_what_is_not_known(passk_result):
    lines = boundary_statements(boundary(passk_result(base=[0, 3, 0, 5, 0], trained=[8, 0, 0, 6, 1])))
    assert "2 newly solved, 1 lost, 1 solved by both, 1 by neither" in lines[0]
    assert "Of the 2 newly solved, sampling noise is excluded for 1" in lines[1]
    assert "#0 0 → 8*, #4 0 → 1." in lines[1]
    assert "excluded for 0" in lines[2]
    assert "excludes only rates above 0.312" in lines[3]  # 1 - 0.05^(1/8)
    assert "not even 2 of 2" in boundary_statements(boundary(passk_result([0, 1], [2, 1], n=2)))[-1]


def test_table_has_a_row_per_k(passk_result):
    table = boundary_table(boundary(passk_result(base=[0, 1] * 10, trained=[1, 2] * 10, n=2)))
    assert [row[0] for row in table.rows] == ["1", "2"]
    assert table.rows[0][1].startswith("0.250 [")
    assert table.rows[1][2].startswith("1.000")


def test_picture_shows_both_sides(passk_result, tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda self, path, **_: (figures.append(self), path.write_bytes(b"")))
    result = boundary(passk_result(base=[0, 3, 0, 5, 0, 0], trained=[8, 0, 0, 6, 1, 1]))
    plot_boundary(result, tmp_path / "unused.png")
    (curves,) = figures[0].axes
    assert curves.get_xscale() == "log"
    drawn = {line.get_label(): list(line.get_ydata()) for line in curves.lines}
    assert drawn["trained"] == [row.trained.value for row in result.rows]
    assert drawn["base"] == [row.base.value for row in result.rows]
    assert len(curves.collections) == 2


def test_the_command_of_the_boundary(make_run, make_rows, passk_result, capsys):
    passk = passk_result([0] * 6 + [4] * 6, [8] * 6 + [4] * 6)
    folder = make_run("A", "A", make_rows(2), passk=passk)
    assert command_of_boundary.main(["--run", str(folder)]) == 0
    assert "6 newly solved, 0 lost" in " ".join(capsys.readouterr().out.split())
    with Image.open(folder / "boundary.png") as picture:
        picture.load()
        assert picture.format == "PNG"
    bare = make_run("bare", "A", make_rows(2))
    assert command_of_boundary.main(["--run", str(bare)]) == 2
    assert f"trl-prorl passk --run {bare}" in capsys.readouterr().err
    assert not list(bare.glob("boundary*"))
