import math

import numpy as np
import pytest

from trl_prorl.errors import InputError
from trl_prorl.eval import trajectory as command
from trl_prorl.eval.analysis.trajectory import (
    check_run,
    check_saturation,
    default_sizes,
    fit_saturation,
    per_prompt_by_step,
    standard_errors,
    trajectory,
)


STEPS = np.array([0.0, 50, 100, 150, 200, 300, 400, 500])


def rates(curve, prompts, steps=STEPS, seed=0, n=16):
    """n samples of prompts whose difficulty stays with them: what each leaves unsolved is its share of the curve's."""
    rng = np.random.default_rng(seed)
    difficulty = rng.beta(2, 2, size=prompts) * 2  # mean 1
    p = np.clip(1 - np.outer([1 - curve(step) for step in steps], difficulty), 0, 1)
    return rng.binomial(n, p) / n


def constant_rate(step):
    return 1 - 0.5 * math.exp(-step / 250)


@pytest.fixture
def evaluated(read_run):
    """A run with checkpoints, each given as correct counts of n = 8."""

    def make(base=(0, 4), checkpoints=((10, (4, 4)), (20, (8, 8))), variant="A", name="run"):
        trained = list(checkpoints[-1][1] if checkpoints else base)
        points = {"checkpoints": [{"step": step, "correct": list(correct)} for step, correct in checkpoints]}
        events = [{"event": "reset", "step_applied": 15}]
        return read_run(variant, 0, name, 20, list(base), trained, points, events=events)

    return make


def points_of(run, k):
    return trajectory(*per_prompt_by_step(run, k))


def test_points_over_steps(evaluated):
    points = points_of(evaluated((0, 4) * 10, ((20, (8, 8) * 10), (10, (4, 4) * 10))), k=1)
    assert points["step"].tolist() == [0, 10, 20]
    assert points["value"].tolist() == pytest.approx([0.25, 0.5, 1.0])
    # 20 prompts that agree do not exclude 1 - 0.05^(1/20) = 13.9 % of others, from 0 to 1.
    agreeing = [0.5 - 0.0696, 0.5 + 0.0696, 1 - 0.1391, 1]
    assert points[["low", "high"]].iloc[1:].to_numpy().ravel() == pytest.approx(agreeing, abs=1e-4)
    # 20 coins of 0 and 1/2: a standard error of 0.056.
    assert tuple(points.iloc[0, 2:]) == pytest.approx((0.25 - 1.96 * 0.056, 0.25 + 1.96 * 0.056), abs=0.03)
    # 4 of 8 correct: pass@2 = 1 - C(4,2)/C(8,2) = 1 - 6/28
    assert points_of(evaluated(name="again"), k=2)["value"].tolist() == pytest.approx([11 / 28, 22 / 28, 1.0])


@pytest.mark.parametrize(
    ("needs", "checkpoints", "k"),
    [
        ("--checkpoints all", (), 1),
        ("--k 9", ((10, (4, 4)),), 9),
        ("same prompts", ((10, (1, 2, 3)), (20, (4, 4))), 1),
        ("save_steps", ((10, (4, 4)), (20, (8, 8))), 1),
    ],
)
def test_points_need_checkpoints_and_samples(evaluated, needs, checkpoints, k):
    with pytest.raises(InputError, match=needs):
        check_run(evaluated(checkpoints=checkpoints), k=k)


def test_fit_finds_the_curve_it_is_given():
    fit = fit_saturation(STEPS, 1 - 0.75 * np.exp(-STEPS / 250), np.full(8, 0.02))
    assert (fit.p0, fit.alpha, fit.halving_steps) == pytest.approx((0.25, 1 / 250, 250 * math.log(2)), rel=1e-6)
    np.testing.assert_allclose(fit.residuals, 0, atol=1e-8)
    assert fit.steps.tolist() == STEPS[1:].tolist()
    falling = fit_saturation([0, 10, 20, 30], [0.5, 0.4, 0.28, 0.136], [0.1] * 4)
    assert (falling.alpha, falling.halving_steps) == pytest.approx((-math.log(1.2) / 10, math.inf), rel=1e-6)


def test_residuals_and_chi2_by_hand():
    # Residuals r with sum of r t = 0 leave alpha at 0: 0.1 + 2 * 0.1 - 3 * 0.1. chi2 is 3 (0.1 / 0.05)^2 over 3 - 1.
    fit = fit_saturation([0, 1, 2, 3], [0.5, 0.6, 0.6, 0.4], [0.05] * 4)
    assert fit.alpha == pytest.approx(0, abs=1e-6)
    np.testing.assert_allclose(fit.residuals, [0.1, 0.1, -0.1], atol=1e-5)
    assert fit.reduced_chi2 == pytest.approx(6, rel=1e-4)


def test_points_weigh_by_their_errors():
    # Two rates in the data; the point known better decides.
    values = [0.0, 1 - math.exp(-1.0), 1 - math.exp(-4.0)]
    assert fit_saturation([0, 1, 2], values, [1, 1e-4, 1]).alpha == pytest.approx(1, abs=1e-3)
    assert fit_saturation([0, 1, 2], values, [1, 1, 1e-4]).alpha == pytest.approx(2, abs=1e-2)


@pytest.mark.parametrize(
    ("steps", "values", "named"),
    [
        ([0, 1, 2], [1.0, 1.0, 1.0], "cannot rise"),
        ([1, 2, 3], [0.1, 0.2, 0.3], "step 0"),
        ([0, 1], [0.1, 0.2], "at least 2 points"),
        ([0, 1, 2], [0.1, 0.2], "differ in shape"),
    ],
)
def test_what_cannot_be_fitted_is_refused(steps, values, named):
    with pytest.raises(ValueError, match=named):
        fit_saturation(steps, values, [0.1] * len(values))


def test_prompts_stay_together_over_steps():
    # Each prompt follows the curve from its own start, so any choice of prompts does: no residual, no doubt about
    # alpha.
    starts = np.random.default_rng(0).uniform(0, 0.9, size=40)
    per_prompt = 1 - np.outer(np.exp(-STEPS / 250), 1 - starts)
    check = check_saturation(STEPS, per_prompt, resamples=50)
    assert check.alpha == pytest.approx((1 / 250,) * 3, rel=1e-5)
    assert check.p_value == 1
    assert check.points["high"][0] - check.points["low"][0] > 0.1


def test_a_curve_that_holds_is_seldom_denied():
    checks = [check_saturation(STEPS, rates(constant_rate, 100, seed=1000 + i), resamples=60) for i in range(40)]
    assert sum(check.p_value <= 0.05 for check in checks) <= 5  # 2 expected
    assert np.mean([check.p_value for check in checks]) == pytest.approx(0.5, abs=0.15)
    assert sum(check.alpha.low <= 1 / 250 <= check.alpha.high for check in checks) >= 34  # 38 expected


def test_a_plateau_below_one_is_seen():
    steps = np.linspace(0, 500, 21)
    per_prompt = rates(lambda step: 0.7 - 0.2 * math.exp(-step / 60), 300, steps)
    check = check_saturation(steps, per_prompt, resamples=100)
    assert check.p_value == pytest.approx(1 / 101)  # no resample departs as far
    assert not check.holds


def test_where_all_prompts_agree_the_error_is_half_a_prompt():
    half = 0.5 / 50
    expected = math.sqrt(half * (1 - half) / 50)
    assert standard_errors(np.ones((2, 50))) == pytest.approx([expected, expected])
    # 0 and 1 in equal parts: sqrt(1/4 * 4/3) / sqrt(4)
    assert standard_errors(np.array([[0, 1, 0, 1]])) == pytest.approx([math.sqrt(1 / 3) / 2])


def test_command(evaluated, capsys):
    few = ["--resamples", "50"]
    steps = (0, 5, 10, 15, 20)
    base, *trained = np.rint(8 * rates(lambda step: 1 - 0.6 * math.exp(-step / 12), 30, steps, n=8)).astype(int)
    checkpoints = list(zip(steps[1:], (counts.tolist() for counts in trained), strict=True))
    runs = [evaluated(base.tolist(), checkpoints, name=name, variant=name) for name in ("A", "B")]
    assert command.main(["--run", *(str(run.path) for run in runs), "--k", "1", *few]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "`A`, pass@1: no significant deviation" in printed
    assert "B optimises a different objective from A" in printed
    assert all((run.path / "trajectory.png").is_file() for run in runs)
    assert default_sizes(runs[0]) == [1, 8]
    # With all 8 samples drawn nearly every prompt starts out solved, which does not take the other k with it.
    for options in (["--k", "9"], ["--resamples", "38"], ["--k", "8", *few]):
        assert command.main(["--run", str(runs[0].path), *options]) == 2
        assert " ".join(options[:2]) in capsys.readouterr().err
    assert command.main(["--run", str(runs[0].path), "--k", "1", "8", *few]) == 0
