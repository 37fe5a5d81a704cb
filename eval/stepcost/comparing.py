"""How an arm compares with TRL, by rounds that belong together."""

import statistics

from trl_prorl.eval.stepcost.arms import BASELINE


ROUNDS = {"generation": "generated", "update phase": "phase", "whole step": "whole"}  # heading and key of every round


def ratio(
    result: dict[str, dict], name: str, baseline: str = BASELINE, rounds: str = "phase"
) -> tuple[float, float, float]:
    """
    How many times as fast as the baseline an arm is in what `ROUNDS` names: median, least and greatest over paired
    rounds.
    """
    pairs = [theirs / mine for mine, theirs in zip(result[name][rounds], result[baseline][rounds], strict=True)]
    return statistics.median(pairs), min(pairs), max(pairs)


def generates(result: dict[str, dict]) -> bool:
    """Whether generation was timed."""
    return all(values["generation"] > 0 for values in result.values())
