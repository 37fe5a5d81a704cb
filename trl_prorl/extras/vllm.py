"""
The policy's adapter as a LoRA request to vLLM (docs.vllm.ai, "LoRA adapters"), in place of weights into which it is
merged: the base stays what vLLM loaded, and two small factors are handed over instead of all weights.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch
from accelerate.utils import is_peft_model
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from trl.generation import vllm_generation
from trl.generation.vllm_generation import VLLMGeneration

from .growth import random_state


RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # for which vLLM can keep room


@contextmanager
def let_engine_take_adapters(rank: int) -> Iterator[None]:
    """Make TRL's engine, which it makes in this context, take an adapter of up to this rank."""
    engine = vllm_generation.LLM
    room = min(size for size in RANKS if size >= rank)
    vllm_generation.LLM = partial(engine, enable_lora=True, max_lora_rank=room, max_loras=1)
    try:
        yield
    finally:
        vllm_generation.LLM = engine


def hand_over_adapters(generation: vllm_generation.VLLMGeneration, policy: PeftModel) -> None:
    """Let TRL's engine sample from its own base with the policy's adapter, as it is at each hand-over."""
    from vllm.lora.request import LoRARequest

    folder = TemporaryDirectory()
    numbers = count(1)
    generate = generation.llm.generate

    def sync_weights() -> None:
        policy.save_pretrained(folder.name, selected_adapters=["default"], save_embedding_layers=False)
        request = LoRARequest("policy", next(numbers), folder.name)  # a number that vLLM knows is not loaded again
        generation.llm.generate = partial(generate, lora_request=request)
        generation.llm.reset_prefix_cache()

    generation.sync_weights = sync_weights


# ---------------------------------------------------------------------------------------------------------------------
# A seed for each request to vLLM, from the run's seed and the number of the request.
#
# TRL sends no seeds, and vLLM samples from generators of the process. One seed for all requests (`generation_kwargs`)
# would make the completions of a prompt equal, because TRL colocates vLLM with one request per completion. A seed of
# its own makes a completion independent of everything else that was drawn, so that a resumed run, which begins with a
# new engine, samples what an uninterrupted one does.


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


# ---------------------------------------------------------------------------------------------------------------------
# Weights that a generation does not change, where TRL casts them or merges the adapter into them, and bitsandbytes
# packs them.


@contextmanager
def keep_weights(model: torch.nn.Module) -> Iterator[None]:
    """
    Keep every parameter and buffer of a model as it is, bit for bit, whatever a cast in this context does to it.

    TRL 1.16 casts the policy to bf16 or fp16 before `generate_batch` of transformers' continuous batching, and never
    back: fp32 LoRA weights are bf16 from the first generation on, and updates smaller than their rounding are lost. A
    cast makes new tensors, so that the old ones need only be remembered.

    Args:
        model (`torch.nn.Module`): The policy, whole on this process.
    """
    parameters = [(parameter, parameter.data) for parameter in model.parameters()]
    buffers = [(module, dict(module._buffers)) for module in model.modules()]
    try:
        yield
    finally:
        for parameter, data in parameters:
            parameter.data = data
        for module, held in buffers:
            module._buffers.update(held)


def keep_unpacked(model: torch.nn.Module) -> None:
    """
    Keep bitsandbytes from packing weights in 4 bits for a CPU with AVX512-BF16.

    It does so in the first forward without gradient, and no later forward of those weights has one.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def keep_base_in_syncs(generation: VLLMGeneration) -> None:
    """
    Let TRL's [`~trl.generation.vllm_generation.VLLMGeneration`] get the policy's weights, its adapter merged, without
    a trace in the policy.

    TRL merges the adapter into all weights, hands them on one by one, and takes it out again. In bf16 each time leaves
    rounding behind, which adds up: the policy, its reference and the base would stand on weights that no file holds.
    Here TRL merges nothing, and each weight is merged in a copy as TRL hands it on, so that one layer at a time is
    held twice.
    """
    model = generation.model
    if not is_peft_model(model):
        return
    read = generation._iter_named_params

    def read_merged() -> Iterator[tuple[str, torch.Tensor]]:
        with without_inplace_merge(model):
            adapted = find_adapted_weights(model)
            for name, weight in read():
                if weight.data_ptr() in adapted:
                    weight = adapted[weight.data_ptr()].merged()
                yield name, weight

    generation._iter_named_params = read_merged


@contextmanager
def without_inplace_merge(model: PeftModel) -> Iterator[None]:
    """Let `merge_adapter` look whether merging is possible, and neither it nor `unmerge_adapter` change a weight."""
    model.merge_adapter = partial(model.merge_adapter, adapter_names=[])
    model.unmerge_adapter = lambda: None
    try:
        yield
    finally:
        del model.merge_adapter
        del model.unmerge_adapter


class AdaptedWeight(NamedTuple):
    """
    Is a weight that adapters change.

    Attributes:
        base (`torch.nn.Module`): The layer that has it, below the adapters.
        name (`str`): Its name there.
        layers (`list[BaseTunerLayer]`): PEFT's layers around it, in the order in which they merge.
    """

    base: torch.nn.Module
    name: str
    layers: list[BaseTunerLayer]

    def merged(self) -> torch.Tensor:
        """Return the weight with the active adapters merged; the layer has its own weights again afterwards."""
        own = dict(self.base.named_parameters(recurse=False))
        try:
            for name, param in own.items():
                if param.is_floating_point():  # PEFT creates a new quantised weight to merge it
                    setattr(self.base, name, torch.nn.Parameter(param.detach().clone(), requires_grad=False))
            for layer in self.layers:
                layer.merge()
            return getattr(self.base, self.name).data
        finally:
            for name, param in own.items():
                setattr(self.base, name, param)
            for layer in self.layers:
                layer.merged_adapters.clear()


def find_adapted_weights(model: torch.nn.Module) -> dict[int, AdaptedWeight]:
    """Find the weights that adapters change, by their addresses."""
    around: dict[torch.nn.Module, list[BaseTunerLayer]] = {}
    for module in model.modules():
        if isinstance(module, BaseTunerLayer):
            around.setdefault(module.get_base_layer(), []).append(module)
    found = {}
    for base, layers in around.items():
        for name, param in base.named_parameters(recurse=False):
            found[param.data_ptr()] = AdaptedWeight(base, name, layers)
    return found
