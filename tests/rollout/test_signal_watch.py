"""Rewards from which nothing is learned: what a run says of them, and when it stops."""

from types import SimpleNamespace

import pytest
import torch
from run_record import read_events
from tiny_run import constant, vowels
from trl import GRPOTrainer

from trl_prorl.extras.dynamic_sampling import SignalWatch


class Watch(SignalWatch):
    def __init__(self, estimator=None, aggregation="sum_then_normalize", weights=(1.0, 1.0), taught=False):
        args = SimpleNamespace(
            advantage_estimator=estimator,
            multi_objective_aggregation=aggregation,
            nonfinite="stop",
            learns_from_teacher=taught,
        )
        super().__init__(args, None, torch.tensor(weights), 2)

    def steps_of_events(self, batches, rewards, counts=(True,) * 4):
        """The steps at which an event comes, of batches of the same rewards of two functions."""
        found = []
        for step in range(1, batches + 1):
            self.observe(torch.tensor(rewards), torch.tensor(counts))
            if self.on_row(step, {}) is not None:
                found.append(step)
        return found


THIRD = [[1 / 3, 0.0]] * 4
ACROSS = [[0.0, 0.0], [0.0, 0.0], [1.0, 0.0], [1.0, 0.0]]  # two groups, each of one reward
WITHIN = [[0.0, 0.0], [1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]
OPPOSED = [[0.0, 1.0], [1.0, 0.0], [0.0, 0.0], [0.0, 0.0]]  # differ by function, and not in their sum
NAN = float("nan")
SILENT = [20, 40, 80]


@pytest.mark.parametrize(
    "keys, rewards, counts, steps",
    [
        ({}, THIRD, [True] * 4, SILENT),
        ({}, ACROSS, [True] * 4, SILENT),
        ({"taught": True}, ACROSS, [True] * 4, []),
        ({"taught": True}, ACROSS, [False] * 4, SILENT),
        ({}, WITHIN, [True] * 4, []),
        ({"estimator": "global_normalized"}, ACROSS, [True] * 4, []),
        ({}, OPPOSED, [True] * 4, SILENT),
        ({"aggregation": "normalize_then_sum", "weights": (2.0, 1.0)}, OPPOSED, [True] * 4, []),
        ({"aggregation": "normalize_then_sum", "weights": (1.0, 1.0)}, OPPOSED, [True] * 4, SILENT),
        ({"weights": (0.0, 1.0)}, WITHIN, [True] * 4, SILENT),
        ({"aggregation": "normalize_then_sum", "weights": (0.0, 1.0)}, WITHIN, [True] * 4, SILENT),
        ({}, [[1.0, NAN], [NAN, NAN], [2.0, NAN], [2.0, NAN]], [True] * 4, SILENT),
        # Completions that are left out of the loss teach nothing.
        ({}, WITHIN, [False, False, True, True], SILENT),
        ({}, WITHIN, [False, True, True, True], []),
    ],
)
def test_batches_without_a_signal_are_told_of_and_rarely_again(keys, rewards, counts, steps):
    assert Watch(**keys).steps_of_events(100, rewards, counts) == steps


def test_a_batch_with_a_signal_begins_the_count_anew():
    watch = Watch()
    assert watch.steps_of_events(19, THIRD) == []
    assert watch.steps_of_events(1, WITHIN) == []
    assert watch.steps_of_events(40, THIRD) == [20, 40]


def test_a_run_without_a_signal_is_told_of(run, caplog):
    """Its anchor's KL moves it all the same."""
    trainer = run(reward=constant(1 / 3), beta=0.1, num_iterations=1, max_steps=21, logging_steps=30)
    assert "No signal in 20 generation batches" in caplog.text
    (event,) = read_events(trainer.run_dir)
    assert (event["event"], event["step_applied"], event["value"]) == ("no_signal", 20, 20)
    caplog.clear()
    run(reward=vowels, beta=0.1)
    assert "No signal" not in caplog.text


def none_in(*batches):
    """Make a reward that is `None` for all completions of these generation batches, from 1."""
    calls = 0

    def reward(completions, **columns):
        nonlocal calls
        calls += 1
        return [None if calls in batches else float(place) for place in range(len(completions))]

    return reward


def test_batches_without_any_reward_train_as_in_trl(run, largest_difference):
    keys = {"num_iterations": 1, "max_steps": 6}
    ours = run(reward=none_in(1, 2, 3, 5), **keys)
    theirs = run(GRPOTrainer, reward=none_in(1, 2, 3, 5), **keys)
    assert largest_difference(ours, theirs) == 0.0
