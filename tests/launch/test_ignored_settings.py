"""
Values that transformers and PEFT accept and leave unread: a run ends in one line before its first step, and can be
started again in the same folder. What they can use trains; what they refuse is said in their words.
"""

import pytest
import yaml

from trl_prorl.train import main


RECIPE = {
    "model_name_or_path": "embedded",
    "dtype": "float32",
    "use_peft": True,
    "lora_target_modules": "all-linear",
    "task": "reverse_digits",
    "train_rows": 8,
    "max_steps": 1,
    "save_strategy": "no",
    "per_device_train_batch_size": 4,
    "num_generations": 2,
    "max_completion_length": 4,
    "report_to": "none",
    "use_cpu": True,
    "bf16": False,
    "disable_tqdm": True,
}


@pytest.fixture
def train(tmp_path):
    """A function that trains the recipe with some keys in their place, in one folder, and reads its rows."""

    def train(keys):
        path = tmp_path / "arm.yaml"
        path.write_text(yaml.safe_dump({**RECIPE, "output_dir": str(tmp_path / "run"), **keys}))
        main(None, ["--config", str(path)])
        return (tmp_path / "run" / "metrics.jsonl").read_text()

    return train


POLYNOMIAL = {"lr_scheduler_kwargs": {"lr_end": -1.0}, "lr_scheduler_type": "polynomial", "max_steps": 2}
# With a word of the line: the key, or a library's own words where it refuses, as late as in the first step.
REFUSED = [
    ({"optim_args": "a=b"}, "optim_args"),
    ({"optim_args": "momentum=0.9"}, "optim_args"),  # AdamW has none
    ({"optim_args": "a=b,c", "optim": "sgd"}, "optim_args"),
    ({"lr_scheduler_kwargs": {"evil": 1}, "lr_scheduler_type": "constant_with_warmup"}, "lr_scheduler_kwargs"),
    ({"lr_scheduler_kwargs": {"num_cycle": 2}, "lr_scheduler_type": "cosine"}, "lr_scheduler_kwargs"),
    (POLYNOMIAL, "lr_scheduler_kwargs"),
    ({"generation_kwargs": {"evil": 1}}, "generation_kwargs"),
    ({"lora_modules_to_save": ["nope"]}, "lora_modules_to_save"),
    ({"lora_target_parameters": ["nope"]}, "lora_target_parameters"),
    ({"loss_type": "ppo"}, "Unknown loss type: ppo"),
    ({"top_k": -1}, "top_k"),
    ({"lora_target_modules": "("}, "unterminated subpattern"),
]


@pytest.mark.parametrize("keys, words", REFUSED, ids=str)
def test_what_is_refused_is_one_line_before_the_first_step(train, tmp_path, capsys, keys, words):
    with pytest.raises(SystemExit) as ended:
        train(keys)
    line = capsys.readouterr().err.splitlines()[-1]
    assert ended.value.code == 2
    assert line.startswith("error: ") and words in line
    rows = tmp_path / "run" / "metrics.jsonl"
    assert not rows.exists() or not rows.read_text()
    if keys is POLYNOMIAL:
        assert train({})  # in the same folder


def test_an_unforeseen_error_of_the_first_step_keeps_its_traceback(train, monkeypatch):
    def wrong(*args, **keys):
        raise ValueError("nobody foresaw it")

    monkeypatch.setattr("trl_prorl.trainer.set_advantages", wrong)
    with pytest.raises(ValueError, match="nobody foresaw it"):
        train({})


READ = [
    {"optim": "rmsprop", "optim_args": "momentum=0.9, alpha=0.5"},
    {"optim": "sgd", "optim_args": "momentum=0, nesterov=false"},  # their defaults
    {"lr_scheduler_type": "inverse_sqrt", "lr_scheduler_kwargs": {"timescale": 5}},
    {"generation_kwargs": {"min_new_tokens": 2, "repetition_penalty": 1.1}},
    {"lora_task_type": "SEQ_CLS"},  # trains as CAUSAL_LM does
    {"lora_target_modules": ["q_proj", "v_proj"], "lora_modules_to_save": ["input_layernorm"]},
    {"lora_target_modules": ["q_proj", "v_proj"], "lora_target_parameters": ["up_proj.weight"], "lora_dropout": 0.0},
    {"use_peft": False, "lora_modules_to_save": ["nope"]},
]


@pytest.mark.parametrize("keys", READ, ids=str)
def test_what_they_read_trains(train, keys):
    assert train(keys)
