"""How steady a run was: collapse, spikes of gradient, KL and entropy, drops of the reward."""

import pandas as pd

from trl_prorl.eval.analysis.smoothing import SMOOTHING_STEPS, end_by_best
from trl_prorl.eval.analysis.spikes import ENTROPY_SPIKE, KL_SPIKE, Spikes, find_spikes
from trl_prorl.eval.run_folder.run import Run
from trl_prorl.variants import VARIANTS


COLLAPSE_SHARE = 0.5


def smoothed_reward(run: Run) -> pd.Series | None:
    """Training reward as a mean over whole windows of 10 steps; `None` if the run is shorter or has no reward."""
    reward = run.measured("reward")
    if reward is None or len(reward) < SMOOTHING_STEPS:
        return None
    return reward.rolling(SMOOTHING_STEPS).mean().dropna()


def nonfinite_events(run: Run) -> int | None:
    """Updates that met NaN or infinity; `None` if the run kept no record of events."""
    if run.events is None:
        return None
    return int((run.events["event"] == "nonfinite").sum()) if "event" in run.events else 0


def collapsed(run: Run) -> bool | None:
    """
    Whether the mean reward of the last 10 % of the steps, at least 10 of them, is below half of the best smoothed
    reward, or a value was not finite.

    Returns:
        `bool` or `None`: `None` if neither can be told. Half of a best that is not positive is no bar, so there only
        events count.
    """
    if nonfinite_events(run):
        return True
    reward = run.measured("reward")
    share = None if reward is None else end_by_best(reward)
    return None if share is None else share < COLLAPSE_SHARE


def largest_drop(run: Run) -> float | None:
    """The furthest the smoothed reward ever fell below its best so far, in reward; 0 if it only rose."""
    smooth = smoothed_reward(run)
    return None if smooth is None else float((smooth.cummax() - smooth).max())


def gradient_spike(run: Run) -> float | None:
    """Largest gradient norm over the median one; `None` without gradient norms or with a median of 0."""
    norms = run.measured("grad_norm")
    if norms is None or norms.median() == 0:
        return None
    return float(norms.max() / norms.median())


def kl_key(variant: str) -> str:
    """The KL to the arm's own anchor; `kl_ref` of a variant that is not known."""
    return VARIANTS[variant].kl if variant in VARIANTS else "kl_ref"


def kl_spikes(run: Run) -> Spikes | None:
    """Spikes of the KL to the run's own anchor; `None` if it was not measured."""
    values = run.measured(kl_key(run.variant))
    return None if values is None else find_spikes(values.to_numpy(), KL_SPIKE)


def entropy_spikes(run: Run) -> Spikes | None:
    """Spikes of the policy's entropy; `None` if it was not measured."""
    values = run.measured("entropy")
    return None if values is None else find_spikes(values.to_numpy(), ENTROPY_SPIKE)
