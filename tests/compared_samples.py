"""Compact samples of a model, compared with its own forward of each row alone."""

import torch
from transformers import GenerationConfig

from trl_prorl.cli.model_defaults import plain_generation_config
from trl_prorl.cli.prompts import cut_at_end
from trl_prorl.fast.generation import sample_at_once
from trl_prorl.fast.head import contiguous_states
from trl_prorl.fast.recording import Recordings


PROMPTS = (3, 61, 8)  # tokens of each
COMPLETIONS = 2  # of each prompt
ENDING = 8  # every eighth token ends a completion


@torch.no_grad()
def sampled_difference(model, replays=False):
    """The mean difference of the log-probabilities, in nats. `replays`: a token's forward is a CUDA graph."""
    size = model.get_input_embeddings().weight.shape[0]
    ends = list(range(0, size, ENDING))
    tokens = torch.randint(size, (sum(PROMPTS),), generator=torch.Generator().manual_seed(0))
    prompts = [prompt.tolist() for prompt in tokens.split(PROMPTS) for _ in range(COMPLETIONS)]
    settings = {"max_new_tokens": 2 * ENDING, "do_sample": True, "top_k": 0, "pad_token_id": 0, "eos_token_id": ends}
    with plain_generation_config(model), contiguous_states(model):
        config = GenerationConfig(**settings, disable_compile=True)
        drawn, logps = sample_at_once(model, prompts, config, None, 1.0, Recordings() if replays else None)
    differences = []
    for prompt, row, values in zip(prompts, drawn, logps, strict=True):
        completion = cut_at_end(row, set(ends))
        ids = torch.tensor([[*prompt, *completion]], device=model.device)
        whole = model(input_ids=ids).logits[0, :-1].float().log_softmax(-1)
        expected = whole.gather(-1, ids[0, 1:, None])[-len(completion) :, 0].tolist()
        differences += [abs(value - own) for value, own in zip(values, expected, strict=False)]
    return sum(differences) / len(differences)
