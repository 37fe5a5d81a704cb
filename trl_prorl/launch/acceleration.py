"""Which accelerations serve a run: whether its groups are packed, and how its rollouts are sampled."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from accelerate.utils import gather_object

from ..choice import Choice
from ..rollout.compact_probe import probe as probe_generation
from ..rollout.generation import complete_config, why_not_compact
from ..scoring.lean_lora import lean_layers
from ..scoring.packing import packed_logps, why_not
from ..scoring.packing_probe import probe_gradients, probe_values
from ..scoring.trial import try_model
from .checks import check_prompts_fit


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Acceleration:
    """
    The accelerations of a run.

    Attributes:
        packing (`Choice`): Whether groups are packed.
        generation (`Choice`): Whether rollouts are sampled compactly.
    """

    packing: Choice
    generation: Choice

    @property
    def packs(self) -> bool:
        """Whether groups are packed."""
        return self.packing.on

    @classmethod
    def from_trainer(cls, trainer, policy: torch.nn.Module, padded: Callable[..., torch.Tensor]) -> "Acceleration":
        """
        Try which accelerations are possible, and log why others are not.

        Args:
            trainer (`ProRLTrainer`): TRL has made it.
            policy (`torch.nn.Module`): Its model, unwrapped.
            padded (`Callable`): TRL's log-probabilities: policy, `input_ids`, `attention_mask`, `logits_to_keep` →
                shape `(B, C)`.

        Raises:
            `ValueError`: The configuration asks for something that is not possible.
        """
        args = trainer.args
        if has_images(trainer):
            _check_images(trainer)
        packing = choose(trainer, "pack_groups", partial(find_packing_obstacle, trainer, policy, padded))
        if packing.on and shards_weights(trainer):
            packing = Choice(True, "its numbers were not tried, because the weights are sharded")
        made = cls(packing, choose(trainer, "compact_generation", partial(find_generation_obstacle, trainer, policy)))
        impossible = describe_impossible(
            {
                "reuse_old_logps": args.why_no_reuse,
                "pack_groups": None if made.packing.on else made.packing.reason,
                "compact_generation": None if made.generation.on else made.generation.reason,
            }
        )
        if trainer.is_world_process_zero() and impossible:
            logger.warning("Not possible here, so that the run is computed as without it: %s", impossible)
        if made.packs and args.pack_max_tokens is not None:
            if trainer.environments is not None:
                raise ValueError(
                    f"pack_max_tokens={args.pack_max_tokens} bounds the prompts of the data, and environments write "
                    "into them at their reset: leave it out, and lower per_device_train_batch_size."
                )
            check_prompts_fit(trainer.train_dataset, trainer.eval_dataset, trainer.tokenize_prompts, args)
        return made


def describe_impossible(reasons: Mapping[str, str | None]) -> str:
    """Write one line of keys with the reasons why they are not possible; keys with the same reason stand together."""
    keys_by_reason: dict[str, list[str]] = {}
    for key, reason in reasons.items():
        if reason:
            keys_by_reason.setdefault(reason, []).append(key)
    return " ".join(f"{', '.join(keys)}: {reason}" for reason, keys in keys_by_reason.items())


def has_images(trainer) -> bool:
    """Return whether prompts may have images."""
    columns = getattr(trainer.train_dataset, "column_names", None) or ()
    return trainer._is_vlm or not {"image", "images"}.isdisjoint(columns)


def _check_images(trainer) -> None:
    """Refuse prompts with images where the model or a key reads text alone."""
    args = trainer.args
    if args.skip_zero_rows:
        raise ValueError(
            "skip_zero_rows=True leaves out rows of text alone, and the prompts have images: set it false."
        )
    if args.dynamic_sampling_rounds:
        raise ValueError(
            f"dynamic_sampling_rounds={args.dynamic_sampling_rounds} replaces rows of text alone, and the prompts "
            "have images: set it to 0."
        )
    if not trainer._is_vlm:
        raise ValueError(
            "train_dataset has a column of images, and the model reads text alone. Remove the column, or train a "
            "vision-language model with its processor."
        )


def shards_weights(trainer) -> bool:
    """Return whether no process has the whole policy."""
    plugin = trainer.args.deepspeed_plugin
    return trainer.is_fsdp_enabled or (plugin is not None and plugin.zero_stage == 3)


def choose(trainer, key: str, find_obstacle: Callable[[], str | None]) -> Choice:
    """
    Decide whether an acceleration is on.

    Args:
        trainer (`ProRLTrainer`): Its configuration may say `"off"`, `"on"` or `"auto"`.
        key (`str`): The key of the acceleration.
        find_obstacle (`Callable`): Finds a sentence that says why it is not possible, or `None`.

    Raises:
        `ValueError`: The key is `"on"`, and it is not possible.
    """
    value = getattr(trainer.args, key)
    if value == "off":
        return Choice(False)
    objection = trainer.args.given_up if trainer.args.gives_up(key) else find_obstacle()
    if objection is None:
        return Choice(True)
    if value == "on":
        raise ValueError(f"{key}='on' is not possible: {objection} Set {key}: \"off\", or auto to fall back.")
    return Choice(False, objection)


def check_pack_processes(limit: int | None, processes: int) -> None:
    """Raise `ValueError` if several processes have a limit."""
    if limit is not None and processes > 1:
        raise ValueError(
            f"pack_max_tokens={limit} with {processes} processes, which would make unequal numbers of forwards and "
            "wait for each other for ever. Leave it out, and lower per_device_train_batch_size."
        )


def first_of_all_processes(objection: str | None) -> str | None:
    """Return the objection of the first process that has one, the same on every process."""
    for found in gather_object([objection]):
        if found:
            return found
    return None


def find_packing_obstacle(trainer, policy: torch.nn.Module, padded: Callable[..., torch.Tensor]) -> str | None:
    """Say why groups cannot be packed; the arguments are those of [`Acceleration.from_trainer`]."""
    if has_images(trainer):
        return "the prompts have images."
    if trainer.aux_loss_enabled:
        return "the load-balancing loss averages over tokens, prompts included, as padded."
    objection = why_not(policy)
    if objection is not None:
        return objection
    check_pack_processes(trainer.args.pack_max_tokens, trainer.accelerator.num_processes)
    if shards_weights(trainer):
        logger.warning("The numbers of packed rows were not tried on this model: its weights are sharded.")
        return None
    return try_packing(trainer, policy, padded)


def try_packing(trainer, policy: torch.nn.Module, padded: Callable[..., torch.Tensor]) -> str | None:
    """Compare packed numbers and gradients with TRL's on a few tokens. Returns an objection, or `None`."""
    accelerator = trainer.accelerator

    def packed(*rows):
        with lean_layers(policy):  # as the run will compute, if it packs
            return packed_logps(policy, *rows, autocast=accelerator.autocast)[0]

    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(accelerator.mixed_precision)
    arguments = (policy, vocabulary(policy), partial(padded, policy), packed, dtype)

    def trial() -> str | None:
        return probe_values(*arguments) or probe_gradients(*arguments)

    return first_of_all_processes(try_model(policy, trial))


def find_generation_obstacle(trainer, policy: torch.nn.Module) -> str | None:
    """Say why rollouts cannot be sampled compactly."""
    if trainer.use_vllm:
        return "use_vllm=True samples with vLLM."
    if trainer.use_transformers_continuous_batching:
        return "use_transformers_continuous_batching=True samples another way."
    if has_images(trainer):
        return "the prompts have images."
    if shards_weights(trainer):
        return "the weights are sharded."
    config = trainer.generation_config
    own_config = getattr(policy, "generation_config", None)
    if own_config is not None:
        config = complete_config(config, own_config)
    objection = why_not_compact(config)
    if objection is not None:
        return objection
    trial = partial(probe_generation, policy, vocabulary(policy))
    return first_of_all_processes(try_model(policy, trial))


def vocabulary(policy: torch.nn.Module) -> int:
    """Return the number of a model's tokens."""
    return policy.get_input_embeddings().weight.shape[0]
