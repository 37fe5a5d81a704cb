import dataclasses

import pytest
from trl import GRPOConfig, ScriptArguments

from eval.analysis.configurations import (
    EFFECTIVE_WITH,
    VALIDATION_KEYS,
    configuration_labels,
    matters,
    repetitions,
    seed_count,
)
from eval.run_folder.reading import load_run
from eval.run_folder.run import base_family
from trl_prorl import ProRLConfig
from trl_prorl.train import TaskArguments


def test_what_changes_no_number_makes_no_other_configuration(make_run, make_rows):
    def run(seed, **config):
        return load_run(make_run(f"s{seed}", "A", make_rows(2), env={"seed": seed}, config={"seed": seed, **config}))

    harmless = {"hub_model_id": "me/a", "resume_from_checkpoint": True, "logging_steps": 5, "output_dir": "elsewhere"}
    runs = [run(0), run(1, **harmless), run(2, model_name_or_path="big"), run(3, dataset_name="other"), run(4, beta=1)]
    groups = repetitions(runs)
    assert [[one.name for one in group] for group in groups] == [["s0", "s1"], ["s2"], ["s3"], ["s4"]]
    labels = configuration_labels(groups)
    assert not any(key in label for label in labels for key in harmless)
    assert labels == ["A tiny", "A big", "A tiny dataset_name=other", "A tiny β=1"]


def test_seeds_of_base_and_training_make_no_other_configuration(make_run, make_rows):
    """`embedded` is the reversing base of seed 0; another task's base is another configuration."""
    names = ["embedded", "embedded:reverse_digits", "embedded:reverse_digits:3", "embedded:sorting:3"]
    runs = [
        load_run(make_run(f"r{i}", "A", make_rows(2), env={"seed": 1}, config={"model_name_or_path": name}))
        for i, name in enumerate(names)
    ]
    groups = repetitions(runs)
    assert [[run.name for run in group] for group in groups] == [["r0", "r1", "r2"], ["r3"]]
    assert seed_count(groups[0]) == 2  # of one training seed: the bases of seed 0 and 3
    assert [run.base for run in runs] == [
        *[("embedded:reverse_digits", seed) for seed in (0, 0, 3)],
        ("embedded:sorting", 3),
    ]
    assert runs[2].repetition == (3, "1")


@pytest.mark.parametrize("model", ["Qwen/Qwen2.5-0.5B", "embedded:a:b", "embedded/sorting", "embedded:sorting:-1", 3])
def test_other_models_are_bases_of_their_own(model):
    assert base_family(model) == (model, None)


# A configuration in which a key has its effect.
ENABLING = {
    "optimizer_reset_alpha": {"optimizer_reset": "soft"},
    "kl_horizon": {"kl_target": 0.1},
    "base_anchor_every": {"beta_base": 0.1},
    "pack_max_tokens": {"pack_groups": "auto"},
    "elastic_ema": {"elastic_reset_every": 5},
    "entropy_patience": {"entropy_floor": 0.1},
    "guard_gap_action": {"guard_gap": 0.1},
    "rollback_rate": {"rollback": 1},
    **dict.fromkeys(("lora_growth_step", "lora_growth_max_rank"), {"lora_growth_every": 5}),
    "ref_reset_kl_window": {"ref_reset_kl": 0.1},
    "dynamic_sampling_rewards": {"dynamic_sampling_rounds": 1},
    **dict.fromkeys(("length_least", "length_on", "length_off"), {"length_reward": "cosine"}),
    **dict.fromkeys(("length_target", "length_cost"), {"length_reward": "target"}),
    "length_margin": {"length_reward": "overlong"},
    **dict.fromkeys(("thinking_text", "thinking_answer_tokens"), {"thinking_budget": 8}),
    **dict.fromkeys(("ref_reset_metric", "ref_reset_metric_mode", "ref_reset_min_delta"), {"ref_reset_drop": 0.1}),
}
# Other values than the defaults, each of which a check of the value alone accepts.
OTHER_VALUES = {"ref_reset_metric": "eval_rewards/x/mean", "ref_reset_metric_mode": "min"}
OTHER_VALUES |= {"dynamic_sampling_rewards": ["x"], "optimizer_reset_alpha": 0.5, "elastic_ema": 0.5}
OTHER_VALUES |= {"rollback_rate": 0.25, "guard_gap_action": "stop"}


def refused_as_without_effect():
    """Our own keys of which the configuration says, when nothing else is set, that they need another one."""
    quiet = {"bf16": False, "use_cpu": True, "report_to": "none"}
    for cls, host, common in ((ProRLConfig, GRPOConfig, quiet), (TaskArguments, ScriptArguments, {})):
        inherited = {field.name for field in dataclasses.fields(host)}
        for field in dataclasses.fields(cls):
            if field.name in inherited:
                continue
            value = OTHER_VALUES.get(field.name, other_value(field.default))
            try:
                cls(**common, **{field.name: value})
            except ValueError as error:
                if f"{field.name}={value!r} has no effect without" in str(error):
                    yield field.name


def other_value(default):
    if isinstance(default, bool) or default is None or isinstance(default, str):
        return "x" if isinstance(default, str) else 7 if default is None else not default
    return default + 1


def test_the_configuration_and_the_report_agree_on_what_has_no_effect():
    """A rule of one alone would split or join runs wrongly."""
    refused = set(refused_as_without_effect())
    assert refused == set(ENABLING) == set(EFFECTIVE_WITH) - VALIDATION_KEYS
    for key, enabling in ENABLING.items():
        assert not matters(key, {}), key
        assert matters(key, enabling), key
