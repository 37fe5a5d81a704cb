"""Curves over optimizer steps: reward beside gold, KL, entropy, validation; the stages of a step."""

import numpy as np

from trl_prorl.eval.analysis.frame import Frame, ReportArm, stage_seconds
from trl_prorl.eval.analysis.stability import SMOOTHING_STEPS, kl_key, running_mean, running_median_of_positive
from trl_prorl.eval.pages.document import Picture, Section
from trl_prorl.eval.pages.plotting import (
    SHEETS_NOTE,
    Panel,
    caption,
    draw_lines,
    sheets,
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


def draw_validation(axes, arms: list[ReportArm]) -> None:
    """Draw the reward of the evaluations during training, as measured."""
    draw_lines(axes, arms, lambda variant: "eval_reward", lambda values: values)


def _with_gold(arms: list[ReportArm]) -> list[ReportArm]:
    return [arm for arm in arms if arm.series("gold")]


def sheet_panels(sheet: str, arms: list[ReportArm], validated: bool = False) -> list[Panel]:
    """Return the panels of some arms: reward with gold, KL to the anchor, entropy and, if `validated`, validation."""
    reward = "Training reward, and gold (dotted)" if _with_gold(arms) else "Training reward"
    panels = [
        steps_panel(sheet + reward, arms, draw_reward, "mean of the batch"),
        steps_panel(f"{sheet}KL to the arm's anchor", arms, draw_kl, "nats per token (k3), symlog"),
        steps_panel(f"{sheet}Entropy of the policy", arms, draw_entropy, "nats per token", legend=False),
    ]
    if validated:
        title = f"{sheet}Validation reward"
        panels.append(steps_panel(title, arms, draw_validation, "mean of the evaluation", legend=False))
    return panels


def _mean_stage_seconds(arm: ReportArm, stage: str) -> float:
    """Return the mean over the runs of an arm that were timed; 0 without any."""
    seconds = arm.values(lambda row: stage_seconds(row, stage))
    return sum(seconds) / len(seconds) if seconds else 0.0


def stages_panel(frame: Frame) -> Panel:
    """Return the mean seconds of a step by stage, mean over the runs of an arm; what was not timed is not drawn."""

    def draw(axes):
        left = np.zeros(len(frame.arms))
        for stage, (colour, label) in STAGES.items():
            means = np.array([_mean_stage_seconds(arm, stage) for arm in frame.arms])
            axes.barh(range(len(left)), means, left=left, color=colour, label=label)
            left += means
        axes.set_yticks(range(len(frame.arms)), [arm.legend for arm in frame.arms])
        axes.set_title("Mean time of a step, by stage", loc="right")
        axes.set(ylim=(len(frame.arms) - 0.5, -0.5), xlabel="seconds")
        axes.grid(alpha=0.2, axis="x")

    alt = "Mean seconds of a step, split into rollout, old scoring, reference scoring and update"
    return Panel(alt, draw, len(frame.arms))


def sections(frame: Frame) -> list[Section]:
    found = sheets(frame)
    text = (
        f"Smoothed over {SMOOTHING_STEPS} steps (mean; KL: median of the steps where it is positive), as recorded "
        "behind it in faint; the validation reward is that of the evaluations during training."
    )
    validated = any(arm.series("eval_reward") for arm in frame.arms)
    panels = [sheet_panels(sheet, arms, validated) for sheet, arms in found]
    columns = 3
    if len(found) > 1:
        text = f"{text} {SHEETS_NOTE}"
        columns = len(panels[0])
    alt = "Reward, KL and entropy over optimizer steps"
    picture = Picture("summary.png", alt, caption(frame, text), sum(panels, []), columns)
    return [Section("Curves", [picture])]
