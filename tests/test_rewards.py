"""Reward functions that do what they should not."""

import asyncio
import math
import threading
import time

import numpy as np
import pytest
import torch

from trl_prorl.errors import RewardError
from trl_prorl.rollout.deadline import DeadlineExceeded, call_within
from trl_prorl.rollout.rewards import as_float, shown, watched


PROMPTS = [[{"role": "user", "content": "first"}], [{"role": "user", "content": "second"}]]


def call(function, seconds=None, nonfinite="stop"):
    reward = watched(function, "mine", seconds, nonfinite)
    result = reward(prompts=PROMPTS, completions=["a", "b"])
    return asyncio.run(result) if asyncio.iscoroutine(result) else result


@pytest.mark.parametrize(
    "returned",
    [[1, 0.5], [True, None], (1.0, 2.0), np.array([1.0, 2.0]), torch.tensor([0.0, 1.0]), [np.float32(1), None]],
)
def test_what_trl_takes_is_passed_on(returned):
    result = call(lambda **columns: returned)
    assert len(result) == 2 and all(
        mine is theirs or mine == theirs for mine, theirs in zip(result, returned, strict=True)
    )
    assert call(lambda prompts, **columns: (float(i) for i in range(len(prompts)))) == [0.0, 1.0]


@pytest.mark.parametrize(
    "returned, message",
    [
        ([1.0], "'mine' returned 1 rewards where 2 were expected"),
        ([1.0, 2.0, 3.0], "returned 3 rewards"),
        (1.0, "returned float, not a list"),
        (None, "returned NoneType"),
        ("10", "returned str"),
        ({"a": 1, "b": 2}, "returned dict"),
        ([1.0, "0.5"], "returned '0.5', which is not a number, for the prompt 'second'"),
        ([[1.0], 1.0], r"returned \[1.0\], which is not a number, for the prompt 'first'"),
        ([1.0, math.nan], "returned nan for the prompt 'second'. .*nonfinite: skip"),
        ([math.inf, 0.0], "returned inf for the prompt 'first'"),
        ([torch.tensor([1.0, 2.0]), 0.0], "not a number"),
    ],
)
def test_what_is_not_one_number_a_completion_is_named(returned, message):
    with pytest.raises(RewardError, match=message):
        call(lambda **columns: returned)

    async def later(**columns):
        return returned

    with pytest.raises(RewardError, match=message):
        call(later)


def test_skip_hands_nan_on_as_infinity_for_trl_takes_nan_for_none():
    assert call(lambda **columns: [math.nan, None], nonfinite="skip") == [math.inf, None]


def broken(prompts, **columns):
    for row, _ in enumerate(prompts):
        broken.row = row
        if row == 1:
            raise KeyError("answer")


async def broken_later(prompts, **columns):
    raise KeyError("answer")


@pytest.mark.parametrize(
    "function, where", [(broken, "for the prompt 'second'"), (broken_later, "begins with 'first'")]
)
def test_what_raises_is_named_with_the_place(function, where):
    with pytest.raises(
        RewardError, match=f"'mine' raised KeyError: 'answer' .*test_rewards.py, line .*{where}"
    ) as caught:
        call(function)
    assert isinstance(caught.value.__cause__, KeyError)


def spin(**columns):
    while True:
        pass


def sleep(**columns):
    time.sleep(60)


def stubborn(**columns):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            time.sleep(60)
        except Exception:
            pass


def generator(prompts, **columns):
    for _ in prompts:
        time.sleep(60)
        yield 1.0


async def sleep_later(**columns):
    await asyncio.sleep(60)


@pytest.mark.parametrize("function", [spin, sleep, stubborn, generator, sleep_later])
def test_what_hangs_is_interrupted(function):
    with pytest.raises(
        RewardError, match="'mine' did not return within reward_timeout=0.2 s .*'first'. .*reward_timeout"
    ):
        call(function, seconds=0.2)


def test_a_limit_works_off_the_main_thread_and_leaves_results_and_errors_alone():
    assert call_within(5, lambda: 3) == 3 and call_within(None, lambda: 4) == 4
    with pytest.raises(ZeroDivisionError):
        call_within(5, lambda: 1 / 0)
    seen = []

    def aside():
        seen.append(call_within(5, lambda: 5))
        for function in (lambda: 1 / 0, lambda: time.sleep(60)):
            try:
                call_within(0.2, function)
            except (ZeroDivisionError, DeadlineExceeded) as error:
                seen.append(type(error))

    thread = threading.Thread(target=aside)
    thread.start()
    thread.join()
    assert seen == [5, ZeroDivisionError, DeadlineExceeded]


def test_a_bare_except_is_interrupted_again():
    count = []

    def swallow():
        while len(count) < 2:
            try:
                time.sleep(60)
            except:  # noqa: E722
                count.append(1)
        time.sleep(60)

    with pytest.raises(DeadlineExceeded):
        call_within(0.1, swallow)
    assert len(count) == 2


def test_numbers_and_prompts():
    assert as_float(np.float64(2)) == 2.0 and as_float(torch.tensor(3)) == 3.0 and as_float("3") is None
    assert shown("a\n b" + "c" * 100) == repr("a b" + "c" * 76 + "…")
    assert shown(PROMPTS[0]) == "'first'"


def test_the_trainer_watches_its_reward_functions(make_trainer):
    def short(completions, **columns):
        return [1.0]

    with pytest.raises(RewardError, match="'short' returned 1 rewards where 8 were expected"):
        make_trainer(reward=short).train()
    with pytest.raises(RewardError, match="'sleep' did not return within reward_timeout=0.3 s"):
        make_trainer(reward=sleep, reward_timeout=0.3).train()


def test_a_reward_function_may_be_called_without_prompts():
    """As TRL's own environments are."""
    assert watched(lambda environments, **columns: [1.0] * len(environments), "mine", None, "stop")(
        environments=[1, 2]
    ) == [1, 1]


def test_an_evaluation_leaves_out_what_is_not_finite():
    reward = watched(lambda **columns: [math.nan, math.inf, 1.0], "mine", None, "skip", training=lambda: False)
    first, second, third = reward(prompts=["a", "b", "c"])
    assert math.isnan(first) and math.isnan(second) and third == 1.0
