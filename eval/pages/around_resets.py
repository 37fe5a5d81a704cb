"""Reward, KL and gradient norm around resets, aligned at the resets of a variant."""

from collections.abc import Callable

import numpy as np

from trl_prorl.eval.analysis.frame import Frame, ReportArm
from trl_prorl.eval.analysis.resets import AROUND, LEAST_SHARE, MIDDLE, align_at_resets, band_over_resets
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


def sections(frame: Frame) -> list[Section]:
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
