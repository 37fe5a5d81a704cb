"""Decide which accelerations a run uses, and make their scorer and sampler."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
from accelerate.utils import is_peft_model
from peft.tuners.lora.layer import Linear

from ..cli.prompt_rows import has_images
from .choice import Choice
from .families import listing_obstacle
from .generation import CompactGeneration, settings_obstacle
from .head import add_frozen_head
from .lean_lora import restore_layers, use_lean_layers
from .packing import PackedScorer
from .prefix import accept_prefixes


logger = logging.getLogger(__name__)


@dataclass
class Acceleration:
    """
    The accelerations of a run.

    Attributes:
        packing (`Choice`): Whether groups are packed.
        generation (`Choice`): Whether rollouts are sampled compactly.
        score (`PackedScorer`, *optional*): Scores packed groups.
        compact (`CompactGeneration`, *optional*): Samples compactly.
        lean (`list`): LoRA layers with another forward for packed rows.
    """

    packing: Choice
    generation: Choice
    score: PackedScorer | None
    compact: CompactGeneration | None
    lean: list[Linear] = field(default_factory=list)

    @property
    def packs(self) -> bool:
        return self.packing.on

    @classmethod
    def from_trainer(cls, trainer, policy: torch.nn.Module) -> "Acceleration":
        """
        Choose accelerations by the lists, log the reasons against others, and prepare the policy in place. Raises
        `ValueError`: a key is `"on"`, and its acceleration is not supported.
        """
        args = trainer.args
        listed = partial(listing_obstacle, policy)
        packing = choose(args, "pack_groups", partial(find_packing_obstacle, trainer, listed))
        generation = choose(args, "compact_generation", partial(find_generation_obstacle, trainer, policy, listed))
        on_cuda = trainer.accelerator.device.type == "cuda"
        reasons = {
            "reuse_old_logps": args.reuse_obstacle,
            "pack_groups": None if packing.on else packing.reason,
            "compact_generation": None if generation.on else generation.reason,
        }
        score = None
        lean = []
        if packing.on:
            accept_prefixes(policy)
            if is_peft_model(policy):
                if not (args.cast_lm_head_to_fp32 or args.has_entropy_bonus):
                    # whose entropies have no gradient, which an own loss may need
                    add_frozen_head(policy.get_base_model(), trainer.temperature, lambda: trainer.own_method is None)
                lean = use_lean_layers(policy)
            score = PackedScorer(trainer.accelerator.autocast)
        compact = None
        if generation.on:
            autocasts = args.bf16 or args.fp16
            obstacle = listed("graphed") if on_cuda else "the model is not on a CUDA GPU."
            compact = CompactGeneration(
                policy,
                trainer.temperature,
                autocasts,
                args.compact_max_rows,
                Choice.unless(obstacle),
                keeps=args.torch_empty_cache_steps is None,
            )
            if on_cuda:
                reasons["a CUDA graph"] = obstacle
        unsupported = describe_unsupported(reasons)
        if trainer.is_world_process_zero() and unsupported:
            logger.warning(unsupported)
        return cls(packing, generation, score, compact, lean)

    def switch_off(self, args, reasons: Mapping[str, str]) -> dict[str, str]:
        """
        Switch off accelerations. Returns the reasons of those that were on. Raises `ValueError`: a key is `"on"`.
        """
        off = {}
        if self.packing.on and "pack_groups" in reasons:
            off["pack_groups"] = reasons["pack_groups"]
            self.packing = make_choice(args, "pack_groups", off["pack_groups"])
            self.score = None
            restore_layers(self.lean)
        if self.generation.on and "compact_generation" in reasons:
            off["compact_generation"] = reasons["compact_generation"]
            self.generation = make_choice(args, "compact_generation", off["compact_generation"])
            self.compact = None
        return off


def describe_unsupported(reasons: Mapping[str, str | None]) -> str:
    keys_by_reason: dict[str, list[str]] = {}
    for key, reason in reasons.items():
        if reason:
            keys_by_reason.setdefault(reason, []).append(key)
    return " ".join(f"Running without {', '.join(keys)}: {reason}" for reason, keys in keys_by_reason.items())


def choose(args, key: str, find_obstacle: Callable[[], str | None]) -> Choice:
    """Decide whether an acceleration is on. Raises `ValueError`: its key is `"on"`, and it is not supported."""
    if getattr(args, key) == "off":
        return Choice(False)
    return make_choice(args, key, args.disabled_reason if args.is_disabled(key) else find_obstacle())


def make_choice(args, key: str, obstacle: str | None) -> Choice:
    if obstacle is not None and getattr(args, key) == "on":
        raise ValueError(f"{key}='on' is not supported here: {obstacle} Set {key}: auto to fall back, or \"off\".")
    return Choice.unless(obstacle)


Listed = Callable[[str], str | None]


def ties_obstacle(args) -> str | None:
    """Return why packed rows, whose values differ by rounding, cannot be ranked, or `None`."""
    if args.top_entropy_quantile < 1.0:
        return f"top_entropy_quantile={args.top_entropy_quantile} ranks tokens, and rounding would break their ties."
    return None


def find_packing_obstacle(trainer, listed: Listed) -> str | None:
    """Return why groups cannot be packed, or `None`. `listed` is [`listing_obstacle`] of an acceleration."""
    if has_images(trainer):
        return "the prompts have images."
    if trainer.aux_loss_enabled:
        return "the load-balancing loss averages over all tokens, prompts and padding included."
    return ties_obstacle(trainer.args) or listed("shared_prompts")


def find_generation_obstacle(trainer, policy: torch.nn.Module, listed: Listed) -> str | None:
    """Return why compact generation is not supported, or `None`."""
    if trainer.use_vllm:
        return "use_vllm=True samples with vLLM."
    if trainer.use_transformers_continuous_batching:
        return "use_transformers_continuous_batching=True uses another sampler."
    if has_images(trainer):
        return "the prompts have images."
    obstacle = settings_obstacle(trainer.generation_config, getattr(policy, "generation_config", None))
    return obstacle or listed("compact")
