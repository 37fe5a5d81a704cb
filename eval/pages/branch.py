"""The trials of a branch: their picture, and which one is better than the control."""

from collections import Counter
from functools import partial

from trl_prorl.eval.analysis.frame import Frame, RunGroup
from trl_prorl.eval.analysis.pairs import Comparison
from trl_prorl.eval.pages.comparison import scores_panel
from trl_prorl.eval.pages.curves import draw_kl, draw_share, draw_smooth
from trl_prorl.eval.pages.plotting import Picture, steps_panel
from trl_prorl.eval.run_folder.run import OWN_KL, RecordedRun


CURVES = (
    ("reward", "Training reward", "batch mean", draw_smooth),
    (OWN_KL, "KL to its reference", "nats per token (k3), symlog", draw_kl),
    ("accuracy", "Training accuracy", "share of the batch", draw_share),
)
ONE_SEED = "Each trial is one training run: the intervals are over prompts and do not include the luck of training."


def group_trials(runs: list[RecordedRun]) -> list[RunGroup]:
    """Return each trial as a group of its own, under its name, with its place among those of its colour."""
    places = Counter()
    groups = []
    for row in Frame(runs).rows:
        groups.append(RunGroup(row.run.name, row.run.name, [row], places[row.run.variant]))
        places[row.run.variant] += 1
    return groups


def find_winner(comparisons: list[Comparison]) -> str | None:
    """
    Return the trial to go on with: of those that are significantly better than the control in the first outcome, the
    one with the highest score; `None` if there is none.
    """
    better = [row for row in comparisons if row.outcome == comparisons[0].outcome and row.favours(row.first)]
    return max(better, key=lambda row: row.first_value).first if better else None


def branch_picture(groups: list[RunGroup]) -> Picture:
    """Return curves of reward, KL and accuracy since the branch, and the held-out scores."""
    panels = []
    for key, title, unit, draw in CURVES:
        if any(group.series(key) for group in groups):
            panels.append(steps_panel(title, groups, partial(draw, key=key), unit, legend=not panels))
    return Picture(
        "branch.png", "Reward, KL, accuracy and held-out scores of the trials", "", [*panels, scores_panel(groups)]
    )
