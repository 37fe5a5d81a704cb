"""
What a [`~trl_prorl.ProRLConfig`] refuses: combinations of keys that would give wrong numbers, or do nothing of what
they say. Each is one line with the key, the value and the cure. docs/reference.md lists the docstrings.
"""

import logging
import os
from typing import TYPE_CHECKING

from .keys import TRIGGER_KEYS, UNGROUPED_ADVANTAGES
from .resets.treatments import TREATMENTS, treatment_of


if TYPE_CHECKING:
    from .config import ProRLConfig

logger = logging.getLogger(__name__)

CLIPPED_LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")


def refuse_kl(args: "ProRLConfig") -> None:
    """
    KL terms:

    - `kl_estimator: k1` without `use_bias_correction_kl`, whose expected gradient is zero.
    - `beta_old` where no sample is used after an update, so that π_θ = π_old wherever it is evaluated.
    - `kl_in: reward` with `beta_old` (the KL to π_old is 0 as a batch is sampled), without `advantage_estimator` (TRL
      has computed the advantages by then), or with `kl_clamp` (which bounds a term of the loss).
    """
    if args.anchored and args.kl_estimator == "k1" and not args.use_bias_correction_kl:
        raise ValueError(
            "kl_estimator='k1' with use_bias_correction_kl=False has zero expected gradient: it would penalise "
            "nothing. Set use_bias_correction_kl: true, or kl_estimator: k3."
        )
    if args.beta_old != 0.0 and args.on_policy:
        raise ValueError(
            f"beta_old={args.beta_old} can do nothing with {args.schedule}: no sample is used after an update, so the "
            "policy equals pi_old wherever the penalty is evaluated. Set num_iterations: 2 (or more), or a "
            "steps_per_generation larger than gradient_accumulation_steps."
        )
    if args.kl_in != "reward":
        return
    if args.beta_old != 0.0:
        raise ValueError(
            f"kl_in='reward' takes the KL as a batch is sampled, where that to pi_old is 0: beta_old={args.beta_old} "
            "would do nothing. Set kl_in: loss, or beta_old: 0."
        )
    if args.advantage_estimator is None:
        raise ValueError(
            "kl_in='reward' changes rewards before they become advantages, which TRL has computed by then. Set "
            "advantage_estimator: global_normalized (REINFORCE++), group_normalized (GRPO), or another."
        )
    if args.kl_clamp is not None:
        raise ValueError(
            f"kl_in='reward' sums log-ratios over a completion, and kl_clamp={args.kl_clamp} bounds a KL term of the "
            "loss. Leave kl_clamp out, or set kl_in: loss."
        )


def refuse_resets(args: "ProRLConfig") -> None:
    """
    Resets:

    - An `optimizer_reset` that is no treatment.
    - A trigger without a reference (`beta: 0`), unless `ref_reset_mix: 0` resets the optimizer alone or the adapter is
      restarted; `ref_reset_kl` without a reference.
    - `ref_reset_mix: 0` with `optimizer_reset: keep`, which resets nothing.
    - A `ref_reset_metric` that no evaluation measures, because of its name or of `eval_strategy: "no"`.
    - Resets with TRL's `sync_ref_model`, which moves the reference in the middle of a generation batch.
    - `adapter_restart: merge` with another reference than the merged model (`ref_reset_mix`), or with what needs the
      weights of the beginning (`beta_base`, `lora_growth_every`, `elastic_reset_every`).
    - Resets and growth where a generation falls inside an accumulation.
    """
    treatment_of(args.optimizer_reset, args.optimizer_reset_alpha)  # raises if there is none
    if args.adapter_restart == "merge":
        _refuse_restarts(args)
    if args.changes_at_boundary:
        refuse_unclean_schedule(args)
    if not args.resets:
        return
    trigger = next((key for key in TRIGGER_KEYS if getattr(args, key)), "guard_gap")
    if args.beta == 0.0 and args.ref_reset_mix != 0.0 and args.adapter_restart == "off":
        raise ValueError(
            f"{trigger}={getattr(args, trigger)} moves a reference, but beta=0 means that there is none. Set beta > 0 "
            "(variants A and C), or ref_reset_mix: 0 to reset the optimizer alone."
        )
    if args.beta == 0.0 and args.ref_reset_kl is not None:
        raise ValueError(
            f"ref_reset_kl={args.ref_reset_kl} watches the KL to a reference, but beta=0 means that there is none. "
            "Set beta > 0, or use another trigger."
        )
    if args.ref_reset_mix == 0.0 and not args.treats_optimizer:
        others = ", ".join(name for name in TREATMENTS if name != "keep")
        raise ValueError(
            "ref_reset_mix=0 with optimizer_reset='keep' resets nothing. Set ref_reset_mix: 1, or another "
            f"optimizer_reset: {others}."
        )
    if args.sync_ref_model:
        raise ValueError(
            f"sync_ref_model=True and {trigger} both move the reference, and TRL's callback moves it in the middle of "
            "a generation batch. Set sync_ref_model: false."
        )
    if args.watches_metric:
        _refuse_unmeasured_metric(args)


def _refuse_unmeasured_metric(args: "ProRLConfig") -> None:
    if not args.ref_reset_metric.startswith("eval_"):
        raise ValueError(
            f"ref_reset_metric={args.ref_reset_metric!r} is not a metric of an evaluation, whose names begin with "
            "eval_. Set it to eval_reward, eval_pass@1, or eval_rewards/NAME/mean of one reward function."
        )
    if args.eval_strategy == "no":
        raise ValueError(
            f"ref_reset_stall={args.ref_reset_stall} and ref_reset_drop={args.ref_reset_drop} watch "
            f"ref_reset_metric={args.ref_reset_metric!r}, but eval_strategy='no' never measures it. Set "
            "eval_strategy: steps and eval_steps."
        )


def _refuse_restarts(args: "ProRLConfig") -> None:
    if args.ref_reset_mix != 1.0:
        raise ValueError(
            f"adapter_restart='merge' makes the merged model the reference, and ref_reset_mix={args.ref_reset_mix} "
            "asks for another one. Leave ref_reset_mix out, or set adapter_restart: off."
        )
    if args.beta_base or args.lora_growth_every or args.elastic_reset_every:
        raise ValueError(
            f"adapter_restart='merge' begins a new adapter over other weights, and beta_base={args.beta_base}, "
            f"lora_growth_every={args.lora_growth_every} and elastic_reset_every={args.elastic_reset_every} need "
            "those of the beginning. Leave them out, or set adapter_restart: off."
        )


def refuse_unclean_schedule(args: "ProRLConfig") -> None:
    """
    Refuse a schedule in which a generation falls inside an accumulation. It is for whatever acts at a generation
    boundary, triggers of a script included.

    Raises:
        `ValueError`: Neither `gradient_accumulation_steps` nor `steps_per_generation * num_iterations` is a multiple
            of the other.
    """
    if args.generates_inside_accumulation:
        raise ValueError(
            f"With {args.schedule} a generation falls inside an accumulation, where gradients from before it are "
            "still waiting, so neither a reset nor growth has a clean place. Make one of gradient_accumulation_steps "
            "and steps_per_generation * num_iterations a multiple of the other."
        )


def refuse_samples(args: "ProRLConfig") -> None:
    """
    Samples and their advantages:

    - `num_generations: 1` where the advantage compares the completions of a prompt, and with
      `dynamic_sampling_rounds` or `drop_zero_rows`, which are about groups.
    - `advantage_estimator` with `multi_objective_aggregation: normalize_then_sum`, which gives no single reward.
    - `dynamic_sampling_rounds` where TRL would normalise each round by itself (`scale_rewards: batch`,
      `normalize_then_sum`), or where vLLM's correction needs scores before the groups are found.
    - `vllm_enable_lora` where vLLM does not keep one base (a server, sleep mode, restarts of the adapter).
    - `compact_generation: "on"` with another sampler.
    """
    rounds = args.dynamic_sampling_rounds
    if args.num_generations == 1:
        _refuse_single_completions(args)
    sums = args.multi_objective_aggregation == "sum_then_normalize"
    if args.advantage_estimator is not None and not sums:
        raise ValueError(
            f"advantage_estimator={args.advantage_estimator!r} needs one reward for each completion, which "
            f"multi_objective_aggregation={args.multi_objective_aggregation!r} does not give. Set it to "
            "sum_then_normalize."
        )
    trl_computes_advantages = args.advantage_estimator is None
    if rounds and trl_computes_advantages and args.scale_rewards == "batch":
        raise ValueError(
            "dynamic_sampling_rounds with scale_rewards='batch' would scale each round by itself. Set "
            "advantage_estimator: batch_normalized, which is computed over the final batch."
        )
    if rounds and trl_computes_advantages and not sums:
        raise ValueError(
            f"dynamic_sampling_rounds with multi_objective_aggregation={args.multi_objective_aggregation!r} would "
            "normalise each round by itself. Set it to sum_then_normalize."
        )
    if rounds and args.corrects_sampler:
        raise ValueError(
            "dynamic_sampling_rounds scores once its groups are found, and vllm_importance_sampling_correction=True "
            "needs scores before. Set vllm_importance_sampling_correction: false."
        )
    keeps_base = args.vllm_mode != "server" and not args.vllm_enable_sleep_mode and args.adapter_restart != "merge"
    if args.vllm_enable_lora and not keeps_base:
        raise ValueError(
            f"vllm_enable_lora=True relies on a base that vLLM loads once and keeps, and there are vllm_mode="
            f"{args.vllm_mode!r}, vllm_enable_sleep_mode={args.vllm_enable_sleep_mode} and adapter_restart="
            f"{args.adapter_restart!r}. Set vllm_mode: colocate without the others, or leave vllm_enable_lora out."
        )
    samples_otherwise = args.use_vllm or args.use_transformers_continuous_batching
    if args.compact_generation == "on" and samples_otherwise:
        raise ValueError(
            f"compact_generation='on' samples with the policy itself, use_vllm={args.use_vllm} and "
            f"use_transformers_continuous_batching={args.use_transformers_continuous_batching} another way. Set those "
            "to false, or compact_generation: auto."
        )


def _refuse_single_completions(args: "ProRLConfig") -> None:
    if args.advantage_estimator not in UNGROUPED_ADVANTAGES:
        raise ValueError(
            f"num_generations=1 leaves nothing to compare, and advantage_estimator={args.advantage_estimator!r} "
            f"compares the completions of a prompt. Set num_generations: 2 (or more), or advantage_estimator: "
            f"{' or '.join(UNGROUPED_ADVANTAGES)}."
        )
    if args.dynamic_sampling_rounds:
        raise ValueError(
            f"dynamic_sampling_rounds={args.dynamic_sampling_rounds} replaces prompts whose completions all have one "
            "reward, which num_generations=1 makes of every prompt. Leave dynamic_sampling_rounds out, or set "
            "num_generations: 2 (or more)."
        )
    if args.drop_zero_rows:
        raise ValueError(
            f"drop_zero_rows={args.drop_zero_rows} leaves out groups whose completions all have the same reward; with "
            "num_generations=1 there are no groups. Set drop_zero_rows: false, or num_generations: 2 (or more)."
        )


def refuse_losses(args: "ProRLConfig") -> None:
    """
    Losses, and what keeps a run safe:

    - `loss_mode` with a `loss_type` that has no clipped ratio, or without a clip beside TRL's `delta`, which is one.
    - `skip_zero_rows` with `top_entropy_quantile`, which ranks the entropies of all rows.
    - `nonfinite: skip` with fp16 or DeepSpeed, whose loss scaler skips steps by itself.
    - `rollback` without checkpoints that hold the optimizer, or with a schedule that sets the learning rate by itself.
    """
    if args.loss_mode is not None and args.loss_type not in CLIPPED_LOSSES:
        raise ValueError(
            f"loss_mode={args.loss_mode!r} is about the clipped ratio, and loss_type={args.loss_type!r} has none. Set "
            f"loss_type to one of {', '.join(CLIPPED_LOSSES)}, or leave loss_mode out."
        )
    if args.loss_mode in ("no_ratio", "unclipped") and args.delta is not None:
        raise ValueError(
            f"loss_mode={args.loss_mode!r} leaves no clip on the ratio, and delta={args.delta} is one. Leave delta "
            "out, or set loss_mode: clipped."
        )
    if args.skip_zero_rows and args.top_entropy_quantile < 1.0:
        raise ValueError(
            f"skip_zero_rows=True leaves out rows whose entropies top_entropy_quantile={args.top_entropy_quantile} "
            "ranks. Set skip_zero_rows: false, or top_entropy_quantile: 1.0."
        )
    if args.nonfinite == "skip" and (args.fp16 or args.deepspeed):
        raise ValueError(
            "nonfinite='skip' with fp16 or DeepSpeed, whose loss scaler skips steps by itself, is not supported. Set "
            "nonfinite: stop, or bf16: true."
        )
    if args.rollback and (args.save_strategy == "no" or args.save_only_model):
        raise ValueError(
            f"rollback={args.rollback} goes back to a checkpoint with the optimizer's state, and save_strategy="
            f"{args.save_strategy.value!r} with save_only_model={args.save_only_model} writes none. Set "
            "save_strategy: steps, save_steps, and save_only_model: false."
        )
    if args.rollback and args.lr_scheduler_type in ("reduce_lr_on_plateau", "greedy"):
        raise ValueError(
            f"rollback={args.rollback} lowers the learning rate, and lr_scheduler_type="
            f"{args.lr_scheduler_type.value!r} sets it by itself. Set lr_scheduler_type: constant, or another."
        )


def refuse_launcher(args: "ProRLConfig") -> None:
    """
    The launcher:

    - `accelerate launch` in bf16 or fp16 where the keys say float32: the launcher's precision would win.
    """
    precision = args.mixed_precision
    if precision in ("bf16", "fp16") and not getattr(args, precision):
        raise ValueError(
            f"{precision}=False, but the launcher says mixed_precision={precision}, which would win. Set {precision}: "
            "true, or launch with --mixed_precision no (a file of accelerate_configs/ or your own default may say "
            "otherwise)."
        )
    launched = {"ACCELERATE_MIXED_PRECISION", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()
    if launched and "WORLD_SIZE" not in os.environ and args.world_size == 1:
        logger.warning(
            "accelerate launch was asked for several processes, and has started one, because on CPUs it starts more "
            "by MPI alone. Start them with: ACCELERATE_USE_CPU=true torchrun --nproc_per_node 2 SCRIPT ..."
        )


REFUSALS = (refuse_launcher, refuse_kl, refuse_resets, refuse_samples, refuse_losses)
