"""The result matrix: a row per variant over its seeds, with performance, stability and cost."""

from collections.abc import Callable

from trl_prorl.eval.analysis.frame import Frame, RunGroup
from trl_prorl.eval.analysis.pairs import verdicts
from trl_prorl.eval.analysis.sampled_scores import largest_k
from trl_prorl.eval.analysis.stability import (
    ENTROPY_SPIKE,
    GRADIENT_SPIKE,
    KL_SPIKE,
    LOST_SHARE,
    NEIGHBOURS,
    NOISES,
    SMOOTHING_STEPS,
    SpikeRule,
    has_collapsed,
    largest_drop,
    spikes,
)
from trl_prorl.eval.pages.page import Section
from trl_prorl.eval.pages.table import NOT_MEASURED, Column, Table, cell, interval_cell, mean_cell, table_of
from trl_prorl.eval.run_folder.run import OWN_KL, RecordedRun
from trl_prorl.keys import LOWER_THE_REWARD


PERFORMANCE = "Performance, held-out"
STABILITY = "Stability"
COST = "Cost"


def _worst(group: RunGroup, measure: Callable[[RecordedRun], float | None]) -> float | None:
    return max(group.values(lambda row: measure(row.run)), default=None)


def _peak_memory(run: RecordedRun) -> float | None:
    values = run.measured("peak_memory_gib")
    return None if values is None else float(values.max())


def _pass_k_cell(group: RunGroup) -> str:
    text = interval_cell(group.at_largest_k(), ".3f")
    ks = sorted({largest_k(run) for run in group.evaluated})
    return f"{text} (k={', '.join(map(str, ks))})" if ks else text


def _collapsed_cell(group: RunGroup) -> str:
    answers = group.values(lambda row: has_collapsed(row.run))
    return f"{sum(answers)} of {len(answers)}" if answers else NOT_MEASURED


def _spikes_cell(group: RunGroup, key: str, rule: SpikeRule) -> str:
    """Return the mean number per run, and the largest over all runs: `1.5 (× 32)`."""
    per_run = group.values(lambda row: spikes(row.run, key, rule))
    count = mean_cell([len(highest) for highest in per_run], ".3g")
    largest = max((highest.max() for highest in per_run if len(highest)), default=None)
    return count if largest is None else f"{count} (× {largest:,.3g})"


# To add a column, add an entry.
COLUMNS = [
    Column(
        "variant",
        lambda group: group.label,
        "variant: the folder of a run, or the common part of the folders of its seeds. In parentheses: the "
        "variant, if the folder's name does not contain it, and the settings that differ from other runs of that "
        "variant and task. ★: its held-out pass@1 is significantly higher than that of base and of every other "
        "variant with the same task, starting model, length and learning rate.",
    ),
    Column(
        "seeds",
        lambda group: str(len(group.rows)),
        "seeds: number of runs that differ only in the seeds of base and training, in paths, and in keys that "
        "change no number; they share a row.",
    ),
    Column(
        "pass@1",
        lambda group: interval_cell(group.sides["trained"], ".3f"),
        "pass@1, pass@k: held-out scores of the trained model; pass@k at the largest evaluated k.",
        PERFORMANCE,
    ),
    Column("pass@k", _pass_k_cell, group=PERFORMANCE),
    Column(
        "gain",
        lambda group: interval_cell(group.gain(), "+.3f"),
        "gain: pass@1 of the trained model − base. 95 % intervals in brackets: over prompts; with "
        "several seeds, the hull of that interval (seeds averaged) and of a t-interval over seeds, which is wide with "
        "few seeds.",
        PERFORMANCE,
    ),
    Column(
        "collapsed",
        _collapsed_cell,
        f"collapsed: runs whose median training reward over the last 10 % of the steps (at least {SMOOTHING_STEPS}) "
        f"has fallen from the best mean over {SMOOTHING_STEPS} steps by {LOST_SHARE:.0%} of the rise from the first "
        f"one, and by {NOISES:g} standard deviations of a step's reward, or with a loss or gradient that was not "
        "finite; of the runs that measured it. Keys that lower the reward by themselves "
        f"({', '.join(LOWER_THE_REWARD)}) leave it open.",
        STABILITY,
    ),
    Column(
        "KL spikes",
        lambda group: _spikes_cell(group, OWN_KL, KL_SPIKE),
        "KL spikes, entropy spikes, gradient spikes: mean number per run; in parentheses the largest "
        "spike of all seeds, as a multiple of the median. A spike is a positive value of at least "
        f"{KL_SPIKE.factor:g} times (KL to its reference; B: to the old policy), {ENTROPY_SPIKE.factor:g} times "
        f"(entropy) or {GRADIENT_SPIKE.factor:g} times (gradient norm before clipping) the median of the "
        f"{NEIGHBOURS} steps on either side. KL and entropy must also exceed it by {KL_SPIKE.rise:g} and "
        f"{ENTROPY_SPIKE.rise:g} nats. "
        "Consecutive spikes count as one.",
        STABILITY,
    ),
    Column("entropy spikes", lambda group: _spikes_cell(group, "entropy", ENTROPY_SPIKE), group=STABILITY),
    Column("gradient spikes", lambda group: _spikes_cell(group, "grad_norm", GRADIENT_SPIKE), group=STABILITY),
    Column(
        "largest drop",
        lambda group: cell(_worst(group, largest_drop), ".3f"),
        f"largest drop: largest drop of the training reward (mean over {SMOOTHING_STEPS} steps) below its best so "
        "far; worst seed.",
        STABILITY,
    ),
    Column(
        "step time / control",
        lambda group: mean_cell(group.values(lambda row: row.over_control), ".2f"),
        "step time / control: mean seconds per optimizer step, including validation during training, divided by "
        "those of the control of the same seed, or else of another with the same task, model and settings; mean "
        "over seeds.",
        COST,
    ),
    Column(
        "tokens / s",
        lambda group: mean_cell(group.values(lambda row: row.throughput), ",.0f"),
        "tokens / s: completion tokens in the loss, counted in every pass, per second of step time; mean over seeds.",
        COST,
    ),
    Column(
        "reference calls",
        lambda group: mean_cell(group.values(lambda row: row.reference_calls), ",.0f"),
        "reference calls: forward passes of the reference per run; mean over seeds.",
        COST,
    ),
    Column(
        "reference share (%)",
        lambda group: mean_cell([100 * share for share in group.values(lambda row: row.reference_share)], ".1f"),
        "reference share: share of the step time spent on them, without validation.",
        COST,
    ),
    Column(
        "peak memory (GiB)",
        lambda group: cell(_worst(group, _peak_memory), ".1f"),
        "peak memory: largest GPU allocation in any step; worst seed.",
        COST,
    ),
]


def result_matrix(frame: Frame) -> Table:
    """Return performance, stability and cost of every variant."""
    dash = f"{NOT_MEASURED} means not measured, or not defined: a ratio without a control."
    table = table_of("Result matrix", COLUMNS, frame.groups, definitions=[dash])
    best = {verdict.best for verdict in verdicts(frame) if verdict.is_significant}
    for group, cells in zip(frame.groups, table.rows, strict=True):
        if group in best:
            cells[0] += " ★"
    return table


def section(frame: Frame) -> Section:
    return Section("Result matrix", tables=[result_matrix(frame)], open=True)
