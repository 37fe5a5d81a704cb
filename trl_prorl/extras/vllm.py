"""The policy's adapter as a LoRA request to vLLM (docs.vllm.ai, "LoRA adapters"), in place of merged weights."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper, TrainableTokensWrapper
from trl.generation import vllm_generation
from trl.generation.vllm_generation import VLLMGeneration

from ..errors import InputError
from ..supported import check_adapter
from .growth import random_state


Weights = Iterator[tuple[str, torch.Tensor]]

RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # ranks supported by vLLM
NOT_SERVED = "use_dora lora_bias rank_pattern alpha_pattern modules_to_save trainable_token_indices".split()


@contextmanager
def let_engine_take_adapters(args: Any, config: Any) -> Iterator[None]:
    """Let the engine of `vllm_enable_lora` accept the adapter. Raises `InputError`: vLLM cannot sample with it."""
    engine = getattr(vllm_generation, "LLM", None)
    if not args.vllm_enable_lora:
        yield
        return
    check_requests(args, config)
    if engine is None:  # vLLM is not installed, as TRL says
        yield
        return
    rank = min(rank for rank in RANKS if rank >= largest_rank(args, config))
    vllm_generation.LLM = partial(engine, enable_lora=True, max_lora_rank=rank, max_loras=1)
    try:
        yield
    finally:
        vllm_generation.LLM = engine


def largest_rank(args: Any, config: Any) -> int:
    return max(config.r, args.lora_growth_max_rank) if args.lora_growth_every else config.r


def check_requests(args: Any, config: Any) -> None:
    """Raise `InputError` for an adapter that vLLM does not serve. It would ignore patterns of ranks without a word."""
    if config is None:
        raise InputError("vllm_enable_lora=True needs a LoRA adapter, and the model has none. Remove the key.")
    check_adapter(config, "vllm_enable_lora=True")  # vLLM has the base's weights as they are in its files
    for option in NOT_SERVED:
        if getattr(config, option, None):
            raise InputError(f"vllm_enable_lora=True does not support {option} of the adapter. Remove one of them.")
    rank = largest_rank(args, config)
    if rank > RANKS[-1]:
        raise InputError(
            f"vllm_enable_lora=True supports ranks up to {RANKS[-1]}, and the adapter's reaches {rank}. Lower lora_r "
            "or lora_growth_max_rank, or remove vllm_enable_lora."
        )


def hand_over_adapters(generation: vllm_generation.VLLMGeneration, policy: PeftModel) -> None:
    """Make TRL's engine sample from its base with the current adapter."""
    from vllm.lora.request import LoRARequest

    folder = TemporaryDirectory()
    numbers = count(1)
    generate = generation.llm.generate

    def sync_weights() -> None:
        policy.save_pretrained(folder.name, selected_adapters=["default"], save_embedding_layers=False)
        request = LoRARequest("policy", next(numbers), folder.name)  # vLLM does not reload a known number
        generation.llm.generate = partial(generate, lora_request=request)
        generation.llm.reset_prefix_cache()

    generation.sync_weights = sync_weights


# ---------------------------------------------------------------------------------------------------------------------
# A seed for each request to vLLM. TRL sends none, and vLLM samples from process-wide generators. One seed for all
# (`generation_kwargs`) would make a prompt's completions equal. With its own seed a completion is independent of other
# draws, so a resume samples the same completions.


class RequestSeeds:
    """Gives each batch of requests its first seed, reproducible by a resume."""

    def __init__(self, trainer):
        self._trainer = trainer
        self._seeded_step = -1
        self._batches: Counter[str] = Counter()  # batches of this step, by purpose

    def next(self) -> int:
        trainer = self._trainer
        if trainer.state.global_step != self._seeded_step:
            self._seeded_step = trainer.state.global_step
            self._batches.clear()
        purpose = "train" if trainer.model.training else "eval"
        engine = trainer.accelerator.process_index // trainer.vllm_generation.tensor_parallel_size
        what = f"vLLM {engine}, {purpose} batch {self._batches[purpose]}"
        self._batches[purpose] += 1
        return random_state(trainer.args.seed, self._seeded_step, what).initial_seed()


def seed_requests(generation: VLLMGeneration, seeds: RequestSeeds) -> None:
    """Give each completion its own seed. Other calls, and requests with a seed, are unchanged."""
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
    Return whether a CPU engine may split a prompt, and so rewind a request's generator, which torch supports on GPUs
    only. Without seeds it uses torch's generator, which checkpoints contain.
    """
    if generation.accelerator.device.type != "cpu":
        return False
    most = generation.llm.llm_engine.vllm_config.scheduler_config.max_num_batched_tokens
    return sum(len(prompt["prompt_token_ids"]) for prompt in prompts) > most


def describe_engine(args) -> str:
    seeds = "a seed for each request" if args.vllm_mode == "colocate" else "no seeds"
    return f"{args.vllm_mode}, {seeds}"


# ---------------------------------------------------------------------------------------------------------------------
# Weights that generation must not change, although TRL casts or merges, and bitsandbytes packs them.


@contextmanager
def keep_weights(model: torch.nn.Module) -> Iterator[None]:
    """
    Restore an unsharded model's tensors after this context. TRL 1.16 casts the policy to bf16 or fp16 before
    `generate_batch`, and never back. A cast makes new tensors, so references to the old ones suffice.
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
    """Keep bitsandbytes from packing 4-bit weights for a CPU with AVX512-BF16: later forwards have no gradient."""
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def check_merged(policy: PeftModel) -> None:
    """
    Raise `InputError` for an adapter that vLLM would not sample from: it does not know names of trained token rows,
    and has one weight for an LM head and the embeddings that are tied to it. Quantised weights reach it without scale.
    """
    base = policy.get_base_model()
    if getattr(base.config, "quantization_config", None) is not None:
        raise InputError("use_vllm=True does not support a model in 4 or 8 bits. Set vllm_enable_lora: true.")
    if any(isinstance(module, TrainableTokensWrapper) for module in base.modules()):
        raise InputError("use_vllm=True does not support trainable_token_indices of the adapter. Remove one of them.")
    if not base.config.get_text_config().tie_word_embeddings:
        return
    ends = [base.get_input_embeddings(), base.get_output_embeddings()]
    is_one_weight = ends[0].weight is ends[1].weight
    apart = BaseTunerLayer if is_one_weight else BaseTunerLayer | AuxiliaryTrainingWrapper
    if any(isinstance(module, apart) for module in ends):
        raise InputError(
            "use_vllm=True does not support an adapter of embed_tokens or lm_head where they share a weight. Remove "
            "it from target_modules or modules_to_save, train both as one (modules_to_save with ensure_weight_tying: "
            "true), or set use_vllm: false."
        )


def merge_in_copies(model: PeftModel, read: Callable[[], Weights]) -> Weights:
    """
    Yield weights as TRL's `read` does, with the adapter merged in copies of one layer at a time. TRL merges and
    unmerges the policy itself, which accumulates rounding errors in bf16.
    """
    with without_inplace_merge(model):
        adapted = find_adapted_weights(model)
        for name, weight in read():
            if weight.data_ptr() in adapted:
                weight = adapted[weight.data_ptr()].merged()
            yield name, weight


@contextmanager
def without_inplace_merge(model: PeftModel) -> Iterator[None]:
    """Let `merge_adapter` only check whether merging is possible, without changing a weight."""
    model.merge_adapter = partial(model.merge_adapter, adapter_names=[])
    model.unmerge_adapter = lambda: None
    try:
        yield
    finally:
        del model.merge_adapter
        del model.unmerge_adapter


class AdaptedWeight(NamedTuple):
    """A weight `name` of a layer `base` that adapters change; `layers`: PEFT's around it, in merging order."""

    base: torch.nn.Module
    name: str
    layers: list[BaseTunerLayer]

    def merged(self) -> torch.Tensor:
        """Return the weight with the active adapters merged; the layer's own are restored."""
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
    around: dict[torch.nn.Module, list[BaseTunerLayer]] = {}
    for module in model.modules():
        if isinstance(module, BaseTunerLayer):
            around.setdefault(module.get_base_layer(), []).append(module)
    found = {}
    for base, layers in around.items():
        for name, param in base.named_parameters(recurse=False):
            found[param.data_ptr()] = AdaptedWeight(base, name, layers)
    return found
