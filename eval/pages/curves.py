"""What one line of a picture stands for, its colour, and how lines, bands and resets are drawn."""

import pandas as pd

from eval.analysis.names import configuration_labels
from eval.analysis.repetitions import repetitions, seed_count
from eval.analysis.smoothing import band
from eval.run_folder.run import Run
from trl_prorl.run.keys import GAMED, GROWTH
from trl_prorl.variants import VARIANTS


OTHER_COLOUR = "#7F7F7F"
LINE_STYLES = ("-", "--", "-.", ":")
# From the fifth line of a colour on; not the circle that the points of some curves have anyway.
MARKERS = (None, "s", "^", "D", "v", "P", "X", "*", "<", ">", "p", "h", "d")
DPI = 100
MOST_CURVES = 10  # on one set of axes
MOST_RESETS = 30  # of a curve, that are marked
BAND_NOTE = "Strong line: mean over the seeds of a configuration; band: lowest to highest seed, where all of them ran."


def colour_of(run: Run) -> str:
    """The colour of its variant; grey for one that is not known."""
    return VARIANTS[run.variant].colour if run.variant in VARIANTS else OTHER_COLOUR


def line_styles(runs: list[Run]) -> list[dict]:
    """Colour by variant, dashes and then markers by place within the colour: one `dict` of line properties per run."""
    seen, styles = {}, []
    for run in runs:
        colour = colour_of(run)
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
    """
    One curve per configuration with at least 2 seeds; one per run otherwise, named by its folder, or by its
    configuration where it stands beside configurations of several seeds or beside more than 10 others.
    """
    groups = repetitions(runs)
    several = any(seed_count(group) > 1 for group in groups)
    split = []
    for group, label in zip(groups, configuration_labels(groups), strict=True):
        if seed_count(group) > 1:
            split.append((group, f"{label}, {seed_count(group)} seeds"))
        elif len(group) == 1 and (several or len(groups) > MOST_CURVES):
            split.append((group, label))
        else:
            split += [([run], run.name) for run in group]
    styles = line_styles([members[0] for members, _ in split])
    return [Curve(members, label, style) for (members, label), style in zip(split, styles, strict=True)]


def with_band_note(runs: list[Run], text: str) -> str:
    """A caption, with what a strong line and a band mean where there are seeds to put together."""
    return f"{text} {BAND_NOTE}" if any(seed_count(group) > 1 for group in repetitions(runs)) else text


def over_runs(frames: list[pd.DataFrame]) -> pd.DataFrame:
    """Of one run its `mean` with its interval over prompts; of several, mean and band over the runs."""
    return frames[0] if len(frames) == 1 else band([frame["mean"] for frame in frames])


def draw_band(axes, frame: pd.DataFrame, label: str, style: dict) -> None:
    """`mean` as a line of points, `low` to `high` as a band."""
    axes.fill_between(frame.index, frame["low"], frame["high"], color=style["color"], alpha=0.15, linewidth=0)
    axes.plot(frame.index, frame["mean"], markersize=4, linewidth=1.8, label=label, **{"marker": "o", **style})


def draw_curves(axes, shown: list[Curve], key_of, smooth) -> None:
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


# Why a reset was made, as its mark at the top of the axes says it; an own reason, or several at once, is a star.
REASON_MARKERS = {"periodic": "|", "kl_spike": "d", "stall": "s", "drop": "v"}
REASON_NAMES = {"kl_spike": "KL spike"}
EVENT_MARKS = {
    GROWTH: ({"marker": "^", "linestyle": "", "markersize": 6}, "growth of the rank"),
    GAMED: ({"marker": "X", "linestyle": "", "markersize": 6}, "the reward is gamed"),
}
GAMED_NOTE = "Crosses at the bottom are where `guard_gap` fired: the reward rose while gold fell."
MARK_ROWS, TOP_ROW, ROW_HEIGHT = 8, 0.985, 0.035


def reason_marker(reason: str) -> str:
    return REASON_MARKERS.get(reason, "*")


def reason_label(reason: str) -> str:
    """The reason in the legend, `reset: KL spike`."""
    return f"reset: {' + '.join(REASON_NAMES.get(part, part) for part in reason.split('+'))}"


def reasons_of(shown: list[Curve]) -> list[str]:
    """Every reason in the record of these curves' resets, the known ones first."""
    found = {reason for curve in shown for run in curve.runs for _, reason in run.reset_reasons()} - {""}
    return sorted(found, key=lambda reason: (reason not in REASON_MARKERS, reason))


def mark_resets(axes, shown: list[Curve]) -> None:
    """
    Thin vertical lines, the dashes of the arms interlocking, so that resets at the same step all stay visible; at the
    top of each, in a row of the arm's own, a mark of its reason. More than 30 resets of a curve would hide the others.
    """
    steps_of = [sorted({step for run in curve.runs for step in run.reset_steps() or []}) for curve in shown]
    with_resets = [
        (curve, steps) for curve, steps in zip(shown, steps_of, strict=True) if 0 < len(steps) <= MOST_RESETS
    ]
    for place, (curve, steps) in enumerate(with_resets):
        for step in steps:
            dashes = (12 * place, (12, 12 * (len(with_resets) - 1))) if len(with_resets) > 1 else "-"
            axes.axvline(step, color=curve.style["color"], linewidth=0.8, alpha=0.6, linestyle=dashes, zorder=0)
    for reason in reasons_of(shown):
        marker = {"marker": reason_marker(reason), "linestyle": "", "markersize": 5}
        for place, (curve, _) in enumerate(with_resets):
            height = TOP_ROW - ROW_HEIGHT * (place % MARK_ROWS)
            steps = sorted({step for run in curve.runs for step, why in run.reset_reasons() if why == reason})
            axes.plot(
                steps,
                [height] * len(steps),
                transform=axes.get_xaxis_transform(),
                color=curve.style["color"],
                **marker,
            )
        axes.plot([], [], color=OTHER_COLOUR, label=reason_label(reason), **marker)


def mark_events(axes, shown: list[Curve]) -> None:
    """Mark resets, and at the bottom in the arm's colour where a rank grew or a reward was seen to be gamed."""
    mark_resets(axes, shown)
    place = {"transform": axes.get_xaxis_transform(), "clip_on": False}
    for event, (style, label) in EVENT_MARKS.items():
        steps_of = [sorted({step for run in curve.runs for step in run.event_steps(event)}) for curve in shown]
        for curve, steps in zip(shown, steps_of, strict=True):
            if steps:
                axes.plot(steps, [0.0] * len(steps), color=curve.style["color"], **style, **place)
        if any(steps_of):
            axes.plot([], [], color=OTHER_COLOUR, label=label, **style)


def marks_note(runs: list[Run]) -> str:
    """What the marks of resets and other events are, for a caption."""
    notes = {GROWTH: "Triangles at the bottom are growths of the adapter's rank.", GAMED: GAMED_NOTE}
    found = [note for event, note in notes.items() if any(run.event_steps(event) for run in runs)]
    return " ".join(["Vertical lines are resets.", *found])


def symlog_threshold(series: list[pd.Series]) -> float:
    """Where a KL axis turns linear: the smallest positive values, because the KL is exactly 0 after a reset."""
    positive = [values[values > 0] for values in series]
    return max(min((values.quantile(0.05) for values in positive if len(values)), default=1e-6), 1e-12)
