"""A generation batch that is decoded in slices: which rows stand together, what they draw, what is held at once."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_run import LORA, load_with_new_adapter
from transformers import GenerationConfig

from trl_prorl.fast.generation import CompactGeneration, slice_rows


@pytest.mark.parametrize(
    "copies, most, slices",
    [
        ([0, 0, 1, 1, 2, 2], None, [[0, 1, 2, 3, 4, 5]]),
        ([0, 0, 1, 1, 2, 2], 5, [[0, 1, 2, 3], [4, 5]]),
        ([0, 1, 0, 1], 3, [[0, 2], [1, 3]]),  # the completions of a prompt need not stand side by side
        ([0, 0, 0, 0, 0, 1, 2], 3, [[0, 1, 2], [3, 4, 5], [6]]),  # a group that is too large is cut
    ],
)
def test_slices_by_hand(copies, most, slices):
    assert slice_rows(copies, most) == slices


@given(st.lists(st.integers(0, 6), min_size=1, max_size=40), st.integers(1, 45))
def test_every_row_stands_in_one_slice_and_a_group_that_fits_in_one_alone(copies, most):
    slices = slice_rows(copies, most)
    assert sorted(row for rows in slices for row in rows) == [*range(len(copies))]
    assert all(0 < len(rows) <= most for rows in slices)
    for prompt in set(copies):
        if copies.count(prompt) <= most:
            assert sum(any(copies[row] == prompt for row in rows) for rows in slices) == 1


PROMPTS = [[5, 6, 7], [9, 8, 7, 6, 5, 4], [11], [5, 6, 7], [9, 8, 7, 6, 5, 4], [11], [5, 6, 7], [12, 13]]
ENDS = [*range(0, 256, 9)]


def settings(**keys):
    plain = {"max_new_tokens": 20, "pad_token_id": 0, "eos_token_id": ENDS, "do_sample": False}
    return GenerationConfig(**plain | {"disable_compile": True, "top_k": 0} | keys)


def sampled(policy, max_rows, **keys):
    """A part's completions and log-probabilities."""
    part = CompactGeneration(policy, 0.7, max_rows=max_rows)
    torch.manual_seed(3)
    return part.sample(policy, PROMPTS, settings(**keys), ENDS)


def policy_of(tiny_model, dtype="float32"):
    """A policy whose adapter is worth something, so that what is sampled depends on the merged copy."""
    policy = load_with_new_adapter(tiny_model, **LORA).to(getattr(torch, dtype)).eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for name, param in policy.named_parameters():
            if "lora_B" in name:
                param.normal_(std=0.1)
    return policy


def test_greedy_completions_are_those_of_a_prompt_alone_whatever_the_slices(tiny_model):
    policy = policy_of(tiny_model)
    alone = []
    for prompt in PROMPTS:
        ids = policy.generate(input_ids=torch.tensor([prompt]), generation_config=settings())
        alone.append(ids[0, len(prompt) :].tolist())
    assert len(set(map(len, alone))) > 2  # the situation: rows end at several times
    for most in (None, 1, 2, 3, 5, 8):
        assert sampled(policy, most) == (alone, None)


def test_log_probabilities_stay_with_their_rows(tiny_model):
    policy = policy_of(tiny_model, "bfloat16")
    whole, whole_logps = sampled(policy, None)
    assert len(set(map(len, whole))) > 1  # the situation: behind the end of a completion there is padding
    assert [len(of_row) for of_row in whole_logps] == [len(completion) for completion in whole]
    parts, logps = sampled(policy, 3)
    for place, (completion, same) in enumerate(zip(parts, whole, strict=True)):
        assert len(logps[place]) == len(completion)
        # bf16 rounds otherwise in a batch of another size, so that a later token may be another.
        assert logps[place][0] == pytest.approx(whole_logps[place][0], abs=0.1)
        assert completion[0] == same[0]
    firsts = {tuple(prompt): round(logps[place][0], 2) for place, prompt in enumerate(PROMPTS)}
    assert len(set(firsts.values())) == 4  # the situation: prompts can be told apart by them


# --------------------------------------------------------------------------------------------------- in a training

SLICED = {"compact_generation": "on", "compact_max_rows": 3, "save_strategy": "steps", "save_steps": 1, "beta": 0.1}


def test_a_resume_draws_the_same_slices(run, resume, largest_difference, make_trainer):
    whole = run(**SLICED | {"compact_max_rows": None})
    trainer = run(**SLICED)
    assert largest_difference(whole, trainer) > 0.0  # the situation: slices draw other tokens
    for step in (1, 2):  # inside a generation batch, and at its end
        assert largest_difference(trainer, resume(trainer, step, **SLICED)) == 0.0
    with pytest.raises(ValueError, match="compact_max_rows"):
        resume(trainer, 2, **SLICED | {"compact_max_rows": 4})
