"""
A seed for each request to vLLM, from the run's seed and the number of the request.

TRL sends no seeds, and vLLM samples from generators of the process. One seed for all requests (`generation_kwargs`)
would make the completions of a prompt equal, because TRL colocates vLLM with one request per completion. A seed of its
own makes a completion independent of everything else that was drawn, so that a resumed run, which begins with a new
engine, samples what an uninterrupted one does.
"""

from collections import Counter

from trl.generation.vllm_generation import VLLMGeneration

from ..adapters.growth import random_state


class RequestSeeds:
    """
    Gives each batch of requests its first seed. A seed depends on the run's seed, the engine, the step, whether the
    model is trained or evaluated, and the number of the batch in that step: on nothing that a checkpoint lacks.

    Args:
        trainer ([`ProRLTrainer`]): Whose completions are sampled.
    """

    def __init__(self, trainer):
        self._trainer = trainer
        self._step = -1
        self._batches: Counter[str] = Counter()  # of this step, by purpose

    def next(self) -> int:
        """Return the first seed of the next batch."""
        trainer = self._trainer
        if trainer.state.global_step != self._step:
            self._step = trainer.state.global_step
            self._batches.clear()
        purpose = "train" if trainer.model.training else "eval"
        engine = trainer.accelerator.process_index // trainer.vllm_generation.tensor_parallel_size
        what = f"vLLM {engine}, {purpose} batch {self._batches[purpose]}"
        self._batches[purpose] += 1
        return random_state(trainer.args.seed, self._step, what).initial_seed()


def seed_requests(generation: VLLMGeneration, seeds: RequestSeeds) -> None:
    """
    Let TRL's colocated engine sample each completion by a seed of its own. Calls in another form than TRL's, and
    requests that have a seed, are left as they are.
    """
    generate = generation.llm.generate

    def generate_seeded(prompts, sampling_params=None, **named):
        may_seed = isinstance(prompts, list) and getattr(sampling_params, "seed", 0) is None
        if may_seed and not _cuts_prompts(generation, prompts):
            first = seeds.next()
            sampling_params = [_with_seed(sampling_params, first + place) for place in range(len(prompts))]
        generation.llm.reset_prefix_cache()
        return generate(prompts, sampling_params=sampling_params, **named)

    generation.llm.generate = generate_seeded


def _with_seed(sampling_params, seed: int):
    seeded = sampling_params.clone()
    seeded.seed = seed
    return seeded


def _cuts_prompts(generation: VLLMGeneration, prompts: list[dict]) -> bool:
    """
    Return whether a CPU engine may compute a prompt in two parts. It would rewind the generator of a request with a
    seed, which torch supports on GPUs only. Without seeds it draws from torch's generator, which checkpoints contain.
    """
    if generation.accelerator.device.type != "cpu":
        return False
    most = generation.llm.llm_engine.vllm_config.scheduler_config.max_num_batched_tokens
    return sum(len(prompt["prompt_token_ids"]) for prompt in prompts) > most


def describe_engine(args) -> str:
    """Return what `env.json` says of vLLM: its mode, and whether requests have seeds."""
    seeds = "a seed for each request" if args.vllm_mode == "colocate" else "no seeds"
    return f"{args.vllm_mode}, {seeds}"
