"""pass@k of TRL's own trainer, as of ours with the same policy."""

import pytest
from datasets import Dataset
from trl import GRPOTrainer

from trl_prorl import evaluate


ROWS = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"sing {i}"}] for i in range(8)]})
ASKED = {"n": 4, "k": [1, 4], "greedy": False}


def has_vowel(completion, row):
    return "a" in completion or "e" in completion


@pytest.mark.parametrize("lora", [True, False])
def test_a_plain_trainer_is_evaluated_as_ours(run, lora):
    ours = evaluate(run(lora=lora), ROWS, has_vowel, **ASKED)
    plain = evaluate(run(GRPOTrainer, lora=lora), ROWS, has_vowel, **ASKED)
    for side in ("base", "trained"):
        assert plain[side]["correct"] == ours[side]["correct"]
    assert plain["base"]["correct"] != plain["trained"]["correct"]
    assert plain["step"] == 4 and plain["in_training"] == 0
