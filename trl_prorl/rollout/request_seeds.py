"""
A seed for each request to vLLM, so that nothing random is left in the engine.

TRL gives all requests of a batch the same `SamplingParams`. Without a seed, vLLM samples from a generator in the
engine, which no checkpoint contains; with one seed for all, the completions of a prompt would be equal. Here the seeds
are drawn from torch's generator, which every checkpoint contains, so that a resumed run samples what an uninterrupted
one does. That also needs the same batches inside the engine: TRL runs a colocated engine in the process of the trainer,
which schedules a batch in the same way each time, and cached prefixes of earlier batches are dropped.
"""

import os
from typing import Any

import torch
from trl.generation.vllm_generation import VLLMGeneration


BATCH_INVARIANT = "VLLM_BATCH_INVARIANT"  # docs.vllm.ai, "Batch Invariance"
CAPABILITY = (9, 0)  # of the GPUs on which all versions of vLLM that have it support it


def make_engine_invariant() -> None:
    """
    Let the engine, which is created after this call, compute a row independently of the other rows of its batch, where
    vLLM can. A value of `VLLM_BATCH_INVARIANT` in the environment wins.
    """
    if torch.cuda.is_available() and torch.cuda.get_device_capability() >= CAPABILITY:
        os.environ.setdefault(BATCH_INVARIANT, "1")


def seed_requests(generation: VLLMGeneration) -> None:
    """Let TRL's colocated engine sample each completion by a seed of its own, drawn from torch's generator."""
    generate = generation.llm.generate

    def generate_seeded(prompts: list, sampling_params, **named) -> Any:
        seed = _draw_seed(generation)
        requests = []
        for place in range(len(prompts)):
            request = sampling_params.clone()
            request.seed = seed + place
            requests.append(request)
        generation.llm.reset_prefix_cache()
        return generate(prompts, sampling_params=requests, **named)

    generation.llm.generate = generate_seeded


def _draw_seed(generation: VLLMGeneration) -> int:
    """Draw the seed of a batch. Processes that share an engine (tensor parallelism) use that of the first."""
    seed = int(torch.randint(2**62, (1,)))
    if generation.tensor_parallel_size == 1:
        return seed
    seeds = [None] * generation.tensor_parallel_size
    torch.distributed.all_gather_object(seeds, seed, group=generation.tp_group)
    return seeds[0]


def describe_engine(args) -> str:
    """Return how vLLM samples, for `env.json`: `vllm_mode`, whether requests have seeds, and batch invariance."""
    if args.vllm_mode == "server":
        return "server: samples are not repeated at a resume"
    invariant = os.environ.get(BATCH_INVARIANT, "0") not in ("", "0")
    return f"colocate: a seed for each request, batch invariance {'on' if invariant else 'off'}"
