"""pass@k over training steps: does it rise towards 1 at a constant rate?"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import leastsq

from trl_prorl.eval.analysis.sampled_scores import ends, per_prompt
from trl_prorl.eval.analysis.statistics import ERROR_RATE, MIN_PROMPTS, Estimate, pass_at_k_per_prompt


MIN_CHECKPOINTS = 3
TOLERANCE = 1e-12  # of the fit, relative
RESAMPLES = 500


@dataclass(frozen=True)
class ConstantRate:
    """
    The curve 1 - (1 - p0) e^(-alpha t) fitted to pass@k over steps: 1 - pass@k shrinks by the same factor each step.

    Attributes:
        k (`int`): The k of pass@k.
        p0 (`float`): pass@k of the starting model.
        last (`float`): pass@k at the last step.
        alpha ([`Estimate`]): Rate per optimizer step, with the interval of refits to resampled prompts.
        p_value (`float`): Probability of residuals at least this large if the curve is right.
    """

    k: int
    p0: float
    last: float
    alpha: Estimate
    p_value: float

    @property
    def holds(self) -> bool:
        """Whether the deviation from the curve is not significant, at 5 %."""
        return self.p_value > ERROR_RATE

    def curve(self, steps: np.ndarray) -> np.ndarray:
        """Return the fitted value at any steps."""
        return saturation(steps, self.alpha.value, self.p0)


def saturation(steps, alpha, p0):
    """1 - (1 - p0) e^(-alpha t), with `steps` t and `alpha` per step."""
    return 1 - (1 - p0) * np.exp(-alpha * steps)


def standard_errors(scores: np.ndarray) -> np.ndarray:
    """
    Return the standard error of the mean over prompts at each step, shape (T,), from shape (T, P). It is at least that
    of half a prompt among all, because agreement of all prompts is not certainty.
    """
    prompts = scores.shape[1]
    half = 0.5 / prompts
    least = math.sqrt(half * (1 - half) / prompts)
    return np.maximum(scores.std(axis=1, ddof=1) / math.sqrt(prompts), least)


def fit_rate(steps: np.ndarray, values: np.ndarray, errors: np.ndarray) -> tuple[float, float]:
    """
    Fit the curve to pass@k, below 1 at step 0, by least squares weighted with the standard errors; all of shape (T,).
    Return alpha and the sum of the squared weighted residuals.
    """
    p0 = values[0]
    length = steps[-1]
    times = steps[1:] / length  # for a rate of order 1
    guess = math.log(max(1 - p0, 1e-3) / max(1 - values[-1], 1e-3))

    def weighted_residuals(rate):
        return (values[1:] - saturation(times, rate, p0)) / errors[1:]

    def derivative(rate):
        return -(1 - p0) * times * np.exp(-rate * times) / errors[1:]

    # With a numerical derivative, the fitted rate would differ between processors.
    (rate,), _ = leastsq(weighted_residuals, guess, Dfun=derivative, ftol=TOLERANCE, xtol=TOLERANCE)
    return float(rate / length), float(np.sum(weighted_residuals(rate) ** 2))


def check_rate(k: int, steps: np.ndarray, scores: np.ndarray) -> ConstantRate | None:
    """
    Fit the curve to pass@k of P prompts, shape (T, P), at steps from 0, and test the fit. `None` if there are fewer
    than 3 checkpoints or 20 prompts, so few prompts unsolved at the start that a resample has none, or none at any
    checkpoint.

    All steps share the prompts, so their errors are correlated. Therefore complete prompts are resampled, each with
    all its steps. The null distribution comes from fits to the fitted curve plus the errors of resampled prompts
    (their means − the measured ones); a shift of all steps goes into p0 in both cases.
    """
    prompts = scores.shape[1]
    if prompts < MIN_PROMPTS:
        return None
    rng = np.random.default_rng(0)
    draws = [rng.integers(prompts, size=prompts) for _ in range(RESAMPLES)]
    resampled = np.array([scores[:, places].mean(axis=1) for places in draws])
    values = scores.mean(axis=1)
    if len(steps) <= MIN_CHECKPOINTS or (resampled[:, 0] >= 1).any() or values[1:].min() >= 1:
        return None
    errors = standard_errors(scores)
    alpha, deviation = fit_rate(steps, values, errors)
    on_curve = saturation(steps, alpha, values[0])
    alphas = [fit_rate(steps, series, errors)[0] for series in resampled]
    by_chance = np.array([fit_rate(steps, series, errors)[1] for series in on_curve + resampled - values])
    low, high = np.percentile(alphas, [2.5, 97.5])
    as_large = np.sum(by_chance >= deviation - 1e-12)
    return ConstantRate(
        k=k,
        p0=float(values[0]),
        last=float(values[-1]),
        alpha=Estimate(alpha, float(low), float(high)),
        p_value=float((1 + as_large) / (1 + RESAMPLES)),  # the observation is one draw, so it is never 0
    )


def rates(result: dict) -> list[ConstantRate]:
    """Return the fits to the checkpoints of a `passk.json` at its smallest and its largest k, as far as possible."""
    points = sorted(result.get("checkpoints", []), key=lambda point: point["step"])
    steps = np.array([0, *(point["step"] for point in points)], dtype=float)
    fits = []
    for k in ends(result["k"]):
        scores = [per_prompt(result, "base", k)]
        scores += [pass_at_k_per_prompt(point["correct"], result["n"], k) for point in points]
        fits.append(check_rate(k, steps, np.array(scores)))
    return [rate for rate in fits if rate is not None]
