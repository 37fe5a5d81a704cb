"""pass@k of TRL's own trainer, as of ours with the same policy."""

import numpy as np
import pytest
from datasets import Dataset
from trl import GRPOTrainer

from trl_prorl import drift, evaluate


ROWS = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"sing {i}"}] for i in range(8)]})
ASKED = {"n": 4, "k": [1, 4], "greedy": False}


def has_vowel(completion, row):
    return "a" in completion or "e" in completion


def test_numpys_integers_are_whole_numbers_and_a_float_is_refused_before_anything_is_sampled(run):
    trainer = run(lora=True)
    given = {"n": 2, "k": [1, 2], "max_new_tokens": 6, "seed": 3, "batch_size": 16}
    found = evaluate(trainer, ROWS, has_vowel, **given)
    numpy = {name: np.array(value) if name == "k" else np.int64(value) for name, value in given.items()}
    assert evaluate(trainer, ROWS, has_vowel, **numpy) == found
    drifted = drift(trainer, ROWS, samples=2, max_new_tokens=6)
    assert drift(trainer, ROWS, samples=np.int64(2), max_new_tokens=np.int64(6)) == drifted
    for name in given:
        with pytest.raises(TypeError, match="float"):
            evaluate(trainer, ROWS, None, **given | {name: [1.5] if name == "k" else 1.5})


@pytest.mark.parametrize("lora", [True, False])
def test_a_plain_trainer_is_evaluated_as_ours(run, lora):
    ours = evaluate(run(lora=lora), ROWS, has_vowel, **ASKED)
    plain = evaluate(run(GRPOTrainer, lora=lora), ROWS, has_vowel, **ASKED)
    for side in ("base", "trained"):
        assert plain[side]["correct"] == ours[side]["correct"]
    assert plain["base"]["correct"] != plain["trained"]["correct"]
    assert plain["step"] == 4 and plain["in_training"] == 0


def test_the_best_model_that_transformers_has_loaded_has_its_step(run):
    saves = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
    best = {"load_best_model_at_end": True, "metric_for_best_model": "eval_completions/mean_length"}
    for greater in (True, False):
        trainer = run(GRPOTrainer, **saves, **best, greater_is_better=greater, trainer_kwargs={"eval_dataset": ROWS})
        found = evaluate(trainer, ROWS, has_vowel, n=1, k=[1], greedy=False)
        assert found["step"] == trainer.state.best_global_step
        if found["step"] < 4:
            return
    pytest.fail("the last step was the best")
