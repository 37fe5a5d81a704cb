"""Which ways are open to a run: whether its groups are packed, and how its rollouts are sampled."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch
from accelerate.utils import gather_object

from ..rollout.compact_probe import probe as probe_generation
from ..rollout.generation import as_generated, choose_generation
from ..scoring.packing import choose_packing, packed_logps
from ..scoring.packing_probe import probe as probe_packing
from .checks import check_prompts_fit


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ways:
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
    def of(cls, trainer, policy: torch.nn.Module, padded: Callable[..., torch.Tensor]) -> "Ways":
        """
        Try what a configuration asks for.

        Args:
            trainer ([`~trl.GRPOTrainer`]): Made by TRL, with all that may stand against it: images, another engine.
            policy (`torch.nn.Module`): Its policy, unwrapped.
            padded (`Callable`):
                TRL's log-probabilities: policy, `input_ids`, `attention_mask`, `logits_to_keep` → `(B, C)`.

        Raises:
            `ValueError`: something is asked for and not possible.
        """
        args = trainer.args
        if args.skip_zero_rows and has_images(trainer):
            raise ValueError(
                "skip_zero_rows=True leaves out rows of text alone, and the prompts have images: set it false."
            )
        ways = cls(_packing(trainer, policy, padded), _generation(trainer, policy))
        reasons = {
            "reuse_old_logps": args.why_no_reuse,
            "pack_groups": ways.packing.partition("off: ")[2],
            "compact_generation": ways.generation.partition("off: ")[2],
        }
        if trainer.is_world_process_zero() and any(reasons.values()):
            alike = {why: [key for key in reasons if reasons[key] == why] for why in reasons.values() if why}
            told = " ".join(f"{', '.join(keys)}: {why}" for why, keys in alike.items())
            logger.warning("Not possible here, so that the run is computed as without it: %s", told)
        if ways.packs and args.pack_max_tokens is not None:
            if trainer.environments is not None:
                raise ValueError(
                    f"pack_max_tokens={args.pack_max_tokens} bounds the prompts of the data, and environments write "
                    "into them at their reset: leave it out, and lower per_device_train_batch_size."
                )
            check_prompts_fit(trainer.train_dataset, trainer.eval_dataset, trainer.tokenize_prompts, args)
        return ways


def has_images(trainer) -> bool:
    """Whether prompts may have images."""
    columns = getattr(trainer.train_dataset, "column_names", None) or ()
    return trainer._is_vlm or not {"image", "images"}.isdisjoint(columns)


def shards_weights(trainer) -> bool:
    """Whether no process has the whole policy."""
    plugin = trainer.args.deepspeed_plugin
    return trainer.is_fsdp_enabled or (plugin is not None and plugin.zero_stage == 3)


def _agreed(reason: str | None) -> str | None:
    """The first reason that any process has, the same on every one."""
    return next(filter(None, gather_object([reason])), None)


def _packing(trainer, policy: torch.nn.Module, padded: Callable[..., torch.Tensor]) -> str:
    accelerator = trainer.accelerator
    objections = {
        str(trainer.args.given_up): trainer.args.gives_up("pack_groups"),
        "the prompts have images.": has_images(trainer),
        "the load-balancing loss averages over tokens, prompts included, as padded.": trainer.aux_loss_enabled,
    }

    def probed() -> str | None:
        def packed(input_ids, attention_mask, logits_to_keep):
            return packed_logps(policy, input_ids, attention_mask, logits_to_keep, autocast=accelerator.autocast)[0]

        def as_trl_pads(input_ids, attention_mask, logits_to_keep):
            return padded(policy, input_ids, attention_mask, logits_to_keep)

        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(accelerator.mixed_precision)
        return _agreed(probe_packing(policy, vocabulary(policy), as_trl_pads, packed, dtype))

    tried = None if shards_weights(trainer) else probed
    return choose_packing(trainer.args, policy, objections, accelerator.num_processes, tried)


def _generation(trainer, policy: torch.nn.Module) -> str:
    objections = {
        str(trainer.args.given_up): trainer.args.gives_up("compact_generation"),
        "use_vllm=True samples with vLLM.": trainer.use_vllm,
        "use_transformers_continuous_batching=True samples another way.": trainer.use_transformers_continuous_batching,
        "the prompts have images.": has_images(trainer),
        "the weights are sharded.": shards_weights(trainer),
    }
    config = getattr(trainer, "generation_config", None)  # another engine has none
    if config is not None and (own := getattr(policy, "generation_config", None)) is not None:
        config = as_generated(config, own)
    return choose_generation(
        trainer.args.compact_generation,
        config,
        objections,
        lambda: _agreed(probe_generation(policy, vocabulary(policy))),
    )


def vocabulary(policy: torch.nn.Module) -> int:
    """Number of a model's tokens."""
    return policy.get_input_embeddings().weight.shape[0]
