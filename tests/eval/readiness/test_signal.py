"""Findings of samples, from numbers worked out by hand."""

import math

import pytest

from trl_prorl.eval.readiness.finding import LOOK, STOP, exit_code
from trl_prorl.eval.readiness.signal import (
    FULL_REWARD,
    Rollouts,
    expected_silent,
    rewards_differ,
    signal_findings,
    smallest_group,
)


def rollouts(correct, rewards=None, cut=None, size=4, parts=None, source="verify", lengths=None, **changes):
    n = len(correct)
    fields = {
        "group_size": size,
        "rewards": [float(one) for one in correct] if rewards is None else rewards,
        "correct": [bool(one) for one in correct],
        "answered": None,
        "cut": cut or [False] * n,
        "lengths": lengths or [5] * n,
        "texts": [f"text {place}" for place in range(n)],
        "parts": parts or [("t", 1)] * (n // size),
        "reward_seconds": 0.02 * n,
        "source": source,
    }
    return Rollouts(**fields | changes)


def of(found, what, tells=True, most=12, gold=8):
    (finding,) = [one for one in signal_findings(found, most, gold, tells) if one.what.startswith(what)]
    return finding


RATE = "base pass rate ("
SILENT = "groups without signal"
BATCH = "prompts with a signal"
CUT = "completions cut"
PAY = "groups that pay"
VERIFIER = "verifier beside"
NEEDED = "KL to the base"
PAID = "right among"
NEVER = [0] * 80
ALWAYS = [1] * 80
MIXED = [1, 0, 0, 1] * 5
ANY = {"source": FULL_REWARD}  # verdicts without a verifier
UNKNOWN = {"tells": None}  # whether the reward tells right from wrong


HACKED = [1.0, 1.0, 0.0, 1.0, *[1.0, 0.0, 0.0, 1.0] * 4]  # of `MIXED`: one wrong answer is paid in full
SOLVED_OR_NOT = [1] * 20 + [0] * 20  # near temperature 0
ALL_CUT = [True] * 8
ONE_LEFT = [True, False, True, True]


@pytest.mark.parametrize(
    ("found", "what", "level", "said"),
    [
        # 18 %, in pairs: 41 prompts of 50 would be silent, 9 mixed.
        (rollouts([1, 0] * 9 + [0, 0] * 16, size=2), SILENT, LOOK, "64 % of 25, 70 % at G = 2; num_generations: 8 "),
        # One completion a prompt is compared with those of others; equal rewards there teach nothing.
        (rollouts([1, 0] * 10, size=1), BATCH, "fine", "rewards from 0 to 1 over 20 prompts; "),
        (rollouts([0] * 20, size=1), BATCH, STOP, "0 of 20; "),
        # A base at zero, with a reward that is right, or wrong.
        (rollouts(NEVER), RATE, LOOK, "base does not solve"),
        (rollouts(NEVER), (RATE, {"tells": False}), LOOK, "reward does not tell"),
        (rollouts(NEVER), SILENT, STOP, "no answer is right"),
        # A perfect one teaches nothing; nor does one reward for all, or none.
        (rollouts(ALWAYS), SILENT, STOP, "harder task_level"),
        (rollouts(ALWAYS), RATE, LOOK, "perfect"),
        (rollouts(ALWAYS, **ANY), (RATE, UNKNOWN), LOOK, "unless the reward"),
        (rollouts(NEVER, rewards=[math.nan] * 80, **ANY), (SILENT, UNKNOWN), STOP, "None"),
        # Right and wrong at one reward; one wrong answer paid in full.
        (rollouts(MIXED, rewards=[0.5] * 20), PAY, LOOK, "5 of 5; "),
        (rollouts(MIXED), PAY, "fine", "0 of 5; "),
        (rollouts(MIXED, rewards=HACKED), PAY, LOOK, "kl_target: 0.14 with beta: 0.3 "),
        (rollouts([1, 0] * 10, rewards=[math.nan, 0.0, 1.0, math.nan] * 5), PAY, "fine", "0 of 5; "),
        # Two of four right: p is 2.5 / 5, and ln 2 over five tokens are 0.139 nats. None: ln 10 over five.
        (rollouts(MIXED), NEEDED, "fine", "0.14 nats a token"),
        (rollouts(NEVER), NEEDED, "fine", "0.46 nats a token"),
        # Right answers of two tokens, wrong ones of eight.
        (rollouts(MIXED, lengths=[2, 8, 8, 2] * 5), NEEDED, "fine", "0.35 nats a token"),
        # Without a verifier the central numbers are said to be missing.
        (rollouts(MIXED, **ANY), VERIFIER, LOOK, "none; "),
        (rollouts(MIXED, **ANY), PAY, "fine", "not measured"),
        # Eleven answers get the highest reward, ten of them right; none was measured where nothing is paid more.
        (rollouts(MIXED, rewards=HACKED), PAID, "fine", "91 % of 11; "),
        (rollouts(MIXED, rewards=[0.5, 1.0, math.nan, 0.5] * 5), PAID, "fine", "0 % of 5; "),
        # Half the prompts always solved, half never: no group varies, and the reward is right.
        (rollouts(SOLVED_OR_NOT), SILENT, STOP, "; raise temperature"),
        # Too short for a gold answer; long enough for any; some.
        (rollouts([0] * 8, [0.0, 1.0] * 4, ALL_CUT), (CUT, {"gold": 11}), LOOK, "raise max_completion_length=12"),
        (rollouts([0] * 8, [0.0, 1.0] * 4, ALL_CUT), (CUT, {"most": 100}), LOOK, "8 tokens of 100"),
        # All cut: what was rewarded counts in the loss, unless cut completions are left out of it.
        (rollouts([0, 1] * 4, cut=ALL_CUT), SILENT, "fine", "0 % of 2"),
        (rollouts([0, 1] * 4, cut=ALL_CUT, masks_cut=True), SILENT, STOP, "100 % of 2"),
        (rollouts([0, 1] * 4, cut=ALL_CUT, masks_cut=True, size=1), BATCH, STOP, "0 of 8"),
        # In the first group a completion is left that is better than the mean, in the second none.
        (rollouts([0, 1] * 4, cut=[True, False] * 2 + [True] * 4, masks_cut=True), SILENT, "fine", "50 % of 2"),
        # The one that is left has the group's mean.
        (rollouts([1] * 4, [0.0, 0.5, 1.0, 0.5], ONE_LEFT, masks_cut=True), SILENT, STOP, "100 % of 1"),
        (rollouts([0] * 8, cut=[True] + [False] * 7), CUT, LOOK, "12 % (mean length 5 of 12)"),
        # `#### 18` has four tokens; a third of the completions reason too long, and the others end.
        (rollouts([0, 1] * 30, cut=[1] * 20 + [0] * 40), (CUT, {"most": 256, "gold": 4}), LOOK, "length=256"),
        # A cut hides the base.
        (rollouts(NEVER, cut=[True] * 60 + [False] * 20), RATE, LOOK, ""),
        (rollouts([0] * 8, answered=[True, False] * 4), "completions without", LOOK, "50 %; "),
    ],
)
def test_a_finding_by_hand(found, what, level, said):
    what, keys = (what, {}) if isinstance(what, str) else what
    finding = of(found, what, **keys)
    assert finding.level == level
    assert said in f"{finding.number}; {finding.change}"


def test_expected_shares_and_the_group_that_is_enough_by_hand():
    assert expected_silent(0.18, 2) == pytest.approx(0.0324 + 0.6724)
    assert expected_silent(0.5, 8) == pytest.approx(2 / 256)
    assert expected_silent(0.0, 8) == expected_silent(1.0, 8) == 1.0
    # 0.18: 0.453 of 4, 0.204 of 8; 0.01: 0.53 of 64.
    assert smallest_group(0.18) == 8
    assert smallest_group(0.5) == 4
    assert smallest_group(0.01) is None


def test_pass_rate_has_its_interval_by_task_and_level():
    parts = [("a", 1)] * 10 + [("b", 2)] * 10 + [("c", 3)]
    found = rollouts([1, 1, 1, 0] * 10 + [0, 0, 0, 1] * 10 + [0] * 4, parts=parts)
    whole = of(found, RATE)
    low, high = whole.values["interval"]
    assert whole.values["pass_rate"] == pytest.approx(40 / 84)
    assert 0.36 < low < 40 / 84 < high < 0.6
    a, b, rare = (of(found, f"base pass rate of {part}") for part in ("a, level 1", "b, level 2", "c, level 3"))
    assert (a.number, a.change, b.values["pass_rate"]) == ("0.75 [n/a], 10 prompts", "", 0.25)
    assert rare.number == "0.00 [n/a], 1 prompt"
    assert "--prompts" in rare.change


def test_a_base_at_zero_whose_rewards_vary_can_learn():
    found = rollouts([0] * 8, rewards=[0.1, 0.2, 0.1, 0.1, 0.3, 0.1, 0.2, 0.1])
    assert exit_code(signal_findings(found, 12, 8, True)) == 0
    assert of(found, RATE).level == LOOK


def test_rewards_vary_beyond_rounding_and_without_nan():
    assert rewards_differ([0.0, 1.0])
    assert rewards_differ([math.nan, 0.0, 0.5])
    assert not rewards_differ([0.3, 0.3 + 1e-8])
    assert not rewards_differ([math.nan, 1.0])
    assert not rewards_differ([math.nan])
