"""Curves: reward, KL, entropy and throughput over optimizer steps, and the evaluations during training."""

from eval.analysis.smoothing import SMOOTHING_STEPS, running_mean, running_median_of_positive
from eval.analysis.stability import kl_key
from eval.pages.curves import (
    MOST_RESETS,
    Curve,
    curves,
    draw_curves,
    mark_events,
    marks_note,
    symlog_threshold,
    with_band_note,
)
from eval.pages.document import Picture, Section
from eval.pages.objective import footnote, with_objective
from eval.pages.panels import Panel
from eval.pages.sheets import SHEETS_NOTE, Sheet, sheets
from eval.run_folder.run import Run


OTHER_KL = "kl_ref"


def anchor_key(variant: str | None) -> str | None:
    """The KL to the arm's own anchor; `None` asks for a key that needs no naming in the legend, and there is none."""
    return None if variant is None else kl_key(variant)


def kl_title(variants: list[str]) -> str:
    """Which KL is whose anchor's, of the variants that are shown."""
    own = {variant: kl_key(variant) for variant in variants if kl_key(variant) != OTHER_KL}
    named = "".join(f"{variant}: {key}, " for variant, key in own.items())
    return f"KL to the arm's anchor ({f'{named}others: ' if own else ''}{OTHER_KL})"


def sheet_panels(sheet: Sheet) -> list[Panel]:
    """Reward, KL to the anchor, entropy and throughput of some curves over optimizer steps, with the resets."""
    shown = sheet.curves

    def finish(axes, **settings):
        mark_events(axes, shown)
        axes.grid(alpha=0.2)
        axes.set(xlabel="optimizer step", **settings)

    def metric(key, title, unit, floor=None):
        title = sheet.titled(title)

        def draw(axes):
            draw_curves(axes, shown, lambda variant: key, running_mean)
            finish(axes, title=title, ylabel=unit)
            if floor is not None:
                axes.set_ylim(bottom=floor)

        return Panel(f"{title} over optimizer steps", draw)

    def reward(axes):
        """Gold, the share of correct completions, in the same panel: a reward that is gamed parts from it."""
        golden = [curve for curve in shown if curve.series("gold")]
        draw_curves(axes, shown, lambda variant: "reward", running_mean)
        dotted = [
            Curve(curve.runs, f"{curve.label}: gold", {**curve.style, "linestyle": ":", "marker": None})
            for curve in golden
        ]
        if dotted:
            draw_curves(axes, dotted, lambda variant: "gold", running_mean)
        title = sheet.titled("Training reward, and gold (dotted)" if golden else "Training reward")
        finish(axes, title=title, ylabel="mean of the batch")

    def kl(axes):
        draw_curves(axes, shown, anchor_key, running_median_of_positive)
        series = [values for curve in shown for values in curve.series(kl_key(curve.variant))]
        axes.set_yscale("symlog", linthresh=symlog_threshold(series), linscale=0.5)
        axes.set_ylim(bottom=0)
        # The legend names the KL of each curve; beside the name of a sheet there is no room for that.
        title = sheet.titled("KL to the arm's anchor") if sheet.title else kl_title([one.variant for one in shown])
        finish(axes, title=title, ylabel="nats per token (k3), symlog")

    return [
        Panel(sheet.titled("Training reward, and gold where measured, over optimizer steps"), reward),
        Panel(sheet.titled("KL to the arm's anchor over optimizer steps, running median"), kl),
        metric("entropy", "Entropy of the policy", "nats per token"),
        metric("tokens_per_second", "Throughput", "completion tokens in the loss per second", floor=0),
    ]


def summary_panels(runs: list[Run]) -> list[Panel]:
    """The panels of every sheet of the runs' curves."""
    return [panel for sheet in sheets(curves(runs)) for panel in sheet_panels(sheet)]


def validation_panels(runs: list[Run]) -> list[Panel]:
    """Reward of the evaluations during training, which a reset may wait for; empty if no run has any."""
    if all(run.measured("eval_reward") is None for run in runs):
        return []

    def panel(sheet):
        def draw(axes):
            draw_curves(axes, sheet.curves, lambda variant: "eval_reward", lambda values: values)
            mark_events(axes, sheet.curves)
            axes.grid(alpha=0.2)
            title = sheet.titled("Validation reward")
            axes.set(xlabel="optimizer step", title=title, ylabel="mean reward of the evaluation")

        return Panel(sheet.titled("Validation reward over optimizer steps"), draw)

    return [panel(sheet) for sheet in sheets(curves(runs))]


def sections(runs: list[Run]) -> list[Section]:
    caption = with_band_note(
        runs,
        f"Smoothed over {SMOOTHING_STEPS} steps (mean; KL: median of the steps where it is positive), as recorded "
        f"behind it in faint. {marks_note(runs)} Their colour is the arm's; the mark at the top of a line says why; "
        f"the resets of an arm with more than {MOST_RESETS} are not marked.",
    )
    together = len(sheets(curves(runs))) == 1
    pictures = [
        Picture(
            "summary.png",
            "Reward, KL, entropy and throughput over optimizer steps",
            with_objective(runs, caption if together else f"{caption} {SHEETS_NOTE}"),
            summary_panels(runs),
            columns=2 if together else 4,
            footnote=footnote(runs),
        )
    ]
    if panels := validation_panels(runs):
        alt = "Validation reward over optimizer steps"
        caption = with_band_note(runs, "Evaluations during training, as `evaluations.jsonl` has them.")
        pictures.append(Picture("validation.png", alt, with_objective(runs, caption), panels))
    return [Section("Curves", pictures)]
