"""
Keys whose values are small languages: what TRL, transformers or PEFT could not use ends in one line that names the key
before a model is loaded, and what they can use reaches the model.
"""

import pytest
import yaml
from transformers import PreTrainedModel

from trl_prorl import ProRLConfig
from trl_prorl.launch.rehearsal import skeleton_of
from trl_prorl.train import main


RECIPE = {
    "model_name_or_path": "embedded",
    "dtype": "float32",
    "use_peft": True,
    "lora_target_modules": "all-linear",
    "task": "reverse_digits",
    "train_rows": 8,
    "max_steps": 4,
    "per_device_train_batch_size": 4,
    "num_generations": 2,
    "max_completion_length": 4,
    "report_to": "none",
    "use_cpu": True,
    "bf16": False,
}
COSINE = {"lr_scheduler_type": "cosine"}
CHECKPOINTING = {"gradient_checkpointing": True}


class Loaded(Exception):
    """A model is loaded."""


@pytest.fixture
def train(tmp_path, monkeypatch):
    """A function that runs a recipe with some keys until a model is loaded."""

    def load(*args, **keys):
        raise Loaded

    monkeypatch.setattr(PreTrainedModel, "from_pretrained", classmethod(load))

    def train(keys):
        path = tmp_path / "arm.yaml"
        path.write_text(yaml.safe_dump({**RECIPE, "output_dir": str(tmp_path / "run"), **keys}))
        main(None, ["--config", str(path)])

    return train


BAD = [
    ({"optim_args": "a=b,c"}, "optim_args='a=b,c': write NAME=VALUE in place of 'c'"),
    ({"optim_args": "a=b"}, "optim_args='a=b': optim='adamw_torch_fused' takes no 'a'"),
    ({"optim": "sgd", "optim_args": "momentum=nan"}, "optim_args='momentum=nan': momentum must be finite"),
    ({"optim": "rmsprop", "optim_args": "alpha=x"}, "optim='rmsprop', optim_args='alpha=x' cannot be used"),
    ({"optim": "rmsprop", "optim_args": "momentum=-1"}, "optim='rmsprop', optim_args='momentum=-1' cannot be used"),
    ({"optim": "lomo"}, "optim='lomo' cannot be used: ImportError"),
    ({"lr_scheduler_kwargs": {"evil": 1}, "lr_scheduler_type": "constant"}, "lr_scheduler_kwargs={'evil': 1} has no"),
    ({**COSINE, "lr_scheduler_kwargs": {"evil": 1}}, "lr_scheduler_type='cosine', lr_scheduler_kwargs={'evil': 1}"),
    ({**COSINE, "lr_scheduler_kwargs": {"num_cycles": "x"}}, "lr_scheduler_type='cosine', lr_scheduler_kwargs="),
    ({"lr_scheduler_type": "cosine_with_min_lr"}, "lr_scheduler_type='cosine_with_min_lr' cannot be used"),
    ({"lr_scheduler_type": "warmup_stable_decay"}, "lr_scheduler_type='warmup_stable_decay' cannot be used"),
    ({"chat_template_kwargs": {"messages": 1}}, "chat_template_kwargs={'messages': 1}: the trainer itself gives"),
    ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs={'tokenize': True}: the trainer itself"),
    ({"generation_kwargs": {"evil": 1}}, "generation_kwargs={'evil': 1}: transformers' generation takes no 'evil'"),
    ({"generation_kwargs": {"temperature": -1}}, "generation_kwargs: temperature=-1 must be a positive number"),
    ({"generation_kwargs": {"max_new_tokens": "x"}}, "generation_kwargs: max_new_tokens='x' must be a whole number"),
    ({"cache_implementation": "evil"}, "cache_implementation='evil' cannot be used"),
    ({**CHECKPOINTING, "gradient_checkpointing_kwargs": {"evil": 1}}, "activation_checkpointing_kwargs={'evil': 1}"),
    ({"attn_implementation": "evil"}, "attn_implementation='evil' cannot be used"),
    ({"model_init_kwargs": {"max_position_embeddings": "x"}}, "model_init_kwargs="),
    ({"lora_target_modules": ["nope"]}, "lora_target_modules='nope' cannot be used"),
    ({"lora_target_modules": []}, "lora_target_modules=[] cannot be used"),
    ({"lora_modules_to_save": ["nope"]}, "lora_modules_to_save=['nope']: the model has no 'nope'"),
    ({"lora_target_parameters": ["nope"]}, "lora_target_parameters=['nope']: the model has no 'nope'"),
    ({"report_to": "evil"}, "report_to: 'evil' is no tracker"),
    ({"max_steps": 0}, "max_steps=0 and num_train_epochs=3.0 train nothing"),
    ({"max_steps": -1, "num_train_epochs": 0}, "max_steps=-1 and num_train_epochs=0"),
    ({"reward_weights": [1.0, 2.0]}, "reward_weights=[1.0, 2.0] has another length than the reward functions"),
]


@pytest.mark.parametrize(("keys", "begins"), BAD, ids=[begins for _, begins in BAD])
def test_what_cannot_be_used_is_refused_in_a_line_before_a_model_is_loaded(train, capsys, keys, begins):
    with pytest.raises(SystemExit) as ended:
        train(keys)
    line = capsys.readouterr().err
    assert ended.value.code == 2
    assert line.startswith(f"error: {begins}")
    assert line.count("\n") == 1
    assert len(line) < 520
    assert line.rstrip().endswith(".")


GOOD = [
    {},
    {"optim": "rmsprop", "optim_args": "momentum=0.9, alpha=0.5"},
    {"optim": "ademamix", "optim_args": "beta3=0.9999"},  # its default
    {"optim": "adamw_8bit"},
    {**COSINE, "lr_scheduler_kwargs": {"num_cycles": 2}},
    {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 0.1}},
    {"lr_scheduler_type": "polynomial", "warmup_steps": 2},
    {"chat_template_kwargs": {"enable_thinking": False}},
    {"generation_kwargs": {"min_new_tokens": 2, "repetition_penalty": 1.1}},
    {**CHECKPOINTING, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
    {"attn_implementation": "eager"},
    {"model_init_kwargs": {"attention_dropout": 0.0}},
    {"lora_target_modules": r".*\.layers\.\d+\..*\.(q|v)_proj"},
    {"use_peft": False, "lora_target_modules": ["nope"]},
]


@pytest.mark.parametrize("keys", GOOD, ids=str)
def test_what_can_be_used_is_not_refused(train, keys):
    with pytest.raises(Loaded):
        train(keys)


def test_a_model_that_is_not_there_is_left_to_whoever_loads_it(tmp_path):
    """The complaint is about the model, and no key is named for it."""
    args = ProRLConfig(str(tmp_path), use_cpu=True, bf16=False, report_to="none")
    assert skeleton_of(str(tmp_path / "nowhere"), args) is None
