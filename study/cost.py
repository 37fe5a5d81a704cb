"""What a step costs: from `docs/study/step_cost.json`, which `python -m eval.step_cost` wrote on a quiet machine."""

import json
from pathlib import Path
from statistics import median

from scipy import stats

from eval.analysis.statistics import Estimate
from study.tables import FOLDER
from trl_prorl.errors import InputError


FILE = "step_cost.json"  # `arms.json` of eval.step_cost
# Arms of eval.step_cost, from above, and the variant whose colour they take.
COSTS = {"TRL β>0": None, "TRL β=0": None, **{f"{name} packed": name for name in ("plain", "A", "B", "C")}}
COST_BASE = "A packed"
ROUNDS = "whole"  # every round's seconds of a whole step, generation included


def rounds(root: Path) -> dict[str, list[float]]:
    """
    Seconds of a whole step by arm, one for each round; the rounds of all arms belong together. Empty without the file;
    an `InputError` if it is not what `eval.step_cost` writes.
    """
    path = root / FOLDER / FILE
    if not path.is_file():
        return {}
    try:
        (result,) = json.loads(path.read_text())["results"].values()
        seconds = {arm: [float(value) for value in values[ROUNDS]] for arm, values in result.items()}
        if len(set(map(len, seconds.values()))) != 1:
            raise ValueError("arms have different numbers of rounds")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path}: not the arms.json of one setting of eval.step_cost ({error!r}); copy it anew"
        ) from None
    return seconds


def relative(seconds: dict[str, list[float]], arm: str, other: str) -> Estimate:
    """
    The time that one arm's step takes of another's: the median over paired rounds, with the interval of the median by
    the sign test (at least 95 %; no interval with fewer than 6 rounds).
    """
    ratios = [mine / theirs for mine, theirs in zip(seconds[arm], seconds[other], strict=True)]
    low, high = stats.quantile_test(ratios, p=0.5).confidence_interval(0.95)
    return Estimate(median(ratios), float(low), float(high))
