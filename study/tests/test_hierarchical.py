"""The hierarchical bootstrap on data whose answer is known."""

import math

import numpy as np
import pytest
from scipy import stats

from study.hierarchical import Contrast, coverage, mean_over, resample
from trl_prorl.eval.analysis.statistics import fieller_interval


def same_on_every_prompt(by_pair, prompts=32):
    return {pair: np.full(prompts, value) for pair, value in by_pair.items()}


def test_without_variance_there_is_none():
    arm = same_on_every_prompt({(1, 1): 0.5, (2, 2): 0.5, (3, 3): 0.5})
    contrast = resample({"A": arm}).contrast({"A": 1})
    assert contrast.estimate == (0.5, 0.5, 0.5)
    assert contrast.smallest() == 0
    assert resample({"A": arm, "B": arm}).contrast({"A": 1, "B": -1}).p_value == 1
    assert contrast.p_value == 0  # 0.5, told from 0


def test_bases_alone_give_the_t_interval():
    """Five bases, one seed each, prompts all alike: the interval of Student's t over the bases."""
    values = [0.50, 0.55, 0.47, 0.61, 0.52]
    arm = same_on_every_prompt({(base, base): value for base, value in enumerate(values)})
    value, low, high = resample({"A": arm}, resamples=200_000).contrast({"A": 1}).estimate
    expected = stats.t.interval(0.95, 4, np.mean(values), stats.sem(values))
    assert value == pytest.approx(np.mean(values))
    assert (low, high) == pytest.approx(expected, abs=1e-3)


def test_prompts_alone_give_the_bootstrap_over_prompts():
    """Bases all alike: the standard error of the mean over prompts, times √(n/(n-1)) of the bases."""
    right = np.array([1.0] * 20 + [0.0] * 60)
    arm = {(base, 1): right for base in range(5)}
    contrast = resample({"A": arm}, resamples=100_000).contrast({"A": 1})
    assert contrast.error == pytest.approx(math.sqrt(0.25 * 0.75 / 80 * 5 / 4), rel=0.01)


def test_seeds_alone():
    """Two bases alike, each with the seeds 0 and 1 of pass@1: one seed of each resample and base is 0 or 1."""
    arm = same_on_every_prompt({(1, 1): 0.0, (1, 2): 1.0, (2, 1): 0.0, (2, 2): 1.0})
    contrast = resample({"A": arm}, resamples=100_000).contrast({"A": 1})
    # Each base that is drawn has a mean of two draws, of variance 1/8; two bases halve it, n/(n-1) doubles it again.
    assert contrast.value == 0.5
    assert contrast.error == pytest.approx(math.sqrt(1 / 8), rel=0.01)


def test_a_base_counts_once_however_many_seeds_it_has():
    arm = same_on_every_prompt({(1, 1): 0.0, (1, 2): 0.0, (1, 3): 0.0, (2, 1): 1.0})
    assert resample({"A": arm}).contrast({"A": 1}).value == 0.5


def test_it_is_paired_by_base_seed_and_prompt():
    generator = np.random.default_rng(0)
    a = {(base, base): generator.random(64) + base for base in range(5)}
    b = {pair: values + 0.1 for pair, values in a.items()}
    value, low, high = resample({"A": a, "B": b}).contrast({"B": 1, "A": -1}).estimate
    assert (value, low, high) == pytest.approx((0.1, 0.1, 0.1))
    shuffled = {(base, base): b[(4 - base, 4 - base)] for base in range(5)}
    assert resample({"A": a, "B": shuffled}).contrast({"B": 1, "A": -1}).error > 0.5


def test_only_common_pairs_count():
    a = same_on_every_prompt({(1, 1): 0.2, (2, 2): 0.4, (3, 3): 0.9})
    b = same_on_every_prompt({(1, 1): 0.3, (2, 2): 0.5, (4, 4): 0.0})
    resampled = resample({"A": a, "B": b})
    assert (resampled.bases, resampled.pairs) == (2, 2)
    assert resampled.contrast({"B": 1, "A": -1}).value == pytest.approx(0.1)
    with pytest.raises(ValueError, match="A, B have no pair"):
        resample({"A": a, "B": same_on_every_prompt({(9, 9): 0.0})})


def test_one_base_gives_no_interval():
    contrast = resample({"A": same_on_every_prompt({(1, 1): 0.5, (1, 2): 0.7})}).contrast({"A": 1})
    assert contrast.value == pytest.approx(0.6)
    numbers = (contrast.p_value, contrast.smallest(), contrast.equivalence(1))
    assert all(map(math.isnan, (*contrast.estimate[1:], *numbers)))


def test_fieller_and_the_contrast_agree_on_a_share():
    generator = np.random.default_rng(3)
    a = {(base, base): np.clip(generator.normal(0.6, 0.3, 64) + generator.normal(0, 0.03), 0, 1) for base in range(5)}
    b = {pair: np.clip(values + generator.normal(-0.06, 0.03), 0, 1) for pair, values in a.items()}
    resampled = resample({"A": a, "B": b})
    ratio = resampled.ratio({"B": 1}, {"A": 1})
    assert ratio.low < ratio.value < ratio.high
    assert resampled.contrast({"B": 1, "A": -ratio.low}).estimate.low == pytest.approx(0, abs=1e-9)
    assert resampled.contrast({"B": 1, "A": -ratio.high}).estimate.high == pytest.approx(0, abs=1e-9)
    assert all(map(math.isnan, resampled.ratio({"B": 1}, {"A": 0})))


def test_the_smallest_difference():
    """With t(4): 2.776 and 0.941 standard errors; at 0.05 / 6, Holm's strictest level for six tests, 4.851."""
    assert Contrast(0.0, 0.01, 4).smallest() == pytest.approx(0.01 * (2.776445 + 0.940965), rel=1e-5)
    assert Contrast(0.0, 0.01, 4).smallest(6) == pytest.approx(0.01 * (4.850988 + 0.940965), rel=1e-5)


@pytest.mark.parametrize("shift, margin", [(0.004, 0.02), (-0.004, 0.02), (0.03, 0.02), (0.0, 0.005)])
def test_equivalence_is_two_one_sided_tests(shift, margin):
    """SciPy's t-tests of values on five bases against either end of the margin; the larger p counts."""
    values = np.array([0.01, -0.012, 0.003, 0.006, -0.007]) + shift
    ends = ((-margin, "greater"), (margin, "less"))
    expected = max(stats.ttest_1samp(values, end, alternative=side).pvalue for end, side in ends)
    found = resample({"A": same_on_every_prompt({(base, base): value for base, value in enumerate(values)})})
    assert found.over_bases({"A": 1}).equivalence(margin) == pytest.approx(expected)
    assert Contrast(shift, 0.0, 4).equivalence(margin) == float(abs(shift) >= margin)


@pytest.mark.parametrize("spread, registered", [(0.0, 0.99), (0.1, 0.93)])
def test_how_often_the_two_intervals_cover(spread, registered):
    """
    The bootstrap's closed form is the bootstrap; and without noise of the prompts the interval of the bases alone is
    right, however far the bases differ, while the registered one covers nearly always where they agree.
    """
    values = np.random.default_rng(1).normal(0, 0.15, (5, 200))
    values -= values.mean(axis=1, keepdims=True) - spread * np.array([[-1.0], [0.5], [0.2], [1.2], [-0.9]])
    by_protocol, alone = coverage(values)
    assert 0.935 <= alone <= 0.965
    assert registered <= by_protocol <= 1
    assert spread or by_protocol > alone + 0.02


SLOW = [(3, 0.0), (3, 0.02), (5, 0.02), (5, 0.1)]
OFTEN = [(3, 0.1), (5, 0.0), *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)]


@pytest.mark.parametrize("bases, spread", OFTEN)
def test_an_interval_covers_the_truth_as_often_as_it_says(bases, spread):
    """Bases, prompts and answers drawn anew in each of 400 studies: a difference of 0.05 in truth."""
    generator = np.random.default_rng(bases)
    covered = 0
    for study in range(400):
        prompts = generator.normal(0, 0.2, 48)  # what a prompt adds to the difference, on every base
        of_base = generator.normal(0.05, spread, bases)
        noise = generator.normal(0, 0.1, (bases, 48))
        b = {(base, base): of_base[base] + prompts + noise[base] for base in range(bases)}
        a = {pair: np.zeros(48) for pair in b}
        estimate = resample({"A": a, "B": b}, resamples=300, seed=study).contrast({"B": 1, "A": -1}).estimate
        covered += estimate.low <= 0.05 <= estimate.high
    assert covered >= 0.93 * 400


def test_the_ordinary_paired_t_interval_stands_beside_it():
    """Over five bases, by SciPy's paired t-test; the prompts, however they differ, are taken as they are."""
    generator = np.random.default_rng(5)
    a = {(base, base): generator.random(40) for base in range(5)}
    b = {pair: values + generator.normal(0.05, 0.1, 40) for pair, values in a.items()}
    found = resample({"A": a, "B": b}).over_bases({"B": 1, "A": -1})
    test = stats.ttest_rel([b[pair].mean() for pair in b], [a[pair].mean() for pair in a])
    assert found.p_value == pytest.approx(test.pvalue)
    assert found.estimate[1:] == pytest.approx(tuple(test.confidence_interval(0.95)))
    # Two seeds of a base are one value: 0.5, and 1 of the other base.
    two = same_on_every_prompt({(1, 1): 0.25, (1, 2): 0.75, (2, 1): 1.0})
    assert resample({"A": two}).over_bases({"A": 1}) == Contrast(0.75, 0.25, 1)
    assert math.isnan(resample({"A": same_on_every_prompt({(1, 1): 0.5})}).over_bases({"A": 1}).error)


def test_noise_of_a_base_on_a_prompt_counts_three_times():
    """
    The registered error errs to the wide side. Noise of every cell alone, of variance 1: the mean over n bases and P
    prompts has a variance of 1/(nP); in a resample each of the three terms 1/n, 1/P and 1/(nP) brings it anew.
    """
    generator = np.random.default_rng(0)
    bases = 5
    prompts = 200
    squares = []
    for study in range(300):
        arm = {(base, base): generator.normal(0, 1, prompts) for base in range(bases)}
        resampled = resample({"A": arm}, resamples=300, seed=study)
        squares.append([one({"A": 1}).error ** 2 for one in (resampled.contrast, resampled.over_bases)])
    registered, alone = np.mean(squares, axis=0) * bases * prompts
    kept = ((1 - 1 / bases) + (1 - 1 / prompts) + 1) * (1 - 1 / (bases * prompts)) * bases / (bases - 1)
    assert alone == pytest.approx(1, rel=0.1)
    assert registered == pytest.approx(kept, rel=0.1)
    assert kept > 3


def families(together, pairs=5, prompts=400):
    """Two families of one arm whose bases of one number differ by the same, by the contrary, or independently."""
    generator = np.random.default_rng(2)
    of_pair = generator.normal(0, 0.1, pairs)
    other = {1: of_pair, -1: -of_pair, 0: np.array([0.1, -0.1, 0.0, 0.05, -0.05])}[together]
    if together == 0:  # of the same spread, without correlation
        of_pair = np.array([0.05, 0.05, -0.2, 0.05, 0.05])
    values = (of_pair, other)
    return [same_on_every_prompt({(pair, pair): one[pair] for pair in range(pairs)}, prompts) for one in values]


def test_the_mean_over_families_has_pairs_for_units():
    # Families that go together have no more to say than one; those that go apart cancel.
    for together in (1, -1, 0):
        arms = families(together)
        found = mean_over([resample({"A": arm}, 40_000, family=number) for number, arm in enumerate(arms)])
        by_pair = np.mean([[values.mean() for values in arm.values()] for arm in arms], axis=0)
        contrast = found.contrast({"A": 1})
        alone = found.over_bases({"A": 1})
        assert contrast.value == pytest.approx(by_pair.mean())
        assert contrast.freedom == 4
        assert contrast.error == pytest.approx(stats.sem(by_pair), rel=0.02, abs=1e-9)
        assert alone.error == pytest.approx(stats.sem(by_pair), abs=1e-9)
    with pytest.raises(ValueError, match="different numbers"):
        mean_over([resample({"A": arms[0]}), resample({"A": {(0, 0): arms[0][0, 0]}})])


def test_a_negative_share_has_an_interval_around_it():
    # Independent means -1 ± 0.1 and 2 ± 0.1 at t = 2: the roots of (4 - 0.04) r² + 4 r + (1 - 0.04) = 0.
    low, high = fieller_interval(-1.0, 2.0, 0.01, 0.01, 0.0, 4.0)
    root = (16 - 4 * 3.96 * 0.96) ** 0.5
    assert (low, high) == pytest.approx(((-4 - root) / 7.92, (-4 + root) / 7.92))
    assert low < -0.5 < high
    assert fieller_interval(-1.0, 0.1, 0.01, 0.01, 0.0, 4.0) == (float("-inf"), float("inf"))
    assert fieller_interval(0.05, 2.0, 0.01, 0.01, 0.0, 4.0)[0] == 0.0  # a share that cannot be negative
