"""How far a policy has moved from base: per model from sums over prompts, and over a run's steps."""

import numpy as np
import pandas as pd

from trl_prorl.eval.analysis.statistics import ratio_interval
from trl_prorl.eval.run_folder.run import Run


def model_drift(sums: np.ndarray) -> dict[str, float]:
    """
    Means over the tokens of all samples, with a 95 % bootstrap interval of the KL over prompts, from a row per prompt,
    shape (P, 5): sums over its tokens of the four measures of [`~eval.analysis.language.TokenDrift`] in their order,
    and the number of tokens.
    """
    kl, agreement, entropy, base_entropy = sums[:, :4].sum(0) / sums[:, 4].sum()
    return {
        "kl_to_base": kl,
        "interval": list(ratio_interval(sums[:, 0], sums[:, 4])),
        "token_agreement": agreement,
        "entropy": entropy,
        "base_entropy": base_entropy,
        # What base says of the samples: the mean over what could have been sampled, not over what was.
        "base_logp": -(kl + entropy),
    }


def drift_points(run: Run) -> list[dict]:
    """The points of a run whose step is known."""
    return [point for point in (run.drift or {}).get("points", []) if point["step"] is not None]


def drift_series(run: Run, key: str) -> pd.Series | None:
    """One measure over optimizer steps; `None` if it was not measured."""
    points = {point["step"]: point[key] for point in drift_points(run) if point.get(key) is not None}
    return pd.Series(points, dtype=float).sort_index() if points else None


def drift_frame(run: Run, key: str) -> pd.DataFrame | None:
    """One measure as `mean`, `low` and `high` over steps, with the interval of the KL; `None` if not measured."""
    values = drift_series(run, key)
    if values is None:
        return None
    intervals = {point["step"]: point.get("interval") for point in drift_points(run)} if key == "kl_to_base" else {}
    ends = [intervals.get(step) or (value, value) for step, value in values.items()]
    return pd.DataFrame({"mean": values, "low": [low for low, _ in ends], "high": [high for _, high in ends]})
