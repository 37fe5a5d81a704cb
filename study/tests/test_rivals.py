"""The third protocol's `rivals`: where a rule stops, and the registered differences, worked out by hand."""

import pandas as pd
import pytest
from scipy import stats

from study.hierarchical import Contrast
from study.matrix import RunKey, read_matrix
from study.rivals import (
    BEST_OF_8,
    BEST_STOPPED,
    BY_GOLD,
    BY_GUARD,
    BY_KL,
    TESTED,
    Firing,
    best_rule,
    differences,
    firings,
    grade,
    means_of_rivals,
    r1_is_refuted,
    r2_is_refuted,
    r3_is_refuted,
    r4_is_refuted,
    replayed_firing,
    replayed_firings,
    score_at,
    scores,
    stop_by_gold,
    stop_by_guard,
    stop_by_kl,
    stop_steps,
)
from study.rivals_picture import draw_rivals
from study.tables import STOPS, Tables, make_frame


MATRIX = """
evaluation: {prompts: 4, samples: 8, drift_samples: 2}
blocks:
  rivals:
    families: [reverse_digits]
    pairs: [[1, 41], [2, 42], [3, 43]]
    steps: 60
    checkpoints: 3
    references: [control_target0.1]
    arms:
      control_target0.1: {beta: 0.3, kl_target: 0.1}
      plain_watched: {guard_gap: 0.05}
      plain_rank4: {lora_r: 4}
      plain_lr_tenth: {learning_rate: 5.0e-5}
      rejection_sampling: {trained_by: study.fine_tuning}
"""
PAIRS = ((1, 41), (2, 42), (3, 43))
GOLD = {
    "control_target0.1": (0.75, 0.5, 0.625),
    "plain_watched": (0.125, 0.125, 0.25),
    "plain_rank4": (0.25, 0.25, 0.25),
    "plain_lr_tenth": (0.5, 0.5, 0.5),
    "rejection_sampling": (0.75, 0.5, 0.5),
}
# Of plain's checkpoints, alike on all bases: step, gold, greedy, KL to the base, validation gold.
CHECKPOINTS = ((20, 0.375, 0.5, 0.05, 0.5), (40, 0.25, 0.625, 0.1, 0.625), (60, 0.1, 0.1, 0.3, 0.1))
FIRED = (41.0, 15.0, None)  # by base
BATCHES = [0.6] * 20 + [0.4] * 40  # gold of the training batches, by step


def key_of(arm, pair):
    return RunKey("reverse_digits", arm, *pair, 60)


def stop_frame(fired=None):
    names = ("step", "gold", "greedy", "kl_to_base", "validation_gold")
    rows = [dict(zip(names, row, strict=True)) for row in CHECKPOINTS]
    return [row | {"reward": 0.5, "guard_gap": fired} for row in rows]


@pytest.fixture
def made(study, add):
    (block,) = read_matrix(study(MATRIX)).blocks
    tables = Tables()
    for arm, golds in GOLD.items():
        for pair, gold in zip(PAIRS, golds, strict=True):
            row = {"pass@1": gold, "greedy": gold + 0.1}
            add(tables, key_of(arm, pair), curve={"gold": BATCHES}, **row)
    parts = []
    for pair, fired in zip(PAIRS, FIRED, strict=True):
        plain = key_of("plain_watched", pair)
        parts.append(make_frame(stop_frame(fired), STOPS, plain))
        base = {"step": 0, "gold": 0.3, "greedy": 0.35, "reward": 0.6, "kl_to_base": 0.0, "best_of_8": 0.45}
        parts.append(make_frame([base], STOPS, plain.base))
    tables.stops = pd.concat(parts)
    return block, tables


def test_where_each_rule_stops():
    stops = pd.DataFrame(stop_frame())
    assert stop_by_gold(stops) == 40
    assert stop_by_gold(stops.assign(validation_gold=0.5)) == 20  # of equal ones the first
    assert [stop_by_kl(stops, target) for target in (0.04, 0.1, 0.11, 0.31)] == [20, 40, 60, 60]
    fired = {None: 60, 19.0: 0, 20.0: 0, 21.0: 20, 40.0: 20, 59.0: 40}
    assert {step: stop_by_guard(stops.assign(guard_gap=step)) for step in fired} == fired


def test_what_a_stop_gives(made):
    block, tables = made
    plain = key_of("plain_watched", (1, 41))
    assert score_at(tables, plain, 40, "gold") == 0.25
    assert score_at(tables, plain, 40, "greedy") == 0.625
    assert score_at(tables, plain, 60, "gold") == 0.125  # the end's own sixteen samples
    assert score_at(tables, plain, 0, "gold") == 0.3  # the base
    control = key_of("control_target0.1", (1, 41))
    assert stop_steps(tables, control, 0.1) == dict.fromkeys((BY_GOLD, BY_KL, BY_GUARD), 60)


def test_the_scores(made):
    gold = scores(*made, "reverse_digits", "gold")
    assert gold["control"].tolist() == [0.75, 0.5, 0.625]
    assert gold["plain"].tolist() == [0.125, 0.125, 0.25]
    assert gold[BY_GOLD].tolist() == gold[BY_KL].tolist() == [0.25] * 3
    # It fires after two checkpoints, before the first, and never.
    assert gold[BY_GUARD].tolist() == [0.25, 0.3, 0.25]
    assert gold[BEST_OF_8].tolist() == [0.45] * 3
    assert best_rule(gold) == BY_GUARD
    greedy = scores(*made, "reverse_digits", "greedy")
    assert greedy[BEST_OF_8].isna().all()
    assert greedy[BY_GUARD].tolist() == pytest.approx([0.625, 0.35, 0.35])
    assert best_rule(greedy) == BY_GOLD


def test_the_registered_differences(made):
    found = {(one.rival, one.outcome): one for one in differences(*made)}
    assert set(found) == {(rival, outcome) for rival in TESTED for outcome in ("gold", "greedy")} - {
        (BEST_OF_8, "greedy")
    }
    stopped = found[BEST_STOPPED, "gold"]
    assert stopped.rule == BY_GUARD
    assert stopped.pairs == 3
    less = [0.75 - 0.25, 0.5 - 0.3, 0.625 - 0.25]
    mean = sum(less) / 3
    half = stats.t.ppf(0.975, 2) * stats.sem(less)
    assert stopped.contrast.estimate == pytest.approx((mean, mean - half, mean + half))
    tuned = found["rejection sampling", "gold"]
    assert tuned.contrast.value == pytest.approx(0.125 / 3)
    assert found["rank 4", "gold"].contrast.p_value == pytest.approx(stats.ttest_1samp([0.5, 0.25, 0.375], 0).pvalue)
    # Holm over the family's five: the smallest p five times, the next one four times, and none below the one before.
    p_values = sorted(found[rival, "gold"].contrast.p_value for rival in TESTED)
    adjusted = sorted(found[rival, "gold"].adjusted for rival in TESTED)
    largest = 0.0
    for times, p_value, after in zip((5, 4, 3, 2, 1), p_values, adjusted, strict=True):
        largest = max(largest, min(1.0, times * p_value))
        assert after == pytest.approx(largest)
    assert all(one.adjusted is None for one in found.values() if one.outcome == "greedy")
    assert found[BEST_STOPPED, "greedy"].rule == BY_GOLD


def test_runs_that_are_missing_leave_their_differences_out(made):
    block, tables = made
    kept = tables.without([key_of("plain_watched", pair) for pair in PAIRS])
    assert {one.rival for one in differences(block, kept)} == set(TESTED) - {BEST_STOPPED}
    two = tables.without([key_of("plain_rank4", PAIRS[0])])
    found = {(one.rival, one.outcome): one for one in differences(block, two)}
    assert found["rank 4", "gold"].pairs == 2
    assert found["a tenth of the rate", "gold"].pairs == 3
    assert differences(block, Tables()) == []
    assert firings(block, Tables()) == []


def test_when_the_guard_fired(made):
    block, tables = made
    # The mean of 20 steps is .6 at step 20; that of steps 11 to 30 has ten of .6 and ten of .4.
    tables.stops.loc[[key_of("plain_watched", (1, 41))], "guard_gap"] = 30.0
    tables.stops.loc[[key_of("plain_watched", (2, 42))], "guard_gap"] = 20.0
    one, two, never = firings(block, tables)
    assert (two.step, two.fall) == (20, 0.0)
    assert (one.key.base_seed, one.step) == (1, 30)
    assert one.fall == pytest.approx(0.1)
    assert (never.step, never.fall) == (None, None)


def test_a_guard_is_replayed_on_the_training_batches(made, add):
    """Gold's mean of 20 steps is .6 at step 20 and falls by .01 a step, while the reward stays: by .06 at step 26."""
    block, tables = made
    plain = key_of("plain_watched", (1, 41))
    assert replayed_firing(tables, plain, 0.055) == 26
    assert replayed_firing(tables, plain, 0.105) == 31
    assert replayed_firing(tables, plain, 0.3) is None
    rows = replayed_firings(block, tables)
    arms = ("control_target0.1", "plain_watched")
    assert [(row["arm"], row["base"]) for row in rows] == [(arm, base) for base in (1, 2, 3) for arm in arms]
    assert set(rows[0]) == {"arm", "base", "at 0.05", "at 0.1"}


def with_interval(low, high):
    """A mean over three bases with this interval."""
    half = (high - low) / 2
    return Contrast((low + high) / 2, half / stats.t.ppf(0.975, 2), 2)


def test_when_a_prediction_is_refuted():
    """Each by its sentence in the protocol, a little to either side of its bound."""
    assert r1_is_refuted(with_interval(-0.1, 0.099))
    assert not r1_is_refuted(with_interval(-0.1, 0.101))
    assert [r2_is_refuted(with_interval(*ends)) for ends in ((0.051, 0.2), (-0.2, -0.051))] == [True, True]
    assert [r2_is_refuted(with_interval(*ends)) for ends in ((0.049, 0.2), (-0.2, -0.049))] == [False, False]
    key = key_of("plain_watched", (1, 41))
    early = Firing(key, 30, 0.099)
    assert not r3_is_refuted([early, early])
    assert r3_is_refuted([early, Firing(key, 30, 0.101)])
    assert r3_is_refuted([early, Firing(key, None, None)])
    assert r4_is_refuted(with_interval(-0.3, 0.019))  # of control - rival: rival - control begins at -0.019
    assert not r4_is_refuted(with_interval(-0.3, 0.021))


def test_registered_differences_alone_are_graded(made):
    graded = {(one.rival, one.outcome): grade(one) for one in differences(*made)}
    # By hand, t = 4.303 at two degrees of freedom: .358 ± .379, .042 ± .179, .375 ± .311 and .125 ± .311.
    assert graded[BEST_STOPPED, "gold"] == "R1 is not refuted"
    assert graded["rejection sampling", "gold"] == "R2 is not refuted"
    assert graded["rank 4", "gold"] == graded["a tenth of the rate", "gold"] == "R4 is not refuted"
    assert graded[BEST_OF_8, "gold"] == ""
    assert {told for (_, outcome), told in graded.items() if outcome == "greedy"} == {""}


def test_means_of_all_rivals(made):
    means = means_of_rivals(*made, "reverse_digits")
    assert means.loc["control"].tolist() == pytest.approx([1.875 / 3, 1.875 / 3 + 0.1])
    assert means.loc[BY_GUARD, "gold"] == pytest.approx(0.8 / 3)
    assert means.loc[BEST_OF_8, "gold"] == pytest.approx(0.45)


def test_the_picture_has_every_difference(made):
    """Each at its value, in the row of its rival, with the mark of its outcome."""
    block, tables = made
    (panel,) = draw_rivals([block], tables).axes
    names = [label.get_text() for label in panel.get_yticklabels()]
    assert names == list(TESTED)
    drawn = set()
    for line in panel.lines:
        if line.get_marker() in ("o", "s") and len(line.get_xdata()):
            (x,), (y,) = line.get_data()
            row = min(range(len(names)), key=lambda place: abs(panel.get_yticks()[place] - y))
            drawn.add((names[row], line.get_marker(), round(float(x), 9)))
    marks = {"gold": "o", "greedy": "s"}
    every = differences(block, tables)
    assert drawn == {(one.rival, marks[one.outcome], round(one.contrast.value, 9)) for one in every}
    assert draw_rivals([block], Tables()) is None
