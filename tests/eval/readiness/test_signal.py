"""Findings of samples, from numbers worked out by hand."""

import math
from types import SimpleNamespace

import pytest

from trl_prorl.eval.readiness.finding import LOOK, STOP
from trl_prorl.eval.readiness.signal import LIMITS, NEEDED_KL, REWARDS_WRONG, Rollouts, signal_findings


def rollouts(correct, rewards=None, truncated=None, size=4, lengths=None, judged=True, **keys):
    n = len(correct)
    has_answer = keys.pop("has_answer", [])
    args = dict.fromkeys(LIMITS) | {"max_completion_length": 12, "mask_truncated_completions": False, "resets": False}
    args["advantage_estimator"] = "grpo"
    rewards = [float(verdict) for verdict in correct] if rewards is None else rewards
    return Rollouts(
        SimpleNamespace(**args | keys),
        size,
        has_answer,
        rewards=rewards,
        compared=rewards,
        correct=[bool(verdict) for verdict in correct] if judged else [],
        truncated=truncated or [False] * n,
        lengths=lengths or [5] * n,
        texts=[f"text {place}" for place in range(n)],
    )


def of(found, what, tells=True, gold=8):
    (finding,) = [finding for finding in signal_findings(found, gold, tells) if finding.what.startswith(what)]
    return finding


RATE = "accuracy of"
SILENT = "groups that give no gradient"
CUT = "truncated completions"
PAY = REWARDS_WRONG
VERIFIER = "separate verifier"
NEEDED = NEEDED_KL
NEVER = [0] * 80
ALWAYS = [1] * 80
MIXED = [1, 0, 0, 1] * 5
ANY = {"judged": False}  # no verifier
UNKNOWN = {"tells": None}  # whether correct answers get more reward than wrong ones


HACKED = [1.0, 1.0, 0.0, 1.0, *[1.0, 0.0, 0.0, 1.0] * 4]  # for `MIXED`: one wrong answer gets full reward
SOLVED_OR_NOT = [1] * 20 + [0] * 20  # near temperature 0
ALL_TRUNCATED = [True] * 8
ONE_LEFT = [True, False, True, True]
ONE_IN_TWO_GROUPS = [True, False] * 2 + [True] * 4
LEFT_OUT = {"mask_truncated_completions": True}
ROOM = {"max_completion_length": 256}
TOO_SHORT = "raise max_completion_length"


@pytest.mark.parametrize(
    ("found", "what", "level", "said"),
    [
        # Accuracy 18 %, groups of two: 16 of 25 are all wrong. In groups of eight 0.82⁸ = 20 % would be.
        (rollouts([1, 0] * 9 + [0, 0] * 16, size=2), SILENT, LOOK, "16 of 25 (expected 70 %); "),
        (rollouts([1, 0] * 9 + [0, 0] * 16, size=2), SILENT, LOOK, "num_generations: 8 "),
        # One completion per prompt is compared with those of other prompts; equal rewards give no gradient.
        (rollouts([1, 0] * 10, size=1), SILENT, "fine", "0 of 1 "),
        (rollouts([0] * 20, size=1), SILENT, STOP, "1 of 1 "),
        # So are completions of groups, with an estimator that does not compare them within the group.
        (rollouts(SOLVED_OR_NOT, advantage_estimator="raw"), SILENT, "fine", "0 of 1 "),
        (rollouts(SOLVED_OR_NOT, advantage_estimator="global_normalized"), SILENT, "fine", "0 of 1 "),
        (rollouts([0] * 20, advantage_estimator="raw"), SILENT, STOP, "1 of 1 "),
        # Rewards that differ by rounding are equal; those of wrong answers may differ.
        (rollouts([1, 0] * 10, rewards=[0.3, 0.3 + 1e-8] * 10), SILENT, STOP, "5 of 5"),
        (rollouts([0] * 8, rewards=[0.1, 0.2, 0.1, math.nan] * 2), SILENT, "fine", "0 of 2"),
        # An accuracy of 0, with a reward that works or does not.
        (rollouts(NEVER), RATE, LOOK, "graded reward"),
        (rollouts(NEVER), (SILENT, {"tells": False}), STOP, "fix the reward"),
        (rollouts(NEVER), SILENT, STOP, "easier prompts"),
        # An accuracy of 1 gives no gradient; nor does one reward for all completions, or none.
        (rollouts(ALWAYS), SILENT, STOP, "harder prompts"),
        (rollouts(ALWAYS), RATE, LOOK, "harder prompts"),
        (rollouts(NEVER, rewards=[math.nan] * 80, **ANY), (SILENT, UNKNOWN), STOP, "None"),
        # Correct and wrong answers with the same reward; one wrong answer with full reward.
        (rollouts(MIXED, rewards=[0.5] * 20), PAY, LOOK, "5 of 5; "),
        (rollouts(MIXED), PAY, "fine", "0 of 5; "),
        (rollouts(MIXED, rewards=HACKED), PAY, LOOK, "else set beta: 0.3"),
        (rollouts([1, 0] * 10, rewards=[math.nan, 0.0, 1.0, math.nan] * 5), PAY, "fine", "0 of 5; "),
        # Two of four correct: p is 2.5 / 5, and ln 2 over five tokens are 0.139 nats. None: ln 10 over five.
        (rollouts(MIXED), NEEDED, "fine", "0.14 nats per token"),
        (rollouts(NEVER), NEEDED, "fine", "0.46 nats per token"),
        # Correct answers of two tokens, wrong ones of eight.
        (rollouts(MIXED, lengths=[2, 8, 8, 2] * 5), NEEDED, "fine", "0.35 nats per token"),
        # Without a verifier the central numbers are reported as missing.
        (rollouts(MIXED, **ANY), VERIFIER, LOOK, "none; "),
        (rollouts(MIXED, **ANY), PAY, "fine", "not measured"),
        # Rewards from 0 to 12: none says what is correct.
        (rollouts(MIXED, rewards=[12.0, 1.0, 3.0, 0.0] * 5, **ANY), RATE, "fine", "not measured"),
        (rollouts(MIXED, rewards=[12.0, 1.0, 3.0, 0.0] * 5, **ANY), SILENT, "fine", "0 of 5; "),
        # Half the prompts are always solved, half never: no group varies, and the reward works.
        (rollouts(SOLVED_OR_NOT), SILENT, STOP, "raise temperature"),
        # Too short for a reference answer; long enough for any.
        (rollouts([0] * 8, [0.0, 1.0] * 4, ALL_TRUNCATED), (CUT, {"gold": 11}), LOOK, TOO_SHORT),
        (rollouts([0] * 8, [0.0, 1.0] * 4, ALL_TRUNCATED, **ROOM), CUT, LOOK, "up to 8 tokens"),
        # All truncated: they count in the loss, unless truncated completions are left out of it.
        (rollouts([0, 1] * 4, truncated=ALL_TRUNCATED), SILENT, "fine", "0 of 2"),
        (rollouts([0, 1] * 4, truncated=ALL_TRUNCATED, **LEFT_OUT), SILENT, STOP, "2 of 2"),
        (rollouts([0, 1] * 4, truncated=ALL_TRUNCATED, **LEFT_OUT, size=1), SILENT, STOP, "1 of 1"),
        # In the first group a completion is left that is better than the mean, in the second none.
        (rollouts([0, 1] * 4, truncated=ONE_IN_TWO_GROUPS, **LEFT_OUT), SILENT, "fine", "1 of 2"),
        # The one that is left has the group's mean.
        (rollouts([1] * 4, [0.0, 0.5, 1.0, 0.5], ONE_LEFT, **LEFT_OUT), SILENT, STOP, "1 of 1"),
        (rollouts([0] * 8, truncated=[True] + [False] * 7), CUT, LOOK, "12 % (mean length 5 of 12)"),
        # `#### 18` has four tokens; a third of the completions reason too long, and the others end.
        (rollouts([0, 1] * 30, truncated=[1] * 20 + [0] * 40, **ROOM), (CUT, {"gold": 4}), LOOK, TOO_SHORT),
        (rollouts(NEVER, truncated=[True] * 60 + [False] * 20), SILENT, STOP, "max_completion_length"),
        (rollouts([0] * 8, has_answer=[True, False] * 4), "completions without", LOOK, "50 %; "),
    ],
)
def test_a_finding_by_hand(found, what, level, said):
    what, keys = (what, {}) if isinstance(what, str) else what
    finding = of(found, what, **keys)
    assert finding.level == level
    assert said in f"{finding.number}; {finding.change}"


LIMITED = {"beta": 0.3, "kl_target": 0.14, "guard_gap": 0.05}


BASE_TARGET = {"beta_base": 0.01, "kl_target": 0.14}


@pytest.mark.parametrize(
    ("keys", "limited"),
    [
        (LIMITED, True),
        ({"guard_gap": 0.05}, False),
        ({"beta": 0.3}, True),
        ({"kl_target": 0.14, "guard_gap": 0.1}, False),
        (LIMITED | {"kl_target": 0.5}, False),
        (LIMITED | {"resets": True}, False),
        # A target acts on the first of beta, beta_old and beta_base. Only a KL to the starting model limits hacking.
        (BASE_TARGET, True),
        (BASE_TARGET | {"beta_old": 1.0}, False),
        (LIMITED | {"beta_old": 1.0}, True),
        (LIMITED | {"beta_base": 1e-6, "resets": True}, False),
    ],
)
def test_a_kl_to_the_starting_model_limits_reward_hacking_unless_resets_move_it(keys, limited):
    finding = of(rollouts(MIXED, rewards=HACKED, **keys), PAY)
    assert (finding.level, finding.values["limited"]) == (LOOK, limited)


def test_the_accuracy_has_its_interval():
    finding = of(rollouts([1, 1, 1, 0] * 10 + [0, 0, 0, 1] * 10 + [0] * 4), RATE)
    # z²/2 pseudo-prompts at 0 and 1: mean 11.92 / 24.84, variance 8.171 / 24.84 - .4799².
    assert finding.values["interval"] == pytest.approx([0.3564, 0.6034], abs=1e-4)
    assert finding.values["pass_rate"] == pytest.approx(40 / 84)
    assert of(rollouts([1, 1, 1, 0] * 10), RATE).number == "0.75, 10 prompts (too few for an interval)"
