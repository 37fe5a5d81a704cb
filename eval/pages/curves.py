"""Curves over optimizer steps: reward and accuracy, KL, entropy, gradient norm, truncation, validation; stages."""

import numpy as np

from trl_prorl.eval.analysis.frame import Frame, ReportArm, stage_seconds
from trl_prorl.eval.analysis.stability import (
    GRADIENT_SPIKE,
    NEIGHBOURS,
    SMOOTHING_STEPS,
    gradient_spikes,
    kl_key,
    running_mean,
    running_median_of_positive,
    why_no_curves,
)
from trl_prorl.eval.pages.document import Bullets, Picture, Section
from trl_prorl.eval.pages.plotting import (
    SHEETS_NOTE,
    Panel,
    arms_with_curves,
    caption,
    colour_of,
    curve_sheets,
    draw_lines,
    row_labels,
    steps_panel,
    symlog_threshold,
)


STAGES = {  # colour and label
    "rollout": ("#BBBBBB", "rollout"),
    "old": ("#F0E442", "scoring, old policy"),
    "ref": ("#CC79A7", "scoring, reference"),
    "update": ("#56B4E9", "update"),
}


def draw_reward(axes, arms: list[ReportArm]) -> None:
    """
    Draw the training reward and, in the same panel, accuracy (`gold`): under reward hacking the two drift apart.
    """
    draw_lines(axes, arms, lambda variant: "reward", running_mean)
    draw_lines(axes, _with_gold(arms), lambda variant: "gold", running_mean, ": accuracy", linestyle=":", marker=None)


def draw_kl(axes, arms: list[ReportArm]) -> None:
    """Draw the KL of each variant to its own anchor."""
    for variant in dict.fromkeys(arm.variant for arm in arms):
        same_variant = [arm for arm in arms if arm.variant == variant]
        draw_lines(axes, same_variant, kl_key, running_median_of_positive, f": {kl_key(variant)}")
    series = [values for arm in arms for values in arm.series(kl_key(arm.variant))]
    axes.set_yscale("symlog", linthresh=symlog_threshold(series), linscale=0.5)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:g}")  # typesetting powers of ten takes a second


def draw_entropy(axes, arms: list[ReportArm]) -> None:
    """Draw the entropy of the policy."""
    draw_lines(axes, arms, lambda variant: "entropy", running_mean)


def draw_gradient_norm(axes, arms: list[ReportArm]) -> None:
    """Draw the gradient norm before clipping, with a ring at each spike."""
    draw_lines(axes, arms, lambda variant: "grad_norm", running_median_of_positive)
    label = "spike"
    for arm in arms:
        for run in arm.runs:
            spikes = gradient_spikes(run)
            if spikes is None or not spikes.count:
                continue
            at = run.measured("grad_norm").iloc[spikes.places]
            ring = {"color": colour_of(arm), "marker": "o", "fillstyle": "none", "markersize": 6}
            axes.plot(at.index, at, linestyle="", label=label, **ring)
            label = None  # once


def draw_truncated(axes, arms: list[ReportArm]) -> None:
    """Draw the share of completions that were truncated at `max_completion_length`."""
    draw_lines(axes, arms, lambda variant: "truncated_fraction", running_mean)
    axes.set_ylim(-0.02, 1.02)


def draw_validation(axes, arms: list[ReportArm]) -> None:
    """Draw the reward of the evaluations during training, as measured."""
    draw_lines(axes, arms, lambda variant: "eval_reward", lambda values: values)


def _with_gold(arms: list[ReportArm]) -> list[ReportArm]:
    return [arm for arm in arms if arm.series("gold")]


def sheet_panels(sheet: str, arms: list[ReportArm]) -> list[Panel]:
    """
    Return the panels of some variants, with titles that begin with `sheet`: reward and accuracy, KL to the anchor,
    entropy, gradient norm and, if measured, truncation and validation.
    """
    reward = "Training reward, accuracy (dotted)" if _with_gold(arms) else "Training reward"
    panels = [
        steps_panel(sheet + reward, arms, draw_reward, "batch mean"),
        steps_panel(f"{sheet}KL to its reference (B: old policy)", arms, draw_kl, "nats per token (k3), symlog"),
        steps_panel(f"{sheet}Entropy of the policy", arms, draw_entropy, "nats per token", legend=False),
        steps_panel(f"{sheet}Gradient norm", arms, draw_gradient_norm, "norm before clipping", legend=False),
    ]
    if any(arm.series("truncated_fraction") for arm in arms):
        title = f"{sheet}Truncated completions"
        panels.append(steps_panel(title, arms, draw_truncated, "share of the batch", legend=False))
    if any(arm.series("eval_reward") for arm in arms):
        title = f"{sheet}Validation reward"
        panels.append(steps_panel(title, arms, draw_validation, "mean of the evaluation", legend=False))
    return panels


def _mean_stage_seconds(arm: ReportArm, stage: str) -> float:
    """Return the mean over the timed runs of a variant; 0 without any."""
    seconds = arm.values(lambda row: stage_seconds(row, stage))
    return sum(seconds) / len(seconds) if seconds else 0.0


def stages_panel(frame: Frame) -> Panel:
    """Return the mean seconds of a step by stage, mean over the timed runs of a variant."""
    arms = arms_with_curves(frame.arms)
    labels, lines = row_labels([arm.legend for arm in arms])

    def draw(axes):
        left = np.zeros(len(arms))
        for stage, (colour, label) in STAGES.items():
            means = np.array([_mean_stage_seconds(arm, stage) for arm in arms])
            axes.barh(range(len(left)), means, left=left, color=colour, label=label)
            left += means
        axes.set_yticks(range(len(labels)), labels)
        axes.set_title("Mean step time by stage", loc="right")
        axes.set(ylim=(len(arms) - 0.5, -0.5), xlabel="seconds")
        axes.grid(alpha=0.2, axis="x")

    alt = "Mean seconds per step: rollout, scoring with the old policy and the reference, update"
    return Panel(alt, draw, lines * len(arms))


def sections(frame: Frame) -> list[Section]:
    found = curve_sheets(frame)
    text = (
        f"Smoothed over {SMOOTHING_STEPS} steps (mean; KL and gradient norm: median of the positive values), with raw "
        "values in the background. Validation reward: evaluations during training."
    )
    if any(spikes is not None and spikes.count for spikes in map(gradient_spikes, frame.runs)):
        text += (
            f" Rings: spikes of the gradient norm, at least {GRADIENT_SPIKE.factor:g} times the median of the "
            f"{NEIGHBOURS} steps on either side."
        )
    if len(found) > 1:
        text = f"{text} {SHEETS_NOTE}"
    pictures = []
    for number, (sheet, arms) in enumerate(found, start=1):
        file = "summary.png" if number == 1 else f"summary_{number}.png"
        words = caption(frame, text) if number == len(found) else ""
        alt = f"{sheet}reward, KL, entropy and gradient norm over optimizer steps"
        pictures.append(Picture(file, alt, words, sheet_panels(sheet, arms), 3))
    lines = []
    for run in frame.runs:
        why = why_no_curves(run)
        if why is not None:
            lines.append(f"`{run.name}` has no curves: {why}.")
    left_out = [Bullets(lines)] if lines else []
    return [Section("Curves", [*pictures, *left_out], open=True)]
