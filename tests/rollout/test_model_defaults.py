"""A model's own generation config has no say in what is sampled; a model without one is the control."""

import json
from pathlib import Path

import pytest
from tiny_run import QUESTIONS
from transformers import AutoModelForCausalLM, WatermarkingConfig


LETTERS = list(range(70, 130))
WISHES = {
    "min_p": 0.9,
    "typical_p": 0.1,
    "top_h": 0.1,
    "epsilon_cutoff": 0.5,
    "eta_cutoff": 0.5,
    "no_repeat_ngram_size": 1,
    "suppress_tokens": LETTERS,
    "begin_suppress_tokens": LETTERS,
    "bad_words_ids": [[token] for token in LETTERS],
    "sequence_bias": [[[70], 50.0]],
    "min_length": 100,
    "min_new_tokens": 6,
    "forced_eos_token_id": 66,
    "exponential_decay_length_penalty": [1, 9.0],
    "num_beams": 2,
    "num_return_sequences": 2,
    "guidance_scale": 3.0,
    "watermarking_config": WatermarkingConfig(bias=20.0),
    "max_time": 1e-9,
    "stop_strings": ["e"],
    "return_dict_in_generate": True,
    "renormalize_logits": True,
    "temperature": 0.1,
    "repetition_penalty": 9.0,
}


def completions_of(make_trainer, model, **keys):
    """Return a trainer after a step and an evaluation, and the completions that the reward function saw."""
    seen = []

    def reward(completions, **columns):
        texts = [completion[0]["content"] for completion in completions]
        seen.extend(texts)
        return [float(len(text)) for text in texts]

    trainer = make_trainer(model=model, reward=reward, max_steps=1, trainer_kwargs=QUESTIONS, **keys)
    trainer.train()
    trainer.evaluate()
    return trainer, seen


@pytest.mark.parametrize("keys", [{}, {"compact_generation": "on"}], ids=["generate", "compact"])
def test_a_model_s_own_settings_do_not_reach_rollouts_or_evaluations(make_trainer, tiny_model, caplog, keys):
    _, plain = completions_of(make_trainer, AutoModelForCausalLM.from_pretrained(tiny_model), **keys)
    assert "generation config" not in caplog.text
    assert len(set(plain)) > 8
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    for name, value in WISHES.items():
        setattr(model.generation_config, name, value)
    trainer, texts = completions_of(make_trainer, model, **keys)
    assert texts == plain
    assert all(getattr(model.generation_config, name) == value for name, value in WISHES.items())  # saved as it was
    said = json.loads(Path(trainer.run_dir, "env.json").read_text())["execution"]["unused_defaults"]
    assert caplog.text.count(said) == 1
    assert all(f"{name}=" in said for name in WISHES)
