"""Length rewards, by hand."""

from types import SimpleNamespace

import pytest

from trl_prorl.rollout.length_rewards import cosine, cosine_length_reward, is_on, target_length_reward
from trl_prorl.train import TaskArguments


def test_cosine_by_hand():
    values = [cosine(length, 100, -1.0, 0.5) for length in (0, 50, 100, 150, 100 / 3)]
    assert values == pytest.approx([0.5, -0.25, -1.0, -1.0, -1.0 + 0.75 * 1.5])


def test_it_is_on_for_some_steps_and_off_for_others():
    assert [is_on(step, 2, 3) for step in range(8)] == [True, True, False, False, False, True, True, False]
    assert all(is_on(step, 1, 0) for step in range(5))
    reward = cosine_length_reward(longest=4, least=-1.0, on=1, off=2)
    ids = [[], [1, 1], [1] * 4]
    at = [reward(completion_ids=ids, trainer_state=SimpleNamespace(global_step=step)) for step in range(4)]
    assert at[0] == at[3] == pytest.approx([0.0, -0.5, -1.0]) and at[1] == at[2] == [0.0, 0.0, 0.0]


def test_a_target_is_missed_on_both_sides():
    assert target_length_reward(3, 0.5)(completion_ids=[[1], [1] * 3, [1] * 5], prompts=None) == [-1.0, 0.0, -1.0]


def test_a_length_reward_shortens(run):
    """The policy learns to stop early, where nothing else is rewarded."""
    keys = {"max_steps": 30, "max_completion_length": 12, "learning_rate": 2e-2, "num_iterations": 1}
    trainer = run(reward=cosine_length_reward(12, -1.0), per_device_train_batch_size=32, num_generations=8, **keys)
    lengths = [entry["completions/mean_length"] for entry in trainer.state.log_history if "reward" in entry]
    assert sum(lengths[-5:]) < 0.8 * sum(lengths[:5])


@pytest.mark.parametrize(
    "keys",
    [
        {"length_reward": "cosine"},
        {"length_reward": "target", "length_target": 4},
        {"length_reward": "overlong", "length_margin": 2},
    ],
)
def test_in_a_recipe_the_task_comes_first(keys):
    """So that it, and not the length, decides which groups dynamic sampling replaces."""
    arguments = TaskArguments(task="parity", **keys)
    rewards = arguments.make_rewards(arguments.make_task(), max_completion_length=8)
    assert rewards[0].__name__ == "parity" and len(rewards) == 2
