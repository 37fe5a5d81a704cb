"""Values that are chosen on validation: the rule by hand, and runs that wait for it."""

import pytest
import yaml
from rich.console import Console

from study.matrix import TUNED, RunKey, read_matrix
from study.pages import write_pages
from study.runner import Options, Runner
from study.tables import Tables
from study.tuned import choices, with_choices
from trl_prorl.errors import InputError


MATRIX = """
evaluation: {prompts: 24, samples: 8, drift_samples: 2}
blocks:
  tuning:
    split: validation
    families: [digits, letters]
    pairs: [[0, 1], [6, 2]]
    steps: 3
    arms:
      plain: {}
      A_beta1: {beta: 1.0}
      A_beta3: {beta: 3.0}
      A_beta9: {beta: 9.0}
      B_beta_old2: {beta_old: 2.0}
  core:
    tuned_on: tuning
    families: [digits, letters]
    pairs: [[1, 1]]
    steps: 3
    arms:
      plain:
      A: {beta: tuned}
      B: {beta_old: tuned}
"""
FAMILIES = ("digits", "letters")
# By arm: pass@1 on base 0 and on base 6.
PASSED = {"plain": (0.9, 0.9), "A_beta1": (0.6, 0.5), "A_beta3": (0.5, 0.585), "A_beta9": (0.5, 0.57)}


@pytest.fixture
def tuned(add):
    """A function: tables in which every value has been tried."""

    def make(family="digits", **passed):
        tables = Tables()
        for arm, both in {**PASSED, "B_beta_old2": (0.1, 0.1), **passed}.items():
            for base, seed, pass1 in ((0, 1, both[0]), (6, 2, both[1])):
                add(tables, RunKey(family, arm, base, seed, 3), pass1=pass1)
        return tables

    return make


def recipes(matrix):
    return {(run.key.family, run.key.arm): run.recipe for run in matrix.runs if run.key.base_seed == 1}


def test_the_largest_value_within_a_hundredth_of_the_best(study, tuned):
    """Means 0.55, 0.5425 and 0.535: the second is near enough to the best, the third is not."""
    whole, tables = read_matrix(study(MATRIX, FAMILIES)), tuned()
    found = {(choice.family, choice.key): choice.value for choice in choices(whole, tables)}
    assert found == {("digits", "beta"): 3.0, ("digits", "beta_old"): 2.0}
    matrix = with_choices(whole.selected(["core"]), whole, tables)
    assert recipes(matrix)["digits", "A"]["beta"] == 3.0 and recipes(matrix)["digits", "B"]["beta_old"] == 2.0
    assert recipes(matrix)["letters", "A"]["beta"] == TUNED  # its own runs decide
    assert [run.key.arm for run in matrix.runs if run.waits] == ["A", "B"]


def test_a_block_may_choose_by_the_reward_that_training_paid(study, tuned):
    """The rule of the same numbers, where pass@1 would have chosen 3."""
    text = MATRIX.replace("split: validation", "split: validation\n    tuned_by: proxy", 1)
    whole, tables = read_matrix(study(text, FAMILIES)), tuned()
    for key, row in tables.runs.items():
        row["proxy"] = {"A_beta1": 0.99, "A_beta3": 0.97, "A_beta9": 0.985}.get(key.arm, 0.5)
    assert {choice.key: choice.value for choice in choices(whole, tables)} == {"beta": 9.0, "beta_old": 2.0}
    with pytest.raises(InputError, match="tuned_by='gold' has to be one of pass@1, proxy"):
        read_matrix(study(text.replace("tuned_by: proxy", "tuned_by: gold"), FAMILIES))


def test_nothing_is_chosen_before_the_last_run(study, tuned):
    whole, tables = read_matrix(study(MATRIX, FAMILIES)), tuned()
    del tables.runs[RunKey("digits", "A_beta9", 6, 2, 3)]
    assert [choice.key for choice in choices(whole, tables)] == ["beta_old"]


def test_tuning_runs_are_no_results(study, tuned):
    root = study(MATRIX, FAMILIES)
    with pytest.raises(InputError, match="none of these runs is finished"):
        write_pages(root, read_matrix(root), tuned())


def test_a_recipe_is_told_by_the_value_that_was_chosen(study, tuned):
    whole = read_matrix(study(MATRIX, FAMILIES))
    hashes = set()
    for tables in (tuned(), tuned(A_beta1=(0.9, 0.9))):
        matrix = with_choices(whole, whole, tables)
        hashes |= {run.recipe_hash for run in matrix.runs if run.key.arm == "A" and run.key.family == "digits"}
    assert len(hashes) == 2


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("    tuned_on: tuning\n", "", "blocks.core: beta: tuned needs tuned_on, the block that chooses it"),
        ("tuned_on: tuning", "tuned_on: core", "tuned_on='core' has to name a block with split: validation"),
        ("split: validation", "split: train", "split='train' has to be one of test, validation"),
        ("[digits, letters]", "[digits]", "tuned_on='tuning' does not choose for letters"),
        ("      B_beta_old2: {beta_old: 2.0}\n", "", "beta_old: tuned: tuning tries no value of beta_old"),
        ("[[1, 1]]", "[[6, 1]]", "base 6 of digits chooses values and is reported"),
    ],
)
def test_what_is_wrong_is_one_line(study, old, new, message):
    assert old in MATRIX
    with pytest.raises(InputError, match=message):
        read_matrix(study(MATRIX.replace(old, new, 1), FAMILIES))


def test_runs_that_wait_go_on_once_the_choice_is_made(checkout, monkeypatch, add):
    """The runner's own order, with jobs that end at once."""
    matrix = yaml.safe_load(MATRIX.replace("digits, letters", "reverse_digits"))
    matrix["blocks"]["tuning"]["pairs"], matrix["blocks"]["core"]["pairs"] = [[6, 1]], [[0, 1]]
    path = checkout / "recipes" / "study" / "matrix.yaml"
    before = path.read_text()
    path.write_text(yaml.safe_dump(matrix, sort_keys=False))
    said = Console(record=True, width=200)
    trained = []

    def train(runner, jobs):
        for job in jobs:
            trained.append((job.run.key.arm, job.run.recipe.get("beta"), job.run.recipe.get("beta_old")))
            add(runner.tables, job.run.key, pass1=0.5)

    monkeypatch.setattr(Runner, "_train", train)
    monkeypatch.setattr("study.runner.check_bases", lambda *arguments: set())
    monkeypatch.setattr("study.runner.worktree", lambda root, commit, place: place)
    try:
        whole = read_matrix(checkout)
        Runner(checkout, whole, whole.selected(["core"]), Options(commits=False), said).run()
        assert trained == [("plain", None, None)]
        assert "2 runs (reverse_digits) wait for values" in said.export_text()
        trained.clear()
        Runner(checkout, whole, whole, Options(commits=False), said).run()
    finally:
        path.write_text(before)
    assert [arm for arm, _, _ in trained] == [*PASSED, "B_beta_old2", "plain", "A", "B"]
    assert trained[-2:] == [("A", 9.0, None), ("B", None, 2.0)]


def test_runs_wait_for_a_base_that_the_frozen_code_lacks(checkout, monkeypatch, add):
    """All others are trained, and which base is missing is said. Where none is there, the study is refused."""
    path = checkout / "recipes" / "study" / "matrix.yaml"
    before, trained, said = path.read_text(), [], Console(record=True, width=200)

    def train(runner, jobs):
        for job in jobs:
            trained.append(job.run.key.base_seed)
            add(runner.tables, job.run.key)

    monkeypatch.setattr(Runner, "_train", train)
    monkeypatch.setattr("study.runner.worktree", lambda root, commit, place: root)
    monkeypatch.setattr("study.runner.check_base", lambda *arguments: None)
    try:
        path.write_text(before.replace("[[0, 1]]", "[[99, 1], [0, 1]]"))
        whole = read_matrix(checkout)
        runner = Runner(checkout, whole, whole, Options(commits=False), said)
        runner.run()
        assert (
            trained == [0, 0]
            and "wait for bases that this code does not have: reverse_digits 99" in said.export_text()
        )
        path.write_text(before.replace("[[0, 1]]", "[[99, 1]]"))
        whole = read_matrix(checkout)
        with pytest.raises(InputError, match="embedded:reverse_digits:99 does not come with commit"):
            Runner(checkout, whole, whole, Options(commits=False), said).run()
    finally:
        path.write_text(before)
