"""Values that are chosen on validation: the rule by hand, and runs that wait for it."""

from copy import deepcopy

import pytest
import yaml

from study.findings import write_pages
from study.matrix import OWN, TUNED, RunKey, read_matrix
from study.runner import Runner
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


def add_both(add, tables, arm, both):
    """The runs of an arm on base 0 and base 6, or new values for them."""
    for (base, seed), passed in zip(((0, 1), (6, 2)), both, strict=True):
        key = RunKey("digits", arm, base, seed, 3)
        if key in tables.runs.index:
            tables.runs.loc[key, "pass@1"] = passed
        else:
            add(tables, key, **{"pass@1": passed, "proxy": 0.5})


@pytest.fixture(scope="module")
def tried(add):
    tables = Tables()
    for arm, both in {**PASSED, "B_beta_old2": (0.1, 0.1)}.items():
        add_both(add, tables, arm, both)
    return tables


@pytest.fixture
def tuned(tried, add):
    """A function: tables in which every value has been tried, with other numbers or arms."""

    def make(proxy=None, without=(), **passed):
        tables = deepcopy(tried).without([key for key in tried.runs.index if (key[1], key[2]) in without])
        for arm, value in (proxy or {}).items():
            tables.runs.loc[tables.runs.index.get_level_values("arm") == arm, "proxy"] = value
        for arm, both in passed.items():
            add_both(add, tables, arm, both)
        return tables

    return make


def recipes(matrix):
    return {(run.key.family, run.key.arm): run.recipe for run in matrix.runs if run.key.base_seed == 1}


def test_the_largest_value_within_a_hundredth_of_the_best(study, tuned):
    """Means 0.55, 0.5425 and 0.535: the second is near enough to the best, the third is not."""
    whole = read_matrix(study(MATRIX, FAMILIES))
    tables = tuned()
    found = {(choice.family, choice.key): choice.value for choice in choices(whole, tables)}
    assert found == {("digits", "beta"): 3.0, ("digits", "beta_old"): 2.0}
    matrix = with_choices(whole.selected(["core"]), whole, tables)
    assert recipes(matrix)["digits", "A"]["beta"] == 3.0
    assert recipes(matrix)["digits", "B"]["beta_old"] == 2.0
    assert recipes(matrix)["letters", "A"]["beta"] == TUNED  # its own runs decide
    assert [run.key.arm for run in matrix.runs if run.open_keys] == ["A", "B"]


def test_a_block_may_choose_by_the_reward_that_training_paid(study, tuned):
    """The rule of the same numbers, where pass@1 would have chosen 3."""
    text = MATRIX.replace("split: validation", "split: validation\n    tuned_by: proxy", 1)
    whole = read_matrix(study(text, FAMILIES))
    tables = tuned(proxy={"A_beta1": 0.99, "A_beta3": 0.97, "A_beta9": 0.985})
    assert {choice.key: choice.value for choice in choices(whole, tables)} == {"beta": 9.0, "beta_old": 2.0}
    with pytest.raises(InputError, match="tuned_by is 'gold'; pass@1, proxy, gain or reward is needed"):
        read_matrix(study(text.replace("tuned_by: proxy", "tuned_by: gold"), FAMILIES))


def test_a_block_may_choose_by_the_last_steps_of_training(study, add):
    """The highest mean of the last 20 rewards, however close another is; of equal ones the smallest value."""
    text = MATRIX.replace("split: validation", "split: validation\n    tuned_by: reward", 1)
    text = text.replace("steps: 3", "steps: 30")
    whole = read_matrix(study(text, FAMILIES))
    tables = Tables()
    # Ten first steps, which do not count, and twenty last ones.
    last = {"A_beta1": 0.5, "A_beta3": 0.505, "A_beta9": 0.4, "B_beta_old2": 0.1}
    for arm, reward in last.items():
        for base, seed in ((0, 1), (6, 2)):
            rewards = [0.9 if arm == "A_beta9" else 0.0] * 10 + [reward] * 20
            add(tables, RunKey("digits", arm, base, seed, 30), curve={"reward": rewards})
    assert {choice.key: choice.value for choice in choices(whole, tables)} == {"beta": 3.0, "beta_old": 2.0}
    tables.curves.loc[tables.curves.index.get_level_values("arm") == "A_beta3", "reward"] = 0.5
    tables.curves.loc[tables.curves.index.get_level_values("arm") == "A_beta1", "reward"] = 0.5
    assert {choice.key: choice.value for choice in choices(whole, tables)} == {"beta": 1.0, "beta_old": 2.0}


@pytest.mark.parametrize("lowest, chosen", [((0.28, 0.25), 3.0), ((0.25, 0.25), 1.0), ((0.3, 0.3), 9.0)])
def test_the_smallest_value_at_which_the_policy_stands_still(study, tuned, lowest, chosen):
    """Bases have 0.25. A mean gain of 0.02 is still; where nothing is, the largest value."""
    passed = {"A_beta1": (0.25, 0.3), "A_beta3": (0.27, 0.27), "A_beta9": (0.25, 0.25)}
    passed |= {"A_beta1": lowest} if chosen == 1 else dict.fromkeys(passed, lowest) if chosen == 9 else {}
    whole = read_matrix(study(MATRIX.replace("validation", "validation\n    tuned_by: gain", 1), FAMILIES))
    (choice, _) = choices(whole, tuned(**passed))
    assert (choice.key, choice.by, choice.value) == ("beta", "gain", chosen)


def test_a_block_may_take_the_choice_of_another_family(study, tuned):
    text = MATRIX.replace("[digits, letters]", "[digits]", 1).replace("tuned_on", "tuned_family: digits\n    tuned_on")
    whole = read_matrix(study(text, FAMILIES))
    matrix = with_choices(whole, whole, tuned())
    assert [recipes(matrix)[family, "A"]["beta"] for family in FAMILIES] == [3.0, 3.0]


SCREEN = (
    MATRIX.replace("      plain: {}", "      plain: {}\n      K_beta3: {beta: 3.0, ref_reset_every: 9}")
    .replace(
        "B: {beta_old: tuned}",
        "K: {beta: tuned, ref_reset_every: 9}\n      K_own: {beta: tuned_own, ref_reset_every: 9}",
    )
    .replace("A_beta3: {beta: 3.0}", "K_beta1: {beta: 1.0, ref_reset_every: 9}")
)


@pytest.mark.parametrize("k1, own", [((0.1, 0.1), [3.0]), ((0.9, 0.9), [])])
def test_an_arm_s_own_choice_counts_its_own_tuning_runs(study, tuned, k1, own):
    """
    A has 0.55 at 1 and 0.535 at 9, K has 0.4 at 3. With K's 0.1 at 1 the means are 0.325, 0.4 and 0.535: all take 9,
    and K alone 3. With 0.9 all and K alone take 1, and the arm is the same as K.
    """
    whole = read_matrix(study(SCREEN, FAMILIES))
    tables = tuned(K_beta1=k1, K_beta3=(0.4, 0.4))
    matrix = with_choices(whole, whole, tables)
    found = recipes(matrix)
    assert found["digits", "K"]["beta"] == found["digits", "A"]["beta"] == (9.0 if own else 1.0)
    assert [found[key]["beta"] for key in [("digits", "K_own")] if key in found] == own
    (core,) = (block for block in matrix.blocks if block.name == "core")
    assert "K_own" in core.arms
    assert found["letters", "K_own"]["beta"] == OWN  # letters has not chosen yet


def test_nothing_is_chosen_before_the_last_run(study, tuned):
    whole = read_matrix(study(MATRIX, FAMILIES))
    tables = tuned(without=[("A_beta9", 6)])
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
        ("[digits, letters]", "[digits]", "tuned_on='tuning' does not choose for letters"),
        ("      B_beta_old2: {beta_old: 2.0}\n", "", "beta_old: tuned: tuning tries no value of beta_old"),
        ("[[1, 1]]", "[[6, 1]]", "base 6 of digits chooses values and is reported"),
    ],
)
def test_what_is_wrong_is_one_line(study, old, new, message):
    assert old in MATRIX
    with pytest.raises(InputError, match=message):
        read_matrix(study(MATRIX.replace(old, new, 1), FAMILIES))


@pytest.fixture
def train(checkout, monkeypatch, add):
    """A function: the runs that a runner trains with a matrix, in its order; its jobs end at once."""
    path = checkout / "study" / "recipes" / "matrix.yaml"
    trained = []
    before = path.read_text()

    def end_at_once(runner, runs, place, code):
        for run in runs:
            trained.append(run)
            add(runner.tables, run.key)

    def train(text, *blocks):
        path.write_text(text)
        whole = read_matrix(checkout)
        Runner(checkout, whole, whole.selected(blocks) if blocks else whole, commits=False).run()
        done = trained.copy()
        trained.clear()
        return done

    monkeypatch.setattr(Runner, "_train", end_at_once)
    monkeypatch.setattr("study.runner.worktree", lambda root, commit, place: root)
    monkeypatch.setattr("study.runner.check_base", lambda *arguments: None)
    yield train
    path.write_text(before)


def test_runs_that_wait_go_on_once_the_choice_is_made(train, monkeypatch, capsys):
    monkeypatch.setattr("study.runner.check_bases", lambda *arguments: set())
    matrix = yaml.safe_load(MATRIX.replace("digits, letters", "reverse_digits"))
    matrix["blocks"]["tuning"]["pairs"] = [[6, 1]]
    matrix["blocks"]["core"]["pairs"] = [[0, 1]]
    text = yaml.safe_dump(matrix, sort_keys=False)
    (first,) = train(text, "core")
    assert first.key.arm == "plain"
    assert "2 runs (reverse_digits) wait for values" in capsys.readouterr().out
    trained = train(text)
    assert [run.key.arm for run in trained] == [*PASSED, "B_beta_old2", "plain", "A", "B"]
    assert (trained[-2].recipe["beta"], trained[-1].recipe["beta_old"]) == (9.0, 2.0)


def test_runs_wait_for_a_base_that_the_frozen_code_lacks(checkout, train, capsys):
    """All others are trained, and which base is missing is said. Where none is there, the study is refused."""
    text = (checkout / "study" / "recipes" / "matrix.yaml").read_text()
    trained = train(text.replace("[[0, 1]]", "[[99, 1], [0, 1]]"))
    said = "wait for bases that this code does not have: study/bases/reverse_digits-99"
    assert [run.key.base_seed for run in trained] == [0, 0]
    assert said in capsys.readouterr().out
    with pytest.raises(InputError, match="study/bases/reverse_digits-99 does not come with commit"):
        train(text.replace("[[0, 1]]", "[[99, 1]]"))
