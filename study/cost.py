"""The time of a step by arm, as `eval.step_cost` measured it, with the interval of the sign test."""

import json
from pathlib import Path

import pandas as pd
from scipy import stats

from study.tables import FOLDER
from trl_prorl.errors import InputError
from trl_prorl.eval.analysis.statistics import Estimate


COST_FILE = "step_cost.json"  # `arms.json` of eval.step_cost
ARMS = ("TRL β>0", "TRL β=0", "plain packed", "A packed", "B packed", "C packed")
AGAINST = ("A packed", "C packed", "plain packed")
ROUNDS = "whole"  # every round's seconds of a whole step, generation included


def rounds(root: Path) -> pd.DataFrame:
    """
    Return the seconds of a whole step, a column for each of the `ARMS` that was measured, a row for each round; the
    rounds of all arms belong together. Empty without the file; an `InputError` if it is not what `eval.step_cost`
    writes.
    """
    path = root / FOLDER / COST_FILE
    if not path.is_file():
        return pd.DataFrame()
    try:
        (result,) = json.loads(path.read_text())["results"].values()
        seconds = pd.DataFrame({arm: values[ROUNDS] for arm, values in result.items()}, dtype=float)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path}: not the arms.json of one setting of eval.step_cost ({error!r}); copy it anew"
        ) from None
    return seconds[[arm for arm in ARMS if arm in seconds]]


def relative(seconds: pd.DataFrame, arm: str, other: str) -> Estimate:
    """
    Return the time that one arm's step takes of another's: the median over paired rounds, with the interval of the
    median by the sign test (at least 95 %; no interval with fewer than 6 rounds).
    """
    ratios = seconds[arm] / seconds[other]
    low, high = stats.quantile_test(ratios, p=0.5).confidence_interval(0.95)
    return Estimate(float(ratios.median()), float(low), float(high))


def relatives(seconds: pd.DataFrame) -> dict[str, dict[str, Estimate]]:
    """Return the time of a whole step by arm, relative to some arms; nothing where A's was not measured."""
    if AGAINST[0] not in seconds:
        return {}
    against = [arm for arm in AGAINST if arm in seconds]
    return {arm: {f"of {other}'s": relative(seconds, arm, other) for other in against} for arm in seconds}
