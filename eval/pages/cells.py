"""Numbers as the cells of tables show them; what was not measured is a dash."""

import math

from trl_prorl.eval.analysis.statistics import Estimate, t_interval


NOT_MEASURED = "–"


def cell(value: float | None, spec: str) -> str:
    """A number in the given format; an en dash for what was not measured."""
    return NOT_MEASURED if value is None or math.isnan(value) else format(value, spec)


POWER = "80 % power"  # of a detectable difference


def interval_cell(estimate: Estimate | None, spec: str) -> str:
    """`value [low, high]`, `(n/a)` where there is no interval, or an en dash."""
    if estimate is None:
        return NOT_MEASURED
    value, low, high = estimate
    return f"{value:{spec}} (n/a)" if math.isnan(low) else f"{value:{spec}} [{low:{spec}}, {high:{spec}}]"


def percent(value: float) -> str:
    return f"{100 * value:.0f} %" if math.isfinite(value) else "unbounded"


def share_cell(share: Estimate) -> str:
    """As [`interval_cell`], in percent."""
    interval = "(n/a)" if math.isnan(share.low) else f"[{percent(share.low)}, {percent(share.high)}]"
    return f"{percent(share.value)} {interval}"


def mean_cell(values: list[float], spec: str) -> str:
    """The mean of the values, a dash where there is none."""
    return format(sum(values) / len(values), spec) if values else NOT_MEASURED


def over_seeds(values: list[float], spec: str) -> str:
    """Mean over seeds with its 95 % t-interval; the value alone where there is one, a dash where there is none."""
    if not values:
        return NOT_MEASURED
    return interval_cell(t_interval(values), spec) if len(values) > 1 else format(values[0], spec)


def arrow_cell(values: list[float | None], spec: str) -> str:
    """`base → trained`, or a dash if either is missing."""
    return NOT_MEASURED if None in values else f"{values[0]:{spec}} → {values[1]:{spec}}"


def sides_cell(base: Estimate | None, trained: Estimate | None, spec: str) -> str:
    """`base → trained [low, high]`, or a dash if either is missing."""
    if base is None or trained is None:
        return NOT_MEASURED
    return f"{cell(base.value, spec)} → {interval_cell(trained, spec)}"


def percent_cell(share: float | None, spec: str) -> str:
    """A share in [0, 1] as a number of percent, for a column whose heading has the sign."""
    return cell(None if share is None else 100 * share, spec)
