"""Decide which accelerations a run uses, and make their scorer and sampler."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
from accelerate.utils import is_peft_model
from peft.tuners.lora.layer import Linear

from ..cli.prompt_rows import has_images
from ..run.folder import first_of_processes
from ..upstream.modules import unwrap_adapter
from .choice import Choice
from .families import is_listed, listing_obstacle
from .generation import CompactGeneration, settings_obstacle
from .head import add_frozen_head
from .lean_lora import restore_layers, use_lean_layers
from .merged import Merging
from .packing import PackedScorer
from .prefix import accept_prefixes
from .trial import trial_obstacle


logger = logging.getLogger(__name__)


@dataclass
class Acceleration:
    """
    The accelerations of a run.

    Attributes:
        packing (`Choice`): Whether groups are packed.
        generation (`Choice`): Whether rollouts are sampled compactly.
        merging (`Choice`): Whether micro-batches of an update are joined.
        score (`PackedScorer`, *optional*): Scores packed groups.
        compact (`CompactGeneration`, *optional*): Samples compactly.
        merge (`Merging`, *optional*): Joins micro-batches.
        lean (`list`): LoRA layers with another forward for packed rows.
    """

    packing: Choice
    generation: Choice
    merging: Choice
    score: PackedScorer | None
    compact: CompactGeneration | None
    lean: list[Linear] = field(default_factory=list)
    merge: Merging | None = None

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
        listed = partial(family_obstacle, trainer, policy)
        packing = choose(args, "pack_groups", partial(find_packing_obstacle, trainer, policy, listed))
        generation = choose(args, "compact_generation", partial(find_generation_obstacle, trainer, policy, listed))
        on_cuda = trainer.accelerator.device.type == "cuda"
        merging = choose(args, "merge_micro_batches", partial(find_merging_obstacle, trainer, packing))
        reasons = {
            "reuse_old_logps": args.reuse_obstacle,
            "pack_groups": None if packing.on else packing.reason,
            "compact_generation": None if generation.on else generation.reason,
            "merge_micro_batches": merging.reason if on_cuda and args.merges_any else None,
        }
        score = None
        lean = []
        if packing.on:
            accept_prefixes(policy)
            if args.pack_max_tokens is not None:
                check_limit(trainer)
            if is_peft_model(policy):
                if not (args.cast_lm_head_to_fp32 or args.has_entropy_bonus):
                    # whose entropies have no gradient, which an own loss may need
                    add_frozen_head(policy.get_base_model(), trainer.temperature, lambda: trainer.own_method is None)
                lean = use_lean_layers(policy)
            score = PackedScorer(args.pack_max_tokens, trainer.accelerator.autocast)
        compact = None
        if generation.on:
            autocasts = args.bf16 or args.fp16
            obstacle = listed("graphed") if on_cuda else "the model is not on a CUDA GPU."
            compact = CompactGeneration(
                policy,
                trainer.temperature,
                autocasts,
                args.compact_max_rows,
                args.compact_merge,
                Choice.unless(obstacle),
                keeps=args.torch_empty_cache_steps is None,
            )
            if on_cuda:
                reasons["a CUDA graph"] = obstacle
        unsupported = describe_unsupported(reasons)
        if trainer.is_world_process_zero() and unsupported:
            logger.warning(unsupported)
        made = cls(packing, generation, merging, score, compact, lean)
        if merging.on:
            made.merge = Merging(args, trainer.accelerator, lambda: made.packs, trainer.rows_to_compute)
        return made

    def check_merging(self, trainer) -> None:
        """Join no micro-batches if a script has set a method since, as for a subclass's."""
        if self.merge is None or trainer.own_method is None:
            return
        obstacle = partial(find_merging_obstacle, trainer, self.packing)
        self.merging = choose(trainer.args, "merge_micro_batches", obstacle)
        self.merge = None
        if trainer.is_world_process_zero():
            logger.warning(describe_unsupported({"merge_micro_batches": self.merging.reason}))

    def switch_off(self, reasons: Mapping[str, str]) -> dict[str, str]:
        """Switch off accelerations. Returns the reasons of those that were on."""
        off = {}
        if self.packing.on and reasons["pack_groups"]:
            off["pack_groups"] = reasons["pack_groups"]
            self.packing = Choice(False, off["pack_groups"])
            self.score = None
            restore_layers(self.lean)
        if self.generation.on and reasons["compact_generation"]:
            off["compact_generation"] = reasons["compact_generation"]
            self.generation = Choice(False, off["compact_generation"])
            self.compact = None
        if self.merging.on and reasons["merge_micro_batches"]:
            off["merge_micro_batches"] = reasons["merge_micro_batches"]
            self.merging = Choice(False, off["merge_micro_batches"])
            self.merge = None
        return off


def describe_unsupported(reasons: Mapping[str, str | None]) -> str:
    keys_by_reason: dict[str, list[str]] = {}
    for key, reason in reasons.items():
        if reason:
            keys_by_reason.setdefault(reason, []).append(key)
    return " ".join(f"Running without {', '.join(keys)}: {reason}" for reason, keys in keys_by_reason.items())


def choose(args, key: str, find_obstacle: Callable[[], str | None]) -> Choice:
    """Decide whether an acceleration is on. Raises `ValueError`: its key is `"on"`, and it is not supported."""
    value = getattr(args, key)
    if value == "off":
        return Choice(False)
    obstacle = args.disabled_reason if args.is_disabled(key) else find_obstacle()
    if obstacle is not None and value == "on":
        raise ValueError(f"{key}='on' is not supported here: {obstacle} Set {key}: auto to fall back, or \"off\".")
    return Choice.unless(obstacle)


def check_limit(trainer) -> None:
    """Raise `ValueError` if `pack_max_tokens` is not supported, or too small for a prompt."""
    limit = trainer.args.pack_max_tokens
    processes = trainer.accelerator.num_processes
    if processes > 1:
        raise ValueError(
            f"pack_max_tokens={limit} is not supported with {processes} processes: they would run different numbers "
            "of forward passes and deadlock. Remove pack_max_tokens, and lower per_device_train_batch_size."
        )
    if trainer.environment_factories is not None:
        raise ValueError(
            f"pack_max_tokens={limit} is not supported with environments, which extend prompts at their reset. Remove "
            "pack_max_tokens, and lower per_device_train_batch_size."
        )


Listed = Callable[[str], str | None]


def find_packing_obstacle(trainer, policy: torch.nn.Module, listed: Listed) -> str | None:
    """Return why groups cannot be packed, or `None`. `listed` is [`family_obstacle`] of an acceleration."""
    if has_images(trainer):
        return "the prompts have images."
    if trainer.aux_loss_enabled:
        return "the load-balancing loss averages over all tokens, prompts and padding included."
    return listed("shared_prompts")


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


def find_merging_obstacle(trainer, packing: Choice) -> str | None:
    """Return why micro-batches are not joined, or `None`. With `"auto"`, also that it would not help."""
    args = trainer.args
    if args.merge_obstacle is not None:
        return args.merge_obstacle
    if args.merge_micro_batches == "auto" and trainer.accelerator.device.type != "cuda":
        return "the model is not on a CUDA GPU."
    if has_images(trainer):
        return "the prompts have images."
    if trainer.aux_loss_enabled:
        return "the load-balancing loss averages over the tokens of each micro-batch."
    if trainer.own_method is not None:
        return f"{type(trainer).__name__} has its own {trainer.own_method}, which expects every micro-batch."
    if args.merge_micro_batches == "auto" and args.merge_tokens is None and not packing.on:
        return "without packed groups two micro-batches need twice the memory of one (merge_tokens allows it)."
    return None


def family_obstacle(trainer, policy: torch.nn.Module, acceleration: str) -> str | None:
    """
    Return why an acceleration does not support a model's family, or `None`: by the lists, or for `fast_models` by a
    trial.
    """
    model = unwrap_adapter(policy)
    kind = model.config.model_type
    if not is_listed(model) and kind in (trainer.args.fast_models or ()):
        return first_of_processes(trial_obstacle(acceleration, policy))
    return listing_obstacle(model, acceleration)
