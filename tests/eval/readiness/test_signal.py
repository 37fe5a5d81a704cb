"""Findings of samples, from numbers worked out by hand."""

import math

import pytest

from eval.readiness.finding import LOOK, STOP, Finding, exit_code
from eval.readiness.signal import FULL_REWARD, Rollouts, enough, expected_silent, signal_findings, varies


def rollouts(correct, rewards=None, cut=None, answered=None, size=4, parts=None, source="verify"):
    n = len(correct)
    return Rollouts(
        size,
        [float(one) for one in correct] if rewards is None else rewards,
        [bool(one) for one in correct],
        answered,
        [False] * n if cut is None else cut,
        [5] * n,
        [f"text {place}" for place in range(n)],
        parts or [("t", 1)] * (n // size),
        0.02 * n,
        source,
    )


def of(found, what, tells=True, most=12, gold=8):
    (finding,) = [one for one in signal_findings(found, most, gold, tells) if one.what.startswith(what)]
    return finding


def test_expected_shares_by_hand():
    assert expected_silent(0.18, 2) == pytest.approx(0.0324 + 0.6724)
    assert expected_silent(0.5, 8) == pytest.approx(2 / 256)
    assert expected_silent(0.0, 8) == expected_silent(1.0, 8) == 1.0


def test_the_group_that_is_enough():
    """0.18: 0.453 of 4, 0.204 of 8; 0.01: 0.53 of 64."""
    assert enough(0.18) == 8 and enough(0.5) == 4 and enough(0.01) is None


def test_two_completions_at_a_pass_rate_of_18_percent():
    """9 of 50 right: 41 prompts silent, 9 mixed."""
    found = rollouts([1, 0] * 9 + [0, 0] * 16, size=2)  # p = 9/50
    silent = of(found, "groups without signal")
    assert silent.number == "64 % of 25, 70 % at G = 2" and silent.level == LOOK
    assert silent.change == "num_generations: 8 leaves 20 % silent at this pass rate"
    assert exit_code([silent]) == 0


def test_pass_rate_has_its_interval_by_task_and_level():
    found = rollouts([1, 1, 1, 0] * 10 + [0, 0, 0, 1] * 10, parts=[("a", 1)] * 10 + [("b", 2)] * 10)
    whole = of(found, "base pass rate (verify)")
    low, high = whole.values["interval"]
    assert whole.values["pass_rate"] == 0.5 and 0.38 < low < 0.5 < high < 0.62
    assert of(found, "base pass rate of a, level 1").number == "0.75 [n/a], 10 prompts"
    assert of(found, "base pass rate of b, level 2").values["pass_rate"] == 0.25


def test_a_base_at_zero_and_a_wrong_reward_are_told_apart():
    found = rollouts([0] * 80)
    weak, wrong = of(found, "base pass rate"), of(found, "base pass rate", tells=False)
    assert "gold answers get their reward, so the base does not solve it" in weak.change
    assert "reward does not tell right from wrong" in wrong.change and "base does not solve" not in wrong.change
    weak, wrong = of(found, "groups without"), of(found, "groups without", tells=False)
    assert weak.level == wrong.level == STOP
    assert "no answer is right" in weak.change and "mend the reward function" in wrong.change
    unknown = of(found, "base pass rate", tells=None)
    assert unknown.change.startswith("the base does not solve it")


def test_a_base_at_zero_whose_rewards_vary_can_learn():
    found = rollouts([0] * 8, rewards=[0.1, 0.2, 0.1, 0.1, 0.3, 0.1, 0.2, 0.1])
    assert exit_code(signal_findings(found, 12, 8, True)) == 0 and of(found, "base pass rate").level == LOOK


def test_a_perfect_base_teaches_nothing():
    found = rollouts([1] * 80)
    assert of(found, "groups without").change.startswith("take a harder task_level")
    assert "nearly perfect" in of(found, "base pass rate").change and exit_code([of(found, "groups without")]) == 1


def test_right_and_wrong_at_one_reward():
    found = rollouts([1, 0, 0, 1] * 5, rewards=[0.5] * 20)
    assert "right and wrong completions get one reward" in of(found, "groups without").change
    paid = of(found, "groups that pay")
    assert paid.number == "5 of 5" and paid.level == LOOK
    assert of(rollouts([1, 0, 0, 1] * 5), "groups that pay").level == "fine"


def test_cut_completions_by_their_reason():
    cut = rollouts([0] * 8, rewards=[0.0, 1.0] * 4, cut=[True] * 8)
    short, endless = of(cut, "completions cut", gold=11), of(cut, "completions cut", most=100)
    assert short.change.startswith("raise max_completion_length=12") and short.level == STOP
    assert "end token may never come" in endless.change and "8 tokens of 100" in endless.change
    some = of(rollouts([0] * 8, cut=[True] + [False] * 7), "completions cut")
    assert some.number == "12 % (mean length 5 of 12)" and some.level == LOOK
    assert of(rollouts([0] * 20, cut=[True] + [False] * 19), "completions cut").level == "fine"


def test_a_cut_hides_the_base():
    cut = rollouts([0] * 80, cut=[True] * 60 + [False] * 20)
    assert "mend that first" in of(cut, "base pass rate").change
    assert (
        of(cut, "groups without").change.startswith("let completions end") and of(cut, "completions cut").level == LOOK
    )


def test_answers_that_are_not_found_have_two_examples():
    found = of(rollouts([0] * 8, answered=[True, False] * 4), "completions without")
    assert found.number == "50 %" and found.values["examples"] == ["text 1", "text 3"]
    assert found.change.endswith("'text 1' and 'text 3'")
    assert not [one for one in signal_findings(rollouts([0] * 8), 12, 8, None) if one.what.startswith("completions w")]


def test_rewards_vary_beyond_rounding_and_without_nan():
    assert varies([0.0, 1.0]) and varies([math.nan, 0.0, 0.5])
    assert not varies([0.3, 0.3 + 1e-8]) and not varies([math.nan, 1.0]) and not varies([math.nan])


def test_the_source_of_verdicts():
    assert of(rollouts([1, 0] * 4, source=FULL_REWARD), "base pass rate").what == f"base pass rate ({FULL_REWARD})"


def test_exit_codes():
    look, stop = Finding("a", "1", "do", LOOK), Finding("b", "0", "do", STOP)
    assert (exit_code([]), exit_code([look]), exit_code([look, stop])) == (0, 0, 1)


def test_completions_of_a_prompt_that_are_alike_are_not_the_reward_s_fault():
    """Half the prompts always solved, half never, as near temperature 0: no group varies, and the reward is right."""
    found = of(rollouts([1] * 20 + [0] * 20), "groups without")
    assert found.level == STOP and found.change.startswith("raise temperature") and "mend" not in found.change
    # One mixed group of 25 pairs: larger groups would not help, which the formula does not see.
    pairs = of(rollouts([1, 1] * 12 + [0, 0] * 12 + [1, 0], size=2), "groups without")
    assert pairs.level == LOOK and pairs.change.startswith("raise temperature")


def test_one_reward_for_all_without_a_gold_answer_may_be_the_reward_s_fault():
    half = rollouts([0] * 80, rewards=[0.5] * 80, source=FULL_REWARD)
    assert "every completion got 0.5" in of(half, "groups without", tells=None).change
    assert "unless the reward is wrong" in of(half, "base pass rate", tells=None).change
    full = rollouts([1] * 80, source=FULL_REWARD)
    assert "every completion got 1" in of(full, "groups without", tells=None).change
    assert "unless the reward pays anything" in of(full, "base pass rate", tells=None).change
    none = rollouts([0] * 80, rewards=[math.nan] * 80, source=FULL_REWARD)
    assert "returns None for every completion" in of(none, "groups without", tells=None).change


def test_long_reasoning_with_short_gold_answers_lacks_room_and_not_the_end_token():
    """`#### 18` has four tokens; a third of the completions reason too long, and the others end."""
    found = of(rollouts([0, 1] * 30, cut=[True] * 20 + [False] * 40), "completions cut", most=256, gold=4)
    assert found.change.startswith("raise max_completion_length=256") and "end token" not in found.change
    assert of(rollouts([0, 1] * 4), "completions cut", most=None).number == "0 % (mean length 5 of any)"


def test_a_completion_without_reward_decides_nothing_between_right_and_wrong():
    """A reward function may return None; TRL leaves such completions out of the group."""
    found = rollouts([1, 0, 1, 0] * 5, rewards=[math.nan, 0.0, 1.0, math.nan] * 5)
    assert of(found, "groups that pay").number == "0 of 5"


def test_one_prompt_of_a_mixture_s_task_says_nothing_of_it():
    found = rollouts([1, 0] * 14 + [0] * 4, parts=[("a", 1)] * 7 + [("b", 2)])
    rare = of(found, "base pass rate of b, level 2")
    assert rare.number == "0.00 [n/a], 1 prompt" and rare.change == "too few prompts to tell: raise --prompts"
    assert of(found, "base pass rate of a, level 1").change == ""
