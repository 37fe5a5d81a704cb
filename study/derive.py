"""
`python -m study.derive` writes what the pages need of the full curves, before these leave the tables: means over ten steps,
numbers of each run, means around resets, and the intervals of the first protocol.
"""

import time
from pathlib import Path

import numpy as np
import pandas as pd
from study.around_resets import PANELS, _has_resets, aligned_metric
from study.clamp import EXACT, fit_asymptote
from study.matrix import RunKey, read_matrix
from study.registered import gold_at_equal
from study.scores import finished, reset_steps, reward_kept
from study.tuned import with_choices

from eval.analysis.resets import band_over_resets, reset_responses
from eval.analysis.stability import ENTROPY_SPIKE, KL_SPIKE, find_spikes, kl_key
from study.tables import read_tables
from trl_prorl.guards.guard_gap import GuardGap


ROOT = Path.cwd()
OUT = ROOT / "study" / "tables"
tables = read_tables(ROOT).earlier()
whole = read_matrix(ROOT)
matrix = with_choices(whole, whole, tables)
KEYS = list(RunKey._fields)
t0 = time.time()

# thin
thin = []
derived = []
curves = {RunKey(*k): c for k, c in tables.curves.groupby(level=KEYS)}
block_of = {}
for block in matrix.blocks:
    for run in block.runs:
        block_of.setdefault(run.key, []).append(block)


def text(values):
    return " ".join(f"{v:g}" for v in values)


def guard(curve, gap, window):
    g = GuardGap(gap, "event", request=lambda reason: None, window=window)
    for row in curve.itertuples():
        if g.observe(row.gold, row.reward) is not None:
            return int(row.step)
    return 0


def test_slowing(reward, start, steps, share):
    near = int(steps * share / 2)
    middle = reward.loc[steps / 2 - near + 1 : steps / 2 + near].mean()
    end = reward.loc[steps - 2 * near + 1 :].mean()
    unsolved = np.log(1 - np.array([start, middle, end]))
    return (unsolved[1] - unsolved[2]) / (steps / 2 - near) * (steps / 2) / (unsolved[0] - unsolved[1])


for key, curve in curves.items():
    run = tables.runs.loc[key]
    c = curve.set_index("step")
    measured = c["drift"].dropna()
    kl = np.interp(c.index, [0, *measured.index], [0.0, *measured]) if len(measured) else np.full(len(c), np.nan)
    t = pd.DataFrame(
        {
            "reward": c.reward,
            "gold": c.gold,
            "kl_ref": c.kl_ref,
            "kl_to_base": kl,
            "entropy": c.entropy,
            "beta": c.beta,
        }
    )
    part = (t.index - 1) // 10
    m = t.groupby(part).mean()
    m.insert(0, "step", t.index.to_series().groupby(part).last())
    thin.append(m.assign(**key._asdict()))
    row = dict(key._asdict())
    blocks = block_of.get(key, [])
    names = {b.name for b in blocks}
    resets = reset_steps(tables, key)
    row["resets_at"] = text(resets)
    row["end_by_best"] = reward_kept(tables, key)
    smooth = c[["gold", "reward"]].rolling(20).mean()
    if c.gold.notna().sum() >= 20:
        row["best_gold"] = smooth.gold.max()
        row["last_gold"] = smooth.gold.iloc[-1]
    if key.family.startswith("gamed"):
        row["right_of_paid"] = c.gold[1] / c.reward[1] if 1 in c.index and c.reward[1] else np.nan
        for gap, window in ((0.05, 20), (0.1, 20), (0.1, 40), (0.1, 60)):
            row[f"guard_{gap:g}_{window}"] = guard(c.reset_index(), gap, window)
        fired = row["guard_0.05_20"]
        if fired:
            g = smooth.gold.loc[:fired]
            row["fallen_at_guard"] = g.max() - g.iloc[-1]
    later = c[c.kl_old > 0]
    row["update_norm"] = c.update_norm.mean()
    row["clipped"] = later.clip_region_mean.mean()
    row["kl_spikes"] = find_spikes(curve[kl_key(run["variant"])], KL_SPIKE).count
    row["entropy_spikes"] = find_spikes(curve["entropy"], ENTROPY_SPIKE).count
    row["reconvergence"] = " ".join(
        f"{r.reconvergence}{'+' if r.censored else ''}"
        for r in reset_responses(c.index.to_numpy(), c.reward.to_numpy(), [s - 1 for s in resets])
    )
    if "core" in names and key.arm in ("A", "C_hard", "control"):
        row["update_after_reset"] = c.update_norm[(c.index % 40 == 1) & (c.index > 1)].mean()
        row["grad_norm_after_reset"] = np.mean(
            [c.grad_norm.loc[s + 1 : s + 3].mean() / c.grad_norm.loc[s - 9 : s].mean() for s in range(40, 240, 40)]
        )
        if key.arm == "control":
            row["reconvergence"] = " ".join(
                f"{r.reconvergence}{'+' if r.censored else ''}"
                for r in reset_responses(c.index.to_numpy(), c.reward.to_numpy(), [40, 80, 120, 160, 200])
            )
    if key.arm in ("A_spike", "C_keep_spike"):
        mean10 = c.kl_ref.rolling(10).mean()
        after = []
        for i, s in enumerate(resets):
            end = resets[i + 1] if i + 1 < len(resets) else len(c) + 1
            part_ = c.kl_ref.loc[s : end - 1].rolling(10, min_periods=10).mean()
            hit = part_[part_ > 0.015]
            if len(hit):
                after.append(hit.index[0] - s + 1)
        row["kl_passed_after"] = text(after)
    if key.family in EXACT and key.steps >= 1000 and key.arm in ("plain", "plain_mu32"):
        start = run["base_pass@1"]
        row["slowing"] = test_slowing(c.reward, start, key.steps, 1 / 10)
        if key.arm == "plain":
            row["slowing_noisiest"] = max(test_slowing(c.reward, start, key.steps, 2 / p) for p in (40, 60, 80, 100))
    if any(n.startswith("clamp") for n in names):
        fit = fit_asymptote(c.gold, run["base_pass@1"])
        row["asymptote"], row["half"] = fit
    for b in blocks:
        if b.name in ("gamed", "gamed2"):
            for other in ("plain", "control"):
                o = key._replace(arm=other)
                if other != key.arm and o in tables.runs.index:
                    row[f"at_equal_reward_less_{other}"] = gold_at_equal("reward")(tables, key, o)
    derived.append(row)

thin = pd.concat(thin)[[*KEYS, "step", "reward", "gold", "kl_ref", "kl_to_base", "entropy", "beta"]]
same = np.allclose(thin.reward, thin.gold, equal_nan=True)
thin.to_csv(OUT / "curves_thin.csv.gz", index=False, float_format="%.4g", compression={"method": "gzip", "mtime": 0})
derived = pd.DataFrame(derived)
derived.to_csv(OUT / "derived.csv", index=False, float_format="%.6g")
print("derived", time.time() - t0, len(thin), same)

# around resets
found = []
for block in matrix.blocks:
    if block.name not in ("core", "clamp"):
        continue
    runs = finished(block, tables)
    control = "control" + block.suffix
    arms = [a for a in block.arms if runs.xs(a, axis=1, level=1).notna().any().any()]
    resetting = [a for a in arms if _has_resets(tables, runs.xs(a, axis=1, level=1).stack())]
    for family in block.families:
        for metric in PANELS:
            for arm in [a for a in arms if a in resetting or a == control]:
                aligned = aligned_metric(tables, runs[family, arm].dropna(), metric, resetting[0])
                if not len(aligned):
                    continue
                band = band_over_resets(aligned)
                band.insert(0, "since_reset", band.index)
                found.append(band.assign(block=block.name, family=family, arm=arm, metric=metric, resets=len(aligned)))
around = pd.concat(found)[["block", "family", "arm", "metric", "resets", "since_reset", "mean", "low", "high"]]
around.to_csv(OUT / "around_resets.csv", index=False, float_format="%.4g")
print(time.time() - t0)

# first protocol
from study.differences import differences, over_families, shares
from study.findings import _coverage_of_intervals
from study.scores import OUTCOMES, scores


rows = []
nan = float("nan")


def put(block, family, arm, name, estimate, less="", p=nan, test=""):
    try:
        value, low, high = estimate
    except TypeError:
        value, low, high = estimate, nan, nan
    rows.append(
        dict(
            block=block, family=family, arm=arm, less=less, name=name, value=value, low=low, high=high, p=p, test=test
        )
    )


for block in matrix.blocks:
    if block.tunes or block.protocol != "first":
        continue
    table = scores(block, tables)
    for one in table.to_dict("records"):
        for o in OUTCOMES:
            put(block.name, one["family"], one["arm"], o, one[o])
            put(block.name, one["family"], one["arm"], o, one[f"{o} less base"], "base")
            put(block.name, one["family"], "base", o, one[f"base {o}"])
    for o, k in OUTCOMES.items():
        d = differences(block, tables, k)
        pooled = over_families(block, tables, k)
        for one in [*d.itertuples(), *pooled.itertuples()]:
            p, pa = (one.adjusted, one.adjusted_alone) if "mean" not in one.family else (one.p, one.p_alone)
            family = "mean" if "mean" in one.family else one.family
            put(block.name, family, one.arm, o, one.contrast.estimate, one.reference, p, one.hypothesis.split(":")[0])
            put(block.name, family, one.arm, f"{o}, over bases", one.alone.estimate, one.reference, pa)
            put(block.name, family, one.arm, f"{o}, seen", one.contrast.smallest(), one.reference)
            if family != "mean" and o == "pass@1":
                put(
                    block.name,
                    family,
                    one.arm,
                    f"{o}, seen after Holm",
                    one.contrast.smallest(one.tests),
                    one.reference,
                )
            if o == "pass@1":
                put(block.name, family, one.arm, f"{o}, equivalent", one.contrast.equivalence(0.02), one.reference)
    for one in shares(block, tables).itertuples():
        put(block.name, one.family, one.arm, f"share of the {one.of}", one.ratio, one.reference)
    print(block.name, time.time() - t0, flush=True)
frame = pd.DataFrame(rows).drop_duplicates(["block", "family", "arm", "less", "name"])
frame.to_csv(OUT / "first_protocol.csv", index=False, float_format="%.6g")
(core,) = [b for b in matrix.blocks if b.name == "core"]
print("coverage of the first protocol's intervals, and of those over bases:", _coverage_of_intervals(core, tables))
print("done", time.time() - t0)
