"""Reward functions that do what they should not."""

import asyncio
import math
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from run_record import read_rows
from tiny_run import vowels
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer
from trl import GRPOTrainer

from trl_prorl import evaluate
from trl_prorl.errors import InputError, NonFiniteRewardError, RewardError
from trl_prorl.guards.rewards import call_within, guard_reward


PROMPTS = [[{"role": "user", "content": "first"}], [{"role": "user", "content": "second"}]]


def call(function, seconds=None, nonfinite="stop"):
    reward = guard_reward(function, "mine", seconds, nonfinite)
    result = reward(prompts=PROMPTS, completions=["a", "b"])
    return asyncio.run(result) if asyncio.iscoroutine(result) else result


@pytest.mark.parametrize(
    "returned",
    [[1, 0.5], [True, None], np.array([1.0, 2.0]), torch.tensor([0.0, 1.0]), [np.float32(1), None], [np.array(1), 2]],
)
def test_what_trl_takes_is_passed_on(returned):
    result = call(lambda **columns: returned)
    assert all(mine is theirs or mine == theirs for mine, theirs in zip(result, returned, strict=True))
    torch.tensor([math.nan if reward is None else reward for reward in result])  # as TRL does
    assert call(lambda prompts, **columns: (float(i) for i in range(len(prompts)))) == [0.0, 1.0]


@pytest.mark.parametrize(
    "returned, message",
    [
        ([1.0], "'mine' returned 1 rewards instead of 2"),
        (None, "'mine' raised TypeError"),
        ({0: 1.0, 1: 0.5}, "'mine' raised TypeError"),  # a list of it has its keys
        ([1.0, "half"], "returned 'half', .* for the prompt 'second'"),
        ([[1.0], 1.0], r"returned \[1.0\], .* for the prompt 'first'"),
        ([math.inf, 0.0], "returned inf for the prompt 'first'"),
        ([1.0, math.nan], "returned nan for the prompt 'second'.*nonfinite: skip"),
        ([10**5000, 1], "not a number, for the prompt 'first'"),  # of more digits than Python spells
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


def grade():
    raise KeyError("answer")


def broken(prompts, **columns):
    broken.row = 1
    grade()


async def broken_later(prompts, **columns):
    grade()


@pytest.mark.parametrize(
    "function, where", [(broken, "the prompt 'second'"), (broken_later, "a batch of 2 prompts starting with 'first'")]
)
def test_what_raises_is_named_with_the_place(function, where):
    place = f"{__file__}, line {grade.__code__.co_firstlineno + 1}"
    said = f"'mine' raised KeyError: 'answer' .{place}. for {where}"
    with pytest.raises(RewardError, match=said) as caught:
        call(function)
    assert isinstance(caught.value.__cause__, KeyError)


def sleep(**columns):
    time.sleep(60)


def stubborn(**columns):
    """Goes on after every error, and after whatever else comes first."""
    first = True
    for _ in range(3):
        try:
            time.sleep(60)
        except Exception:
            pass
        except:  # noqa: E722
            if not first:
                raise
            first = False


def generator(prompts, **columns):
    yield time.sleep(60)


async def sleep_later(**columns):
    await asyncio.sleep(60)


@pytest.mark.parametrize("function", [sleep, stubborn, generator, sleep_later])
def test_what_hangs_is_interrupted(function):
    with pytest.raises(RewardError, match="'mine' .*reward_timeout=0.2 s .*'first'"):
        call(function, seconds=0.2)


async def own_time_out(**columns):
    async with asyncio.timeout(0.01):
        await asyncio.sleep(60)


@pytest.mark.parametrize("seconds", [None, 60.0])
def test_a_time_out_of_the_reward_s_own_is_its_own_error(seconds):
    """Of its HTTP client, say; with a limit or without one."""
    with pytest.raises(RewardError, match="'mine' raised TimeoutError") as caught:
        call(own_time_out, seconds=seconds)
    assert "reward_timeout" not in str(caught.value)


def test_a_limit_leaves_results_and_errors_alone_also_off_the_main_thread():
    def calls():
        assert call_within(5, lambda: 3) == 3
        with pytest.raises(ZeroDivisionError):
            call_within(5, lambda: 1 / 0)
        return "done"

    assert calls() == ThreadPoolExecutor().submit(calls).result() == "done"


def test_the_trainer_watches_its_reward_functions(make_trainer):
    def short(completions, **columns):
        return [1.0]

    with pytest.raises(RewardError, match="'short' returned 1 rewards instead of 8"):
        make_trainer(reward=short).train()
    with pytest.raises(RewardError, match="'sleep' .*reward_timeout=0.3 s"):
        make_trainer(reward=sleep, reward_timeout=0.3).train()


@pytest.mark.parametrize("nonfinite", ["stop", "skip"])
def test_nan_of_a_reward_model_is_not_taken_for_none(make_trainer, tiny_model, nonfinite):
    """TRL adds up what is not NaN, and would train on 0."""
    config = AutoConfig.from_pretrained(tiny_model, num_labels=1, pad_token_id=0)
    judge = AutoModelForSequenceClassification.from_config(config)
    torch.nn.init.constant_(judge.score.weight, math.nan)
    given = {"reward_funcs": [judge, vowels]}
    given["reward_processing_classes"] = [AutoTokenizer.from_pretrained(tiny_model), None]
    trainer = make_trainer(nonfinite=nonfinite, num_iterations=1, max_steps=2, trainer_kwargs=given)
    if nonfinite == "stop":
        with pytest.raises(NonFiniteRewardError, match="^reward model .* returned nan for 8 of 8 completions"):
            trainer.train()
        return
    trainer.train()
    assert [row["nonfinite_skips"] for row in read_rows(trainer)] == [1, 2]


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("environment_factory", {"environment_factories": {None: object}}),
        ("tools", {"tools": [print]}),
        ("rollout_func", {"rollout_func": print}),
    ],
)
def test_an_evaluation_of_one_turn_refuses_environments_tools_and_rollouts(name, given):
    off = {"environment_factories": None, "tools": [], "rollout_func": None}
    trainer = SimpleNamespace(accelerator=SimpleNamespace(num_processes=1), **off | given)
    with pytest.raises(InputError, match=f"^{name} .*eval_dataset"):
        evaluate(trainer, [], bool)


@pytest.mark.parametrize("keys", [{"fast": True}, {"beta": 0.1, "ref_reset_every": 2}, {"num_iterations": 2}], ids=str)
def test_functions_that_score_with_the_trainer_get_trls_scores(run, keys):
    """TRL's requests for a batch may wait for the loss; those of a rollout, a reward or a verifier are answered."""
    seen = []

    def score(which):
        trainer = seen[0]
        rows = torch.tensor([[65, 66, 67, 68, 69], [70, 71, 72, 73, 74]])
        request = (trainer.model, rows, torch.ones_like(rows), 3)
        with torch.no_grad():
            ours, entropies, _ = trainer._get_per_token_logps_and_entropies(*request, compute_entropy=True)
            theirs, expected, _ = GRPOTrainer._get_per_token_logps_and_entropies(
                trainer, *request, compute_entropy=True
            )
        assert torch.allclose(ours, theirs, atol=1e-5)
        assert torch.allclose(entropies, expected, atol=1e-5)
        assert trainer.beta == keys.get("beta", 0.0)
        seen.append(which)

    def rollout(prompts, trainer):
        seen[:1] = [trainer]
        score("rollout")
        ids = trainer.tokenize_prompts(prompts)
        return {"prompt_ids": ids, "completion_ids": trainer.generate_tokens(ids, 4), "logprobs": None}

    def reward(completions, **columns):
        score("reward")
        return vowels(completions)

    def verifier(completions, **columns):
        score("verifier")
        return [True] * len(completions)

    reward.batch_verifier = verifier
    run(reward=reward, reuse_old_logps=True, max_steps=2, trainer_kwargs={"rollout_func": rollout}, **keys)
    assert {"rollout", "reward", "verifier"} <= set(seen[1:])
