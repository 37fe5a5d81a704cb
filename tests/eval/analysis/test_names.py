from itertools import count

import pytest

from eval.analysis.configurations import configuration_labels, repetitions
from eval.run_folder.reading import load_run


@pytest.fixture
def groups(make_run, make_rows):
    """The configurations of runs, each given by its variant, its number of seeds and its keys."""
    numbers = count()

    def make(*arms):
        runs = [
            load_run(make_run(f"r{next(numbers):03}", variant, make_rows(2), config=config, env={"seed": seed}))
            for variant, seeds, config in arms
            for seed in range(seeds)
        ]
        return repetitions(runs)

    return make


def test_a_name_says_what_differs_and_nothing_else(groups):
    same = {"beta": 1.0, "temperature": 0.7, "pack_groups": "on"}
    found = groups(
        ("A", 3, {**same, "ref_reset_every": 40}),
        ("A", 1, {**same, "ref_reset_every": 100}),
        ("A", 1, {**same, "ref_reset_every": 40, "beta": 0.5}),
        ("A", 1, {**same, "ref_reset_every": 0, "ref_reset_kl": 0.015, "ref_reset_kl_window": 10}),
        ("C", 3, {**same, "ref_reset_every": 40, "optimizer_reset": "hard", "optimizer_reset_alpha": 0.1}),
        ("C", 1, {**same, "ref_reset_every": 40, "optimizer_reset": "soft", "optimizer_reset_alpha": 0.1}),
        ("C", 1, {**same, "ref_reset_every": 40, "optimizer_reset": "soft", "optimizer_reset_alpha": 0.25}),
        ("C", 1, {**same, "ref_reset_every": 40, "optimizer_reset": "hard", "ref_reset_stall": 2}),
        ("B", 2, {"beta_old": 1.0}),
    )
    assert configuration_labels(found) == [
        "A K=40 β=1", "A K=100 β=1", "A K=40 β=0.5", "A KL>0.015 over 10 steps β=1",
        "C hard", "C soft 0.1", "C soft 0.25", "C hard stall 2",
        "B",
    ]  # fmt: skip


def test_one_configuration_needs_no_settings(groups):
    assert configuration_labels(groups(("C", 2, {"optimizer_reset": "hard", "beta": 0.3}))) == ["C"]


def test_a_task_is_named_and_stands_for_what_goes_with_it(groups):
    tasks = {
        "reverse_digits": {"model_name_or_path": "embedded:reverse_digits:1", "ref_reset_every": 40},
        "sums": {"model_name_or_path": "embedded:sums:1", "max_completion_length": 48, "ref_reset_every": 80},
    }
    arms = [("A", 2, {"task": task, "max_steps": 240, **keys}) for task, keys in tasks.items()]
    longer = ("A", 1, {"task": "sums", "max_steps": 1000, **tasks["sums"]})
    found = groups(*arms, longer, ("elastic", 1, {"task": "sums"}))
    assert configuration_labels(found) == ["A reverse_digits", "A sums 240 steps", "A sums 1000 steps", "elastic"]


def test_another_setting_is_named_by_its_key(groups):
    found = groups(("plain", 2, {"epsilon": 0.2, "mask": True}), ("plain", 1, {"epsilon": 0.3, "mask": True}))
    assert configuration_labels(found) == ["plain epsilon=0.2", "plain epsilon=0.3"]


def test_no_two_names_are_alike(groups):
    """Off in two ways: they are counted."""
    found = groups(("A", 1, {"ref_reset_stall": 0}), ("A", 1, {"ref_reset_stall": None}))
    assert configuration_labels(found) == ["A", "A (2)"]
