import math
from dataclasses import replace

import pytest

from eval.analysis import success
from eval.analysis.statistics import Estimate, fieller_ratio
from eval.analysis.success import MET, NOT_MET, UNDECIDED
from eval.pages import success as page
from eval.run_folder.reading import load_run
from trl_prorl.variants import DIFFERENT_OBJECTIVE


@pytest.fixture
def arm(make_run, make_rows, passk_result):
    def make(variant, seed, solved, seconds, env=None, config=None):
        solved = [solved] * 400 if isinstance(solved, int) else solved
        return load_run(
            make_run(
                f"{variant}{seed}{config or ''}",
                variant,
                make_rows(4, time_step=seconds),
                passk=None if solved is None else passk_result([1] * 400, solved),
                env={"seed": seed, **(env or {})},
                config={"seed": seed, **(config or {})},
            )
        )

    return make


@pytest.mark.parametrize(
    ("interval", "score", "cost"),
    [
        ((0.81, 0.99), MET, MET),
        ((0.80, 1.00), MET, UNDECIDED),
        ((0.79, 1.10), UNDECIDED, UNDECIDED),
        ((0.70, 0.80), UNDECIDED, MET),
        ((0.70, 0.79), NOT_MET, MET),
        ((1.00, 1.20), MET, NOT_MET),
    ],
)
def test_verdicts(interval, score, cost):
    estimate = Estimate(sum(interval) / 2, *interval)
    assert success.at_least(estimate, 0.8) == score
    assert success.below(estimate, 1.0) == cost


def test_both_conditions_must_hold():
    assert success.both(MET, MET) == MET
    assert success.both(MET, UNDECIDED) == success.both(UNDECIDED, UNDECIDED) == UNDECIDED
    for other in (MET, UNDECIDED, NOT_MET):
        assert success.both(NOT_MET, other) == success.both(other, NOT_MET) == NOT_MET
    assert success.at_least(None, 0.8) == success.below(None, 1.0) == UNDECIDED


def test_one_pair_decides_nothing(arm):
    (found,) = success.comparisons([arm("A", 0, 8, 2.0), arm("B", 0, 7, 1.0)])
    assert found.share == (0.875, 0.0, math.inf)
    assert found.step_time == (0.5, 0.0, math.inf)
    assert success.verdict(found, 0.8) == success.verdict(found, 0.9) == (UNDECIDED, UNDECIDED, UNDECIDED)
    line, objective = page.success_statements([found])
    assert objective == DIFFERENT_OBJECTIVE
    assert "At least 80 % at a lower step cost: **undecided** (score undecided, step cost undecided)." in line
    over_prompts = page._share_text(found.pairs[0].share)
    assert f"88 % of A's held-out pass@1 (too few runs for an interval; over prompts alone {over_prompts})" in line
    assert "0.50 times A's (too few runs for an interval)" in line


@pytest.mark.parametrize("seeds", [(0,), (0, 1, 2)])
def test_too_few_prompts_have_no_interval_and_none_is_named(make_run, make_rows, passk_result, seeds):
    runs = [
        load_run(
            make_run(
                f"{name}{seed}",
                name,
                make_rows(4, time_step=2.0),
                passk=passk_result([1] * 8, [8] * 8),
                env={"seed": seed},
            )
        )
        for name in "AB"
        for seed in seeds
    ]
    (found,) = success.comparisons(runs)
    assert success.verdict(found, 0.8)[0] == UNDECIDED
    assert (
        "100 % (n/a) of A's held-out pass@1 (too few prompts for an interval)" in page.success_statements([found])[0]
    )


def test_seeds_are_paired_and_met_when_all_agree(arm):
    runs = []
    for seed in range(3):
        runs += [arm("A", seed, 8, 2.0 + seed), arm("B", seed, 7, 1.0 + seed / 2 + 0.01 * seed)]
    (found,) = success.comparisons(runs)
    assert [(pair.b.name, pair.a.name) for pair in found.pairs] == [("B0", "A0"), ("B1", "A1"), ("B2", "A2")]
    assert [pair.step_time for pair in found.pairs] == pytest.approx([0.5, 1.51 / 3, 0.505])
    # Ratio of means, (1 + 1.51 + 2.02) / (2 + 3 + 4).
    assert found.step_time.value == pytest.approx(4.53 / 9)
    assert found.step_time.low < 0.5 < 0.505 < found.step_time.high < 0.52
    assert success.verdict(found, 0.8) == (MET, MET, MET)
    assert success.verdict(found, 0.9)[2] == NOT_MET


def test_ratio_over_runs_by_hand():
    # Log ratios ±ln 2: mean 0, standard error ln 2, t(0.975, 1) = 12.706.
    low, high = success.ratio_over_runs([1.0, 4.0], [2.0, 2.0], paired=True)
    assert math.log(high) == pytest.approx(12.706 * math.log(2), rel=1e-4)
    assert low * high == pytest.approx(1.0)
    # Unpaired with no spread in A: Welch's test, the same spread with the same single degree of freedom.
    assert success.ratio_over_runs([1.0, 4.0], [2.0, 2.0], paired=False) == pytest.approx((low, high))
    assert success.ratio_over_runs([1.0], [2.0], paired=True) is None
    assert success.ratio_over_runs([1.0, 1.0], [2.0, 2.0], paired=True) == pytest.approx((0.5, 0.5))


def test_a_seed_that_scored_nothing_counts(arm):
    # B's third run collapsed: mean share 2/3, and three runs do not tell it from 80 %.
    runs = [arm("A", seed, 8, 2.0) for seed in range(3)] + [arm("B", seed, 8 * (seed < 2), 1.0) for seed in range(3)]
    (found,) = success.comparisons(runs)
    # s = 1/sqrt(3), standard error 1/3, t(0.975, 2) = 4.3027: 2/3 +- 1.4342.
    assert found.share == pytest.approx((2 / 3, 0.0, 2 / 3 + 4.3027 / 3), rel=1e-4)
    assert success.verdict(found, 0.8)[0] == UNDECIDED
    # A's third run collapsed: B has 150 % of A, and the interval has no upper end.
    runs = [arm("A", seed, 8 * (seed < 5), 2.0) for seed in (3, 4, 5)] + [arm("B", seed, 8, 1.0) for seed in (3, 4, 5)]
    (found,) = success.comparisons(runs)
    assert [pair.share is None for pair in found.pairs] == [False, False, True]
    assert found.share.value == pytest.approx(1.5) and found.share.high == math.inf


def test_repeated_seeds_are_not_paired(arm):
    def again(run, name):
        return replace(run, name=name)

    a = [arm("A", 1, 2, 1.0), arm("A", 2, 8, 1.1)]
    b = [arm("B", 1, 2, 1.0), arm("B", 2, 8, 1.1)]
    (paired,) = success.comparisons([*a, *b])
    assert paired.step_time == pytest.approx((1.0, 1.0, 1.0)) and success._sides(paired.pairs)[2] is True
    # Zipped, B's 1, 1, 2 would meet A's 1, 2, 2.
    (found,) = success.comparisons([*a, again(a[1], "A2b"), b[0], again(b[0], "B1b"), b[1]])
    assert success._sides(found.pairs)[2] is False
    assert found.step_time[1:] == success.ratio_over_runs([1, 1, 1.1], [1, 1.1, 1.1], paired=False)
    assert found.share == fieller_ratio([0.25, 0.25, 1], [0.25, 1, 1], paired=False)


def test_seeds_that_disagree_leave_it_undecided(arm):
    runs = [arm("A", 0, 8, 1.0), arm("B", 0, 8, 0.5), arm("A", 1, 8, 1.0), arm("B", 1, 6, 1.5)]
    (found,) = success.comparisons(runs)
    assert found.share.value == pytest.approx(7 / 8)
    assert success.verdict(found, 0.8) == (UNDECIDED, UNDECIDED, UNDECIDED)


def test_no_shared_seed_compares_the_sides(arm):
    runs = [arm("A", 0, 8, 1.0), arm("A", 1, 8, 1.02), arm("B", 2, 8, 0.5), arm("B", 3, 8, 0.51)]
    (found,) = success.comparisons(runs)
    assert len(found.pairs) == 4
    assert success.verdict(found, 0.9) == (MET, MET, MET)
    assert {row[2] for row in page.success_table([found]).rows} == {"–", "all"}


def test_every_configuration_is_compared(arm):
    runs = [arm("A", 0, 8, 1.0, config={"ref_reset_every": every}) for every in (10, 20)] + [arm("B", 0, 8, 1.0)]
    assert [found.a for found in success.comparisons(runs)] == ["A K=10", "A K=20"]
    assert success.comparisons(runs[:2]) == []


def test_what_was_not_measured_stays_open(arm):
    runs = [arm("A", 0, None, 1.0), arm("B", 0, 8, None)]
    (found,) = success.comparisons(runs)
    assert found.share is None and found.step_time is None
    assert success.verdict(found, 0.8) == (UNDECIDED, UNDECIDED, UNDECIDED)
    table = page.success_table([found])
    assert table.rows == [["B0", "A0", "0", "–", "–"], ["**B**", "**A**", "all", "–", "–"]]
    assert "None" not in " ".join(page.success_statements([found]))


def test_other_hardware_is_a_warning_and_bs_own_execution_is_not(arm):
    a = {"hardware": {"gpu": "one"}, "execution": {"old_logps": "first_pass", "ref_compute": "cached", "loss": "trl"}}
    b = {**a, "execution": {"old_logps": "first_pass", "ref_compute": "none", "loss": "trl + added penalty"}}
    (found,) = success.comparisons([arm("A", 0, 8, 1.0, env=a), arm("B", 0, 8, 1.0, env=b)])
    assert found.warnings == []
    other = {**b, "hardware": {"gpu": "another"}, "execution": {**b["execution"], "old_logps": "extra_forward"}}
    (found,) = success.comparisons([arm("A", 1, 8, 1.0, env=a), arm("B", 1, 8, 1.0, env=other)])
    assert [warning.split("`")[1] for warning in found.warnings] == ["hardware", "execution"]
    assert all("may not compare" in line for line in page.success_statements([found])[1:-1])


def test_b_is_told_from_a(arm):
    found = success.comparisons([arm("A", 0, 8, 2.0), arm("B", 0, 7, 1.0)])
    assert DIFFERENT_OBJECTIVE in page.success_table(found).notes
