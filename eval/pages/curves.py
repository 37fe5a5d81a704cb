"""Curves over optimizer steps, a panel for each entry of `CURVES`."""

from functools import partial

import pandas as pd

from trl_prorl.eval.analysis.frame import Frame, RunGroup
from trl_prorl.eval.analysis.stability import SMOOTHING_STEPS, running_mean, running_median_of_positive
from trl_prorl.eval.pages.page import Section
from trl_prorl.eval.pages.plotting import CAPTION, Panel, draw_lines, sheets, steps_panel
from trl_prorl.eval.run_folder.run import OWN_KL


def draw_as_measured(axes, groups: list[RunGroup], key: str) -> None:
    """Draw a metric without smoothing."""
    draw_lines(axes, groups, key, smooth=lambda values: values)


def draw_share(axes, groups: list[RunGroup], key: str) -> None:
    """Draw a metric from 0 to 1."""
    draw_lines(axes, groups, key)
    axes.set_ylim(-0.02, 1.02)


def draw_reward(axes, groups: list[RunGroup], key: str) -> None:
    """
    Draw the training reward and, in the same panel, accuracy: under reward hacking the two drift apart.
    """
    draw_lines(axes, groups, key)
    draw_lines(axes, groups, "accuracy", running_mean, ": accuracy", linestyle=":")


def draw_kl(axes, groups: list[RunGroup], key: str) -> None:
    """Draw the KL of each variant to its own anchor."""
    for group in groups:
        draw_lines(axes, [group], key, running_median_of_positive, f": {group.runs[0].kind.kl}")
    series = [values for group in groups for values in group.series(key)]
    axes.set_yscale("symlog", linthresh=symlog_threshold(series), linscale=0.5)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:g}")  # typesetting powers of ten takes a second


def symlog_threshold(series: list[pd.Series]) -> float:
    """Return the smallest positive values of a KL, at which its axis becomes linear: a reset sets the KL to 0."""
    positive = [values[values > 0] for values in series]
    smallest = [values.quantile(0.05) for values in positive if len(values)]
    return max(min(smallest, default=1e-6), 1e-12)


def draw_gradient_norm(axes, groups: list[RunGroup], key: str) -> None:
    """Draw the gradient norm before clipping."""
    draw_lines(axes, groups, key, running_median_of_positive)


CURVES = (  # key, title, unit, and `draw(axes, groups, key)`; a report has those that any of its runs measured
    ("reward", "Training reward, accuracy (dotted)", "batch mean", draw_reward),
    (OWN_KL, "KL to its reference (B: old policy)", "nats per token (k3), symlog", draw_kl),
    ("entropy", "Entropy of the policy", "nats per token", draw_lines),
    ("grad_norm", "Gradient norm", "norm before clipping", draw_gradient_norm),
    ("truncated_fraction", "Truncated completions", "share of the batch", draw_share),
    ("eval_pass@1", "Validation pass@1", "mean over prompts", draw_as_measured),
    ("eval_reward", "Validation reward", "mean of the evaluation", draw_as_measured),
)


def curve_panels(sheet: str, groups: list[RunGroup], curves=CURVES) -> list[Panel]:
    """Return the panels of some groups, with titles that begin with `sheet`."""
    return [
        steps_panel(sheet + title, groups, partial(draw, key=key), unit)
        for key, title, unit, draw in curves
        if any(group.series(key) for group in groups)
    ]


def section(frame: Frame) -> Section:
    text = (
        f"Smoothed over {SMOOTHING_STEPS} steps (mean; KL and gradient norm: median of the positive values), with raw "
        f"values in the background. Validation: evaluations during training. {CAPTION}"
    )
    panels = [panel for sheet, groups in sheets(frame) for panel in curve_panels(sheet, groups)]
    return Section("Curves", panels, text, open=True)
