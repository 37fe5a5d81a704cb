"""
What the fourth protocol registers, from the tables: `python -m study.fourth --tables FOLDER` prints every test of the
blocks that have runs, its greedy counterpart, and the error rates of `guard_gap`.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pandas as pd

from study import clamp2, dose, smollm2b
from study.hierarchical import Contrast
from study.matrix import Block, Matrix, RunKey, read_matrix
from study.qwen_runs import TEXTS
from study.registered import over_bases
from study.rivals import OUTCOMES, control_of, score_at, stop_by_gold, with_holm
from study.tables import CURVES, Tables, make_frame, read_folder
from trl_prorl.eval.pages.table import interval_cell


WINDOW = 40  # steps, of the guard that is replayed
GAP = 0.1  # of it, and of a fall that damages
LESS = 0.05  # a control ends at the share less so much
PROMPTS = 64  # that all seeds of SmolLM2 have
QWEN = (("A", "control"), ("B", "control"), ("C_hard", "A"), ("C_soft0.1", "A"))


@dataclass(frozen=True)
class Test:
    """A registered difference, or its greedy counterpart: p after Holm, `adjusted`, of the registered one alone."""

    name: str
    outcome: str
    contrast: Contrast
    adjusted: float | None = None

    def __str__(self) -> str:
        units = self.contrast.freedom + 1
        line = f"{self.outcome}, {self.name}: {interval_cell(self.contrast.estimate, '+.3f')}, n = {units:g}"
        return line if self.adjusted is None else f"{line}, p {self.adjusted:.3f} after Holm"


def by_base(keys: list[RunKey], score: Callable[[RunKey], float]) -> pd.Series:
    """Return a score of runs by base seed, the seeds of a base averaged."""
    scores = pd.Series([score(key) for key in keys], [key.base_seed for key in keys], dtype=float)
    return scores.groupby(level=0).mean()


def keys_of(block: Block, tables: Tables, family: str, arm: str) -> list[RunKey]:
    """List the finished runs of an arm in a family."""
    own = [run.key for run in block.runs if (run.key.family, run.key.arm) == (family, arm)]
    return [key for key in own if key in tables.runs.index]


def ends(block: Block, tables: Tables, family: str, arm: str, outcome: str) -> pd.Series:
    """Return an outcome after the last step, by base."""
    return by_base(keys_of(block, tables, family, arm), lambda key: float(tables.runs.loc[key, outcome]))


def best_of_8(tables: Tables, key: RunKey) -> float:
    """Return best of 8 of a run's end, or of a base."""
    return float(tables.stops.loc[[key], "best_of_8"].iloc[-1])


def stopped(tables: Tables, key: RunKey, outcome: str) -> float:
    """Return an outcome of a run that validation stops."""
    return score_at(tables, key, stop_by_gold(tables.stops.loc[[key]]), outcome)


def differences(pairs: dict[str, tuple[pd.Series, pd.Series]], outcome: str) -> list[Test]:
    """Return the differences of scores by base that have one in common; with Holm, if sampled."""
    found = []
    for name, (scores, others) in pairs.items():
        less = (scores - others).dropna()
        if len(less):
            found.append(Test(name, outcome, over_bases(less)))
    return with_holm(found) if outcome == "gold" else found


def target(block: Block, tables: Tables) -> list[Test]:
    """Return, for each multiple of the target, the control less the control at the target."""
    (family,) = block.families
    (reference,) = block.references
    targets = {run.key.arm: run.recipe["kl_target"] for run in block.runs}
    tests = []
    for outcome in OUTCOMES:
        at_target = ends(block, tables, family, reference, outcome)
        pairs = {}
        for arm, value in targets.items():
            if arm != reference:
                name = f"{family}, {value / targets[reference]:g} times the target"
                pairs[name] = (ends(block, tables, family, arm, outcome), at_target)
        tests += differences(pairs, outcome)
    return tests


def tuned_rivals(block: Block, stops: Block, tables: Tables) -> list[Test]:
    """Return the control less each rival; `stops` is the block of the plain runs that validation stops."""
    (family,) = block.families
    control = control_of(block).key.arm
    plain = keys_of(stops, tables, family, "plain")
    tests = []
    for outcome in OUTCOMES:
        of_control = ends(block, tables, family, control, outcome)
        rivals = {"plain, stopped": by_base(plain, partial(stopped, tables, outcome=outcome))}
        rivals |= {arm: ends(block, tables, family, arm, outcome) for arm in ("plain_linear", "rejection_rounds")}
        pairs = {f"{family}, control less {name}": (of_control, scores) for name, scores in rivals.items()}
        if outcome == "gold":
            keys = keys_of(block, tables, family, control)
            both = (
                by_base(keys, lambda key: best_of_8(tables, key)),
                by_base(keys, lambda key: best_of_8(tables, key.base)),
            )
            pairs[f"{family}, best of 8, control less base"] = both
        tests += differences(pairs, outcome)
    return tests


def long_k(block: Block, earlier: Block, tables: Tables) -> list[Test]:
    """Return A less the control, at each coefficient and interval; the controls are those of `earlier`, clamp2."""
    (family,) = block.families
    tests = []
    for outcome in OUTCOMES:
        pairs = {}
        for arm in block.arms:
            control = f"control_{arm.rpartition('_')[2]}"
            pairs[f"{arm} less {control}"] = (
                ends(block, tables, family, arm, outcome),
                ends(earlier, tables, family, control, outcome),
            )
        tests += differences(pairs, outcome)
    return tests


def given_back(block: Block, earlier: Block, tables: Tables) -> dict[str, float]:
    """Return (A - control) / (plain - control) of sampled gold, means over the bases that have all three."""
    (family,) = block.families
    plain = ends(earlier, tables, family, "plain", "gold")
    found = {}
    for of_block in (earlier, block):
        for arm in of_block.arms:
            if arm.startswith("A_"):
                control = ends(earlier, tables, family, f"control_{arm.rpartition('_')[2]}", "gold")
                freed = ends(of_block, tables, family, arm, "gold")
                complete = pd.DataFrame({"A": freed, "control": control, "plain": plain}).dropna().mean()
                found[arm] = float((complete["A"] - complete["control"]) / (complete["plain"] - complete["control"]))
    return found


def dose_long(block: Block, tables: Tables) -> list[Test]:
    """Return the control at 0.6 less that at 0.3, and less plain; and its distance from the share less .05."""
    (family,) = block.families
    tests = []
    for outcome in OUTCOMES:
        high, low, plain = (
            ends(block, tables, family, arm, outcome) for arm in ("control_target0.6", "control_target0.3", "plain")
        )
        tests += differences({"at 0.6 less at 0.3": (high, low), "at 0.6 less plain": (high, plain)}, outcome)
    keys = keys_of(block, tables, family, "control_target0.6")
    if keys:
        gold = ends(block, tables, family, "control_target0.6", "gold")
        share = by_base(keys, lambda key: dose.share_of_base(tables, key.base))
        tests.append(Test("distance of 0.6 from the share less 0.05 (D3)", "gold", over_bases(gold - share + LESS)))
    return tests


def smollm2b_seeds(blocks: list[Block], tables: Tables) -> Test | None:
    """Return sampled gold' of the control at `kl_target` less plain's, over seeds, on the prompts that all have."""
    scores: dict[str, dict[int, float]] = {smollm2b.CONTROL: {}, smollm2b.PLAIN: {}}
    for block in blocks:
        for run in block.runs:
            if run.key.arm in scores and run.key in tables.texts.index:
                texts = smollm2b.texts_of(tables, run.key)
                of_prompts = texts[texts["prompt"] < PROMPTS]
                scores[run.key.arm][run.key.seed] = smollm2b.scores_at(of_prompts, run.key.steps)["gold'"]
    less = pd.Series(scores[smollm2b.CONTROL]).sub(pd.Series(scores[smollm2b.PLAIN], dtype=float)).dropna()
    if less.empty:
        return None
    return Test("smollm2b, control less plain, over seeds", "gold'", over_bases(less))


def qwen(texts: pd.DataFrame) -> list[Test]:
    """Return the differences of the Qwen's variants, over questions, at 512 tokens and, exploratory, at 200."""
    tests = []
    for column in ("correct", "correct_200"):
        for decoding in ("sampled", "greedy"):
            chosen = texts[texts["decoding"] == decoding]
            means = chosen.groupby(["prompt", "model"])[column].mean().unstack("model")
            found = []
            for arm, other in QWEN:
                if {f"{arm}_512", f"{other}_512"} <= set(means):
                    less = (means[f"{arm}_512"] - means[f"{other}_512"]).dropna()
                    found.append(Test(f"the Qwen, {arm} less {other}", f"{column}, {decoding}", over_bases(less)))
            is_registered = (column, decoding) == ("correct", "sampled")
            tests += with_holm(found) if is_registered else found
    return tests


def fall_of(tables: Tables, key: RunKey) -> float:
    """Return the highest sampled gold among the base and the checkpoints, less that of the last step."""
    points = [*tables.stops.loc[[key], "gold"], *tables.stops.loc[[key.base], "gold"]]
    return max(points) - float(tables.runs.loc[key, "gold"])


def first_firing(curve: pd.DataFrame, window: int = WINDOW, gap: float = GAP) -> int | None:
    """Return the step at which a `guard_gap` of this window and gap first fires in a run, by its training batches."""
    means = curve[["gold", "reward"]].rolling(window).mean()
    best = None
    for step, gold, reward in zip(curve["step"], means["gold"], means["reward"], strict=True):
        if pd.isna(gold):
            continue
        if best is None or gold >= best[0]:
            best = (gold, reward)
        elif best[0] - gold > gap and reward >= best[1]:
            return int(step)
    return None


def guarded(blocks: list[Block], tables: Tables) -> pd.DataFrame:
    """Return a row for each run that logs gold: `damaged`, and the step at which the guard `fired`, NaN if never."""
    rows = []
    for block in blocks:
        for run in block.runs:
            key = run.key
            curve = tables.curves4.loc[[key]] if key in tables.curves4.index else pd.DataFrame({"gold": []})
            if key in tables.stops.index and curve["gold"].notna().any():
                damaged = fall_of(tables, key) > GAP
                rows.append({**key._asdict(), "damaged": damaged, "fired": first_firing(curve)})
    return pd.DataFrame(rows, columns=[*RunKey._fields, "damaged", "fired"])


def guard_rates(runs: pd.DataFrame) -> dict[str, Contrast]:
    """Return the miss rate and the false-alarm rate, over bases; without the one that no run is of the kind of."""
    fired = runs["fired"].notna()
    damaged = runs["damaged"].astype(bool)
    rates = {"miss rate": ~fired[damaged], "false-alarm rate": fired[~damaged]}
    by_seed = runs["base_seed"]
    return {
        name: over_bases(of_runs.astype(float).groupby(by_seed[of_runs.index]).mean())
        for name, of_runs in rates.items()
        if len(of_runs)
    }


def tests_of(matrix: Matrix, tables: Tables) -> list[Test]:
    """Return the tests of all blocks of the matrix that have runs."""
    blocks = {block.name: block for block in matrix.blocks}
    stops = blocks["tuned_stops"]
    tests = [*target(blocks["target"], tables), *target(blocks["target2"], tables)]
    for name in ("tuned_rivals", "tuned_rivals2"):
        tests += tuned_rivals(blocks[name], stops, tables)
    tests += long_k(blocks["long_k"], blocks[clamp2.BLOCK], tables)
    tests += dose_long(blocks["dose_long"], tables)
    seeds = smollm2b_seeds([blocks[smollm2b.BLOCK], blocks["smollm2b_seeds"]], tables)
    return tests if seeds is None else [*tests, seeds]


def main() -> None:
    """Print everything that has runs."""
    parser = argparse.ArgumentParser(prog="python -m study.fourth", description=__doc__.strip().split("\n")[0])
    parser.add_argument("--tables", type=Path, required=True, help="the folder of the tables")
    folder = parser.parse_args().tables
    tables = read_folder(folder, make_frame(file=CURVES))
    matrix = read_matrix(Path.cwd())
    blocks = {block.name: block for block in matrix.blocks}
    for test in tests_of(matrix, tables):
        print(test)
    for slope in dose.slopes(blocks["dose_sorting"], tables):
        print(f"dose_sorting: {dose.format_slope(slope)}")
    back = given_back(blocks["long_k"], blocks[clamp2.BLOCK], tables)
    print("given back:", ", ".join(f"{arm} {share:.3f}" for arm, share in back.items() if share == share))
    of_guard = ("target", "target2", "tuned_stops", "tuned_rivals", "tuned_rivals2")
    runs = guarded([blocks[name] for name in of_guard], tables)
    for name, contrast in guard_rates(runs).items():
        print(f"guard_gap, window {WINDOW}, gap {GAP}: {name} {interval_cell(contrast.estimate, '.3f')}, over bases")
    if (folder / TEXTS).is_file():
        texts = pd.read_csv(folder / TEXTS)
        scores = texts.groupby(["model", "decoding"])[
            ["correct", "correct_200", "truncated", "truncated_200", "tokens"]
        ]
        print(scores.mean().to_string())
        for test in qwen(texts):
            print(test)


if __name__ == "__main__":
    main()
