"""
Keys whose values are small languages: what TRL, transformers or PEFT could not use ends in one line that names the key
before a model is loaded, and what they can use reaches the model.
"""

import pytest
import yaml
from transformers import PreTrainedModel

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
    {"optim_args": "a=b,c"},
    {"optim_args": "a=b"},
    {"optim_args": "momentum=nan", "optim": "sgd"},
    {"optim_args": "momentum=-1", "optim": "rmsprop"},
    {"optim": "lomo"},
    {"lr_scheduler_kwargs": {"evil": 1}, "lr_scheduler_type": "constant"},
    {"lr_scheduler_kwargs": {"num_cycles": "x"}, **COSINE},
    {"lr_scheduler_type": "cosine_with_min_lr"},
    {"chat_template_kwargs": {"messages": 1}},
    {"generation_kwargs": {"evil": 1}},
    {"cache_implementation": "evil"},
    {"activation_checkpointing_kwargs": {"evil": 1}, **CHECKPOINTING},
    {"attn_implementation": "evil"},
    {"model_init_kwargs": {"max_position_embeddings": "x"}},
    {"lora_target_modules": ["nope"]},
    {"lora_modules_to_save": ["nope"]},
    {"lora_target_parameters": ["nope"]},
    {"report_to": "evil"},
    {"max_steps": 0},
    {"reward_weights": [1.0, 2.0]},
]


@pytest.mark.parametrize("keys", BAD, ids=str)
def test_what_cannot_be_used_is_refused_in_a_line_before_a_model_is_loaded(train, capsys, keys):
    with pytest.raises(SystemExit) as ended:
        train(keys)
    line = capsys.readouterr().err
    assert ended.value.code == 2
    assert line.startswith("error: ") and next(iter(keys)) in line
    assert line.count("\n") == 1 and len(line) < 520


GOOD = [
    {},
    {"optim": "rmsprop", "optim_args": "momentum=0.9, alpha=0.5"},
    {**COSINE, "lr_scheduler_kwargs": {"num_cycles": 2}},
    {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 0.1}},
    {"chat_template_kwargs": {"enable_thinking": False}},
    {"generation_kwargs": {"min_new_tokens": 2, "repetition_penalty": 1.1}},
    {**CHECKPOINTING, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
    {"model_init_kwargs": {"attention_dropout": 0.0}},
    {"lora_target_modules": r".*\.layers\.\d+\..*\.(q|v)_proj"},
    {"use_peft": False, "lora_target_modules": ["nope"]},
]


@pytest.mark.parametrize("keys", GOOD, ids=str)
def test_what_can_be_used_is_not_refused(train, keys):
    with pytest.raises(Loaded):
        train(keys)
