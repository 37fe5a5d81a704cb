"""`make study-figures`: pictures, and the numbers of `docs/study/findings.md`, from the tables alone."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from eval.analysis.statistics import Estimate
from study.differences import ELSE, MANY, MATTERS, SHARES, Difference, compared, differences, over_families, shares
from study.hierarchical import coverage
from study.matrix import Block, Matrix
from study.pictures import COST_BASE, COST_FILE, COSTS, forest, learning_curves, overview, relative, rounds, save
from study.scores import CO_PRIMARY, OUTCOMES, Score, outcomes, scores
from study.tables import FOLDER, Tables
from study.training import aggregates, training
from study.tuned import choices
from trl_prorl.errors import InputError
from trl_prorl.files import replaced
from trl_prorl.variants import DIFFERENT_OBJECTIVE


PAGE, OVERVIEW, TEMPLATE = "findings.md", "overview.png", "findings.md.jinja"
BESIDE = ("greedy", "pass@8")  # of OUTCOMES, beside pass@1
TRAINING = {"family": "", "arm": "", "kl_ref": ".4f", "kl_old": ".4f", "clipped": ".2%", "size of updates": "+.0%"}
TRAINING |= {"of": "", "gain after clamp": "+.3f", "reconvergence": "g", "KL spikes": ".1f", "entropy spikes": ".1f"}
TRAINING |= {"tokens/s": ".0f"}


def write_pages(root: Path, matrix: Matrix, tables: Tables) -> list[Path]:
    """
    Write the pictures and the page.

    Raises:
        InputError: No run of the selection is in the tables.
    """
    folder, written = root / FOLDER, []
    found = [(block, scores(block, tables), differences(block, tables)) for block in matrix.blocks if not block.tunes]
    found = [one for one in found if one[1]]
    if not found:
        raise InputError(f"{FOLDER}: none of these runs is finished; make study trains them")
    seconds, main = rounds(root), found[0][0]

    def picture(figure, name: str) -> str | None:
        if figure is None:
            return None
        save(figure, folder / name)
        written.append(folder / name)
        return name

    every = [one for _, _, held in found for one in held]
    whole = picture(overview(matrix, tables, every, seconds, main.name), OVERVIEW)
    blocks = []
    for block, of_arms, held in found:
        figures = {"curves": learning_curves(block, tables), "forest": forest(block, tables, held)}
        names = {says: picture(figure, f"{block.name}_{says}.png") for says, figure in figures.items()}
        pictures = [(says, name) for says, name in names.items() if name]
        blocks.append({"pictures": pictures, **_numbers(block, tables, of_arms, held)})
    made = choices(matrix, tables)
    content = {
        "overview": whole,
        "blocks": blocks,
        "choices": made,
        "tried": list(dict.fromkeys(value for choice in made for value in choice.scores)),
        "runs": len(tables.runs),
        "hours": tables.runs["seconds"].sum() / 3600,
        "covered": _covered(main, tables),
        **_cost(seconds),
    }
    with replaced(folder / PAGE) as aside:
        aside.write_text(_environment().get_template(TEMPLATE).render(content))
    return [*written, folder / PAGE]


def _numbers(block: Block, tables: Tables, of_arms: list[Score], held: list[Difference]) -> dict[str, Any]:
    """Everything that the page says of a block, beside its pictures."""
    beside = [OUTCOMES[name] for name in BESIDE]
    held = [held, *(differences(block, tables, k) for k in beside)] if held else []
    pooled = [over_families(block, tables, k) for k in (1, *beside)]
    return {
        **{"name": block.name, "references": block.references, "scores": of_arms},
        "training": training(block, tables).to_dict("records"),
        "differences": list(zip(*held, strict=True)),
        "pooled": list(zip(*pooled, strict=True)),
        "aggregates": list(aggregates(block, tables).itertuples()) if block.references else [],
        "shares": shares(block, tables),
    }


def _covered(block: Block, tables: Tables) -> list[str]:
    """How often the registered intervals of a block cover the truth, and those of the bases alone."""
    values = outcomes(block, tables)
    arms = [pair for *pair, hypothesis in compared(block) if hypothesis != ELSE]
    both = [values[family][pair].dropna() for pair in arms for family in block.families]
    found = [coverage(np.stack(one.iloc[:, 0] - one.iloc[:, 1])) for one in both if len(one) > 1]
    return [f"{min(each):.1%} to {max(each):.1%}" for each in zip(*found, strict=True)]


def _cost(seconds: dict[str, list[float]]) -> dict[str, Any]:
    """The time of a whole step by arm, relative to some arms; nothing where it was not measured."""
    if COST_BASE not in seconds:
        return {"cost": {}}
    arms = [arm for arm in COSTS if arm in seconds]
    against = [arm for arm in (COST_BASE, "C packed", "plain packed") if arm in seconds]
    return {
        "cost": {arm: [relative(seconds, arm, other) for other in against] for arm in arms},
        "cost_heads": ["arm", *(f"of {arm}'s" for arm in against)],
        "rounds": len(seconds[COST_BASE]),
    }


def _environment() -> Environment:
    """Of the page's template: its filters, and what it knows of the protocol."""
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters |= {"estimate": _estimate, "signed": lambda of: _estimate(of, "+"), "number": _number, "p": _p_value}
    made.filters |= {"percent": _percent, "span": _span, "cell": _cell, "short": "{:g}".format}
    made.globals |= {
        **{"matters": MATTERS, "many": MANY, "co_primary": CO_PRIMARY, "outcomes": list(OUTCOMES), "shares": SHARES},
        "less_base": [f"{name} less base" for name in OUTCOMES],
        "at_least": [f"≥ {share:.0%}" for share in SHARES],
        "ways": TRAINING,
        "cost_file": COST_FILE,
        "different_objective": DIFFERENT_OBJECTIVE,
    }
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


def _span(numbers: Sequence[float]) -> str:
    """`5`, or `11–12` where they differ."""
    return "–".join(f"{end:g}" for end in sorted({min(numbers), max(numbers)})) if numbers else ""


def _percent(estimate: Estimate | None) -> str:
    if estimate is None:
        return "n/a"
    value, low, high = estimate
    return f"{value:.0%}" + ("" if low != low else f" [{low:.0%}, {high:.0%}]".replace("inf%", "∞"))
