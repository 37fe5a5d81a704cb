"""study/README.md, in points of 100, says what the tables say; it is short, and every score is sampled or greedy."""

import json
import math
import re

import numpy as np
import pandas as pd
from doc_pages import LINK, ROOT, anchors
from scipy import stats

from study.matrix import read_matrix
from trl_prorl.eval.analysis.resets import median_reconvergence, reset_responses


STUDY = ROOT / "study"
FOLDER = STUDY / "tables"
PAGE = (STUDY / "README.md").read_text()
ONE_LINE = " ".join(PAGE.split())
SECTIONS = PAGE.split("\n## ")
RUNS = pd.read_csv(FOLDER / "runs.csv")
BASES = pd.read_csv(FOLDER / "bases.csv")
CURVES = pd.read_csv(FOLDER / "curves.csv.gz", low_memory=False)
DETAILS = (STUDY / "pages" / "details.md").read_text()
STOPS = pd.read_csv(FOLDER / "stops.csv")
POINTS = pd.read_csv(FOLDER / "points.csv.gz")
FAMILIES = ["reverse_digits", "sorting", "sums"]
KEYS = ["family", "arm", "base_seed", "seed", "steps"]
SIGNED = r"[+−]\d+\.\d"


def signed(value, scale=100):
    return f"{scale * value:+.1f}".replace("-", "−")


def ends_of_interval(values):
    """The 95 % t-interval of values, one for each base."""
    return stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))


def interval(values):
    """Mean and 95 % t-interval of values, one for each base, in points."""
    low, high = ends_of_interval(values)
    return f"{signed(np.mean(values))} [{signed(low)}, {signed(high)}]"


def whole(*values):
    """Scores as a cell of a table has them."""
    return ", ".join(f"{100 * value:.0f}" for value in values)


def holm(p_values):
    """Adjusted p: the k-th smallest of n by n − k + 1, none below a smaller one's."""
    order = np.argsort(p_values)
    adjusted = np.empty(len(order))
    adjusted[order] = np.maximum.accumulate([p_values[i] * (len(order) - k) for k, i in enumerate(order)])
    return np.minimum(adjusted, 1)


def of_block(block):
    """Outcomes of a block's runs by arm and base, the seeds of a base averaged."""
    outcomes = ["pass@1", "greedy", "drift", "proxy"]
    return RUNS[RUNS.block == block].groupby(["arm", "base_seed"])[outcomes].mean()


def base_scores(family):
    """Mean of the bases, sampled and greedy."""
    rows = BASES[(BASES.family == family) & BASES.base_seed.between(1, 5)]
    return rows["base_pass@1"].mean(), rows.base_greedy.mean()


def running_text(section):
    """A section without its tables and pictures."""
    return "\n".join(line for line in section.split("\n") if not line.startswith(("|", "![")))


def test_every_question_has_a_picture():
    assert "![" in SECTIONS[0]
    names = ("A reward that can be gamed", "A pretrained model")
    asked = [one for one in SECTIONS if one.partition("\n")[0].endswith("?") or one.startswith(names)]
    without = [one.partition("\n")[0] for one in asked[1:] if not re.search(r"!\[[^\]]*\]\(pictures/", one)]
    assert without == ["How sure is this?"]
    assert len(asked) == 1 + 13
    assert "(pictures/core_resets.png)" in PAGE
    assert (STUDY / "pictures" / "core_resets.png").is_file()


def test_words_of_the_protocols_stay_there():
    """Letters of hypotheses and predictions, and names that the page does not explain."""
    assert re.findall(r"\bH[0-2]\b|\bP[1-5]\b|\bgold\b|\bproxy\b|pass@8|\bpairs\b", running_text(PAGE)) == []
    words = "Plain control A C B base reset sampled greedy Registered exploratory".split()
    for word in (*words, "Told apart"):
        assert f"**{word}**" in SECTIONS[0]
    assert "in points of 100: **sampled** at T = 1 (SmolLM2 at T = 0.7), or **greedy**." in ONE_LINE
    links = {link.partition("#")[0] for link in LINK.findall(PAGE)}
    assert {"pages/details.md", "pages/smollm2.md", "protocols/protocol.md", "protocols/protocol2.md"} <= links
    assert "`make study-figures` writes every table to `study/pages/findings.md`" in ONE_LINE
    details = anchors((STUDY / "pages" / "details.md").read_text())
    assert {link.partition("#")[2] for link in LINK.findall(PAGE) if "details.md#" in link} <= details


def test_every_interval_and_every_signed_number_is_in_the_findings(findings):
    """Points of the page are hundredths there. The pretrained model's, over prompts, have a test of their own."""
    known = findings.replace("−", "-")

    def of_findings(number):
        return f"{float(number.replace('−', '-')) / 100:+.3f}"

    page = "".join(section for section in SECTIONS if not section.startswith("A pretrained model"))
    varied = of_block("clamp2")["pass@1"].unstack("arm")
    greedy = of_block("gamed")["greedy"].unstack("arm")
    for one, other, table in (
        ("A_beta1", "A_K200_beta1", varied),
        ("A_beta10", "A_K200_beta10", varied),
        ("A_K300", "control", greedy),
        ("A", "control", greedy),
    ):
        difference = table[one] - table[other]
        low, high = ends_of_interval(difference)
        known += f" {difference.mean():+.3f} [{low:+.3f}, {high:+.3f}]"
    triples = re.findall(rf"({SIGNED}) \[({SIGNED}), ({SIGNED})\]", page)
    assert len(triples) >= 25
    for triple in triples:
        value, low, high = map(of_findings, triple)
        turned = str.maketrans("+-", "-+")  # the findings may have the difference the other way round
        told = (f"{value} [{low}, {high}]", f"{value} [{high}, {low}]".translate(turned))
        assert any(one in known for one in told), triple
    for number in re.findall(SIGNED, page):
        assert of_findings(number)[1:] in known, number


KL_TARGETS = {"gamed_sorting": 0.14, "gamed_reverse": 0.3}
RIVALS = {
    "plain at a tenth of the rate": "plain_lr_tenth",
    "plain, LoRA of rank 4": "plain_rank4",
    "rejection sampling": "rejection_sampling",
}


def rivals(family, outcome="pass@1"):
    """A column for each arm of the third protocol's first block, by base; the control by that name."""
    runs = RUNS[RUNS.block.isin(["rivals", "rivals2"]) & (RUNS.family == family)]
    table = runs.set_index(["base_seed", "arm"])[outcome].unstack("arm")
    return table.rename(columns={f"control_target{KL_TARGETS[family]}": "control"})


def best_stop(family, outcome):
    """Plain stopped by the rule with the highest mean: by validation, by its KL, or before the guard fired."""
    ends = rivals(family, "pass@1" if outcome == "gold" else outcome)["plain_watched"]
    of_rules = {"validation": {}, "kl": {}, "guard": {}}
    for base, rows in STOPS[(STOPS.family == family) & (STOPS.arm == "plain_watched")].groupby("base_seed"):
        at_base = STOPS[(STOPS.family == family) & (STOPS.arm == "base") & (STOPS.base_seed == base)]
        scores = pd.Series([*at_base[outcome], *rows[outcome]], [0, *rows.step])
        scores[600] = ends[base]
        chosen = rows.sort_values("step")
        validation = chosen.step[chosen.validation_gold.idxmax()]
        far = chosen.step[chosen.kl_to_base >= KL_TARGETS[family]]
        fired = chosen.guard_gap.iloc[0]
        before = [0, *chosen.step[chosen.step < fired]] if fired == fired else [600]
        steps = (validation, min(far, default=600), max(before))
        for rule, step in zip(of_rules, steps, strict=True):
            of_rules[rule][base] = scores[step]
    return max((pd.Series(of) for of in of_rules.values()), key=lambda of: of.mean())


def best_of_8(family):
    """The exact score of the best paid of 8 samples, by base."""
    rows = STOPS[(STOPS.family == family) & (STOPS.arm == "base")].dropna(subset="best_of_8")
    return rows.set_index("base_seed").best_of_8


TASKS_OF_RIVALS = ("gamed_sorting", "gamed_reverse")
STOPPED = "plain, stopped"
BEST_OF_8 = "best of 8 of the base, by reward"


def rival_scores(family):
    """Sampled and greedy scores of each rival, by base; greedy is `None` where there is none."""
    sampled = rivals(family)
    greedy = rivals(family, "greedy")
    columns = {STOPPED: (best_stop(family, "gold"), best_stop(family, "greedy"))}
    for name, arm in RIVALS.items():
        columns[name] = (sampled[arm], greedy[arm])
    columns[BEST_OF_8] = (best_of_8(family).loc[1:5], None)
    return columns


def test_something_simpler():
    """Five registered differences of sampled scores a task, with p after Holm over them; greedy scores beside them."""
    rows = {name: [] for name in ("**base**", "plain", "control, `kl_target`", STOPPED, *RIVALS, BEST_OF_8)}
    stopped = []
    stopped_greedy = []
    fine_tuned = ([], [])  # sampled, greedy
    for family in TASKS_OF_RIVALS:
        sampled = rivals(family)
        greedy = rivals(family, "greedy")
        rows["**base**"] += [whole(*base_scores(family)), ""]
        for name, arm in {"plain": "plain_watched", "control, `kl_target`": "control"}.items():
            rows[name] += [whole(sampled[arm].mean(), greedy[arm].mean()), ""]
        columns = rival_scores(family)
        less = {name: sampled["control"] - of_sampled for name, (of_sampled, _) in columns.items()}
        assert {len(of) for of in less.values()} == {5}
        adjusted = holm([stats.ttest_1samp(of, 0).pvalue for of in less.values()])
        for (name, both), p in zip(columns.items(), adjusted, strict=True):
            means = [of.mean() for of in both if of is not None]
            rows[name] += [whole(*means), f"{interval(less[name])}, {p:.3f}"]
        not_told_apart = [name for name, p in zip(columns, adjusted, strict=True) if p > 0.05]
        level_on_reversing = [] if family == "gamed_sorting" else ["rejection sampling"]
        assert not_told_apart == [*level_on_reversing, BEST_OF_8]
        stopped.append(less[STOPPED].mean())
        for found, scores in zip(fine_tuned, (sampled, greedy), strict=True):
            found.append((scores["control"] - scores["rejection_sampling"]).mean())
        stopped_greedy.append((greedy["control"] - columns[STOPPED][1]).mean())
    page = " ".join(PAGE.split())
    for name, cells in rows.items():
        assert " ".join(f"| {name} | {' | '.join(cells)} |".replace("|  |", "| |").split()) in page
    told = f"[{', '.join(map(signed, stopped))}](#does-something-simpler-do-as-well) sampled"
    told += f", {', '.join(map(signed, stopped_greedy))} greedy"
    assert f"control's end less plain's best stop: {told}; " in PAGE
    tuned = [", ".join(map(signed, of)) for of in fine_tuned]
    assert f"; less fine-tuning {tuned[0]} sampled, {tuned[1]} greedy |" in PAGE
    front = " ".join((ROOT / "README.md").read_text().split())
    names = {
        "starting model": "**base**",
        "no KL": "plain",
        "no KL, stopped early by the best of three rules": STOPPED,
        "rejection sampling (fine-tuning on rewarded samples)": "rejection sampling",
        "best of 8 samples of the starting model, by reward": BEST_OF_8,
        "**fixed reference with a `kl_target`**": "control, `kl_target`",
    }
    for told, name in names.items():
        (sorting, _, reversing, _) = rows[name]
        both = [score for cell in (sorting, reversing) for score in (*cell.split(", "), "")[:2]]
        assert " ".join(f"| {told} | {' | '.join(both)} |".split()) in front
    base = BASES[BASES.family == "gamed_reverse"].set_index("base_seed").base_greedy.loc[1:5]
    greedy = interval(rivals("gamed_reverse", "greedy")["control"] - base)
    assert f"it is not significantly above the starting model on reversing: {greedy}." in front
    assert f"by {100 * min(stopped):.1f} points or more (registered)." in front


def test_what_was_predicted_of_the_rivals():
    """A stop costs at least 10 points, rejection sampling at most 5, and a small rate or rank something."""
    refuted = []
    highest = []
    for family in TASKS_OF_RIVALS:
        sampled = rivals(family)["control"]
        greedy = rivals(family, "greedy")["control"]
        columns = rival_scores(family)
        less = {name: ends_of_interval(sampled - of_sampled) for name, (of_sampled, _) in columns.items()}
        assert less[STOPPED][0] > 0.1
        assert less["plain at a tenth of the rate"][0] > 0
        assert less["plain, LoRA of rank 4"][0] > 0
        refuted.append(less["rejection sampling"][0] > 0.05)
        assert less[BEST_OF_8][0] < 0 < less[BEST_OF_8][1]  # not told apart
        highest.append(ends_of_interval(greedy - columns["rejection sampling"][1])[1])
    assert refuted == [True, False]
    assert highest[0] > 0 > highest[1]  # greedy, it is level on sorting, and higher on reversing


def test_the_guard_fires_in_time():
    """
    In every plain run, before the mean of 20 steps has lost 10 points. Under a KL as well: gold's mean lies 5 points
    below its highest so far, at a step at which the reward's is no lower than it was there.
    """
    watched = STOPS[STOPS.arm == "plain_watched"].groupby(KEYS).guard_gap.first()
    assert len(watched) == 10
    told = (
        "`guard_gap: 0.05` fired in all ten plain runs of [the rivals](../README.md#does-something-simpler-do-as-well)"
    )
    told += ", as predicted: before gold's mean of 20 steps had lost 0.1."
    assert told in " ".join(DETAILS.split())
    curves = CURVES.set_index([*KEYS, "step"])[["gold", "reward"]]
    for key, fired in watched.items():
        assert abs(first_firing(curves.loc[key]) - fired) <= 1  # a fall of 0.05 itself is a matter of rounding
        gold = curves.loc[key].gold.rolling(20).mean().loc[: int(fired)]
        assert gold.max() - gold.iloc[-1] < 0.1
        family, _, *rest = key
        under_kl = first_firing(curves.loc[(family, f"control_target{KL_TARGETS[family]}", *rest)])
        assert fired < under_kl < np.inf
    assert "Replayed, it fires in all ten control runs, too, if later (exploratory)." in " ".join(DETAILS.split())


def first_firing(curve, gap=0.05):
    """The first step at which gold's mean of 20 steps lies `gap` below its highest, and the reward's is no lower."""
    mean = curve.rolling(20).mean().dropna()
    for step, now in mean.iterrows():
        best = mean.loc[:step].gold.idxmax()
        if mean.gold[best] - now.gold > gap and now.reward >= mean.reward[best]:
            return step
    return np.inf


def test_a_reward_that_can_be_gamed():
    """Registered p: gold and fall of four differences, eight tests a task."""
    arms = {"plain": "plain", "control, β = 0.3": "control", "A, reset every 100 steps": "A_K100", "B": "B"}
    cells = {name: [] for name in ("**base**", *arms, "control, `kl_target` (exploratory)")}
    for block, family, target in (("gamed", "gamed_sorting", "0.14"), ("gamed2", "gamed_reverse", "0.3")):
        scores = of_block(block)
        seeds = RUNS[RUNS.block == block].seed.unique()
        curves = CURVES[(CURVES.family == family) & CURVES.base_seed.between(1, 5) & CURVES.seed.isin(seeds)]
        gold = curves.groupby(["arm", "base_seed", "seed"]).gold
        smooth = gold.rolling(20).mean().groupby(level=[0, 1, 2])
        falls = (smooth.max() - smooth.last()).groupby(level=[0, 1]).mean()
        pairs = [("control", "plain"), ("A_K100", "plain"), ("B", "plain"), ("A_K100", "control")]
        differences = [table[one] - table[other] for one, other in pairs for table in (scores["pass@1"], falls)]
        adjusted = holm([stats.ttest_1samp(of, 0).pvalue for of in differences])
        cells["**base**"] += [whole(*base_scores(family)), ""]
        for name, arm in arms.items():
            less = ""
            if arm != "plain":
                place = 2 * pairs.index((arm, "plain"))
                less = f"{interval(differences[place])}, {adjusted[place]:.3f}"
            means = scores.loc[arm].mean()
            cells[name] += [whole(means["pass@1"], means.greedy), less]
        means = scores.loc[f"control_target{target}"].mean()
        cells["control, `kl_target` (exploratory)"] += [whole(means["pass@1"], means.greedy), ""]
        plain = scores.loc["plain"]
        control = scores.loc["control"]
        assert (control["pass@1"] > plain["pass@1"]).all()  # on every base
        proxies = scores.proxy.groupby(level=0).mean()
        assert proxies.idxmin() == "control"
        assert plain.greedy.mean() < base_scores(family)[1]
        assert not stats.ttest_1samp(scores["pass@1"]["A_K100"] - control["pass@1"], 0).pvalue < 0.05
    for name, row in cells.items():
        assert " ".join(f"| {name} | {' | '.join(row)} |".replace("|  |", "| |").split()) in PAGE.replace("  ", " ")
    lower = [scores.greedy["control"] - scores.greedy["A_K100"] for scores in map(of_block, ("gamed", "gamed2"))]
    told = " and ".join(f"{100 * of.mean():.1f}" for of in lower)
    assert f"Greedy, it is {told} points lower (exploratory)." in ONE_LINE
    assert min(ends_of_interval(of)[0] for of in lower) > 0


def test_how_much_a_kl_keeps():
    """By the share of right among the paid samples of the test questions, a row for each strictness."""
    runs = RUNS[RUNS.block == "dose"]
    bases = STOPS[(STOPS.arm == "base") & STOPS.family.isin(runs.family)].set_index(["family", "base_seed"])
    shares = (bases.gold / bases.reward).groupby(level=0).mean().sort_values()
    own = whole(*base_scores("gamed_reverse"))
    assert f"| **base** | {own} | {own} | |" in PAGE
    lowest = runs[(runs.family == shares.index[0]) & (runs.arm == "control_target0.3")]
    assert (lowest["pass@1"] - lowest["base_pass@1"]).abs().max() < 0.01
    assert "At the lowest share the control did not train: it ends at its base's own score." in ONE_LINE
    away = {}
    slopes = {"control_target0.3": {}, "plain": {}}
    for family, share in shares.items():
        arms = runs[runs.family == family].set_index(["arm", "base_seed"])[["pass@1", "greedy"]]
        cells = []
        for arm in slopes:
            assert len(arms.loc[arm]) == 5
            mean = arms.loc[arm].mean()
            cells.append(whole(mean["pass@1"], mean.greedy))
        less = interval(arms["pass@1"]["control_target0.3"] - arms["pass@1"]["plain"])
        assert f"| {whole(share)} | {' | '.join(cells)} | {less} |" in PAGE
        away[family] = 100 * (arms["pass@1"]["control_target0.3"].mean() - (share - 0.05))
    _, *near, far = away.values()
    assert f"within {max(map(abs, near)):.1f} points of the predicted value, the share minus 5." in ONE_LINE
    told = (
        f"At the highest share it ends {-far:.1f} below the prediction, which is neither met nor refuted (registered)."
    )
    assert told in ONE_LINE
    for arm, of_bases in slopes.items():
        for base in range(1, 6):
            of_base = runs[(runs.arm == arm) & (runs.base_seed == base)].set_index("family")["pass@1"]
            share = (bases.gold / bases.reward).xs(base, level="base_seed")
            of_bases[base] = stats.linregress(share[of_base.index], of_base).slope
    held, flat = (
        stats.t.interval(0.95, 4, np.mean([*of.values()]), stats.sem([*of.values()])) for of in slopes.values()
    )
    assert held[1] < 0.8  # so the slope is not the predicted one,
    assert held[1] > 0.5  # and the interval is not below .5 as a whole
    assert flat[0] > 0.3  # which refutes that plain is flat


def test_what_to_do_when():
    """The table's differences, arm by arm."""
    core = RUNS[RUNS.block == "core"].set_index(["arm", "family", "base_seed"])["pass@1"]
    core = core.groupby(level=[0, 1]).mean().unstack("family")[FAMILIES]
    a_less_plain = ", ".join(map(signed, core.loc["A"] - core.loc["plain"]))
    cleared = ", ".join(map(signed, core.loc["C_hard"] - core.loc["A"]))
    gamed = of_block("gamed")["pass@1"]
    gamed2 = of_block("gamed2")["pass@1"]
    both = [{arm: of.loc[arm].mean() for arm in ("plain", "control", "B")} for of in (gamed, gamed2)]
    control = ", ".join(signed(of["control"] - of["plain"]) for of in both)
    b_less_plain = ", ".join(signed(of["B"] - of["plain"]) for of in both)
    rarely, often = (signed((gamed[arm] - gamed["control"]).mean()) for arm in ("A_K300", "A"))
    clamp = of_block("clamp")["pass@1"]
    freed = {arm: signed((clamp[arm] - clamp["control"]).mean()) for arm in ("plain", "A_K200")}
    modes = of_block("modes")["pass@1"]
    falling, step = (signed((modes[arm] - modes["A_lr10"]).mean()) for arm in ("A_linear_lr10", "C_step_lr10"))
    stress = RUNS[RUNS.block == "stress"].set_index(["arm", "family", "base_seed", "seed"])["pass@1"]
    healthy = RUNS[RUNS.block == "core"].set_index(["arm", "family", "base_seed", "seed"])["pass@1"]
    slower = (healthy["plain"] - stress["plain_lr10"]).dropna()
    assert len(slower) == 5
    lost = [
        signed((one["plain_noclip" + uses] - one["plain" + uses]).mean())
        for uses in ("_mu8", "_mu32")
        for one in [of_block(f"reuse{uses[3:]}")["pass@1"]]
    ]
    assert f"A less plain: [{a_less_plain}]" in PAGE
    assert f"control less plain: [{control}]" in PAGE
    greedy_scores = of_block("gamed")["greedy"]
    rarely_greedy, often_greedy = (
        signed((greedy_scores[arm] - greedy_scores["control"]).mean()) for arm in ("A_K300", "A")
    )
    told = f"less the control: [{rarely}](#a-reward-that-can-be-gamed) with one reset in 600 steps, {often} with 14"
    assert f"{told}, sampled; {rarely_greedy}, {often_greedy} greedy |" in PAGE
    varied = of_block("clamp2")["pass@1"]
    often = signed((varied["A_beta10"] - varied["control_beta10"]).mean())
    told = f"less the control at β = 10: plain [{freed['plain']}](#do-resets-free-a-clamped-policy)"
    assert f"{told}, A {freed['A_K200']} with a reset every 200 steps, {often} every 40 |" in PAGE
    assert f"B less plain, gamed: {b_less_plain} |" in PAGE
    assert f"plain: [{lost[0]} at 8 uses, {lost[1]} at 32]" in PAGE
    told = f"plain at a tenth of the rate less plain {signed(slower.mean())}; less A: a rate that falls to 0"
    assert f"{told} [{falling}](#does-adams-state-at-a-reset-matter), resets of Adam's step count {step} |" in PAGE
    fell = RUNS[(RUNS.block == "modes") & (RUNS.arm == "plain_linear_lr10")].collapsed
    assert f"plain with the falling rate collapsed in {fell.sum()} of {len(fell)};" in PAGE
    assert f"clearing less keeping: {cleared} |" in PAGE
    resets = RUNS[RUNS.block == "gamed"].groupby("arm").resets.mean()
    assert (resets["A_K300"], resets["A"]) == (1, 14)


def test_on_how_much_each_advice_rests():
    """Tasks and bases of the table's last column, row by row, and the lengths of the runs."""
    blocks = [("core",), ("gamed", "gamed2"), ("rivals", "rivals2"), ("gamed",), ("clamp",), ("gamed", "gamed2")]
    blocks += [("reuse8", "reuse32"), ("modes",), ("core",), ("forget",)]
    rows = [line for line in SECTIONS[1].split("\n") if line.startswith("|")][2:]
    for row, names in zip(rows, blocks, strict=True):
        runs = RUNS[RUNS.block.isin(names)]
        bases = runs.groupby(["family", "arm"]).base_seed.nunique().unique()
        assert len(bases) == 1
        tasks = runs.family.nunique()
        unit = "tasks" if tasks > 1 else "task"
        assert f"{tasks} {unit} × {bases[0]} bases" in row.split(" | ")[-1], row
    of_core, of_gamed, of_clamp = (RUNS[RUNS.block.str.match(name)].steps for name in ("core", "gamed", "clamp$"))
    assert of_core.nunique() == of_gamed.nunique() == of_clamp.nunique() == 1
    assert f"Three tasks, {of_core.iloc[0]} steps, five bases each." in ONE_LINE
    assert f"Longer numbers, an exact reward, {of_clamp.iloc[0]:,} steps." in ONE_LINE
    assert f"{RUNS.steps.max():,} steps at most, a fifth of that where the reward is gamed." in ONE_LINE
    assert of_gamed.iloc[0] * 5 == RUNS.steps.max()


def test_the_pretrained_model():
    """The registered score beside the later one; samples of seeds 2 to 4, at T = 0.7."""
    runs = RUNS[RUNS.block == "pretrained"].groupby("arm").mean(numeric_only=True)
    base = BASES.set_index(["family", "base_seed"]).loc["smollm2", 1]
    own = POINTS[(POINTS.family == "smollm2") & POINTS.seed.isin([2, 3, 4]) & (POINTS.task == "instructions")]
    text = own.set_index(["step", "arm"]).text_perplexity.groupby(level=[0, 1]).mean()
    at_base = own[own.step == 0].reward.mean()
    texts = pd.read_csv(FOLDER / "smollm2_texts.csv.gz", keep_default_na=False)
    demanded = texts.asked.str.extract('End with exactly these words: "(.*)"')[0]

    def words(text):
        return re.findall("[a-z]+", text.lower())

    def is_bare(text, asked):
        given = words(text)
        if len(given) <= 2:
            return True
        if not isinstance(asked, str):
            return False
        ends = " ".join(words(asked)) in " ".join(given) and len(given) <= len(words(asked)) + 1
        return ends or "End with exactly" in text

    bare = pd.Series([is_bare(*one) for one in zip(texts.completion, demanded, strict=True)], texts.index)
    texts["sense"] = texts.right * ~bare
    plain = texts[texts.arm == "plain"]
    told = f"of plain's {plain.right.sum()} right texts {(plain.right * bare).sum():.0f} are bare replies"
    assert told in ONE_LINE
    sense = texts.groupby(["arm", "prompt"]).sense.mean().unstack("arm")
    right = texts.groupby(["arm", "prompt"]).right.mean().unstack("arm")
    names = {"plain": "plain", "control": "control, β = 0.3", "A": "A, reset every 40 steps", "B": "B"}
    rows = [
        f"| **base** | {100 * at_base:.0f} | {100 * base['base_pass@1']:.1f}, {100 * base.base_greedy:.1f} "
        f"| {100 * sense.base.mean():.1f} | {own[own.step == 0].text_perplexity.mean():.1f} |"
    ]
    for arm, name in names.items():
        of = runs.loc[arm]
        rows.append(
            f"| {name} | {100 * of.proxy:.0f} | {100 * of['pass@1']:.1f}, {100 * of.greedy:.1f} "
            f"| {100 * sense[arm].mean():.1f} | {text[160, arm]:.1f} |"
        )
    for one, other in (("control", "plain"), ("A", "control")):
        registered, later = (interval(of[one] - of[other]) for of in (right, sense))
        rows.append(f"| {one} − {other} | | {registered}, sampled | {later} | |")
    assert [row for row in rows if row not in PAGE] == []


def stricter(texts):
    """Whether each text is right, has six words, and one that its prompt has not."""

    def words(text):
        return re.findall(r"\w+(?:'\w+)?", json.loads(text).lower().replace("’", "'"))

    found = []
    for text, asked, right in zip(texts.text, texts.asked, texts.right, strict=True):
        said = words(text)
        found.append(right == 1 and len(said) >= 6 and not set(said) <= set(words(asked)))
    return found


def test_the_pretrained_model_again():
    """The block `smollm2b`, registered: both scores, plain's stops by validation and by the KL of its own task."""
    texts = pd.read_csv(FOLDER / "texts.csv.gz", keep_default_na=False)
    texts = texts[(texts.family == "smollm2") & (texts.base_seed == 1)]
    texts = texts.assign(stricter=stricter(texts))
    of_test = texts[texts.split == "test"]
    scores = of_test.groupby(["arm", "seed", "step", "greedy"])[["right", "stricter"]].mean()
    steps = {"**base**": [("base", 0, 0)]}
    for arm, name in {"plain": "plain", "control_target0.066": "control, `kl_target`"}.items():
        steps[name] = [(arm, seed, 160) for seed in (5, 6, 7)]
    validation = texts[texts.split == "validation"].groupby(["seed", "step"]).stricter.mean()
    own = POINTS[(POINTS.family == "smollm2") & (POINTS.task == "instructions") & (POINTS.arm == "plain")]
    far = own[(own.kl_to_base >= 0.066) & own.seed.isin([5, 6, 7])].groupby("seed").step.min()
    best = {seed: validation[seed].idxmax() for seed in (5, 6, 7)}
    assert far.to_dict() == best == dict.fromkeys((5, 6, 7), 20)  # both rules stop at the first checkpoint
    steps["plain, stopped"] = [("plain", seed, 20) for seed in (5, 6, 7)]
    for name, runs in steps.items():
        registered, later = (
            [np.mean([scores.loc[(*run, greedy), column] for run in runs]) for greedy in (0, 1)]
            for column in ("right", "stricter")
        )
        cells = [", ".join(f"{100 * score:.1f}" for score in both) for both in (registered, later)]
        assert f"| {name} | {' | '.join(cells)} |" in PAGE
    ends = of_test[(of_test.greedy == 0) & (of_test.step == 160)]
    less = {}
    for column in ("right", "stricter"):
        of_arms = ends.groupby(["arm", "seed", "prompt"])[column].mean().unstack("arm")
        difference = of_arms["control_target0.066"] - of_arms["plain"]
        assert len(difference.dropna()) == 3 * 64
        less[column] = difference.groupby("prompt").mean()
        assert f"{interval(less[column])}" in ONE_LINE
    assert less["stricter"].mean() >= 0.08  # as was predicted
    assert "ended above plain**, by more than the 8 points that were predicted (registered, sampled)." in ONE_LINE
    front = " ".join((ROOT / "README.md").read_text().split())
    assert f"the KL ended {100 * less['stricter'].mean():.0f} points higher than none (registered)." in front
    seeds = of_test[of_test.greedy == 0].groupby(["arm", "step", "seed"])["stricter"].mean()
    control = seeds["control_target0.066", 160]
    over_seeds = interval(control - seeds["plain", 160]).partition(" ")[2]
    over_prompts = interval(less["stricter"]).partition(" ")[2]
    assert f"That interval is {over_prompts} over prompts, and {over_seeds} over three seeds." in front
    assert f"Over the three seeds the interval is {over_seeds}." in ONE_LINE
    stopped = interval(control - seeds["plain", 20])
    by_prompt = of_test[of_test.greedy == 0].groupby(["arm", "step", "prompt"])["stricter"].mean()
    stopped_by_prompt = interval(by_prompt["control_target0.066", 160] - by_prompt["plain", 20])
    unit = stopped.partition(" ")[2]
    assert f"minus that stop is {stopped_by_prompt} over prompts, and {unit} over seeds (exploratory)." in ONE_LINE
    assert f"Above an early stop it is {stopped.partition(' ')[0]}, over seeds {unit}." in front
    details = " ".join((STUDY / "pages" / "smollm2.md").read_text().split())
    for name, runs in list(steps.items())[1:]:
        sampled = [scores.loc[(*run, 0)] for run in runs]
        assert f"| {name} | {' | '.join(f'{of.right:.3f} ({of.stricter:.3f})' for of in sampled)} |" in details
    assert f"{interval(less['stricter'])} points of gold′** over prompts, and {interval(less['right'])}" in details


def test_what_is_lost_beside_the_task():
    """The block `forget2`: what arms have left of sorting and sums, and what the replayed KL keeps of plain's loss."""
    points = POINTS[(POINTS.family == "forget") & POINTS.seed.isin([71, 72]) & (POINTS.task != "reverse_digits")]
    others = points.groupby(["arm", "base_seed", "seed", "step"])[["gold", "kl_to_base"]].mean()
    ends = others.xs(600, level="step").groupby(level=[0, 1]).mean()
    at_base = others.gold.xs(0, level="step").groupby(level=[0, 1]).mean()["plain"]
    scores = of_block("forget2")
    rows = {
        "plain": "plain",
        "control_beta0.3": "control, β = 0.3",
        "control_beta1": "control, β = 1",
        "replayed_kl": "replayed KL",
    }
    lost = {arm: at_base - ends.gold[arm] for arm in rows}
    kl = ends.kl_to_base.groupby(level="arm").mean()
    acting = [arm for arm in rows if kl[arm] <= kl["plain"] / 2]
    assert acting == [*rows][1:]
    raw = [stats.ttest_1samp(ends.gold[arm] - ends.gold["plain"], 0).pvalue for arm in acting]
    adjusted = dict(zip(acting, holm(raw), strict=True))
    for arm, name in rows.items():
        of = scores.loc[arm].mean()
        less = "| |"
        if arm != "plain":
            less = f"| {interval(ends.gold[arm] - ends.gold['plain'])}, {adjusted[arm]:.3f} |"
        cells = f"{whole(of['pass@1'], of.greedy)} | {kl[arm]:.3f} | {whole(ends.gold[arm].mean())}"
        assert f"| {name} | {cells} {less}" in PAGE
    assert len(scores.loc["plain"]) == 3
    base = BASES[BASES.family == "forget"]
    cells = f"{whole(base['base_pass@1'].mean(), base.base_greedy.mean())} | | {whole(at_base.mean())} | |"
    assert f"| **base** | {cells}" in PAGE
    kept = (lost["plain"] - lost["replayed_kl"]) / lost["plain"]
    low, high = ends_of_interval(kept)
    assert high > 0.5  # so that the prediction, a half, is not refuted
    told = f"of what plain lost it kept {100 * kept.mean():.0f} % [{100 * low:.0f} %, {100 * high:.0f} %]"
    assert told in " ".join(DETAILS.split())
    told = f"**The replayed KL kept {100 * kept.mean():.0f} % [{100 * low:.0f}, {100 * high:.0f}] of what plain lost**"
    assert told in ONE_LINE
    kept_by_control = 1 - lost["control_beta0.3"] / lost["plain"]
    low, high = ends_of_interval(kept_by_control)
    told = f"control at β = 0.3 kept {100 * kept_by_control.mean():.0f} % [{100 * low:.0f}, {100 * high:.0f}]."
    assert told in ONE_LINE
    of_means = [1 - lost[arm].mean() / lost["plain"].mean() for arm in ("replayed_kl", "control_beta0.3")]
    for share in of_means:
        assert f"the ratio of means is {100 * share:.0f} %" in " ".join(DETAILS.split())


def test_what_arms_keep_at_equal_drift():
    """The block `forget`, whose KL did not act."""
    points = POINTS[(POINTS.family == "forget") & (POINTS.seed < 71)]
    keys = ["arm", "base_seed", "seed", "step"]
    others = points[points.task != "reverse_digits"].groupby(keys)[["gold", "kl_to_base"]].mean()
    own = points[points.task == "reverse_digits"].set_index(keys)
    drift = of_block("forget").drift.groupby(level=0).mean()
    assert abs(drift["control"] - drift["plain"]) < 0.005  # so that nothing was tested
    assert "An earlier block, whose KL hardly acted, [tested nothing]" in ONE_LINE

    def kept_at(path, level):
        kl = path.kl_to_base.to_numpy()
        after = int(np.flatnonzero(kl >= level - 1e-9)[0])
        return np.interp(level, kl[: after + 1], path.kept.to_numpy()[: after + 1])

    found = {}
    for name, kl in (("own", own.kl_to_base), ("others", others.kl_to_base)):
        both = pd.DataFrame({"kl_to_base": kl, "kept": others.gold}).sort_index()
        for arm in ("control", "A", "B", "A_base_anchor"):
            less = {}
            for pair in both.loc["plain"].index.droplevel("step").unique():
                paths = [both.loc[(one, *pair)] for one in (arm, "plain")]
                level = min(path.kl_to_base.max() for path in paths)
                less[pair] = kept_at(paths[0], level) - kept_at(paths[1], level)
            of_bases = pd.Series(less).groupby(level=0).mean()
            found[name, arm] = of_bases.mean()
    furthest = max(abs(less) for (name, _), less in found.items() if name == "own")
    told = (
        "predicts that the arms agree within 0.03 at equal drift, which is the KL on reversing's prompts: *undecided*,"
    )
    told += f" as the means lie up to {furthest:.3f} from plain's,"
    assert told in " ".join(DETAILS.split())


def test_an_anchor_where_the_reward_is_exact(findings):
    """The sampled intervals are the registered ones, which the findings have."""
    core = RUNS[RUNS.block == "core"].set_index(["arm", "family", "base_seed"])
    for arm in ("A", "B"):
        less = {
            of: (core.loc[arm, of] - core.loc["plain", of]).groupby("family").mean() for of in ("pass@1", "greedy")
        }
        sampled = re.search(rf"^\| {arm}, sampled \|(.*)\|$", PAGE, re.MULTILINE)[1]
        told = [cell.split(" [")[0].strip() for cell in sampled.split("|")]
        assert told == [signed(less["pass@1"][family]) for family in FAMILIES]
        greedy = " | ".join(signed(less["greedy"][family]) for family in FAMILIES)
        assert f"| {arm}, greedy (exploratory) | {greedy} |" in PAGE
    drift = core.drift.groupby(level=[0, 1]).mean()
    told = f"left A {drift['A', 'reverse_digits']:.2f} nats a token from the base, and plain"
    assert f"{told} {drift['plain', 'reverse_digits']:.2f}." in ONE_LINE
    later = CURVES[(CURVES.steps == 240) & (CURVES.arm == "B") & CURVES.base_seed.between(1, 5) & (CURVES.kl_old > 0)]
    assert (later.groupby("family").clip_region_mean.mean()[FAMILIES] < 0.01).all()
    assert "the clip touches less than 1 % of the second use's tokens" in ONE_LINE
    tested = "| H0: A and B against plain | reverse_digits | A_lr10 | plain_lr10 |"
    (row,) = (line for line in findings.split("\n") if line.startswith(tested))
    assert f"A − plain has p {row.split(' | ')[7]} after Holm" in DETAILS


def test_power_is_that_of_the_findings(findings):
    """The smallest differences that the core block's six tests of A and B against plain tell from none, after Holm."""
    rows = re.findall(
        r"^\| H0: A and B against plain \| \w+ \| [AB] \| plain \| 5 \| (.*) \|$", findings, re.MULTILINE
    )
    found = [float(cells.split(" | ")[5]) for cells in rows[:6]]
    least, most = (f"{100 * of:.1f}" for of in (min(found), max(found)))
    told = f"see a true difference of {least} to {most} points, sampled, four times in five."
    assert f"The tests of A and B [against plain](#is-an-anchor-needed) {told}" in ONE_LINE


def test_shares_of_a_s_score_are_those_of_the_findings(findings):
    shares = re.findall(r"\d+ % \[\d+ %, \d+ %\]", PAGE)
    assert len(shares) == 5
    assert [share for share in shares if share.replace(" %", "%") not in findings] == []


def test_the_cost_of_b_is_measured_once_and_quoted_everywhere():
    """Of the pretrained model's table in the log; the protocol's own, which is biased, stands in the details alone."""
    log = (ROOT / "docs" / "log.md").read_text()
    (table,) = re.findall(r"\*\*A pretrained model\*\*.*?\n\n(\|.*?)\n\n", log, re.DOTALL)
    speed = {arm: float(re.search(rf"\| {arm} packed .*\*\*([\d.]+)\*\*", table)[1]) for arm in "AB"}
    told = f"{speed['A'] / speed['B']:.2f} of A's time"
    for page in ("study/README.md", "docs/methods.md", "docs/performance.md"):
        assert told in " ".join((ROOT / page).read_text().split()), page
    biased = "91 % [86 %, 93 %]"
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("study/**/*.md"), *ROOT.glob("recipes/**/*.md")]
    quoted = [page.name for page in pages if biased in page.read_text() and page.name != "findings.md"]
    assert quoted == ["details.md"]


def test_b_against_the_clip():
    runs = pd.concat([of_block(f"reuse{uses}") for uses in (2, 8, 32)])
    means = runs.groupby(level=0).mean()
    for name, arm in {"plain": "plain", "control, β = 0.3": "control_beta0.3", "B, β_old = 1": "B_beta_old1"}.items():
        both = [(f"{arm}_mu{uses}", f"{arm}_noclip_mu{uses}") for uses in (2, 8, 32)]
        cells = [whole(*means["pass@1"][list(pair)]) for pair in both] + [whole(*means.greedy[list(both[-1])])]
        assert f"| {name} | {' | '.join(cells)} |" in PAGE
    named = {"plain without it": "plain_noclip", "B without it": "B_beta_old1_noclip", "B with it": "B_beta_old1"}
    of_32 = [runs["pass@1"][f"{arm}_mu32"] - runs["pass@1"]["plain_mu32"] for arm in named.values()]
    adjusted = holm([stats.ttest_1samp(less, 0).pvalue for less in of_32])
    for (name, arm), less, p in zip(named.items(), of_32, adjusted, strict=True):
        of_8 = runs["pass@1"][f"{arm}_mu8"] - runs["pass@1"]["plain_mu8"]
        assert f"| {name} | {interval(of_8)} | {interval(less)}, {p:.3f} |" in PAGE
    assert f"8 exploratory, 32 registered (p {adjusted[0]:.3f})" in PAGE
    for uses in (8, 32):  # worse by more than 0.1 by the mean, and less is not excluded
        lost = runs["pass@1"][f"plain_mu{uses}"] - runs["pass@1"][f"plain_noclip_mu{uses}"]
        low, _ = stats.t.interval(0.95, 2, lost.mean(), stats.sem(lost))
        assert low < 0.1 < lost.mean()
        better = [runs["pass@1"][f"{arm}_noclip_mu{uses}"].mean() for arm in ("B_beta_old1", "control_beta0.3")]
        assert min(better) > runs["pass@1"][f"plain_noclip_mu{uses}"].mean()


def test_a_clamped_policy():
    scores = of_block("clamp")
    held = scores["pass@1"].unstack("arm")
    pairs = [("A_K200", "control"), ("C_hard_K200", "control"), ("A_K200", "plain"), ("C_hard_K200", "A_K200")]
    adjusted = holm([stats.ttest_rel(held[one], held[other]).pvalue for one, other in pairs])
    names = {
        "plain": "plain",
        "control": "control",
        "A, reset every 200 steps": "A_K200",
        "C hard, Adam cleared as well": "C_hard_K200",
    }
    for name, arm in names.items():
        of = scores.loc[arm].mean()
        told = {"plain": "exploratory", "A_K200": f"{adjusted[0]:.3f}", "C_hard_K200": f"{adjusted[1]:.3f}"}
        less = "" if arm == "control" else f" {interval(held[arm] - held['control'])}, {told[arm]}"
        cells = f"{whole(of['pass@1'])} | {whole(of.greedy)} | {of.drift:.2f} |{less} |"
        assert f"| {name} | {cells}" in PAGE
    assert " | ".join(["| **base**", *map(whole, base_scores("reverse_level8"))]) + " | | |" in PAGE
    assert "by fewer than the predicted 10 points (five bases)" in ONE_LINE
    assert (held["A_K200"] - held["control"]).mean() < 0.1


def test_resets_by_the_coefficient_and_their_number():
    """What is given back is (A - control) / (plain - control) of means over bases; p after Holm over the six tests."""
    outcomes = of_block("clamp2")
    assert set(outcomes.groupby(level=0).size()) == {3}
    held = outcomes["pass@1"].unstack("arm")
    means = outcomes.groupby(level=0).mean()
    often = "A_beta{}"
    rarely = "A_K200_beta{}"
    pairs = [(arm.format(beta), f"control_beta{beta}") for beta in (1, 10) for arm in (often, rarely)]
    pairs += [(f"B_beta_old{beta}", "plain") for beta in (1, 10)]
    adjusted = holm([stats.ttest_rel(held[one], held[other]).pvalue for one, other in pairs])
    told = {
        one: f"{interval(held[one] - held[other])}, {p:.3f}" for (one, other), p in zip(pairs, adjusted, strict=True)
    }
    back = {}
    for beta in (1, 10):
        control = f"control_beta{beta}"
        b = f"B_beta_old{beta}"
        clamped = means["pass@1"][control]
        cells = {"control": (control, " | |")}
        for name, arm in {"A, reset every 200 steps": rarely, "A, reset every 40 steps": often}.items():
            arm = arm.format(beta)
            back[arm] = (means["pass@1"][arm] - clamped) / (means["pass@1"]["plain"] - clamped)
            cells[name] = (arm, f" {told[arm]} | {100 * back[arm]:.0f} % |")
        cells["B, β_old"] = (b, f" less plain {told[b]} | |")
        for name, (arm, rest) in cells.items():
            of = means.loc[arm]
            scores = f"{whole(of['pass@1'], of.greedy)} | {of.drift:.2f} |"
            assert f"| {beta} | {name} | {scores}{rest}" in PAGE, (beta, name)
    plain = means.loc["plain"]
    assert f"| | plain | {whole(plain['pass@1'], plain.greedy)} | {plain.drift:.2f} | | |" in PAGE
    assert back["A_beta10"] > back["A_K200_beta10"] and back["A_beta1"] > back["A_K200_beta1"]  # more resets
    assert back["A_beta1"] > back["A_beta10"] and back["A_K200_beta1"] > back["A_K200_beta10"]  # a weaker KL
    more = {beta: interval(held[often.format(beta)] - held[rarely.format(beta)]) for beta in (1, 10)}
    assert f"a reset every 40 steps minus one every 200 is {more[10]}." in ONE_LINE
    assert f"At β = 1 it is {more[1]}, no difference (exploratory)." in ONE_LINE
    assert min(back["A_beta1"], back["A_K200_beta1"], back["A_beta10"]) > 0.5 > back["A_K200_beta10"]
    _, high = ends_of_interval(held["B_beta_old10"] - held["plain"])
    assert high < -0.05
    low, high = ends_of_interval(held["B_beta_old1"] - held["plain"])
    assert -0.05 < low < high < 0.05
    collapsed = RUNS[(RUNS.block == "clamp2") & (RUNS.arm == "B_beta_old10")].collapsed
    assert "B, predicted within 5 points of plain, collapsed at β = 10." in ONE_LINE
    assert collapsed.all()


def test_the_demo_s_page_says_how_its_setting_fits_in():
    """Its own share from its table of expected scores; those of the study from the runs."""
    page = " ".join((ROOT / "recipes" / "tiny" / "README.md").read_text().split())
    expected = pd.read_csv(ROOT / "recipes" / "tiny" / "expected.csv").groupby("recipe")["pass@1"].mean()
    own = (expected["variantA"] - expected["control"]) / (expected["plain"] - expected["control"])
    assert f"with β = 1 and a reset every 40 steps, A gets back {100 * own:.0f} % of what plain gains" in page
    means = of_block("clamp2")["pass@1"].groupby(level=0).mean()
    same, least = (
        (means[arm] - means[control]) / (means.plain - means[control])
        for arm, control in (("A_beta1", "control_beta1"), ("A_K200_beta10", "control_beta10"))
    )
    assert f"the same two settings gave back {100 * same:.0f} %." in page
    assert f"A β of 10 with a reset every 200 steps gave back {100 * least:.0f} %" in page


def test_long_training_is_not_seen_to_widen_what_can_be_solved():
    """pass@k by hand, 1 - C(n - c, k) / C(n, k), means over questions and then over bases; intervals over bases."""
    counted = pd.read_csv(FOLDER / "passk.csv.gz")
    assert set(counted.n) == {256}
    assert set(counted.groupby(["arm", "base_seed"]).size()) == {128}
    scores = {}
    for k in (1, 16, 256):
        missed = [math.comb(256 - right, k) / math.comb(256, k) for right in counted.correct]
        scores[k] = (1 - pd.Series(missed)).groupby([counted.arm, counted.base_seed]).mean().unstack("arm")
    names = {"plain": "plain", "control, β = 10": "control_beta10", "A, reset every 200 steps": "A_K200_beta10"}
    names["B, β = 10"] = "B_beta_old10"
    for name, arm in {"**base**": "base", **names}.items():
        difference = scores[256][arm] - scores[256].base
        if arm == "base":
            less = ""
        elif arm == "control_beta10":
            assert (difference == 0).all()
            less = " 0 on each base"
        else:
            less = f" {interval(difference)}"
        cells = " | ".join(whole(scores[k][arm].mean()) for k in scores)
        assert f"| {name} | {cells} |{less} |" in PAGE
    assert abs(scores[1].plain.mean() - scores[16].base.mean()) < 0.005
    chances = counted.assign(chance=counted.correct / 256)
    chances["squared"] = counted.correct * (counted.correct - 1) / (256 * 255)
    of_bases = chances[chances.arm == "plain"].groupby("base_seed")[["chance", "squared"]].mean()
    # (1 - E rho)^2 + Var rho is 1 - 2 E rho + E rho^2.
    bounds = 1 - (1 - 2 * of_bases.chance + of_bases.squared) ** 8
    assert bounds.mean() > 0.97
    assert "plain's is near 100 from 16 samples on (exploratory)" in ONE_LINE


def slowing(share, arm="plain"):
    """
    Rates of the unsolved part of every long run of an arm, from the middle to the end by from the base to the middle,
    by means over so much of the run.
    """
    base = BASES.set_index(["family", "base_seed"])["base_pass@1"]
    ratios = []
    for family in ("reverse_digits", "sums", "reverse_level8"):
        long = CURVES[(CURVES.family == family) & (CURVES.arm == arm) & (CURVES.steps >= 1000)]
        for (base_seed, _, steps), curve in long.groupby(["base_seed", "seed", "steps"]):
            reward = curve.set_index("step").reward
            near = int(steps * share / 2)
            middle = reward.loc[steps / 2 - near + 1 : steps / 2 + near].mean()
            end = reward.loc[steps - 2 * near + 1 :].mean()
            unsolved = np.log(1 - np.array([base[family, base_seed], middle, end]))
            ratios.append((unsolved[1] - unsolved[2]) / (steps / 2 - near) * (steps / 2) / (unsolved[0] - unsolved[1]))
    return ratios


def test_no_long_run_without_a_kl_rises_at_one_rate():
    ratios = slowing(1 / 10)
    assert "the unsolved part shrank at most a third as fast as in the first." in ONE_LINE
    often_used = ", ".join(f"{ratio:.2f}" for ratio in slowing(1 / 10, "plain_mu32")).replace("-", "−")
    assert f"32 uses the ratio is {' and '.join(often_used.rsplit(', ', 1))} (exploratory" in ONE_LINE
    details = " ".join(DETAILS.split())
    assert "In 16 runs of plain with two uses of a batch, of 1,000 steps or more" in details
    assert "by means over a tenth of the run (exploratory, defined after the data; shorter" in details
    assert len(ratios) == 16
    assert max(ratios) < 1 / 3
    noisier = max(max(slowing(2 / parts)) for parts in (40, 60, 80, 100))
    assert f"shorter means are noisier, and reach {100 * noisier:.0f} %" in details


def test_what_happens_at_a_reset():
    """Reconvergence by arm, block by block and family by family; the control at A's resets; the first update."""
    named = {}
    events = CURVES[CURVES.event.notna()].groupby(KEYS).step.apply(list)
    curves = dict(tuple(CURVES[CURVES.set_index(KEYS).index.isin(events.index)].groupby(KEYS)))
    for key, steps in events.items():
        curve = curves[key]
        done = [step - 1 for step in steps]
        named[key] = reset_responses(curve.step.to_numpy(), curve.reward.to_numpy(), done)
    medians = []
    counts = []
    for block in read_matrix(ROOT).blocks:
        if block.tunes:
            continue
        cells = {}
        for run in block.runs:
            cells.setdefault(run.key[:2], []).extend(named.get(tuple(run.key), []))
        for responses in filter(None, cells.values()):
            medians.append(median_reconvergence(responses))
            counts.append(len(responses))
    soon = sum(median <= 3 for median in medians)
    told = f"after three steps or fewer (median) in {soon} of {len(medians)} arms, tuning left out."
    assert told in ONE_LINE
    assert [count for count, median in zip(counts, medians, strict=True) if median > 3] == [1]
    core = CURVES[(CURVES.steps == 240) & (CURVES.base_seed == CURVES.seed) & CURVES.base_seed.between(1, 5)]
    first = core[(core.step % 40 == 1) & (core.step > 1)].groupby(["arm", "family"]).update_norm.mean()
    ratios = first["C_hard"] / first["A"]
    assert ratios.between(2, 3).all()
    control = core[core.arm == "control"].groupby(["family", "base_seed"])
    found = [
        one
        for _, curve in control
        for one in reset_responses(curve.step.to_numpy(), curve.reward.to_numpy(), [40, 80, 120, 160, 200])
    ]
    assert median_reconvergence(found) <= 3
    assert "The control's is, too, counted from A's resets (exploratory; training rewards, sampled)" in ONE_LINE
    after = {"A": [], "control": []}  # gradient norm of three steps by that of the ten before, on sums
    for (arm, _), curve in core[core.family == "sums"].groupby(["arm", "base_seed"]):
        if arm in after:
            norm = curve.set_index("step").grad_norm.loc
            ratios = [norm[step + 1 : step + 3].mean() / norm[step - 9 : step].mean() for step in range(40, 240, 40)]
            after[arm].append(np.mean(ratios))
    assert np.mean(after["A"]) < 0.86 and max(after["A"]) < 1 < np.mean(after["control"])
    assert abs(1 - np.mean(after["A"]) - 1 / 6) < 0.02
    assert "but on sums A's norm falls by a sixth (exploratory)." in ONE_LINE


def test_adams_state_where_training_breaks():
    scores = of_block("modes")
    held = scores["pass@1"].unstack("arm")
    names = {
        "C soft, m and v × 0.1": "C_soft0.1_lr10",
        "C hard, all cleared": "C_hard_lr10",
        "C asym, m cleared": "C_asym_lr10",
        "C step, step count cleared": "C_step_lr10",
    }
    adjusted = holm([stats.ttest_rel(held[arm], held["A_lr10"]).pvalue for arm in names.values()])
    collapsed = RUNS[RUNS.block == "modes"].groupby("arm").collapsed.sum()
    sampled, greedy = map(whole, base_scores("reverse_digits"))
    assert f"| **base** | {sampled} | | {greedy} | |" in PAGE
    told = {}
    for (name, arm), p in zip(names.items(), adjusted, strict=True):
        told[name] = f"{interval(held[arm] - held['A_lr10'])}, {p:.3f}"
    rows = {"A": "A_lr10", **names, "A, rate falls to 0 (exploratory)": "A_linear_lr10"}
    told["A, rate falls to 0 (exploratory)"] = interval(held["A_linear_lr10"] - held["A_lr10"])
    for name, arm in rows.items():
        of = scores.loc[arm].mean()
        less = f" {told[name]}" if name in told else ""
        assert f"| {name} | {whole(of['pass@1'])} |{less} | {whole(of.greedy)} | {collapsed[arm]} of 5 |" in PAGE


def test_how_much_was_run():
    protocols = RUNS.block.map({block.name: block.protocol for block in read_matrix(ROOT).blocks})
    runs = protocols.value_counts()
    told = f"and blocks added to it have {runs['first']} runs, the [second](protocols/protocol2.md)"
    assert f"{told} {runs['second']}. The [third](protocols/protocol3.md) has {runs['third']}." in ONE_LINE
