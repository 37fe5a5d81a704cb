"""The result matrix: a row per arm over its seeds; performance, stability and cost side by side."""

from collections.abc import Callable
from dataclasses import replace

from trl_prorl.eval.analysis.compare import verdicts
from trl_prorl.eval.analysis.frame import Frame, ReportArm, peak_memory
from trl_prorl.eval.analysis.stability import (
    COLLAPSE_SHARE,
    ENTROPY_SPIKE,
    GRADIENT_SPIKE,
    KL_SPIKE,
    NEIGHBOURS,
    SMOOTHING_STEPS,
    Spikes,
    entropy_spikes,
    gradient_spikes,
    has_collapsed,
    kl_spikes,
    largest_drop,
)
from trl_prorl.eval.pages.document import Section
from trl_prorl.eval.pages.table import NOT_MEASURED, Column, Table, cell, interval_cell, mean_cell, table_of
from trl_prorl.eval.run_folder.run import RecordedRun


PERFORMANCE = "Performance, held-out"
STABILITY = "Stability"
COST = "Cost"


def _worst(arm: ReportArm, measure: Callable[[RecordedRun], float | None]) -> float | None:
    return max(arm.values(lambda row: measure(row.run)), default=None)


def _pass_k_cell(arm: ReportArm) -> str:
    text = interval_cell(arm.at_largest_k, ".3f")
    return f"{text} (k={', '.join(map(str, arm.largest_ks))})" if arm.evaluated else text


def _collapsed_cell(arm: ReportArm) -> str:
    answers = arm.values(lambda row: has_collapsed(row.run))
    return f"{sum(answers)} of {len(answers)}" if answers else NOT_MEASURED


def _spikes_cell(arm: ReportArm, find: Callable[[RecordedRun], Spikes | None]) -> str:
    """Return the mean number in a run, and the largest of all runs: `1.5 (× 32)`."""
    found = arm.values(lambda row: find(row.run))
    count = mean_cell([spikes.count for spikes in found], ".3g")
    largest = max((spikes.largest for spikes in found if spikes.count), default=None)
    return count if largest is None else f"{count} (× {largest:,.3g})"


# A new column is an entry here.
COLUMNS = [
    Column(
        "arm",
        lambda arm: arm.label,
        "**arm**: a run by its folder, several seeds by what their folders have in common; in brackets the variant, "
        "where the folder does not say it, and the settings that set it apart from others of that variant and task. "
        "★: its held-out pass@1 is significantly higher than that of base and of every other variant of its task, "
        "base, length and learning rate.",
    ),
    Column(
        "seeds",
        lambda arm: str(arm.seeds),
        "**seeds**: pairs of a base's seed and a training seed; runs that differ only in seeds, paths and what no "
        "number depends on are one row.",
    ),
    Column(
        "pass@1",
        lambda arm: interval_cell(arm.sides["trained"], ".3f"),
        "**pass@1**, **pass@k**: held-out, of the trained model, the second at the largest k evaluated.",
        PERFORMANCE,
    ),
    Column("pass@k", _pass_k_cell, group=PERFORMANCE),
    Column(
        "gain",
        lambda arm: interval_cell(arm.gain(), "+.3f"),
        "**gain**: pass@1 of the trained model less that of base. In brackets 95 %: over prompts (bootstrap); where "
        "there are several seeds, the hull of that, the seeds averaged, and of Student's t over the seeds, wide while "
        "they are few.",
        PERFORMANCE,
    ),
    Column(
        "collapsed",
        _collapsed_cell,
        f"**collapsed**: runs whose mean training reward over the last 10 % of the steps (at least {SMOOTHING_STEPS}) "
        f"is below {COLLAPSE_SHARE:g} of the best mean over {SMOOTHING_STEPS} steps, or in which a loss or gradient "
        "was not finite, of the runs where that can be told.",
        STABILITY,
    ),
    Column(
        "KL spikes",
        lambda arm: _spikes_cell(arm, kl_spikes),
        "**KL spikes**, **entropy spikes**, **gradient spikes**: mean number in a run, and in brackets the largest of "
        "all seeds. A spike is a step whose value, of those above 0, is at least "
        f"{KL_SPIKE.factor:g} times (KL to the own anchor), {ENTROPY_SPIKE.factor:g} times (entropy) or "
        f"{GRADIENT_SPIKE.factor:g} times (norm of the gradient before it is clipped) the median of its neighbours, "
        f"the {NEIGHBOURS} steps on either side; KL and entropy also have to lie {KL_SPIKE.rise:g} and "
        f"{ENTROPY_SPIKE.rise:g} nats above it. Such steps in a row are one spike, told by the highest. The number in "
        "brackets is its multiple of that median.",
        STABILITY,
    ),
    Column("entropy spikes", lambda arm: _spikes_cell(arm, entropy_spikes), group=STABILITY),
    Column("gradient spikes", lambda arm: _spikes_cell(arm, gradient_spikes), group=STABILITY),
    Column(
        "largest drop",
        lambda arm: cell(_worst(arm, largest_drop), ".3f"),
        f"**largest drop**: the furthest the training reward (mean over {SMOOTHING_STEPS} steps) fell below its best "
        "so far; the worst seed.",
        STABILITY,
    ),
    Column(
        "step time / control",
        lambda arm: mean_cell(arm.values(lambda row: row.over_control), ".2f"),
        "**step time / control**: mean seconds of an optimizer step, validation during training included, over those "
        "of the control of the same seed, or of the first control; mean over seeds.",
        COST,
    ),
    Column(
        "tokens / s",
        lambda arm: mean_cell(arm.values(lambda row: row.throughput), ",.0f"),
        "**tokens / s**: completion tokens in the loss, in every pass, over the steps' seconds; mean over seeds.",
        COST,
    ),
    Column(
        "reference calls",
        lambda arm: mean_cell(arm.values(lambda row: row.reference_calls), ",.0f"),
        "**reference calls**: scoring forwards of the reference in a run; mean over seeds.",
        COST,
    ),
    Column(
        "reference share (%)",
        lambda arm: mean_cell([100 * share for share in arm.values(lambda row: row.reference_share)], ".1f"),
        "**reference share**: time spent on them, of the steps' time without validation.",
        COST,
    ),
    Column(
        "peak memory (GiB)",
        lambda arm: cell(_worst(arm, peak_memory), ".1f"),
        "**peak memory**: largest allocation on the GPU in any step; the worst seed.",
        COST,
    ),
]
DASH = (
    f"{NOT_MEASURED} means not measured, or not defined: a control's ratio without a control, the step time of a run "
    "beside which another one trained."
)


def result_matrix(frame: Frame) -> Table:
    """Performance, stability and cost of every arm."""
    best = {verdict.best.label for verdict in verdicts(frame) if verdict.is_significant}
    table = table_of("Result matrix", COLUMNS, frame.arms, definitions=[DASH])
    rows = []
    for label, *cells in table.rows:
        marked = f"{label} ★" if label in best else label
        rows.append([marked, *cells])
    return replace(table, rows=rows)


def sections(frame: Frame) -> list[Section]:
    return [Section("Result matrix", [result_matrix(frame)], open=True)]
