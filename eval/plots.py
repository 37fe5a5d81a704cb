"""The report's two figures: the course of the runs, and what the reference model costs."""

import os
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from eval.runs import Run
from eval.tables import NOT_MEASURED, both_a_and_b, reference_share


# Okabe & Ito's palette, which colour-blind readers can tell apart.
VARIANT_COLOURS = {"plain": "#000000", "control": "#E69F00", "A": "#0072B2", "B": "#D55E00", "C": "#009E73"}
OTHER_COLOUR = "#7F7F7F"
STAGE_COLOURS = {"rollout": "#BBBBBB", "old": "#F0E442", "ref": "#CC79A7", "update": "#56B4E9"}
STAGE_LABELS = {"rollout": "rollout", "old": "old scoring", "ref": "reference scoring", "update": "update"}
LINE_STYLES = ("-", "--", "-.", ":")
SMOOTHING_STEPS = 10
DPI = 100

OBJECTIVE_FOOTNOTE = "B optimises a different objective from A: KL to the sampling policy, not to a reference."


def save_figure(figure: Figure, path: Path) -> None:
    """Write a PNG aside, then replace: a reader never sees half a picture."""
    path = Path(path)
    aside = path.with_name(path.name + ".tmp")
    figure.savefig(aside, format="png")
    os.replace(aside, path)


def line_styles(runs: list[Run]) -> list[dict]:
    """Colour by variant, dashes by place within the variant: one `dict` of line properties per run."""
    seen, styles = {}, []
    for run in runs:
        place = seen[run.variant] = seen.get(run.variant, -1) + 1
        styles.append(
            {
                "color": VARIANT_COLOURS.get(run.variant, OTHER_COLOUR),
                "linestyle": LINE_STYLES[place % len(LINE_STYLES)],
            }
        )
    return styles


def arm_label(run: Run) -> str:
    """The arm's name, with its variant where the name does not say it."""
    return run.name if run.name == run.variant else f"{run.name} ({run.variant})"


def _note_objectives(figure: Figure, runs: list[Run]) -> None:
    if both_a_and_b(runs):
        figure.text(0.995, 0.008, OBJECTIVE_FOOTNOTE, ha="right", fontsize=9, style="italic")


def _draw_metric(axes, runs, styles, key_of) -> None:
    """One line per run that measured the metric: faint as recorded, strong as a running mean."""
    for run, style in zip(runs, styles, strict=True):
        key = key_of(run)
        values = run.measured(key)
        if values is None:
            continue
        smooth = values.rolling(SMOOTHING_STEPS, min_periods=1).mean()
        axes.plot(values.index, values, color=style["color"], linewidth=0.6, alpha=0.25)
        axes.plot(smooth.index, smooth, linewidth=1.8, label=f"{run.name}: {key}", **style)
    if not axes.lines:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color=OTHER_COLOUR)


def _draw_kl(axes, runs, styles, key_of) -> None:
    """
    One line per run: faint as recorded, strong as a running median of the steps where the KL is positive.

    The k3 mean is heavy-tailed, one token can lift a step by orders of magnitude, and in the first pass over a batch
    the KL to pi_old is 0 by construction; a running mean would show little else.
    """
    for run, style in zip(runs, styles, strict=True):
        key = key_of(run)
        values = run.measured(key)
        if values is None:
            continue
        smooth = values[values > 0].rolling(SMOOTHING_STEPS, min_periods=1).median()
        axes.plot(values.index, values, color=style["color"], linewidth=0.6, alpha=0.25)
        axes.plot(smooth.index, smooth, linewidth=1.8, label=f"{run.name}: {key}", **style)
    if not axes.lines:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color=OTHER_COLOUR)


def _mark_resets(axes, runs, styles) -> None:
    """Thin vertical lines; the dashes of the arms interlock, so that resets at the same step all stay visible."""
    with_resets = [(run, style) for run, style in zip(runs, styles, strict=True) if run.reset_steps()]
    for place, (run, style) in enumerate(with_resets):
        for step in run.reset_steps():
            dashes = (12 * place, (12, 12 * (len(with_resets) - 1))) if len(with_resets) > 1 else "-"
            axes.axvline(step, color=style["color"], linewidth=0.8, alpha=0.6, linestyle=dashes, zorder=0)


def _symlog_threshold(runs, key_of) -> float:
    """Where the KL axis turns linear: the smallest positive values, for after a reset the KL is exactly 0."""
    positive = [values[values > 0] for run in runs if (values := run.measured(key_of(run))) is not None]
    return max(min((values.quantile(0.05) for values in positive if len(values)), default=1e-6), 1e-12)


def plot_summary(runs: list[Run], path: Path) -> None:
    """
    Write the course of the runs as a PNG of 1600 by 1000 pixels: reward, KL, entropy and throughput over steps.

    Args:
        runs (`list[Run]`): The runs, in the order of the legend.
        path (`Path`): The file.
    """
    styles = line_styles(runs)
    figure = Figure(figsize=(16, 10), dpi=DPI)
    panels = figure.subplots(2, 2, sharex=True)

    def kl_key(run):
        return "kl_old" if run.variant == "B" else "kl_ref"

    _draw_metric(panels[0, 0], runs, styles, lambda run: "reward")
    panels[0, 0].set(title="Training reward", ylabel="mean reward of the batch")
    _draw_kl(panels[0, 1], runs, styles, kl_key)
    panels[0, 1].set_yscale("symlog", linthresh=_symlog_threshold(runs, kl_key), linscale=0.5)
    panels[0, 1].set_ylim(bottom=0)
    panels[0, 1].set(
        title="KL to the arm's anchor (B: kl_old, others: kl_ref), running median",
        ylabel="nats per token (k3), symlog",
    )
    if panels[0, 1].get_legend_handles_labels()[0]:
        panels[0, 1].legend(fontsize=8, loc="best", framealpha=0.9)
    _draw_metric(panels[1, 0], runs, styles, lambda run: "entropy")
    panels[1, 0].set(title="Entropy of the policy", ylabel="nats per token", xlabel="optimizer step")
    _draw_metric(panels[1, 1], runs, styles, lambda run: "tokens_per_second")
    panels[1, 1].set(title="Throughput", ylabel="tokens per second", xlabel="optimizer step")
    panels[1, 1].set_ylim(bottom=0)
    for axes in panels.flat:
        _mark_resets(axes, runs, styles)
        axes.grid(alpha=0.2)
        axes.tick_params(labelbottom=True)

    handles = [
        Line2D([], [], label=arm_label(run), linewidth=2, **style) for run, style in zip(runs, styles, strict=True)
    ]
    if any(run.reset_steps() for run in runs):
        handles.append(
            Line2D([], [], color=OTHER_COLOUR, linewidth=0.8, label="vertical: a reset, in the arm's colour")
        )
    columns = min(len(handles), 5)
    rows = -(-len(handles) // columns)
    figure.legend(handles=handles, loc="lower center", ncols=columns, frameon=False, bbox_to_anchor=(0.5, 0.025))
    figure.suptitle(f"Runs over training: running mean over {SMOOTHING_STEPS} steps, raw values faint", fontsize=14)
    figure.tight_layout(rect=(0, 0.035 + 0.024 * rows, 1, 0.985))
    _note_objectives(figure, runs)
    figure.savefig(path)


def _plot_calls(axes, runs, styles) -> None:
    """Cumulative reference forward calls; later lines are thinner, so that equal counts stay visible."""
    for place, (run, style) in enumerate(zip(runs, styles, strict=True)):
        calls = run.measured("ref_forward_calls")
        if calls is None:
            continue
        width = 1.5 + 1.5 * (len(runs) - 1 - place)
        label = f"{run.name}: {calls.sum():,.0f}"
        axes.plot(calls.index, calls.cumsum(), linewidth=width, label=label, solid_capstyle="butt", **style)
    axes.set(title="Reference forward calls, cumulative", xlabel="optimizer step", ylabel="calls")
    axes.grid(alpha=0.2)
    if axes.lines:
        axes.legend(title="total", fontsize=9, loc="upper left")


def _plot_stages(axes, runs) -> None:
    """Mean seconds a step, split into stages; what was not timed is not drawn."""
    for row, run in enumerate(runs):
        steps, left = run.measured("time_step"), 0.0
        for stage, colour in STAGE_COLOURS.items():
            seconds = run.stage_total(stage)
            if seconds is None or steps is None:
                continue
            mean = seconds / len(steps)
            axes.barh(row, mean, left=left, color=colour, edgecolor="white", linewidth=0.5)
            left += mean
    axes.set(title="Mean time of a step, by stage", xlabel="seconds")
    axes.grid(alpha=0.2, axis="x")
    handles = [
        Line2D([], [], color=colour, linewidth=8, label=STAGE_LABELS[stage]) for stage, colour in STAGE_COLOURS.items()
    ]
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2, frameon=False)


def _plot_share(axes, runs) -> None:
    """Time spent scoring with the reference, in per cent of all time."""
    shares = [reference_share(run) for run in runs]
    for row, (run, share) in enumerate(zip(runs, shares, strict=True)):
        if share is not None:
            axes.barh(row, 100 * share, color=VARIANT_COLOURS.get(run.variant, OTHER_COLOUR))
        label = f" {100 * share:.1f} %" if share is not None else f" {NOT_MEASURED} not measured"
        axes.text(100 * (share or 0.0), row, label, va="center", fontsize=10)
    # Room for the label of the longest bar.
    axes.set_xlim(0, 125 * max((share for share in shares if share), default=0.01))
    axes.set(title="Reference share of all time", xlabel="%")
    axes.grid(alpha=0.2, axis="x")


def plot_ref_cost(runs: list[Run], path: Path) -> None:
    """
    Write what the reference costs as a PNG 1600 pixels wide: calls over steps, stage times, share of time.

    Args:
        runs (`list[Run]`): The runs, from top to bottom.
        path (`Path`): The file.
    """
    figure = Figure(figsize=(16, max(5.5, 3 + 0.4 * len(runs))), dpi=DPI)
    calls, stages, share = figure.subplots(1, 3)
    _plot_calls(calls, runs, line_styles(runs))
    _plot_stages(stages, runs)
    _plot_share(share, runs)
    for axes in (stages, share):
        axes.set_yticks(range(len(runs)), [arm_label(run) for run in runs])
        axes.set_ylim(len(runs) - 0.5, -0.5)
    figure.suptitle("What the reference model costs", fontsize=14)
    figure.tight_layout(rect=(0, 0.03, 1, 0.99))
    _note_objectives(figure, runs)
    figure.savefig(path)
