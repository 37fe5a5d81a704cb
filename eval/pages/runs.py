"""The runs one by one: scores and cost."""

from collections.abc import Callable

import numpy as np

from trl_prorl.cli.variants import VARIANTS
from trl_prorl.eval.analysis.configurations import says_variant
from trl_prorl.eval.analysis.frame import Frame, Row
from trl_prorl.eval.analysis.sampled_scores import score
from trl_prorl.eval.analysis.stability import first_mean, last_mean
from trl_prorl.eval.analysis.timing import parallel_notes
from trl_prorl.eval.pages.curves import obstacle_to_curves
from trl_prorl.eval.pages.document import Section
from trl_prorl.eval.pages.plotting import Panel, Picture, bars_panel, run_label, with_curves
from trl_prorl.eval.pages.table import (
    NOT_MEASURED,
    Column,
    Table,
    arrow_cell,
    cell,
    interval_cell,
    sides_cell,
    table_of,
)
from trl_prorl.run.log_files import SIDES


STAGES = {  # colour and label
    "rollout": ("#BBBBBB", "rollout"),
    "old": ("#F0E442", "scoring, old policy"),
    "ref": ("#CC79A7", "scoring, reference"),
    "update": ("#56B4E9", "update"),
}


def _where_measured(heading: str, text: Callable[[Row], str]) -> Column:
    """Return a column that appears if any run has its number."""
    return Column(heading, text, applies=lambda rows: any(text(row) != NOT_MEASURED for row in rows))


def _both_sides(heading: str, spec: str, key: str, part: str | None = None) -> Column:
    """Return a column `base → trained` for a number of the held-out evaluation, or of a part of it."""

    def text(row):
        passk = row.run.passk or {}
        sides = passk.get(part, {}) if part else passk
        return arrow_cell([sides.get(side, {}).get(key) for side in SIDES], spec)

    return _where_measured(heading, text)


def _last(key: str, spec: str) -> Callable[[Row], str]:
    return lambda row: cell(last_mean(row.run.measured(key)), spec)


def _pass_at(k: int) -> Column:
    def text(row):
        estimate = score(row.run, "trained", k)
        return cell(estimate and estimate.value, ".3f")

    return Column(f"pass@{k}", text)


def _reward(row: Row) -> str:
    reward = row.run.measured("reward")
    return arrow_cell([first_mean(reward), last_mean(reward)], ".3f")


def _anchor(row: Row) -> str:
    """Return the policy to which its KL was taken."""
    return VARIANTS["control"].anchor if row.run.without_reset else row.run.kind.anchor


RESETS_COLUMN = Column("resets", lambda row: NOT_MEASURED if row.resets is None else str(row.resets))

LEARNED = [
    Column("run", lambda row: row.run.name),
    Column("variant", lambda row: row.run.kind.label),
    Column("anchor", _anchor),
    RESETS_COLUMN,
    Column("steps", lambda row: str(row.run.last_step)),
    Column("training reward, first 5 % → last 10 %", _reward),
    Column("held-out pass@1, base → trained [95 %]", lambda row: sides_cell(row.base, row.trained, ".3f")),
    Column("gain in pass@1 [95 %]", lambda row: interval_cell(row.gain, "+.3f")),
    _pass_at(4),
    _pass_at(8),
    _both_sides("greedy accuracy", ".3f", "accuracy", "greedy"),
    _both_sides("tokens per sample", ".1f", "mean_tokens"),
    _both_sides("truncated samples", ".3f", "truncated"),
    _where_measured("final accuracy", _last("accuracy", ".3f")),
    Column("final kl_ref", _last("kl_ref", ".2e")),
    Column("final kl_old", _last("kl_old", ".2e")),
    _where_measured("final clip ratio", _last("clip_region_mean", ".4f")),
]
OVERVIEW = [
    Column("run", lambda row: row.run.name if says_variant(row.run.name, row.run.variant) else run_label(row.run)),
    Column("pass@1, base → trained", lambda row: sides_cell(row.base, row.trained, ".2f")),
    RESETS_COLUMN,
    Column("ref calls", lambda row: cell(row.reference_calls, ",.0f")),
    Column("ref %", lambda row: cell(row.reference_share and 100 * row.reference_share, ".0f")),
    Column("s/step", lambda row: cell(row.seconds, ".2f")),
    Column("/control", lambda row: cell(row.over_control, ".2f")),
]


def overview_table(frame: Frame) -> Table:
    """Return held-out pass@1 and cost, a row per run."""
    notes = [
        "ref calls: forward passes of the reference in the run; ref %: their share of the time; s/step: mean seconds "
        f"per step, including validation; /control: divided by the control's. {NOT_MEASURED} means not measured.",
        *parallel_notes(frame.parallel),
    ]
    return table_of("Held-out pass@1 [95 % over prompts] and cost", OVERVIEW, frame.rows, notes)


def learned(frame: Frame) -> Section:
    """Return reward, held-out scores and KL of each run, a row each."""
    notes = [
        "A single pass@k is that of the trained model. Truncated: the sample reached the length limit. KL: mean k3 "
        "estimate in nats per token. Clip ratio: share of clipped tokens. Accuracy: share of correct "
        f"training completions. Final: mean over the last 10 % of the steps. {NOT_MEASURED} means not measured."
    ]
    return Section("Run by run", [table_of("Run by run", LEARNED, frame.rows, notes)])


def stages_panel(frame: Frame) -> Panel | None:
    """Return the mean seconds of a step by stage, over the timed runs of a variant; `None` without one."""
    groups = with_curves(frame.groups)
    means = {}
    for stage in STAGES:
        seconds = [group.values(lambda row, stage=stage: row.stage_seconds(stage)) for group in groups]
        means[stage] = np.array([np.mean(values) if values else 0.0 for values in seconds])
    if not any(row.timed and obstacle_to_curves(row.run) is None for row in frame.rows):
        return None

    def draw(axes):
        left = np.zeros(len(groups))
        for stage, (colour, label) in STAGES.items():
            axes.barh(range(len(groups)), means[stage], left=left, color=colour, label=label)
            left += means[stage]

    alt = "Mean seconds per step: rollout, scoring with the old policy and the reference, update"
    return bars_panel("Mean step time by stage", alt, [group.legend for group in groups], "seconds", draw)


def costs(frame: Frame) -> Section:
    blocks = [overview_table(frame)]
    panel = stages_panel(frame)
    if panel is not None:
        text = "Means over runs."
        if frame.parallel:
            text += " Variants without a bar have no run that trained alone."
        blocks.append(Picture("ref_cost.png", "Mean step time by stage", text, [panel]))
    return Section("Cost", blocks)
