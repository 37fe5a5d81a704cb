"""`make study-figures`: pictures, and the numbers of `study/pages/findings.md`, from the tables alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from eval.analysis.statistics import Estimate
from eval.pages.curves import DPI
from study.clamp import clamp, summary
from study.cost import COST_FILE, relatives, rounds
from study.differences import ELSE, MANY, MATTERS, SHARES, compared, differences, keeps, over_families, shares
from study.frontier import frontier
from study.hierarchical import coverage
from study.matrix import Block, Matrix
from study.plots import forest, learning_curves, span
from study.registered import gold_differences, paid_and_right, registered
from study.reuse import reuse
from study.scores import CO_PRIMARY, OUTCOMES, aggregates, outcomes, points, scores, training
from study.tables import FOLDER, Tables
from study.tuned import choices
from trl_prorl.errors import InputError
from trl_prorl.files import replaced
from trl_prorl.variants import DIFFERENT_OBJECTIVE


PAGES, PICTURES = Path("study", "pages"), Path("study", "pictures")  # below the checkout
PAGE, TEMPLATE = "findings.md", "findings.md.jinja"
BESIDE = (OUTCOMES["greedy"], OUTCOMES["pass@8"])  # beside pass@1
TRAINING = {"family": "", "arm": "", "kl_ref": ".4f", "kl_old": ".4f", "clipped": ".2%", "size of updates": "+.0%"}
TRAINING |= {"of": "", "gain after clamp": "+.3f", "reconvergence": "g", "KL spikes": ".1f", "entropy spikes": ".1f"}
TRAINING |= {"tokens/s": ".0f"}


def write_pages(root: Path, matrix: Matrix, tables: Tables) -> list[Path]:
    """Write the pictures and the page. Raises `InputError`: no run of the selection is in the tables."""
    reported = [(block, scores(block, tables)) for block in matrix.blocks if not block.tunes]
    found = [(block, of_arms, differences(block, tables)) for block, of_arms in reported if len(of_arms)]
    if not found:
        raise InputError(f"{FOLDER}: none of these runs is finished; make study trains them")
    seconds, made = rounds(root), choices(matrix, tables)
    figures = {}
    for block, _, held in found:
        figures[f"{block.name}_curves.png"] = learning_curves(block, tables)
        by_bases = "gold" in block.registered.get("outcomes", ())  # whose interval decides in the second protocol
        shown = gold_differences(block, tables) if by_bases else held
        figures[f"{block.name}_forest.png"] = forest(block, tables, shown)
        if "fall" in block.registered.get("outcomes", ()) or block.runs[0].evaluation["others"]:
            figures[f"{block.name}_frontier.png"] = frontier(block, tables)
        if block.name.startswith("clamp"):
            figures[f"{block.name}_release.png"] = clamp(block, tables)
    if often := [block for block, *_ in found if block.name.startswith("reuse")]:
        figures[f"{often[0].name}_uses.png"] = reuse(often, tables)
    figures = {name: figure for name, figure in figures.items() if figure is not None}
    for folder in (PAGES, PICTURES):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        figure.savefig(
            root / PICTURES / name, dpi=DPI, metadata={"Software": None}
        )  # bytes depend on the picture alone
    content = {
        "drawn": list(figures),
        "blocks": [_numbers(block, tables, of_arms, held) for block, of_arms, held in found],
        "choices": made,
        "tried": list(dict.fromkeys(value for choice in made for value in choice.scores)),
        "runs": len(tables.runs),
        "hours": tables.runs["seconds"].sum() / 3600,
        "covered": _covered(found[0][0], tables),
        "rounds": len(seconds),
        "cost": relatives(seconds),
    }
    page = root / PAGES / PAGE
    with replaced(page) as aside:
        aside.write_text(_environment().get_template(TEMPLATE).render(content))
    return [*(root / PICTURES / name for name in figures), page]


def _numbers(block: Block, tables: Tables, of_arms: pd.DataFrame, held: pd.DataFrame) -> dict[str, Any]:
    """Everything that the page says of a block, beside its pictures."""
    every = [held, *(differences(block, tables, k) for k in BESIDE)] if len(held) else []
    pooled = [over_families(block, tables, k) for k in (1, *BESIDE)]
    return {
        **{"name": block.name, "references": block.references, "scores": of_arms.to_dict("records")},
        "training": training(block, tables).to_dict("records"),
        "points": points(block, tables).to_dict("records"),
        "differences": list(zip(*(one.to_dict("records") for one in every), strict=True)),
        "pooled": list(zip(*(one.to_dict("records") for one in pooled), strict=True)),
        "aggregates": list(aggregates(block, tables).itertuples()) if block.references else [],
        "shares": shares(block, tables).to_dict("records"),
        "registered": registered(block, tables) if block.registered else [],
        "paid": paid_and_right(block, tables) if "fall" in block.registered.get("outcomes", ()) else [],
        "released": summary(block, tables).to_dict("records") if block.name.startswith("clamp") else [],
        "tested": block.registered.get("outcomes", []),
    }


def _covered(block: Block, tables: Tables) -> list[str]:
    """How often the registered intervals of a block cover the truth, and those of the bases alone."""
    values = outcomes(block, tables)
    arms = [pair for *pair, hypothesis in compared(block) if hypothesis != ELSE]
    both = [values[family][pair].dropna() for pair in arms for family in block.families]
    found = [coverage(np.stack(one.iloc[:, 0] - one.iloc[:, 1])) for one in both if len(one) > 1]
    return [f"{min(each):.1%} to {max(each):.1%}" for each in zip(*found, strict=True)]


def _environment() -> Environment:
    """Of the page's template: its filters, and what it knows of the protocol."""
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters |= {"estimate": _estimate, "signed": lambda of: _estimate(of, "+"), "number": _number, "p": _p_value}
    made.filters |= {"percent": _percent, "span": span, "cell": _cell, "short": "{:g}".format, "keeps": keeps}
    made.globals |= {"matters": MATTERS, "many": MANY, "co_primary": CO_PRIMARY, "outcomes": list(OUTCOMES)}
    made.globals |= {"ways": TRAINING, "shares": SHARES, "cost_file": COST_FILE}
    made.globals |= {"less_base": [f"{name} less base" for name in OUTCOMES]}
    made.globals |= {"at_least": [f"≥ {share:.0%}" for share in SHARES], "different_objective": DIFFERENT_OBJECTIVE}
    return made


def _number(value: float) -> str:
    return "n/a" if value != value else f"{value:.3f}"


def _p_value(value: float) -> str:
    return "\\< 0.001" if value < 0.001 else _number(value)


def _cell(value: Any, way: str) -> str:
    return "" if value != value else f"{value:{way}}".replace("-", "−")


def _estimate(estimate: Estimate, sign: str = "") -> str:
    value, low, high = estimate
    ends = "" if low != low else f" [{low:{sign}.3f}, {high:{sign}.3f}]"
    return f"{value:{sign}.3f}{ends}".replace("-", "−")


def _percent(estimate: Estimate) -> str:
    value, low, high = estimate
    if value != value:
        return "n/a"
    return f"{value:.0%}" + ("" if low != low else f" [{low:.0%}, {high:.0%}]".replace("inf%", "∞"))
