"""Decide which accelerations a run uses: packed groups, and compact generation of rollouts."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from accelerate.utils import gather_object

from ..launch.checks import check_prompts_fit
from ..launch.prompt_rows import has_image_columns, is_text_only, named_sets
from .choice import Choice
from .lean_lora import lean_layers
from .packing import packed_logps
from .prefix import accept_prefixes, has_state
from .probes import probe as probe_generation
from .probes import probe_gradients, probe_values, why_not
from .sampling import complete_config, why_not_compact
from .trial import try_model


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
        Test which accelerations the model supports, and log the reason for each that it does not.

        Args:
            trainer (`ProRLTrainer`): The trainer, already initialised by TRL.
            policy (`torch.nn.Module`): Its model, unwrapped.
            padded (`Callable`): TRL's log-probabilities: policy, `input_ids`, `attention_mask`, `logits_to_keep` →
                shape `(B, C)`.

        Raises:
            `ValueError`: A key is `"on"`, and its acceleration is not supported.
        """
        args = trainer.args
        if has_images(trainer):
            _check_images(trainer)
        packing = choose(trainer, "pack_groups", partial(find_packing_obstacle, trainer, policy, padded))
        if packing.on and shards_weights(trainer):
            packing = Choice(True, "not tested on this model, because its weights are sharded")
        made = cls(packing, choose(trainer, "compact_generation", partial(find_generation_obstacle, trainer, policy)))
        unsupported = describe_unsupported(
            {
                "reuse_old_logps": args.reuse_obstacle,
                "pack_groups": None if made.packing.on else made.packing.reason,
                "compact_generation": None if made.generation.on else made.generation.reason,
            }
        )
        if trainer.is_world_process_zero() and unsupported:
            logger.warning(unsupported)
        if made.packs and args.pack_max_tokens is not None:
            if trainer.environments is not None:
                raise ValueError(
                    f"pack_max_tokens={args.pack_max_tokens} is not supported with environments, which extend prompts "
                    "at their reset. Remove pack_max_tokens, and lower per_device_train_batch_size."
                )
            check_prompts_fit(trainer.train_dataset, trainer.eval_dataset, trainer.tokenize_prompts, args)
        return made


def describe_unsupported(reasons: Mapping[str, str | None]) -> str:
    """Return one line that names the accelerations a run goes without, each with its reason."""
    keys_by_reason: dict[str, list[str]] = {}
    for key, reason in reasons.items():
        if reason:
            keys_by_reason.setdefault(reason, []).append(key)
    return " ".join(f"Running without {', '.join(keys)}: {reason}" for reason, keys in keys_by_reason.items())


def has_images(trainer) -> bool:
    """Return whether prompts may have images: in columns, in messages, or in replies of tools."""
    if not trainer._is_vlm:
        return has_image_columns(trainer.train_dataset)
    sets = named_sets(trainer.train_dataset, trainer.eval_dataset).values()
    return bool(trainer.tools) or not all(rows is None or is_text_only(rows) for rows in sets)


def _check_images(trainer) -> None:
    """Raise an error for prompts with images if the model or a key supports only text."""
    args = trainer.args
    if args.skip_zero_rows:
        raise ValueError("skip_zero_rows=True does not support prompts with images. Set skip_zero_rows: false.")
    if args.dynamic_sampling_rounds:
        raise ValueError(
            f"dynamic_sampling_rounds={args.dynamic_sampling_rounds} does not support prompts with images. Set "
            "dynamic_sampling_rounds: 0."
        )
    if not trainer._is_vlm:
        raise ValueError(
            "train_dataset has an image column, but the model reads only text. Remove the column, or train a "
            "vision-language model with its processor."
        )


def shards_weights(trainer) -> bool:
    """Return whether the weights are sharded, so that no process has all of them."""
    plugin = trainer.args.deepspeed_plugin
    return trainer.is_fsdp_enabled or (plugin is not None and plugin.zero_stage == 3)


def choose(trainer, key: str, find_obstacle: Callable[[], str | None]) -> Choice:
    """
    Decide whether an acceleration is on.

    Args:
        trainer (`ProRLTrainer`): Its configuration sets the key to `"off"`, `"on"` or `"auto"`.
        key (`str`): The key of the acceleration.
        find_obstacle (`Callable`): Returns the reason why it is not supported, as a sentence, or `None`.

    Raises:
        `ValueError`: The key is `"on"`, and the acceleration is not supported.
    """
    value = getattr(trainer.args, key)
    if value == "off":
        return Choice(False)
    objection = trainer.args.disabled_reason if trainer.args.is_disabled(key) else find_obstacle()
    if objection is None:
        return Choice(True)
    if value == "on":
        raise ValueError(f"{key}='on' is not supported here: {objection} Set {key}: auto to fall back, or \"off\".")
    return Choice(False, objection)


def check_pack_processes(limit: int | None, processes: int) -> None:
    """Raise `ValueError` if there is a limit and more than one process."""
    if limit is not None and processes > 1:
        raise ValueError(
            f"pack_max_tokens={limit} is not supported with {processes} processes: they would run different numbers "
            "of forward passes and deadlock. Remove pack_max_tokens, and lower per_device_train_batch_size."
        )


def first_of_all_processes(objection: str | None) -> str | None:
    """Return the objection of the first process that has one, the same on every process."""
    for found in gather_object([objection]):
        if found:
            return found
    return None


def find_packing_obstacle(trainer, policy: torch.nn.Module, padded: Callable[..., torch.Tensor]) -> str | None:
    """Return the reason why groups cannot be packed, or `None`. Arguments: see [`Acceleration.from_trainer`]."""
    if has_images(trainer):
        return "the prompts have images."
    if trainer.aux_loss_enabled:
        return "the load-balancing loss averages over all tokens, prompts and padding included."
    objection = why_not(policy)
    if objection is not None:
        return objection
    check_pack_processes(trainer.args.pack_max_tokens, trainer.accelerator.num_processes)
    accept_prefixes(policy)
    if shards_weights(trainer):
        if has_state(policy):  # a layer that does not get the layout computes the row as one sequence
            return "a model with layers that have a state is not packed if its weights are sharded."
        logger.warning("Packed rows were not compared with padded rows, because the weights are sharded.")
        return None
    return try_packing(trainer, policy, padded)


def try_packing(trainer, policy: torch.nn.Module, padded: Callable[..., torch.Tensor]) -> str | None:
    """Compare packed values and gradients with TRL's on a few tokens. Returns the reason not to pack, or `None`."""
    accelerator = trainer.accelerator

    def packed(*rows):
        with lean_layers(policy):  # as in the run, if it packs
            return packed_logps(policy, *rows, autocast=accelerator.autocast)[0]

    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(accelerator.mixed_precision)
    arguments = (policy, vocabulary(policy), partial(padded, policy), packed, dtype)

    def trial() -> str | None:
        return probe_values(*arguments) or probe_gradients(*arguments)

    return first_of_all_processes(try_model(policy, trial))


def find_generation_obstacle(trainer, policy: torch.nn.Module) -> str | None:
    """Return the reason why compact generation is not supported, or `None`."""
    if trainer.use_vllm:
        return "use_vllm=True samples with vLLM."
    if trainer.use_transformers_continuous_batching:
        return "use_transformers_continuous_batching=True uses another sampler."
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
    """Return the size of the model's vocabulary."""
    return policy.get_input_embeddings().weight.shape[0]
