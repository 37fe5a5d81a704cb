"""The course of the runs and what the reference model costs: panels, and the sheets made of them."""

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from eval.panels import Panel, save_figure
from eval.runs import Run
from eval.tables import (
    NOT_MEASURED,
    both_a_and_b,
    configuration_labels,
    mean_measured,
    reference_share,
    repetitions,
    seed_count,
)


# Okabe & Ito's palette, which colour-blind readers can tell apart.
VARIANT_COLOURS = {"plain": "#000000", "control": "#E69F00", "A": "#0072B2", "B": "#D55E00", "C": "#009E73"}
OTHER_COLOUR = "#7F7F7F"
STAGE_COLOURS = {"rollout": "#BBBBBB", "old": "#F0E442", "ref": "#CC79A7", "update": "#56B4E9"}
STAGE_LABELS = {"rollout": "rollout", "old": "old scoring", "ref": "reference scoring", "update": "update"}
LINE_STYLES = ("-", "--", "-.", ":")
# From the fifth line of a colour on; not the circle that the points of some curves have anyway.
MARKERS = (None, "s", "^", "D", "v", "P", "X", "*", "<", ">", "p", "h", "d")
SMOOTHING_STEPS = 10
DPI = 100

OBJECTIVE_FOOTNOTE = "B optimises a different objective from A: KL to the sampling policy, not to a reference."
BAND_NOTE = "Strong line: mean over the seeds of a configuration; band: lowest to highest seed, where all of them ran."


def line_styles(runs: list[Run]) -> list[dict]:
    """Colour by variant, dashes and then markers by place within the colour: one `dict` of line properties per run."""
    seen, styles = {}, []
    for run in runs:
        colour = VARIANT_COLOURS.get(run.variant, OTHER_COLOUR)
        place = seen[colour] = seen.get(colour, -1) + 1
        marker = MARKERS[place // len(LINE_STYLES) % len(MARKERS)]
        style = {"color": colour, "linestyle": LINE_STYLES[place % len(LINE_STYLES)]}
        styles.append(style if marker is None else {**style, "marker": marker})
    return styles


def sparse(style: dict) -> dict:
    """The same for a line of many points: some ten markers along it."""
    return {**style, "markevery": 0.1, "markersize": 5} if "marker" in style else style


def arm_label(run: Run) -> str:
    """The arm's name, with its variant where the name does not say it."""
    return run.name if run.name == run.variant else f"{run.name} ({run.variant})"


class Curve:
    """
    What one line stands for: a run, or all seeds of a configuration.

    Attributes:
        runs (`list[Run]`): One run, or the runs of one configuration with 2 seeds or more.
        label (`str`): Name of the run, or of the configuration with its number of seeds.
        style (`dict`): Colour, dashes and, where these do not suffice, a marker.
    """

    def __init__(self, runs: list[Run], label: str, style: dict):
        self.runs, self.label, self.style = runs, label, style

    @property
    def variant(self) -> str:
        return self.runs[0].variant

    def series(self, key: str) -> list[pd.Series]:
        """One metric of each run that measured it."""
        return [values for run in self.runs if (values := run.measured(key)) is not None]


def curves(runs: list[Run]) -> list[Curve]:
    """One curve per configuration with at least 2 seeds; one per run otherwise."""
    groups = repetitions(runs)
    split = []
    for group, label in zip(groups, configuration_labels(groups), strict=True):
        if seed_count(group) > 1:
            split.append((group, f"{label}, {seed_count(group)} seeds"))
        else:
            split += [([run], run.name) for run in group]
    styles = line_styles([members[0] for members, _ in split])
    return [Curve(members, label, style) for (members, label), style in zip(split, styles, strict=True)]


def band(series: list[pd.Series]) -> pd.DataFrame:
    """
    Mean, lowest and highest of several series, at the steps where all have a value.

    Beyond the end of the shortest only the survivors would be left, and their mean would jump.
    """
    table = pd.concat(series, axis=1).sort_index().interpolate(method="index", limit_area="inside").dropna()
    return pd.DataFrame({"mean": table.mean(axis=1), "low": table.min(axis=1), "high": table.max(axis=1)})


def _note_objectives(figure: Figure, runs: list[Run]) -> None:
    if both_a_and_b(runs):
        figure.text(0.995, 0.008, OBJECTIVE_FOOTNOTE, ha="right", fontsize=9, style="italic")


def running_mean(values: pd.Series) -> pd.Series:
    return values.rolling(SMOOTHING_STEPS, min_periods=1).mean()


def running_median_of_positive(values: pd.Series) -> pd.Series:
    """
    For a KL. The k3 mean is heavy-tailed, one token can lift a step by orders of magnitude, and in the first pass over
    a batch the KL to pi_old is 0 by construction; a running mean would show little else.
    """
    return values[values > 0].rolling(SMOOTHING_STEPS, min_periods=1).median()


def _draw_curves(axes, shown: list[Curve], key_of, smooth) -> None:
    """One run: faint as recorded, strong smoothed. Several seeds: mean and band of what was smoothed run by run."""
    for curve in shown:
        key = key_of(curve.variant)
        series = curve.series(key)
        smoothed = [line for line in map(smooth, series) if len(line)]
        if not smoothed:
            continue
        label = curve.label if key_of(None) == key else f"{curve.label}: {key}"
        if len(curve.runs) == 1:
            axes.plot(series[0].index, series[0], color=curve.style["color"], linewidth=0.6, alpha=0.25)
            strong = smoothed[0]
        else:
            spread = band(smoothed)
            axes.fill_between(
                spread.index, spread["low"], spread["high"], color=curve.style["color"], alpha=0.18, linewidth=0
            )
            strong = spread["mean"]
        axes.plot(strong.index, strong, linewidth=1.8, label=label, **sparse(curve.style))
    if not axes.lines:
        note_not_measured(axes)


def note_not_measured(axes) -> None:
    axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color=OTHER_COLOUR)


def mark_resets(axes, shown: list[Curve]) -> None:
    """Thin vertical lines; the dashes of the arms interlock, so that resets at the same step all stay visible."""
    steps_of = [sorted({step for run in curve.runs for step in run.reset_steps() or []}) for curve in shown]
    with_resets = [(curve, steps) for curve, steps in zip(shown, steps_of, strict=True) if steps]
    for place, (curve, steps) in enumerate(with_resets):
        for step in steps:
            dashes = (12 * place, (12, 12 * (len(with_resets) - 1))) if len(with_resets) > 1 else "-"
            axes.axvline(step, color=curve.style["color"], linewidth=0.8, alpha=0.6, linestyle=dashes, zorder=0)


def symlog_threshold(series: list[pd.Series]) -> float:
    """Where a KL axis turns linear: the smallest positive values, for after a reset the KL is exactly 0."""
    positive = [values[values > 0] for values in series]
    return max(min((values.quantile(0.05) for values in positive if len(values)), default=1e-6), 1e-12)


def _kl_key(variant: str | None) -> str | None:
    """The KL to the arm's own anchor; `None` asks for a key that needs no naming in the legend, and there is none."""
    return None if variant is None else "kl_old" if variant == "B" else "kl_ref"


def summary_panels(runs: list[Run]) -> list[Panel]:
    """Reward, KL to the anchor, entropy and throughput over optimizer steps, with the resets."""
    shown = curves(runs)

    def finish(axes, **settings):
        mark_resets(axes, shown)
        axes.grid(alpha=0.2)
        axes.set(xlabel="optimizer step", **settings)

    def metric(key, title, unit, floor=None):
        def draw(axes):
            _draw_curves(axes, shown, lambda variant: key, running_mean)
            finish(axes, title=title, ylabel=unit)
            if floor is not None:
                axes.set_ylim(bottom=floor)

        return Panel(f"{title} over optimizer steps", draw)

    def kl(axes):
        _draw_curves(axes, shown, _kl_key, running_median_of_positive)
        series = [values for curve in shown for values in curve.series(_kl_key(curve.variant))]
        axes.set_yscale("symlog", linthresh=symlog_threshold(series), linscale=0.5)
        axes.set_ylim(bottom=0)
        finish(axes, title="KL to the arm's anchor (B: kl_old, others: kl_ref)", ylabel="nats per token (k3), symlog")

    return [
        metric("reward", "Training reward", "mean reward of the batch"),
        Panel("KL to the arm's anchor over optimizer steps, running median", kl),
        metric("entropy", "Entropy of the policy", "nats per token"),
        metric("tokens_per_second", "Throughput", "completion tokens in the loss per second", floor=0),
    ]


def validation_panels(runs: list[Run]) -> list[Panel]:
    """Reward of the evaluations during training, which a reset may wait for; empty if no run has any."""
    if all(run.measured("eval_reward") is None for run in runs):
        return []
    shown = curves(runs)

    def draw(axes):
        _draw_curves(axes, shown, lambda variant: "eval_reward", lambda values: values)
        mark_resets(axes, shown)
        axes.grid(alpha=0.2)
        axes.set(xlabel="optimizer step", title="Validation reward", ylabel="mean reward of the evaluation")

    return [Panel("Validation reward over optimizer steps", draw)]


def plot_summary(runs: list[Run], path: Path) -> None:
    """
    Write the course of the runs as a PNG of 1600 by 1000 pixels: reward, KL, entropy and throughput over steps.

    Args:
        runs (`list[Run]`): The runs, in the order of the legend.
        path (`Path`): The file.
    """
    shown = curves(runs)
    figure = Figure(figsize=(16, 10), dpi=DPI)
    all_axes = figure.subplots(2, 2, sharex=True)
    for axes, panel in zip(all_axes.flat, summary_panels(runs), strict=True):
        panel.draw(axes)
        axes.tick_params(labelbottom=True)
    if all_axes[0, 1].get_legend_handles_labels()[0]:
        all_axes[0, 1].legend(fontsize=8, loc="best", framealpha=0.9)

    handles = [
        Line2D(
            [], [], label=curve.label if len(curve.runs) > 1 else arm_label(curve.runs[0]), linewidth=2, **curve.style
        )
        for curve in shown
    ]
    if any(run.reset_steps() for run in runs):
        handles.append(
            Line2D([], [], color=OTHER_COLOUR, linewidth=0.8, label="vertical: a reset, in the arm's colour")
        )
    columns = min(len(handles), 5)
    rows = -(-len(handles) // columns)
    figure.legend(handles=handles, loc="lower center", ncols=columns, frameon=False, bbox_to_anchor=(0.5, 0.025))
    smoothed = f"running mean over {SMOOTHING_STEPS} steps (KL: running median of its positive values)"
    figure.suptitle(f"Runs over training: {smoothed}, raw values faint", fontsize=14)
    figure.tight_layout(rect=(0, 0.035 + 0.024 * rows, 1, 0.985))
    _note_objectives(figure, runs)
    save_figure(figure, path)


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
                mean = mean_measured([_seconds_a_step(run, stage) for run in curve.runs])
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


def _seconds_a_step(run: Run, stage: str) -> float | None:
    seconds, steps = run.stage_total(stage), run.measured("time_step")
    return None if seconds is None or steps is None else seconds / len(steps)


def plot_ref_cost(runs: list[Run], path: Path) -> None:
    """
    Write what the reference costs as a PNG 1600 pixels wide: calls over steps, stage times, share of time.

    Args:
        runs (`list[Run]`): The runs, from top to bottom.
        path (`Path`): The file.
    """
    figure = Figure(figsize=(16, max(5.5, 3 + 0.4 * len(curves(runs)))), dpi=DPI)
    calls, stages, share = figure.subplots(1, 3)
    for axes, panel in zip((calls, stages, share), ref_cost_panels(runs), strict=True):
        panel.draw(axes)
    if calls.lines:
        calls.legend(title="total", fontsize=9, loc="upper left")
    stages.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2, frameon=False)
    figure.suptitle("What the reference model costs", fontsize=14)
    figure.tight_layout(rect=(0, 0.03, 1, 0.99))
    _note_objectives(figure, runs)
    save_figure(figure, path)
