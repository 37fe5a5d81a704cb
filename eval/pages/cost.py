"""What the runs cost: scoring calls, time by stage, the reference's share."""

from trl_prorl.eval.analysis.cost import (
    evaluation_seconds,
    mean_step_seconds,
    median_step_seconds,
    reference_share,
    stage_seconds,
    step_time_over_control,
)
from trl_prorl.eval.analysis.repetitions import mean_measured
from trl_prorl.eval.analysis.smoothing import band
from trl_prorl.eval.pages.cells import NOT_MEASURED, cell, percent_cell
from trl_prorl.eval.pages.curves import arm_label, curves, sparse
from trl_prorl.eval.pages.document import Picture, Section
from trl_prorl.eval.pages.objective import footnote, objective_notes, with_objective
from trl_prorl.eval.pages.panels import Panel
from trl_prorl.eval.pages.table import Column, Table, table_of
from trl_prorl.eval.run_folder.run import Run


STAGE_COLOURS = {"rollout": "#BBBBBB", "old": "#F0E442", "ref": "#CC79A7", "update": "#56B4E9"}
STAGE_LABELS = {"rollout": "rollout", "old": "old scoring", "ref": "reference scoring", "update": "update"}


def _has_validated(runs: list[Run]) -> bool:
    return any(run.total("time_eval") for run in runs)


def cost_table(runs: list[Run]) -> Table:
    """What each run cost, a row each."""
    columns = [
        Column("arm", lambda run: run.name),
        Column("variant", lambda run: run.variant),
        Column("reference forward calls", lambda run: cell(run.total("ref_forward_calls"), ",.0f")),
        Column("old-policy forward calls", lambda run: cell(run.total("old_forward_calls"), ",.0f")),
        Column("reference share of time (%)", lambda run: percent_cell(reference_share(run), ".1f")),
        Column("median seconds a step", lambda run: cell(median_step_seconds(run), ".3g")),
        Column(
            "validation, mean seconds a step",
            lambda run: cell(None if run.measured("time_eval") is None else evaluation_seconds(run), ".3g"),
            shown=_has_validated,
        ),
        Column("mean seconds a step", lambda run: cell(mean_step_seconds(run), ".3g")),
        Column("mean step time / control's", lambda run: cell(step_time_over_control(run, runs), ".2f")),
    ]
    notes = [
        "A forward call is one scoring call of the model, generation and evaluation not counted; calls are totals "
        f"over the run. {NOT_MEASURED} means not measured."
    ]
    if _has_validated(runs):
        notes.append("Mean seconds and their ratio include the validation during training, the median does not.")
    return table_of("What it cost", columns, runs, notes + objective_notes(runs))


def ref_cost_panels(runs: list[Run]) -> list[Panel]:
    """Reference calls over steps, the stages of a step, and the reference's share of time; means over seeds."""
    shown = curves(runs)

    def calls(axes):
        """Later lines are thinner, so that equal counts stay visible."""
        for place, curve in enumerate(shown):
            series = curve.series("ref_forward_calls")
            if not series:
                continue
            width = 1.5 + min(1.5, 12 / len(shown)) * (len(shown) - 1 - place)
            mean = band([calls.cumsum() for calls in series])["mean"]
            label = f"{curve.label}: {mean.iloc[-1]:,.0f}"
            axes.plot(mean.index, mean, linewidth=width, label=label, solid_capstyle="butt", **sparse(curve.style))
        axes.set(title="Reference forward calls, cumulative", xlabel="optimizer step", ylabel="calls")
        axes.grid(alpha=0.2)

    def name_rows(axes):
        names = [curve.label if len(curve.runs) > 1 else arm_label(curve.runs[0]) for curve in shown]
        axes.set_yticks(range(len(shown)), names)
        axes.set_ylim(len(shown) - 0.5, -0.5)
        axes.grid(alpha=0.2, axis="x")

    def stages(axes):
        """What was not timed is not drawn."""
        for stage, colour in STAGE_COLOURS.items():
            axes.barh(-1, 0, color=colour, label=STAGE_LABELS[stage])
        for row, curve in enumerate(shown):
            left = 0.0
            for stage, colour in STAGE_COLOURS.items():
                mean = mean_measured([stage_seconds(run, stage) for run in curve.runs])
                if mean is None:
                    continue
                axes.barh(row, mean, left=left, color=colour, edgecolor="white", linewidth=0.5)
                left += mean
        axes.set(title="Mean time of a step, by stage", xlabel="seconds")
        name_rows(axes)

    def share(axes):
        longest = 0.0
        for row, curve in enumerate(shown):
            shares = [100 * value for run in curve.runs if (value := reference_share(run)) is not None]
            mean = mean_measured(shares)
            label = f" {NOT_MEASURED} not measured"
            if mean is not None:
                axes.barh(row, mean, color=curve.style["color"])
                ends = f"{min(shares):.1f}", f"{max(shares):.1f}"
                label = f" {mean:.1f} %" + (f" ({ends[0]} to {ends[1]})" if ends[0] != ends[1] else "")
                longest = max(longest, mean)
            axes.text(mean or 0.0, row, label, va="center", fontsize=9)
        # Room for the label of the longest bar.
        axes.set_xlim(0, 1.6 * longest or 1.0)
        axes.set(title="Reference share of all time", xlabel="%")
        name_rows(axes)

    return [
        Panel("Cumulative reference forward calls over optimizer steps", calls),
        Panel(
            "Mean seconds of a step, split into rollout, old scoring, reference scoring and update", stages, len(shown)
        ),
        Panel("Share of all time spent scoring with the reference, per arm", share, len(shown)),
    ]


def sections(runs: list[Run]) -> list[Section]:
    table = cost_table(runs)
    picture = Picture(
        "ref_cost.png",
        "Reference forward calls, time of a step by stage, reference share of time",
        with_objective(
            runs, "Configurations with several seeds: means over seeds; in brackets the lowest and the highest."
        ),
        ref_cost_panels(runs),
        3,
        footnote(runs),
    )
    return [Section(table.title, [table, picture])]
