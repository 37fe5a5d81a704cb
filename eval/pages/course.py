"""Curves over optimizer steps: reward beside gold, KL, entropy, throughput, validation; the stages of a step."""

from functools import partial

from trl_prorl.eval.analysis.cost import stage_seconds
from trl_prorl.eval.analysis.frame import Arm, Frame
from trl_prorl.eval.analysis.smoothing import SMOOTHING_STEPS, running_mean, running_median_of_positive
from trl_prorl.eval.analysis.stability import kl_key
from trl_prorl.eval.pages.curves import (
    MOST_RESETS,
    SHEETS_NOTE,
    Panel,
    draw_lines,
    marks_note,
    sheets,
    steps_panel,
    symlog_threshold,
    titled,
    with_band_note,
)
from trl_prorl.eval.pages.document import Picture, Section


STAGES = {"rollout": "#BBBBBB", "old": "#F0E442", "ref": "#CC79A7", "update": "#56B4E9"}
STAGE_LABELS = {"rollout": "rollout", "old": "old scoring", "ref": "reference scoring", "update": "update"}


def sheet_panels(sheet: str, arms: list[Arm]) -> list[Panel]:
    """Reward with gold, KL to the anchor, entropy and throughput of some arms."""

    def metric(key, title, unit, **settings):
        draw = partial(draw_lines, arms=arms, key_of=lambda variant: key, smooth=running_mean)
        return steps_panel(titled(sheet, title), arms, draw, ylabel=unit, **settings)

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

    title = "Training reward, and gold (dotted)" if golden else "Training reward"
    return [
        steps_panel(titled(sheet, title), arms, reward, ylabel="mean of the batch"),
        steps_panel(titled(sheet, "KL to the arm's anchor"), arms, kl, ylabel="nats per token (k3), symlog"),
        metric("entropy", "Entropy of the policy", "nats per token"),
        metric("tokens_per_second", "Throughput", "completion tokens in the loss per second"),
    ]


def validation_panels(frame: Frame) -> list[Panel]:
    """Reward of the evaluations during training, which a reset may wait for; empty if no run has any."""
    draw = partial(draw_lines, key_of=lambda variant: "eval_reward")
    return [
        steps_panel(
            titled(sheet, "Validation reward"), arms, partial(draw, arms=arms), ylabel="mean of the evaluation"
        )
        for sheet, arms in sheets(frame)
        if any(arm.series("eval_reward") for arm in arms)
    ]


def stages_panel(frame: Frame) -> Panel:
    """Mean seconds of a step by stage, mean over the runs of an arm; what was not timed is not drawn."""

    def draw(axes):
        for stage, colour in STAGES.items():
            axes.barh(-1, 0, color=colour, label=STAGE_LABELS[stage])
        for place, arm in enumerate(frame.arms):
            left = 0.0
            for stage, colour in STAGES.items():
                seconds = arm.values(lambda row, stage=stage: stage_seconds(row.run, stage))
                if seconds:
                    mean = sum(seconds) / len(seconds)
                    axes.barh(place, mean, left=left, color=colour, edgecolor="white", linewidth=0.5)
                    left += mean
        axes.set_yticks(range(len(frame.arms)), [arm.legend for arm in frame.arms])
        axes.set(ylim=(len(frame.arms) - 0.5, -0.5), title="Mean time of a step, by stage", xlabel="seconds")
        axes.grid(alpha=0.2, axis="x")

    alt = "Mean seconds of a step, split into rollout, old scoring, reference scoring and update"
    return Panel(alt, draw, len(frame.arms))


def sections(frame: Frame) -> list[Section]:
    found = sheets(frame)
    caption = with_band_note(
        frame,
        f"Smoothed over {SMOOTHING_STEPS} steps (mean; KL: median of the steps where it is positive), as recorded "
        f"behind it in faint. {marks_note(frame)} Their colour is the arm's; the mark at the top of a line says why; "
        f"the resets of an arm with more than {MOST_RESETS} are not marked.",
    )
    panels = [panel for sheet, arms in found for panel in sheet_panels(sheet, arms)]
    alt = "Reward, KL, entropy and throughput over optimizer steps"
    together = len(found) == 1
    pictures = [
        Picture("summary.png", alt, caption if together else f"{caption} {SHEETS_NOTE}", panels, 2 if together else 4)
    ]
    if panels := validation_panels(frame):
        caption = with_band_note(frame, "Evaluations during training, as `evaluations.jsonl` has them.")
        pictures.append(Picture("validation.png", "Validation reward over optimizer steps", caption, panels))
    return [Section("Curves", pictures)]
