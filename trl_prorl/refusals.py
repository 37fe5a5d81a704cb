"""
What a [`~trl_prorl.ProRLConfig`] refuses beside what the descriptor of a key says: the machine, the batch, and
combinations, each in one line with the key, the value and the cure. `docs/make_reference.py` shows the examples.

Nothing is imported that takes long: a command line makes the checks for which it knows enough before that is.
"""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .keys import TRIGGER_KEYS, UNGROUPED_ADVANTAGES
from .resets.treatments import TREATMENTS


if TYPE_CHECKING:
    from .config import ProRLConfig

logger = logging.getLogger(__name__)

CLIPPED_LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")


def check_batch(args: "ProRLConfig") -> None:
    """
    Refuse a generation batch that does not hold whole groups.

    Raises:
        `ValueError`: The line names the keys that make it up.
    """
    for key in ("gradient_accumulation_steps", "steps_per_generation", "generation_batch_size", "num_iterations"):
        value = getattr(args, key)
        if value is not None and value < 1:
            raise ValueError(f"{key}={value} must be at least 1.")
    size = args.generation_batch_size
    group = args.num_generations
    if not group or group < 1:
        raise ValueError(f"num_generations={group} must be at least 1.")
    if group == 1:
        check_single_completion(args)
    if size is not None and size % group:
        keys = ("per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation")
        factors = ", ".join(f"{key}={getattr(args, key)}" for key in keys)
        raise ValueError(
            f"num_generations={group} does not divide the {size} completions of a generation batch ({factors}). Set "
            "it to a divisor, or change those."
        )


def count_completions_at_once(args: "ProRLConfig") -> int:
    """Return how many completions a process draws for a generation batch; a given batch is that of all processes."""
    if args.generation_batch_size is not None:
        return args.generation_batch_size
    return args.per_device_train_batch_size * (args.steps_per_generation or args.gradient_accumulation_steps)


def check_single_completion(args: "ProRLConfig") -> None:
    """
    Refuse one completion a prompt where it would have nothing to be compared with.

    Raises:
        `ValueError`: The advantage compares the completions of a prompt, or a generation batch is of a single prompt.
    """
    if args.advantage_estimator not in UNGROUPED_ADVANTAGES:
        raise ValueError(
            f"num_generations=1 leaves nothing to compare, and advantage_estimator={args.advantage_estimator!r} "
            f"compares the completions of a prompt. Set num_generations: 2 (or more), or advantage_estimator: "
            f"{' or '.join(UNGROUPED_ADVANTAGES)}."
        )
    if count_completions_at_once(args) < 2:
        raise ValueError(
            f"num_generations=1 with per_device_train_batch_size={args.per_device_train_batch_size} draws a single "
            "completion, which there is nothing to compare with. Set per_device_train_batch_size or "
            "gradient_accumulation_steps to 2 or more."
        )


def check_deepspeed(args: "ProRLConfig") -> None:
    """Raise `ValueError` if a configuration needs DeepSpeed, and it is not installed."""
    if not args.deepspeed:
        return
    from transformers.integrations import is_deepspeed_available

    if not is_deepspeed_available():
        raise ValueError(
            f"deepspeed={args.deepspeed!r} needs DeepSpeed: pip install 'trl-prorl[deepspeed]', or leave the key out."
        )


def finds_bf16_gpu() -> bool:
    """Return whether transformers lets this machine train in bfloat16 on a device that is no CPU."""
    from transformers.utils import is_torch_bf16_gpu_available, is_torch_xla_available

    return is_torch_bf16_gpu_available() or is_torch_xla_available()


def check_precision(args: "ProRLConfig", by_default: bool, finds_gpu: Callable[[], bool] = finds_bf16_gpu) -> None:
    """
    Refuse bfloat16 with the name of its key, which transformers refuses without.

    Args:
        args (`ProRLConfig`): The configuration.
        by_default (`bool`): Whether `bf16` was not given, so that it has become true.
        finds_gpu (`Callable`, *optional*): Whether there is a GPU that computes in bfloat16.

    Raises:
        `ValueError`: torch finds no GPU that computes in bfloat16.
    """
    key = next((key for key in ("bf16", "bf16_full_eval") if getattr(args, key)), None)
    if key and not (args.use_cpu or finds_gpu()):
        default = ", the default," if by_default and key == "bf16" else ""
        raise ValueError(
            f"{key}=True{default} needs a GPU that computes in bfloat16, and torch finds none here. "
            f"Set {key}: false, and use_cpu: true to train on a CPU."
        )


def check_launcher(args: "ProRLConfig") -> None:
    """
    Refuse a precision of the launcher's that would silently win over the keys, and warn of processes that it did not
    start.

    Raises:
        `ValueError`: `accelerate launch` sets bf16 or fp16, and the keys say float32.
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


# ------------------------------------------------------------------------------------------------------- combinations


@dataclass(frozen=True)
class Refusal:
    """
    A combination of keys that is refused.

    Attributes:
        example (`dict[str, Any]`): Keys that are refused for this reason and no other.
        when (`Callable`): Whether a configuration, whose values are right one by one, is refused.
        words (`str`): The key, the value and the cure; `{args}` stands for the configuration, `{trigger}` for the
            first key that is set of those that request resets.
    """

    example: dict[str, Any]
    when: Callable[["ProRLConfig"], bool]
    words: str

    def line(self, args: "ProRLConfig") -> str:
        """Write the line that refuses a configuration."""
        trigger = next((key for key in TRIGGER_KEYS if getattr(args, key)), "guard_gap")
        return self.words.format(args=args, trigger=trigger, value=getattr(args, trigger))


def trl_computes_advantages(args: "ProRLConfig") -> bool:
    """Return whether TRL computes the advantages of each round of dynamic sampling."""
    return args.dynamic_sampling_rounds > 0 and args.advantage_estimator is None


# Neither a reset nor growth has a clean place where a generation falls inside an accumulation. Triggers that are no
# keys need the same.
UNCLEAN_SCHEDULE = Refusal(
    {
        "beta": 0.1,
        "ref_reset_every": 100,
        "gradient_accumulation_steps": 4,
        "steps_per_generation": 3,
        "num_iterations": 2,
    },
    lambda args: args.changes_at_boundary and args.generates_inside_accumulation,
    "With {args.schedule} a generation falls inside an accumulation, where gradients from before it are still "
    "waiting, so neither a reset nor growth has a clean place. Make one of gradient_accumulation_steps and "
    "steps_per_generation * num_iterations a multiple of the other.",
)

# The first that applies is raised. Each is shown in docs/reference.md.
REFUSALS = (
    Refusal(
        {"nonfinite": "skip", "fp16": True},
        lambda args: args.nonfinite == "skip" and bool(args.fp16 or args.deepspeed),
        "nonfinite='skip' with fp16 or DeepSpeed, whose loss scaler skips steps by itself, is not supported. Set "
        "nonfinite: stop, or bf16: true.",
    ),
    Refusal(
        {"beta": 0.1, "kl_estimator": "k1", "use_bias_correction_kl": False},
        lambda args: args.anchored and args.kl_estimator == "k1" and not args.use_bias_correction_kl,
        "kl_estimator='k1' with use_bias_correction_kl=False has zero expected gradient: it would penalise "
        "nothing. Set use_bias_correction_kl: true, or kl_estimator: k3.",
    ),
    Refusal(
        {"advantage_estimator": "rloo", "multi_objective_aggregation": "normalize_then_sum"},
        lambda args: args.advantage_estimator is not None and args.multi_objective_aggregation != "sum_then_normalize",
        "advantage_estimator={args.advantage_estimator!r} needs one reward for each completion, which "
        "multi_objective_aggregation={args.multi_objective_aggregation!r} does not give. Set it to "
        "sum_then_normalize.",
    ),
    Refusal(
        {"dynamic_sampling_rounds": 2, "scale_rewards": "batch"},
        lambda args: trl_computes_advantages(args) and args.scale_rewards == "batch",
        "dynamic_sampling_rounds with scale_rewards='batch' would scale each round by itself. Set "
        "advantage_estimator: batch_normalized, which is computed over the final batch.",
    ),
    Refusal(
        {"dynamic_sampling_rounds": 2, "multi_objective_aggregation": "normalize_then_sum"},
        lambda args: trl_computes_advantages(args) and args.multi_objective_aggregation != "sum_then_normalize",
        "dynamic_sampling_rounds with multi_objective_aggregation={args.multi_objective_aggregation!r} would "
        "normalise each round by itself. Set it to sum_then_normalize.",
    ),
    Refusal(
        {"dynamic_sampling_rounds": 2, "use_vllm": True},
        lambda args: args.dynamic_sampling_rounds > 0 and args.corrects_sampler,
        "dynamic_sampling_rounds scores once its groups are found, and vllm_importance_sampling_correction=True "
        "needs scores before. Set vllm_importance_sampling_correction: false.",
    ),
    Refusal(
        {"vllm_enable_lora": True, "use_vllm": True, "vllm_mode": "server"},
        lambda args: (
            args.vllm_enable_lora
            and (args.vllm_mode == "server" or args.vllm_enable_sleep_mode or args.adapter_restart == "merge")
        ),
        "vllm_enable_lora=True relies on a base that vLLM loads once and keeps, and there are vllm_mode="
        "{args.vllm_mode!r}, vllm_enable_sleep_mode={args.vllm_enable_sleep_mode} and adapter_restart="
        "{args.adapter_restart!r}. Set vllm_mode: colocate without the others, or leave vllm_enable_lora out.",
    ),
    Refusal(
        {"compact_generation": "on", "use_vllm": True},
        lambda args: args.compact_generation == "on" and (args.use_vllm or args.use_transformers_continuous_batching),
        "compact_generation='on' samples with the policy itself, use_vllm={args.use_vllm} and "
        "use_transformers_continuous_batching={args.use_transformers_continuous_batching} another way. Set those to "
        "false, or compact_generation: auto.",
    ),
    Refusal(
        {"loss_mode": "unclipped", "loss_type": "cispo"},
        lambda args: args.loss_mode is not None and args.loss_type not in CLIPPED_LOSSES,
        "loss_mode={args.loss_mode!r} is about the clipped ratio, and loss_type={args.loss_type!r} has none. Set "
        f"loss_type to one of {', '.join(CLIPPED_LOSSES)}, or leave loss_mode out.",
    ),
    Refusal(
        {"loss_mode": "unclipped", "delta": 2.0},
        lambda args: args.loss_mode in ("no_ratio", "unclipped") and args.delta is not None,
        "loss_mode={args.loss_mode!r} leaves no clip on the ratio, and delta={args.delta} is one. Leave delta "
        "out, or set loss_mode: clipped.",
    ),
    Refusal(
        {"skip_zero_rows": True, "top_entropy_quantile": 0.2},
        lambda args: args.skip_zero_rows and args.top_entropy_quantile < 1.0,
        "skip_zero_rows=True leaves out rows whose entropies top_entropy_quantile={args.top_entropy_quantile} "
        "ranks. Set skip_zero_rows: false, or top_entropy_quantile: 1.0.",
    ),
    Refusal(
        {"beta_old": 0.1},
        lambda args: args.beta_old != 0.0 and args.on_policy,
        "beta_old={args.beta_old} can do nothing with {args.schedule}: no sample is used after an update, so the "
        "policy equals pi_old wherever the penalty is evaluated. Set num_iterations: 2 (or more), or a "
        "steps_per_generation larger than gradient_accumulation_steps.",
    ),
    Refusal(
        {"ref_reset_every": 100},
        lambda args: args.resets and args.beta == 0.0 and args.ref_reset_mix != 0.0 and args.adapter_restart == "off",
        "{trigger}={value} moves a reference, but beta=0 means that there is none. Set beta > 0 (variants A and C), "
        "or ref_reset_mix: 0 to reset the optimizer alone.",
    ),
    Refusal(
        {"ref_reset_kl": 0.1, "ref_reset_mix": 0.0, "optimizer_reset": "hard"},
        lambda args: args.beta == 0.0 and args.ref_reset_kl is not None,
        "ref_reset_kl={args.ref_reset_kl} watches the KL to a reference, but beta=0 means that there is none. "
        "Set beta > 0, or use another trigger.",
    ),
    Refusal(
        {"beta": 0.1, "ref_reset_every": 100, "ref_reset_mix": 0.0},
        lambda args: args.resets and args.ref_reset_mix == 0.0 and not args.treats_optimizer,
        "ref_reset_mix=0 with optimizer_reset='keep' resets nothing. Set ref_reset_mix: 1, or another "
        f"optimizer_reset: {', '.join(name for name in TREATMENTS if name != 'keep')}.",
    ),
    Refusal(
        {"beta": 0.1, "ref_reset_stall": 2, "ref_reset_metric": "reward"},
        lambda args: args.watches_metric and not args.ref_reset_metric.startswith("eval_"),
        "ref_reset_metric={args.ref_reset_metric!r} is not a metric of an evaluation, whose names begin with "
        "eval_. Set it to eval_reward, eval_pass@1, or eval_rewards/NAME/mean of one reward function.",
    ),
    Refusal(
        {"beta": 0.1, "ref_reset_stall": 2},
        lambda args: args.watches_metric and args.eval_strategy == "no",
        "ref_reset_stall={args.ref_reset_stall} and ref_reset_drop={args.ref_reset_drop} watch "
        "ref_reset_metric={args.ref_reset_metric!r}, but eval_strategy='no' never measures it. Set eval_strategy: "
        "steps and eval_steps.",
    ),
    Refusal(
        {"beta": 0.1, "ref_reset_every": 100, "sync_ref_model": True},
        lambda args: args.resets and args.sync_ref_model,
        "sync_ref_model=True and {trigger} both move the reference, and TRL's callback moves it in the "
        "middle of a generation batch. Set sync_ref_model: false.",
    ),
    Refusal(
        {"beta": 0.1, "ref_reset_every": 100, "adapter_restart": "merge", "ref_reset_mix": 0.5},
        lambda args: args.adapter_restart == "merge" and args.ref_reset_mix != 1.0,
        "adapter_restart='merge' makes the merged model the reference, and ref_reset_mix={args.ref_reset_mix} asks "
        "for another one. Leave ref_reset_mix out, or set adapter_restart: off.",
    ),
    Refusal(
        {"beta": 0.1, "ref_reset_every": 100, "adapter_restart": "merge", "beta_base": 0.1},
        lambda args: (
            args.adapter_restart == "merge" and any((args.beta_base, args.lora_growth_every, args.elastic_reset_every))
        ),
        "adapter_restart='merge' begins a new adapter over other weights, and beta_base={args.beta_base}, "
        "lora_growth_every={args.lora_growth_every} and elastic_reset_every={args.elastic_reset_every} need those of "
        "the beginning. Leave them out, or set adapter_restart: off.",
    ),
    Refusal(
        {"kl_in": "reward", "beta_base": 0.1, "beta_old": 0.1, "num_iterations": 2, "advantage_estimator": "rloo"},
        lambda args: args.kl_in == "reward" and args.beta_old != 0.0,
        "kl_in='reward' takes the KL as a batch is sampled, where that to pi_old is 0: beta_old={args.beta_old} would "
        "do nothing. Set kl_in: loss, or beta_old: 0.",
    ),
    Refusal(
        {"kl_in": "reward", "beta": 0.1},
        lambda args: args.kl_in == "reward" and args.advantage_estimator is None,
        "kl_in='reward' changes rewards before they become advantages, which TRL has computed by then. Set "
        "advantage_estimator: global_normalized (REINFORCE++), group_normalized (GRPO), or another.",
    ),
    Refusal(
        {"kl_in": "reward", "beta": 0.1, "advantage_estimator": "rloo", "kl_clamp": 10.0},
        lambda args: args.kl_in == "reward" and args.kl_clamp is not None,
        "kl_in='reward' sums log-ratios over a completion, and kl_clamp={args.kl_clamp} bounds a KL term of the loss. "
        "Leave kl_clamp out, or set kl_in: loss.",
    ),
    Refusal(
        {"rollback": 2, "save_strategy": "no"},
        lambda args: args.rollback > 0 and (args.save_strategy == "no" or args.save_only_model),
        "rollback={args.rollback} goes back to a checkpoint with the optimizer's state, and save_strategy="
        "{args.save_strategy.value!r} with save_only_model={args.save_only_model} writes none. Set save_strategy: "
        "steps, save_steps, and save_only_model: false.",
    ),
    Refusal(
        {"rollback": 2, "lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps"},
        lambda args: args.rollback > 0 and args.lr_scheduler_type in ("reduce_lr_on_plateau", "greedy"),
        "rollback={args.rollback} lowers the learning rate, and "
        "lr_scheduler_type={args.lr_scheduler_type.value!r} sets it by itself. "
        "Set lr_scheduler_type: constant, or another.",
    ),
    Refusal(
        {"dynamic_sampling_rounds": 2, "num_generations": 1, "advantage_estimator": "global_normalized"},
        lambda args: args.dynamic_sampling_rounds > 0 and args.num_generations == 1,
        "dynamic_sampling_rounds={args.dynamic_sampling_rounds} replaces prompts whose completions all have one "
        "reward, which num_generations=1 makes of every prompt. Leave dynamic_sampling_rounds out, or set "
        "num_generations: 2 (or more).",
    ),
    Refusal(
        {"drop_zero_rows": True, "num_generations": 1, "advantage_estimator": "global_normalized", "beta": 0.1},
        lambda args: args.drop_zero_rows and args.num_generations == 1,
        "drop_zero_rows={args.drop_zero_rows} leaves out groups whose completions all have the same reward; with "
        "num_generations=1 there are no groups. Set drop_zero_rows: false, or num_generations: 2 (or more).",
    ),
    UNCLEAN_SCHEDULE,
)


def check_combinations(args: "ProRLConfig") -> None:
    """
    Refuse keys that contradict one another.

    Raises:
        `ValueError`: The line of the first refusal that applies.
    """
    for refusal in REFUSALS:
        if refusal.when(args):
            raise ValueError(refusal.line(args))
