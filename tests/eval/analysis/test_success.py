"""The success rule: the share of A's score that B has, and the ratio of their step times."""

import math
from dataclasses import replace

import pytest

from eval.analysis.compare import MET, NOT_MET, UNDECIDED, compare_arms
from eval.analysis.frame import Frame
from eval.analysis.statistics import Estimate
from eval.pages.comparison import success_statements


@pytest.fixture
def found(read_run):
    """B against A, of runs given by variant, seed, correct samples of 8 at every of 400 prompts, and step time."""

    def make(*runs, prompts=400):
        a, b = Frame([read_run(*arm, trained=[solved] * prompts, time_step=time) for *arm, solved, time in runs]).arms
        return compare_arms(b, a)

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
        ((math.nan, math.nan), UNDECIDED, UNDECIDED),
        (None, UNDECIDED, UNDECIDED),
    ],
)
def test_the_rule(found, interval, score, cost):
    """Not met as soon as one of the two is not; met where both are."""
    estimate = interval and Estimate(sum(interval) / 2, *interval)
    both = NOT_MET if NOT_MET in (score, cost) else MET if (score, cost) == (MET, MET) else UNDECIDED
    row = replace(found(("A", 0, 8, 2.0), ("B", 0, 7, 1.0)), share=estimate, step_time=estimate)
    assert row.rule(0.8) == (score, cost, both)


def test_one_pair_decides_nothing(found):
    row = found(("A", 0, 8, 2.0), ("B", 0, 7, 1.0))
    assert row.share == (0.875, 0.0, math.inf) and row.step_time == (0.5, 0.0, math.inf)
    assert row.rule(0.8) == row.rule(0.9) == (UNDECIDED, UNDECIDED, UNDECIDED)
    (line,) = success_statements([row])
    assert "B has 88 % of A's held-out pass@1 (too few runs for an interval), and its mean step takes 0.50" in line
    assert "at least 80 % at a lower step cost **undecided** (score undecided, cost undecided)" in line


def test_too_few_prompts_have_no_interval(found):
    runs = [(variant, seed, 8, 2.0) for variant in "AB" for seed in range(3)]
    row = found(*runs, prompts=8)
    assert row.rule(0.8)[0] == UNDECIDED and "100 % (n/a) of A's" in success_statements([row])[0]


def test_seeds_are_paired_and_met_when_all_agree(found):
    a = [("A", seed, 8, 2.0 + seed) for seed in range(3)]
    row = found(*a, *(("B", seed, 7, 1.0 + seed / 2 + 0.01 * seed) for seed in range(3)))
    # Ratio of means, (1 + 1.51 + 2.02) / (2 + 3 + 4); the ratios are 0.5, 0.5033 and 0.505.
    assert row.step_time.value == pytest.approx(4.53 / 9)
    assert row.step_time.low < 0.5 < 0.505 < row.step_time.high < 0.52
    assert row.rule(0.8) == (MET, MET, MET) and row.rule(0.9)[2] == NOT_MET


def test_step_times_by_hand(found):
    # Log ratios ±ln 2: mean 0, standard error ln 2, t(0.975, 1) = 12.706.
    row = found(("A", 0, 8, 2.0), ("A", 1, 8, 2.0), ("B", 0, 8, 1.0), ("B", 1, 8, 4.0))
    assert math.log(row.step_time.high) == pytest.approx(12.706 * math.log(2), rel=1e-4)
    assert row.step_time.low * row.step_time.high == pytest.approx(1.0)


def test_a_seed_that_scored_nothing_counts(found):
    # B's third run collapsed: s = 1/sqrt(3), standard error 1/3, t(0.975, 2) = 4.3027: 2/3 +- 1.4342.
    a = [("A", seed, 8, 2.0) for seed in range(3)]
    row = found(*a, *(("B", seed, 8 * (seed < 2), 1.0) for seed in range(3)))
    assert row.share == pytest.approx((2 / 3, 0.0, 2 / 3 + 4.3027 / 3), rel=1e-4)
    assert row.rule(0.8)[0] == UNDECIDED
