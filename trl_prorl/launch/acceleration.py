"""Which accelerations serve a run: whether its groups are packed, and how its rollouts are sampled."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from accelerate.utils import gather_object

from ..rollout.compact_probe import probe as probe_generation
from ..rollout.generation import complete_config, why_not_compact
from ..scoring.first_layers import tried_on_first_layers
from ..scoring.gradient_probe import probe_gradients
from ..scoring.lean_lora import leaned
from ..scoring.packing import packed_logps, why_not
from ..scoring.packing_probe import probe as probe_packing
from .checks import check_prompts_fit


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Acceleration:
    """
    Attributes:
        packing (`str`): `"on"`, with a remark if the model's numbers were not tried, or `"off"` with the reason.
        generation (`str`): `"on"` for compact sampling, or `"off"` with the reason.
    """

    packing: str
    generation: str

    @property
    def packs(self) -> bool:
        """Whether groups are packed."""
        return self.packing.startswith("on")

    @classmethod
    def of(cls, trainer, policy: torch.nn.Module, padded: Callable[..., torch.Tensor]) -> "Acceleration":
        """
        Try what a configuration asks for, with a trainer made by TRL, its unwrapped policy, and TRL's
        log-probabilities: policy, `input_ids`, `attention_mask`, `logits_to_keep` → `(B, C)`. Raises `ValueError`:
        something is asked for and not possible.
        """
        args = trainer.args
        if args.skip_zero_rows and has_images(trainer):
            raise ValueError(
                "skip_zero_rows=True leaves out rows of text alone, and the prompts have images: set it false."
            )
        found = cls(_packing(trainer, policy, padded), _generation(trainer, policy))
        reasons = {
            "reuse_old_logps": args.why_no_reuse,
            "pack_groups": found.packing.partition("off: ")[2],
            "compact_generation": found.generation.partition("off: ")[2],
        }
        alike = {why: ", ".join(key for key in reasons if reasons[key] == why) for why in reasons.values() if why}
        lines = " ".join(f"{keys}: {why}" for why, keys in alike.items())
        if trainer.is_world_process_zero() and lines:
            logger.warning("Not possible here, so that the run is computed as without it: %s", lines)
        if found.packs and args.pack_max_tokens is not None:
            if trainer.environments is not None:
                raise ValueError(
                    f"pack_max_tokens={args.pack_max_tokens} bounds the prompts of the data, and environments write "
                    "into them at their reset: leave it out, and lower per_device_train_batch_size."
                )
            check_prompts_fit(trainer.train_dataset, trainer.eval_dataset, trainer.tokenize_prompts, args)
        return found


def has_images(trainer) -> bool:
    """Whether prompts may have images."""
    columns = getattr(trainer.train_dataset, "column_names", None) or ()
    return trainer._is_vlm or not {"image", "images"}.isdisjoint(columns)


def shards_weights(trainer) -> bool:
    """Whether no process has the whole policy."""
    plugin = trainer.args.deepspeed_plugin
    return trainer.is_fsdp_enabled or (plugin is not None and plugin.zero_stage == 3)


def chosen(trainer, key: str, objections: Mapping[str, bool], *tests: Callable[[], str | None]) -> str:
    """
    `"on"`, or `"off"` with the reason: the first objection that holds, or the first that a test returns. Raises
    `ValueError`: the key asks for what is not possible.
    """
    asked = getattr(trainer.args, key)
    if asked == "off":
        return "off"
    objections = {str(trainer.args.given_up): trainer.args.gives_up(key)} | dict(objections)
    reason = next((text for text, holds in objections.items() if holds), None)
    for test in tests:
        reason = reason or test()
    if reason is not None and asked == "on":
        raise ValueError(f"{key}='on' is not possible: {reason} Set {key}: \"off\", or auto to fall back.")
    return "on" if reason is None else f"off: {reason}"


def check_pack_processes(limit: int | None, processes: int) -> None:
    """Raise `ValueError` if several processes have a limit."""
    if limit is not None and processes > 1:
        raise ValueError(
            f"pack_max_tokens={limit} with {processes} processes, which would make unequal numbers of forwards and "
            "wait for each other for ever. Leave it out, and lower per_device_train_batch_size."
        )


def _agreed(reason: str | None) -> str | None:
    """The first reason that any process has, the same on every one."""
    return next(filter(None, gather_object([reason])), None)


def _packing(trainer, policy: torch.nn.Module, padded: Callable[..., torch.Tensor]) -> str:
    accelerator, sharded = trainer.accelerator, shards_weights(trainer)
    objections = {
        "the prompts have images.": has_images(trainer),
        "the load-balancing loss averages over tokens, prompts included, as padded.": trainer.aux_loss_enabled,
    }

    def packed(*rows):
        with leaned(policy):  # as the run will compute, if it packs
            return packed_logps(policy, *rows, autocast=accelerator.autocast)[0]

    def probed() -> str | None:
        check_pack_processes(trainer.args.pack_max_tokens, accelerator.num_processes)
        if sharded:
            logger.warning("The numbers of packed rows were not tried on this model: its weights are sharded.")
            return None
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(accelerator.mixed_precision)
        rows = vocabulary(policy), partial(padded, policy), packed, dtype

        def trial() -> str | None:
            return probe_packing(policy, *rows) or probe_gradients(policy, *rows)

        return _agreed(tried_on_first_layers(policy, trial))

    found = chosen(trainer, "pack_groups", objections, lambda: why_not(policy), probed)
    untried = "; its numbers were not tried, because the weights are sharded"
    return found + untried if found == "on" and sharded else found


def _generation(trainer, policy: torch.nn.Module) -> str:
    objections = {
        "use_vllm=True samples with vLLM.": trainer.use_vllm,
        "use_transformers_continuous_batching=True samples another way.": trainer.use_transformers_continuous_batching,
        "the prompts have images.": has_images(trainer),
        "the weights are sharded.": shards_weights(trainer),
    }

    def settings() -> str | None:
        config = trainer.generation_config  # another engine, which an objection names, has none
        own = getattr(policy, "generation_config", None)
        return why_not_compact(config if own is None else complete_config(config, own))

    def probed() -> str | None:
        trial = partial(probe_generation, policy, vocabulary(policy))
        return _agreed(tried_on_first_layers(policy, trial))

    return chosen(trainer, "compact_generation", objections, settings, probed)


def vocabulary(policy: torch.nn.Module) -> int:
    """Number of a model's tokens."""
    return policy.get_input_embeddings().weight.shape[0]
