"""`make study-figures`: pictures, and the numbers of `study/pages/findings.md`, from the tables alone."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.figure import Figure

from study.around_resets import SHOWN, around_resets
from study.clamp import clamp, slowing_of_plain, summary
from study.cost import COST_FILE, relatives, rounds
from study.differences import (
    ELSE,
    MANY,
    MATTERS,
    SHARES,
    compared,
    differences,
    is_share_kept,
    over_families,
    shares,
)
from study.frontier import frontier
from study.hierarchical import coverage
from study.matrix import Block, Matrix
from study.plots import forest, learning_curves, span
from study.registered import gold_differences, paid_and_right, registered
from study.reuse import reuse
from study.rivals import BLOCKS as OF_RIVALS
from study.rivals_picture import draw_rivals
from study.scores import CO_PRIMARY, OUTCOMES, aggregates, outcomes, points, scores, training
from study.tables import FOLDER, Tables
from study.third import figures_of_third, numbers_of_third
from study.tuned import choices
from trl_prorl.errors import InputError
from trl_prorl.eval.analysis.statistics import Estimate
from trl_prorl.eval.pages.plotting import DPI
from trl_prorl.files import replaced
from trl_prorl.variants import DIFFERENT_OBJECTIVE


PAGES = Path("study", "pages")  # below the checkout
PICTURES = Path("study", "pictures")
PAGE = "findings.md"
TEMPLATE = "findings.md.jinja"
BESIDE = (OUTCOMES["greedy"], OUTCOMES["pass@8"])  # beside pass@1
SOON = 3  # steps after which a reset's reward is back
# Columns of the table on training, and the format of each.
TRAINING = {
    "family": "",
    "arm": "",
    "kl_ref": ".4f",
    "kl_old": ".4f",
    "clipped": ".2%",
    "size of updates": "+.0%",
    "of": "",
    "gain after clamp": "+.3f",
    "reconvergence": "g",
    "KL spikes": ".1f",
    "entropy spikes": ".1f",
    "tokens/s": ".0f",
}


class Reported(NamedTuple):
    """A block that has finished runs, the scores of its arms, and their differences of pass@1."""

    block: Block
    scores: pd.DataFrame
    differences: pd.DataFrame


def write_pages(root: Path, matrix: Matrix, tables: Tables) -> list[Path]:
    """
    Write the pictures and the page.

    Args:
        root (`Path`): The checkout.
        matrix (`Matrix`): A selection of its matrix, with the values that have been chosen.
        tables (`Tables`): Its tables.

    Returns:
        `list[Path]`: The files that were written.

    Raises:
        InputError: No run of the selection is in the tables.
    """
    tables = tables.earlier()
    reported = reported_blocks(matrix, tables)
    if not reported:
        raise InputError(f"{FOLDER}: none of these runs is finished; make study trains them")
    figures = draw_figures(reported, tables)
    text = render_page(root, matrix, tables, reported, list(figures))
    for folder in (PAGES, PICTURES):
        (root / folder).mkdir(parents=True, exist_ok=True)
    written = []
    for name, figure in figures.items():
        path = root / PICTURES / name
        figure.savefig(path, dpi=DPI, metadata={"Software": None})  # bytes depend on the picture alone
        written.append(path)
    page = root / PAGES / PAGE
    with replaced(page) as aside:
        aside.write_text(text)
    return [*written, page]


def reported_blocks(matrix: Matrix, tables: Tables) -> list[Reported]:
    """List the blocks that are reported and have runs, with their numbers."""
    tables = tables.earlier()
    found = []
    for block in matrix.blocks:
        if block.tunes:
            continue
        arms = scores(block, tables)
        if len(arms):
            found.append(Reported(block, arms, differences(block, tables)))
    return found


def draw_figures(reported: Sequence[Reported], tables: Tables) -> dict[str, Figure]:
    """Draw the pictures of all blocks, by file name."""
    figures: dict[str, Figure | None] = {}
    for block, _, pass1_differences in reported:
        figures[f"{block.name}_curves.png"] = learning_curves(block, tables)
        if block.name not in OF_RIVALS:  # whose blocks have one picture together
            shown = pass1_differences
            if "gold" in block.outcomes:  # whose interval over bases decides, in the later protocols
                shown = gold_differences(block, tables)
            figures[f"{block.name}_forest.png"] = forest(block, tables, shown)
        if "fall" in block.outcomes or block.runs[0].evaluation["others"]:
            figures[f"{block.name}_frontier.png"] = frontier(block, tables)
        if block.name.startswith("clamp"):
            figures[f"{block.name}_release.png"] = clamp(block, tables)
        figures |= figures_of_third(block, tables)
        if block.name in SHOWN:
            figures[f"{block.name}_resets.png"] = around_resets(block, tables)
    of_reuse = [one.block for one in reported if one.block.name.startswith("reuse")]
    if of_reuse:
        figures[f"{of_reuse[0].name}_uses.png"] = reuse(of_reuse, tables)
    of_rivals = [one.block for one in reported if one.block.name in OF_RIVALS]
    if of_rivals:
        figures[f"{of_rivals[0].name}_forest.png"] = draw_rivals(of_rivals, tables)
    return {name: figure for name, figure in figures.items() if figure is not None}


def render_page(root: Path, matrix: Matrix, tables: Tables, reported: Sequence[Reported], drawn: list[str]) -> str:
    """Render the page of these blocks, with the pictures that were drawn."""
    tables = tables.earlier()
    made = choices(matrix, tables)
    seconds = rounds(root)
    blocks = [_numbers_of_block(one, tables) for one in reported]
    medians = [row["reconvergence"] for block in blocks for row in block["training"]]
    content = {
        "drawn": drawn,
        "blocks": blocks,
        "medians": [median for median in medians if median == median],
        "soon": SOON,
        "slowing": slowing_of_plain([one.block for one in reported], tables),
        "choices": made,
        "tried": list(dict.fromkeys(value for choice in made for value in choice.scores)),
        "runs": len(tables.runs),
        "hours": tables.runs["seconds"].sum() / 3600,
        "covered": _coverage_of_intervals(reported[0].block, tables),
        "rounds": len(seconds),
        "cost": relatives(seconds),
    }
    return _environment().get_template(TEMPLATE).render(content)


def _numbers_of_block(reported: Reported, tables: Tables) -> dict[str, Any]:
    """Everything that the page says of a block, beside its pictures."""
    block = reported.block
    of_outcomes = []
    if len(reported.differences):
        of_outcomes = [reported.differences, *(differences(block, tables, k) for k in BESIDE)]
    pooled = [over_families(block, tables, k) for k in (1, *BESIDE)]
    numbers: dict[str, Any] = {
        "name": block.name,
        "protocol": block.protocol,
        "references": block.references,
        "scores": reported.scores.to_dict("records"),
        "training": training(block, tables).to_dict("records"),
        "points": points(block, tables).to_dict("records"),
        "differences": _side_by_side(of_outcomes),
        "pooled": _side_by_side(pooled),
        "shares": shares(block, tables).to_dict("records"),
        "tested": block.outcomes,
        "aggregates": [],
        "registered": [],
        "paid": [],
        "released": [],
        "third": numbers_of_third(block, tables),
    }
    if block.references:
        numbers["aggregates"] = list(aggregates(block, tables).itertuples())
    if block.registered:
        numbers["registered"] = registered(block, tables)
    if "fall" in block.outcomes:
        numbers["paid"] = paid_and_right(block, tables)
    if block.name.startswith("clamp"):
        numbers["released"] = summary(block, tables).to_dict("records")
    return numbers


def _side_by_side(tables: list[pd.DataFrame]) -> list[tuple[dict, ...]]:
    """The rows of tables that have the same ones, each with its counterparts."""
    return list(zip(*(table.to_dict("records") for table in tables), strict=True))


def _coverage_of_intervals(block: Block, tables: Tables) -> list[str]:
    """How often the registered intervals of a block cover the truth, and those of the bases alone."""
    values = outcomes(block, tables)
    found = []
    for arm, reference, hypothesis in compared(block):
        if hypothesis == ELSE:
            continue
        for family in block.families:
            both = values[family][[arm, reference]].dropna()
            if len(both) > 1:
                found.append(coverage(np.stack(both[arm] - both[reference])))
    return [f"{min(shares):.1%} to {max(shares):.1%}" for shares in zip(*found, strict=True)]


def _environment() -> Environment:
    """The page's template has these filters, and knows these words of the protocol."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "estimate": _format_estimate,
        "signed": _format_signed,
        "number": _format_number,
        "p": _format_p_value,
        "percent": _format_percent,
        "span": span,
        "cell": _format_cell,
        "short": "{:g}".format,
        "keeps": is_share_kept,
    }
    environment.globals |= {
        "matters": MATTERS,
        "many": MANY,
        "co_primary": CO_PRIMARY,
        "outcomes": list(OUTCOMES),
        "ways": TRAINING,
        "shares": SHARES,
        "cost_file": COST_FILE,
        "less_base": [f"{name} less base" for name in OUTCOMES],
        "at_least": [f"≥ {share:.0%}" for share in SHARES],
        "different_objective": DIFFERENT_OBJECTIVE,
    }
    return environment


def _format_number(value: float) -> str:
    return "n/a" if value != value else f"{value:.3f}"


def _format_p_value(value: float) -> str:
    return "\\< 0.001" if value < 0.001 else _format_number(value)


def _format_cell(value: Any, spec: str) -> str:
    return "" if value != value else f"{value:{spec}}".replace("-", "−")


def _format_estimate(estimate: Estimate, sign: str = "") -> str:
    value, low, high = estimate
    text = f"{value:{sign}.3f}"
    if low == low:
        text += f" [{low:{sign}.3f}, {high:{sign}.3f}]"
    return text.replace("-", "−")


def _format_signed(estimate: Estimate) -> str:
    return _format_estimate(estimate, "+")


def _format_percent(estimate: Estimate) -> str:
    value, low, high = estimate
    if value != value:
        return "n/a"
    text = f"{value:.0%}"
    if low == low:
        text += f" [{low:.0%}, {high:.0%}]".replace("inf%", "∞")
    return text
