"""Where a report has too many curves for one set of axes: which of them share axes."""

from collections import Counter
from dataclasses import dataclass

from trl_prorl.eval.analysis.names import TASK, setting
from trl_prorl.eval.analysis.pairing import GROUND, ground
from trl_prorl.eval.pages.curves import MOST_CURVES, Curve
from trl_prorl.eval.run_folder.run import MODEL


REFERENCES = ("plain", "control")
SHEETS_NOTE = (
    "Runs of one task, base, length and learning rate share axes; where these are more than "
    f"{MOST_CURVES} curves, those of one variant do, beside one curve of plain and one of the control."
)


@dataclass(frozen=True)
class Sheet:
    """
    Curves that share axes.

    Attributes:
        title (`str`): What they have in common; empty where they are all that there are.
        curves (`list[Curve]`): The curves.
    """

    title: str
    curves: list[Curve]

    def titled(self, title: str) -> str:
        """The title of a panel of this sheet."""
        return f"{self.title}: {title}" if self.title else title


def ground_titles(shown: list[Curve]) -> dict[str, str]:
    """What sets each ground apart from most others, in words, its task always; empty where there is one ground."""
    runs = [curve.runs[0] for curve in shown]
    differing = [key for key in GROUND if len({repr(run.config.get(key) or None) for run in runs}) > 1]
    if len({run.base[0] for run in runs}) > 1 and TASK not in differing:
        differing.append(MODEL)
    commonest = {key: Counter(repr(run.config.get(key)) for run in runs).most_common(1)[0][0] for key in differing}

    def is_named(run, key):
        return run.config.get(key) and (key == TASK or repr(run.config[key]) != commonest[key])

    return {
        ground(run): ", ".join(setting(key, run.config[key]) for key in differing if is_named(run, key))
        for run in runs
    }


def sheets(shown: list[Curve]) -> list[Sheet]:
    """
    The curves as they share axes: all together if they are at most 10 of one ground; else ground by ground, and a
    ground of more curves variant by variant, with the first plain and control curve in each for comparison. Variants
    of one curve stand together.
    """
    titles = ground_titles(shown)
    if len(titles) == 1 and len(shown) <= MOST_CURVES:
        return [Sheet("", shown)]
    found = []
    for key, title in titles.items():
        same = [curve for curve in shown if ground(curve.runs[0]) == key]
        if len(same) <= MOST_CURVES:
            found.append(Sheet(title, same))
            continue
        by_variant = {}
        for curve in same:
            by_variant.setdefault(curve.variant, []).append(curve)
        references = [by_variant[variant][0] for variant in REFERENCES if variant in by_variant]
        alone = [curves[0] for curves in by_variant.values() if len(curves) == 1 and curves[0] not in references]
        groups = [(variant, curves) for variant, curves in by_variant.items() if len(curves) > 1]
        groups += [("other variants", alone)] if alone else []
        for name, curves in groups:
            for place in range(0, len(curves), MOST_CURVES):
                part = curves[place : place + MOST_CURVES]
                others = [curve for curve in references if curve not in part]
                found.append(Sheet(", ".join(filter(None, [name, title])), [*others, *part]))
    return found
