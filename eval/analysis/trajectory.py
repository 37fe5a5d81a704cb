"""pass@k over training steps, and whether it rises towards 1 at one constant rate."""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from trl_prorl.errors import InputError
from trl_prorl.eval.analysis.statistics import Estimate, bootstrap_interval, pass_at_k_per_prompt
from trl_prorl.eval.run_folder.run import Run, require_passk


MIN_CHECKPOINTS = 3
ERROR_RATE = 0.05
RESAMPLES = 1000
MIN_RESAMPLES = 39
ITERATIONS, LARGEST_CHANGE = 60, 5.0  # of a fit; in units of a rate by run length


@dataclass(frozen=True)
class SaturationFit:
    """
    The curve 1 - (1 - p0) e^(-alpha t) through pass@k over steps: what is unsolved shrinks by the same share each
    step.

    Attributes:
        p0 (`float`): Value at step 0: as measured, or fitted if it was left free.
        alpha (`float`): Rate per optimizer step.
        steps, residuals, errors (`np.ndarray`): The points fitted, value less fitted, and standard errors, shape (T,).
        reduced_chi2 (`float`): Sum of squared residuals over errors, by degree of freedom; about 1 where the curve
            holds and the points are independent.
    """

    p0: float
    alpha: float
    steps: np.ndarray
    residuals: np.ndarray
    errors: np.ndarray
    reduced_chi2: float

    def curve(self, steps) -> np.ndarray:
        """The fitted value at any steps."""
        return saturation(np.asarray(steps, dtype=float), self.alpha, self.p0)

    @property
    def halving_steps(self) -> float:
        """Steps in which what is unsolved halves; infinite where it does not shrink."""
        return math.log(2) / self.alpha if self.alpha > 0 else math.inf


@dataclass(frozen=True)
class SaturationCheck:
    """
    A fit, and whether the curve holds.

    Prompts are the same at every step, so the points err together. Everything here is from resampling whole prompts:
    all steps of a prompt stay together.

    Attributes:
        k (`int`): Size of the draw.
        points (`pd.DataFrame`): `step`, `value`, `low`, `high`, from base at step 0.
        fit ([`SaturationFit`]): The curve.
        alpha ([`Estimate`]): Its rate per step, with the interval of refits to resampled prompts, base included.
        p_value (`float`): Chance of residuals as large as these (in `reduced_chi2`) if the curve held.
        longest_run (`int`): Most checkpoints in a row whose residuals have the same sign: a trend.
        longest_run_p (`float`): Chance of so long a run if the curve held.
        resamples (`int`): Resamples behind them.
    """

    k: int
    points: pd.DataFrame
    fit: SaturationFit
    alpha: Estimate
    p_value: float
    longest_run: int
    longest_run_p: float
    resamples: int

    @property
    def holds(self) -> bool:
        """Whether neither test speaks against the curve, at 5 % for the two together."""
        return min(self.p_value, self.longest_run_p) > ERROR_RATE / 2


def saturation(steps, alpha, p0):
    """1 - (1 - p0) e^(-alpha t), with `steps` t and `alpha` per step."""
    return 1 - (1 - p0) * np.exp(-alpha * steps)


def per_prompt_by_step(run: Run, k: int) -> tuple[np.ndarray, np.ndarray]:
    """
    pass@k of every prompt at every evaluated step: steps, shape (T,), ascending from 0 (base), and pass@k, shape (T,
    P).

    Raises:
        InputError: If the run or its checkpoints were not evaluated, or `k` exceeds the samples.
    """
    passk = require_passk(run)
    checkpoints, n = passk.get("checkpoints") or [], passk["n"]
    command = f"trl-prorl passk --run {run.path} --checkpoints all"
    if not checkpoints:
        raise InputError(f"'{run.path / 'passk.json'}' holds no checkpoints; run `{command}`")
    if not 1 <= k <= n:
        raise InputError(f"--k {k} must lie between 1 and the {n} samples of '{run.path / 'passk.json'}'")
    if any("correct" not in each for each in checkpoints):
        raise InputError(f"'{run.path / 'passk.json'}' has a checkpoint without its counts; run `{command} --replace`")
    points = sorted([(0, passk["base"]["correct"]), *((each["step"], each["correct"]) for each in checkpoints)])
    if len({step for step, _ in points}) < len(points):
        raise InputError(
            f"'{run.path / 'passk.json'}' has a step twice, or a checkpoint of step 0; run `{command} --replace`"
        )
    if len({len(correct) for _, correct in points}) > 1:
        raise InputError(f"'{run.path / 'passk.json'}': not every checkpoint has the same prompts; run `{command}`")
    steps, counts = zip(*points, strict=True)
    return np.array(steps, dtype=float), np.array([pass_at_k_per_prompt(correct, n, k) for correct in counts])


def trajectory(steps, per_prompt) -> pd.DataFrame:
    """
    pass@k over training, from what [`per_prompt_by_step`] gives: columns `step`, `value`, and `low`, `high`, a 95 %
    bootstrap over prompts.
    """
    rows = [
        (int(step), float(values.mean()), *bootstrap_interval(values))
        for step, values in zip(steps, per_prompt, strict=True)
    ]
    return pd.DataFrame(rows, columns=["step", "value", "low", "high"])


def standard_errors(per_prompt) -> np.ndarray:
    """
    Standard error of the mean over prompts at each step, shape (T,), from shape (T, P). Where all prompts agree the
    spread is 0, which is no certainty: the error is at least that of half a prompt among all.
    """
    prompts = per_prompt.shape[1]
    half = 0.5 / prompts
    return np.maximum(per_prompt.std(axis=1, ddof=1) / math.sqrt(prompts), math.sqrt(half * (1 - half) / prompts))


def _least_squares(time, values, weights, p0, free_start: bool) -> np.ndarray:
    """
    Fits of the curve to R series at once (Levenberg 1944, Marquardt 1963).

    Args:
        time, weights (`np.ndarray`): Shape (T,); the weights are standard errors.
        values, p0 (`np.ndarray`): Shape (R, T), and their values at time 0, shape (R,), fitted too if `free_start`.

    Returns:
        `np.ndarray`: Rate and p0 of each series, shape (R, 2).
    """
    size = 2 if free_start else 1
    unsolved = np.maximum(1 - np.stack([p0, values[:, -1]]), 1e-3)
    found = np.stack([np.log(unsolved[0] / unsolved[1]), p0], axis=1)

    def residuals(found):
        return (values - saturation(time, found[:, :1], found[:, 1:])) / weights

    def slopes(found):
        unsolved = np.exp(-found[:, :1] * time)
        return np.stack([(1 - found[:, 1:]) * time * unsolved, unsolved][:size], axis=2) / weights[:, None]

    damping, error = np.full(len(values), 1e-3), residuals(found)
    for _ in range(ITERATIONS):
        slope = slopes(found)
        hessian = slope.transpose(0, 2, 1) @ slope
        damped = hessian * (1 + damping[:, None, None] * np.eye(size)) + 1e-300 * np.eye(size)
        change = np.linalg.solve(damped, slope.transpose(0, 2, 1) @ error[:, :, None])[:, :, 0]
        tried = found.copy()
        tried[:, :size] += np.clip(change, -LARGEST_CHANGE, LARGEST_CHANGE)
        new = residuals(tried)
        better = np.square(new).sum(axis=1) <= np.square(error).sum(axis=1)
        found[better], error[better] = tried[better], new[better]
        damping = np.clip(np.where(better, damping / 10, damping * 10), 1e-12, 1e12)
        if (np.abs(change[better]) <= 1e-10).all() and better.all():
            break
    return found


def fit_saturation(steps, values, errors, *, free_start: bool = False) -> SaturationFit:
    """
    Least-squares fit of 1 - (1 - p0) e^(-alpha t) to pass@k at optimizer steps, shape (T,), ascending, weighed by the
    standard errors; p0 is the value at step 0, unless `free_start` fits it too, whose step 0 is then among the points.

    Raises:
        ValueError: If there are too few points, none at step 0, or nothing unsolved at the start.
    """
    steps, values, errors = (np.asarray(numbers, dtype=float) for numbers in (steps, values, errors))
    if not steps.shape == values.shape == errors.shape:
        raise ValueError(f"steps, values and errors differ in shape: {steps.shape}, {values.shape}, {errors.shape}.")
    if not free_start and (not len(steps) or steps[0] != 0):
        raise ValueError("There is no value at step 0 to start from; evaluate base, or fit the start too.")
    parameters = 2 if free_start else 1
    used = slice(0 if free_start else 1, None)
    if len(steps[used]) <= parameters:
        raise ValueError(f"{len(steps[used])} point(s) do not determine {parameters} parameter(s) and an error.")
    p0 = float(values[0])
    if p0 >= 1:
        raise ValueError("Everything is solved at the start: there is nothing left to shrink.")
    # In units of the whole run, so that alpha is of order 1.
    length = float(steps[-1])
    ((alpha, p0),) = _least_squares(
        steps[used] / length, values[None, used], errors[used], np.array([p0]), free_start
    ).tolist()
    alpha /= length
    residuals = values[used] - saturation(steps[used], alpha, p0)
    chi2 = float(np.sum((residuals / errors[used]) ** 2))
    return SaturationFit(p0, alpha, steps[used], residuals, errors[used], chi2 / (len(steps[used]) - parameters))


def longest_run(residuals) -> int:
    """Length of the longest stretch of residuals with one sign."""
    signs = np.sign(residuals)
    starts = np.flatnonzero(np.diff(signs, prepend=np.nan))
    return int(np.diff(np.append(starts, len(signs))).max())


def check_saturation(
    steps, per_prompt, k: int = 1, *, free_start: bool = False, resamples: int = RESAMPLES, seed: int = 0
) -> SaturationCheck:
    """
    Fit the curve to pass@k, shape (T, P), at steps from 0, and test whether it holds, with whole prompts as the unit
    of resampling.

    The work of chance on a curve that holds is found by adding to the fitted curve the errors of resampled prompts
    (their means less the measured ones) and fitting again; a shift that all steps share goes into p0 there as it does
    here. Only the noise of measuring is tested: a run that wanders about the curve departs from it.

    Raises:
        ValueError: As [`fit_saturation`], or if so few prompts are unsolved at the start that resamples have none.
    """
    steps, per_prompt = np.asarray(steps, dtype=float), np.asarray(per_prompt, dtype=float)
    values, errors = per_prompt.mean(axis=1), standard_errors(per_prompt)
    fit = fit_saturation(steps, values, errors, free_start=free_start)
    on_curve = fit.curve(steps)
    if not free_start:
        on_curve[0] = values[0]
    rng, prompts = np.random.default_rng(seed), per_prompt.shape[1]
    drawn = (rng.integers(prompts, size=prompts) for _ in range(resamples))
    resampled = np.array([per_prompt[:, chosen].mean(axis=1) for chosen in drawn])
    if not free_start and (resampled[:, 0] >= 1).any():
        raise ValueError("Too few prompts are unsolved at the start to tell anything; lower k or draw more prompts.")
    used, length = slice(0 if free_start else 1, None), float(steps[-1])

    def fits(series):
        best = _least_squares(steps[used] / length, series[:, used], errors[used], series[:, 0], free_start)
        return best, series[:, used] - saturation(steps[used] / length, best[:, :1], best[:, 1:])

    alphas = fits(resampled)[0][:, 0] / length
    _, residuals = fits(on_curve + resampled - values)
    degrees = residuals.shape[1] - (2 if free_start else 1)
    chi2s, runs = (
        np.square(residuals / errors[used]).sum(axis=1) / degrees,
        np.array(list(map(longest_run, residuals))),
    )
    observed = longest_run(fit.residuals)
    low, high = np.percentile(alphas, [100 * ERROR_RATE / 2, 100 * (1 - ERROR_RATE / 2)])
    return SaturationCheck(
        k=k,
        points=trajectory(steps, per_prompt),
        fit=fit,
        alpha=Estimate(fit.alpha, float(low), float(high)),
        p_value=_share_at_least(chi2s, fit.reduced_chi2),
        longest_run=observed,
        longest_run_p=_share_at_least(runs, observed),
        resamples=resamples,
    )


def _share_at_least(by_chance, observed) -> float:
    """p-value of a resampling test; the observation itself counts as one draw, so it is never 0."""
    return float((1 + np.sum(by_chance >= observed - 1e-12)) / (1 + len(by_chance)))


def check_run(run: Run, k: int, *, free_start: bool = False, resamples: int = RESAMPLES) -> SaturationCheck:
    """
    [`check_saturation`] of a run.

    Raises:
        InputError: As [`per_prompt_by_step`], if there are fewer than 3 checkpoints, or the curve cannot be fitted.
    """
    steps, per_prompt = per_prompt_by_step(run, k)
    if len(steps) - 1 < MIN_CHECKPOINTS:
        raise InputError(
            f"'{run.path / 'passk.json'}' holds {len(steps) - 1} checkpoint(s), a fit needs at least "
            f"{MIN_CHECKPOINTS}; run `trl-prorl passk --run {run.path} --checkpoints all` (save_steps decides "
            "how many there are)"
        )
    try:
        return check_saturation(steps, per_prompt, k, free_start=free_start, resamples=resamples)
    except ValueError as error:
        raise InputError(f"run '{run.path}', --k {k}: {error}") from error


def default_sizes(run: Run) -> list[int]:
    """The smallest and the largest k that the run was evaluated at."""
    evaluated = require_passk(run)["k"]
    return sorted({min(evaluated), max(evaluated)})
