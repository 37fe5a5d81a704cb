"""Differences between arms, the hypotheses that they test, Holm's correction, and how much of a score B keeps."""

from functools import reduce
from itertools import permutations, product

import pandas as pd

from study.hierarchical import RESAMPLES, Contrast, mean_over, resample
from study.matrix import Block
from study.scores import BASE, CO_PRIMARY, outcomes
from study.tables import Tables
from trl_prorl.eval.analysis.statistics import Estimate, holm


SHARES = (0.8, 0.9)  # of another arm's score, for B to have kept most of it
MATTERS = 0.02  # pass@1; a smaller effect does not matter: the margin of the protocol's H2, and of equivalence
ALPHA = 0.05
# P-values between these may hang on the noise of resampling, and have `MANY` resamples.
CLOSE = (0.04, 0.06)
MANY = 100_000
H0 = "H0: A and B against plain"
H2 = "H2: the optimizer at a reset"
ELSE = "exploratory"
COLUMNS = ["family", "arm", "reference", "hypothesis", "p", "p_alone"]  # of a table without differences


def verdict(contrast: Contrast, hypothesis: str) -> str:
    """Say it in a few words; H2 asks for more than a difference: one that matters."""
    if contrast.error != contrast.error:
        return "one base: no interval"
    if not contrast.estimate.excludes_zero:
        return "equivalent" if contrast.equivalence(MATTERS) < ALPHA else "not told apart"
    word = "higher" if contrast.value > 0 else "lower"
    if hypothesis == H2 and abs(contrast.value) <= MATTERS:
        return f"{word}, by no more than {MATTERS:g}"
    return word


def compared(block: Block) -> list[tuple[str, str, str]]:
    """
    List the comparisons of a block, each once: an arm, its reference, and the hypothesis of the first protocol that
    they test.
    """
    found: dict[tuple[str, str], str] = {}
    for arm in block.arms:
        kept = block.kept_partner(arm)
        if kept is not None:
            found[arm, kept] = H2
    main_arms = {*block.references[1:], f"B{block.suffix}"}  # sweeps of B are exploratory
    for reference, arm in product(block.references, block.arms):
        if arm == reference or (reference, arm) in found:
            continue
        is_h0 = reference == block.references[0] and arm in main_arms
        found.setdefault((arm, reference), H0 if is_h0 else ELSE)
    if block.registered:  # by the second protocol
        found = dict.fromkeys(found, ELSE)
    return [(arm, reference, hypothesis) for (arm, reference), hypothesis in found.items()]


def differences(block: Block, tables: Tables, k: int = 1) -> pd.DataFrame:
    """
    Return pass@k, or greedy decoding, of every arm less a reference's of its block, on the pairs that both have: a row
    for each family.

    `contrast` has the error that the protocol names, `alone` that of the paired t-test over bases, which it does not
    name. Their p-values stand there as they are (`p`, `p_alone`) and after Holm, among the `tests` of the hypothesis
    (`adjusted`, `adjusted_alone`). `exploratory` is what tests no registered hypothesis, by its arms or by its block.
    The hypotheses are about pass@1; with any other k all is exploratory.
    """
    values = outcomes(block, tables, k)
    rows = []
    for (arm, reference, hypothesis), family in product(compared(block), block.families):
        both = values[family][[arm, reference]].dropna()
        if len(both):
            tested = hypothesis if k == 1 else ELSE
            rows.append(_difference(block, family, arm, reference, tested, [both]))
    found = pd.DataFrame(rows) if rows else pd.DataFrame(columns=COLUMNS)
    by_hypothesis = found.dropna(subset="p").groupby("hypothesis")  # not those on a single base
    found["adjusted"] = by_hypothesis["p"].transform(holm)
    found["adjusted_alone"] = by_hypothesis["p_alone"].transform(holm)
    found["tests"] = by_hypothesis["p"].transform("size").reindex(found.index, fill_value=1)
    return found


def _is_close(contrast: Contrast) -> bool:
    low, high = CLOSE
    return any(low < p < high for p in (contrast.p_value, contrast.equivalence(MATTERS)))


def _difference(block: Block, family: str, arm: str, reference: str, hypothesis: str, values: list) -> dict:
    """A row; `values` has an entry for each family that is averaged."""
    weights = {arm: 1, reference: -1}
    for count in (RESAMPLES, MANY):
        parts = [resample(one, count, family=number) for number, one in enumerate(values)]
        resampled = mean_over(parts)
        contrast = resampled.contrast(weights)
        if not _is_close(contrast):
            break
    alone = resampled.over_bases(weights)
    return {
        "family": family,
        "arm": arm,
        "reference": reference,
        "hypothesis": hypothesis,
        "pairs": resampled.pairs,
        "contrast": contrast,
        "alone": alone,
        "p": contrast.p_value,
        "p_alone": alone.p_value,
        "verdict": verdict(contrast, hypothesis),
        "exploratory": hypothesis == ELSE or block.name not in CO_PRIMARY,
    }


def over_families(block: Block, tables: Tables, k: int = 1) -> pd.DataFrame:
    """
    Return the mean over families of every difference, each family with the same weight, over the pairs that all have;
    a family with fewer pairs than the others is left out until it has theirs. The pairs are the units, because
    families share seeds ([`~study.hierarchical.mean_over`]). The p-values are not adjusted.
    """
    values = outcomes(block, tables, k)
    found = []
    for arm, reference, _ in compared(block):
        by_family = [values[family][[arm, reference]].dropna() for family in block.families]
        most = max(len(both) for both in by_family)
        complete = [both for both in by_family if len(both) == most]
        pairs = reduce(pd.Index.intersection, (both.index for both in complete))
        if len(complete) < 2 or len(pairs) < 2:
            continue
        same_pairs = [both.loc[pairs] for both in complete]
        found.append(_difference(block, f"mean of {len(complete)}", arm, reference, ELSE, same_pairs))
    return pd.DataFrame(found)


def shares(block: Block, tables: Tables) -> pd.DataFrame:
    """
    Return how much B keeps `of` the score, and of the gain over base, of every arm with a moving reference, in
    families in which both have runs: the `ratio`, NaN where the other's is not above 0.
    """
    values = outcomes(block, tables)
    variant = tables.runs["variant"].groupby(level="arm").first()
    found = []
    for family, (b, other) in product(block.families, permutations(block.arms, 2)):
        all_three = values[family][[b, other, BASE]].dropna()
        if all_three.empty or variant[b] != "B" or variant[other] not in ("A", "C"):
            continue
        resampled = resample(all_three)
        row = {"family": family, "arm": b, "reference": other, "pairs": resampled.pairs}
        score = resampled.ratio({b: 1}, {other: 1})
        gain = resampled.ratio({b: 1, BASE: -1}, {other: 1, BASE: -1})
        found.append({**row, "of": "score", "ratio": score})
        found.append({**row, "of": "gain over base", "ratio": gain})
    return pd.DataFrame(found)


def is_share_kept(ratio: Estimate, share: float) -> str:
    """Say whether at least this share is kept: `met`, `not met`, or `undecided`, by the 95 % interval."""
    if ratio.low >= share:
        return "met"
    if ratio.high < share:
        return "not met"
    return "undecided"
