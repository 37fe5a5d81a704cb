"""The result matrix: a row per configuration over its seeds; performance, stability and cost side by side."""

import numpy as np

from eval.runs import Run
from eval.stability import COLLAPSE_SHARE, SMOOTHING_STEPS, collapsed, gradient_spike, largest_drop
from eval.statements import same_prompts
from eval.statistics import Estimate, bootstrap_interval, t_interval
from eval.tables import (
    NOT_MEASURED,
    Table,
    cell,
    configuration_labels,
    control_of,
    held_out,
    interval_cell,
    mean_measured,
    mean_step_seconds,
    objective_notes,
    per_prompt,
    reference_share,
    repetitions,
    seed_count,
)


DEFINITIONS = [
    "**variant**: with the settings that set it apart where there are several of that variant. **seeds**: training "
    "seeds; runs that differ only in seeds, paths and what no number depends on are one row.",
    "**pass@1**, **pass@k**: held-out, of the trained model, the second at the largest k evaluated. **gain**: pass@1 of "
    "the trained model less that of base. In brackets 95 %: over prompts (bootstrap); where there are several "
    "seeds, the hull of that, the seeds averaged, and of Student's t over the seeds, wide while they are few.",
    f"**collapsed**: runs whose mean training reward over the last 10 % of the steps (at least 10) is below {COLLAPSE_SHARE:g} of the "
    f"best mean over {SMOOTHING_STEPS} steps, or in which a loss or gradient was not finite, of the runs where that can be "
    "told.",
    "**gradient spike**: the largest gradient norm of a run over its median one, before clipping; the worst seed.",
    f"**largest drop**: the furthest the training reward (mean over {SMOOTHING_STEPS} steps) fell below its best so far; "
    "the worst seed.",
    "**seed spread**: highest less lowest held-out pass@1 of the trained model among the seeds.",
    "**step time / control**: mean seconds of an optimizer step, validation during training included, over those of the "
    "control of the same seed, or of the first control; mean over seeds. **reference calls**: scoring forwards of the "
    "reference in a run; mean over seeds. **reference share**: time spent on them, of the steps' time without validation. "
    "**peak memory**: largest allocation on the GPU in any step; the worst seed.",
    f"{NOT_MEASURED} means not measured, or not defined: a control's ratio without a control, a spread of one seed.",
]


def largest_k(run: Run) -> int | None:
    """The largest k of the held-out evaluation; `None` if the run was not evaluated."""
    return max(run.passk["k"]) if run.passk else None


def step_time_over_control(run: Run, runs: list[Run]) -> float | None:
    control = control_of(run, runs)
    seconds, control_seconds = mean_step_seconds(run), mean_step_seconds(control) if control else None
    return seconds / control_seconds if seconds and control_seconds else None


def prompts_and_seeds(values: list[np.ndarray], same: bool, least: float = 0.0) -> Estimate | None:
    """
    Mean over runs with an interval that covers the choice of prompts and, where there are several runs, of seeds.

    Args:
        values (`list[np.ndarray]`): One value per prompt for each run, shape (P,) each.
        same (`bool`): Whether the prompts are the same in all runs; if not, only the t-interval over runs is left.
        least (`float`, *optional*, defaults to `0.0`): The least value a prompt can have.

    Returns:
        [`Estimate`] or `None`: The hull of the two intervals; `None` without runs.
    """
    if not values:
        return None
    means = [float(run_values.mean()) for run_values in values]
    intervals = [t_interval(means)[1:]] if len(means) > 1 else []
    if same:
        intervals.append(bootstrap_interval(np.mean(values, axis=0), bounds=(least, 1.0)))
    lows, highs = zip(*intervals, strict=True)
    return Estimate(float(np.mean(means)), float(np.min(lows)), float(np.max(highs)))


def _score_cell(group: list[Run], values_of, spec: str, least: float) -> str:
    evaluated = [run for run in group if run.passk]
    same = all(same_prompts(evaluated[0], run) for run in evaluated)
    estimate = prompts_and_seeds([values_of(run) for run in evaluated], same, least)
    # A t-interval of two shares may leave the range they can take.
    return interval_cell(estimate and Estimate(*np.clip(estimate, least, 1.0).tolist()), spec)


def _worst(values: list[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _collapsed_cell(group: list[Run]) -> str:
    told = [answer for run in group if (answer := collapsed(run)) is not None]
    return f"{sum(told)} of {len(told)}" if told else NOT_MEASURED


def _spread(estimates: list[Estimate | None]) -> float | None:
    values = [estimate.value for estimate in estimates if estimate is not None]
    return max(values) - min(values) if len(values) > 1 else None


def result_matrix(runs: list[Run]) -> Table:
    """
    Performance, stability and cost of every configuration.

    Args:
        runs (`list[Run]`): The runs, sorted.
    """
    groups = repetitions(runs)
    ks = {largest_k(run) for run in runs} - {None}
    rows = []
    for label, group in zip(configuration_labels(groups), groups, strict=True):
        trained = [held_out(run, "trained", 1) for run in group]
        group_ks = sorted({largest_k(run) for run in group} - {None})
        pass_k = _score_cell(group, lambda run: per_prompt(run, "trained", largest_k(run)), ".3f", 0.0)
        if len(ks) > 1 and group_ks:
            pass_k += f" (k={', '.join(map(str, group_ks))})"
        share = mean_measured([reference_share(run) for run in group])
        rows.append(
            [
                label,
                str(seed_count(group)),
                _score_cell(group, lambda run: per_prompt(run, "trained"), ".3f", 0.0),
                pass_k,
                _score_cell(group, lambda run: per_prompt(run, "trained") - per_prompt(run, "base"), "+.3f", -1.0),
                _collapsed_cell(group),
                cell(_worst([gradient_spike(run) for run in group]), ".1f"),
                cell(_worst([largest_drop(run) for run in group]), ".3f"),
                cell(_spread(trained), ".3f"),
                cell(mean_measured([step_time_over_control(run, runs) for run in group]), ".2f"),
                cell(mean_measured([run.total("ref_forward_calls") for run in group]), ",.0f"),
                cell(None if share is None else 100 * share, ".1f"),
                cell(_worst([_peak_memory(run) for run in group]), ".1f"),
            ]
        )
    header = [
        "variant",
        "seeds",
        "pass@1",
        f"pass@{ks.copy().pop()}" if len(ks) == 1 else "pass@k",
        "gain",
        "collapsed",
        "gradient spike (× median)",
        "largest drop",
        "seed spread",
        "step time / control",
        "reference calls",
        "reference share (%)",
        "peak memory (GiB)",
    ]
    return Table(
        "Result matrix",
        header,
        rows,
        objective_notes(runs),
        DEFINITIONS,
        [("", 2), ("Performance, held-out", 3), ("Stability", 4), ("Cost", 4)],
    )


def _peak_memory(run: Run) -> float | None:
    values = run.measured("peak_memory_gib")
    return None if values is None else float(values.max())
