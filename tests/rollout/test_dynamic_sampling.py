"""Groups that teach nothing are replaced, as if the others had been drawn at once; rewards of a length alone."""

import itertools
from collections import deque
from types import SimpleNamespace

import pytest
import torch
from run_record import read_rows as rows
from slow import slow_but
from tiny_run import constant

from trl_prorl.advantages import estimate
from trl_prorl.extras.dynamic_sampling import deciding_rewards, next_rows, replace_groups
from trl_prorl.extras.length_rewards import cosine, cosine_length_reward, target_length_reward
from trl_prorl.extras.thinking import make_interrupted_rollout
from trl_prorl.rollout import RolloutResult, set_advantages
from trl_prorl.train import TaskArguments


NAN = float("nan")


DECIDED = {
    # Of two functions the first decides, though the second differs.
    "the first": ([[0.0, 0.0], [3.0, 7.0]], [1.0, 1.0], [0.0, 0.0]),
    "not without a weight": ([[0.0, 1.0], [3.0, 7.0]], [0.0, 1.0], [3.0, 7.0]),
    "of those that apply": ([[NAN, NAN], [1.0, 0.0], [3.0, 7.0]], [1.0, 1.0, 1.0], [1.0, 0.0]),
    # A length does not stand in for a completion that the task's function could not score.
    "in a whole group": ([[1.0, NAN], [3.0, 7.0]], [1.0, 1.0], [1.0, NAN]),
    "of each group its own": (
        [[1.0, 1.0, NAN, NAN], [NAN, NAN, 0.0, 1.0], [5.0, 6.0, 7.0, 8.0]],
        [1.0, 1.0, 1.0],
        [1.0, 1.0, 0.0, 1.0],
    ),
}


@pytest.mark.parametrize("rewards, weights, expected", DECIDED.values(), ids=DECIDED)
def test_which_reward_decides_by_hand(rewards, weights, expected):
    deciders = deciding_rewards(torch.tensor(rewards).T, torch.tensor(weights), 2)
    assert deciders.tolist() == pytest.approx(expected, nan_ok=True)


def test_groups_are_put_with_padding_on_the_right_sides():
    columns = ("prompt_ids", "prompt_mask", "completion_ids", "advantages", "num_items_in_batch")
    mine = [[1, 2], [1, 2], [9, 3], [9, 3]]
    masks = [[1, 1], [1, 1], [0, 1], [0, 1]]
    theirs = [[1, 0], [2, 0], [3, 1], [4, 1]]
    values = (mine, masks, [[4], [5], [6], [7]], [0.0, 0.0, 1.0, -1.0], 4)
    others = ([[8, 8, 8]] * 4, [[1, 1, 1]] * 4, theirs, [0.0, 0.0, 2.0, -2.0], 9)
    batch, other = (dict(zip(columns, map(torch.tensor, each), strict=True)) for each in (values, others))
    merged = replace_groups(batch, other, places=[0], sources=[1], group_size=2, pad_token_id=9)
    assert merged["prompt_ids"].tolist() == [[8, 8, 8], [8, 8, 8], [9, 9, 3], [9, 9, 3]]
    assert merged["prompt_mask"].tolist() == [[1, 1, 1], [1, 1, 1], [0, 0, 1], [0, 0, 1]]
    assert merged["completion_ids"].tolist() == [[3, 1], [4, 1], [6, 9], [7, 9]]
    assert merged["advantages"].tolist() == [2.0, -2.0, 1.0, -1.0]
    assert replace_groups(other, batch, [0], [1], 2, 9)["completion_ids"].tolist() == [[6, 9], [7, 9], [3, 1], [4, 1]]


def test_extra_rows_go_round_in_new_orders_and_go_on_where_they_stopped():
    drawn = next_rows(5, 3, 0, 12)
    assert sorted(drawn[:5]) == sorted(drawn[5:10]) == list(range(5))
    assert drawn[:5] != drawn[5:10]
    assert next_rows(5, 3, 7, 5) == drawn[7:]
    assert next_rows(5, 4, 0, 10) != drawn[:10]


def solved(completions, prompts, **kwargs):
    """Prompts that end in an exclamation mark are hopeless: two of three."""
    texts = [c[-1]["content"] for c in completions]
    hopeless = [p[-1]["content"].endswith("!") for p in prompts]
    return [0.0 if bad else len(text) / 7 + i / 99 for i, (bad, text) in enumerate(zip(hopeless, texts, strict=True))]


ARMS = {"plain": {}, "A": {"beta": 0.2, "ref_reset_every": 2}, "B": {"beta_old": 0.2, "reuse_old_logps": True}}


@pytest.mark.parametrize("arm", slow_but(ARMS, "A"))
def test_undecided_groups_are_replaced_and_what_it_cost_is_counted(run, arm):
    keys = {"reward": solved, "max_steps": 6, "per_device_train_batch_size": 16, **ARMS[arm]}
    trainer = run(dynamic_sampling_rounds=8, **keys)
    for row in rows(trainer):
        assert row["groups_undecided"] == 0
        assert row["groups_replaced"] <= row["groups_generated_again"]
        assert row["advantage_std"] > 0.5  # every completion counts
        assert row["ref_forward_calls"] == (1 if arm == "A" and row["step"] % 2 else 0)  # once, not once a round
    assert sum(row["groups_replaced"] for row in rows(trainer)) > 8
    plain = rows(run(**keys))
    assert rows(trainer)[0]["reward"] == plain[0]["reward"]  # of the prompts that nobody has chosen
    assert rows(trainer)[0]["tokens_generated"] > plain[0]["tokens_generated"]
    assert "groups_replaced" not in plain[0]


hopeless = constant(0.0)
hopeless.__name__ = "hopeless"


def rollout_of(count, columns):
    """Keys of a run whose rollouts have up to so many tokens, and the columns of a function of trainer and tokens."""

    def rollout(prompts, trainer):
        prompt_ids = trainer.tokenize_prompts(prompts)
        completion_ids = trainer.generate_tokens(prompt_ids, count)
        given = {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": None}
        return given | columns(trainer, completion_ids)

    return {"trainer_kwargs": {"rollout_func": rollout}}


# Completions of 1 to 4 tokens in every group.
UNEVEN = rollout_of(4, lambda trainer, ids: {"completion_ids": [one[: 1 + row % 4] for row, one in enumerate(ids)]})
LENGTH = cosine_length_reward(SimpleNamespace(length_least=-1.0, length_on=1, length_off=0), 6)


def test_rounds_are_bounded_and_a_length_reward_makes_no_hopeless_group_a_decided_one(run):
    keys = {"dynamic_sampling_rounds": 2, "max_steps": 1, "num_iterations": 1, "columns": {"task": ["mine"] * 16}}
    keys |= UNEVEN
    (row,) = rows(run(reward=[hopeless, LENGTH], **keys))
    assert (row["groups_undecided"], row["groups_replaced"], row["groups_generated_again"]) == (2, 0, 4)
    assert row["reward/mine"] == 0.0
    # What is left is trained on, by its lengths.
    assert row["frac_reward_zero_std"] < 1.0
    assert row["advantage_std"] > 0.0
    assert row["grad_norm"] > 0.0


@pytest.mark.parametrize("aggregation", ["sum_then_normalize", "normalize_then_sum"])
def test_equal_rewards_are_dropped_whatever_their_mean_is_rounded_to(run, aggregation):
    reward = torch.full((8,), 17 / 97)
    assert (reward - reward.mean()).abs().max() > 0.0
    keys = {
        "drop_zero_rows": True,
        "skip_zero_rows": True,
        "beta_old": 0.2,
        "num_generations": 8,
        "max_steps": 2,
        "multi_objective_aggregation": aggregation,
    }
    found = rows(run(reward=constant(17 / 97), **keys))  # in float32, not the mean of eight of these
    assert [(row["grad_norm"], row["advantage_std"], row["rows_skipped"]) for row in found] == [(0.0, 0.0, 7)] * 2


@pytest.mark.parametrize("estimator", ["raw", "global_normalized"])
def test_an_advantage_that_is_not_zero_is_never_dropped(estimator):
    """A group that is all right has one, where completions are not compared with their group."""
    rewards = torch.tensor([[1.0], [1.0], [1.0], [0.0]])
    outcome = RolloutResult(rewards, 2, torch.tensor(8), [None] * 4, [], rounds=[rewards])
    args = SimpleNamespace(
        advantage_estimator=estimator, drop_zero_rows=True, multi_objective_aggregation="sum_then_normalize"
    )
    advantages = torch.zeros(4)
    set_advantages(advantages, outcome, torch.ones(1), 0, args, deque(maxlen=4))
    expected = estimate(rewards[:, 0], 2, estimator)
    assert (expected[:2] > 0).all()
    assert advantages.tolist() == expected.tolist()


DECIDED_AT_ONCE = {
    "A": {"max_steps": 4, "beta": 0.2, "ref_reset_every": 2, "learning_rate": 1e-3},
    # Tokens that a rollout has forced are masked out, and do not dilute the loss.
    "forced tokens": {
        "loss_type": "dapo",
        "max_steps": 2,
        "num_iterations": 1,
        "learning_rate": 1e-3,
        "trainer_kwargs": {"rollout_func": make_interrupted_rollout(3, 2, "ANSWER:")},
    },
}


@pytest.mark.parametrize("keys", DECIDED_AT_ONCE.values(), ids=DECIDED_AT_ONCE)
def test_where_every_group_is_decided_nothing_changes(run, largest_difference, keys):
    none = run(**keys)
    some = run(dynamic_sampling_rounds=1, **keys)
    assert rows(some)[0]["groups_replaced"] == 0
    assert largest_difference(none, some) < 1e-6
    assert rows(some)[0]["grad_norm"] == pytest.approx(rows(none)[0]["grad_norm"], rel=1e-4)


def test_the_gradient_is_that_of_the_final_batch(run, weights):
    """One step on replaced groups equals one step of a run whose data had been those groups."""
    seen = []

    def watched(completions, prompts, completion_ids, **kwargs):
        rewards = solved(completions, prompts)
        seen.append((prompts, completion_ids, rewards))
        return rewards

    keys = {"max_steps": 1, "num_iterations": 1, "lora": False, "optim": "sgd", "learning_rate": 1.0}
    trainer = run(reward=watched, dynamic_sampling_rounds=8, **keys)
    groups = [(p[i : i + 4], c[i : i + 4], r[i : i + 4]) for p, c, r in seen for i in range(0, len(p), 4)]
    first = groups[:2]
    later = groups[2:]
    decided = iter([group for group in later if len(set(group[2])) > 1])
    final = [group if len(set(group[2])) > 1 else next(decided) for group in first]
    assert final != first

    def rollout(prompts, trainer):
        prompt_ids = trainer.tokenize_prompts([prompt for group in final for prompt in group[0]])
        completions = [completion for group in final for completion in group[1]]
        logprobs = [[0.0] * len(completion) for completion in completions]
        return {"prompt_ids": prompt_ids, "completion_ids": completions, "logprobs": logprobs}

    def given(completions, **kwargs):
        return [reward for group in final for reward in group[2]]

    control = run(reward=given, trainer_kwargs={"rollout_func": rollout}, **keys)
    mine = weights(trainer)
    theirs = weights(control)
    assert max((mine[name] - theirs[name]).abs().max().item() for name in mine) < 1e-6


def masked_in(call, writes_ones):
    """Keys of a run: a call of its rollout (the second is of the further round) masks two tokens; others mask none."""
    calls = []

    def columns(trainer, ids):
        calls.append(len(ids))
        zeros = 2 if len(calls) == call else 0
        masks = [([0] * zeros + [1] * len(row))[: len(row)] for row in ids]
        return {"env_mask": masks} if zeros or writes_ones else {}

    return rollout_of(6, columns)


@pytest.mark.parametrize("call", [1, 2])
def test_a_mask_that_a_rollout_gives_in_one_round_only_is_of_that_round(run, call):
    """As if it had given ones in the other; a group of the first round is replaced."""

    def train(writes_ones):
        rounds = itertools.count()

        def reward(completions, **columns):
            is_first = next(rounds) == 0
            return [0.0 if is_first and row < 4 else float(row % 3) for row in range(len(completions))]

        keys = {"dynamic_sampling_rounds": 1, "max_steps": 1, "num_iterations": 1, "reward": reward}
        (row,) = rows(run(**keys, **masked_in(call, writes_ones)))
        return [row[name] for name in ("groups_replaced", "loss", "grad_norm", "entropy")]

    assert train(writes_ones=False) == train(writes_ones=True)
    assert train(writes_ones=True)[0] == 1


def test_cosine_by_hand():
    values = [cosine(length, 100, -1.5) for length in (0, 50, 100, 150, 100 / 3)]
    assert values == pytest.approx([0.0, -0.75, -1.5, -1.5, -1.5 + 0.75 * 1.5])


def test_a_length_reward_is_on_for_some_steps_and_off_for_others():
    keys = TaskArguments(task="parity", length_reward="cosine", length_least=-2.0, length_on=2, length_off=3)
    reward = keys.make_rewards(keys.make_task(), max_completion_length=4)[1]
    ids = [[], [1, 1], [1] * 4]
    at = [reward(completion_ids=ids, trainer_state=SimpleNamespace(global_step=step)) for step in range(8)]
    for step, values in enumerate(at):
        assert values == pytest.approx([0.0, -1.0, -2.0] if step in (0, 1, 5, 6) else [0.0, 0.0, 0.0])


def test_a_target_length_is_missed_on_both_sides():
    keys = SimpleNamespace(length_target=3, length_cost=0.5)
    assert target_length_reward(keys, 9)(completion_ids=[[1], [1] * 3, [1] * 5]) == [-1.0, 0.0, -1.0]


KINDS = {"cosine": {}, "target": {"length_target": 4}, "overlong": {"length_margin": 2}}


@pytest.mark.parametrize("kind", KINDS)
def test_in_a_recipe_the_task_comes_first(kind):
    """So that it, and not the length, decides which groups dynamic sampling replaces."""
    arguments = TaskArguments(task="parity", length_reward=kind, **KINDS[kind])
    rewards = arguments.make_rewards(arguments.make_task(), max_completion_length=8)
    assert rewards[0].__name__ == "parity"
    assert len(rewards) == 2
