"""The picture of a reset: what it draws, by hand, and when it is there."""

import pytest
from matplotlib.figure import Figure

from trl_prorl.eval.analysis.frame import Frame
from trl_prorl.eval.pages import around_resets


def resets(*steps):
    return [{"event": "reset", "step_requested": step, "step_applied": step, "reason": "periodic"} for step in steps]


def drawn(panel):
    axes = Figure().subplots()
    panel.draw(axes)
    return axes


def panels_of(runs):
    (section,) = around_resets.sections(Frame(runs))
    (picture,) = section.blocks
    return picture.panels


def test_mean_and_band_over_all_resets_and_runs(read_run):
    """Seed 0 was reset after steps 20 and 60, seed 1 after step 40; the reward is the step, plus 100 in seed 1."""
    keys = {"steps": 100, "kl_ref": lambda step: step / 1000, "grad_norm": lambda step: 2.0 * step}
    runs = [
        read_run("A", 0, reward=lambda step: float(step), events=resets(20, 60), **keys),
        read_run("A", 1, reward=lambda step: 100.0 + step, events=resets(40), **keys),
    ]
    reward, kl, norm = map(drawn, panels_of(runs))
    (line, _) = reward.lines  # the mean, and where the reset lies
    assert line.get_label() == "A, 2 seeds: 3 resets"
    assert list(line.get_xdata()) == list(range(-9, 21))
    # The last step before a reset: 20, 60 and 140.
    assert line.get_ydata()[9] == pytest.approx(220 / 3)
    corners = reward.collections[0].get_paths()[0].vertices
    at_reset = corners[corners[:, 0] == 0.0][:, 1]
    # Between the ordered values 20, 60 and 140 lie the 10th percentile, 20 + 0.2 · 40, and the 90th, 60 + 0.8 · 80.
    assert (at_reset.min(), at_reset.max()) == pytest.approx((28.0, 124.0))
    assert kl.lines[0].get_ydata()[9] == pytest.approx(0.04)  # of steps 20, 60 and 40
    assert norm.lines[0].get_ydata()[10] == pytest.approx(2 * 41)  # the first step after


def test_b_has_the_kl_to_its_own_anchor(read_run):
    """Elastic resets are resets too."""
    run = read_run("B", steps=40, kl_ref=9.0, kl_old=0.5, events=[{"event": "elastic_reset", "step_applied": 20}])
    _, kl, norm = map(drawn, panels_of([run]))
    assert set(kl.lines[0].get_ydata()) == {0.5}
    assert [text.get_text() for text in norm.texts] == ["not measured"]


@pytest.mark.parametrize("events", [None, [], [{"event": "growth", "step_applied": 3}]])
def test_without_a_reset_there_is_no_picture(read_run, events):
    assert around_resets.sections(Frame([read_run("A", steps=20, reward=0.5, events=events)])) == []


def test_only_arms_with_resets_are_drawn(read_run):
    keys = {"steps": 20, "reward": 0.5}
    runs = [read_run("control", **keys), read_run("A", events=resets(10), **keys)]
    labels = drawn(panels_of(runs)[0]).get_legend_handles_labels()[1]
    assert labels == ["A0: 1 reset"]
