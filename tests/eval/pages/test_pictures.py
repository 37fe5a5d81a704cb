import re

import pytest
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from trl_prorl.cli.variants import VARIANTS
from trl_prorl.eval.analysis.frame import Frame
from trl_prorl.eval.pages import curves, plotting
from trl_prorl.eval.run_folder.run import UNKNOWN_COLOUR


RESET = {"event": "reset", "step_applied": 10}


def drawn(panel):
    axes = Figure().subplots()
    panel.draw(axes)
    return axes


def curve(runs, title):
    """The axes of the curve whose title begins so."""
    (found,) = [panel for panel in curves.section(Frame(runs)).panels if panel.alt.startswith(title)]
    return drawn(found)


def shown(label):
    """A label of a legend without the variant in parentheses."""
    return re.sub(r" \([^)]*\)", "", str(label))


def line(axes, label):
    (found,) = [each for each in axes.lines if shown(each.get_label()) == label]
    return list(found.get_xdata()), list(found.get_ydata())


def test_each_variant_has_the_kl_to_its_own_anchor(read_run):
    """A's is zero in every first pass, with one outlier: the line that is labelled stays at the usual value."""
    wild = read_run("A", steps=40, kl_ref=lambda step: 5e3 if step == 20 else 0.01 * (step % 2), kl_old=1e-6)
    axes = curve([wild, read_run("B", kl_ref=0.3, kl_old=0.2), read_run("plain", reward=1)], "KL to its reference")
    labels = axes.get_legend_handles_labels()[1]
    assert sorted(map(shown, labels)) == ["A0: kl_ref", "B0: kl_old"]
    assert line(axes, "A0: kl_ref")[1] == pytest.approx([0.01] * 21)
    assert set(line(axes, "B0: kl_old")[1]) == {0.2}


def test_seeds_become_a_mean_and_a_band_and_their_resets_are_marked(read_run):
    """20 steps at 0.2 and 12 at 0.6: the mean is drawn where both ran, from the lowest to the highest."""
    runs = [
        read_run("A", seed, steps=last, reward=reward, events=[{**RESET, "step_applied": step} for step in steps])
        for seed, (last, reward, steps) in enumerate(((20, 0.2, [5, 10]), (12, 0.6, [5, 15])))
    ]
    axes = curve([*runs, read_run("B", steps=20, reward=0.5)], "Training reward")
    assert line(axes, "A, 2 seeds") == (list(range(1, 13)), pytest.approx([0.4] * 12))
    (marks,) = [each for each in axes.collections if isinstance(each, LineCollection)]
    assert [float(segment[0, 0]) for segment in marks.get_segments()] == [5, 10, 15]
    (band,) = [each for each in axes.collections if each is not marks]  # the single run has none
    corners = band.get_paths()[0].vertices[:, 1]
    assert (corners.min(), corners.max()) == pytest.approx((0.2, 0.6))


def test_a_curve_is_drawn_where_its_metric_was_measured(read_run):
    """Accuracy beside the reward, with the event of its guard; evaluations during training, as measured."""
    event = {"event": "guard_gap", "step_applied": 15, "reason": "accuracy fell, the reward did not"}
    rows = [{"step": step, "eval_reward": step / 100} for step in (0, 8, 16)]
    columns = {"reward": 0.9, "accuracy": lambda step: 0.5 - step / 100}
    hacked = read_run("plain", steps=20, events=[event], evaluations=rows, **columns)
    runs = [hacked, read_run("A", steps=20, reward=0.8)]
    axes = curve(runs, "Training reward, accuracy (dotted)")
    assert line(axes, "plain0: accuracy")[1][-1] == pytest.approx(0.5 - 15.5 / 100)  # mean of steps 11 to 20
    assert line(axes, "plain0")[1][-1] == 0.9
    assert "A0: accuracy" not in [shown(each.get_label()) for each in axes.lines]
    assert [15] in [list(each.get_xdata()) for each in axes.lines]  # the guard
    assert line(curve(runs, "Validation reward"), "plain0") == ([0, 8, 16], [0.0, 0.08, 0.16])
    assert len(curves.section(Frame(runs)).panels) == 2


def test_runs_of_one_variant_differ_in_colour(read_run):
    """Four of them, next to the starting model and those of the other variants."""
    variants = list(VARIANTS) * 4
    runs = [read_run(name, name=f"{name}-{place}", config={"beta": place + 1}) for place, name in enumerate(variants)]
    colours = {plotting.colour_of(group) for group in Frame(runs).groups} | {UNKNOWN_COLOUR}
    assert len(colours) == len(variants) + 1
