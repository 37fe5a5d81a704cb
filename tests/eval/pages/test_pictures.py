import json
from dataclasses import replace

import pytest
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from PIL import Image

from eval.analysis.frame import Frame
from eval.pages import course
from eval.pages import runs as pages
from eval.pages.document import Picture
from eval.run_folder.reading import load_run


@pytest.fixture
def runs(make_run, make_rows):
    events = [{"event": "reset", "step_applied": 10}]
    reference = {"kl_ref": lambda step: 0.0 if step in (1, 11) else 0.01, "time_ref": 0.2, "ref_forward_calls": 4}
    common = {"reward": lambda step: step / 20, "entropy": 0.5, "time_step": 1.0, "time_update": 0.4}
    return [
        load_run(make_run("plain", "plain", make_rows(20, **common))),
        load_run(make_run("A", "A", make_rows(20, **common, **reference), events=events)),
        load_run(make_run("B", "B", make_rows(20, **common, kl_ref=0.3, kl_old=1e-6, ref_forward_calls=0))),
        load_run(make_run("C", "C", make_rows(20, **common, **reference), events=events)),
    ]


def drawn(panel):
    axes = Figure().subplots()
    panel.draw(axes)
    return axes


def course_panels(runs):
    return course.sections(Frame(runs))[0].blocks[0].panels


@pytest.mark.parametrize("page", [course.sections, pages.costs])
def test_pictures_open(page, runs, make_run, make_rows, tmp_path):
    bare = load_run(make_run("bare", "own", make_rows(1), events=None))
    for name, group in (("all", runs), ("one", runs[:1]), ("bare", [bare])):
        (picture,) = [block for block in page(Frame(group))[0].blocks if isinstance(block, Picture)]
        replace(picture, file=f"{name}.png").write(tmp_path)
        with Image.open(tmp_path / f"{name}.png") as image:
            image.load()
            assert image.format == "PNG" and image.width == 624 * min(3, len(picture.panels))
            assert 300 <= image.height <= 1500


def test_b_shows_kl_to_the_sampling_policy(runs):
    kl = drawn(course_panels(runs)[1])
    assert kl.get_legend_handles_labels()[1] == ["A: kl_ref", "B: kl_old", "C: kl_ref"]
    assert kl.get_yscale() == "symlog"


def test_only_what_was_measured_is_drawn(runs):
    stages = drawn(course.stages_panel(Frame(runs)))
    bars = {(round(bar.get_y() + 0.4), round(bar.get_x(), 6), round(bar.get_width(), 6)) for bar in stages.patches}
    assert {(0, 0.0, 0.4), (1, 0.0, 0.2), (1, 0.2, 0.4)} <= bars


@pytest.mark.parametrize("variants", [["A"], ["plain", "control", "A", "B", "C"], ["elastic", "optimizer-only"]])
def test_forty_lines_are_told_apart(make_run, make_rows, variants):
    """By colour, dashes and marker; the configurations differ in a number each."""
    folders = [
        make_run(f"r{i:02}", variants[i % len(variants)], make_rows(12, reward=i / 40), config={"beta": i / 100})
        for i in range(40)
    ]
    arms = Frame([load_run(folder) for folder in folders]).arms
    axes = drawn(course.sheet_panels("", arms)[0])
    strong = [line for line in axes.lines if line.get_linewidth() > 1]
    looks = {(line.get_color(), line.get_linestyle(), line.get_marker()) for line in strong}
    assert len(looks) == len(strong) == len(arms) == 40
    assert len({look[0] for look in looks}) == len(variants)  # a colour for each variant, dashes within


def test_one_wild_kl_does_not_hide_the_others(make_run, make_rows):
    # Zero in every first pass, one outlier: the strong line stays at the usual value.
    run = load_run(make_run("A", "A", make_rows(40, kl_ref=lambda step: 5e3 if step == 20 else 0.01 * (step % 2))))
    strong = max(drawn(course_panels([run])[1]).lines, key=lambda line: line.get_linewidth())
    assert list(strong.get_ydata()) == pytest.approx([0.01] * 21)


def test_seeds_become_a_mean_and_a_band(make_run, make_rows):
    # 20 steps at 0.2 and 12 at 0.6: the mean is drawn where both ran, from the lowest to the highest.
    runs = [
        load_run(make_run(f"A{seed}", "A", make_rows(steps, reward=value), env={"seed": seed}))
        for seed, steps, value in ((0, 20, 0.2), (1, 12, 0.6))
    ]
    alone = load_run(make_run("B", "B", make_rows(20, reward=0.5)))
    assert [arm.legend for arm in Frame([*runs, alone]).arms] == ["A, 2 seeds", "B"]
    axes = drawn(course_panels([*runs, alone])[0])
    mean = next(line for line in axes.lines if line.get_label() == "A, 2 seeds")
    assert list(mean.get_xdata()) == list(range(1, 13))
    assert list(mean.get_ydata()) == pytest.approx([0.4] * 12)
    corners = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (corners.min(), corners.max()) == pytest.approx((0.2, 0.6))
    assert len(axes.collections) == 1  # the single run has no band


def test_resets_of_all_seeds_are_marked(make_run, make_rows):
    runs = [
        load_run(
            make_run(
                f"A{seed}",
                "A",
                make_rows(20, reward=0.5),
                env={"seed": seed},
                events=[{"event": "reset", "step_applied": step} for step in steps],
            )
        )
        for seed, steps in ((0, [5, 10]), (1, [5, 15]))
    ]
    axes = drawn(course_panels(runs)[0])
    (lines,) = [each for each in axes.collections if isinstance(each, LineCollection)]
    assert [float(segment[0, 0]) for segment in lines.get_segments()] == [5, 10, 15]


def test_evaluations_during_training_are_drawn_with_the_resets(make_run, make_rows):
    folder = make_run("A", "A", make_rows(20), events=[{"event": "reset", "step_applied": 10}])
    assert len(course_panels([load_run(folder)])) == 3
    rows = [{"step": step, "eval_reward": step / 100} for step in (0, 8, 16)]
    (folder / "evaluations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    *_, panel = course_panels([load_run(folder)])
    axes = drawn(panel)
    curve = next(line for line in axes.lines if line.get_label() == "A")
    assert (list(curve.get_xdata()), list(curve.get_ydata())) == ([0, 8, 16], [0.0, 0.08, 0.16])
    assert [each.get_segments()[0][0, 0] for each in axes.collections] == [10]


def test_gold_is_drawn_beside_the_reward(make_run, make_rows):
    """The share of correct completions in the same panel, in dots of the arm's colour; the guard where it fired."""
    event = {"event": "guard_gap", "step_applied": 15, "reason": "the reward rose while gold fell"}
    rows = make_rows(20, reward=0.9, gold=lambda step: 0.5 - step / 100)
    gamed = load_run(make_run("plain", "plain", rows, events=[event]))
    other = load_run(make_run("A", "A", make_rows(20, reward=0.8)))
    axes = drawn(course_panels([gamed, other])[0])
    lines = {line.get_label(): line for line in axes.lines}
    assert axes.get_title() == "Training reward, and gold (dotted)"
    assert list(lines["plain: gold"].get_ydata())[-1] == pytest.approx(0.5 - 15.5 / 100)  # mean of steps 11 to 20
    assert lines["plain: gold"].get_linestyle() == ":" and lines["plain"].get_ydata()[-1] == 0.9
    assert lines["plain: gold"].get_color() == lines["plain"].get_color() and "A: gold" not in lines
    assert [list(line.get_xdata()) for line in axes.lines if line.get_marker() == "X"] == [[15]]
    assert "the reward is gamed" in lines
    assert drawn(course_panels([other])[0]).get_title() == "Training reward"
