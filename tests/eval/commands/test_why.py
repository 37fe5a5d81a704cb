"""Which cause of trouble is named, from rows that show one."""

import numpy as np
import pytest
import torch

from trl_prorl.advantages import ESTIMATORS, estimate
from trl_prorl.eval.analysis.stability import has_collapsed
from trl_prorl.eval.why import RULES, explain, find_causes, main
from trl_prorl.keys import LOWER_THE_REWARD
from trl_prorl.kl import token_weights
from trl_prorl.supported import LOSS_TYPES


HEALTHY = {
    "reward": lambda step: 0.2 + step / 200,
    "accuracy": lambda step: 0.2 + step / 200,
    "frac_reward_zero_std": 0.4,
    "truncated_fraction": 0.05,
    "clip_region_mean": 0.01,
    "kl_penalty": 0.005,
    "kl_ref": 0.05,
    "nonfinite_skips": 0,
}
AT_TRLS_RATE = {
    "config": {"learning_rate": 1e-6},
    "env": {"parameters": 100, "trainable_parameters": 5},
}
# By cause: what the rows of 100 steps show, and the step at which it does.
SIGNS = {
    "NaN or infinity": ({"nonfinite_skips": lambda step: int(step >= 30)}, 30),
    "completions are cut": ({"truncated_fraction": lambda step: float(step > 50)}, 59),  # nine of ten
    "no signal": ({"frac_reward_zero_std": lambda step: float(step > 30)}, 49),  # 19 of 20
    "learning rate too high": ({"clip_region_mean": lambda step: 0.5 * (step > 20)}, 22),
    "learning rate too low": (AT_TRLS_RATE, 20),
    "KL too strong": ({"reward": 0.2, "accuracy": 0.2}, 20),
    "KL idle": ({"kl_penalty": 1e-6}, 100),
}


@pytest.fixture
def causes_of(read_run):
    """A function: the causes in a run of 100 steps, healthy but for these columns and keys, each with its step."""

    def find(variant="control", config=None, **changes):
        config = {"learning_rate": 1e-4, **(config or {})}
        run = read_run(variant, steps=100, config=config, **HEALTHY | changes)
        return {rule.cause: cause.step for rule, cause in find_causes(run)}

    return find


def test_every_rule_has_a_sign():
    assert SIGNS.keys() == {rule.cause for rule in RULES}


@pytest.mark.parametrize("cause", SIGNS)
def test_a_sign_is_named_and_nothing_else(causes_of, cause):
    sign, step = SIGNS[cause]
    assert causes_of(**sign) == {cause: step}


ALL_WEIGHTS = {"env": dict.fromkeys(AT_TRLS_RATE["env"], 9)}
OWN_OPTIMIZER = {"lr": lambda step: 1e-4 * (1 - step / 100)}  # of a script, beside the key's default


@pytest.mark.parametrize("more", [{"config": {"learning_rate": 2e-6}}, ALL_WEIGHTS, OWN_OPTIMIZER])
def test_a_rate_above_trls_and_one_for_all_weights_are_in_order(causes_of, more):
    assert causes_of(**AT_TRLS_RATE | more) == {}


def test_a_run_that_solves_its_prompts_is_in_no_trouble(causes_of):
    assert causes_of(accuracy=0.99, reward=0.99, frac_reward_zero_std=0.99, kl_penalty=5e-4) == {}


def test_the_earliest_comes_first_and_the_exit_code_says_that_there_is_one(make_run, make_rows, capsys):
    values = HEALTHY | SIGNS["learning rate too high"][0] | SIGNS["KL idle"][0]
    ill = make_run("ill", "control", make_rows(steps=100, **values))
    well = make_run("well", "control", make_rows(steps=100, **HEALTHY))
    assert main([str(ill), str(well)]) == 1
    first, *_, later, of_well = capsys.readouterr().out.splitlines()
    assert "learning rate too high" in first and "22" in first
    assert "KL idle" in later and "100" in later
    assert "well" in of_well
    assert main([str(well)]) == 0
    assert main([str(well.parent)]) == 1  # a folder of runs
    assert len(capsys.readouterr().out.splitlines()) == 6
    ill = ill.rename(ill.with_name("ill\x1b[2J\u202e"))
    (ill / "env.json").write_text("{")
    assert main([str(well.parent)]) == 0
    well_line, left_out = capsys.readouterr().out.splitlines()
    assert "well" in well_line and "env.json" in left_out and left_out.isprintable()


def test_a_kl_that_holds_the_policy_is_named_while_the_reward_rises(causes_of):
    assert causes_of(kl_penalty=0.02, kl_ref=0.001) == {"KL too strong": 20}


def test_a_policy_that_a_high_rate_destroys_is_not_said_to_be_cut(causes_of):
    fallen = {"reward": lambda step: 0.5 * (step <= 20), "truncated_fraction": lambda step: float(step > 15)}
    first, *others = causes_of("plain", **fallen, accuracy=0.2)
    assert first == "learning rate too high" and "completions are cut" in others


def test_columns_that_are_missing_name_nothing(read_run):
    run = read_run("plain", steps=100, reward=0.5)
    assert find_causes(run) == []
    assert explain(run)


@pytest.mark.parametrize(
    ("columns", "cause"),
    [
        ({"reward": 0.0, "frac_reward_zero_std": 1.0}, "no signal"),
        ({"reward": 0.2, "kl_penalty": 5e-3, "kl_ref": 0.05}, "KL too strong"),
        ({"truncated_fraction": 1.0}, "completions are cut"),
        ({"reward": 0.2, "accuracy": 0.5}, "no cause"),
    ],
)
def test_too_few_rows_are_no_all_clear(read_run, columns, cause):
    """A cause is found, or there is a verdict of none, from some number of rows on; below, neither is said."""
    config = {"learning_rate": 1e-4}
    said = [explain(read_run("control", steps=steps, config=config, **columns)) for steps in (5, 19, 60)]
    assert cause in said[2]
    for rows, line in zip((5, 19), said, strict=False):
        assert f"no verdict: {rows} rows" in line or (cause in line and cause != "no cause")


FALLEN = {"reward": lambda step: 0.5 if step <= 50 else 0.2, "accuracy": 0.2}


@pytest.mark.parametrize("key", [None, *LOWER_THE_REWARD])
def test_a_reward_that_a_key_lowers_names_no_cause(causes_of, key):
    causes = causes_of(**FALLEN, config={key: 4})
    assert causes.keys() == (set() if key else {"learning rate too high", "KL too strong"})


@pytest.mark.parametrize("seed", range(20))
def test_a_reward_that_passes_0_is_healthy_until_it_falls(read_run, seed):
    """Means of 16 rewards of -1 or 1: the share of 1 rises from between 5 and 30 % to between 55 and 90 %."""
    draws = np.random.default_rng(seed)
    start = draws.uniform(0.05, 0.3)
    end = draws.uniform(0.55, 0.9)
    share = start + (end - start) * (1 - np.exp(-np.arange(150) / 50))
    correct = draws.binomial(16, share) / 16
    values = {"reward": list(2 * correct - 1), "accuracy": list(correct)}
    columns = {name: lambda step, column=column: column[step - 1] for name, column in values.items()}
    run = read_run("control", steps=150, **HEALTHY | columns | {"config": {"learning_rate": 1e-4}})
    assert run.metrics["reward"].min() < 0 < run.metrics["reward"].max()
    assert find_causes(run) == []
    assert has_collapsed(run) is False
    broken = columns | {"reward": lambda step: values["reward"][step - 1] if step <= 100 else -1.0}
    run = read_run("control", steps=150, **HEALTHY | broken | {"config": {"learning_rate": 1e-4}})
    assert [rule.cause for rule, _ in find_causes(run)] == ["learning rate too high"]
    assert has_collapsed(run) is True


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_groups_of_equal_rewards_are_no_signal_if_all_their_advantages_are_0(causes_of, estimator):
    advantages = estimate(torch.tensor([1.0, 1.0, 0.0, 0.0]), group_size=2, estimator=estimator)
    causes = causes_of(frac_reward_zero_std=1.0, config={"advantage_estimator": estimator})
    assert bool(causes) is not advantages.any().item()


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_a_narrow_range_of_sequences_clips_many_at_any_rate(causes_of, level):
    """GSPO's paper clips 15 % of the tokens, our recipe half of the sequences."""
    causes = causes_of("plain", clip_region_mean=0.5, config={"importance_sampling_level": level})
    assert bool(causes) is (level == "token")


@pytest.mark.parametrize("kl, cause", [(1e-3, set()), (1e-5, {"KL idle"}), (0.2, {"KL too strong"})])
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_what_a_loss_divides_by_changes_no_cause(causes_of, loss_type, kl, cause):
    """The same KL of each token, in TRL's loss of 100-token completions: is it idle, in order, or too strong?"""
    mask = (torch.arange(1000) < 100).float().repeat(4, 1)
    term = (token_weights(mask, loss_type, 1.0, 1000, mask.sum()) * 0.3 * kl).sum().item()
    still = {"reward": 0.2, "accuracy": 0.2} if kl > 0.1 else {}
    config = {"loss_type": loss_type, "max_completion_length": 1000}
    columns = {"kl_penalty": term, "kl_ref": kl, "completion_length": 100.0}
    assert causes_of(**columns, **still, config=config).keys() == cause
