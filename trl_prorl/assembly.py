"""Makes a trainer's policy, the run's identity, and the parts that keys require."""

import logging
from functools import partial

import torch
from accelerate.utils import is_peft_model
from transformers import GenerationConfig

from .cli.dropout import check_dropout
from .cli.fp32_head import prepare_head
from .cli.model_defaults import describe_unused
from .cli.plan import Plan
from .cli.prompt_rows import check_images
from .extras.dynamic_sampling import DynamicSampling, SignalWatch
from .extras.elastic import ElasticResets
from .extras.growth import Growth
from .extras.prompt_pool import PromptPool
from .extras.vllm import (
    RequestSeeds,
    check_merged,
    hand_over_adapters,
    keep_unpacked,
    merge_in_copies,
    seed_requests,
)
from .fast.acceleration import Acceleration
from .parts import Part
from .upstream.modules import is_sharded
from .watch import StopReason, configured_alarms


logger = logging.getLogger(__name__)


def prepare_policy(trainer, plan: Plan, policy: torch.nn.Module) -> Acceleration:
    """
    Prepare the policy in place, and choose the accelerations.

    Args:
        trainer ([`ProRLTrainer`]): The trainer.
        plan ([`~trl_prorl.cli.plan.Plan`]): The trainer's arguments.
        policy (`torch.nn.Module`): The policy, unwrapped.

    Raises `ValueError`: a key does not work with the model, or with its dropout.
    """
    args = trainer.args
    keep_unpacked(policy)
    if is_peft_model(policy):
        prepare_head(policy, trainer.temperature, args.cast_lm_head_to_fp32)
    if trainer.use_vllm and hasattr(trainer.vllm_generation, "llm"):  # an engine in this process
        # Before the hand-over of adapters, which wraps the same method.
        seed_requests(trainer.vllm_generation, RequestSeeds(trainer))
    if args.vllm_enable_lora:
        hand_over_adapters(trainer.vllm_generation, policy)
    elif trainer.use_vllm and is_peft_model(policy) and not is_sharded(trainer.accelerator):
        check_merged(policy)
        trainer.wrap_synced_weights(partial(merge_in_copies, trainer.vllm_generation.model))
    args.disable_fast_unless(check_dropout, trainer.model)
    args.disable_fast_unless(trainer.check_own_scores)
    check_images(trainer)
    return Acceleration.from_trainer(trainer, policy)


def warn_of_unused_defaults(trainer, policy: torch.nn.Module) -> str | None:
    """Log and return a line of the model's generation settings that rollouts do not use."""
    model_config = getattr(policy, "generation_config", None)
    if model_config is None:
        return None
    run_config = getattr(trainer, "generation_config", None)
    if run_config is None:  # vLLM samples
        names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
        run_config = GenerationConfig(do_sample=True, **{name: getattr(trainer, name) for name in names})
    unused = describe_unused(model_config, run_config)
    if unused and trainer.is_world_process_zero():
        logger.warning("%s", unused)
    return unused


def make_dynamic_sampling(trainer) -> DynamicSampling | None:
    if not trainer.args.dynamic_sampling_rounds:
        return None
    return DynamicSampling(
        trainer.args,
        trainer.accelerator,
        trainer.rows_to_sample,
        trainer.num_generations,
        trainer.text_tokenizer.pad_token_id,
        trainer.reward_weights,
    )


def make_prompt_pool(trainer) -> PromptPool | None:
    if not trainer.args.prompt_pool:
        return None
    return PromptPool(
        trainer.args,
        trainer.accelerator,
        trainer.rows_to_sample,
        trainer.num_generations,
        trainer.reward_weights,
    )


def optional_parts(trainer, policy: torch.nn.Module) -> dict[str, Part]:
    """
    Make the parts of keys and model, and the watch of the signal, in calling order.

    Returns `dict[str, Part]`: By their names in a checkpoint.
    """
    args = trainer.args
    timer = trainer.meter.timer
    parts: dict[str, Part] = {}
    parts["signal_watch"] = SignalWatch(args, trainer.accelerator, trainer.reward_weights, trainer.num_generations)
    parts["end"] = StopReason()
    elastic = None
    if args.elastic_reset_every:
        elastic = ElasticResets(args, policy, timer, trainer.accelerator.num_processes)
    if args.lora_growth_every:  # before Elastic Reset, which then copies the grown average
        copies = [] if elastic is None else [elastic.average, elastic.initial]
        parts["growth"] = Growth(args, policy, copies, timer)
    if elastic is not None:
        parts["elastic"] = elastic
    parts |= configured_alarms(args, trainer.resets.request)
    return parts
