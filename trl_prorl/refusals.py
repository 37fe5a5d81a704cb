"""
What a [`~trl_prorl.ProRLConfig`] refuses: values one by one, then combinations, each in one line with the key, the
value and the cure. `docs/make_reference.py` shows the examples; `tests/test_refusals.py` walks the tables.
"""

import logging
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from transformers.integrations import is_deepspeed_available
from transformers.utils import is_torch_bf16_gpu_available, is_torch_xla_available

from .guards.finite import MODES as NONFINITE
from .guards.guard_gap import ACTIONS as GUARD_ACTIONS
from .needs import NEEDS, Need, is_unused, unused_line
from .objective.advantages import ESTIMATORS as ADVANTAGES
from .objective.kl import ESTIMATORS
from .resets import triggers
from .resets.treatments import MODES


if TYPE_CHECKING:
    from .config import ProRLConfig

logger = logging.getLogger(__name__)

CLIPPED_LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")

# ------------------------------------------------------------------------------------------------------------- values

CHOICES: dict[str, tuple[str | None, ...]] = {
    "kl_estimator": ESTIMATORS,
    "ref_compute": ("cached", "naive_epoch"),
    "optimizer_reset": MODES,
    "ref_reset_metric_mode": ("max", "min"),
    "optimizer_reset_schedule": (None, "keep", "restart"),
    "nonfinite": NONFINITE,
    "guard_gap_action": GUARD_ACTIONS,
    "pack_groups": ("off", "on", "auto"),
    "compact_generation": ("off", "on", "auto"),
    "advantage_estimator": (None, *ADVANTAGES),
    "loss_mode": (None, "no_ratio", "unclipped", "clipped"),
}


@dataclass(frozen=True)
class Values:
    """
    The values that some keys may have.

    Attributes:
        keys (`tuple[str, ...]`):
            Their names.
        is_right (`Callable`):
            Whether a value is one of them.
        told (`str`):
            The same in words, after "must be".
        nullable (`bool`):
            Whether `None` is one, too.
    """

    keys: tuple[str, ...]
    is_right: Callable[[Any], bool]
    told: str
    nullable: bool = False


def _number(is_right: Callable[[float], bool]) -> Callable[[Any], bool]:
    def check(value: Any) -> bool:
        return (
            isinstance(value, (int, float)) and not isinstance(value, bool) and is_right(value)
        )  # NaN is never right

    return check


def _whole(least: int) -> Callable[[Any], bool]:
    return _number(lambda value: value >= least and float(value).is_integer())


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and value != [] and all(isinstance(name, str) for name in value)


COUNTS_FROM_0 = (
    *triggers.COUNTS,
    "ref_reset_cooldown",
    "optimizer_reset_rewarmup_steps",
    "elastic_reset_every",
    "lora_growth_every",
    "dynamic_sampling_rounds",
)
COUNTS_FROM_1 = (
    *("base_anchor_every", "ref_reset_kl_window", "kl_horizon", "entropy_patience"),
    *("lora_growth_step", "lora_growth_max_rank"),
)
COEFFICIENTS = ("beta", "beta_old", "beta_base", "ref_reset_min_delta")
THRESHOLDS = (*triggers.THRESHOLDS, "kl_target", "kl_clamp", "reward_timeout", "entropy_floor", "guard_gap")

VALUES = (
    Values(COEFFICIENTS, _number(lambda value: 0 <= value < math.inf), "a finite number that is not negative"),
    Values(COUNTS_FROM_0, _whole(0), "a whole number from 0"),
    Values(COUNTS_FROM_1, _whole(1), "a whole number from 1"),
    Values(("pack_max_tokens",), _whole(1), "a whole number from 1", nullable=True),
    Values(THRESHOLDS, _number(lambda value: 0 < value < math.inf), "a positive number", nullable=True),
    Values(("temperature",), _number(lambda value: 0 < value < math.inf), "a positive number"),
    Values(("ref_reset_mix",), _number(lambda value: 0 <= value <= 1), "in [0, 1]; 1 is a hard copy"),
    Values(("elastic_ema",), _number(lambda value: 0 <= value < 1), "in [0, 1)"),
    Values(
        ("optimizer_reset_alpha",),
        _number(lambda value: 0 < value <= 1),
        "in (0, 1]; to clear the state use optimizer_reset: hard",
    ),
    Values(("dynamic_sampling_rewards",), _is_names, "a list of names of reward functions", nullable=True),
    Values(("hub_push_reference", "fast"), lambda value: isinstance(value, bool), "true or false"),
)


def check_values(args: "ProRLConfig") -> None:
    """
    Refuse a value that is wrong by itself.

    Raises:
        `ValueError`: naming the key, the value and what is right.
    """
    for key, choices in CHOICES.items():
        value = getattr(args, key)
        if value not in choices:
            raise ValueError(f"{key}={value!r} is not one of {', '.join(map(str, choices))}.")
    for values in VALUES:
        for key in values.keys:
            value = getattr(args, key)
            if not (values.is_right(value) or (values.nullable and value is None)):
                raise ValueError(f"{key}={value!r} must be {values.told}.")


def check_batch(args: "ProRLConfig") -> None:
    """
    Refuse a generation batch that does not hold whole groups.

    Raises:
        `ValueError`: naming the keys that make it up.
    """
    for key in ("gradient_accumulation_steps", "steps_per_generation", "generation_batch_size", "num_iterations"):
        if getattr(args, key) is not None and getattr(args, key) < 1:
            raise ValueError(f"{key}={getattr(args, key)} must be at least 1.")
    size, group = args.generation_batch_size, args.num_generations
    if not group or group < 2:
        raise ValueError(f"num_generations={group} must be at least 2: an advantage compares completions.")
    if size is not None and size % group:
        keys = ("per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation")
        raise ValueError(
            f"num_generations={group} does not divide the {size} completions of a generation batch "
            f"({', '.join(f'{key}={getattr(args, key)}' for key in keys)}). Set it to a divisor, or change those."
        )


def check_machine(args: "ProRLConfig") -> None:
    """
    Refuse, with the keys, what transformers refuses without them.

    Raises:
        `ValueError`: bfloat16, by default as well, or DeepSpeed is asked for, and is not here.
    """
    if args.deepspeed and not is_deepspeed_available():
        raise ValueError(
            f"deepspeed={args.deepspeed!r} needs DeepSpeed: pip install 'trl-prorl[deepspeed]', or leave the key out."
        )
    asked = next((key for key in ("bf16", "bf16_full_eval") if getattr(args, key)), None)
    if args.bf16 is None and not args.fp16:
        asked = "bf16"  # TRL's default
    if asked and not (args.use_cpu or is_torch_bf16_gpu_available() or is_torch_xla_available()):
        default = ", the default," if args.bf16 is None and asked == "bf16" else ""
        raise ValueError(
            f"{asked}=True{default} needs a GPU that computes in bfloat16, and torch finds none here. "
            f"Set {asked}: false, and use_cpu: true to train on a CPU."
        )


def check_launcher(args: "ProRLConfig") -> None:
    """
    Refuse a precision of the launcher's that would silently win over the keys, and tell of processes that it did not
    start.

    Raises:
        `ValueError`: `accelerate launch` was told to compute in bf16 or fp16, and the keys say float32.
    """
    asked = args.mixed_precision
    if asked in ("bf16", "fp16") and not getattr(args, asked):
        raise ValueError(
            f"{asked}=False, but the launcher says mixed_precision={asked}, which would win. Set {asked}: true, or "
            "launch with --mixed_precision no (a file of accelerate_configs/ or your own default may say otherwise)."
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
        example (`dict[str, Any]`):
            Keys that are refused for this reason and no other.
        when (`Callable`):
            Whether a configuration, whose values are right one by one, is refused.
        line (`Callable`):
            What it is told: the key, the value and the cure.
    """

    example: dict[str, Any]
    when: Callable[["ProRLConfig"], bool]
    line: Callable[["ProRLConfig"], str]


def _unused(key: str, need: Need) -> Refusal:
    return Refusal(
        {key: need.example}, lambda args: is_unused(args, key, need), lambda args: unused_line(args, key, need)
    )


def _never_applied(key: str, example: Any) -> Refusal:
    return Refusal(
        {key: example},
        lambda args: not args.resets and getattr(args, key) != args.__dataclass_fields__[key].default,
        lambda args: (
            f"{key}={getattr(args, key)!r} is never applied: nothing requests a reset. Set {triggers.KEYS[0]} "
            f"(or {', '.join(triggers.KEYS[1:])}), or leave {key} out. With triggers of your "
            "own alone, set ref_reset_every to more than max_steps."
        ),
    )


def _never_measured(trigger: str, example: Any) -> Refusal:
    return Refusal(
        {"beta": 0.1, trigger: example},
        lambda args: bool(getattr(args, trigger)) and args.eval_strategy == "no",
        lambda args: (
            f"{trigger} watches ref_reset_metric={args.ref_reset_metric!r}, but eval_strategy='no' never measures it. "
            "Set eval_strategy: steps and eval_steps."
        ),
    )


def _trigger(args: "ProRLConfig") -> str:
    """The first trigger that is set."""
    return next((key for key in triggers.KEYS if getattr(args, key)), "guard_gap")


def _by_itself(args: "ProRLConfig") -> bool:
    """Whether dynamic sampling leaves it to TRL to compute the advantages of each round."""
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
    lambda args: (
        f"With {args.schedule} a generation falls inside an accumulation, where gradients from before it "
        "are still waiting, so neither a reset nor growth has a clean place. Make one of gradient_accumulation_steps "
        "and steps_per_generation * num_iterations a multiple of the other."
    ),
)

# The first that applies is told. Each is shown in docs/reference.md.
REFUSALS = (
    Refusal(
        {"nonfinite": "skip", "fp16": True},
        lambda args: args.nonfinite == "skip" and bool(args.fp16 or args.deepspeed),
        lambda args: (
            "nonfinite='skip' with fp16 or DeepSpeed, whose loss scaler skips steps by itself, is not supported. Set "
            "nonfinite: stop, or bf16: true."
        ),
    ),
    Refusal(
        {"beta": 0.1, "kl_estimator": "k1", "use_bias_correction_kl": False},
        lambda args: args.anchored and args.kl_estimator == "k1" and not args.use_bias_correction_kl,
        lambda args: (
            "kl_estimator='k1' with use_bias_correction_kl=False has zero expected gradient: it would penalise "
            "nothing. Set use_bias_correction_kl: true, or kl_estimator: k3."
        ),
    ),
    Refusal(
        {"advantage_estimator": "rloo", "multi_objective_aggregation": "normalize_then_sum"},
        lambda args: args.advantage_estimator is not None and args.multi_objective_aggregation != "sum_then_normalize",
        lambda args: (
            f"advantage_estimator={args.advantage_estimator!r} needs one reward for each completion, which "
            f"multi_objective_aggregation={args.multi_objective_aggregation!r} does not give. Set it to "
            "sum_then_normalize."
        ),
    ),
    Refusal(
        {"dynamic_sampling_rounds": 2, "scale_rewards": "batch"},
        lambda args: _by_itself(args) and args.scale_rewards == "batch",
        lambda args: (
            "dynamic_sampling_rounds with scale_rewards='batch' would scale each round by itself. Set "
            "advantage_estimator: batch_normalized, which is computed over the final batch."
        ),
    ),
    Refusal(
        {"dynamic_sampling_rounds": 2, "multi_objective_aggregation": "normalize_then_sum"},
        lambda args: _by_itself(args) and args.multi_objective_aggregation != "sum_then_normalize",
        lambda args: (
            f"dynamic_sampling_rounds with multi_objective_aggregation={args.multi_objective_aggregation!r} would "
            "normalise each round by itself. Set it to sum_then_normalize."
        ),
    ),
    Refusal(
        {"dynamic_sampling_rounds": 2, "use_vllm": True},
        lambda args: args.dynamic_sampling_rounds > 0 and args.corrects_sampler,
        lambda args: (
            "dynamic_sampling_rounds scores once its groups are found, and vllm_importance_sampling_correction=True "
            "needs scores before. Set vllm_importance_sampling_correction: false."
        ),
    ),
    Refusal(
        {"compact_generation": "on", "use_vllm": True},
        lambda args: args.compact_generation == "on" and args.use_vllm,
        lambda args: (
            "compact_generation='on' samples with the policy itself, and use_vllm=True with vLLM. Set one of them to "
            "off or false, or compact_generation: auto."
        ),
    ),
    Refusal(
        {"compact_generation": "on", "use_transformers_continuous_batching": True},
        lambda args: args.compact_generation == "on" and args.use_transformers_continuous_batching,
        lambda args: (
            "compact_generation='on' and use_transformers_continuous_batching=True are two ways to sample. Set one of "
            "them to off or false, or compact_generation: auto."
        ),
    ),
    Refusal(
        {"loss_mode": "unclipped", "loss_type": "cispo"},
        lambda args: args.loss_mode is not None and args.loss_type not in CLIPPED_LOSSES,
        lambda args: (
            f"loss_mode={args.loss_mode!r} is about the clipped ratio, and loss_type={args.loss_type!r} has none. Set "
            f"loss_type to one of {', '.join(CLIPPED_LOSSES)}, or leave loss_mode out."
        ),
    ),
    Refusal(
        {"loss_mode": "unclipped", "delta": 2.0},
        lambda args: args.loss_mode in ("no_ratio", "unclipped") and args.delta is not None,
        lambda args: (
            f"loss_mode={args.loss_mode!r} leaves no clip on the ratio, and delta={args.delta} is one. Leave delta "
            "out, or set loss_mode: clipped."
        ),
    ),
    Refusal(
        {"entropy_stop": True},
        lambda args: args.entropy_stop and args.entropy_floor is None,
        lambda args: "entropy_stop=True never stops anything without entropy_floor: set it, in nats per token.",
    ),
    Refusal(
        {"skip_zero_rows": True, "top_entropy_quantile": 0.2},
        lambda args: args.skip_zero_rows and args.top_entropy_quantile < 1.0,
        lambda args: (
            f"skip_zero_rows=True leaves out rows whose entropies top_entropy_quantile={args.top_entropy_quantile} "
            "ranks. Set skip_zero_rows: false, or top_entropy_quantile: 1.0."
        ),
    ),
    Refusal(
        {"drop_zero_rows": True},
        lambda args: args.drop_zero_rows and not args.anchored,
        lambda args: (
            "drop_zero_rows=True leaves rows out of the KL, and there is none. Set beta, beta_old or beta_base, or "
            "leave drop_zero_rows out."
        ),
    ),
    Refusal(
        {"kl_clamp": 10.0},
        lambda args: args.kl_clamp is not None and not args.anchored,
        lambda args: (
            f"kl_clamp={args.kl_clamp} bounds the KL to an anchor, and there is none. Set beta, beta_old or "
            "beta_base, or leave kl_clamp out."
        ),
    ),
    Refusal(
        {"beta_old": 0.1},
        lambda args: args.beta_old != 0.0 and args.on_policy,
        lambda args: (
            f"beta_old={args.beta_old} can do nothing with {args.schedule}: no sample is used after an update, so the "
            "policy equals pi_old wherever the penalty is evaluated. Set num_iterations: 2 (or more), or a "
            "steps_per_generation larger than gradient_accumulation_steps."
        ),
    ),
    Refusal(
        {"ref_compute": "naive_epoch"},
        lambda args: args.ref_compute == "naive_epoch" and args.beta == 0.0,
        lambda args: "ref_compute='naive_epoch' needs a reference: set beta > 0, or ref_compute: cached.",
    ),
    Refusal(
        {"kl_target": 0.05},
        lambda args: args.kl_target is not None and not args.anchored,
        lambda args: (
            f"kl_target={args.kl_target} adapts the coefficient of an anchor, and there is none. Set beta, beta_old "
            "or beta_base to the coefficient to begin with."
        ),
    ),
    *(_unused(key, need) for key, need in NEEDS.items()),
    Refusal(
        {"hub_push_reference": True},
        lambda args: args.hub_push_reference and args.beta == 0.0,
        lambda args: (
            "hub_push_reference=True pushes the reference, but beta=0 means that there is none. Leave "
            "hub_push_reference out, or set beta > 0."
        ),
    ),
    _never_applied("optimizer_reset", "hard"),
    _never_applied("optimizer_reset_schedule", "restart"),
    _never_applied("optimizer_reset_rewarmup_steps", 5),
    _never_applied("ref_reset_cooldown", 20),
    Refusal(
        {"ref_reset_every": 100},
        lambda args: args.resets and args.beta == 0.0 and args.ref_reset_mix != 0.0,
        lambda args: (
            f"{_trigger(args)}={getattr(args, _trigger(args))} moves a reference, but beta=0 means that there is "
            "none. Set beta > 0 (variants A and C), or ref_reset_mix: 0 to reset the optimizer alone."
        ),
    ),
    Refusal(
        {"ref_reset_kl": 0.1, "ref_reset_mix": 0.0, "optimizer_reset": "hard"},
        lambda args: args.beta == 0.0 and args.ref_reset_kl is not None,
        lambda args: (
            f"ref_reset_kl={args.ref_reset_kl} watches the KL to a reference, but beta=0 means that there is none. "
            "Set beta > 0, or use another trigger."
        ),
    ),
    Refusal(
        {"beta": 0.1, "ref_reset_every": 100, "ref_reset_mix": 0.0},
        lambda args: args.resets and args.ref_reset_mix == 0.0 and not args.treats_optimizer,
        lambda args: (
            "ref_reset_mix=0 with optimizer_reset='keep' resets nothing. Set ref_reset_mix: 1, or an "
            "optimizer_reset of hard, soft, asym or step."
        ),
    ),
    Refusal(
        {"beta": 0.1, "ref_reset_stall": 2, "ref_reset_metric": "reward"},
        lambda args: args.watches_metric and not args.ref_reset_metric.startswith("eval_"),
        lambda args: (
            f"ref_reset_metric={args.ref_reset_metric!r} is not a metric of an evaluation, whose names begin with "
            "eval_. Set it to eval_reward, eval_pass@1, or eval_rewards/NAME/mean of one reward function."
        ),
    ),
    _never_measured("ref_reset_stall", 2),
    _never_measured("ref_reset_drop", 0.1),
    Refusal(
        {"beta": 0.1, "ref_reset_every": 100, "sync_ref_model": True},
        lambda args: args.resets and args.sync_ref_model,
        lambda args: (
            f"sync_ref_model=True and {_trigger(args)} both move the reference, and TRL's callback moves it in the "
            "middle of a generation batch. Set sync_ref_model: false."
        ),
    ),
    UNCLEAN_SCHEDULE,
)


def check_combinations(args: "ProRLConfig") -> None:
    """
    Refuse keys that contradict one another, or of which one does nothing.

    Raises:
        `ValueError`: the line of the first refusal that applies.
    """
    for refusal in REFUSALS:
        if refusal.when(args):
            raise ValueError(refusal.line(args))
