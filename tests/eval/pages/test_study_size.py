"""A report of as many configurations as the study has: names, looks and axes."""

import pytest
from matplotlib.figure import Figure

from eval.analysis.frame import Frame
from eval.pages import course, curves, matrix, reset_effects


RESET = {"event": "reset", "step_requested": 1}


@pytest.fixture
def forty(read_run):
    """Twelve of A, twelve of C, eight of B, two of each other; two tasks."""
    variants = [*["A"] * 12, *["C"] * 12, *["B"] * 8, *["plain", "control", "elastic", "optimizer-only"] * 2]
    runs = []
    for number, variant in enumerate(variants):
        config = {"task": "sums" if number % 4 == 3 else "reverse_digits", "beta": number / 100, "max_steps": 40}
        keys = {"events": [{**RESET, "step_applied": 20, "reason": "periodic"}] if variant in ("A", "C") else []}
        keys |= {"reward": 0.5, "entropy": 0.4, "kl_ref": 0.01, "kl_old": 0.001}
        runs.append(read_run(variant, 0, f"r{number:02}", 40, config=config, **keys))
    return runs


def test_no_axes_hold_more_than_ten_arms_and_two_for_comparison(forty):
    frame = Frame(forty)
    found = curves.sheets(frame)
    assert max(len(arms) for _, arms in found) <= 12 and len({title for title, _ in found}) == len(found) > 1
    for _, arms in found:
        assert len({arm.runs[0].config["task"] for arm in arms}) == 1
    assert {arm.label for _, arms in found for arm in arms} == {arm.label for arm in frame.arms}
    assert len(course.sections(frame)[0].blocks[0].panels) == 3 * len(found)


def test_few_arms_share_one_sheet(forty):
    ((title, arms),) = curves.sheets(Frame([run for run in forty if run.config["task"] == "sums"][:10]))
    assert (title, len(arms)) == ("", 10)


def test_reasons_are_counted(read_run):
    reasons = {10: "periodic", 20: "kl_spike", 30: "kl_spike+stall", 40: "kl_spike"}
    events = [{**RESET, "step_applied": step, "reason": reason} for step, reason in reasons.items()]
    run = read_run("A", steps=60, reward=0.5, events=events)
    assert dict(run.reset_reasons()) == reasons
    (row,) = reset_effects.reset_table(Frame([run])).rows
    assert row[:3] == ["A", "4", "kl spike 3, periodic 1, stall 1"]


def test_growths_of_the_rank_are_marked_as_resets_are(read_run):
    growth = {"event": "growth", "rank_before": 4, "rank": 8, "reason": "periodic"}
    events = [{**RESET, "step_applied": 20, "reason": "periodic"}, {**growth, "step_applied": 10}]
    run = read_run("A", steps=60, reward=0.5, events=[*events, {**growth, "step_applied": 30}])
    plain = read_run("plain", steps=60, reward=0.5, events=events[:1])
    assert (run.event_steps("growth"), plain.event_steps("growth"), run.reset_steps()) == ([10, 30], [], [20])
    assert read_run("plain", name="none", events=None).event_steps("growth") == []
    frame = Frame([run, plain])
    axes = Figure().subplots()
    course.sections(frame)[0].blocks[0].panels[0].draw(axes)
    triangles = [(list(line.get_xdata()), line.get_color()) for line in axes.lines if line.get_marker() == "^"]
    assert triangles == [([10, 30], curves.colour_of(run))]
    assert "growth of the rank" in axes.get_legend_handles_labels()[1]
    said = "Triangles at the bottom are growths of the adapter's rank."
    assert said in curves.caption(frame, "") and said not in curves.caption(Frame([plain]), "")


def test_dips_beside_the_control_of_the_same_seeds(read_run):
    """A falls by 0.2 for ten steps after its reset, the control does not."""
    keys = {"model_name_or_path": "embedded:sums:3", "task": "sums", "max_steps": 200}

    def run(name, variant, reward, **config):
        events = [{**RESET, "step_applied": 100, "reason": "periodic"}] if variant == "A" else []
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
        keys = {"kl_old": lambda step, seed=seed: 0.5 + seed if step in (20, 40)[: 1 + seed] else 0.01}
        keys |= {"entropy": lambda step, seed=seed: 0.9 if step == 30 and seed else 0.3, "kl_ref": 9.0}
        runs.append(read_run("B", seed, steps=60, **keys))
    table = matrix.result_matrix(Frame(runs))
    cells = dict(zip(table.header, table.rows[0], strict=True))
    assert (cells["KL spikes"], cells["entropy spikes"]) == ("1.5 (× 150)", "0.5 (× 3)")
    assert any("10 times" in line and "1.5 times" in line for line in table.definitions)


def test_forty_looks_and_names_differ(forty):
    arms = Frame(forty).arms
    assert len({arm.label for arm in arms}) == len({repr(sorted(curves.style_of(arm).items())) for arm in arms}) == 40
    colours = {arm.variant: curves.colour_of(arm) for arm in arms}
    assert len(set(colours.values())) == len(colours) == 7  # its own colour for each variant
