"""Differences between arms, the hypotheses that they test, Holm's correction, and how much of a score B keeps."""

from functools import reduce
from itertools import permutations, product

import pandas as pd

from eval.analysis.statistics import Estimate, holm
from study.hierarchical import RESAMPLES, Contrast, mean_over, resample
from study.matrix import Block
from study.scores import BASE, CO_PRIMARY, outcomes
from study.tables import Tables


SHARES = (0.8, 0.9)  # of another arm's score, for B to have kept most of it
MATTERS = 0.02  # pass@1; a smaller effect does not matter: the margin of the protocol's H2, and of equivalence
ALPHA = 0.05
CLOSE, MANY = (0.04, 0.06), 100_000  # p-values that may hang on the noise of resampling have so many resamples
H0, H2, ELSE = "H0: A and B against plain", "H2: the optimizer at a reset", "exploratory"


def verdict(contrast: Contrast, hypothesis: str) -> str:
    """In a few words; H2 asks for more than a difference: one that matters."""
    if contrast.error != contrast.error:
        return "one base: no interval"
    if not contrast.estimate.excludes_zero:
        return "equivalent" if contrast.equivalence(MATTERS) < ALPHA else "not told apart"
    word = "higher" if contrast.value > 0 else "lower"
    if hypothesis == H2 and abs(contrast.value) <= MATTERS:
        return f"{word}, by no more than {MATTERS:g}"
    return word


def compared(block: Block) -> list[tuple[str, str, str]]:
    """Which arm is held against which, and for which hypothesis of the first protocol; each once."""
    found = {(arm, kept): H2 for arm in block.arms if (kept := block.kept_partner(arm)) is not None}
    main = {*block.references[1:], f"B{block.suffix}"}  # sweeps of B are exploratory
    for reference, arm in product(block.references, block.arms):
        if arm != reference and (reference, arm) not in found:
            first = reference == block.references[0] and arm in main
            found.setdefault((arm, reference), H0 if first else ELSE)
    return [(*pair, ELSE if block.registered else hypothesis) for pair, hypothesis in found.items()]


def differences(block: Block, tables: Tables, k: int = 1) -> pd.DataFrame:
    """
    pass@k, or greedy decoding, of every arm less a reference's of its block, on the pairs that both have, a row for
    each family: `contrast` with the error that the protocol names, `alone` with that of the paired t-test over bases,
    which it does not name, and their p-values, as they are (`p`, `p_alone`) and after Holm, among the `tests` of the
    hypothesis (`adjusted`, `adjusted_alone`). `exploratory` is what tests no registered hypothesis, by its arms or by
    its block. The hypotheses are about pass@1; with any other k all is exploratory.
    """
    rows, values = [], outcomes(block, tables, k)
    for (arm, reference, hypothesis), family in product(compared(block), block.families):
        both = values[family][[arm, reference]].dropna()
        if len(both):
            rows.append(_difference(block, family, arm, reference, hypothesis if k == 1 else ELSE, [both]))
    found = pd.DataFrame(rows, columns=None if rows else ["family", "arm", "reference", "hypothesis", "p", "p_alone"])
    tested = found.dropna(subset="p").groupby("hypothesis")  # not those on a single base
    for name, p_value in (("adjusted", "p"), ("adjusted_alone", "p_alone")):
        found[name] = tested[p_value].transform(holm)
    return found.assign(tests=tested["p"].transform("size").reindex(found.index, fill_value=1))


def _difference(block: Block, family: str, arm: str, reference: str, hypothesis: str, values: list) -> dict:
    """A row; `values` has an entry for each family that is averaged."""
    weights = {arm: 1, reference: -1}
    for count in (RESAMPLES, MANY):
        found = mean_over([resample(one, count, family=number) for number, one in enumerate(values)])
        contrast = found.contrast(weights)
        if not any(CLOSE[0] < p < CLOSE[1] for p in (contrast.p_value, contrast.equivalence(MATTERS))):
            break
    alone = found.over_bases(weights)
    return {
        **{"family": family, "arm": arm, "reference": reference, "hypothesis": hypothesis, "pairs": found.pairs},
        **{"contrast": contrast, "alone": alone, "p": contrast.p_value, "p_alone": alone.p_value},
        "verdict": verdict(contrast, hypothesis),
        "exploratory": hypothesis == ELSE or block.name not in CO_PRIMARY,
    }


def over_families(block: Block, tables: Tables, k: int = 1) -> pd.DataFrame:
    """
    The mean over families of every difference, each family with the same weight, over the pairs that all have; a
    family with fewer pairs than the others is left out until it has theirs. The pairs are the units, because families
    share seeds ([`~study.hierarchical.mean_over`]). The p-values are not adjusted.
    """
    found, values = [], outcomes(block, tables, k)
    for arm, reference, _ in compared(block):
        every = [values[family][[arm, reference]].dropna() for family in block.families]
        most = [both for both in every if len(both) == max(map(len, every))]
        pairs = reduce(pd.Index.intersection, (both.index for both in most))
        if len(most) < 2 or len(pairs) < 2:
            continue
        alike = [both.loc[pairs] for both in most]
        found.append(_difference(block, f"mean of {len(most)}", arm, reference, ELSE, alike))
    return pd.DataFrame(found)


def shares(block: Block, tables: Tables) -> pd.DataFrame:
    """
    How much B keeps `of` the score, and of the gain over base, of every arm with a moving reference, in families in
    which both have runs: the `ratio`, NaN where the other's is not above 0.
    """
    found, values = [], outcomes(block, tables)
    variant = tables.runs["variant"].groupby(level="arm").first()
    for family, (b, other) in product(block.families, permutations(block.arms, 2)):
        alike = values[family][[b, other, BASE]].dropna()
        if alike.empty or variant[b] != "B" or variant[other] not in ("A", "C"):
            continue
        resampled = resample(alike)
        for of, base in (("score", {}), ("gain over base", {BASE: -1})):
            row = {"family": family, "arm": b, "reference": other, "pairs": resampled.pairs, "of": of}
            found.append(row | {"ratio": resampled.ratio({b: 1, **base}, {other: 1, **base})})
    return pd.DataFrame(found)


def keeps(ratio: Estimate, share: float) -> str:
    """Whether at least this share is kept: `met`, `not met`, or `undecided`, by the 95 % interval."""
    return "met" if ratio.low >= share else "not met" if ratio.high < share else "undecided"
