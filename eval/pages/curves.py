"""Curves over optimizer steps: reward beside gold, KL, entropy, gradient norm, cut completions, validation; stages."""

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
    "old": ("#F0E442", "old scoring"),
    "ref": ("#CC79A7", "reference scoring"),
    "update": ("#56B4E9", "update"),
}


def draw_reward(axes, arms: list[ReportArm]) -> None:
    """
    Draw the training reward and, in the same panel, gold, the share of correct completions: a reward that is gamed
    parts from it.
    """
    draw_lines(axes, arms, lambda variant: "reward", running_mean)
    draw_lines(axes, _with_gold(arms), lambda variant: "gold", running_mean, ": gold", linestyle=":", marker=None)


def draw_kl(axes, arms: list[ReportArm]) -> None:
    """Draw the KL of each arm to its own anchor."""
    for variant in dict.fromkeys(arm.variant for arm in arms):
        same_variant = [arm for arm in arms if arm.variant == variant]
        draw_lines(axes, same_variant, kl_key, running_median_of_positive, f": {kl_key(variant)}")
    series = [values for arm in arms for values in arm.series(kl_key(arm.variant))]
    axes.set_yscale("symlog", linthresh=symlog_threshold(series), linscale=0.5)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:g}")  # powers of ten as mathematics take a second to set


def draw_entropy(axes, arms: list[ReportArm]) -> None:
    """Draw the entropy of the policy."""
    draw_lines(axes, arms, lambda variant: "entropy", running_mean)


def draw_gradient_norm(axes, arms: list[ReportArm]) -> None:
    """Draw the norm of the gradient before it is clipped, with a ring at each of its spikes."""
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
    """Draw the share of completions that were cut off at `max_completion_length`."""
    draw_lines(axes, arms, lambda variant: "truncated_fraction", running_mean)
    axes.set_ylim(-0.02, 1.02)


def draw_validation(axes, arms: list[ReportArm]) -> None:
    """Draw the reward of the evaluations during training, as measured."""
    draw_lines(axes, arms, lambda variant: "eval_reward", lambda values: values)


def _with_gold(arms: list[ReportArm]) -> list[ReportArm]:
    return [arm for arm in arms if arm.series("gold")]


def sheet_panels(sheet: str, arms: list[ReportArm]) -> list[Panel]:
    """
    Return the panels of some arms, whose titles begin with `sheet`: reward with gold, KL to the anchor, entropy,
    gradient norm and, where they were measured, completions that were cut and validation.
    """
    reward = "Training reward, and gold (dotted)" if _with_gold(arms) else "Training reward"
    panels = [
        steps_panel(sheet + reward, arms, draw_reward, "mean of the batch"),
        steps_panel(f"{sheet}KL to the arm's anchor", arms, draw_kl, "nats per token (k3), symlog"),
        steps_panel(f"{sheet}Entropy of the policy", arms, draw_entropy, "nats per token", legend=False),
        steps_panel(f"{sheet}Gradient norm", arms, draw_gradient_norm, "before it is clipped", legend=False),
    ]
    if any(arm.series("truncated_fraction") for arm in arms):
        title = f"{sheet}Share of completions cut off"
        panels.append(steps_panel(title, arms, draw_truncated, "of the batch", legend=False))
    if any(arm.series("eval_reward") for arm in arms):
        title = f"{sheet}Validation reward"
        panels.append(steps_panel(title, arms, draw_validation, "mean of the evaluation", legend=False))
    return panels


def _mean_stage_seconds(arm: ReportArm, stage: str) -> float:
    """Return the mean over the runs of an arm that were timed; 0 without any."""
    seconds = arm.values(lambda row: stage_seconds(row, stage))
    return sum(seconds) / len(seconds) if seconds else 0.0


def stages_panel(frame: Frame) -> Panel:
    """Return the mean seconds of a step by stage, mean over the runs of an arm; what was not timed is not drawn."""
    arms = arms_with_curves(frame.arms)
    labels, lines = row_labels([arm.legend for arm in arms])

    def draw(axes):
        left = np.zeros(len(arms))
        for stage, (colour, label) in STAGES.items():
            means = np.array([_mean_stage_seconds(arm, stage) for arm in arms])
            axes.barh(range(len(left)), means, left=left, color=colour, label=label)
            left += means
        axes.set_yticks(range(len(labels)), labels)
        axes.set_title("Mean time of a step, by stage", loc="right")
        axes.set(ylim=(len(arms) - 0.5, -0.5), xlabel="seconds")
        axes.grid(alpha=0.2, axis="x")

    alt = "Mean seconds of a step, split into rollout, old scoring, reference scoring and update"
    return Panel(alt, draw, lines * len(arms))


def sections(frame: Frame) -> list[Section]:
    found = curve_sheets(frame)
    text = (
        f"Smoothed over {SMOOTHING_STEPS} steps (mean; KL and gradient norm: median of the positive values), "
        "as recorded behind it in faint; the validation reward is that of the evaluations during training."
    )
    if any(spikes is not None and spikes.count for spikes in map(gradient_spikes, frame.runs)):
        text += (
            f" A ring is a spike of the gradient norm: at least {GRADIENT_SPIKE.factor:g} times the median of the "
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
