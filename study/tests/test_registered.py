"""The second protocol's outcomes, tests and pictures, on curves whose answers are known."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from study.frontier import frontier
from study.matrix import RunKey, read_matrix
from study.plots import forest
from study.registered import (
    BESIDE,
    OUTCOMES,
    gold_at_equal,
    gold_differences,
    other_tasks,
    over_bases,
    paid_and_right,
    registered,
)
from study.reuse import reuse
from study.scores import points
from study.tables import POINTS, Tables, make_frame
from trl_prorl.errors import InputError


MATRIX = """
evaluation: {prompts: 4, samples: 8, drift_samples: 2}
blocks:
  gamed:
    families: [reverse_digits]
    pairs: [[1, 1], [2, 2], [3, 3], [1, 21]]
    steps: 60
    suffix: _x
    references: [plain]
    registered: {outcomes: [gold, fall], differences: [[control, plain], [B, control]]}
    arms:
      plain: {}
      control: {beta: 1.0}
      B: {beta_old: 1.0}
"""
STEPS = range(1, 61)
# Gold of the batches rises by 0.01 a step, plain's until step 30, from which on it falls. The control's KL grows half
# as fast; it is measured at steps 30 and 60.
CURVES = {
    "plain": {"gold": [0.01 * min(step, 60 - step) for step in STEPS], "drift": {30: 0.3, 60: 0.6}},
    "control": {"gold": [0.01 * step for step in STEPS], "drift": {30: 0.15, 60: 0.3}},
}
PAIRS = [(1, 1), (2, 2), (3, 3), (1, 21)]
GOLD = {"plain": (0.25, 0.3, 0.4, 0.35), "control": (0.5, 0.5, 0.7, 0.8)}


def key_of(arm, pair):
    return RunKey("reverse_digits", f"{arm}_x", *pair, 60)


@pytest.fixture(scope="module")
def tables(add):
    made = Tables()
    for arm, curve in CURVES.items():
        for pair, gold in zip(PAIRS, GOLD[arm], strict=True):
            drift = [curve["drift"].get(step) for step in STEPS]
            own = {"gold": gold, "pass@1": gold, "variant": arm}
            add(made, key_of(arm, pair), curve={"gold": curve["gold"], "drift": drift}, **own)
    return made


@pytest.mark.parametrize(
    ("name", "difference"),
    [
        ("gold", 0.25),
        # Means of 20 steps: plain's best is that of steps 21 to 40, 0.25, its last that of 41 to 60, 0.095.
        ("fall", -(0.25 - 0.095)),
        # The rewards are the same, and highest at the last step: 0.505 less 0.095.
        ("gold at equal proxy", 0.505 - 0.095),
        # 0.3 nats: at step 30 plain's mean of steps 11 to 30 is 0.205, at step 60 the control's 0.505.
        ("gold at equal KL", 0.505 - 0.205),
        # Held-out gold at the end, not that of the last batches, less plain's best mean, of steps 21 to 40.
        ("gold above the other's best", 0.5 - 0.25),
    ],
)
def test_an_outcome_by_hand(tables, name, difference):
    found = OUTCOMES[name](tables, key_of("control", (1, 1)), key_of("plain", (1, 1)))
    assert found == pytest.approx(difference)


def test_rounding_does_not_tell_when_a_level_is_reached(monkeypatch):
    ways = {"one": [0.3, 0.1 + 0.2], "other": [0.0, 0.1 + 0.2]}
    frames = {name: pd.DataFrame({"reward": rewards, "gold": [0.5, 0.25]}) for name, rewards in ways.items()}
    monkeypatch.setattr("study.registered.smoothed_curve", lambda tables, key: frames[key])
    assert gold_at_equal("reward")(None, "one", "other") == 0.25


def test_what_is_kept_of_other_tasks(study, tables):
    keys = [key_of(arm, (1, 1)) for arm in ("control", "plain")]
    golds = {"control": (0.9, 0.4, 0.2), "plain": (0.9, 0.1, 0.1)}
    rows = [
        make_frame([{"step": step, "task": task, "gold": gold / (1 if step else 100)}], POINTS, key)
        for key, arm in zip(keys, golds, strict=True)
        for step in (0, 60)
        for task, gold in zip(("reverse_digits", "sorting", "sums"), golds[arm], strict=True)
    ]
    with_points = Tables(tables.runs, tables.bases, tables.curves, tables.prompts, pd.concat(rows))
    assert OUTCOMES["kept"](with_points, *keys) == pytest.approx(0.3 - 0.1)
    # The lowest end is plain's 0.9, to which B's 0.95 of step 30 is nearer than its 1.0 of step 60; its base is none.
    rows += [
        make_frame([{"step": step, "task": task, "gold": gold}], POINTS, key_of("B", (1, 1)))
        for step, golds in ((0, (0.9, 0.9, 0.9)), (30, (0.95, 0.5, 0.3)), (60, (1.0, 0.1, 0.1)))
        for task, gold in zip(("reverse_digits", "sorting", "sums"), golds, strict=True)
    ]
    with_b = replace(with_points, points=pd.concat(rows))
    at_equal_gold = OUTCOMES["kept at equal gold"](with_b, key_of("B", (1, 1)), keys[1])
    assert at_equal_gold == pytest.approx(0.4 - 0.1)
    asked = MATRIX.replace("[[1, 1], [2, 2], [3, 3], [1, 21]]", "[[1, 1]]\n    others: [sorting@3, sums@3]")
    axes = frontier(read_matrix(study(asked)).blocks[0], with_points).axes[2]
    assert axes.get_xlabel() == "gold"
    assert axes.get_title() == "gold of other tasks"
    paths = [np.array(line.get_data()) for line in axes.lines]
    assert paths[0] == pytest.approx(np.array([[0.009, 0.9], [0.001, 0.1]]))
    assert paths[3] == pytest.approx(np.array([[0.9], [0.3]]))


def test_what_is_kept_at_equal_kl(tables):
    """
    KL on reversing: 0.2, then 0.4 with plain, and 0.3, then 0.25 with B; the lower of the highest is B's 0.3 of step
    30. Plain is there midway from 0.6 to 0.2. On the others' prompts the lower is plain's 0.1, a fifth of the way to
    B's 0.5.
    """
    courses = {
        "plain": ((0, 0.0, 0.0, 1.0), (30, 0.2, 0.05, 0.6), (60, 0.4, 0.1, 0.2)),
        "B": ((0, 0.0, 0.0, 1.0), (30, 0.3, 0.5, 0.5), (60, 0.25, 0.4, 0.1)),
    }
    keys = {arm: key_of(arm, (1, 1)) for arm in courses}
    rows = []
    for arm, course in courses.items():
        for step, own_kl, other_kl, gold in course:
            own = {"step": step, "task": "reverse_digits", "gold": 0.9, "kl_to_base": own_kl}
            others = [
                {"step": step, "task": task, "gold": gold + less, "kl_to_base": other_kl + less}
                for task, less in (("sorting", 0.01), ("sums", -0.01))
            ]
            rows.append(make_frame([own, *others], POINTS, keys[arm]))
    made = Tables(tables.runs, tables.bases, tables.curves, tables.prompts, pd.concat(rows))
    of_own = OUTCOMES["kept at equal KL"](made, keys["B"], keys["plain"])
    of_others = OUTCOMES["kept at equal KL on the other tasks"](made, keys["B"], keys["plain"])
    assert of_own == pytest.approx(0.5 - 0.4)
    assert of_others == pytest.approx(1.0 - 0.2 * 0.5 - 0.2)


def test_a_base_that_can_do_no_other_task_is_judged_by_real_text(study, tables):
    key = key_of("plain", (1, 1))
    rows = [
        {"step": step, "task": task, "gold": gold, "text_perplexity": text}
        for step, gold, text in ((0, 0.2, 9.0), (60, 0.5, 11.0))
        for task, gold, text in (("instructions", gold, text), ("sums", 0.0, None))
    ]
    tables = Tables(tables.runs, tables.bases, tables.curves, tables.prompts, make_frame(rows, POINTS, key))
    found = other_tasks(tables, key)
    assert found.to_dict("list") == {"gold": [0.2, 0.5], "perplexity of real text": [9.0, 11.0]}
    table = points(read_matrix(study(MATRIX)).blocks[0], tables).set_index(["task", "arm"])
    assert table["gold"].to_dict() == {
        **{("instructions", "base"): 0.2, ("instructions", "plain_x"): 0.5},
        **dict.fromkeys([("sums", "base"), ("sums", "plain_x")], 0.0),
    }
    assert table["text_perplexity"].dropna().tolist() == [9.0, 11.0]


def test_seeds_of_a_base_are_averaged_before_the_t_test():
    found = over_bases(pd.Series({(1, 1): 0.25, (2, 2): 0.2, (3, 3): 0.3, (1, 21): 0.45}))
    test = stats.ttest_1samp([0.35, 0.2, 0.3], 0)
    assert found.estimate == pytest.approx((0.85 / 3, *test.confidence_interval()))
    assert found.p_value == pytest.approx(test.pvalue)


def test_registered_differences_are_adjusted_and_others_are_not(study, tables):
    matrix = read_matrix(study(MATRIX))
    (alone,) = matrix.selected(arms=["plain_x", "B_x"]).blocks
    assert registered(alone, tables) == []  # neither the control nor a run of B
    (block,) = matrix.blocks
    (row,) = registered(block, tables)
    assert (row["arm"], row["less"], row["pairs"]) == ("control_x", "plain_x", 4)
    assert list(row["contrasts"]) == ["gold", "fall", *BESIDE]
    # The falls differ by the same on every base: p is 0. Of two tests the other one is the last, and stays.
    p_value = row["contrasts"]["gold"].p_value
    assert row["adjusted"] == {"gold": pytest.approx(p_value), "fall": pytest.approx(0, abs=1e-9)}
    assert p_value > 0.01
    figure = frontier(block, tables)
    gold = {line.get_label(): line.get_ydata() for line in figure.axes[1].lines}
    assert gold["plain_x, n = 4"][-1] == pytest.approx(0.095)
    assert gold["control_x, n = 4"][-1] == pytest.approx(0.505)
    assert "different objective" in figure.get_supxlabel()
    assert frontier(block, Tables()) is None


def test_the_share_of_right_answers_among_paid_ones(study, add):
    """Of the first batch; the seeds of a base are averaged first. A reward of parts has no such share."""
    made = Tables()
    asked = MATRIX.replace("[reverse_digits]", "[gamed_reverse, gamed_sorting]").replace("suffix: _x", 'suffix: ""')
    firsts = {(1, 1): (0.5, 0.2), (1, 21): (0.5, 0.3), (2, 2): (0.25, 0.25)}  # reward, gold
    for family in ("gamed_reverse", "gamed_sorting"):
        for pair, (reward, gold) in firsts.items():
            curve = {"reward": [reward] + [1.0] * 59, "gold": [gold] + [0.0] * 59}
            add(made, RunKey(family, "control", *pair, 60), curve=curve, variant="control", gold=0.1 * pair[0])
    (block,) = read_matrix(study(asked, ("gamed_reverse", "gamed_sorting"))).blocks
    (row,) = paid_and_right(block, made)
    assert row == {"family": "gamed_reverse", "share": pytest.approx(0.75), "control": pytest.approx(0.15)}


REUSE = """
evaluation: {prompts: 4, samples: 8, drift_samples: 2}
blocks:
"""
for uses in (2, 8):
    REUSE += f"""
  reuse{uses}:
    families: [reverse_digits]
    pairs: [[1, 1], [2, 2]]
    steps: {uses}
    suffix: _mu{uses}
    keys: {{num_iterations: {uses}}}
    arms: {{plain: {{}}, plain_noclip: {{loss_mode: unclipped}}, B: {{beta_old: 1.0}}}}
"""


def test_the_forest_shows_the_interval_that_decides(study, tables):
    """Plain's pairs have 0.25, 0.2, 0.3 less on bases 1 to 3, and 0.45 with a second seed of base 1."""
    (block,) = read_matrix(study(MATRIX)).blocks
    (panel,) = forest(block, tables, gold_differences(block, tables)).axes
    point, interval = panel.lines[1:]
    half = stats.t.ppf(0.975, 2) * stats.sem([0.35, 0.2, 0.3])
    assert point.get_xdata() == pytest.approx([0.85 / 3])
    assert point.get_markerfacecolor() == point.get_color()
    assert list(interval.get_xdata()) == pytest.approx([0.85 / 3 - half, 0.85 / 3 + half])


def test_the_picture_of_reuse_has_a_line_for_each_arm_and_a_mark_for_each_pair(study, add):
    blocks = read_matrix(study(REUSE)).blocks
    made = Tables()
    assert reuse(blocks, made) is None
    golds = {("plain", 2): (0.2, 0.4), ("plain", 8): (0.6, 0.7)}
    golds |= {("plain_noclip", 2): (0.3, 0.3), ("plain_noclip", 8): (0.1, 0.0)}
    for (arm, uses), values in golds.items():
        for seed, gold in enumerate(values, 1):
            key = RunKey("reverse_digits", f"{arm}_mu{uses}", seed, seed, uses)
            add(made, key, variant="plain", **{"gold": gold, "base_pass@1": 0.25})
    assert reuse(blocks[:1], made) is None  # nothing to see with one number of uses
    axes = reuse(blocks, made).axes[0]
    base, *lines = ((line.get_linestyle(), *map(list, line.get_data())) for line in axes.lines)
    assert base[2] == [0.25, 0.25]
    means = {"-": [0.3, 0.65], "--": [0.3, 0.05]}
    assert [line[0] for line in lines] == ["-", "None", "--", "None"]
    for style, uses, gold in lines[::2]:
        assert uses == [2, 8]
        assert gold == pytest.approx(means[style])
    assert sorted(lines[1][2]) == [0.2, 0.4, 0.6, 0.7]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["base", "plain", "plain_noclip"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("[gold, fall]", "[gold, rise]"), "registered.outcomes.1.*'rise'.*gold, fall, kept or kept at equal gold"),
        (("[control, plain]", "[A, plain]"), "registered=.'A', 'plain'.*arms of the block"),
        (("differences:", "difference:"), "difference"),
    ],
)
def test_what_cannot_be_registered(study, change, said):
    with pytest.raises(InputError, match=said):
        read_matrix(study(MATRIX.replace(*change)))
