import io
import json
import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from PIL import Image

from trl_prorl.eval.analysis.frame import Frame
from trl_prorl.eval.pages import curves, matrix, plotting, reset_effects
from trl_prorl.eval.pages import runs as pages
from trl_prorl.eval.pages.document import Picture
from trl_prorl.eval.report import build_report
from trl_prorl.eval.run_folder.reading import load_run


RESET = {"event": "reset", "step_applied": 10}


@pytest.fixture
def runs(read_run):
    reference = {"kl_ref": lambda step: 0.0 if step in (1, 11) else 0.01, "time_ref": 0.2, "ref_forward_calls": 4}
    arms = {"plain": {}, "A": reference | {"events": [RESET]}, "C": reference | {"events": [RESET]}}
    arms["B"] = {"kl_ref": 0.3, "kl_old": 1e-6, "ref_forward_calls": 0}
    common = {"steps": 20, "reward": lambda step: step / 20, "entropy": 0.5, "time_step": 1.0, "time_update": 0.4}
    return [read_run(variant, name=variant, **common, **arms[variant]) for variant in ("plain", "A", "B", "C")]


def drawn(panel):
    axes = Figure().subplots()
    panel.draw(axes)
    return axes


def curve_panels(runs):
    return curves.sections(Frame(runs))[0].blocks[0].panels


@pytest.mark.parametrize("page", [curves.sections, pages.costs])
def test_pictures_open(page, runs, read_run, tmp_path):
    bare = read_run("own", steps=3, reward=0.5, time_step=1.0, events=None)
    for name, group in (("all", runs), ("one", runs[:1]), ("bare", [bare])):
        (picture,) = [block for block in page(Frame(group))[0].blocks if isinstance(block, Picture)]
        replace(picture, file=f"{name}.png").write(tmp_path)
        with Image.open(tmp_path / f"{name}.png") as image:
            image.load()
            assert image.format == "PNG"
            assert image.width == 624 * min(3, len(picture.panels))
            assert 300 <= image.height <= 1500


def test_pictures_as_svg_have_text_as_text_and_the_same_bytes(runs, read_run, tmp_path):
    """A hostile name, too: whole XML, every id once, and every reference to one that is there."""
    evil = read_run("A", name="a\x1b<b>&$x_{$\u202e", reward=0.5, config={"beta": 0.5})
    written = []
    for _ in range(2):
        (picture,) = curves.sections(Frame([*runs, evil]))[0].blocks
        picture.write(tmp_path)
        written.append((tmp_path / "summary.svg").read_bytes())
    assert written[0] == written[1]
    text = written[0].decode()
    root = ElementTree.fromstring(text)
    words = " ".join(element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text"))
    assert "Entropy of the policy" in words
    assert r"a\x1b<b>&$x_{$\u202e" in words
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', text)) <= set(ids)
    assert len(text) < 200_000
    assert "<dc:date>" not in text


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([{"step": 1, "reward": 0.5}], "only 1 step is"),
        ([{"step": 1, "reward": 0.5}, {"step": 2, "reward": 0.5}], "only 2 steps are"),
        (
            [{"step": step, "reward": None, "kl_ref": float("nan"), "time_step": 1.0} for step in range(1, 9)],
            "no finite",
        ),
    ],
)
def test_a_dead_run_has_one_line_and_no_panels(rows, why, runs, make_run):
    dead = load_run(make_run("dead", "plain", rows))
    (section,) = curves.sections(Frame([dead]))
    (block,) = section.blocks
    (line,) = block.items
    assert line.startswith("`dead` has no curves: ")
    assert why in line
    assert not any(isinstance(block, Picture) for block in pages.costs(Frame([dead]))[0].blocks)
    picture, block = curves.sections(Frame([*runs, dead]))[0].blocks
    assert block.items == [line]
    assert len(drawn(picture.panels[0]).lines) == len(drawn(curve_panels(runs)[0]).lines)


def test_b_shows_kl_to_the_sampling_policy(runs):
    kl = drawn(curve_panels(runs)[1])
    assert kl.get_legend_handles_labels()[1] == ["A: kl_ref", "B: kl_old", "C: kl_ref"]
    assert kl.get_yscale() == "symlog"


def test_only_what_was_measured_is_drawn(runs):
    stages = drawn(curves.stages_panel(Frame(runs)))
    bars = {(round(bar.get_y() + 0.4), round(bar.get_x(), 6), round(bar.get_width(), 6)) for bar in stages.patches}
    assert {(0, 0.0, 0.4), (1, 0.0, 0.2), (1, 0.2, 0.4)} <= bars


VARIANTS = ["plain", "control", "A", "B", "C", "elastic", "optimizer-only"]


@pytest.mark.parametrize("variants", [["A"], VARIANTS])
def test_forty_lines_are_told_apart(read_run, variants):
    """By colour, dashes and marker; the configurations differ in a number each."""
    of = [variants[i % len(variants)] for i in range(40)]
    runs = [read_run(v, 0, f"r{i:02}", 12, config={"beta": i / 100}, reward=i / 40) for i, v in enumerate(of)]
    arms = Frame(runs).arms
    axes = drawn(curves.sheet_panels("", arms)[0])
    strong = [line for line in axes.lines if line.get_linewidth() > 1]
    looks = {(line.get_color(), line.get_linestyle(), line.get_marker()) for line in strong}
    assert len(looks) == len(strong) == len({arm.label for arm in arms}) == 40
    assert len({look[0] for look in looks}) == len(variants)  # a colour for each variant, dashes within


def test_one_wild_kl_does_not_hide_the_others(read_run):
    # Zero in every first pass, one outlier: the strong line stays at the usual value.
    run = read_run("A", steps=40, kl_ref=lambda step: 5e3 if step == 20 else 0.01 * (step % 2))
    strong = max(drawn(curve_panels([run])[1]).lines, key=lambda line: line.get_linewidth())
    assert list(strong.get_ydata()) == pytest.approx([0.01] * 21)


def test_seeds_become_a_mean_and_a_band(read_run):
    # 20 steps at 0.2 and 12 at 0.6: the mean is drawn where both ran, from the lowest to the highest.
    runs = [read_run("A", 0, steps=20, reward=0.2), read_run("A", 1, steps=12, reward=0.6)]
    alone = read_run("B", steps=20, reward=0.5)
    assert [arm.legend for arm in Frame([*runs, alone]).arms] == ["A, 2 seeds", "B0"]
    axes = drawn(curve_panels([*runs, alone])[0])
    mean = next(line for line in axes.lines if line.get_label() == "A, 2 seeds")
    assert list(mean.get_xdata()) == list(range(1, 13))
    assert list(mean.get_ydata()) == pytest.approx([0.4] * 12)
    corners = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (corners.min(), corners.max()) == pytest.approx((0.2, 0.6))
    assert len(axes.collections) == 1  # the single run has no band


def test_resets_of_all_seeds_are_marked(read_run):
    events = ([{**RESET, "step_applied": step} for step in steps] for steps in ([5, 10], [5, 15]))
    runs = [read_run("A", seed, steps=20, reward=0.5, events=one) for seed, one in enumerate(events)]
    axes = drawn(curve_panels(runs)[0])
    (lines,) = [each for each in axes.collections if isinstance(each, LineCollection)]
    assert [float(segment[0, 0]) for segment in lines.get_segments()] == [5, 10, 15]


def test_evaluations_during_training_are_drawn_with_the_resets(read_run):
    run = read_run("A", steps=20, reward=0.5, events=[RESET])
    assert len(curve_panels([run])) == 4
    rows = [{"step": step, "eval_reward": step / 100} for step in (0, 8, 16)]
    (run.path / "evaluations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    *_, panel = curve_panels([load_run(run.path)])
    axes = drawn(panel)
    curve = next(line for line in axes.lines if line.get_label() == "A0")
    assert (list(curve.get_xdata()), list(curve.get_ydata())) == ([0, 8, 16], [0.0, 0.08, 0.16])
    assert [each.get_segments()[0][0, 0] for each in axes.collections] == [10]


def test_gold_is_drawn_beside_the_reward(read_run):
    """The share of correct completions in the same panel, in dots of the arm's colour; the guard where it fired."""
    event = {"event": "guard_gap", "step_applied": 15, "reason": "gold fell, the reward did not"}
    gamed = read_run("plain", steps=20, reward=0.9, gold=lambda step: 0.5 - step / 100, events=[event])
    other = read_run("A", steps=20, reward=0.8)
    axes = drawn(curve_panels([gamed, other])[0])
    lines = {line.get_label(): line for line in axes.lines}
    assert axes.get_title() == "Training reward, and gold (dotted)"
    assert list(lines["plain0: gold"].get_ydata())[-1] == pytest.approx(0.5 - 15.5 / 100)  # mean of steps 11 to 20
    assert lines["plain0: gold"].get_linestyle() == ":"
    assert lines["plain0"].get_ydata()[-1] == 0.9
    assert lines["plain0: gold"].get_color() == lines["plain0"].get_color()
    assert "A0: gold" not in lines
    assert [list(line.get_xdata()) for line in axes.lines if line.get_marker() == "X"] == [[15]]
    assert "possible reward hacking" in lines
    assert drawn(curve_panels([other])[0]).get_title() == "Training reward"


REQUESTED = {"event": "reset", "step_requested": 1}


@pytest.fixture
def forty(read_run):
    """Twelve of A, twelve of C, eight of B, two of each other; two tasks."""
    variants = [*["A"] * 12, *["C"] * 12, *["B"] * 8, *["plain", "control", "elastic", "optimizer-only"] * 2]
    runs = []
    for number, variant in enumerate(variants):
        config = {"task": "sums" if number % 4 == 3 else "reverse_digits", "beta": number / 100, "max_steps": 40}
        keys = {
            "events": [{**REQUESTED, "step_applied": 20, "reason": "periodic"}] if variant in ("A", "C") else [],
            "reward": 0.5,
            "entropy": 0.4,
            "kl_ref": 0.01,
            "kl_old": 0.001,
        }
        runs.append(read_run(variant, 0, f"r{number:02}", 40, config=config, **keys))
    return runs


def test_no_axes_hold_more_than_ten_arms_and_two_for_comparison(forty):
    frame = Frame(forty)
    found = plotting.sheets(frame)
    assert max(len(arms) for _, arms in found) <= 12
    assert len({title for title, _ in found}) == len(found) > 1
    for _, arms in found:
        assert len({arm.runs[0].config["task"] for arm in arms}) == 1
    assert {arm.label for _, arms in found for arm in arms} == {arm.label for arm in frame.arms}
    pictures = curves.sections(frame)[0].blocks
    assert [len(picture.panels) for picture in pictures] == [4] * len(found)
    assert len({picture.file for picture in pictures}) == len(found)


def test_few_arms_share_one_sheet(forty):
    ((title, arms),) = plotting.sheets(Frame([run for run in forty if run.config["task"] == "sums"][:10]))
    assert (title, len(arms)) == ("", 10)


def test_reasons_are_counted(read_run):
    reasons = {10: "periodic", 20: "kl_spike", 30: "kl_spike+stall", 40: "kl_spike"}
    events = [{**REQUESTED, "step_applied": step, "reason": reason} for step, reason in reasons.items()]
    run = read_run("A", steps=60, reward=0.5, events=events)
    assert dict(run.reset_reasons()) == reasons
    (row,) = reset_effects.reset_table(Frame([run])).rows
    assert row[:3] == ["A0", "4", "kl spike 3, periodic 1, stall 1"]


def test_growths_of_the_rank_are_marked_as_resets_are(read_run):
    growth = {"event": "growth", "rank_before": 4, "rank": 8, "reason": "periodic"}
    events = [{**REQUESTED, "step_applied": 20, "reason": "periodic"}, {**growth, "step_applied": 10}]
    run = read_run("A", steps=60, reward=0.5, events=[*events, {**growth, "step_applied": 30}])
    plain = read_run("plain", steps=60, reward=0.5, events=events[:1])
    assert (run.event_steps("growth"), plain.event_steps("growth"), run.reset_steps()) == ([10, 30], [], [20])
    assert read_run("plain", name="none", events=None).event_steps("growth") == []
    frame = Frame([run, plain])
    axes = Figure().subplots()
    curves.sections(frame)[0].blocks[0].panels[0].draw(axes)
    triangles = [(list(line.get_xdata()), line.get_color()) for line in axes.lines if line.get_marker() == "^"]
    assert triangles == [([10, 30], plotting.colour_of(run))]
    assert "growth of the rank" in axes.get_legend_handles_labels()[1]
    said = "Triangles at the bottom are growths of the adapter's rank."
    assert said in plotting.caption(frame, "")
    assert said not in plotting.caption(Frame([plain]), "")


def test_dips_beside_the_control_of_the_same_seeds(read_run):
    """A falls by 0.2 for ten steps after its reset, the control does not."""
    keys = {"model_name_or_path": "embedded:sums:3", "task": "sums", "max_steps": 200}

    def run(name, variant, reward, **config):
        events = [{**REQUESTED, "step_applied": 100, "reason": "periodic"}] if variant == "A" else []
        return read_run(variant, 1, name, 200, config={**keys, **config}, events=events, reward=reward)

    a = run("A", "A", lambda step: 0.5 if step <= 100 else 0.3 if step <= 110 else 0.7)
    control = run("control", "control", lambda step: min(step, 40) / 100)
    other_base = run("other", "control", 0.9, model_name_or_path="embedded:sums:4")
    (row,) = reset_effects.reset_table(Frame([a, control, other_base])).rows
    # Back with the first five steps of which three are at 0.7: the window that begins 8 steps after the reset.
    assert row == ["A", "1", "periodic 1", "0.200", "0.000", "8", "0"]


def test_spikes_in_the_matrix(read_run):
    """B's are of the KL to the sampling policy; the mean number of the seeds, the largest of all."""
    runs = []
    for seed in (0, 1):
        keys = {
            "kl_old": lambda step, seed=seed: 0.5 + seed if step in (20, 40)[: 1 + seed] else 0.01,
            "entropy": lambda step, seed=seed: 0.9 if step == 30 and seed else 0.3,
            "kl_ref": 9.0,
        }
        runs.append(read_run("B", seed, steps=60, **keys))
    table = matrix.result_matrix(Frame(runs))
    cells = dict(zip(table.header, table.rows[0], strict=True))
    assert (cells["KL spikes"], cells["entropy spikes"]) == ("1.5 (× 150)", "0.5 (× 3)")
    assert any("10 times" in line and "1.5 times" in line for line in table.definitions)


def test_spikes_of_the_gradient_norm_have_a_ring(read_run):
    """In the matrix, too: the norm is 0.2, once 1.2 and once, which is no spike, 0.9."""
    run = read_run("A", steps=60, grad_norm=lambda step: {20: 1.2, 40: 0.9}.get(step, 0.2))
    (section,) = curves.sections(Frame([run]))
    panel = next(panel for panel in section.blocks[0].panels if panel.alt.startswith("Gradient norm"))
    rings = [line for line in drawn(panel).lines if line.get_marker() == "o"]
    assert [(list(line.get_xdata()), list(line.get_ydata())) for line in rings] == [([20], [1.2])]
    assert "A ring is a spike of the gradient norm" in section.blocks[-1].caption
    table = matrix.result_matrix(Frame([run]))
    assert dict(zip(table.header, table.rows[0], strict=True))["gradient spikes"] == "1 (× 6)"
    calm = read_run("A", 1, steps=60, grad_norm=0.2)
    assert "A ring" not in curves.sections(Frame([calm]))[0].blocks[-1].caption


def test_the_share_of_completions_that_were_cut_off_is_drawn_where_it_is_on_record(read_run):
    run = read_run("A", steps=20, truncated_fraction=0.25)
    (cut,) = [panel for panel in curve_panels([run]) if "cut off" in panel.alt]
    line = next(line for line in drawn(cut).lines if line.get_label() == "A0")
    assert set(line.get_ydata()) == {0.25}
    older = read_run("A", 1, steps=20, reward=0.5)
    assert not [panel for panel in curve_panels([older]) if "cut off" in panel.alt]


LONG = [
    "a",
    "gsm8k-qwen2.5-0.5b-a-name-that-somebody-typed-into-a-sweep_lr0.0001_beta0.02_2026-11-24T12-30-00",
    "a_name_without_any_place_at_which_a_person_would_break_it_but_for_the_underscores_in_it",
    "x" * 130,
    "QWEN2.5-0.5B-GSM8K-SWEEP-OF-RATES-AND-ANCHORS_LR1E-5_KL_TARGET_0.05_SEED_17",
]


def ink_at_the_edges(picture):
    """Return how many pixels of the outermost two columns and rows are not white."""
    grey = np.asarray(picture.convert("L"))
    edges = (grey[:2], grey[-2:], grey[:, :2], grey[:, -2:])
    return sum(int((edge < 250).sum()) for edge in edges)


@pytest.mark.parametrize("names", [LONG, LONG[1:2], LONG[3:]])
def test_no_label_is_cut_off(read_run, names):
    """Ink at the edge of a picture would be a label that goes on beyond it."""
    keys = {"steps": 30, "reward": 0.00001234, "gold": 0.5, "kl_ref": 1e-7, "entropy": 123456.0, "grad_norm": 1e-5}
    keys |= {"time_step": 1.0, "time_update": 1.0, "events": [RESET], "trained": [3, 4] * 20}
    tasks = [f"a_task_with_a_long_name_{number}" for number in range(len(names))]
    runs = [read_run("A", 0, name, config={"task": task}, **keys) for name, task in zip(names, tasks, strict=True)]
    report = build_report(Frame(runs), "command")
    panels = [panel for picture in report.pictures() for panel in picture.panels]
    assert len(panels) >= 10
    for panel in panels:
        with Image.open(io.BytesIO(panel.png)) as picture:
            assert ink_at_the_edges(picture) == 0, panel.alt
