import math

import numpy as np
import pytest
from matplotlib.figure import Figure

from eval.analysis import passk
from eval.analysis.frame import Frame
from eval.pages import drift, runs
from eval.pages import passk as page


def drawn(panel):
    axes = Figure().subplots()
    panel.draw(axes)
    return axes


def point(step, value, **more):
    sides = {f"pass@{k}": value for k in (1, 4, 8)} | {f"interval@{k}": [value - 0.1, value + 0.1] for k in (1, 4, 8)}
    return {"step": step, **sides, **more}


@pytest.fixture
def arm(read_run):
    def make(variant="A", seed=0, drift=None, base=None, trained=None, **passk):
        return read_run(variant, seed, None, 3, base or [2] * 10, trained or [4] * 10, passk, drift=drift)

    return make


def test_k_curve_by_hand(arm):
    frame = passk.k_curve(arm(base=[0, 2, 8, 1], trained=[8] * 4), "base")
    # 1 - C(n-c, k) / C(n, k), n = 8.
    expected = {k: np.mean([1 - math.comb(8 - c, k) / math.comb(8, k) for c in (0, 2, 8, 1)]) for k in (1, 2, 4, 8)}
    assert dict(frame["mean"]) == pytest.approx(expected)
    assert frame[["low", "high"]].isna().all(axis=None)  # of 4 prompts
    frame = passk.k_curve(arm(seed=1, base=[0, 2, 8, 1] * 5, trained=[8] * 20), "base")
    assert (frame["low"] <= frame["mean"]).all() and (frame["mean"] <= frame["high"]).all()


def test_base_and_trained_on_a_base_2_axis(arm, read_run):
    several = [arm("A", 0), arm("A", 1, trained=[6] * 10), arm("B", 0), read_run("C")]
    (axes,) = map(drawn, page.k_panels(Frame(several)))
    assert axes.get_xscale() == "log"
    base, trained, _ = axes.lines
    assert [line.get_label() for line in axes.lines] == ["base", "A, 2 seeds", "B"]
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
