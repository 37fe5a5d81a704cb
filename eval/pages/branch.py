"""The trials of a branch, and their picture."""

from functools import partial

from trl_prorl.eval.analysis.frame import Frame, RunGroup
from trl_prorl.eval.pages.comparison import scores_panel
from trl_prorl.eval.pages.curves import draw_kl, draw_share
from trl_prorl.eval.pages.plotting import Picture, draw_lines, steps_panel
from trl_prorl.eval.run_folder.run import OWN_KL, RecordedRun


CURVES = (
    ("reward", "Training reward", "batch mean", draw_lines),
    (OWN_KL, "KL to its reference", "nats per token (k3), symlog", draw_kl),
    ("accuracy", "Training accuracy", "share of the batch", draw_share),
)
ONE_SEED = "Each trial is one training run: the intervals are over prompts and do not include the luck of training."


def group_trials(runs: list[RecordedRun]) -> list[RunGroup]:
    """Return each trial as a group of its own, under its name."""
    return [RunGroup(row.run.name, row.run.name, [row], place) for place, row in enumerate(Frame(runs).rows)]


def branch_picture(groups: list[RunGroup]) -> Picture:
    """Return curves of reward, KL and accuracy since the branch, and the held-out scores."""
    panels = []
    for key, title, unit, draw in CURVES:
        if any(group.series(key) for group in groups):
            panels.append(steps_panel(title, groups, partial(draw, key=key), unit, legend=not panels))
    return Picture(
        "branch.png", "Reward, KL, accuracy and held-out scores of the trials", "", [*panels, scores_panel(groups)]
    )
