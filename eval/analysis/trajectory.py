"""pass@k over training steps, and whether it rises towards 1 at a constant rate."""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.optimize import leastsq

from trl_prorl.errors import InputError
from trl_prorl.eval.analysis.statistics import Estimate, bootstrap_interval, pass_at_k_per_prompt
from trl_prorl.eval.run_folder.run import RecordedRun, require_passk
from trl_prorl.record.provenance import passk_command


MIN_CHECKPOINTS = 3
ERROR_RATE = 0.05
TOLERANCE = 1e-12  # of the fit, relative
RESAMPLES = 1000
MIN_RESAMPLES = 39


@dataclass(frozen=True)
class SaturationFit:
    """
    The curve 1 - (1 - p0) e^(-alpha t) through pass@k over steps: 1 - pass@k shrinks by the same factor each step.

    Attributes:
        p0 (`float`): Value at step 0.
        alpha (`float`): Rate per optimizer step.
        steps, residuals, errors (`np.ndarray`): The fitted points, measured − fitted, and standard errors, shape (T,).
        reduced_chi2 (`float`): Sum of squared residuals over errors, per degree of freedom; about 1 if the curve fits
            and the points are independent.
    """

    p0: float
    alpha: float
    steps: np.ndarray
    residuals: np.ndarray
    errors: np.ndarray
    reduced_chi2: float

    def curve(self, steps) -> np.ndarray:
        """Return the fitted value at any steps."""
        return saturation(np.asarray(steps, dtype=float), self.alpha, self.p0)

    @property
    def halving_steps(self) -> float:
        """Steps in which 1 - pass@k halves; infinite if it does not shrink."""
        return math.log(2) / self.alpha if self.alpha > 0 else math.inf


@dataclass(frozen=True)
class SaturationCheck:
    """
    A fit, and whether the curve fits.

    All steps share the same prompts, so their errors are correlated. Therefore complete prompts are resampled, each
    with all its steps.

    Attributes:
        k (`int`): The k of pass@k.
        points (`pd.DataFrame`): `step`, `value`, `low`, `high`, from base at step 0.
        fit ([`SaturationFit`]): The curve.
        alpha ([`Estimate`]): Its rate per step, with the interval of refits to resampled prompts, including base.
        p_value (`float`): Probability of residuals at least this large (in `reduced_chi2`) under the curve.
    """

    k: int
    points: pd.DataFrame
    fit: SaturationFit
    alpha: Estimate
    p_value: float

    @property
    def holds(self) -> bool:
        """Whether the deviation from the curve is not significant, at 5 %."""
        return self.p_value > ERROR_RATE


def saturation(steps, alpha, p0):
    """1 - (1 - p0) e^(-alpha t), with `steps` t and `alpha` per step."""
    return 1 - (1 - p0) * np.exp(-alpha * steps)


def per_prompt_by_step(run: RecordedRun, k: int) -> tuple[np.ndarray, np.ndarray]:
    """
    Return pass@k of every prompt at every evaluated step: steps, shape (T,), ascending from 0 (base), and pass@k,
    shape (T, P).

    Raises:
        InputError: If the run or its checkpoints were not evaluated, or `k` exceeds the samples.
    """
    passk = require_passk(run)
    checkpoints = passk.get("checkpoints") or []
    n = passk["n"]
    path = run.path / "passk.json"
    command = f"{passk_command(run.config, run.env, run.path)} --checkpoints all"
    if not checkpoints:
        raise InputError(f"'{path}' contains no checkpoints; run `{command}`")
    if not 1 <= k <= n:
        raise InputError(f"--k {k} must be between 1 and the {n} samples of '{path}'")
    if any("correct" not in each for each in checkpoints):
        raise InputError(f"'{path}' has a checkpoint without counts; run `{command} --replace`")
    points = [(0, passk["base"]["correct"])]
    points += [(each["step"], each["correct"]) for each in checkpoints]
    points.sort()
    if len({step for step, _ in points}) < len(points):
        raise InputError(f"'{path}' has a step twice, or a checkpoint of step 0; run `{command} --replace`")
    if len({len(correct) for _, correct in points}) > 1:
        raise InputError(f"'{path}': not every checkpoint has the same prompts; run `{command}`")
    steps, counts = zip(*points, strict=True)
    per_prompt = np.array([pass_at_k_per_prompt(correct, n, k) for correct in counts])
    return np.array(steps, dtype=float), per_prompt


def trajectory(steps, per_prompt) -> pd.DataFrame:
    """
    Return pass@k over training, from the result of [`per_prompt_by_step`]: columns `step`, `value`, and `low`, `high`,
    a 95 % bootstrap over prompts.
    """
    rows = [
        (int(step), float(values.mean()), *bootstrap_interval(values))
        for step, values in zip(steps, per_prompt, strict=True)
    ]
    return pd.DataFrame(rows, columns=["step", "value", "low", "high"])


def standard_errors(per_prompt) -> np.ndarray:
    """
    Return the standard error of the mean over prompts at each step, shape (T,), from shape (T, P). It is at least that
    of half a prompt among all, because agreement of all prompts is not certainty.
    """
    prompts = per_prompt.shape[1]
    half = 0.5 / prompts
    least = math.sqrt(half * (1 - half) / prompts)
    return np.maximum(per_prompt.std(axis=1, ddof=1) / math.sqrt(prompts), least)


def fit_saturation(steps, values, errors) -> SaturationFit:
    """
    Fit 1 - (1 - p0) e^(-alpha t) to pass@k at optimizer steps, shape (T,), ascending, by least squares weighted with
    the standard errors; p0 is the value at step 0.

    Raises:
        ValueError: If there are too few points, none at step 0, or pass@k is 1 at the start.
    """
    steps = np.asarray(steps, dtype=float)
    values = np.asarray(values, dtype=float)
    errors = np.asarray(errors, dtype=float)
    if not steps.shape == values.shape == errors.shape:
        raise ValueError(f"steps, values and errors differ in shape: {steps.shape}, {values.shape}, {errors.shape}.")
    if not len(steps) or steps[0] != 0:
        raise ValueError("There is no value at step 0; evaluate the starting model.")
    if len(steps) < 3:
        raise ValueError(f"A fit needs at least 2 points after step 0, got {len(steps) - 1}.")
    p0 = float(values[0])
    if p0 >= 1:
        raise ValueError("pass@k is 1 at the start, so it cannot rise.")
    length = steps[-1]
    steps = steps[1:]
    values = values[1:]
    errors = errors[1:]
    guess = math.log(max(1 - p0, 1e-3) / max(1 - values[-1], 1e-3))
    # Steps in units of the complete run, for a rate of order 1.

    def weighted_residuals(rate):
        return (values - saturation(steps / length, rate, p0)) / errors

    def derivative(rate):
        return -(1 - p0) * steps / length * np.exp(-rate * steps / length) / errors

    # With a numerical derivative, the fitted rate would differ between processors.
    (rate,), _ = leastsq(weighted_residuals, guess, Dfun=derivative, ftol=TOLERANCE, xtol=TOLERANCE)
    alpha = float(rate / length)
    residuals = values - saturation(steps, alpha, p0)
    chi2 = float(np.sum((residuals / errors) ** 2))
    return SaturationFit(p0, alpha, steps, residuals, errors, chi2 / (len(steps) - 1))


def check_saturation(steps, per_prompt, k: int = 1, *, resamples: int = RESAMPLES) -> SaturationCheck:
    """
    Fit the curve to pass@k, shape (T, P), at steps from 0, and test the fit by resampling complete prompts.

    The null distribution comes from fits to the fitted curve plus the errors of resampled prompts (their means − the
    measured ones); a shift of all steps goes into p0 in both cases. The null hypothesis contains measurement noise
    only: a run that wanders around the curve deviates from it.

    Raises:
        ValueError: As [`fit_saturation`], or if some resample has no unsolved prompt at the start.
    """
    steps = np.asarray(steps, dtype=float)
    per_prompt = np.asarray(per_prompt, dtype=float)
    values = per_prompt.mean(axis=1)
    errors = standard_errors(per_prompt)
    fit = fit_saturation(steps, values, errors)
    on_curve = fit.curve(steps)
    rng = np.random.default_rng(0)
    prompts = per_prompt.shape[1]
    draws = (rng.integers(prompts, size=prompts) for _ in range(resamples))
    resampled = np.array([per_prompt[:, places].mean(axis=1) for places in draws])
    if (resampled[:, 0] >= 1).any():
        raise ValueError("Too few prompts are unsolved at the start for a test; lower k or use more prompts.")
    alphas = [fit_saturation(steps, series, errors).alpha for series in resampled]
    by_chance = [fit_saturation(steps, series, errors).reduced_chi2 for series in on_curve + resampled - values]
    low, high = np.percentile(alphas, [100 * ERROR_RATE / 2, 100 * (1 - ERROR_RATE / 2)])
    as_large = np.sum(np.array(by_chance) >= fit.reduced_chi2 - 1e-12)
    return SaturationCheck(
        k=k,
        points=trajectory(steps, per_prompt),
        fit=fit,
        alpha=Estimate(fit.alpha, float(low), float(high)),
        p_value=float((1 + as_large) / (1 + resamples)),  # the observation is one draw, so it is never 0
    )


def check_run(run: RecordedRun, k: int, *, resamples: int = RESAMPLES) -> SaturationCheck:
    """
    [`check_saturation`] of a run.

    Raises:
        InputError: As [`per_prompt_by_step`], if there are fewer than 3 checkpoints, or the curve cannot be fitted.
    """
    steps, per_prompt = per_prompt_by_step(run, k)
    if len(steps) - 1 < MIN_CHECKPOINTS:
        saved = {int(path.name.split("-")[1]) for path in run.path.glob("checkpoint-[0-9]*")} | set(steps[1:])
        if len(saved) < MIN_CHECKPOINTS:
            raise InputError(
                f"'{run.path}' saved only {len(saved)} checkpoint(s), a fit needs {MIN_CHECKPOINTS}; train with a "
                "smaller save_steps"
            )
        raise InputError(
            f"'{run.path / 'passk.json'}' contains {len(steps) - 1} checkpoint(s), a fit needs {MIN_CHECKPOINTS}; run "
            f"`{passk_command(run.config, run.env, run.path)} --checkpoints all`"
        )
    try:
        return check_saturation(steps, per_prompt, k, resamples=resamples)
    except ValueError as error:
        raise InputError(f"run '{run.path}', --k {k}: {error}") from error


def default_sizes(run: RecordedRun) -> list[int]:
    """Return the smallest and the largest k that the run was evaluated at."""
    evaluated = require_passk(run)["k"]
    return sorted({min(evaluated), max(evaluated)})
