"""Reward, KL and gradient norm around the resets of a variant, aligned; and the effect of resets on the reward."""

import math
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from trl_prorl.eval.analysis.frame import Frame, ReportArm
from trl_prorl.eval.analysis.resets import (
    AFTER,
    AROUND,
    BEFORE,
    LEAST_SHARE,
    MIDDLE,
    Response,
    align_at_resets,
    band_over_resets,
    mean_dip,
    median_reconvergence,
    reset_responses,
)
from trl_prorl.eval.analysis.stability import kl_key
from trl_prorl.eval.pages.document import Picture, Section
from trl_prorl.eval.pages.plotting import (
    TITLE_LETTERS,
    Panel,
    colour_of,
    curve_sheets,
    say_not_measured,
    style_of,
    wrap,
)
from trl_prorl.eval.pages.table import NOT_MEASURED, Column, Table, cell, table_of
from trl_prorl.eval.run_folder.run import RecordedRun


def aligned_metric(arm: ReportArm, key: str) -> np.ndarray:
    """Return a metric around every reset of every run of a variant, shape (R, T), as [`align_at_resets`]."""
    rows = [np.empty((0, sum(AROUND)))]
    for run in arm.runs:
        values = run.measured(key)
        if values is not None:
            rows.append(align_at_resets(values.index.to_numpy(), values.to_numpy(), run.reset_steps() or []))
    return np.concatenate(rows)


def draw_around_resets(axes, arms: list[ReportArm], key_of: Callable[[str], str]) -> None:
    """Draw the mean of a metric over the resets of each variant, with its band; its key may depend on the variant."""
    for arm in arms:
        aligned = aligned_metric(arm, key_of(arm.variant))
        aligned = aligned[~np.isnan(aligned).all(axis=1)]
        if not len(aligned):
            continue
        band = band_over_resets(aligned)
        resets = "1 reset" if len(aligned) == 1 else f"{len(aligned)} resets"
        axes.fill_between(band.index, band["low"], band["high"], color=colour_of(arm), alpha=0.18, linewidth=0)
        line = {"linewidth": 1.8, "marker": ".", **style_of(arm)}
        axes.plot(band.index, band["mean"], label=f"{arm.legend}: {resets}", **line)
    if not axes.lines:
        say_not_measured(axes)
    axes.axvline(0.5, color="#000000", linewidth=0.8, linestyle=":")  # the reset lies between steps 0 and 1


def reset_panels(sheet: str, arms: list[ReportArm]) -> list[Panel]:
    """Return the panels of variants with resets, with titles that begin with `sheet`."""
    shown = {
        "Training reward": (lambda variant: "reward", "batch mean"),
        "KL to its reference": (kl_key, "nats per token (k3)"),
        "Gradient norm": (lambda variant: "grad_norm", "norm before clipping"),
    }
    panels = []
    for name, (key_of, unit) in shown.items():
        title = f"{sheet}{name} around a reset"

        def draw(axes, key_of=key_of, title=title, unit=unit):
            draw_around_resets(axes, arms, key_of)
            axes.grid(alpha=0.2)
            axes.set_title(wrap(title, TITLE_LETTERS), y=1.0)
            axes.set(xlabel="steps after the reset (0: last step before it)", ylabel=unit)

        panels.append(Panel(f"{title}, mean over resets", draw, legend=not panels))
    return panels


def around(frame: Frame) -> list[Section]:
    """Return the section, or none if no run was reset."""
    panels = []
    for sheet, arms in curve_sheets(frame):
        with_resets = [arm for arm in arms if any(run.reset_steps() for run in arm.runs)]
        if with_resets:
            panels += reset_panels(sheet, with_resets)
    if not panels:
        return []
    low, high = MIDDLE
    text = (
        f"The {AROUND[0]} steps before and the {AROUND[1]} steps after each reset, up to the neighbouring reset. "
        f"Line: mean over all resets and runs of a variant, at steps where {100 * LEAST_SHARE:.0f} % or more of the "
        f"resets have a value. Band: {low}th to {high}th percentile over resets."
    )
    picture = Picture("around_resets.png", "Reward, KL and gradient norm around a reset", text, panels, 3)
    return [Section("Around a reset", [picture], open=True)]


class ResetEffects(NamedTuple):
    """The reward of a variant after every reset of every run, and the reward of the controls at the same steps."""

    arm: ReportArm
    own: list[Response]
    control: list[Response]


def _responses(run: RecordedRun | None, resets: list[int] | None) -> list[Response]:
    """Return the responses of a run's training reward to resets at these steps; empty without a reward."""
    reward = None if run is None else run.measured("reward")
    if reward is None:
        return []
    return reset_responses(reward.index.to_numpy(), reward.to_numpy(), resets or [])


def reset_effects(arm: ReportArm) -> ResetEffects:
    own = []
    control = []
    for row in arm.rows:
        resets = row.run.reset_steps()
        own += _responses(row.run, resets)
        control += _responses(row.own_control, resets)  # at the same steps, where the control resets nothing
    return ResetEffects(arm, own, control)


def _reasons(arm: ReportArm) -> str:
    reasons = (reason.split("+") for run in arm.runs for _, reason in run.reset_reasons())
    counts = Counter(part.replace("_", " ") for parts in reasons for part in parts if part)
    return ", ".join(f"{reason} {count}" for reason, count in counts.most_common()) or NOT_MEASURED


def _reconvergence_cell(found: list[Response]) -> str:
    """Return the median, with the number that did not recover: `4 (3 of 25 not back)`."""
    median = median_reconvergence(found)
    if median is None:
        return NOT_MEASURED
    out = sum(response.censored for response in found)
    text = "more than half not back" if math.isinf(median) else f"{median:g}"
    return f"{text} ({out} of {len(found)} not back)" if out else text


RESET_COLUMNS = [
    Column("variant", lambda row: row.arm.label),
    Column(
        "resets",
        lambda row: str(sum(row.arm.values(lambda one: one.resets))),
        "**resets**, **reasons**: counts over all seeds; a reset with several reasons counts for each.",
    ),
    Column("reasons", lambda row: _reasons(row.arm)),
    Column(
        "dip",
        lambda row: cell(mean_dip(row.own), ".3f"),
        f"**dip**: mean training reward of the {BEFORE} steps before a reset, minus the lowest mean over {AFTER} "
        "consecutive steps before the next reset; at least 0. Mean over the resets.",
    ),
    Column(
        "control's dip",
        lambda row: cell(mean_dip(row.control), ".3f"),
        "**control's dip**, **control's steps**: the same for the control with the same base and training seed at the "
        "same steps, where it resets nothing. The lowest of many means is below the earlier level by chance alone, so "
        "a reset costs reward only if its dip is deeper than the control's.",
    ),
    Column(
        "steps to reconverge",
        lambda row: _reconvergence_cell(row.own),
        f"**steps to reconverge**: steps from a reset to the first {AFTER} consecutive steps after it whose mean "
        f"reward reaches the mean of the {BEFORE} steps before it; 0 if the first {AFTER} do. Not back: not before "
        "the next reset or the end of the run. The median is the Kaplan–Meier estimate, which treats these as "
        "censored.",
    ),
    Column("control's steps", lambda row: _reconvergence_cell(row.control)),
]


def reset_table(frame: Frame) -> Table | None:
    """Return dip and reconvergence of every variant with resets; `None` if there is none."""
    rows = [row for row in map(reset_effects, frame.arms) if row.own]
    return table_of("Reward dip and reconvergence after resets", RESET_COLUMNS, rows) if rows else None


def effects(frame: Frame) -> list[Section]:
    table = reset_table(frame)
    return [Section(table.title, [table])] if table else []
