"""
A value that TRL, transformers or PEFT refuse is said in their words: a run ends in one line before its first step, and
can be started again in the same folder.
"""

import pytest
import yaml
from run_record import error_lines

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


REFUSED = [
    ({"reward_weights": 0.5}, "'float' has no len"),
    ({"lr_scheduler_kwargs": {"num_cycle": 2}, "lr_scheduler_type": "cosine"}, "argument 'num_cycle'"),
]


@pytest.mark.parametrize("keys, words", REFUSED, ids=str)
def test_what_is_refused_is_one_line_before_the_first_step(train, tmp_path, capsys, keys, words):
    with pytest.raises(SystemExit) as ended:
        train(keys)
    (line,) = error_lines(capsys.readouterr().err)
    assert ended.value.code == 2
    assert words in line
    rows = tmp_path / "run" / "metrics.jsonl"
    assert not rows.exists() or not rows.read_text()
    assert train({"overwrite": True})  # in the same folder


def test_an_unforeseen_error_of_the_first_step_keeps_its_traceback(train, monkeypatch):
    def wrong(*args, **keys):
        raise ValueError("nobody foresaw it")

    monkeypatch.setattr("trl_prorl.trainer.set_advantages", wrong)
    with pytest.raises(ValueError, match="nobody foresaw it"):
        train({})
