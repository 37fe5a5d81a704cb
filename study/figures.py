"""
`python study/figures.py` computes the numbers of the study's pages from study/tables, and draws their pictures.

The numbers go to study/pages/numbers.csv, which is not committed; tests/docs/test_study.py compares pages and
numbers. The code that made the tables is at the commit in study/tables/frozen_at. In tables and code an `arm` is a
variant with its settings, and the `base` is the starting model.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import pairwise, permutations, product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import yaml
from matplotlib.figure import Figure
from scipy import special, stats

from trl_prorl.eval.analysis.statistics import holm
from trl_prorl.eval.stepcost.settings import BASELINE, DEFAULT
from trl_prorl.eval.stepcost.tables import draw as draw_step_cost
from trl_prorl.eval.stepcost.tables import ratio as speedup
from trl_prorl.tasks import get_task
from trl_prorl.variants import VARIANTS


STUDY = Path(__file__).resolve().parent
KEY = ["family", "arm", "base_seed", "seed", "steps"]
PAIR = ["base_seed", "seed"]
OUTCOMES = ["pass@1", "pass@8", "greedy"]
OTHER_REFERENCES = {"C_step_lr10", "A_K200_beta1", "A_K200_beta10"}  # of single sentences
KL_TARGETS = {"gamed_sorting": 0.14, "gamed_reverse": 0.3}
PROGRAM = r"```|\bprint\(|\bdef \w+\(|console\.log|public |#include"  # of a reply that is program code
QWEN_ARMS = ("A", "control", "C_hard", "C_soft0.1", "B")
QWEN_BASE = ("base", "base_default", "base_4shot")
QWEN_TESTS = [("A", "control"), ("B", "control"), ("C_hard", "A"), ("C_soft0.1", "A")]


@cache
def table(name: str) -> pd.DataFrame:
    """Read a table; `csv` or `csv.gz`."""
    path = next((STUDY / "tables").glob(f"{name}.csv*"))
    return pd.read_csv(path, keep_default_na="texts" not in name, low_memory=False)


@cache
def all_runs() -> pd.DataFrame:
    """
    Return a row for each run, what `derived.csv` has of its curve (NaN for the fourth protocol's runs), and the scores
    of its starting model.
    """
    bases = table("bases")[["family", "base_seed", "base_pass@8", "base_greedy"]]
    return table("runs").merge(table("derived"), on=KEY, how="left").merge(bases, on=["family", "base_seed"])


class Block(NamedTuple):
    """A block of `recipes/matrix.yaml`: variants that are compared."""

    name: str
    protocol: str
    families: list[str]
    arms: list[str]
    steps: int
    references: list[str]
    registered: list[tuple[str, str]]
    chooses: bool

    runs: pd.DataFrame


@cache
def thin_curves(block_name: str) -> pd.DataFrame:
    """Return the metrics of a block's runs, means over ten steps."""
    return table("curves_thin").merge(all_blocks()[block_name].runs[KEY], on=KEY)


@cache
def all_blocks() -> dict[str, Block]:
    """Read the blocks, by name."""
    blocks = {}
    runs = all_runs()
    matrix = yaml.safe_load((STUDY / "recipes" / "matrix.yaml").read_text())["blocks"]
    for name, given in matrix.items():
        suffix = given.get("suffix", "")
        arms = [*given["arms"], *matrix.get(given.get("beside"), {"arms": []})["arms"]]
        pairs = pd.MultiIndex.from_tuples([tuple(pair) for pair in given["pairs"]])
        own = runs.family.isin(given["families"]) & runs.arm.isin([arm + suffix for arm in arms])
        own &= (runs.steps == given["steps"]) & pd.MultiIndex.from_frame(runs[PAIR]).isin(pairs)
        references = given.get("references") or [arm for arm in ("plain", "A") if arm in arms]
        registered = given.get("registered", {}).get("differences", [])
        blocks[name] = Block(
            name,
            given.get("protocol", "first"),
            given["families"],
            [arm + suffix for arm in arms],
            given["steps"],
            [arm + suffix for arm in references],
            [(arm + suffix, other + suffix) for arm, other in registered],
            given.get("split") == "validation",
            runs[own],
        )
    return blocks


class Number(NamedTuple):
    """A number of the pages: what it is of, its value, and, where there are any, its 95 % interval and p-value."""

    block: str
    family: str
    arm: str
    name: str
    value: float
    low: float = math.nan
    high: float = math.nan
    less: str = ""
    p: float = math.nan


class Contrast(NamedTuple):
    """A mean, its 95 % t-interval, and p that it is 0."""

    value: float
    low: float
    high: float
    p: float


def over_units(values: pd.Series) -> Contrast:
    """Return the mean of values by unit, usually a starting model; the values of a unit's seeds are averaged first."""
    means = values.dropna().groupby(level=0).mean()
    error = round(float(means.sem()), 12)
    half = error * stats.t.ppf(0.975, len(means) - 1)
    p = 2 * stats.t.sf(abs(means.mean()) / error, len(means) - 1) if error else float(abs(means.mean()) < 1e-12)
    return Contrast(means.mean(), means.mean() - half, means.mean() + half, p)


def first_protocol() -> Iterator[Number]:
    """
    Yield what the first protocol registers: its intervals are over starting models, seeds and questions, by a
    hierarchical bootstrap at the frozen commit.
    """
    for row in table("first_protocol").dropna(subset="value").fillna({"less": ""}).itertuples():
        yield Number(row.block, row.family, row.arm, row.name, row.value, row.low, row.high, row.less, row.p)


def pass_at(correct: pd.Series, n: int, k: int) -> pd.Series:
    """Return pass@k of prompts of which so many of n samples are correct."""
    return 1 - special.comb(n - correct, k) / special.comb(n, k)


# The later protocols' intervals: t, over starting models, the seeds of each averaged.


def differences(block: Block) -> Iterator[Number]:
    """Yield differences of two variants, with p after Holm over those that the block registers."""
    runs = block.runs.assign(fall=block.runs.best_gold - block.runs.last_gold)
    others = {*block.references, *(less for _, less in block.registered), *OTHER_REFERENCES}
    for family, of_family in runs.groupby("family"):
        found = of_family.pivot(index=PAIR, columns="arm", values=[*OUTCOMES, "fall", "best_gold"]).astype(float)
        tested = ["pass@1", "fall"] if block.name.startswith("gamed") else ["pass@1"]
        registered = [(outcome, *pair) for pair in block.registered for outcome in tested]
        raw = [over_units(found[outcome, arm] - found[outcome, less]).p for outcome, arm, less in registered]
        adjusted = dict(zip(registered, holm(raw), strict=True))
        arms = list(found["pass@1"])
        for arm, less in product(arms, [arm for arm in arms if arm in others]):
            if arm == less:
                continue
            for outcome in (*OUTCOMES, "fall"):
                contrast = over_units(found[outcome, arm] - found[outcome, less])
                p = adjusted.get((outcome, arm, less), math.nan)
                yield Number(block.name, family, arm, outcome, *contrast[:3], less=less, p=p)
            above = over_units(found["pass@1", arm] - found["best_gold", less])
            yield Number(block.name, family, arm, "end, less the best step", *above[:3], less=less)
        for arm, of_arm in of_family.set_index("base_seed").groupby("arm"):
            for less in ("plain", "control"):
                at_equal = over_units(of_arm[f"at_equal_reward_less_{less}"])
                yield Number(block.name, family, arm, "pass@1 at equal reward", *at_equal[:3], less=less)
            for outcome in OUTCOMES:
                less_base = over_units(of_arm[outcome] - of_arm[f"base_{outcome}"])
                yield Number(block.name, family, arm, outcome, *less_base[:3], less="base")


def arms_of(block: Block) -> Iterator[Number]:
    """Yield the numbers of each variant: means over runs, and least and most of what differs between runs."""
    sizes = block.runs.groupby(["family", "arm"]).update_norm.mean()
    for (family, arm), runs in block.runs.groupby(["family", "arm"]):
        resets = [[int(step) for step in str(steps).split()] for steps in runs.resets_at.fillna("")]
        means = runs[[*OUTCOMES, "proxy", "drift", "ref_forward_calls", "clipped", "asymptote"]].mean()
        means["collapsed"] = runs.collapsed.sum()
        means["runs"] = len(runs)
        means["bases"] = runs.base_seed.nunique()
        means["asymptotes"] = runs.asymptote.count()
        for name, value in means.items():
            yield Number(block.name, family, arm, name, value)
        if block.protocol == "fourth":  # derived.csv, which has the steps of the resets, lacks its runs
            continue
        apart = [later - step for steps in resets for step, later in pairwise(steps)]
        spans = {"resets": map(len, resets), "steps apart": apart, "end by best": runs.end_by_best}
        for name, values in spans.items():
            ordered = sorted(values)
            for kind, value in (("least", ordered[:1]), ("most", ordered[-1:])):
                yield Number(block.name, family, arm, f"{name}, {kind}", sum(value))
        for less, size in sizes[family].items():
            yield Number(block.name, family, arm, "size of updates", sizes[family, arm] / size - 1, less=less)
    for family, runs in block.runs.groupby("family"):
        for outcome in OUTCOMES:
            by_base = runs.groupby("base_seed")[f"base_{outcome}"].first()
            yield Number(block.name, family, "base", outcome, by_base.mean())


def cells(block: Block) -> Iterator[Number]:
    """Yield the interquartile mean over all cells, family and pair, and in how many a variant is above the first."""
    scores = block.runs.pivot(index=["family", *PAIR], columns="arm", values="pass@1").dropna()
    reference = block.references[0]
    for arm, of_cells in scores.items():
        above = of_cells > scores[reference]
        yield Number(block.name, "all", arm, "interquartile mean", stats.trim_mean(of_cells, 0.25))
        yield Number(block.name, "all", arm, "cells above", above.sum(), less=reference)
        for family, count in above.groupby(level=0).sum().items():
            yield Number(block.name, family, arm, "bases above", count, less=reference)


def training(block: Block) -> Iterator[Number]:
    """Yield means of the metrics by part of the run, 40 steps or a tenth, and minus the first reference's."""
    size = 40 if block.steps == 240 else block.steps // 10
    thin = thin_curves(block.name)
    means = thin.groupby(["family", "arm", (thin.step - 1) // size + 1])[["reward", "kl_ref", "entropy"]].mean()
    for (family, arm, part), row in means.iterrows():
        for name, value in row.items():
            yield Number(block.name, family, arm, f"{name}, part {part}", value)
        behind = row.reward - means.reward[family, block.references[0], part]
        yield Number(block.name, family, arm, f"reward, part {part}", behind, less=block.references[0])
    for share in (1 / 5, 20 / block.steps):
        last = thin[thin.step > (1 - share) * block.steps].groupby(["family", "arm"])[["entropy", "beta"]].mean()
        for (family, arm), row in last.iterrows():
            yield Number(block.name, family, arm, f"entropy, last {share * block.steps:.0f} steps", row.entropy)
            yield Number(block.name, family, arm, f"beta, last {share * block.steps:.0f} steps", row.beta)


# The third protocol's own questions, and those of single pages.


def best_stops(block: Block, family: str, outcome: str) -> pd.Series:
    """Return plain's score by base at the best rule's early stop: validation, its KL, or the guard."""
    stops = table("stops")
    ends = block.runs[(block.runs.family == family) & (block.runs.arm == "plain_watched")].set_index("base_seed")
    scores: dict[str, dict[int, float]] = {"validation": {}, "KL": {}, "guard": {}}
    column = "gold" if outcome == "pass@1" else outcome
    for base, end in ends[outcome].items():
        rows = stops[(stops.family == family) & (stops.arm == "plain_watched") & (stops.base_seed == base)]
        at_base = stops[(stops.family == family) & (stops.arm == "base") & (stops.base_seed == base)]
        of_step = pd.Series([*at_base[column], *rows[column]], [0, *rows.step])
        of_step[block.steps] = end
        fired = rows.guard_gap.iloc[0]
        far = rows.step[rows.kl_to_base >= KL_TARGETS[family]]
        scores["validation"][base] = of_step[rows.step[rows.validation_gold.idxmax()]]
        scores["KL"][base] = of_step[min(far, default=block.steps)]
        scores["guard"][base] = of_step[max([0, *rows.step[rows.step < fired]])]
    return max((pd.Series(of_bases) for of_bases in scores.values()), key=lambda of_bases: of_bases.mean())


def rivals(name: str) -> dict[str, dict[str, pd.Series]]:
    """Return the scores by base of the control and of what it is compared with, sampled and greedy."""
    block = all_blocks()[name]
    (family,) = block.families
    found: dict[str, dict[str, pd.Series]] = {}
    for outcome in ("pass@1", "greedy"):
        arms = block.runs.pivot(index="base_seed", columns="arm", values=outcome)
        found[outcome] = {
            "control": arms[block.references[0]],
            "plain": arms["plain_watched"],
            "stopped": best_stops(block, family, outcome),
            "tenth": arms["plain_lr_tenth"],
            "rank 4": arms["plain_rank4"],
            "rejection": arms["rejection_sampling"],
        }
    at_base = table("stops")[(table("stops").family == family) & (table("stops").arm == "base")]
    found["pass@1"]["best of 8"] = at_base.set_index("base_seed").best_of_8.reindex(found["pass@1"]["plain"].index)
    return found


def rival_numbers() -> Iterator[Number]:
    """Yield the control minus each alternative, with p after Holm over the five sampled differences."""
    for name in ("rivals", "rivals2"):
        (family,) = all_blocks()[name].families
        for outcome, scores in rivals(name).items():
            less = {
                rival: over_units(scores["control"] - of_rival)
                for rival, of_rival in scores.items()
                if rival != "control"
            }
            tested = [rival for rival in less if rival != "plain"]
            adjusted = dict(zip(tested, holm([less[rival].p for rival in tested]), strict=True))
            for rival, contrast in less.items():
                p = adjusted.get(rival, math.nan) if outcome == "pass@1" else math.nan
                yield Number(name, family, rival, f"{outcome}, the control's less it", *contrast[:3], p=p)
            for rival, of_rival in scores.items():
                yield Number(name, family, rival, outcome, of_rival.mean())


LONG = 1800  # steps of the runs of `dose_long`
DOSE_LONG = {  # its variants
    "plain": "no KL",
    "control_target0.3": "fixed reference, kl_target 0.3",
    "control_target0.6": "fixed reference, kl_target 0.6",
}


def dose(block_name: str = "dose") -> pd.DataFrame:
    """Return the runs of a block, each with the share correct among its base's fully rewarded answers."""
    at_base = table("stops")[table("stops").arm == "base"]
    paid = at_base.assign(share=at_base.gold / at_base.reward)[["family", "base_seed", "share"]].drop_duplicates()
    return all_blocks()[block_name].runs.merge(paid, on=["family", "base_seed"])


def dose_numbers(block_name: str) -> Iterator[Number]:
    """Yield the shares, the distance from the prediction, and the slope over the shares, one line for each base."""
    runs = dose(block_name)
    for (family, arm), of_arm in runs.groupby(["family", "arm"]):
        yield Number(block_name, family, arm, "share", of_arm.share.mean())
        for outcome, name in (("pass@1", "less the share - 0.05"), ("greedy", "greedy, less the share - 0.05")):
            distance = of_arm[outcome] - of_arm.share + 0.05
            yield Number(block_name, family, arm, name, *over_units(distance.set_axis(of_arm.base_seed))[:3])
    if len(all_blocks()[block_name].families) == 1:
        return
    for outcome in ("pass@1", "greedy"):
        slopes = dose_slopes(runs, outcome)
        adjusted = holm([slope.p if outcome == "pass@1" else math.nan for slope in slopes.values()])
        for (arm, slope), p in zip(slopes.items(), adjusted, strict=True):
            yield Number(block_name, "all", arm, f"slope of {outcome}", *slope[:3], p=p)
    highest = runs.groupby("family").share.mean().idxmax()
    for arm, slope in dose_slopes(runs[runs.family != highest], "pass@1").items():
        yield Number(block_name, "all", arm, "slope without the highest share", *slope[:3])


def dose_slopes(runs: pd.DataFrame, outcome: str) -> dict[str, Contrast]:
    """Return the slope of an outcome over the share for each arm, one line for each base."""
    slopes = {}
    for arm, of_arm in runs.groupby("arm"):
        lines = {base: stats.linregress(of.share, of[outcome]).slope for base, of in of_arm.groupby("base_seed")}
        slopes[arm] = over_units(pd.Series(lines))
    return slopes


def sorting_exception() -> Iterator[Number]:
    """
    Yield how the base with the lowest share at the strictest reward of sorting ended, the slope without it, and how
    those ended whose share was higher at the reward before.
    """
    runs = dose("dose_sorting")
    held = "control_target0.14"
    strict, looser = "sorting_ends_2_2", "sorting_ends_1_1"
    of_strict = runs[runs.family == strict].set_index(["arm", "base_seed"])
    base = of_strict.share["plain"].idxmin()
    share = of_strict.share["plain", base]
    slope = dose_slopes(runs[runs.base_seed != base], "pass@1")[held]
    yield Number("dose_sorting", "all", held, "slope without the exception", *slope[:3])
    distance = of_strict["pass@1"][held, base] - share + 0.05
    yield Number("dose_sorting", strict, held, "the exception's distance", distance)
    yield Number("dose_sorting", strict, "plain", "the exception's share", share)
    yield Number("dose_sorting", strict, "plain", "the exception's accuracy", of_strict["pass@1"]["plain", base])
    higher = runs.query("family == @looser and arm == 'plain' and share > @share")
    for name, column in (("share", "share"), ("accuracy", "pass@1")):
        yield Number("dose_sorting", looser, "plain", f"least {name} above it", higher[column].min())
        yield Number("dose_sorting", looser, "plain", f"greatest {name} above it", higher[column].max())


def dose_by_step() -> pd.DataFrame:
    """Return the checkpoints of `dose_long`, one row each."""
    stops = table("stops")
    return stops[(stops.family == "gamed_reverse_2_2") & (stops.steps == LONG)]


def late_fall() -> Iterator[Number]:
    """Yield accuracy and reward of the starting model without a KL that fell last, at its last two checkpoints."""
    runs = dose_by_step().query("arm == 'plain'").set_index(["base_seed", "step"])
    for step in (LONG - 300, LONG):
        for outcome in ("gold", "reward"):
            name = f"{outcome} of starting model 1 at step {step}"
            yield Number("dose_long", "gamed_reverse_2_2", "plain", name, runs.loc[(1, step), outcome])
    ends = dose("dose_long").query("base_seed == 1").set_index("arm")["pass@1"]
    gap = ends["control_target0.3"] - ends["plain"]
    name = "gap of starting model 1"
    yield Number("dose_long", "gamed_reverse_2_2", "control_target0.3", name, gap, less="plain")


def given_back(block_name: str, arm: str, outcome: str = "pass@1") -> float:
    """Return (A - control) / (plain - control) of means over bases; the control is the one with A's coefficient."""
    means = all_blocks()[block_name].runs.groupby("arm")[outcome].mean()
    control = means[f"control_{arm.rpartition('_')[2]}"]
    return float((means[arm] - control) / (means["plain"] - control))


def pass_at_k() -> pd.DataFrame:
    """Return pass@k by base of the base and of four arms of `clamp2`: columns (k, arm), and `at most`, its bound."""
    counted = table("passk")
    found = {}
    for (arm, base), rows in counted.groupby(["arm", "base_seed"]):
        n = int(rows.n.iloc[0])
        square = (rows.correct * (rows.correct - 1) / (n * (n - 1))).mean()
        for k in 2 ** np.arange(9):
            bound = 1 - (1 - 2 * (rows.correct / n).mean() + square) ** (k / 2)
            found[base, k, arm] = {"pass@k": pass_at(rows.correct, n, k).mean(), "at most": bound}
    return pd.DataFrame(found).T.unstack(level=[1, 2])


def other_tasks() -> pd.DataFrame:
    """Return accuracy and KL to the base on the tasks that a run was not trained on, and on its own, by checkpoint."""
    points = table("points")[table("points").family == "forget"].assign(own=lambda of: of.task == "reverse_digits")
    return points.groupby([*KEY[1:4], "step", "own"])[["gold", "kl_to_base"]].mean().unstack("own")


def kept_at(paths: Sequence[pd.DataFrame]) -> float:
    """Return the difference of two paths' accuracy where each first reaches the lower of their highest KLs."""
    level = min(path.kl.max() for path in paths)
    found = []
    for path in paths:
        after = int(np.argmax(path.kl.to_numpy() >= level - 1e-9)) + 1
        found.append(np.interp(level, path.kl[:after], path.kept[:after]))
    return float(found[0] - found[1])


def forget_numbers() -> Iterator[Number]:
    """Yield what variants keep of sorting and sums: at the end, at equal accuracy on reversing, and at equal KL."""
    paths = other_tasks()
    yield from forgotten(paths)
    ends = paths.xs(600, level="step")
    lowest = ends["gold", True].groupby(level=PAIR).min()
    trained = paths[paths.index.get_level_values("step") > 0]
    nearest = (trained["gold", True] - lowest).abs().groupby(level=["arm", *PAIR]).idxmin()
    at_equal = trained["gold", False].loc[list(nearest)].droplevel("step")
    for name in ("forget", "forget2"):
        block = all_blocks()[name]
        kept = {"kept": ends["gold", False], "kept at equal gold": at_equal}
        runs = block.runs.set_index(["arm", *PAIR])
        for outcome, scores in kept.items():
            by_arm = scores[runs.index].unstack("arm")
            for arm, less in permutations(by_arm, 2):
                yield Number(name, "forget", arm, outcome, *over_units(by_arm[arm] - by_arm[less])[:3], less=less)
        for own, (arm, less) in product((True, False), permutations(block.arms, 2)):
            less_at_kl = {}
            for pair in runs.xs(arm).index:
                both = [paths.loc[(of, *pair)] for of in (arm, less)]
                both = [pd.DataFrame({"kl": path["kl_to_base", own], "kept": path["gold", False]}) for path in both]
                less_at_kl[pair] = kept_at(both)
            contrast = over_units(pd.Series(less_at_kl))
            on = "reversing" if own else "the others"
            yield Number(name, "forget", arm, f"kept at equal KL on {on}", *contrast[:3], less=less)
        at_base = paths["gold", False].xs(0, level="step").loc[list(runs.index)]
        yield Number(name, "forget", "base", "kept", at_base.groupby("base_seed").mean().mean())
        for arm, of_arm in ends.loc[list(runs.index)].groupby("arm"):
            yield Number(name, "forget", arm, "KL on the others", of_arm["kl_to_base", False].mean())
            yield Number(name, "forget", arm, "kept", of_arm["gold", False].mean())


def forgotten(paths: pd.DataFrame) -> Iterator[Number]:
    """Yield the share of plain's loss that variants of `forget2` keep, with p, and which KL predicts the loss."""
    lost = paths["gold", False].xs(0, level="step") - paths["gold", False].xs(600, level="step")
    of_forget2 = lost[lost.index.get_level_values("seed") > 70].groupby(level=[0, 1]).mean().unstack("arm")
    arms = [arm for arm in of_forget2 if arm != "plain"]
    less = {arm: over_units(of_forget2["plain"] - of_forget2[arm]) for arm in arms}
    for arm, p in zip(arms, holm([less[arm].p for arm in arms]), strict=True):
        yield Number("forget2", "forget", arm, "kept", *less[arm][:3], less="plain", p=p)
        share = over_units(1 - of_forget2[arm] / of_forget2["plain"])
        yield Number("forget2", "forget", arm, "share kept", *share[:3])
        yield Number("forget2", "forget", arm, "share kept, of means", less[arm].value / of_forget2["plain"].mean())
    ends = paths.xs(600, level="step")["kl_to_base"].assign(lost=lost)
    ends = ends[ends.index.get_level_values("seed") < 70]
    for own, of in ((False, "the others"), (True, "reversing")):
        for base in ("all", 1, 2, 3):
            chosen = ends if base == "all" else ends.xs(base, level="base_seed")
            value = chosen[own].corr(chosen.lost, method="spearman")
            yield Number("forget", "forget", str(base), f"rank correlation of loss with KL on {of}", value)


def is_bare(asked: str, text: str) -> bool:
    """Return whether a reply is bare: two words, the required last words and at most one more, or the demand again."""
    words = re.findall("[a-z]+", text.lower())
    demanded = re.search('End with exactly these words: "(.*)"', asked)
    if len(words) <= 2 or not demanded:
        return len(words) <= 2
    wanted = re.findall("[a-z]+", demanded[1].lower())
    ends = " ".join(wanted) in " ".join(words) and len(words) <= len(wanted) + 1
    return ends or "End with exactly" in text


def is_stricter(asked: str, text: str) -> bool:
    """Return whether a text has at least six words, one of them not in its prompt; both are JSON."""
    asked_words, words = (
        re.findall(r"\w+(?:'\w+)?", json.loads(one).lower().replace("’", "'")) for one in (asked, text)
    )
    return len(words) >= 6 and not set(words) <= set(asked_words)


def judged_texts() -> dict[str, pd.DataFrame]:
    """Return the texts of both blocks of SmolLM2, with `right` and, by the stricter rule of each, `sense`."""
    first = table("smollm2_texts")
    bare = [is_bare(*one) for one in zip(first.asked, first.completion, strict=True)]
    second = table("texts")
    second = second[(second.family == "smollm2") & second.seed.isin([0, 5, 6, 7])]
    stricter = [is_stricter(*one) for one in zip(second.asked, second.text, strict=True)]
    return {
        "pretrained": first.assign(step=160, split="test", greedy=0, sense=first.right * ~np.array(bare)),
        "smollm2b": second.assign(sense=second.right * np.array(stricter)),
    }


def smollm2_numbers() -> Iterator[Number]:
    """Yield SmolLM2's scores by the registered and by the stricter rule, by seed and over prompts; its measures."""
    for name, texts in judged_texts().items():
        stopped = texts[(texts.arm == "plain") & (texts.step == 20)].assign(arm="stopped")
        ends = texts[texts.step.isin([0, 160])]
        of_test = pd.concat([ends, stopped]).query("split == 'test'")
        for kind, column in product(("sampled", "greedy"), ("right", "sense")):
            chosen = of_test[of_test.greedy == (kind == "greedy")]
            for (arm, seed), score in chosen.groupby(["arm", "seed"])[column].mean().items():
                yield Number(name, "smollm2", arm, f"{column}, {kind}, seed {seed}", score)
            for arm, score in chosen.groupby("arm")[column].mean().items():
                yield Number(name, "smollm2", arm, f"{column}, {kind}", score)
            by_prompt = chosen.groupby(["arm", "prompt"])[column].mean().unstack("arm")
            by_seed = chosen.groupby(["arm", "seed"])[column].mean().unstack("arm")
            way = column if kind == "sampled" else f"{column}, greedy"
            for arm, less in permutations(by_prompt, 2):
                contrast = over_units(by_prompt[arm] - by_prompt[less])
                yield Number(name, "smollm2", arm, f"{way}, over prompts", *contrast[:3], less=less)
                contrast = over_units(by_seed[arm] - by_seed[less])
                yield Number(name, "smollm2", arm, f"{way}, over seeds", *contrast[:3], less=less)
        for arm, of_arm in of_test[of_test.greedy == 0].groupby("arm"):
            yield Number(name, "smollm2", arm, "right texts", of_arm.right.sum())
            yield Number(name, "smollm2", arm, "bare texts", of_arm.right.sum() - of_arm.sense.sum())
            asks_for_last_words = of_arm.asked.str.contains("End with exactly")
            for asks, scores in of_arm.groupby(asks_for_last_words)[["right", "sense"]].mean().iterrows():
                for column, score in scores.items():
                    yield Number(name, "smollm2", arm, f"{column}, {'last words' if asks else 'the rest'}", score)
        for (arm, seed), score in all_blocks()[name].runs.set_index(["arm", "seed"])["pass@8"].items():
            yield Number(name, "smollm2", arm, f"pass@8, seed {seed}", score)
        points = table("points")
        points = points[(points.family == "smollm2") & points.seed.isin(texts.seed) & points.step.isin([0, 160])]
        points = points.assign(arm=points.arm.where(points.step > 0, "base"))
        for (arm, task), row in points.groupby(["arm", "task"]).mean(numeric_only=True).iterrows():
            for measure, value in row.drop(PAIR).items():
                yield Number(name, "smollm2", arm, f"{measure} on {task}", value)


def qwen_replies() -> Iterator[tuple[str, pd.DataFrame]]:
    """
    Yield the Qwen's replies by decoding and limit of tokens: those of the first runs, which were sampled with a limit
    of 200, and those of the fourth protocol, sampled with 512 and scored again when they are cut at 200. `corrected`
    is the score by the verifier of today.
    """
    texts = table("qwen_texts")
    replies = texts.text.map(json.loads)
    answers = texts.prompt.map(table("qwen_answers").set_index("prompt").answer)
    verify = get_task("gsm8k").verify
    corrected = [verify(reply, {"answer": str(answer)}) for reply, answer in zip(replies, answers, strict=True)]
    is_program = replies.str.contains(PROGRAM)
    texts = texts.assign(model=texts.model.str.removesuffix("_512"), program=is_program, corrected=corrected)
    cut = texts.assign(correct=texts.correct_200, truncated=texts.truncated_200, tokens=texts.tokens.clip(upper=200))
    at_200 = pd.concat([table("qwen_verdicts"), cut]).astype({"correct": float, "truncated": bool})
    for limit, replies in ((512, texts.astype({"truncated": bool})), (200, at_200)):
        for decoding, chosen in replies.groupby("decoding"):
            yield f"{decoding}, {limit}", chosen.assign(bare=chosen.tokens < 40)


def qwen_numbers() -> Iterator[Number]:
    """
    Yield the Qwen's scores, with t-intervals over questions, and differences; and how much of a difference is form:
    the share of whole replies, which are those that end and have 40 tokens at least.
    """
    for name, replies in qwen_replies():
        replies = replies.assign(whole=~replies.truncated & ~replies.bare)
        scores = replies.groupby(["prompt", "model"]).correct.mean().unstack("model")
        solved = replies.groupby(["prompt", "model"]).correct.max().unstack("model").mean()
        measures = ["whole", "truncated", "bare", "tokens", *(["program"] if name.endswith("512") else [])]
        shares = replies.groupby("model")[measures].mean()
        among = replies[replies.whole].groupby("model").correct.mean()
        ended = replies[~replies.truncated].groupby("model").correct.mean()
        for model in scores:
            yield Number("qwen", name, model, "pass@1", *over_units(scores[model])[:3])
            yield Number("qwen", name, model, "pass@2", solved[model])
            yield Number("qwen", name, model, "correct among ended", ended[model])
            yield Number("qwen", name, model, "correct among whole", among[model])
            for measure, value in shares.loc[model].items():
                yield Number("qwen", name, model, measure, value)
        less = {pair: over_units((scores[pair[0]] - scores[pair[1]]).dropna()) for pair in permutations(scores, 2)}
        is_complete = less.keys() >= {*QWEN_TESTS} and name == "sampled, 512"
        tested = QWEN_TESTS if is_complete else []
        adjusted = dict(zip(tested, holm([less[pair].p for pair in tested]), strict=True))
        for (model, other), contrast in less.items():
            yield Number("qwen", name, model, "pass@1", *contrast[:3], other, adjusted.get((model, other), math.nan))
            of_form = (shares.whole[model] - shares.whole[other]) * (among[model] + among[other]) / 2
            of_whole = (among[model] - among[other]) * (shares.whole[model] + shares.whole[other]) / 2
            yield Number("qwen", name, model, "difference by form", of_form, less=other)
            yield Number("qwen", name, model, "difference among whole", of_whole, less=other)
        if not name.endswith("512"):
            continue
        corrected = replies.groupby(["prompt", "model"]).corrected.mean().unstack("model")
        for model in corrected:
            yield Number("qwen", name, model, "corrected", *over_units(corrected[model])[:3])
        less = {
            pair: over_units((corrected[pair[0]] - corrected[pair[1]]).dropna()) for pair in permutations(corrected, 2)
        }
        adjusted = dict(zip(tested, holm([less[pair].p for pair in tested]), strict=True))
        for (model, other), contrast in less.items():
            p = adjusted.get((model, other), math.nan)
            yield Number("qwen", name, model, "corrected", *contrast[:3], other, p)
    for arm, steps in table("qwen_steps").groupby("arm"):
        batches = steps[steps.time_rollout > 0]
        values = {
            "reward, first four batches": batches.reward.head(4).mean(),
            "reward, last four batches": batches.reward.tail(4).mean(),
            "KL, step 10": steps.kl_ref[steps.step == 10].item(),
            "KL, last but one update": steps.kl_ref.iloc[-2],
            "KL, last update": steps.kl_ref.iloc[-1],
            "least beta": steps.beta.min(),
            "most beta": steps.beta.max(),
            "minutes": steps.time_step.sum() / 60,
            "seconds of sampling": batches.time_rollout.median(),
            "seconds of an update": steps.time_update.median(),
            "least seconds of an update": steps.time_update.min(),
            "most seconds of an update": steps.time_update.max(),
        }
        for name, value in values.items():
            yield Number("qwen", "steps", arm, name, value)


def median_steps(told: pd.Series) -> float:
    """Return the median steps to reconverge, by Kaplan and Meier; `12+` is not back after 12 steps."""
    steps = " ".join(told.dropna().astype(str)).split()
    back = [int(step) for step in steps if not step.endswith("+")]
    out = [int(step[:-1]) for step in steps if step.endswith("+")]
    survival = stats.ecdf(stats.CensoredData(uncensored=back, right=out)).sf
    reached = survival.quantiles[survival.probabilities <= 0.5 + 1e-12]
    return float(reached[0]) if len(reached) else math.inf


def other_numbers() -> Iterator[Number]:
    """Yield numbers of all blocks, and of questions of their own."""
    blocks = all_blocks()
    runs = all_runs()
    protocols = table("runs").block.map({name: block.protocol for name, block in blocks.items()})
    for protocol, of_protocol in table("runs").groupby(protocols):
        yield Number("all", "", protocol, "runs", len(of_protocol))
        yield Number("all", "", protocol, "core-hours", of_protocol.seconds.sum() / 3600)
    added = table("runs").block.isin(["mild", "tuning_mild", "stress_rate", "long5", "events"])
    yield Number("all", "", "first", "runs added", added.sum())
    medians = []
    for block in blocks.values():
        for _, of_arm in block.runs.groupby(["family", "arm"]) if block.protocol != "fourth" else ():
            if not block.chooses and of_arm[["resets_at", "reconvergence"]].notna().any().all():
                medians.append(median_steps(of_arm.reconvergence))
    yield Number("all", "", "resets", "arms", len(medians))
    yield Number("all", "", "resets", "arms back in three steps", sum(median <= 3 for median in medians))
    slowing = runs.dropna(subset="slowing")
    for arm, of_arm in slowing.groupby("arm"):
        yield Number("all", "", arm, "runs of one rate", len(of_arm))
        for row in of_arm.itertuples():
            yield Number("all", row.family, arm, f"rate of the second half, {row.base_seed}, {row.seed}", row.slowing)
    yield Number("all", "", "plain", "rate of the second half, shorter means", slowing.slowing_noisiest.max())
    for family, of_screen in (("gamed_sorting", "gamed_sorting"), ("gamed_reverse", "reverse_digits")):
        prompts = table("prompts")
        needed = []
        for base in (0, 6):
            rows = prompts[(prompts.family == of_screen) & (prompts.arm == "base") & (prompts.base_seed == base)]
            length = runs[(runs.family == of_screen) & (runs.base_seed == base)].drift_tokens.mean()
            needed.append(-np.log((rows.correct + 0.5) / (rows.n + 1)).mean() / length)
        yield Number("all", family, "base", "KL that right answers need", np.mean(needed))
    paid = blocks["gamed2"].runs.query("arm == 'control'").right_of_paid.mean()
    yield Number("gamed2", "gamed_reverse", "base", "right of paid, first batch", paid)
    at_base = table("stops").query("family == 'gamed_reverse' and arm == 'base'")
    yield Number("gamed2", "gamed_reverse", "base", "right of paid, test", (at_base.gold / at_base.reward).mean())
    (result,) = json.loads((STUDY / "tables" / "step_cost.json").read_text())["results"].values()
    for arm, other in permutations(result, 2):
        ratios = np.array(result[arm]["whole"]) / np.array(result[other]["whole"])
        interval = stats.quantile_test(ratios, p=0.5).confidence_interval(0.95)
        yield Number("cost", "", arm, "seconds of a step", np.median(ratios), *interval, less=other)


def step_costs() -> dict[str, dict]:
    """Return the rounds of `make step-cost` by shape and updates per batch."""
    shapes = json.loads((STUDY / "tables" / "step_cost_shapes.json").read_text())["results"]
    return {title: result for title, result in shapes.items() if not title.endswith("again")}


def step_cost_numbers() -> Iterator[Number]:
    """Yield how many times as fast as TRL's a step is, by shape, with the range of the paired rounds."""
    pairs = (("plain packed", DEFAULT), ("A packed", BASELINE), ("floor", DEFAULT))
    for title, result in step_costs().items():
        for arm, other in pairs:
            yield Number("step_cost", title, arm, "speedup", *speedup(result, arm, other, "whole"), less=other)
        for arm, part in product((DEFAULT, "plain packed", "floor"), ("generation", "update")):
            yield Number("step_cost", title, arm, part, result[arm][part])
        reached = speedup(result, "plain packed", "floor", "whole")
        yield Number("step_cost", title, "plain packed", "reached", *reached, less="floor")
    (of_qwen,) = json.loads((STUDY / "tables" / "step_cost_qwen.json").read_text())["results"].values()
    whole = speedup(of_qwen, "A packed", BASELINE, "whole")
    yield Number("qwen", "a step", "A packed", "seconds of TRL's step, as a multiple of its own", *whole)
    for arm, part in product((BASELINE, "A packed"), ("generation", "scoring", "update")):
        yield Number("qwen", "a step", arm, f"seconds of {part}", of_qwen[arm][part])


def clamp2_numbers() -> Iterator[Number]:
    """Yield what resets recover, and pass@k of many samples, with its bound, and minus the base's."""
    for beta, arm in product((1, 10), ("A_beta", "A_K200_beta")):
        yield Number("clamp2", "reverse_level8", f"{arm}{beta}", "given back", given_back("clamp2", f"{arm}{beta}"))
    scores = pass_at_k()
    for (measure, k, arm), values in scores.items():
        yield Number("clamp2", "reverse_level8", arm, f"{measure}, k = {k}", values.mean())
        if measure == "pass@k":
            less = over_units(values - scores["pass@k", k, "base"])
            yield Number("clamp2", "reverse_level8", arm, f"pass@{k}", *less[:3], less="base")


def guard_rates() -> Iterator[Number]:
    """Yield in how many of how many runs `guard_gap: 0.1` fires, by window, as docs/methods.md has it."""
    fourth = [name for name, block in all_blocks().items() if block.protocol == "fourth"]
    runs = all_runs()[~all_runs().block.isin(fourth)]
    plain = runs.arm.isin(["plain", "plain_watched"])
    chosen = {
        "plain": plain & runs.family.isin(list(KL_TARGETS)),
        "plain, other strictnesses": plain & runs.family.str.startswith("gamed") & ~runs.family.isin(list(KL_TARGETS)),
        "control": runs.family.str.startswith("gamed") & runs.arm.str.startswith("control_target"),
    }
    for (arm, rows), window in product(chosen.items(), (20, 40, 60)):
        yield Number("guard_gap", "", arm, f"fired, window {window}", (runs[rows][f"guard_0.1_{window}"] > 0).sum())
        yield Number("guard_gap", "", arm, "runs", rows.sum())
    watched = runs[runs.block.isin(["rivals", "rivals2"])]
    for arm, rows in watched.groupby(watched.arm.str.replace(r"_target.*", "", regex=True)):
        yield Number("guard_gap", "", arm, "fired, window 20, gap 0.05", (rows["guard_0.05_20"] > 0).sum())
        yield Number("guard_gap", "", arm, "fallen by then, most", rows.fallen_at_guard.max())


# The fourth protocol: what the generic differences of its blocks lack, and its predictions.


def chosen_by_validation(kept: pd.DataFrame, ends: pd.Series, column: str) -> pd.Series:
    """
    Return the score of each run at the checkpoint that is best on validation questions, the first of equal ones. The
    last step has the score of the evaluation. A run that collapsed has no checkpoints, and keeps its end.
    """
    scores = ends.copy()
    for pair in ends.index.intersection(kept.index):
        of_run = kept.loc[[pair]].set_index("step")
        step = of_run.validation_gold.idxmax()
        if step < of_run.steps.max():
            scores[pair] = of_run[column][step]
    return scores


def tuned_rivals() -> Iterator[Number]:
    """
    Yield the control minus each tuned alternative, with p after Holm over four sampled differences, and minus two that
    are exploratory.
    """
    stops = table("stops")
    for name in ("tuned_rivals", "tuned_rivals2"):
        block = all_blocks()[name]
        (family,) = block.families
        (control,) = block.references
        watched = all_blocks()["tuned_stops"].runs.query("family == @family").set_index(PAIR)
        runs = block.runs.pivot(index=PAIR, columns="arm")
        pairs = runs.index.intersection(watched.index)
        if pairs.empty:
            continue
        runs, watched = runs.loc[pairs], watched.loc[pairs]
        kept = stops[stops.family == family].set_index(["arm", *PAIR])
        of_base = kept.loc["base"].best_of_8.groupby("base_seed").first()
        tests = []
        for column, outcome in (("gold", "pass@1"), ("greedy", "greedy")):
            others = {
                "stopped": chosen_by_validation(kept.loc["plain"], watched[outcome], column),
                "linear": runs[outcome, "plain_linear"],
                "three rounds": runs[outcome, "rejection_rounds"],
            }
            for rival, scores in others.items():
                tests.append((rival, outcome, over_units((runs[outcome, control] - scores).dropna())))
            exploratory = {
                "ten steps": kept.loc["plain"].query("step == 10")[column].reindex(pairs),
                "control stopped": chosen_by_validation(kept.loc[control], runs[outcome, control], column),
            }
            for rival, scores in exploratory.items():
                less = over_units((runs[outcome, control] - scores).dropna())
                yield Number(name, family, rival, f"{outcome}, the control's less it", *less[:3])
            for rival, scores in (others | exploratory).items():
                yield Number(name, family, rival, outcome, scores.mean())
        best = {}  # a collapsed run, which has none, counts 0
        for arm in [*block.arms, "plain"]:
            of_arm = kept.best_of_8.dropna().loc[arm].reindex(pairs).fillna(0.0)
            best[arm] = of_arm.groupby("base_seed").mean()
            yield Number(name, family, arm, "best of 8", best[arm].mean())
        yield Number(name, family, "base", "best of 8", of_base[best[control].index].mean())
        tests.append(("base", "best of 8", over_units(best[control] - of_base)))
        adjusted = holm([contrast.p if outcome != "greedy" else math.nan for _, outcome, contrast in tests])
        for (rival, outcome, contrast), p in zip(tests, adjusted, strict=True):
            yield Number(name, family, rival, f"{outcome}, the control's less it", *contrast[:3], p=p)


def every_rewarded_text() -> Iterator[Number]:
    """
    Yield the control, and the control that validation stops, minus rejection sampling on every rewarded text, by equal
    pairs; the latter minus that on the different texts, by base; its best of 8 minus the base's; and its sampled
    tokens as a multiple of the control's. Exploratory.
    """
    every = all_runs()
    stops = table("stops")
    block = all_blocks()["rejection_all"]
    for family, target in KL_TARGETS.items():
        runs = block.runs.query("family == @family").set_index(PAIR)
        of_family = every[(every.family == family) & (every.steps == block.steps)].set_index(["arm", *PAIR])
        control = of_family.loc[f"control_target{target}"].reindex(runs.index)
        different = of_family.loc["rejection_sampling"].groupby("base_seed")
        kept = stops[stops.family == family].set_index(["arm", *PAIR])
        for column, outcome in (("gold", "pass@1"), ("greedy", "greedy")):
            stopped = chosen_by_validation(kept.loc[f"control_target{target}"], control[outcome], column)
            for arm, scores in (("control", control[outcome]), ("control stopped", stopped)):
                less = over_units((scores - runs[outcome]).dropna())
                yield Number(block.name, family, "every rewarded", f"{outcome}, the {arm}'s less it", *less[:3])
                yield Number(block.name, family, arm, outcome, scores.mean())
            gain = over_units(runs[outcome].groupby("base_seed").mean() - different[outcome].mean())
            yield Number(block.name, family, "rejection_all", outcome, *gain[:3], less="rejection_sampling")
        best = kept.best_of_8.loc["rejection_all"].groupby("base_seed").mean()
        gain = over_units((best - kept.best_of_8.loc["base"].groupby("base_seed").first()).dropna())
        yield Number(block.name, family, "rejection_all", "best of 8", best.mean())
        yield Number(block.name, family, "rejection_all", "best of 8", *gain[:3], less="base")
        tokens = runs.tokens_generated / control.tokens_generated
        yield Number(block.name, family, "rejection_all", "tokens, as a multiple of the control's", tokens.mean())


def target_ranges() -> Iterator[Number]:
    """
    Yield the least and the greatest multiple of the target up to which accuracy moves by less than 5 points, and what
    β is over the last 50 steps.
    """
    multiples_of = (0.25, 0.5, 1.0, 2.0, 4.0)
    for name in ("target", "target2"):
        block = all_blocks()[name]
        ends = thin_curves(name).query("step > steps - 50")
        for arm, beta in ends.groupby("arm").beta.mean().items():
            yield Number(name, block.families[0], arm, "beta at the end", beta)
        means = block.runs.groupby("arm")["pass@1"].mean().reindex(block.arms)
        is_near = ((means - means[block.references[0]]).abs() < 0.05).to_list()
        if is_near[2]:
            low = 2 - next((place for place in range(2) if not is_near[1 - place]), 2)
            high = 2 + next((place for place in range(2) if not is_near[3 + place]), 2)
            yield Number(name, block.families[0], "", "least multiple within 5 points", multiples_of[low])
            yield Number(name, block.families[0], "", "greatest multiple within 5 points", multiples_of[high])


def long_k() -> Iterator[Number]:
    """Yield what resets at long intervals recover of the gain of no KL."""
    arms = all_blocks()["long_k"].runs.arm.unique()
    for outcome, name in (("pass@1", "given back"), ("greedy", "given back, greedy")):
        for arm in [arm for arm in arms if arm.startswith("A_")]:
            yield Number("long_k", "reverse_level8", arm, name, given_back("long_k", arm, outcome))


def smollm2b_over_seeds() -> Iterator[Number]:
    """
    Yield SmolLM2's scores and differences over five seeds: on the 64 prompts of all seeds, and for the last two seeds
    on 256 prompts. `uncopied` is the stricter score without texts that copy the instruction of the last words, a rule
    made after reading them. Early stopping takes step 20 with each seed: so does validation by the stricter score.
    """
    held = "control_target0.066"
    others_of = {held: ("plain", "stopped"), "control": ("plain", held), "A": ("control", "plain")}
    texts = table("texts")
    watched = texts[(texts.arm == "plain") & (texts.split == "validation") & texts.seed.isin(range(5, 10))]
    stricter = [is_stricter(*one) for one in zip(watched.asked, watched.text, strict=True)]
    watched = watched.assign(sense=watched.right * np.array(stricter))
    chosen = watched.groupby(["seed", "step"]).sense.mean().unstack("step").idxmax(axis="columns")
    for which, step in (("first", chosen.min()), ("last", chosen.max())):
        yield Number("smollm2b_seeds", "smollm2", "plain", f"{which} step that validation takes", step)
    is_end = texts.arm.isin([*others_of, "plain"]) & (texts.step == 160)
    is_stop = (texts.arm == "plain") & (texts.step == 20)
    is_base = (texts.family == "smollm2_256") & (texts.arm == "base")
    kept = (is_end | is_stop) & texts.seed.isin(range(5, 10)) | is_base
    texts = texts[kept & texts.family.str.startswith("smollm2") & (texts.split == "test")]
    texts = texts.assign(arm=texts.arm.where(texts.step != 20, "stopped"))
    stricter = np.array([is_stricter(*one) for one in zip(texts.asked, texts.text, strict=True)])
    copies = texts.asked.str.contains("End with exactly") & texts.text.str.contains("end with", case=False)
    texts = texts.assign(sense=texts.right * stricter, uncopied=texts.right * stricter * ~copies)
    common = texts[texts.prompt < 64]
    for column, (greedy, kind) in product(("right", "sense", "uncopied"), enumerate(("sampled", "greedy"))):
        for family, of_prompts in (("smollm2", common), ("smollm2_256", texts)):
            later = of_prompts[(of_prompts.family == "smollm2_256") & (of_prompts.greedy == greedy)]
            for (arm, seed), score in later.groupby(["arm", "seed"])[column].mean().items():
                yield Number("smollm2b_seeds", family, arm, f"{column}, {kind}, seed {seed}", score)
        of_kind = common[(common.greedy == greedy) & (common.arm != "base")]
        by_seed, by_prompt = (
            of_kind.groupby([unit, "seed", "arm"])[column].mean().groupby([unit, "arm"]).mean().unstack("arm")
            for unit in ("seed", "prompt")
        )
        name = f"{column}, five seeds" if kind == "sampled" else f"{column}, greedy, five seeds"
        for arm in by_seed:
            yield Number("smollm2b_seeds", "smollm2", arm, name, by_seed[arm].mean())
        for arm, others in others_of.items():
            for other in others:
                for unit, scores in ((name, by_seed), (f"{name}, over prompts", by_prompt)):
                    difference = over_units(scores[arm] - scores[other])
                    yield Number("smollm2b_seeds", "smollm2", arm, unit, *difference[:3], other)
    of_seed = texts[(texts.arm == "control") & (texts.seed == 9) & (texts.greedy == 0)]
    counts = {"texts that pass": of_seed.sense.sum(), "copies": of_seed.sense.sum() - of_seed.uncopied.sum()}
    for name, count in counts.items():
        yield Number("smollm2b_seeds", "smollm2_256", "control", f"{name}, seed 9", count)
    runs = table("runs")
    for _, run in runs[runs.block == "smollm2b_seeds"].iterrows():
        for measure in ("proxy", "drift"):
            yield Number("smollm2b_seeds", "smollm2", run.arm, f"{measure}, seed {run.seed}", run[measure])


WATCHED = ("target", "target2", "tuned_stops", "tuned_rivals", "tuned_rivals2")


def first_firing(curve: pd.DataFrame) -> float:
    """Return the step at which `guard_gap` (window 40, gap 0.1) first fires in a run; NaN if it never does."""
    means = curve.set_index("step")[["gold", "reward"]].rolling(40).mean().dropna()
    if means.empty:
        return math.nan
    best = next(means.itertuples())
    for mean in means.itertuples():
        if mean.gold >= best.gold:
            best = mean
        elif best.gold - mean.gold > 0.1 and mean.reward >= best.reward:
            return float(mean.Index)
    return math.nan


def guard_replays() -> Iterator[Number]:
    """
    Yield the error rates of `guard_gap` on the runs of `target` and `tuned_rivals`, and what a damaged run loses after
    the first checkpoint that follows its firing; by base and then over bases.
    """
    stops = table("stops")
    at_base = stops[stops.arm == "base"].groupby(["family", "base_seed"]).gold.first()
    curve_of = dict(list(table("guard_curves").groupby(KEY)))
    rows = []
    for name in WATCHED:
        for run in all_blocks()[name].runs.to_dict("records"):
            key = tuple(run[column] for column in KEY)
            if key in curve_of:
                kept = stops[(stops[KEY] == [*key]).all(axis=1)]
                fired = first_firing(curve_of[key])
                at_firing = [*kept.gold[kept.step >= fired], run["gold"]][0]
                values = {
                    "fall": max([*kept.gold, at_base[run["family"], run["base_seed"]]]) - run["gold"],
                    "fired": fired,
                    "later": at_firing - run["gold"],
                }
                rows.append({"base_seed": run["base_seed"], "arm": run["arm"], **values})
    runs = pd.DataFrame(rows, columns=["base_seed", "arm", "fall", "fired", "later"])
    damaged = runs.fall > 0.1
    of_kinds = {
        "miss rate": runs.fired.isna()[damaged],
        "miss rate without a KL": runs.fired.isna()[damaged & runs.arm.str.startswith("plain")],
        "false-alarm rate": runs.fired.notna()[~damaged],
        "fall after the firing": runs.later[damaged & runs.fired.notna()],
        "fall after any firing": runs.later[runs.fired.notna()],
    }
    for name, of_runs in of_kinds.items():
        yield Number("guard_gap", "", "fourth", f"runs of the {name}", len(of_runs))
        yield Number("guard_gap", "", "fourth", f"sum of the {name}", of_runs.sum())
        if len(of_runs):
            rate = over_units(of_runs.astype(float).groupby(runs.base_seed).mean())
            yield Number("guard_gap", "", "fourth", name, *rate[:3])


def finished() -> Iterator[Number]:
    """Yield how many runs, and pairs of a starting model and a seed, the blocks of the fourth protocol have."""
    runs = table("runs")
    for name in [*(name for name, block in all_blocks().items() if block.protocol == "fourth"), "smollm2b"]:
        of_block = runs[runs.block == name]
        yield Number("fourth", "", name, "runs", len(of_block))
        yield Number("fourth", "", name, "pairs", len(of_block[["family", *PAIR]].drop_duplicates()))
    models = set(table("qwen_texts").model.str.removesuffix("_512"))
    for name, planned in (("qwen_arms", QWEN_ARMS), ("qwen_base", QWEN_BASE)):
        yield Number("fourth", "", name, "runs", len(models & {*planned}))


# Predictions of the fourth protocol: the numbers that each is of, and what refutes it.


def outside(low: float, high: float) -> Callable[[list[Number]], bool]:
    """Return whether an interval has no point in common with [low, high]."""
    return lambda found: any(one.low > high or one.high < low for one in found)


def best(found: list[Number]) -> float:
    return max(one.value for one in found)


def multiples(outcome: str, *which: int) -> list[str]:
    """Return the keys of differences of `target` and `target2`: of their variants in the order of the targets."""
    found = []
    for name in ("target", "target2"):
        block = all_blocks()[name]
        for place in which:
            found.append(f"{name}/{block.families[0]}/{block.arms[place]}/{outcome}/{block.references[0]}")
    return found


def on_both(rival: str, outcome: str = "pass@1") -> list[str]:
    """Return the keys of the control minus a tuned rival, on both tasks."""
    places = ("tuned_rivals/gamed_sorting", "tuned_rivals2/gamed_reverse")
    return [f"{place}/{rival}/{outcome}, the control's less it/" for place in places]


def predictions() -> dict[str, tuple[list[str], Callable[[list[Number]], bool]]]:
    """Return the keys of the numbers that decide each prediction, and whether they refute it."""
    far = math.inf
    qwen = "qwen/sampled, 512"
    long = "long_k/reverse_level8"
    sorting = "dose_sorting/all"
    trained = [f"qwen/greedy, 512/{model}/pass@1/" for model in QWEN_ARMS]
    untrained = [f"qwen/greedy, 512/{model}/pass@1/" for model in QWEN_BASE[:2]]
    given_back = [f"{long}/A_K1000_beta10", f"{long}/A_K500_beta10", f"{long}/A_K200_beta10"]
    return {
        "T1": (multiples("pass@1", 1, 3), outside(-0.05, 0.05)),
        "T2": (multiples("pass@1", 4), outside(-far, -0.05)),
        "T3": (multiples("pass@1", 0), outside(-far, -0.05)),
        "T4": (multiples("greedy", 0, 1, 3), outside(-0.05, 0.05)),
        "R5": (on_both("stopped"), outside(0.1, far)),
        "R6": (on_both("linear"), outside(0.2, far)),
        "R7": (on_both("three rounds"), outside(-0.05, 0.05)),
        "R8": (on_both("base", "best of 8"), outside(0.05, far)),
        "G1": ([f"guard_gap//fourth/{rate}/" for rate in ("miss rate", "false-alarm rate")], outside(-far, 0.2)),
        "Q1": (
            [f"qwen/steps/control_seed2/KL, {which} update/" for which in ("last but one", "last")],
            lambda found: best(found) > 0.05,
        ),
        "Q2": (
            [f"{qwen}/{model}/pass@1/{other}" for model, other in QWEN_TESTS],
            lambda found: any(abs(one.value) > 0.12 for one in found),
        ),
        "Q3": (
            [f"qwen/{decoding}, 512/A/pass@1/control" for decoding in ("sampled", "greedy")],
            lambda found: any(one.value < -0.08 for one in found),
        ),
        "Q4": (untrained[:1], outside(0.3, far)),
        "Q5": (untrained[1:], outside(0.5, far)),
        "Q6": (["qwen/greedy, 512/base_4shot/pass@1/"], outside(0.5, far)),
        "Q7": (
            trained + untrained,
            lambda found: round(best(found[:5]) - best(found[5:]), 9) > 0.15,
        ),
        "S1": (["smollm2b_seeds/smollm2/control_target0.066/sense, five seeds/plain"], outside(0.08, far)),
        "K1": (
            [f"{arm}/given back/" for arm in given_back],
            lambda found: any(longer.value >= shorter.value for longer, shorter in pairwise(found)),
        ),
        "K2": ([f"{long}/A_K{k}_beta1/pass@1/A_K200_beta1" for k in (500, 1000)], outside(-0.05, 0.05)),
        "D3": (["dose_long/gamed_reverse_2_2/control_target0.6/less the share - 0.05/"], outside(-0.07, 0.07)),
        "D4": (["dose_long/gamed_reverse_2_2/control_target0.6/pass@1/control_target0.3"], outside(0.05, far)),
        "D5": ([f"{sorting}/control_target0.14/slope of pass@1/"], outside(0.5, far)),
        "D6": ([f"{sorting}/plain/slope of pass@1/"], outside(0.5, far)),
    }


def grades(every: Sequence[Number]) -> dict[str, str]:
    """Grade the predictions of the fourth protocol."""
    by_key = {"/".join((*one[:4], one.less)): one for one in every}
    found = {}
    for name, (keys, is_refuted) in predictions().items():
        of_prediction = [by_key[key] for key in keys]
        found[name] = "refuted" if is_refuted(of_prediction) else "not refuted"
    return found


def numbers() -> list[Number]:
    """Compute every number of the pages."""
    found = [*rival_numbers(), *clamp2_numbers(), *forget_numbers(), *smollm2_numbers()]
    for name in ("dose", "dose_long", "dose_sorting"):
        found += dose_numbers(name)
    found += [*late_fall(), *sorting_exception()]
    found += [*first_protocol(), *qwen_numbers(), *guard_rates(), *other_numbers(), *step_cost_numbers()]
    found += [
        *target_ranges(),
        *tuned_rivals(),
        *every_rewarded_text(),
        *long_k(),
        *smollm2b_over_seeds(),
        *guard_replays(),
        *finished(),
    ]
    for block in all_blocks().values():
        if block.runs.empty:
            continue
        found += arms_of(block)
        if not block.chooses:
            found += [*cells(block), *training(block), *differences(block)]
    return found


# Pictures. A line or a point has the colour of its variant.

GREY = {"color": "#999999", "linewidth": 0.8}
LINE_STYLES = ["-", "--", "-.", ":"]
OBJECTIVE = "\nB optimises a different objective from A."
TASKS = {
    "reverse_digits": "reversing",
    "reverse_level8": "reversing, up to 13 digits",
    "gamed_reverse": "reversing",
    "gamed_sorting": "sorting",
}
# Names of the tables as the pictures show them: each pattern is replaced in turn.
LABELS = {
    r"_(lr10|lr7|mu\d+)": "",
    r"^base$": "starting model",
    r"^replayed_kl$": "replayed KL",
    r"^plain": "no KL",
    r"^control": "fixed reference",
    r"^A$": "moving reference (A), reset every 40",
    r"^A(?=_)": "moving reference (A)",
    r"^B": "old policy (B)",
    r"^C_(hard|soft0\.1|asym|step)": r"moving reference, optimizer reset (C \1)",
    r"_K(\d+)": r", reset every \1",
    r"_own": ", its own β",
    r"_target([\d.]+)": r", kl_target \1",
    r"_beta_old([\d.]+)": r", β_old = \1",
    r"_beta([\d.]+)": r", β = \1",
    r"_lr_third": ", a third of the rate",
    r"_linear": ", rate falls to 0",
    r"_noclip": ", no clip",
}


def colour_of(variant: str) -> str:
    return VARIANTS[variant].colour if variant in VARIANTS else "#7F7F7F"


def label_of(arm: str) -> str:
    for pattern, words in LABELS.items():
        arm = re.sub(pattern, words, arm)
    return arm


def styles_of(block: Block) -> dict[str, dict]:
    """Return the style of each arm that has runs: its variant's colour, and dashes by its place in the colour."""
    variants = block.runs.groupby("arm").variant.first()
    styles: dict[str, dict] = {}
    for arm in block.arms:
        if arm in variants:
            colour = colour_of(variants[arm])
            place = sum(style["color"] == colour for style in styles.values())
            width = 1.6 - 0.5 * (place // 4)
            styles[arm] = {"color": colour, "linestyle": LINE_STYLES[place % 4], "linewidth": width}
    return styles


def panels(
    title: str, width: float, height: float, rows: int = 1, columns: int = 1, **shared
) -> tuple[Figure, np.ndarray]:
    """Make a figure with a note below its panels."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **shared)
    figure.supxlabel(title, fontsize=8, style="italic")
    return figure, axes


def add_legend(figure: Figure, axes) -> Figure:
    handles, labels = axes.get_legend_handles_labels()
    columns = min(len(labels), int(figure.get_figwidth() / 3.6))
    figure.legend(handles, labels, loc="outside upper center", ncols=columns, fontsize=8, frameon=False)
    return figure


def curves(block: Block, family: str, arm: str, column: str, window: int) -> pd.DataFrame:
    """Return a column of the thinned record, running means over so many rows of ten steps; a column for each pair."""
    thin = thin_curves(block.name).query("family == @family and arm == @arm")
    wide = thin.pivot(index="step", columns=PAIR, values=column)
    wide = wide.reindex(range(10, block.steps + 1, 10)).fillna(dict.fromkeys(wide, 0.0) if column == "reward" else {})
    return wide.rolling(window, min_periods=1).mean()


def learning_curves(block: Block) -> Figure:
    """Draw the training reward of every variant, and below it the same minus the first reference of the pair."""
    styles = styles_of(block)
    window = max(1, round(block.steps / 240))
    reference = block.references[0]
    note = f"Means over runs and {10 * window} steps; bands: 95 % t-intervals over runs." + OBJECTIVE
    width = max(8, 5 * len(block.families) + 2)
    figure, axes = panels(note, width, 7.2, 2, len(block.families), sharex="col", sharey="row")
    for family, (upper, lower) in zip(block.families, axes.T, strict=True):
        rewards = {arm: curves(block, family, arm, "reward", window) for arm in styles}
        for arm, style in styles.items():
            for panel, values in ((upper, rewards[arm]), (lower, rewards[arm] - rewards[reference])):
                mean = values.mean(axis=1)
                panel.plot(mean.index, mean, label=label_of(arm), **style)
                if len(styles) <= 5:
                    half = values.sem(axis=1) * stats.t.ppf(0.975, values.shape[1] - 1)
                    panel.fill_between(
                        mean.index, mean - half, mean + half, color=style["color"], alpha=0.1, linewidth=0
                    )
        upper.set_title(f"{TASKS.get(family, family)} ({rewards[reference].shape[1]} runs each)")
        lower.set_xlabel("optimizer step")
    axes[0, 0].set_ylabel("training reward")
    axes[1, 0].set_ylabel(f"minus {label_of(reference)}, same starting model and seed", fontsize=8)
    return add_legend(figure, axes[0, 0])


def forest(block: Block) -> Figure:
    """Draw pass@1 minus each reference's with its interval; hollow where it is exploratory."""
    rows = table("first_protocol")
    rows = rows[(rows.block == block.name) & (rows.name == "pass@1") & rows.less.isin(block.references)]
    styles = styles_of(block)
    size = (4.5 + 3.2 * len(block.families), len(block.references) * (1.0 + 0.26 * len(block.arms)))
    note = (
        "Bars: 95 % intervals over starting models, seeds and questions. Filled: pre-registered; hollow: exploratory."
    )
    note += OBJECTIVE
    figure, axes = panels(note, *size, len(block.references), len(block.families), sharex=True, sharey=True)
    for panel, (reference, family) in zip(axes.flat, product(block.references, block.families), strict=True):
        panel.axvline(0, **GREY)
        for one in rows[(rows.less == reference) & (rows.family == family)].itertuples():
            place = -block.arms.index(one.arm)
            colour = styles[one.arm]["color"]
            is_registered = block.name == "core" and one.test != "exploratory"
            panel.plot([one.low, one.high], [place, place], color=colour, linewidth=1.4)
            panel.plot(
                one.value, place, "o", color=colour, markerfacecolor=colour if is_registered else "white", markersize=5
            )
        panel.set_title(f"{TASKS.get(family, family)}: pass@1 minus\n{label_of(reference)}", fontsize=9)
        panel.set_yticks([-place for place in range(len(block.arms))], map(label_of, block.arms))
        panel.tick_params(labelsize=8)
        panel.set_ylim(0.7 - len(block.arms), 0.7)
    return figure


def frontier(block: Block) -> Figure:
    """Draw reward and accuracy over steps, and accuracy against the KL, or against what is lost elsewhere."""
    runs = block.runs.arm.value_counts()
    styles = styles_of(block)
    (family,) = block.families
    note = "Training batches: means over runs and 20 steps." + (OBJECTIVE if "B" in styles else "")
    figure, axes = panels(note, 14, 4, 1, 3)
    reward, accuracy, third = axes[0]
    points = table("points").merge(block.runs[KEY], on=KEY)
    kl = "KL to the starting model, nats per token"
    for arm, style in styles.items():
        means = {name: curves(block, family, arm, name, 2).mean(axis=1) for name in ("reward", "gold", "kl_to_base")}
        label = f"{label_of(arm)} ({runs[arm]} runs)"
        reward.plot(means["reward"], label=label, **style)
        accuracy.plot(means["gold"], **style)
        path = pd.DataFrame({kl: means["kl_to_base"], "accuracy": means["gold"]})
        path = path.rolling(10, min_periods=1).mean()
        if len(points):
            of_arm = points[points.arm == arm]
            own = of_arm.task == of_arm.task.iloc[0]
            elsewhere = of_arm[~own].groupby("step").gold.mean().rename("accuracy on sorting and sums")
            if family == "smollm2":
                elsewhere = of_arm[own].groupby("step").text_perplexity.mean().rename("perplexity of real text")
            path = pd.concat([of_arm[own].groupby("step").gold.mean().rename("accuracy"), elsewhere], axis=1)
        third.plot(*path.T.to_numpy(), **style)
        third.plot(*path.iloc[-1], "o", color=style["color"])
    reward.set(title="reward", xlabel="optimizer step")
    accuracy.set(title="accuracy, by the verifier", xlabel="optimizer step")
    third.set(xlabel=path.columns[0], title=path.columns[1])
    return add_legend(figure, reward)


def around_resets(block: Block) -> Figure:
    """Draw means around the resets of a variant; the fixed reference at the same steps."""
    rows = table("around_resets")
    rows = rows[rows.block == block.name]
    titles = {
        "reward": "reward minus its mean before",
        "kl_ref": "KL to the reference",
        "grad_norm": "gradient norm",
        "update_norm": "size of the updates",
    }
    styles = styles_of(block)
    note = "Step 1 is the first after a reset. Band: the middle 80 % of the resets of the bold line."
    figure, axes = panels(note, 14, 0.8 + 2.4 * len(block.families), len(block.families), 4)
    bold = next(arm for arm in styles if arm.startswith("A"))
    for panel, (family, metric) in zip(axes.flat, product(block.families, titles), strict=True):
        for arm, of_arm in rows[(rows.family == family) & (rows.metric == metric)].groupby("arm", sort=False):
            style = {**styles[arm], "marker": ".", "label": f"{label_of(arm)}: {of_arm.resets.iloc[0]} resets"}
            if arm == "control":
                style |= {"color": "#7F7F7F", "label": "fixed reference, at the same steps"}
            if arm == bold:
                style["linewidth"] = 2.4
                panel.fill_between(of_arm.since_reset, of_arm.low, of_arm.high, color=style["color"], alpha=0.15)
            panel.plot(of_arm.since_reset, of_arm["mean"], **style)
        panel.axvline(0.5, color="#000000", linewidth=0.8, linestyle=":")
        panel.set_title(f"{TASKS.get(family, family)}:\n{titles[metric]}", fontsize=8)
        panel.set_xlabel("steps since the reset", fontsize=8)
    return add_legend(figure, axes[0, 0])


def dose_line() -> Figure:
    """Draw accuracy at the end by the share of correct answers among the starting model's fully rewarded ones."""
    figure, axes = panels("Small points: starting models. Lines: their means.", 9, 7, 2, 2, sharex=True, sharey=True)
    for line, (block_name, task) in zip(axes, {"dose": "reversing", "dose_sorting": "sorting"}.items(), strict=True):
        runs = dose(block_name)
        for panel, (outcome, decoding) in zip(line, {"pass@1": "sampled", "greedy": "greedy"}.items(), strict=True):
            for arm, of_arm in runs.groupby("arm"):
                variant = arm.partition("_")[0]
                means = of_arm.groupby("family")[["share", outcome]].mean().sort_values("share")
                label = label_of(variant) + (", kl_target" if variant == "control" else "")
                panel.plot(100 * of_arm.share, 100 * of_arm[outcome], ".", color=colour_of(variant), alpha=0.5)
                panel.plot(100 * means.share, 100 * means[outcome], "o-", color=colour_of(variant), label=label)
            panel.set(title=f"{task}, {decoding}", xlim=(0, 100), ylim=(0, 100))
        line[0].set_ylabel("accuracy at the end, %")
    for panel, dashes in zip(axes[:, 0], ("-", ":"), strict=True):
        panel.plot([0, 100], [-5, 95], label="share − 5", linestyle=dashes, **GREY)
    axes[0, 0].fill_between([0, 100], [-12, 88], [2, 102], color="0.9", zorder=0, label="predicted on reversing")
    for panel in axes[1]:
        panel.set_xlabel(
            "share of correct answers among the fully\nrewarded ones of the starting model, %", fontsize=8
        )
    return add_legend(figure, axes[0, 0])


def dose_steps() -> Figure:
    """Draw accuracy by step in runs of 1,800 steps."""
    figure, axes = panels("Thin lines: starting models. Thick lines: their means.", 9, 3.8, 1, 2, sharey=True)
    share = dose("dose_long").drop_duplicates("base_seed").share.mean()
    for panel, (outcome, title) in zip(axes[0], {"gold": "sampled", "greedy": "greedy"}.items(), strict=True):
        for arm, label in DOSE_LONG.items():
            line = {"color": colour_of(arm.partition("_")[0]), "linestyle": "--" if arm.endswith("0.6") else "-"}
            of_arm = dose_by_step().query("arm == @arm")
            by_step = of_arm.pivot_table(index="step", columns="base_seed", values=outcome)
            panel.plot(by_step, linewidth=0.7, alpha=0.4, **line)
            panel.plot(by_step.mean(axis=1), linewidth=2, label=label, **line)
        if outcome == "gold":
            panel.axhline(share - 0.05, label="predicted: kl_target 0.6", linestyle=":", color="#000000")
        panel.set(title=title, xlabel="step", ylim=(0, 1))
    axes[0, 0].set_ylabel("accuracy")
    return add_legend(figure, axes[0, 0])


def target_line() -> Figure:
    """Draw accuracy at the end by `kl_target`, as a multiple of the one that the preflight printed."""
    note = "Small points: starting models. Lines: their means. 1 is the target that the preflight printed."
    figure, axes = panels(note, 9, 3.8, 1, 2, sharex=True, sharey=True)
    colour = colour_of("control")
    for panel, name in zip(axes[0], ("target", "target2"), strict=True):
        block = all_blocks()[name]
        (family,) = block.families
        multiples = block.runs.arm.str.split("_target").str[1].astype(float) / KL_TARGETS[family]
        for outcome, label, dashes, mark in (("pass@1", "sampled", "-", "o"), ("greedy", "greedy", "--", "s")):
            face = colour if mark == "o" else "white"
            style = {"marker": mark, "markerfacecolor": face, "color": colour}
            panel.plot(multiples, block.runs[outcome], linestyle="", markersize=3, alpha=0.4, **style)
            panel.plot(block.runs.groupby(multiples)[outcome].mean(), linestyle=dashes, label=label, **style)
        panel.axhline(block.runs["base_pass@1"].mean(), label="starting model, sampled", **GREY)
        panel.axhline(block.runs.base_greedy.mean(), linestyle="--", label="starting model, greedy", **GREY)
        panel.set_xscale("log", base=2)
        panel.set_xticks([0.25, 0.5, 1, 2, 4], ["¼", "½", "1", "2", "4"])
        panel.set(title=TASKS[family], xlabel="kl_target, as a multiple of the preflight's", ylim=(0, 1))
    axes[0, 0].set_ylabel("accuracy at the end")
    return add_legend(figure, axes[0, 0])


def rivals_forest(every: Sequence[Number]) -> Figure:
    """Draw the fixed reference minus each alternative, sampled and greedy; the tuned alternatives have other seeds."""
    shown = {
        ("rivals", "stopped"): "no KL, early stopping",
        ("tuned_rivals", "stopped"): "no KL, early stopping, tuned",
        ("rivals", "tenth"): "no KL, 10 % of the rate",
        ("tuned_rivals", "linear"): "no KL, rate falls to 0",
        ("rivals", "rank 4"): "no KL, LoRA of rank 4",
        ("rivals", "rejection"): "rejection sampling",
        ("tuned_rivals", "three rounds"): "rejection sampling, three rounds",
        ("rejection_all", "every rewarded"): "rejection sampling, every sample",
        ("rivals", "best of 8"): "best of 8",
    }
    places = {key: -place for place, key in enumerate(shown)}
    note = "Bars: 95 % t-intervals over five starting models. Right of 0 the fixed reference is ahead."
    figure, axes = panels(note, 9.7, 4.4, 1, 2, sharex=True, sharey=True)
    colour = colour_of("control")
    for panel, family in zip(axes[0], KL_TARGETS, strict=True):
        panel.axvline(0, **GREY)
        for one in every:
            key = (one.block.removesuffix("2"), one.arm)
            if one.family == family and key in places and one.name.endswith("the control's less it"):
                is_greedy = one.name.startswith("greedy")
                place = places[key] - 0.22 * is_greedy
                mark, face = ("s", "white") if is_greedy else ("o", colour)
                panel.plot([one.low, one.high], [place, place], color=colour)
                panel.plot(one.value, place, mark, color=colour, markerfacecolor=face)
        panel.set_title(TASKS[family], fontsize=9)
        panel.set_xlabel("accuracy: fixed reference minus the alternative\n(● sampled, □ greedy)", fontsize=8)
    axes[0, 0].set_yticks(list(places.values()), list(shown.values()))
    return figure


def reuse_uses() -> Figure:
    """Draw accuracy by the number of updates for which a batch is used; dashed without the clip."""
    runs = pd.concat([all_blocks()[f"reuse{uses}"].runs.assign(uses=uses) for uses in (2, 8, 32)])
    runs["stem"] = runs.arm.str.replace(r"_mu\d+", "", regex=True)
    figure, axes = panels("Lines: means over runs; marks: runs. Dashed: without the clip." + OBJECTIVE, 9, 4.2)
    panel = axes[0, 0]
    panel.axhline(runs["base_pass@1"].mean(), label=label_of("base"), **GREY)
    for place, (stem, of_arm) in enumerate(runs.groupby("stem")):
        style = {"color": colour_of(of_arm.variant.iloc[0]), "marker": "osD^"[place // 2]}
        panel.plot(
            of_arm.groupby("uses")["pass@1"].mean(),
            linestyle="--" if "noclip" in stem else "-",
            label=label_of(stem),
            **style,
        )
        panel.plot(of_arm.uses, of_arm["pass@1"], linestyle="", alpha=0.35, markersize=4, **style)
    panel.set_xscale("log", base=2)
    panel.set_xticks([2, 8, 32], ["2", "8", "32"])
    panel.set(xlabel="updates for which a batch is used", ylabel="accuracy, sampled")
    return add_legend(figure, panel)


def clamp2_given_back() -> Figure:
    """Draw accuracy at the end by coefficient and by the steps between resets."""
    scores = all_blocks()["long_k"].runs.pivot(index="base_seed", columns="arm", values="pass@1")
    note = "Small points: starting models. Large points, and the line: their means." + OBJECTIVE
    figure, axes = panels(note, 9.2, 3.4, 1, 2, sharey=True)
    places = {
        "control_beta": "fixed\nreference",
        "A_K1000_beta": "A, reset\nevery 1,000",
        "A_K500_beta": "A, reset\nevery 500",
        "A_K200_beta": "A, reset\nevery 200",
        "A_beta": "A, reset\nevery 40",
        "B_beta_old": "old\npolicy (B)",
    }
    for panel, beta in zip(axes[0], (1, 10), strict=True):
        panel.axhline(scores["plain"].mean(), label=label_of("plain"), **GREY)
        for place, stem in enumerate(places):
            values = scores[f"{stem}{beta}"]
            colour = colour_of(stem.split("_")[0])
            panel.plot([place] * len(values), values, ".", color=colour, alpha=0.5)
            panel.plot(place, values.mean(), "o", color=colour, markersize=7)
        panel.set_xticks(range(len(places)), list(places.values()), fontsize=8)
        panel.set(title=f"β = {beta}", ylim=(0, None))
    axes[0, 0].set_ylabel("accuracy at the end, sampled", fontsize=8)
    return add_legend(figure, axes[0, 0])


def clamp2_passk() -> Figure:
    """Draw pass@k of the starting model and of four variants, and dotted its upper bound."""
    means = pass_at_k().mean()
    figure, axes = panels("Means over starting models. Dotted: an upper bound (exploratory)." + OBJECTIVE, 8.4, 4)
    panel = axes[0, 0]
    for arm in ("base", "plain", "control_beta10", "A_K200_beta10", "B_beta_old10"):
        scores, bounds = (means[measure].xs(arm, level=1) for measure in ("pass@k", "at most"))
        colour = colour_of(arm.split("_")[0])
        panel.plot(scores, label=label_of(arm), color=colour, linestyle="--" if arm == "base" else "-")
        panel.plot(bounds.loc[2:], ":", color=colour, linewidth=0.8)
    panel.set_xscale("log", base=2)
    panel.set_xticks(scores.index, [str(k) for k in scores.index])
    panel.set(ylim=(0, 1), xlabel="k", ylabel="pass@k, sampled")
    return add_legend(figure, panel)


QWEN_VARIANTS = {
    "plain_again": "no KL",
    "control": "fixed reference, β = 0.3",
    "A": "moving reference (A), one reset",
    "C_hard": "A, Adam cleared (C hard)",
    "C_soft0.1": "A, Adam × 0.1 (C soft)",
    "B": "old policy (B)",
}


def qwen_accuracy(every: Sequence[Number]) -> Figure:
    """Draw the accuracy of the Qwen after training with each variant, and untrained, sampled and greedy."""
    shown = {"base": "starting model", **QWEN_VARIANTS, "base_default": "starting model, default prompt"}
    scores = {}
    for one in every:
        if one.block == "qwen" and one.name == "corrected" and not one.less and one.arm in shown:
            scores[one.arm, one.family] = one
    note = (
        "Bars: 95 % t-intervals over 100 questions; they do not cover other seeds. One run each.\n"
        "By the corrected verifier, which changes the default prompt's scores, and one reply of C soft."
    )
    figure, axes = panels(note + OBJECTIVE, 8.4, 1.1 + 0.42 * len(shown))
    panel = axes[0, 0]
    marks = {"sampled, 512": ("o", None), "greedy, 512": ("s", "white")}
    for place, arm in enumerate(reversed(shown)):
        colour = colour_of(arm.split("_")[0])
        for shift, (way, (mark, face)) in zip((0.13, -0.13), marks.items(), strict=True):
            one = scores[arm, way]
            panel.plot([100 * one.low, 100 * one.high], [place + shift] * 2, color=colour)
            panel.plot(100 * one.value, place + shift, mark, color=colour, markerfacecolor=face or colour)
    panel.axhline(0.5, **GREY)  # below: with another prompt
    panel.set_yticks(range(len(shown)), reversed(shown.values()), fontsize=8)
    panel.set(xlim=(0, 100))
    panel.set_xlabel("accuracy on GSM8K, %, at most 512 tokens (● sampled, □ greedy)", fontsize=8)
    return figure


def qwen_curve() -> Figure:
    """Draw accuracy and share of truncated completions of each batch."""
    note = (
        "Lines: means of the last four batches, or fewer. One run each, on two machines.\n"
        "Up to the reset (grey line) A and the fixed reference are identical."
    )
    figure, axes = panels(note + OBJECTIVE, 9.7, 3.6, 1, 2)
    columns = {"reward": "Correct completions of a batch", "truncated_fraction": "Truncated at 200 tokens"}
    rows = table("qwen_steps")
    for panel, (column, title) in zip(axes[0], columns.items(), strict=True):
        for arm, label in QWEN_VARIANTS.items():
            steps = rows[rows.arm == f"{arm}_seed2"]
            colour = colour_of(arm.split("_")[0])
            dashes = "--" if arm == "C_soft0.1" else "-"
            batches = steps[steps.time_rollout > 0].set_index("step")[column]
            panel.plot(batches, ".", alpha=0.4, color=colour)
            means = batches.rolling(4, min_periods=1).mean()
            panel.plot(means, color=colour, linestyle=dashes, label=label)
        panel.axvline(10.5, **GREY)
        panel.set(title=title, xlabel="optimizer step", ylabel="share", ylim=(0, 1), xticks=range(0, 21, 5))
    return add_legend(figure, axes[0, 0])


def reward_hacking() -> Figure:
    """Draw README's picture: training on a reward that can be hacked, with and without a KL."""
    block = all_blocks()["gamed"]
    figure = Figure(figsize=(8, 3), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    titles = {"reward": "reward", "gold": "accuracy of the same completions"}
    lines = [
        ("control_target0.14", "control", "KL to a fixed reference, kl_target: 0.14", "-"),
        ("plain", "plain", "no KL", "--"),
    ]
    for panel, (column, title) in zip(axes, titles.items(), strict=True):
        for arm, variant, label, dashes in lines:
            values = curves(block, "gamed_sorting", arm, column, 2).T.groupby(level="base_seed").mean()
            mean = values.mean()
            half = values.sem() * stats.t.ppf(0.975, len(values) - 1)
            panel.plot(mean, label=label, color=colour_of(variant), linewidth=2, linestyle=dashes)
            panel.fill_between(mean.index, mean - half, mean + half, color=colour_of(variant), alpha=0.2, linewidth=0)
        panel.set(title=title, xlabel="training step", xticks=range(0, block.steps + 1, 200), ylim=(0, 1.03))
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2, frameon=False)
    return figure


def pictures(every: Sequence[Number]) -> Iterator[tuple[str, Figure]]:
    """Draw the pictures that pages show, by name."""
    of_blocks = {
        "curves": (learning_curves, ("long", "stress", "modes")),
        "forest": (forest, ("core", "mild")),
        "frontier": (frontier, ("gamed", "gamed2", "pretrained", "smollm2b", "forget2")),
        "resets": (around_resets, ("core", "clamp")),
    }
    for kind, (draw, names) in of_blocks.items():
        for name in names:
            yield f"{name}_{kind}", draw(all_blocks()[name])
    yield "rivals_forest", rivals_forest(every)
    yield "qwen_accuracy", qwen_accuracy(every)
    for draw in (dose_line, dose_steps, target_line, reuse_uses, clamp2_given_back, clamp2_passk, qwen_curve):
        yield draw.__name__, draw()


def main() -> None:
    every = numbers()
    pd.DataFrame(every).to_csv(STUDY / "pages" / "numbers.csv", index=False, float_format="%.6g")
    for name, figure in pictures(every):
        figure.savefig(STUDY / "pictures" / f"{name}.png", dpi=100, metadata={"Software": None})
    docs = STUDY.parent / "docs"
    reward_hacking().savefig(docs / "reward_hacking.png", dpi=200, metadata={"Software": None})
    draw_step_cost(step_costs(), docs / "step_cost.png", DEFAULT)


if __name__ == "__main__":
    main()
