"""Reward, KL and gradient norm around the resets of a variant, aligned; and the effect of resets on the reward."""

import math
from functools import partial
from typing import NamedTuple

import numpy as np

from trl_prorl.eval.analysis.around_resets import (
    AFTER,
    AROUND,
    BEFORE,
    MIDDLE,
    MIN_SHARE,
    Response,
    align_at_resets,
    band_over_resets,
    mean_dip,
    median_reconvergence,
    reset_responses,
)
from trl_prorl.eval.analysis.frame import Frame, RunGroup
from trl_prorl.eval.pages.page import Section
from trl_prorl.eval.pages.plotting import Panel, colour_of, label_steps, sheets, style_of
from trl_prorl.eval.pages.table import NOT_MEASURED, Column, cell, table_of
from trl_prorl.eval.run_folder.run import OWN_KL, RecordedRun


PANELS = (  # key, title, unit
    ("reward", "Training reward", "batch mean"),
    (OWN_KL, "KL to its reference", "nats per token (k3)"),
    ("grad_norm", "Gradient norm", "norm before clipping"),
)


def aligned_metric(group: RunGroup, key: str) -> np.ndarray:
    """Return a metric around every reset of every run at which it was measured, as [`align_at_resets`]."""
    rows = [np.empty((0, sum(AROUND)))]
    for run in group.runs:
        values = run.measured(key)
        if values is not None:
            rows.append(align_at_resets(values, run.reset_steps() or []))
    aligned = np.concatenate(rows)
    return aligned[~np.isnan(aligned).all(axis=1)]


def draw_around_resets(axes, groups: list[RunGroup], key: str, title: str, unit: str) -> None:
    """Draw the mean of a metric over the resets of each variant, with its band."""
    for group in groups:
        aligned = aligned_metric(group, key)
        if not len(aligned):
            continue
        band = band_over_resets(aligned)
        resets = "1 reset" if len(aligned) == 1 else f"{len(aligned)} resets"
        axes.fill_between(band.index, band["low"], band["high"], color=colour_of(group), alpha=0.18, linewidth=0)
        line = {"linewidth": 1.8, "marker": ".", **style_of(group)}
        axes.plot(band.index, band["mean"], label=f"{group.legend}: {resets}", **line)
    axes.axvline(0.5, color="#000000", linewidth=0.8, linestyle=":")  # the reset lies between steps 0 and 1
    label_steps(axes, title, unit, "steps after the reset (0: last step before it)")


def reset_panels(frame: Frame) -> list[Panel]:
    """Return the panels of variants with resets; none if no run was reset."""
    panels = []
    for sheet, groups in sheets(frame):
        for key, name, unit in PANELS:
            if any(len(aligned_metric(group, key)) for group in groups):
                title = f"{sheet}{name} around a reset"
                draw = partial(draw_around_resets, groups=groups, key=key, title=title, unit=unit)
                panels.append(Panel(f"{title}, mean over resets", draw))
    return panels


class ResetEffects(NamedTuple):
    """The reward of a variant after every reset of every run, and the reward of the controls at the same steps."""

    group: RunGroup
    own: list[Response]
    control: list[Response]


def _responses(run: RecordedRun, resets: list[int]) -> list[Response]:
    """Return the responses of a run's training reward to resets at these steps; empty without a reward."""
    reward = run.measured("reward")
    return [] if reward is None else reset_responses(reward, resets)


def reset_effects(group: RunGroup) -> ResetEffects:
    effects = ResetEffects(group, [], [])
    for row in group.rows:
        resets = row.run.reset_steps() or []
        effects.own.extend(_responses(row.run, resets))
        if row.own_control is not None:  # at the same steps; the control resets nothing
            effects.control.extend(_responses(row.own_control, resets))
    return effects


def _reconvergence_cell(responses: list[Response]) -> str:
    """Return the median, with the number that did not recover: `4 (3 of 25 not back)`."""
    median = median_reconvergence(responses)
    if median is None:
        return NOT_MEASURED
    out = sum(response.censored for response in responses)
    text = "more than half not back" if math.isinf(median) else f"{median:g}"
    return f"{text} ({out} of {len(responses)} not back)" if out else text


RESET_COLUMNS = [
    Column("variant", lambda row: row.group.label),
    Column(
        "resets",
        lambda row: str(sum(row.group.values(lambda run_row: run_row.resets))),
        "resets: over all seeds.",
    ),
    Column(
        "dip",
        lambda row: cell(mean_dip(row.own), ".3f"),
        f"dip: mean training reward of the {BEFORE} steps before a reset, minus the lowest mean over {AFTER} "
        "consecutive steps before the next reset; at least 0. Mean over the resets.",
    ),
    Column(
        "control's dip",
        lambda row: cell(mean_dip(row.control), ".3f"),
        "control's dip, control's steps: the same for the control with the same base and training seed at the "
        "same steps, where it resets nothing. The lowest of many means is below the earlier level by chance alone, so "
        "a reset costs reward only if its dip is deeper than the control's.",
    ),
    Column(
        "steps to reconverge",
        lambda row: _reconvergence_cell(row.own),
        f"steps to reconverge: steps from a reset to the first {AFTER} consecutive steps after it whose mean "
        f"reward reaches the mean of the {BEFORE} steps before it; 0 if the first {AFTER} do. Not back: not before "
        "the next reset or the end of the run. The median is the Kaplan–Meier estimate, which treats these as "
        "censored.",
    ),
    Column("control's steps", lambda row: _reconvergence_cell(row.control)),
]


def section(frame: Frame) -> Section | None:
    """Return panels around a reset, dip and reconvergence of every variant with resets; `None` if there is none."""
    panels = reset_panels(frame)
    rows = [row for row in map(reset_effects, frame.groups) if row.own]
    if not panels:
        return None
    low, high = MIDDLE
    text = (
        f"The {AROUND[0]} steps before and the {AROUND[1]} steps after each reset, up to the neighbouring reset. "
        f"Line: mean over all resets and runs of a variant, at steps where {100 * MIN_SHARE:.0f} % or more of the "
        f"resets have a value. Band: {low}th to {high}th percentile over resets."
    )
    table = table_of("Reward dip and reconvergence after resets", RESET_COLUMNS, rows)
    return Section("Around a reset", panels, text, [table] if rows else [], open=True)
