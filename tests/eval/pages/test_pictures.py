import json
import re

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from trl_prorl.cli.variants import VARIANTS
from trl_prorl.eval.analysis.frame import Frame
from trl_prorl.eval.analysis.statistics import Estimate
from trl_prorl.eval.pages import comparison, curves, plotting, reset_panels, score_sections
from trl_prorl.eval.pages import runs as pages
from trl_prorl.eval.run_folder.reading import load_run
from trl_prorl.eval.run_folder.run import UNKNOWN_COLOUR


RESET = {"event": "reset", "step_applied": 10}


def drawn(panel):
    axes = Figure().subplots()
    panel.draw(axes)
    return axes


def curve(runs, title):
    """The axes of the curve whose title begins so."""
    (found,) = [panel for panel in curves.section(Frame(runs)).blocks[0].panels if panel.alt.startswith(title)]
    return drawn(found)


def shown(label):
    """A label of a legend without the variant in parentheses."""
    return re.sub(r" \([^)]*\)", "", str(label))


def line(axes, label):
    (found,) = [each for each in axes.lines if shown(each.get_label()) == label]
    return list(found.get_xdata()), list(found.get_ydata())


@pytest.mark.parametrize(
    "rows",
    [
        [{"step": 1, "reward": 0.5}, {"step": 2, "reward": 0.5}],
        [{"step": step, "reward": None, "kl_ref": float("nan"), "time_step": 1.0} for step in range(1, 9)],
    ],
)
def test_a_run_with_nothing_to_draw_is_named_and_not_drawn(rows, read_run, make_run):
    dead = load_run(make_run("dead", "plain", rows))
    (named,) = curves.section(Frame([dead])).blocks
    assert named.startswith("- `dead`")
    assert len(pages.costs(Frame([dead])).blocks) == 1  # a table, no picture
    alive = [read_run("A", reward=0.5), dead]
    assert curves.section(Frame(alive)).blocks[1:] == [named]
    assert "dead" not in " ".join(str(each.get_label()) for each in curve(alive, "Training reward").lines)


def test_each_variant_has_the_kl_to_its_own_anchor(read_run):
    """A's is zero in every first pass, with one outlier: the line that is labelled stays at the usual value."""
    wild = read_run("A", steps=40, kl_ref=lambda step: 5e3 if step == 20 else 0.01 * (step % 2), kl_old=1e-6)
    axes = curve([wild, read_run("B", kl_ref=0.3, kl_old=0.2), read_run("plain", reward=1)], "KL to its reference")
    labels = axes.get_legend_handles_labels()[1]
    assert sorted(map(shown, labels)) == ["A0: kl_ref", "B0: kl_old"]
    assert VARIANTS["B"].short in labels[1]
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


def test_the_seconds_of_a_stage_are_a_mean_over_steps(read_run):
    run = read_run("A", reward=0.5, time_step=1.0, time_update=lambda step: 0.1 * step)
    bars = drawn(pages.stages_panel(Frame([run]))).patches
    assert max(bar.get_width() for bar in bars) == pytest.approx(0.25)


def test_a_curve_is_drawn_where_its_metric_was_measured(read_run):
    """Accuracy beside the reward, with the event of its guard; evaluations during training, as measured."""
    event = {"event": "guard_gap", "step_applied": 15, "reason": "accuracy fell, the reward did not"}
    hacked = read_run("plain", steps=20, reward=0.9, accuracy=lambda step: 0.5 - step / 100, events=[event])
    rows = [{"step": step, "eval_reward": step / 100} for step in (0, 8, 16)]
    (hacked.path / "evaluations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    runs = [load_run(hacked.path), read_run("A", steps=20, reward=0.8)]
    axes = curve(runs, "Training reward, accuracy (dotted)")
    assert line(axes, "plain0: accuracy")[1][-1] == pytest.approx(0.5 - 15.5 / 100)  # mean of steps 11 to 20
    assert line(axes, "plain0")[1][-1] == 0.9
    assert "A0: accuracy" not in [shown(each.get_label()) for each in axes.lines]
    assert [15] in [list(each.get_xdata()) for each in axes.lines]  # the guard
    assert line(curve(runs, "Validation reward"), "plain0") == ([0, 8, 16], [0.0, 0.08, 0.16])
    assert len(curves.section(Frame(runs)).blocks[0].panels) == 2


@pytest.mark.parametrize("reward, panels", [(0.25, ["pass@1"]), (0.75, ["pass@1", "reward"])])
def test_the_panel_of_evaluations_shows_pass_at_1_where_it_is_measured(read_run, reward, panels):
    run = read_run("A", steps=8, entropy=0.5)
    (run.path / "evaluations.jsonl").write_text(json.dumps({"step": 4, "eval_pass@1": 0.25, "eval_reward": reward}))
    titles = [panel.alt for panel in curves.section(Frame([load_run(run.path)])).blocks[0].panels]
    assert [title.split()[1] for title in titles if title.startswith("Validation")] == panels


def test_runs_of_one_variant_differ_in_colour(read_run):
    """Four of them, next to the starting model and those of the other variants."""
    variants = list(VARIANTS) * 4
    runs = [read_run(name, name=f"{name}-{place}", config={"beta": place + 1}) for place, name in enumerate(variants)]
    colours = {plotting.colour_of(group) for group in Frame(runs).groups} | {UNKNOWN_COLOUR}
    assert len(colours) == len(variants) + 1


def test_steps_are_whole_numbers(read_run):
    run = read_run("A", steps=16, reward=0.5, events=[{**RESET, "step_applied": 8}])
    for panel in (
        *reset_panels.around(Frame([run])).blocks[0].panels,
        curves.section(Frame([run])).blocks[0].panels[0],
    ):
        axes = drawn(panel)
        axes.set_xlim(-10, 10)  # automatic ticks: every 2.5
        assert [tick for tick in axes.get_xticks() if tick != int(tick)] == []


def test_both_intervals_of_a_run_are_visible(read_run):
    group = Frame([read_run("A", base=[4, 5, 3, 4] * 4, trained=[4, 5, 4, 4] * 4)]).groups
    intervals = [each for each in drawn(comparison.scores_panel(group)).lines if len(each.get_xdata()) == 2]
    (base,), (trained,) = (set(each.get_ydata()) for each in intervals)
    assert 0.1 < trained - base < 0.5  # of a row


def labels_of(axis, renderer):
    """The labels of ticks that are seen, with their places in pixels."""
    low, high = sorted(axis.get_view_interval())
    ticks = zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=True)
    return [label.get_window_extent(renderer) for at, label in ticks if low <= at <= high and label.get_text()]


def assert_labels_apart(section):
    """No label of the horizontal axis lies on another, and none is cut."""
    figure = section.blocks[-1].figure
    renderer = FigureCanvasAgg(figure).get_renderer()
    (panel,) = figure.subfigs
    places = labels_of(panel.axes[0].xaxis, renderer)
    assert len(places) > 1
    assert all(left.x1 < right.x0 for left, right in zip(places, places[1:], strict=False))
    assert all(panel.bbox.x0 <= place.x0 and place.x1 <= panel.bbox.x1 for place in places)


@pytest.mark.parametrize("low, high", [(0.0, 0.0125), (0.998, 1.0), (0.4975, 0.5075), (0.0, 0.028)])
def test_the_labels_of_pass_at_1_are_apart(read_run, low, high):
    """Ranges in which every 0.0025 or 0.0005 had a tick, beside a name that leaves little width."""
    run = read_run("A", name="gsm8k-qwen2.5-0.5b-instruct-long-name-of-a-run", steps=1, trained=[4] * 16)
    frame = Frame([run])
    frame.groups[0].sides.update(dict.fromkeys(("base", "trained"), Estimate((low + high) / 2, low, high)))
    assert_labels_apart(comparison.verdict_section(frame))


def test_the_labels_of_k_are_apart_where_n_is_no_power_of_two(read_run):
    run = read_run("A", steps=1, trained=[9, 10] * 8, passk={"n": 18})  # k = 16 beside k = 18
    assert_labels_apart(score_sections.against_k(Frame([run])))
