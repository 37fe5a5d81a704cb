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
from eval.run_folder.run import base_family
from trl_prorl import ProRLConfig
from trl_prorl.train import TaskArguments


def test_what_changes_no_number_makes_no_other_configuration(read_run):
    harmless = {"hub_model_id": "me/a", "resume_from_checkpoint": True, "logging_steps": 5, "output_dir": "elsewhere"}
    keys = [{}, harmless, {"model_name_or_path": "big"}, {"dataset_name": "other"}, {"beta": 1}]
    groups = repetitions([read_run("A", i, config={"seed": i, **config}) for i, config in enumerate(keys)])
    assert [[one.name for one in group] for group in groups] == [["A0", "A1"], ["A2"], ["A3"], ["A4"]]
    assert configuration_labels(groups) == ["A tiny", "A big", "A tiny dataset_name=other", "A tiny β=1"]


def test_seeds_of_base_and_training_make_no_other_configuration(read_run):
    """`embedded` is the reversing base of seed 0; another task's base is another configuration."""
    names = ["embedded", "embedded:reverse_digits", "embedded:reverse_digits:3", "embedded:sorting:3"]
    runs = [read_run("A", 1, f"r{i}", config={"model_name_or_path": name}) for i, name in enumerate(names)]
    groups = repetitions(runs)
    assert [[run.name for run in group] for group in groups] == [["r0", "r1", "r2"], ["r3"]]
    assert seed_count(groups[0]) == 2  # of one training seed: the bases of seed 0 and 3
    of = "embedded:reverse_digits"
    assert [run.base for run in runs] == [(of, 0), (of, 0), (of, 3), ("embedded:sorting", 3)]
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
    "vllm_enable_lora": {"use_vllm": True},
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
    others = {bool: lambda value: not value, str: lambda value: "x", type(None): lambda value: 7}
    for cls, host, common in ((ProRLConfig, GRPOConfig, quiet), (TaskArguments, ScriptArguments, {})):
        own = [field for field in dataclasses.fields(cls) if field.name not in host.__dataclass_fields__]
        for name, default in ((field.name, field.default) for field in own):
            value = OTHER_VALUES.get(name, others.get(type(default), lambda value: value + 1)(default))
            try:
                cls(**common, **{name: value})
            except ValueError as error:
                if f"{name}={value!r} has no effect without" in str(error):
                    yield name


def test_the_configuration_and_the_report_agree_on_what_has_no_effect():
    """A rule of one alone would split or join runs wrongly."""
    refused = set(refused_as_without_effect())
    assert refused == set(ENABLING) == set(EFFECTIVE_WITH) - VALIDATION_KEYS
    for key, enabling in ENABLING.items():
        assert not matters(key, {}), key
        assert matters(key, enabling), key
