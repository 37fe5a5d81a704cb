"""The verdict: the best arm on held-out pass@1, whether it is told apart, and every arm in a picture."""

from trl_prorl.eval.analysis.best import Verdict, told_apart, verdicts
from trl_prorl.eval.analysis.over_seeds import prompts_and_seeds
from trl_prorl.eval.analysis.pairing import ground, same_prompts
from trl_prorl.eval.analysis.passk import per_prompt
from trl_prorl.eval.pages.cells import interval_cell
from trl_prorl.eval.pages.curves import Curve, curves
from trl_prorl.eval.pages.document import Bullets, Picture, Section, Text
from trl_prorl.eval.pages.objective import objective_notes
from trl_prorl.eval.pages.panels import Panel
from trl_prorl.eval.pages.reproduce import passk_command
from trl_prorl.eval.pages.sheets import ground_titles
from trl_prorl.eval.run_folder.run import Run
from trl_prorl.record.started import evaluation_of


def verdict_statement(verdict: Verdict, title: str = "") -> str:
    """Two sentences: is the best arm told apart, and by how much is it ahead? The title is that of its ground."""
    best = verdict.best
    differences = {"base": verdict.gain} | {arm.label: difference for arm, difference in verdict.against}
    unclear = " or ".join(name for name, difference in differences.items() if not told_apart(difference))
    heading = f"{best.label} is highest in held-out pass@1, {best.score():.3f} (base {best.score('base'):.3f})"
    heading += f", but not told apart from {unclear}" if unclear else ""
    ahead = [
        f"{interval_cell(difference, '+.3f')} over {name}"
        if difference
        else f"not compared with {name}, because the runs share no prompts or no seeds"
        for name, difference in differences.items()
    ]
    return f"**{f'{title}: ' if title else ''}{heading}.** It is {'; '.join(ahead)}."


def interval_note(verdict: Verdict) -> str:
    """What the intervals of a verdict cover."""
    corrected = f" (95 %, corrected for the choice among {verdict.arms} arms)" if verdict.level > 0.95 else ""
    alone = "prompts alone: one training seed says nothing of the variation between seeds"
    over = f"prompts and {verdict.seeds} training seeds" if verdict.seeds > 1 else alone
    return f"Intervals: {100 * verdict.level:.3g} %{corrected}, over {over}."


def missing_statements(runs: list[Run]) -> list[str]:
    """Which runs lack a held-out evaluation, and the command that makes it."""
    missing = [run for run in runs if run.passk is None]
    if not missing:
        return []
    names = ", ".join(f"`{run.name}`" for run in missing)
    can_be = [run for run in missing if run.can_be_evaluated]
    if not can_be:
        how = evaluation_of(missing[0].config, missing[0].env, missing[0].path)
        return [f"Not evaluated on held-out prompts: {names}. {how} does it."]
    return [f"Not evaluated on held-out prompts: {names}. Run `{passk_command(can_be)}`, then this report again."]


def statements(runs: list[Run]) -> list[str]:
    """The verdict on every ground, and the runs of which it knows nothing."""
    found = verdicts(runs)
    titles = ground_titles(curves(runs))
    lines = [verdict_statement(verdict, titles.get(ground(verdict.best.runs[0]), "")) for verdict in found]
    return [*lines, *dict.fromkeys(map(interval_note, found)), *objective_notes(runs), *missing_statements(runs)]


def scores_panel(shown: list[Curve]) -> Panel:
    """Held-out pass@1 of every curve with its interval, base beside it."""

    def draw(axes):
        for row, curve in enumerate(shown):
            same = all(same_prompts(curve.runs[0], run) for run in curve.runs)
            for side, style in (("base", {"color": "#7F7F7F", "marker": "s"}), ("trained", {"marker": "o"})):
                value, low, high = prompts_and_seeds([per_prompt(run.passk, side) for run in curve.runs], same)
                style = {"color": curve.style["color"], **style}
                axes.plot([low, high], [row, row], color=style["color"])
                axes.plot([value], [row], linestyle="", label=None if row else side, **style)
        axes.set_yticks(range(len(shown)), [curve.label for curve in shown])
        axes.set(ylim=(len(shown) - 0.5, -0.5), title="Held-out pass@1 and its 95 % interval", xlabel="pass@1")
        axes.grid(alpha=0.2)

    return Panel("Held-out pass@1 of base and of every trained arm, with intervals", draw, 2 * len(shown))


def sections(runs: list[Run]) -> list[Section]:
    lines = statements(runs)
    blocks = [Bullets(lines)] if lines[2:] and lines[1].startswith("**") else list(map(Text, lines))
    if shown := curves([run for run in runs if run.passk]):
        blocks.append(Picture("verdict.png", "Held-out pass@1 of every arm", "", [scores_panel(shown)]))
    return [Section("Verdict", blocks)]
