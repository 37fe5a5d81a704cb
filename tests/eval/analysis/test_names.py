from itertools import count

import pytest

from eval.analysis.configurations import configuration_labels, repetitions


@pytest.fixture
def groups(read_run):
    """The configurations of runs, each given by its variant, its number of seeds and its keys."""
    number = count()

    def make(*arms):
        arms = [(variant, seed, config) for variant, seeds, config in arms for seed in range(seeds)]
        return repetitions([read_run(*arm[:2], f"r{next(number):03}", config=arm[2]) for arm in arms])

    return make


def test_a_name_says_what_differs_and_nothing_else(groups):
    same = {"beta": 1.0, "temperature": 0.7, "pack_groups": "on", "ref_reset_every": 40}
    found = groups(
        ("A", 3, same),
        ("A", 1, {**same, "ref_reset_every": 100}),
        ("A", 1, {**same, "beta": 0.5}),
        ("A", 1, {**same, "ref_reset_every": 0, "ref_reset_kl": 0.015, "ref_reset_kl_window": 10}),
        ("C", 3, {**same, "optimizer_reset": "hard", "optimizer_reset_alpha": 0.1}),
        ("C", 1, {**same, "optimizer_reset": "soft", "optimizer_reset_alpha": 0.1}),
        ("C", 1, {**same, "optimizer_reset": "soft", "optimizer_reset_alpha": 0.25}),
        ("C", 1, {**same, "optimizer_reset": "hard", "ref_reset_stall": 2}),
        ("B", 2, {"beta_old": 1.0}),
    )
    assert configuration_labels(found) == [
        "A K=40 β=1", "A K=100 β=1", "A K=40 β=0.5", "A KL>0.015 over 10 steps β=1",
        "C hard", "C soft 0.1", "C soft 0.25", "C hard stall 2",
        "B",
    ]  # fmt: skip


def test_a_task_is_named_and_stands_for_what_goes_with_it(groups):
    tasks = {
        "reverse_digits": {"model_name_or_path": "embedded:reverse_digits:1", "ref_reset_every": 40},
        "sums": {"model_name_or_path": "embedded:sums:1", "max_completion_length": 48, "ref_reset_every": 80},
    }
    arms = [("A", 2, {"task": task, "max_steps": 240, **keys}) for task, keys in tasks.items()]
    longer = ("A", 1, {"task": "sums", "max_steps": 1000, **tasks["sums"]})
    found = groups(*arms, longer, ("elastic", 1, {"task": "sums"}))
    assert configuration_labels(found) == ["A reverse_digits", "A sums 240 steps", "A sums 1000 steps", "elastic"]


@pytest.mark.parametrize(
    "arms, names",
    [
        ([("C", 2, {"optimizer_reset": "hard", "beta": 0.3})], ["C"]),  # one configuration needs no settings
        ([("plain", 1, {"epsilon": e, "mask": True}) for e in (0.2, 0.3)], ["plain epsilon=0.2", "plain epsilon=0.3"]),
        ([("A", 1, {"ref_reset_stall": off}) for off in (0, None)], ["A", "A (2)"]),  # off in two ways
    ],
)
def test_what_names_need(groups, arms, names):
    assert configuration_labels(groups(*arms)) == names
