"""
`python study/summary.py`: the study's first table, its differences and the registered tests, from study/tables.

The script of the study's pictures, and of every other number of its pages, is `study/figures.py` at commit 12240a7a.
"""

import json
from pathlib import Path

import pandas as pd
from scipy import stats

from trl_prorl.eval.analysis.statistics import holm, t_interval
from trl_prorl.tasks.instructions import tokens


TABLES = Path(__file__).resolve().parent / "tables"
TARGETS = {"gamed_sorting": "control_target0.14", "gamed_reverse": "control_target0.3"}
BLOCKS = {"gamed_sorting": ("gamed", "tuned_rivals"), "gamed_reverse": ("gamed2", "tuned_rivals2")}
EXACT = {"gamed_sorting": "sorting", "gamed_reverse": "reverse_digits"}  # the same task, rewarded by its verifier
SEEDS = range(91, 96)  # of the table's runs: one block for all rows
REGISTERED = {"gamed": ("gamed_sorting", "control"), "gamed2": ("gamed_reverse", "control")}
OTHER_REWARDS = ("gamed_reverse_0_0", "gamed_reverse_1_0", "gamed_reverse_2_2")
OTHER_REWARDS += tuple(f"sorting_ends_{ends}" for ends in ("0_0", "1_0", "1_1", "2_2"))


def by_base(runs: pd.DataFrame, family: str, arm: str, block: str | None = None) -> pd.DataFrame:
    """Return sampled and greedy accuracy of a variant, the mean of a starting model's seeds, by starting model."""
    chosen = runs[(runs["family"] == family) & (runs["arm"] == arm)]
    if block is not None:
        chosen = chosen[chosen["block"] == block]
    return chosen.groupby("base_seed")[["pass@1", "greedy"]].mean()


def best_of_checkpoints(stops: pd.DataFrame) -> pd.DataFrame:
    """Return the checkpoint of each run with the highest accuracy on validation questions, of equal ones the first."""
    return stops.loc[stops.groupby("base_seed")["validation_gold"].idxmax()]


def accuracies(runs: pd.DataFrame, stops: pd.DataFrame, family: str) -> pd.DataFrame:
    """Return the study's first table for one task: accuracy in %, sampled and greedy, means over starting models."""
    own = stops[stops["family"] == family]
    untrained = own[(own["arm"] == "base") & (own["step"] == 0)]
    plain = own[(own["arm"] == "plain") & own["seed"].isin(SEEDS)]
    rows = {
        "untrained": untrained[["gold", "greedy"]].mean(),
        "untrained, best of 8": pd.Series([untrained["best_of_8"].mean(), float("nan")]),
        "no KL": by_base(runs, family, "plain", "tuned_stops").mean(),
        "no KL, best of 60 checkpoints": best_of_checkpoints(plain)[["gold", "greedy"]].mean(),
        "no KL, after 10 steps": plain[plain["step"] == 10][["gold", "greedy"]].mean(),
        "fine-tuned on every rewarded sample": by_base(runs, family, "rejection_all").mean(),
        "fixed reference, kl_target": by_base(runs, family, TARGETS[family], BLOCKS[family][1]).mean(),
        "no KL, the verifier as the reward": by_base(runs, EXACT[family], "plain", "core").mean(),
    }
    columns = [f"{family}, sampled", f"{family}, greedy"]
    return pd.DataFrame({name: values.to_numpy() for name, values in rows.items()}, index=columns).T * 100


def written(values: pd.Series) -> str:
    """Write mean and 95 % interval of differences, one for each unit, in points."""
    return "{:+.1f} [{:+.1f}, {:+.1f}]".format(*(100 * value for value in t_interval(values.to_numpy())[:3]))


def differences(runs: pd.DataFrame) -> dict[str, str]:
    """Return differences of rewards that can be hacked, over starting models."""
    found = {}
    for block, (family, arm) in REGISTERED.items():
        gap = (by_base(runs, family, arm, block) - by_base(runs, family, "plain", block)).dropna()
        found[f"{family}: beta 0.3 − no KL"] = written(gap["pass@1"])
    for family in OTHER_REWARDS:
        arm = TARGETS["gamed_reverse" if family.startswith("gamed_reverse") else "gamed_sorting"]
        block = runs.loc[runs["family"] == family, "block"].iloc[0]
        gap = by_base(runs, family, arm, block) - by_base(runs, family, "plain", block)
        found[f"{family}: kl_target − no KL"] = written(gap["pass@1"].dropna())
    for family, target in TARGETS.items():
        gap = by_base(runs, family, "rejection_all") - by_base(runs, family, target, BLOCKS[family][1])
        for score in gap:
            found[f"{family}: fine-tuned − kl_target, {score}"] = written(gap[score].dropna())
    for family, target in TARGETS.items():
        verifier = by_base(runs, EXACT[family], "plain", "core")
        fixed_beta = by_base(runs, family, "control", BLOCKS[family][0])
        targeted = {block: by_base(runs, family, target, block) for block in BLOCKS[family]}
        for score in verifier:
            gap = verifier[score] - targeted[BLOCKS[family][1]][score]
            found[f"{family}: verifier as the reward − kl_target, {score}"] = written(gap.dropna())
            gap = targeted[BLOCKS[family][0]][score] - fixed_beta[score]
            found[f"{family}: kl_target − beta 0.3, {score}"] = written(gap.dropna())
    resets = by_base(runs, "gamed_sorting", "A", "gamed") - by_base(runs, "gamed_sorting", "control", "gamed")
    found["gamed_sorting: 14 resets − fixed reference"] = written(resets["pass@1"])
    return found


def exact_rewards(first: pd.DataFrame) -> pd.DataFrame:
    """Return the differences over three tasks with exact rewards, with Holm's p over the four treatments of Adam."""
    core = first[(first["block"] == "core") & (first["family"] == "mean") & first["name"].isin(["pass@1", "greedy"])]
    minus_plain = core[(core["less"] == "plain") & core["arm"].isin(["A", "B", "control"])]
    treatments = core[(core["less"] == "A") & (core["name"] == "pass@1") & core["arm"].str.startswith("C_")]
    treatments = treatments.assign(holm=holm(treatments["p"]))
    fixed = core[(core["less"] == "A") & (core["arm"] == "control")]
    return pd.concat([minus_plain, fixed, treatments])[["arm", "less", "name", "value", "low", "high", "p", "holm"]]


def is_stricter(asked: str, text: str) -> bool:
    """Return whether a text has at least six words, one of which is not in its prompt."""
    words = tokens(text)
    return len(words) >= 6 and not set(words) <= set(tokens(asked))


def smollm2(texts: pd.DataFrame) -> str:
    """Write the stricter score of the `kl_target` minus no KL on SmolLM2, sampled, over seeds."""
    end = texts[texts["family"].str.startswith("smollm2") & (texts["split"] == "test") & (texts["prompt"] < 64)]
    end = end[(end["step"] == 160) & (end["greedy"] == 0) & end["seed"].between(5, 9)]
    pairs = zip(end["asked"], end["text"], end["right"], strict=True)
    strict = [right == 1 and is_stricter(json.loads(asked), json.loads(text)) for asked, text, right in pairs]
    means = end.assign(strict=strict).groupby(["seed", "arm"])["strict"].mean().unstack("arm")
    return written((means["control_target0.066"] - means["plain"]).dropna())


def registered_p(runs: pd.DataFrame) -> dict[str, float]:
    """Return p of the registered differences without a correction, from t-tests over starting models."""
    gaps = {
        block: by_base(runs, family, arm, block)["pass@1"] - by_base(runs, family, "plain", block)["pass@1"]
        for block, (family, arm) in REGISTERED.items()
    }
    return {block: float(stats.ttest_1samp(gap, 0.0).pvalue) for block, gap in gaps.items()}


def main() -> None:
    runs = pd.read_csv(TABLES / "runs.csv")
    stops = pd.read_csv(TABLES / "stops.csv")
    print(pd.concat([accuracies(runs, stops, family) for family in TARGETS], axis=1).round(1).to_string())
    for name, value in differences(runs).items():
        print(f"{name}: {value}")
    print(f"p, not corrected: {registered_p(runs)}")
    print(exact_rewards(pd.read_csv(TABLES / "first_protocol.csv")).to_string(index=False))
    print(f"SmolLM2, kl_target − no KL, stricter score: {smollm2(pd.read_csv(TABLES / 'texts.csv.gz'))}")


if __name__ == "__main__":
    main()
