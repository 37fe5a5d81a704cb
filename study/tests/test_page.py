"""
study/pages/details.md and the study's part of the front page say what the tables say: numbers computed here from the
CSV files. `test_points.py` has study/README.md.
"""

import re

import numpy as np
import pandas as pd
import pytest
from doc_pages import ROOT
from scipy import stats

from study.differences import differences
from study.matrix import read_matrix
from study.tables import read_tables


STUDY = ROOT / "study"
FOLDER = STUDY / "tables"
DETAILS = (STUDY / "pages" / "details.md").read_text()
FAMILIES = ["reverse_digits", "sorting", "sums"]
RUNS, BASES = (pd.read_csv(FOLDER / name) for name in ("runs.csv", "bases.csv"))
CURVES = pd.read_csv(FOLDER / "curves.csv.gz", low_memory=False)
OUTCOMES = ["pass@1", "pass@8", "greedy"]
PROTOCOLS = RUNS.block.map({block.name: block.protocol for block in read_matrix(ROOT).blocks})
FIRST = RUNS[PROTOCOLS == "first"]
SMOLLM2 = RUNS[RUNS.block == "pretrained"].groupby("seed").filter(lambda of: len(of) == 4)  # seeds with all arms
CORE = RUNS[RUNS.block == "core"].set_index(["arm", "family", "base_seed"]).sort_index()
ONE_LINE = " ".join(DETAILS.split())
FRONT = " ".join((ROOT / "README.md").read_text().split()).replace(" %", "%")


def signed(value):
    return f"{value:+.3f}".replace("-", "−")


def less(arm, reference, column="pass@1"):
    """By base and family."""
    return (CORE.loc[arm, column] - CORE.loc[reference, column]).unstack("family")[FAMILIES]


def alone(values):
    """The ordinary t-interval over bases, as the page writes it."""
    low, high = t_interval(values)
    return f"{signed(np.mean(values))} [{signed(low)}, {signed(high)}]"


def t_interval(values):
    return stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))


def holm(p_values):
    """Adjusted p: the k-th smallest of n by n − k + 1, none below a smaller one's."""
    order = np.argsort(p_values)
    adjusted = np.empty(len(order))
    adjusted[order] = np.maximum.accumulate([p_values[i] * (len(order) - k) for k, i in enumerate(order)])
    return np.minimum(adjusted, 1)


def test_no_anchor_gained_where_no_wrong_answer_is_paid_in_full():
    """The front page's sentence: no arm's interval lies above plain, in any family."""
    told = "In healthy training on three tasks that pay no wrong answer in full no KL was seen to raise the score"
    assert told in FRONT
    arms = set(CORE.index.get_level_values("arm")) - {"plain"}
    assert {"control", "A", "B", "C_hard"} <= arms
    for arm in arms:
        for family in FAMILIES:
            low, _ = t_interval(less(arm, "plain")[family])
            assert low < 0, (arm, family)


def test_every_number_of_three_digits_is_in_the_findings(findings):
    known = set(re.findall(r"\d+\.\d{3}\b", findings))
    assert [number for number in re.findall(r"\d+\.\d{3}\b", DETAILS) if number not in known] == []


@pytest.mark.parametrize("block", ["gamed", "gamed2"])
def test_what_a_reward_that_can_be_gamed_leaves(block):
    """Seeds of a base are averaged first; the fall is the highest mean of 20 steps less the last."""
    arms = RUNS[RUNS.block == block].groupby(["arm", "base_seed"])[[*OUTCOMES, "drift"]].mean()
    curves = CURVES[CURVES.family == {"gamed": "gamed_sorting", "gamed2": "gamed_reverse"}[block]]
    smooth = curves.groupby(["arm", "base_seed", "seed"]).gold.rolling(20).mean().groupby(level=[0, 1, 2])
    pairs = RUNS[RUNS.block == block].set_index(["arm", "base_seed", "seed"])["pass@1"]
    for arm, other in (("control", "plain"), ("A_K100", "plain"), ("B", "plain"), ("A_K100", "control")):
        for outcome in (pairs, smooth.max() - smooth.last()):
            assert alone((outcome[arm] - outcome[other]).dropna().groupby(level=0).mean().loc[1:5]) in DETAILS
    of_sorting = ("A_K100_own", "A", "A_K300", "control_target0.14")
    for later in {"gamed": of_sorting, "gamed2": ("control_target0.3",)}[block]:
        assert alone((pairs[later] - pairs["control"]).dropna().groupby(level=0).mean()) in ONE_LINE
    for _, row in arms.groupby(level=0).filter(lambda of: len(of) == 5).groupby(level=0).mean().iterrows():
        assert ", ".join(f"{row[name]:.3f}" for name in OUTCOMES) + f" | {row['drift']:.2f} |" in DETAILS
    second = RUNS[PROTOCOLS == "second"]
    hours = second.seconds.sum() / 3600
    assert f"{len(second)} runs, {hours:.1f} core-hours, by the second one" in ONE_LINE
    assert (arms["pass@1"]["control"] > arms["pass@1"]["plain"]).all()


@pytest.mark.parametrize("block, family", [("gamed", "gamed_sorting"), ("gamed2", "gamed_reverse")])
def test_stopping_plain_early_leaves_most_of_the_controls_lead(block, family):
    """Held-out gold of the control less plain's best mean of 20 training batches; seeds of a base averaged."""
    ends = RUNS[(RUNS.block == block) & (RUNS.arm == "control")].set_index(["base_seed", "seed"])["pass@1"]
    plain = CURVES[(CURVES.family == family) & (CURVES.arm == "plain") & CURVES.base_seed.between(1, 5)]
    best = plain.groupby(["base_seed", "seed"]).gold.apply(lambda gold: gold.rolling(20).mean().max())
    assert alone((ends - best).groupby(level=0).mean()) in ONE_LINE


def test_greedy_decoding_beside_samples():
    """Of the control less plain in the core block, and of A's less its bases' where reversing is gamed."""
    sampled, greedy = (less("control", "plain", column).mean(axis=1) for column in ("pass@1", "greedy"))
    assert f"{alone(sampled)} of pass@1 and {alone(greedy)} of greedy" in ONE_LINE
    scores = RUNS[RUNS.block == "gamed2"].set_index(["arm", "base_seed"]).greedy
    base = BASES[BASES.family == "gamed_reverse"].set_index("base_seed").base_greedy
    assert f"the base's, {alone((scores['A_K100'] - base).dropna())}, and" in ONE_LINE
    assert f"the control's, {alone(scores['A_K100'] - scores['control'])} (exploratory)" in ONE_LINE


def test_what_a_kl_to_the_base_can_give(findings):
    """The share of right answers among those paid for in the first batch, which the base samples."""
    first = CURVES[(CURVES.family == "gamed_reverse") & (CURVES.arm == "control") & (CURVES.step == 1)]
    paid = first.reward * 128
    assert paid.to_numpy() == pytest.approx(paid.round().to_numpy(), abs=1e-3)  # each of 128 answers by 0 or 1
    ends = RUNS[(RUNS.block == "gamed2") & (RUNS.arm == "control")]["pass@1"]
    stops = pd.read_csv(FOLDER / "stops.csv")
    of_bases = stops[(stops.family == "gamed_reverse") & (stops.arm == "base")]
    shares = [(of.gold / of.reward).mean() for of in (first, of_bases)]
    told = f"{shares[0]:.3f} are right in the first batch, and {shares[1]:.3f} on the test questions"
    told += f"; the control ends at {ends.mean():.3f}"
    assert told in ONE_LINE
    assert "gamed_sorting that the bases are paid for" not in findings


def test_the_lenient_rules_of_the_second_protocol():
    """K = 300, one reset in 600 steps, lies above the control, where P3 and P4 put it below."""
    runs = RUNS[RUNS.block == "gamed"].groupby("arm")[["pass@1", "resets"]].mean()
    assert runs["resets"]["A_K300"] == 1
    assert "K = 300 (one reset in 600 steps)" in ONE_LINE
    assert runs["pass@1"]["A_K300"] > runs["pass@1"]["control"] > runs["pass@1"]["A"]
    assert "K = 300 lies above the control, against the order of both" in ONE_LINE


def test_a_third_of_the_rate_and_pass8_where_sorting_is_gamed():
    """At equal reward: gold where the mean of 20 steps first reaches the lower of the pair's two highest values."""
    runs = RUNS[RUNS.block == "gamed"].set_index(["arm", "base_seed", "seed"])[["pass@1", "pass@8"]]
    gain = runs.loc["plain_lr_third"] - runs.loc["plain"]
    broad = runs.loc["A_K100"] - runs.loc["control"]
    curves = CURVES[(CURVES.family == "gamed_sorting") & CURVES.base_seed.between(1, 5)]
    curves = curves[curves.arm.isin(["plain", "plain_lr_third"])]
    means = (
        curves.set_index(["base_seed", "seed", "arm"]).groupby(level=[0, 1, 2])[["reward", "gold"]].rolling(20).mean()
    )
    at_equal = {}
    for run, pair in means.dropna().groupby(level=[0, 1]):
        third, plain = (pair.xs(arm, level=5) for arm in ("plain_lr_third", "plain"))
        level = min(third.reward.max(), plain.reward.max())
        golds = [one.gold[one.reward.to_numpy() >= level].iloc[0] for one in (third, plain)]
        at_equal[run] = golds[0] - golds[1]
    for values in (gain["pass@1"], broad["pass@8"], pd.Series(at_equal)):
        assert alone(values.groupby(level=0).mean().loc[1:5]) in ONE_LINE


def test_the_kl_that_right_answers_need():
    """−log of a prompt's pass rate by the mean length, on the bases of the screen; the coefficients in the end."""
    tables = read_tables(ROOT)
    needed = []
    for of_screen in ("gamed_sorting", "reverse_digits"):
        runs = tables.runs.xs(of_screen, drop_level=False)
        lengths = runs["drift_tokens"].groupby("base_seed").mean()
        rows = {base: tables.prompts.loc[(of_screen, "base", base, 0, 0)] for base in (0, 6)}
        rates = {base: (of["correct"] + 0.5) / (of["n"] + 1) for base, of in rows.items()}
        needed.append(np.mean([-np.log(rates[base]).mean() / lengths[base] for base in (0, 6)]))
    assert "{:.2f} nats a token from the base on sorting, {:.1f} on reversing".format(*needed) in ONE_LINE
    adaptive = tables.curves.xs(("gamed_reverse", "control_target0.3"))
    seeds = RUNS[RUNS.block == "gamed2"].seed.unique()
    adaptive = adaptive[adaptive.index.get_level_values("seed").isin(seeds)]
    last = adaptive["beta"].groupby("base_seed").last()
    assert f"β fell to {last.min():.2f} to {last.max():.2f}" in ONE_LINE
    broad = RUNS[RUNS.block == "gamed2"].groupby("arm")["pass@8"].mean()
    assert f"{broad['control'] - broad['control_target0.3']:.3f} less of pass@8" in ONE_LINE


def test_b_against_the_clip():
    runs = RUNS[RUNS.block.str.startswith("reuse")].set_index(["arm", "base_seed"])["pass@1"]
    for arm in ("plain", "control_beta0.3", "B_beta_old1", "B_beta_old0.3"):
        both = ((f"{arm}_mu{uses}", f"{arm}_noclip_mu{uses}") for uses in (2, 8, 32))
        cells = " | ".join(f"{runs[clip].mean():.3f}, {runs[without].mean():.3f}" for clip, without in both)
        assert f" | {cells} |" in DETAILS
    assert alone(runs["control_beta0.3_noclip_mu32"] - runs["plain_noclip_mu32"]) in ONE_LINE
    for arm in ("plain_noclip", "B_beta_old1", "B_beta_old1_noclip"):
        assert alone(runs[f"{arm}_mu32"] - runs["plain_mu32"]) in DETAILS
    for uses in (8, 32):
        assert alone(runs[f"B_beta_old1_noclip_mu{uses}"] - runs[f"plain_noclip_mu{uses}"]) in DETAILS


def test_the_pretrained_model():
    """Reward and score of all samples, the rest of those that measure drift; means over training seeds."""
    page = (STUDY / "pages" / "smollm2.md").read_text()
    points = pd.read_csv(FOLDER / "points.csv.gz").query("family == 'smollm2'")
    points = points[points.seed.isin(SMOLLM2.seed)]
    runs = SMOLLM2.groupby("arm").mean(numeric_only=True)
    assert set(runs.index) == {"plain", "control", "A", "B"}
    assert not SMOLLM2.collapsed.any()

    def row(reward, scores, measured):
        (_, own), (_, other) = measured.groupby("task").mean(numeric_only=True).iterrows()  # the run's own comes first
        rest = [own.kl_to_base, other.kl_to_base, own.mean_tokens, own.distinct_2, own.compression_ratio]
        cells = [f"{value:{spec}}" for value, spec in zip(rest, (".2f", ".2f", ".1f", ".2f", ".2f"), strict=True)]
        scores = ", ".join(f"{score:.3f}" for score in scores)
        return f"| {reward:.2f} | {scores} | {' | '.join(cells)} | {own.text_perplexity:.1f} |"

    at_base = points[points.step == 0]
    own = points[points.task == "instructions"].set_index(["step", "arm"])
    scores = BASES.set_index(["family", "base_seed"]).loc[("smollm2", 1), [f"base_{name}" for name in OUTCOMES]]
    assert f"| **base** {row(own.reward[0].mean(), scores, at_base)}" in page
    rights = pd.read_csv(FOLDER / "prompts.csv.gz").query("family == 'smollm2' and base_seed == 1")
    rights = rights[rights.seed.isin([0, *SMOLLM2.seed])]
    rights = rights.pivot_table(index="prompt", columns="arm", values="correct") / 8
    for one, other in re.findall(r"(\w+) − (\w+) [+−]", " ".join(page.split())):
        assert f"{one} − {other} {alone(rights[one] - rights[other])}" in " ".join(page.split())
    for arm, of in runs.iterrows():
        assert row(of.proxy, of[OUTCOMES], points[(points.arm == arm) & (points.step == 160)]) in page


def test_gold_of_the_pretrained_model_is_gamed():
    """A right text of two words, or the words it has to end with and at most one more, or that repeats the demand."""
    texts = pd.read_csv(FOLDER / "smollm2_texts.csv.gz", keep_default_na=False)
    counted = pd.read_csv(FOLDER / "prompts.csv.gz").query("family == 'smollm2'")
    counted = counted[counted.seed.isin(SMOLLM2.seed)].set_index(["arm", "seed", "prompt"]).correct.sort_index()
    assert (texts[texts.arm != "base"].groupby(["arm", "seed", "prompt"]).right.sum() == counted).all()
    assert len(texts) == (len(SMOLLM2) + 1) * 64 * 8

    def words(text):
        return re.findall("[a-z]+", text.lower())

    def bare(asked, text):
        demanded = re.search('End with exactly these words: "(.*)"', asked)
        few = demanded and len(words(text)) <= len(words(demanded[1])) + 1
        ends = few and " ".join(words(demanded[1])) in " ".join(words(text))
        return len(words(text)) <= 2 or demanded and ("End with exactly" in text or ends)

    texts["bare"] = [bool(bare(one.asked, one.completion)) and one.right == 1 for one in texts.itertuples()]
    texts["sense"] = texts.right * ~texts.bare
    of = texts.groupby("arm")[["bare", "right"]].sum()
    page = " ".join((STUDY / "pages" / "smollm2.md").read_text().split())
    names = {"A": "A's", "control": "the control's", "base": "the base's", "plain": "plain's", "B": "B's"}
    told = ", ".join(f"{of.bare[arm]} of {name} {of.right[arm]}" for arm, name in names.items())
    assert told in page.replace(f"{of.right['A']} right texts", f"{of.right['A']}")
    sense = texts.groupby(["arm", "prompt"]).sense.mean().unstack("arm")
    scores = ", ".join(f"{sense[arm].mean():.3f}" for arm in names)
    assert f"pass@1 is {scores}" in page
    by_seed = texts.groupby(["arm", "seed"])[["right", "sense"]].mean()
    for arm in names.keys() - {"base"}:
        assert " | ".join(f"{right:.3f} ({left:.3f})" for right, left in by_seed.loc[arm].to_numpy()) + " |" in page
    rights = texts.groupby(["arm", "prompt"]).right.mean().unstack("arm")
    assert alone(sense.A - sense.control) in page
    assert alone(rights.control - rights.plain) in page  # the registered outcome beside the later one
    assert alone(sense.control - sense.plain) in page
    low, high = t_interval(rights.control - rights.plain)
    assert low < 0 < high
    assert "By the registered score a KL made no significant difference." in FRONT


def test_adams_state_where_training_breaks():
    """The block `modes`: scores, differences from A with p after Holm over four, and the size of updates."""
    runs = RUNS[RUNS.block == "modes"].set_index(["arm", "base_seed"])
    sizes = CURVES[CURVES.seed.between(31, 35)].groupby("arm").update_norm.mean()
    held = runs["pass@1"].unstack("arm")
    modes = ["C_hard_lr10", "C_soft0.1_lr10", "C_asym_lr10", "C_step_lr10"]
    raw = {arm: stats.ttest_rel(held[arm], held["A_lr10"]).pvalue for arm in modes}
    adjusted = dict(zip(modes, holm([raw[arm] for arm in modes]), strict=True))
    names = {"C hard": modes[0], "C soft, α = 0.1": modes[1], "C asym": modes[2], "C step": modes[3]}
    names |= {"A": "A_lr10", "*A, rate falls to 0*": "A_linear_lr10", "*plain, rate falls to 0*": "plain_linear_lr10"}
    for name, arm in names.items():
        of = runs.loc[arm]
        less = "" if arm == "A_lr10" else alone(held[arm] - held["A_lr10"])
        size = "" if arm == "A_lr10" else f"{(sizes[arm] / sizes['A_lr10'] - 1) * 100:+.0f} %".replace("-", "−")
        p = f", {adjusted[arm]:.3f}" if arm in adjusted else ""
        cells = [name, size, f"{of['pass@1'].mean():.3f}", less + p, f"{of.greedy.mean():.3f}"]
        cells.append(f"{of.collapsed.sum()} of 5")
        assert "| " + " | ".join(cells).replace("|  |", "| |").replace("|  |", "| |") + " |" in DETAILS
    assert alone(held["A_linear_lr10"] - held["C_step_lr10"]) in DETAILS
    base = BASES[BASES.family == "reverse_digits"].set_index("base_seed")["base_pass@1"].loc[1:5]
    kept = held.sub(base, axis=0).mean()
    assert set(kept.index[kept > 0]) == {"C_step_lr10", "A_linear_lr10"}


def test_what_frees_a_clamped_policy():
    """The block `clamp`: scores, entropy of the last 20 steps, and four registered differences with p after Holm."""
    runs = RUNS[RUNS.block == "clamp"].set_index(["arm", "base_seed"])
    curves = CURVES.query("family == 'reverse_level8' and steps == 3000 and seed <= 5")
    entropy = curves[curves.step > 2980].groupby("arm").entropy.mean()
    base = BASES[(BASES.family == "reverse_level8") & BASES.base_seed.between(1, 5)]
    scores = ", ".join(f"{base['base_' + name].mean():.3f}" for name in OUTCOMES)
    assert f"| **base** | {scores} |" in DETAILS
    for name, arm in {"plain": "plain", "control": "control", "A": "A_K200", "C hard": "C_hard_K200"}.items():
        of = runs.loc[arm].mean(numeric_only=True)
        scores = ", ".join(f"{of[one]:.3f}" for one in OUTCOMES)
        assert f"| {name} | {scores} | {of.drift:.2f} | {entropy[arm]:.2f} |" in DETAILS
    held = runs["pass@1"].unstack("arm")
    pairs = [("A_K200", "control"), ("C_hard_K200", "control"), ("A_K200", "plain"), ("C_hard_K200", "A_K200")]
    adjusted = holm([stats.ttest_rel(held[arm], held[other]).pvalue for arm, other in pairs])
    for (arm, other), p in zip(pairs, adjusted, strict=True):
        told = "< 0.001" if p < 0.001 else f"{p:.3f}"
        assert f"{alone(held[arm] - held[other])}, {told}" in ONE_LINE
    screen = RUNS[RUNS.block == "clamp_screen"].groupby("arm")[["pass@1", "base_pass@1"]].mean()
    gained = screen["pass@1"] - screen["base_pass@1"]
    assert f"β = 1 less β = 10 {signed(gained['control_beta1'] - gained['control_beta10'])} in 600" in ONE_LINE
    assert f"β = 3 missed by {gained['control_beta3'] - 0.02:.4f}" in ONE_LINE
    assert gained["control_beta10"] < 0.02
    gains = held.mean() - base["base_pass@1"].mean()
    assert round(gains["plain"] / gains["A_K200"]) == 5
    assert (held["A_K200"] > held["control"]).all()


def test_what_is_kept_beside_the_task():
    """Mean gold of sorting and sums, at the end and where reversing is nearest to the lowest end of all arms."""
    points = pd.read_csv(FOLDER / "points.csv.gz").query("family == 'forget' and seed < 71")
    keys = ["arm", "base_seed", "seed", "step"]
    own = points[points.task == "reverse_digits"].set_index(keys).gold
    kept = points[points.task != "reverse_digits"].groupby(keys).gold.mean()
    ends = kept.xs(600, level="step")
    at_base = kept.xs(0, level="step")
    lowest = own.xs(600, level="step").groupby(level=[1, 2]).min()
    away = (own[own.index.get_level_values("step") > 0] - lowest).abs()
    at_equal = kept[away.groupby(level=[0, 1, 2]).idxmin()].droplevel("step")
    pairs = [("control", "plain"), ("A", "plain"), ("B", "plain"), ("A_base_anchor", "A")]
    for outcome in (ends, at_equal):
        for arm, other in pairs:
            assert alone((outcome[arm] - outcome[other]).groupby(level=0).mean()) in DETAILS
    runs = RUNS[RUNS.block == "forget"].groupby("arm")[["pass@1", "drift"]].mean()
    for arm, of in runs.iterrows():
        assert f"| {of['pass@1']:.3f} | {of.drift:.2f} | {ends[arm].mean():.2f} |" in DETAILS
    assert f"{BASES[BASES.family == 'forget']['base_pass@1'].mean():.3f} | | {at_base.mean():.2f} |" in DETAILS


@pytest.mark.parametrize("arm", ["A", "B"])
def test_differences_from_plain(arm, findings):
    by_family = less(arm, "plain")
    for family in FAMILIES:
        assert alone(by_family[family]) in DETAILS
        assert alone(by_family[family]) in findings
    assert alone(by_family.mean(axis=1)) in DETAILS
    for column in ("greedy", "pass@8"):
        other = less(arm, "plain", column)
        assert all(signed(value) in DETAILS for value in [*other.mean(), other.mean().mean()])


def test_bases_and_arms_in_all_three_outcomes():
    bases = BASES[BASES.base_seed.between(1, 5)].groupby("family")[["base_" + name for name in OUTCOMES]].mean()
    arms = CORE.groupby(["arm", "family"])[OUTCOMES].mean()
    rows = {"**base**": bases} | {arm: arms.loc[arm] for arm in ("plain", "control", "A")}
    for name, table in rows.items():
        cells = [", ".join(f"{value:.3f}" for value in table.loc[family]) for family in FAMILIES]
        assert f"| {name} | {' | '.join(cells)} |" in DETAILS
    mild = RUNS[RUNS.block == "mild"].groupby("arm").greedy.mean() - bases.loc["reverse_digits", "base_greedy"]
    assert f"(A by {-mild['A_lr7']:.3f}, the control by {-mild['control_lr7']:.3f})" in DETAILS


def test_all_cells_in_one_number():
    cells = CORE["pass@1"].unstack("arm")
    for arm in ("plain", "A", "B", "control"):
        middle = np.sort(cells[arm])[3:-3]  # of 15, a quarter at each end is three
        assert f"{middle.mean():.3f} for" in " ".join(DETAILS.split())
    above = {arm: int((cells[arm] > cells["plain"]).sum()) for arm in ("A", "B", "control")}
    told = f"A is above plain in {above['A']} of 15 cells, B in {above['B']}, the control in {above['control']}"
    assert told in " ".join(DETAILS.split())


def test_the_size_of_updates_and_the_study_s_own_cost():
    curves = CURVES[(CURVES.steps == 240) & CURVES.base_seed.between(1, 5)]
    sizes = curves.groupby(["arm", "family"]).update_norm.mean().unstack("arm")
    for arm in ("hard", "asym", "soft0.1", "step"):
        low, high = sorted((sizes[f"C_{arm}"] / sizes["A"] - 1) * 100, key=abs)[::2]
        assert f"| {low:+.0f} to {high:+.0f} % |".replace("-", "−") in DETAILS
    assert f"{len(FIRST)} runs, {FIRST.seconds.sum() / 3600:.1f} core-hours" in ONE_LINE
    added = FIRST.block.isin(["mild", "tuning_mild", "stress_rate", "long5", "events"])
    assert f"core-hours, by the first protocol, of which {added.sum()} belong to blocks that were added" in ONE_LINE
    later = curves[(curves.arm == "B") & (curves.kl_old > 0)].groupby("family").clip_region_mean.mean()
    assert "{:.2%}, {:.2%} and {:.2%}".format(*later).replace("%", " %") in ONE_LINE


def test_equivalence_and_power_are_those_of_the_code():
    """The registered interval of A − plain on sums, its p of equivalence, and the powers in the page."""
    (block,) = read_matrix(ROOT).selected(["core"], ["sums"], ["plain", "A"]).blocks
    (one,) = differences(block, read_tables(ROOT)).itertuples()
    value, low, high = one.contrast.estimate
    row = f"{signed(value)} [{signed(low)}, {signed(high)}] | {alone(less('A', 'plain')['sums'])}"
    assert one.verdict == "equivalent"
    assert f"{signed(value)} [{signed(low)}, {signed(high)}]" in ONE_LINE
    assert f"| {row} | {one.contrast.equivalence(0.02):.3f}: **equivalent** |" in DETAILS
    assert "0.047 to 0.079" in DETAILS
    assert f"{one.contrast.smallest(6):.3f}" == "0.047"
