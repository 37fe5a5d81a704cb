"""
Block `rivals` of the third protocol, from the tables: the control held against plain stopped early by three rules, and
against fine-tuning, a small rank, a small rate, and best of 8 of the base. `python -m study.rivals` prints it.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from study.hierarchical import Contrast
from study.matrix import Block, PlannedRun, RunKey, read_matrix
from study.registered import over_bases, smoothed_curve
from study.scores import finished
from study.tables import Tables, read_tables
from trl_prorl.eval.analysis.statistics import holm
from trl_prorl.eval.pages.table import interval_cell
from trl_prorl.guards.guard_gap import GuardGap


BLOCKS = ("rivals", "rivals2")
OUTCOMES = ("gold", "greedy")
CONTROL = "control"
PLAIN_ARM = "plain_watched"
# By the names of the protocol; the control's arm has its target in its name.
ARMS = {
    "plain": PLAIN_ARM,
    "rank 4": "plain_rank4",
    "a tenth of the rate": "plain_lr_tenth",
    "rejection sampling": "rejection_sampling",
}
BY_GOLD = "plain, stopped by gold"
BY_KL = "plain, stopped by KL"
BY_GUARD = "plain, stopped by guard_gap"
STOPPED = (BY_GOLD, BY_KL, BY_GUARD)
BEST_STOPPED = "best stopped plain"
BEST_OF_8 = "best of 8"
WINDOW = 20  # steps of the guard's averages when the third protocol was registered and run
GAPS = (0.05, 0.1)  # of a guard that is replayed: the protocol's, and the one that README advises
TESTED = (BEST_STOPPED, "rejection sampling", "rank 4", "a tenth of the rate", BEST_OF_8)
AHEAD = 0.1  # of the best stopped plain, by R1
LEVEL_WITHIN = 0.05  # of rejection sampling, by R2
LOST_BEFORE_FIRING = 0.1  # of gold, at most, by R3
HARDLY_BELOW = 0.02  # R4 is refuted by a rival that is no further below


@dataclass(frozen=True)
class Difference:
    """
    An `outcome` of the control less a `rival`'s, in a family: the `contrast` over bases, and its p-value after Holm,
    `adjusted`, `None` where the difference is not registered. `rule` is that of the best stopped plain.
    """

    family: str
    rival: str
    outcome: str
    pairs: int
    contrast: Contrast
    rule: str = ""
    adjusted: float | None = None


@dataclass(frozen=True)
class Firing:
    """
    When `guard_gap` first fired in a run, a step, and how far gold of the training batches, a mean of 20 steps, had
    fallen then from its highest; both `None` if it never fired.
    """

    key: RunKey
    step: int | None
    fall: float | None


def stop_by_gold(stops: pd.DataFrame) -> int:
    """Return the step of the checkpoint with the highest validation gold; of equal ones the first."""
    by_step = stops.set_index("step")["validation_gold"]
    return int(by_step.idxmax())


def stop_by_kl(stops: pd.DataFrame, kl_target: float) -> int:
    """
    Return the step of the first checkpoint whose KL to the base is at least the target; the last one's if none is.
    """
    far = stops.loc[stops["kl_to_base"] >= kl_target, "step"]
    return int(far.min() if len(far) else stops["step"].max())


def stop_by_guard(stops: pd.DataFrame) -> int:
    """
    Return the step of the last checkpoint before `guard_gap` first fired; 0, the base, if none comes before; the last
    one's if it never fired.
    """
    fired = stops["guard_gap"].iloc[0]
    if pd.isna(fired):
        return int(stops["step"].max())
    before = stops.loc[stops["step"] < fired, "step"]
    return int(before.max()) if len(before) else 0


def stop_steps(tables: Tables, key: RunKey, kl_target: float) -> dict[str, int]:
    """
    Return the step at which each rule stops a run; one that left no policy has no checkpoint, and is not stopped.
    """
    if key not in tables.stops.index:
        return dict.fromkeys(STOPPED, key.steps)
    stops = tables.stops.loc[[key]]
    return {BY_GOLD: stop_by_gold(stops), BY_KL: stop_by_kl(stops, kl_target), BY_GUARD: stop_by_guard(stops)}


def score_at(tables: Tables, key: RunKey, step: int, outcome: str) -> float:
    """Return an outcome of a run stopped at a step: at its end the run's own, at step 0 the base's."""
    if step == key.steps:
        return float(tables.runs.loc[key, outcome])
    stops = tables.stops.loc[[key.base if step == 0 else key]].set_index("step")
    return float(stops.loc[step, outcome])


def control_of(block: Block) -> PlannedRun:
    """Return a run of the block's control, the arm with a `kl_target`."""
    return next(run for run in block.runs if "kl_target" in run.recipe)


def scores(block: Block, tables: Tables, family: str, outcome: str) -> pd.DataFrame:
    """
    Return an outcome of the control and of every rival that has it: a row for each pair of base seed and seed, a
    column for each rival. Best of 8 has no greedy counterpart.
    """
    control = control_of(block)
    arms = {CONTROL: control.key.arm, **ARMS}
    keys_of_pairs = finished(block, tables)[family]
    rows = {}
    for pair, keys in keys_of_pairs.iterrows():
        row = {}
        for name, arm in arms.items():
            if isinstance(keys[arm], RunKey):
                row[name] = float(tables.runs.loc[keys[arm], outcome])
        plain = keys[PLAIN_ARM]
        if isinstance(plain, RunKey):
            for rule, step in stop_steps(tables, plain, control.recipe["kl_target"]).items():
                row[rule] = score_at(tables, plain, step, outcome)
        base = RunKey(family, PLAIN_ARM, *pair, block.steps).base
        if outcome == "gold" and base in tables.stops.index:
            row[BEST_OF_8] = float(tables.stops.loc[[base], "best_of_8"].iloc[0])
        rows[pair] = row
    return pd.DataFrame.from_dict(rows, orient="index").reindex(columns=[CONTROL, *ARMS, *STOPPED, BEST_OF_8])


def best_rule(found: pd.DataFrame) -> str:
    """Return the rule of stopping with the highest mean over bases; of equal ones the first."""
    by_base = found[list(STOPPED)].groupby(level=0).mean()
    return str(by_base.mean().idxmax())


def control_less(found: pd.DataFrame, family: str, rival: str, outcome: str) -> Difference | None:
    """Return the control less a rival, over the pairs that have both; `None` without any."""
    rule = ""
    column = rival
    if rival == BEST_STOPPED:
        if found[list(STOPPED)].isna().all(axis=None):
            return None
        rule = best_rule(found)
        column = rule
    less = (found[CONTROL] - found[column]).dropna()
    if less.empty:
        return None
    return Difference(family, rival, outcome, len(less), over_bases(less), rule)


def with_holm(found: list) -> list:
    """Return what is tested as one family, each with its `contrast`, with p-values after Holm, `adjusted`."""
    adjusted = holm([one.contrast.p_value for one in found])
    return [replace(one, adjusted=float(p)) for one, p in zip(found, adjusted, strict=True)]


def differences(block: Block, tables: Tables) -> list[Difference]:
    """
    Return the registered differences, of sampled gold, with Holm within each family; and the same of greedy gold,
    beside them, for which the best rule of stopping is sought anew.
    """
    every = []
    for family in block.families:
        for outcome in OUTCOMES:
            table = scores(block, tables, family, outcome)
            found = [control_less(table, family, rival, outcome) for rival in TESTED]
            found = [one for one in found if one is not None]
            every += with_holm(found) if outcome == "gold" else found
    return every


def means_of_rivals(block: Block, tables: Tables, family: str) -> pd.DataFrame:
    """Return means over bases in a family: a row for the control and each rival, a column for each outcome."""
    of_outcomes = {}
    for outcome in OUTCOMES:
        by_base = scores(block, tables, family, outcome).groupby(level=0).mean()
        of_outcomes[outcome] = by_base.mean()
    return pd.DataFrame(of_outcomes)


def firing(tables: Tables, key: RunKey) -> Firing:
    """Return when `guard_gap` first fired in a run."""
    step = tables.stops.loc[[key], "guard_gap"].iloc[0]
    if pd.isna(step):
        return Firing(key, None, None)
    gold = smoothed_curve(tables, key)["gold"].loc[: int(step)]
    return Firing(key, int(step), float(gold.max() - gold.iloc[-1]))


def firings(block: Block, tables: Tables) -> list[Firing]:
    """List when `guard_gap` first fired in each run that it watched."""
    watched = [run.key for run in block.runs if run.key.arm == PLAIN_ARM and run.key in tables.stops.index]
    return [firing(tables, key) for key in watched]


def replayed_firing(tables: Tables, key: RunKey, gap: float) -> int | None:
    """Return the step at which a `guard_gap` would first have fired in a run, by its training batches."""
    guard = GuardGap(gap, "event", request=lambda reason: None, window=WINDOW)
    for row in tables.curves.loc[[key]].itertuples():
        if guard.observe(row.gold, row.reward) is not None:
            return int(row.step)
    return None


def replayed_firings(block: Block, tables: Tables) -> list[dict]:
    """List, for each run of the control and of plain, the first firings at `GAPS`: exploratory."""
    rows = []
    for run in block.runs:
        key = run.key
        if key.arm in (control_of(block).key.arm, PLAIN_ARM) and key in tables.runs.index:
            at_gaps = {f"at {gap:g}": replayed_firing(tables, key, gap) for gap in GAPS}
            rows.append({"arm": key.arm, "base": key.base_seed, **at_gaps})
    return rows


def r1_is_refuted(control_less_stopped: Contrast) -> bool:
    """R1, the control is ahead by at least 0.1: refuted by an interval that excludes 0.1 from above."""
    return control_less_stopped.estimate.high < AHEAD


def r2_is_refuted(control_less_tuned: Contrast) -> bool:
    """R2, rejection sampling is within 0.05: refuted by an interval that has no part of [-0.05, +0.05]."""
    _, low, high = control_less_tuned.estimate
    return low > LEVEL_WITHIN or high < -LEVEL_WITHIN


def r3_is_refuted(fired: list[Firing]) -> bool:
    """R3, `guard_gap` fires on every run, and before gold has lost 0.1: refuted by one run in which it does not."""
    return any(one.step is None or one.fall >= LOST_BEFORE_FIRING for one in fired)


def r4_is_refuted(control_less_rival: Contrast) -> bool:
    """R4, the rival only delays: refuted by an interval of rival - control whose lower end is above -0.02."""
    return control_less_rival.estimate.high < HARDLY_BELOW


PREDICTIONS = {
    BEST_STOPPED: ("R1", r1_is_refuted),
    "rejection sampling": ("R2", r2_is_refuted),
    "rank 4": ("R4", r4_is_refuted),
    "a tenth of the rate": ("R4", r4_is_refuted),
}


def grade(difference: Difference) -> str:
    """Return which prediction a registered difference is of, and what became of it; nothing without one."""
    if difference.adjusted is None or difference.rival not in PREDICTIONS:
        return ""
    name, is_refuted = PREDICTIONS[difference.rival]
    return f"{name} is refuted" if is_refuted(difference.contrast) else f"{name} is not refuted"


def format_difference(difference: Difference) -> str:
    """Write a line of the printed result."""
    rival = difference.rival
    if difference.rule:
        rival += f" ({difference.rule})"
    interval = interval_cell(difference.contrast.estimate, "+.3f")
    line = f"{difference.outcome}, control less {rival}: {interval}, n = {difference.pairs}"
    if difference.adjusted is not None:
        line += f", p {difference.adjusted:.3f} after Holm"
    if grade(difference):
        line += f"; {grade(difference)}"
    return line


def main() -> None:
    """Print the means of all rivals, and the differences."""
    root = Path.cwd()
    tables = read_tables(root)
    for block in read_matrix(root).selected(BLOCKS).blocks:
        for family in block.families:
            means = means_of_rivals(block, tables, family).dropna(how="all")
            if len(means):
                print(f"\n{family}, means over bases\n{means.to_string()}")
        print()
        for difference in differences(block, tables):
            print(f"{difference.family}: {format_difference(difference)}")
        fired = firings(block, tables)
        for one in fired:
            print(f"{one.key}: guard_gap fired at {one.step}, gold had fallen by {one.fall}")
        if fired:
            print(f"R3 is refuted: {r3_is_refuted(fired)}")
        for row in replayed_firings(block, tables):
            print(f"guard_gap, replayed: {row}")


if __name__ == "__main__":
    main()
