"""Curves over optimizer steps, a panel for each entry of `CURVES`."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd

from trl_prorl.eval.analysis.frame import MIN_STEPS, Frame, RunGroup
from trl_prorl.eval.analysis.stability import (
    GRADIENT_SPIKE,
    NEIGHBOURS,
    SMOOTHING_STEPS,
    running_mean,
    running_median_of_positive,
    spikes,
)
from trl_prorl.eval.pages.document import Section, bullets
from trl_prorl.eval.pages.plotting import (
    SHEETS_NOTE,
    Panel,
    Picture,
    caption,
    colour_of,
    curve_sheets,
    draw_lines,
    steps_panel,
)
from trl_prorl.eval.run_folder.run import OWN_KL, RecordedRun


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
    draw_lines(axes, groups, "accuracy", running_mean, ": accuracy", linestyle=":", marker=None)


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
    """Draw the gradient norm before clipping, with a ring at each spike."""
    draw_lines(axes, groups, key, running_median_of_positive)
    label = "spike"
    for group in groups:
        for run in group.runs:
            found = spikes(run, key, GRADIENT_SPIKE)
            if found is not None and len(found):
                at = run.measured(key)[found.index]
                ring = {"color": colour_of(group), "marker": "o", "fillstyle": "none", "markersize": 6}
                axes.plot(at.index, at, linestyle="", label=label, **ring)
                label = None  # once


VALIDATION_REWARD = "eval_reward"
VALIDATION_ACCURACY = "eval_pass@1"


@dataclass(frozen=True)
class Curve:
    """
    A panel over optimizer steps, which a report has if any of its runs measured the metric.

    Attributes:
        key (`str`): Key of `metrics.jsonl` or `evaluations.jsonl`; `OWN_KL` for that of the variant.
        title, unit (`str`): Title of the panel, and the label of its y axis.
        draw (`Callable`): `draw(axes, groups, key)`.
        legend (`bool`): Whether it has a legend although it is not the first panel.
    """

    key: str
    title: str
    unit: str
    draw: Callable = draw_lines
    legend: bool = False


CURVES = (
    Curve("reward", "Training reward", "batch mean", draw_reward),
    Curve(OWN_KL, "KL to its reference (B: old policy)", "nats per token (k3), symlog", draw_kl, legend=True),
    Curve("entropy", "Entropy of the policy", "nats per token"),
    Curve("grad_norm", "Gradient norm", "norm before clipping", draw_gradient_norm),
    Curve("truncated_fraction", "Truncated completions", "share of the batch", draw_share),
    Curve(VALIDATION_ACCURACY, "Validation pass@1", "mean over prompts", draw_as_measured),
    Curve(VALIDATION_REWARD, "Validation reward", "mean of the evaluation", draw_as_measured),
)


def adds_to_others(key: str, groups: list[RunGroup]) -> bool:
    """Return whether a run measured a metric, unless it is a reward in evaluations that repeats pass@1."""
    if key != VALIDATION_REWARD:
        return any(group.series(key) for group in groups)
    for run in (run for group in groups for run in group.runs):
        rewards = run.measured(key)
        accuracy = run.measured(VALIDATION_ACCURACY)
        if rewards is not None and (accuracy is None or not np.allclose(*rewards.align(accuracy), equal_nan=True)):
            return True
    return False


def sheet_panels(sheet: str, groups: list[RunGroup]) -> list[Panel]:
    """Return the panels of some groups, with titles that begin with `sheet`."""
    panels = []
    for curve in CURVES:
        if adds_to_others(curve.key, groups):
            title = sheet + curve.title
            if curve.key == "reward" and any(group.series("accuracy") for group in groups):
                title += ", accuracy (dotted)"
            draw = partial(curve.draw, key=curve.key)
            panels.append(steps_panel(title, groups, draw, curve.unit, legend=curve.legend or not panels))
    return panels


def obstacle_to_curves(run: RecordedRun) -> str | None:
    """Return why a run has no curves: too few steps, or nothing measured; else `None`."""
    steps = len(run.metrics)
    if steps < MIN_STEPS:
        return f"only {steps} {'step is' if steps == 1 else 'steps are'} in its log"
    if all(run.measured(curve.key) is None for curve in CURVES):
        return "its log has no finite reward, KL, entropy or gradient norm"
    return None


def section(frame: Frame) -> Section:
    text = (
        f"Smoothed over {SMOOTHING_STEPS} steps (mean; KL and gradient norm: median of the positive values), with raw "
        "values in the background. Validation: evaluations during training."
    )
    found = [spikes(run, "grad_norm", GRADIENT_SPIKE) for run in frame.runs]
    if any(each is not None and len(each) for each in found):
        text += (
            f" Rings: spikes of the gradient norm, at least {GRADIENT_SPIKE.factor:g} times the median of the "
            f"{NEIGHBOURS} steps on either side."
        )
    sheets = [(sheet, sheet_panels(sheet, groups)) for sheet, groups in curve_sheets(frame)]
    sheets = [(sheet, panels) for sheet, panels in sheets if panels]
    if len(sheets) > 1:
        text = f"{text} {SHEETS_NOTE}"
    blocks = []
    for number, (sheet, panels) in enumerate(sheets, start=1):
        file = "summary.png" if number == 1 else f"summary_{number}.png"
        words = caption(frame, text) if number == len(sheets) else ""
        alt = f"{sheet}reward, KL, entropy and gradient norm over optimizer steps"
        blocks.append(Picture(file, alt, words, panels, 3))
    obstacles = {run.name: obstacle_to_curves(run) for run in frame.runs}
    lines = [f"`{name}` has no curves: {obstacle}." for name, obstacle in obstacles.items() if obstacle]
    if lines:
        blocks.append(bullets(lines))
    return Section("Curves", blocks, open=True)
