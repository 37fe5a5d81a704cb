"""The third protocol's blocks on the page of findings: the pictures and numbers that each has beside those of any."""

from collections.abc import Callable
from typing import Any

from matplotlib.figure import Figure

from study import clamp2, dose, forget2, rivals, smollm2b
from study.clamp2_picture import draw_given_back, draw_pass_at_k
from study.dose_picture import draw_dose
from study.matrix import Block
from study.tables import Tables


def figures_of_third(block: Block, tables: Tables) -> dict[str, Figure | None]:
    """Draw what a block of the third protocol has of its own, by file name."""
    if block.name == dose.BLOCK:
        return {f"{block.name}_line.png": draw_dose(block, tables)}
    if block.name == clamp2.BLOCK:
        return {
            f"{block.name}_given_back.png": draw_given_back(block, tables),
            f"{block.name}_passk.png": draw_pass_at_k(block, tables),
        }
    return {}


def numbers_of_third(block: Block, tables: Tables) -> dict[str, Any]:
    """Collect what `third.md.jinja` says of a block, by name; nothing of another block."""
    numbers_of = NUMBERS.get(block.name)
    return {} if numbers_of is None else numbers_of(block, tables)


def _numbers_of_rivals(block: Block, tables: Tables) -> dict[str, Any]:
    return {
        "rivals": _rows_of_rivals(block, tables),
        "firings": rivals.firings(block, tables),
        "replayed": rivals.replayed_firings(block, tables),
    }


def _rows_of_rivals(block: Block, tables: Tables) -> list[dict[str, Any]]:
    """A row for the control and for each rival in a family: its scores, and the control's lead where it is tested."""
    leads = {}
    for one in rivals.differences(block, tables):
        leads[one.family, one.rule or one.rival, one.outcome] = one
    rows = []
    for family in block.families:
        for name, means in rivals.means_of_rivals(block, tables, family).iterrows():
            row = {"family": family, "rival": name, **means}
            row["lead"] = leads.get((family, name, "gold"))
            row["greedy_lead"] = leads.get((family, name, "greedy"))
            row["grade"] = rivals.grade(row["lead"]) if row["lead"] else ""
            rows.append(row)
    return rows


def _numbers_of_dose(block: Block, tables: Tables) -> dict[str, Any]:
    leads = dose.control_less_plain(block, tables)
    rows = []
    for family in block.families:
        if (family, "gold") in leads:
            rows.append({"family": family, "gold": leads[family, "gold"], "greedy": leads[family, "greedy"]})
    return {
        "leads": rows,
        "strictnesses": dose.means_by_strictness(block, tables).reset_index(names="family").to_dict("records"),
        "slopes": dose.slopes(block, tables),
        "grades": dose.grades(block, tables),
    }


def _numbers_of_clamp2(block: Block, tables: Tables) -> dict[str, Any]:
    return {
        "given_back": clamp2.all_given_back(block, tables).reset_index(names="β").to_dict("records"),
        "pass_at_k": _rows_of_pass_at_k(block, tables),
        "largest_k": max(clamp2.ks_of(block)),
        "widened": clamp2.widened(block, tables),
        "refuted": clamp2.refuted(block, tables),
    }


def _rows_of_pass_at_k(block: Block, tables: Tables) -> list[dict[str, Any]]:
    """A row for each k: pass@k of the base and of each arm, and its bound beside it."""
    scores = clamp2.mean_pass_at_k(block, tables)
    highest = clamp2.mean_bounds(block, tables).reindex(scores.index)
    rows = []
    for k, of_k in scores.iterrows():
        row = {"k": str(k)}
        for arm, score in of_k.items():
            row[arm] = score
            row[f"{arm}, at most"] = highest.loc[k, arm]
        rows.append(row)
    return rows


def _numbers_of_forget2(block: Block, tables: Tables) -> dict[str, Any]:
    share = forget2.share_kept(block, tables)
    return {
        "held": forget2.means(block, tables).reset_index(names="arm").to_dict("records"),
        "tested": forget2.differences(block, tables),
        "kept_of_loss": share,
        "is_refuted": None if share is None else forget2.is_refuted(share),
    }


def _numbers_of_smollm2b(block: Block, tables: Tables) -> dict[str, Any]:
    leads = {}
    for arm in block.arms:
        estimate = None if arm == smollm2b.PLAIN else smollm2b.less_plain(block, tables, arm)
        if estimate is not None:
            leads[arm] = estimate
    difference = smollm2b.control_less_plain(block, tables, "gold'")
    return {
        "by_sense": smollm2b.means(block, tables).reset_index().to_dict("records"),
        "sense_less_plain": leads,
        "control_less_plain": difference,
        "is_met": None if difference is None else smollm2b.is_met(difference),
        "is_refuted": None if difference is None else smollm2b.is_refuted(difference),
    }


NUMBERS: dict[str, Callable[[Block, Tables], dict[str, Any]]] = {
    **dict.fromkeys(rivals.BLOCKS, _numbers_of_rivals),
    dose.BLOCK: _numbers_of_dose,
    clamp2.BLOCK: _numbers_of_clamp2,
    forget2.BLOCK: _numbers_of_forget2,
    smollm2b.BLOCK: _numbers_of_smollm2b,
}
