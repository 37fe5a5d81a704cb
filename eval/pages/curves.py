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


def sheet_panels(sheet: str, arms: list[ReportArm], validated: bool = False) -> list[Panel]:
    """Reward with gold, KL to the anchor, entropy and, if asked for, validation of some arms."""

    def panel(title, unit, draw, legend=True):
        return steps_panel(sheet + title, arms, draw, unit, legend)

    def metric(key, title, unit, smooth=running_mean):
        return panel(title, unit, lambda axes: draw_lines(axes, arms, lambda variant: key, smooth), legend=False)

    golden = [arm for arm in arms if arm.series("gold")]

    def reward(axes):
        """Gold, the share of correct completions, in the same panel: a reward that is gamed parts from it."""
        draw_lines(axes, arms, lambda variant: "reward", running_mean)
        draw_lines(axes, golden, lambda variant: "gold", running_mean, ": gold", linestyle=":", marker=None)

    def kl(axes):
        for variant in dict.fromkeys(arm.variant for arm in arms):
            same = [arm for arm in arms if arm.variant == variant]
            draw_lines(axes, same, kl_key, running_median_of_positive, f": {kl_key(variant)}")
        series = [values for arm in arms for values in arm.series(kl_key(arm.variant))]
        axes.set_yscale("symlog", linthresh=symlog_threshold(series), linscale=0.5)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter("{x:g}")  # powers of ten as mathematics take a second to set

    panels = [
        panel("Training reward, and gold (dotted)" if golden else "Training reward", "mean of the batch", reward),
        panel("KL to the arm's anchor", "nats per token (k3), symlog", kl),
        metric("entropy", "Entropy of the policy", "nats per token"),
    ]
    if validated:
        panels.append(metric("eval_reward", "Validation reward", "mean of the evaluation", lambda values: values))
    return panels


def stages_panel(frame: Frame) -> Panel:
    """Mean seconds of a step by stage, mean over the runs of an arm; what was not timed is not drawn."""

    def draw(axes):
        left = np.zeros(len(frame.arms))
        for stage, (colour, label) in STAGES.items():
            seconds = (arm.values(lambda row, stage=stage: stage_seconds(row, stage)) for arm in frame.arms)
            means = np.array([sum(values) / len(values) if values else 0.0 for values in seconds])
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
    alt, columns = "Reward, KL and entropy over optimizer steps", 3
    if len(found) > 1:
        text, columns = f"{text} {SHEETS_NOTE}", len(panels[0])
    return [Section("Curves", [Picture("summary.png", alt, caption(frame, text), sum(panels, []), columns)])]
