"""Spikes: a metric far above its values just before and just after."""

from dataclasses import dataclass

import numpy as np


NEIGHBOURS = 10  # steps on each side
LEAST_NEIGHBOURS = 5


@dataclass(frozen=True)
class SpikeRule:
    """
    What counts as a spike.

    Attributes:
        factor (`float`): A value is high from this multiple of the median of its neighbours on.
        rise (`float`): It also has to lie this far above that median, in the metric's own unit, because a multiple of
            next to nothing is next to nothing.
    """

    factor: float
    rise: float


KL_SPIKE = SpikeRule(factor=10.0, rise=0.01)
ENTROPY_SPIKE = SpikeRule(factor=1.5, rise=0.1)


@dataclass(frozen=True)
class Spikes:
    """
    The spikes of one run.

    Attributes:
        places (`np.ndarray`): Index of the highest value of each spike, shape (S,).
        ratios (`np.ndarray`): That value over the median of its neighbours, shape (S,).
    """

    places: np.ndarray
    ratios: np.ndarray

    @property
    def count(self) -> int:
        return len(self.places)

    @property
    def largest(self) -> float | None:
        return float(self.ratios.max()) if len(self.ratios) else None


def neighbour_medians(values: np.ndarray, neighbours: int = NEIGHBOURS) -> np.ndarray:
    """
    Median of the values around each, itself left out, shape (T,).

    Values on both sides count, so that a metric that grows fast, or that starts again at 0 after a reset, makes no
    spike of its own; values of 0 and below and NaN do not, because the KL to the sampling policy is exactly 0 in the
    first pass over a batch.

    Args:
        values (`np.ndarray`): One value per step, shape (T,); NaN where not measured.
        neighbours (`int`): Steps on each side.

    Returns:
        `np.ndarray`: NaN with fewer than 5 neighbours.
    """
    positive = np.where(values > 0, values, np.nan)
    padded = np.pad(positive, neighbours, constant_values=np.nan)
    around = np.lib.stride_tricks.sliding_window_view(padded, 2 * neighbours + 1).copy()
    around[:, neighbours] = np.nan
    medians = np.full(len(values), np.nan)
    enough = (~np.isnan(around)).sum(axis=1) >= LEAST_NEIGHBOURS
    if enough.any():
        medians[enough] = np.nanmedian(around[enough], axis=1)
    return medians


def find_spikes(values: np.ndarray, rule: SpikeRule) -> Spikes:
    """
    Spikes of a metric over the steps of a run.

    High steps in a row, steps aside at which nothing above 0 was measured, are one spike.

    Args:
        values (`np.ndarray`): One value per step, shape (T,); NaN where not measured, infinity where it was.
        rule ([`SpikeRule`]): What counts.
    """
    values = np.asarray(values, float)
    if not len(values):
        return Spikes(np.array([], int), np.array([]))
    medians = neighbour_medians(values)
    known = np.flatnonzero(~np.isnan(medians) & (values > 0))
    values_known, medians_known = values[known], medians[known]
    high = (values_known >= rule.factor * medians_known) & (values_known - medians_known >= rule.rise)
    places, ratios = [], []
    beginnings = np.flatnonzero(high & ~np.concatenate([[False], high[:-1]]))
    for begin in beginnings:
        end = begin + int(np.argmin(np.append(high[begin:], False)))
        highest = begin + int(np.argmax(values_known[begin:end]))
        places.append(known[highest])
        ratios.append(values_known[highest] / medians_known[highest])
    return Spikes(np.array(places, int), np.array(ratios, float))
