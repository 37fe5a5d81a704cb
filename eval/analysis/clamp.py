"""The gain after the clamp: the improvement of an arm once the control, whose reference holds it, has stalled."""

import numpy as np

from trl_prorl.eval.analysis.smoothing import LAST_SHARE


WINDOW = 20  # steps of a mean
LEAST_GAIN = 0.02  # reward: the smallest improvement that counts as one


def _means(steps: np.ndarray, reward: np.ndarray, window: int) -> tuple[np.ndarray, np.ndarray]:
    """Means over whole windows of measured steps, and the step at which each ends."""
    measured = ~np.isnan(np.asarray(reward, float))
    steps, reward = np.asarray(steps)[measured], np.asarray(reward, float)[measured]
    if len(reward) < window:
        return np.array([], int), np.array([])
    return steps[window - 1 :], np.lib.stride_tricks.sliding_window_view(reward, window).mean(axis=1)


def _last(steps: np.ndarray, reward: np.ndarray, window: int) -> np.ndarray:
    """The measured steps of the last 10 % of a run, at least `window`."""
    measured = np.asarray(steps)[~np.isnan(np.asarray(reward, float))]
    return measured[-max(window, round(LAST_SHARE * len(measured))) :]


def stalled_at(steps: np.ndarray, reward: np.ndarray, window: int = WINDOW, least: float = LEAST_GAIN) -> int | None:
    """
    The step at which a run has stalled: the first at which the mean reward of the last `window` steps is so high that
    no later mean over as many steps exceeds it by more than `least`.

    Args:
        steps (`np.ndarray`): Optimizer steps done, shape (T,), increasing.
        reward (`np.ndarray`): Reward of each, shape (T,); NaN where not measured.
        window (`int`): Steps of a mean.
        least (`float`): The smallest improvement that counts, in reward.

    Returns:
        `int` or `None`: `None` if the run went on improving until its last 10 % (at least `window` steps), after which
        nothing could be told.
    """
    ends, means = _means(steps, reward, window)
    if not len(means):
        return None
    best_later = np.maximum.accumulate(means[::-1])[::-1]
    step = int(ends[np.argmax(means >= best_later - least - 1e-12)])
    return step if step < _last(steps, reward, window)[0] else None


def gain_since(steps: np.ndarray, reward: np.ndarray, since: int, window: int = WINDOW) -> float | None:
    """
    What a run gained since a step: its mean reward over its last 10 % of steps (at least `window`) less that over the
    `window` steps up to that step.

    Args:
        steps, reward (`np.ndarray`): As for [`stalled_at`].
        since (`int`): The step.
        window (`int`): Steps of a mean.

    Returns:
        `float` or `None`: `None` if the run has no whole window up to that step, or ends too soon after it.
    """
    ends, means = _means(steps, reward, window)
    if since not in ends:
        return None
    last = _last(steps, reward, window)
    if last[0] <= since:
        return None
    reward = np.asarray(reward, float)
    return float(reward[np.isin(steps, last)].mean() - means[ends == since][0])


def gain_after_clamp(
    steps: np.ndarray,
    reward: np.ndarray,
    control_steps: np.ndarray,
    control_reward: np.ndarray,
    window: int = WINDOW,
    least: float = LEAST_GAIN,
) -> float | None:
    """
    The gain of an arm since its control stalled: [`gain_since`] the step [`stalled_at`] of the control of the same
    base and training seed. By the definition of the stall it is hardly more than `least` for the control itself.

    Returns:
        `float` or `None`: `None` if the control did not stall.
    """
    since = stalled_at(control_steps, control_reward, window, least)
    return None if since is None else gain_since(steps, reward, since, window)
