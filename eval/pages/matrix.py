"""The result matrix: a row per configuration over its seeds; performance, stability and cost side by side."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from trl_prorl.eval.analysis.best import verdicts
from trl_prorl.eval.analysis.cost import peak_memory, reference_share, step_time_over_control, throughput
from trl_prorl.eval.analysis.names import configuration_labels, unnamed_settings
from trl_prorl.eval.analysis.over_seeds import prompts_and_seeds, spread, worst
from trl_prorl.eval.analysis.pairing import same_prompts
from trl_prorl.eval.analysis.passk import largest_k, per_prompt, score
from trl_prorl.eval.analysis.repetitions import mean_measured, repetitions, seed_count
from trl_prorl.eval.analysis.smoothing import SMOOTHING_STEPS
from trl_prorl.eval.analysis.spikes import ENTROPY_SPIKE, KL_SPIKE, NEIGHBOURS, Spikes
from trl_prorl.eval.analysis.stability import (
    COLLAPSE_SHARE,
    collapsed,
    entropy_spikes,
    gradient_spike,
    kl_spikes,
    largest_drop,
)
from trl_prorl.eval.analysis.statistics import Estimate
from trl_prorl.eval.pages.cells import NOT_MEASURED, cell, interval_cell, percent_cell
from trl_prorl.eval.pages.document import Section
from trl_prorl.eval.pages.objective import objective_notes
from trl_prorl.eval.pages.table import Column, Table, table_of
from trl_prorl.eval.run_folder.run import Run


PERFORMANCE, STABILITY, COST = "Performance, held-out", "Stability", "Cost"


@dataclass(frozen=True)
class Configuration:
    """
    A row of the matrix.

    Attributes:
        label (`str`): The variant, with the settings that set it apart.
        runs (`list[Run]`): Its runs, which differ in seeds alone.
        all_runs (`list[Run]`): Every run of the report, among them the controls.
    """

    label: str
    runs: list[Run]
    all_runs: list[Run]

    def mean(self, measure: Callable[[Run], float | None]) -> float | None:
        return mean_measured([measure(run) for run in self.runs])

    def worst(self, measure: Callable[[Run], float | None]) -> float | None:
        return worst([measure(run) for run in self.runs])

    def score_cell(self, values_of: Callable[[Run], np.ndarray], spec: str, least: float = 0.0) -> str:
        """A score, whose value at each prompt is at least `least`, with its interval over prompts and seeds."""
        evaluated = [run for run in self.runs if run.passk]
        same = all(same_prompts(evaluated[0], run) for run in evaluated)
        estimate = prompts_and_seeds([values_of(run) for run in evaluated], same, least)
        # A t-interval of two shares may leave the range they can take.
        return interval_cell(estimate and Estimate(*np.clip(estimate, least, 1.0).tolist()), spec)


def _ks(runs: list[Run]) -> list[int]:
    """The largest k of each run's evaluation, each once."""
    return sorted({largest_k(run) for run in runs} - {None})


def _pass_k_heading(rows: list[Configuration]) -> str:
    ks = _ks(rows[0].all_runs)
    return f"pass@{ks[0]}" if len(ks) == 1 else "pass@k"


def _pass_k_cell(row: Configuration) -> str:
    ks = _ks(row.runs)
    text = row.score_cell(lambda run: per_prompt(run.passk, "trained", largest_k(run)), ".3f")
    return f"{text} (k={', '.join(map(str, ks))})" if ks and len(_ks(row.all_runs)) > 1 else text


def _gain_per_prompt(run: Run) -> np.ndarray:
    return per_prompt(run.passk, "trained") - per_prompt(run.passk, "base")


def _collapsed_cell(row: Configuration) -> str:
    answers = [answer for run in row.runs if (answer := collapsed(run)) is not None]
    return f"{sum(answers)} of {len(answers)}" if answers else NOT_MEASURED


def _spikes_cell(row: Configuration, find: Callable[[Run], Spikes | None]) -> str:
    """Mean number in a run, and the largest of all runs: `1.5 (× 32)`."""
    found = [spikes for run in row.runs if (spikes := find(run)) is not None]
    if not found:
        return NOT_MEASURED
    largest = worst([spikes.largest for spikes in found])
    count = cell(mean_measured([spikes.count for spikes in found]), ".3g")
    return count if largest is None else f"{count} (× {largest:,.3g})"


# A new column is an entry here.
COLUMNS = [
    Column(
        "variant",
        lambda row: row.label,
        "**variant**: with the settings that set it apart where there are several of that variant and task; ★ is the "
        "highest held-out pass@1 of its task, base, length and learning rate.",
    ),
    Column(
        "seeds",
        lambda row: str(seed_count(row.runs)),
        "**seeds**: pairs of a base's seed and a training seed; runs that differ only in seeds, paths and what no "
        "number depends on are one row.",
    ),
    Column(
        "pass@1",
        lambda row: row.score_cell(lambda run: per_prompt(run.passk, "trained"), ".3f"),
        "**pass@1**, **pass@k**: held-out, of the trained model, the second at the largest k evaluated.",
        PERFORMANCE,
    ),
    Column(_pass_k_heading, _pass_k_cell, group=PERFORMANCE),
    Column(
        "gain",
        lambda row: row.score_cell(_gain_per_prompt, "+.3f", least=-1.0),
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
        "gradient spike (× median)",
        lambda row: cell(row.worst(gradient_spike), ".1f"),
        "**gradient spike**: the largest gradient norm of a run over its median one, before clipping; the worst seed.",
        STABILITY,
    ),
    Column(
        "KL spikes",
        lambda row: _spikes_cell(row, kl_spikes),
        "**KL spikes**, **entropy spikes**: mean number in a run, and in brackets the largest of all seeds. A "
        f"spike is a step whose value, of those above 0, is at least {KL_SPIKE.factor:g} times (KL to the own anchor) "
        f"or {ENTROPY_SPIKE.factor:g} times (entropy) the median of its neighbours, the {NEIGHBOURS} steps on either "
        f"side, and lies at least {KL_SPIKE.rise:g} or {ENTROPY_SPIKE.rise:g} nats above it; such steps in a row are "
        "one spike, told by the highest. The number in brackets is its multiple of that median.",
        STABILITY,
    ),
    Column("entropy spikes", lambda row: _spikes_cell(row, entropy_spikes), group=STABILITY),
    Column(
        "largest drop",
        lambda row: cell(row.worst(largest_drop), ".3f"),
        f"**largest drop**: the furthest the training reward (mean over {SMOOTHING_STEPS} steps) fell below its best "
        "so far; the worst seed.",
        STABILITY,
    ),
    Column(
        "seed spread",
        lambda row: cell(spread([score(run, "trained", 1) for run in row.runs]), ".3f"),
        "**seed spread**: highest less lowest held-out pass@1 of the trained model among the seeds.",
        STABILITY,
    ),
    Column(
        "step time / control",
        lambda row: cell(row.mean(lambda run: step_time_over_control(run, row.all_runs)), ".2f"),
        "**step time / control**: mean seconds of an optimizer step, validation during training included, over those "
        "of the control of the same seed, or of the first control; mean over seeds.",
        COST,
    ),
    Column(
        "tokens / s",
        lambda row: cell(row.mean(throughput), ",.0f"),
        "**tokens / s**: completion tokens in the loss, in every pass, over the steps' seconds; mean over seeds.",
        COST,
    ),
    Column(
        "reference calls",
        lambda row: cell(row.mean(lambda run: run.total("ref_forward_calls")), ",.0f"),
        "**reference calls**: scoring forwards of the reference in a run; mean over seeds.",
        COST,
    ),
    Column(
        "reference share (%)",
        lambda row: percent_cell(row.mean(reference_share), ".1f"),
        "**reference share**: time spent on them, of the steps' time without validation.",
        COST,
    ),
    Column(
        "peak memory (GiB)",
        lambda row: cell(row.worst(peak_memory), ".1f"),
        "**peak memory**: largest allocation on the GPU in any step; the worst seed.",
        COST,
    ),
]
DASH = f"{NOT_MEASURED} means not measured, or not defined: a control's ratio without a control, a spread of one seed."


def result_matrix(runs: list[Run]) -> Table:
    """
    Performance, stability and cost of every configuration.

    Args:
        runs (`list[Run]`): The runs, sorted.
    """
    groups = repetitions(runs)
    best = {verdict.best.label for verdict in verdicts(runs) if verdict.arms > 1}
    rows = [
        Configuration(f"{label} ★" if label in best else label, group, runs)
        for label, group in zip(configuration_labels(groups), groups, strict=True)
    ]
    unnamed = [f"A name leaves out what most runs have: {line}." for line in unnamed_settings(groups)]
    return table_of("Result matrix", COLUMNS, rows, objective_notes(runs), [DASH, *unnamed])


def sections(runs: list[Run]) -> list[Section]:
    matrix = result_matrix(runs)
    return [Section(matrix.title, [matrix])]
