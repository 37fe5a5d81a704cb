"""
Combinations of keys that raise an error, because they would give wrong numbers, and those without effect.

docs/reference.md shows the docstrings' lists, each line under the first key of ours that it names.
"""

from typing import TYPE_CHECKING, Any

from .advantages import UNGROUPED
from .keys import Key, Requirement, Values, check_values
from .supported import CLIPPED_LOSSES, IMPORTANCE_LEVELS, LOSS_TYPES, SCHEDULES


if TYPE_CHECKING:
    from .config import ProRLConfig


def refuse_kl(args: "ProRLConfig") -> None:
    """
    Check the KL penalties:

    - `kl_estimator: k1` with `use_bias_correction_kl: false`: the expected gradient is zero.
    - `ref_compute: naive_epoch` with TRL's `sync_ref_model`, if an update comes within a batch: TRL moves the
      reference in the middle of the batch, and the passes after that would score another reference.
    - `kl_in: reward` with `ref_compute: naive_epoch` and `beta` > 0: the KL is needed when a batch is sampled.
    - `kl_in: reward` without `advantage_estimator`: TRL computes advantages before the KL is subtracted.
    """
    if args.anchored and args.kl_estimator == "k1" and not args.use_bias_correction_kl:
        raise ValueError(
            "kl_estimator='k1' with use_bias_correction_kl=False has zero expected gradient, so it penalises nothing. "
            "Set use_bias_correction_kl: true, or kl_estimator: k3."
        )
    if args.ref_compute == "naive_epoch" and args.sync_ref_model and not args.on_policy:
        raise ValueError(
            "ref_compute='naive_epoch' with sync_ref_model=True gives other results than 'cached', because TRL moves "
            "the reference in the middle of a generation batch. Set ref_compute: cached."
        )
    if args.kl_in != "reward":
        return
    if args.ref_compute == "naive_epoch" and args.beta != 0.0:
        raise ValueError(
            "ref_compute='naive_epoch' scores the reference in every pass, but kl_in='reward' needs it when a batch "
            "is sampled. Set ref_compute: cached."
        )
    if args.advantage_estimator is None:
        raise ValueError(
            "kl_in='reward' needs advantage_estimator, because TRL computes advantages before the KL is subtracted. "
            "Set advantage_estimator: global_normalized (REINFORCE++), group_normalized (GRPO), or another."
        )


def refuse_resets(args: "ProRLConfig") -> None:
    """
    Check the resets, and again once the triggers of a script are known:

    - `ref_reset_every` or another trigger (`ref_reset_kl`, `ref_reset_stall`, `ref_reset_drop`, `guard_gap_action:
      reset`, a callback's) with TRL's `sync_ref_model`: both move the reference.
    - `ref_reset_every` or another trigger, `lora_growth_every` and `elastic_reset_every`, unless one of
      `gradient_accumulation_steps` and `steps_per_generation` · `num_iterations` is a multiple of the other: a batch
      would be generated in the middle of gradient accumulation.
    - `optimizer_reset: hard` (unless `optimizer_reset_schedule: keep`), or `optimizer_reset_schedule: restart`, with
      an `lr_scheduler_type` that [cannot be restarted](supported.md#learning-rate-schedules).
    - `ref_reset_stall`, `ref_reset_drop` or `stop_stall` with `eval_strategy: "no"`, or with a `ref_reset_metric` that
      no evaluation can measure.
    - `ref_model` with `ref_reset_every` or another trigger (unless `ref_reset_mix: 0`), TRL's `sync_ref_model` or
      `elastic_reset_every`: a teacher is fixed.
    """
    if args.ref_model is not None:
        _refuse_moved_teacher(args)
    if args.changes_at_boundary or args.resets:
        _refuse_unclean_schedule(args)
    if args.watches_metric:
        _refuse_unmeasured_metric(args)
    if not args.resets:
        return
    schedule = args.lr_scheduler_type.value
    if args.restarts_schedule and not SCHEDULES[schedule].restarts:
        raise ValueError(
            f"lr_scheduler_type={schedule!r} cannot be started again, as optimizer_reset={args.optimizer_reset!r} or "
            f"optimizer_reset_schedule={args.optimizer_reset_schedule} asks. Set optimizer_reset_schedule: keep, or "
            f"lr_scheduler_type to one of {', '.join(name for name, each in SCHEDULES.items() if each.restarts)}."
        )
    if args.sync_ref_model:
        raise ValueError(
            "sync_ref_model=True conflicts with resets: both move the reference, and TRL moves it in the middle of a "
            "generation batch. Set sync_ref_model: false."
        )


def _refuse_moved_teacher(args: "ProRLConfig") -> None:
    teacher = f"ref_model={args.ref_model!r} is a fixed reference"
    if args.resets and args.ref_reset_mix != 0.0:
        raise ValueError(
            f"{teacher}, but resets would set it to the policy. Set ref_reset_mix: 0 (they then reset the optimizer "
            "alone), or remove the triggers of resets."
        )
    for key in ("sync_ref_model", "elastic_reset_every"):
        if getattr(args, key):
            raise ValueError(f"{teacher}, which {key}={getattr(args, key)} does not support. Remove one of the two.")


def _refuse_unmeasured_metric(args: "ProRLConfig") -> None:
    if not args.ref_reset_metric.startswith("eval_"):
        raise ValueError(
            f"ref_reset_metric={args.ref_reset_metric!r} must be an evaluation metric, which starts with eval_. Set "
            "it to eval_reward, eval_pass@1, or eval_rewards/NAME/mean of one reward function."
        )
    if args.eval_strategy == "no":
        raise ValueError(
            f"ref_reset_stall={args.ref_reset_stall}, ref_reset_drop={args.ref_reset_drop} and stop_stall="
            f"{args.stop_stall} need evaluations of ref_reset_metric={args.ref_reset_metric!r}, but "
            "eval_strategy='no'. Set eval_strategy: steps and eval_steps."
        )


def _refuse_unclean_schedule(args: "ProRLConfig") -> None:
    if args.generates_inside_accumulation:
        raise ValueError(
            f"{args.schedule}: a batch is generated in the middle of gradient accumulation, so resets and growth "
            "cannot be applied. Make one of gradient_accumulation_steps and steps_per_generation * num_iterations a "
            "multiple of the other."
        )


def refuse_samples(args: "ProRLConfig") -> None:
    """
    Check samples and advantages:

    - `advantage_estimator` other than `global_normalized` and `raw` (or none) with `num_generations: 1`: it compares
      completions of the same prompt.
    - `advantage_estimator` with `multi_objective_aggregation: normalize_then_sum`: it needs one reward per completion.
    - `dynamic_sampling_rounds`, `prompt_pool` or `drop_zero_rows` with `num_generations: 1`: there are no groups.
    - `dynamic_sampling_rounds` without `advantage_estimator`, if `scale_rewards: batch` or
      `multi_objective_aggregation: normalize_then_sum`: TRL would normalise each round separately.
    - `dynamic_sampling_rounds` with vLLM and `vllm_importance_sampling_correction: true`, which comes before the
      groups are chosen.
    - `vllm_enable_lora` with `vllm_mode: server` or `vllm_enable_sleep_mode`: vLLM must keep the base weights that it
      loaded.
    """
    rounds = args.dynamic_sampling_rounds
    if args.num_generations == 1:
        _refuse_single_completions(args)
    sums = args.multi_objective_aggregation == "sum_then_normalize"
    if args.advantage_estimator is not None and not sums:
        raise ValueError(
            f"advantage_estimator={args.advantage_estimator!r} needs one reward per completion, but "
            f"multi_objective_aggregation={args.multi_objective_aggregation!r} keeps several. Set "
            "multi_objective_aggregation: sum_then_normalize."
        )
    if rounds and args.advantage_estimator is None and (args.scale_rewards == "batch" or not sums):
        raise ValueError(
            f"dynamic_sampling_rounds={rounds} with scale_rewards={args.scale_rewards!r} and "
            f"multi_objective_aggregation={args.multi_objective_aggregation!r} would normalise each round separately. "
            "Set multi_objective_aggregation: sum_then_normalize, and in place of scale_rewards: batch "
            "advantage_estimator: batch_normalized, which uses the final batch."
        )
    if rounds and args.corrects_sampler:
        raise ValueError(
            f"dynamic_sampling_rounds={rounds} is not supported with vllm_importance_sampling_correction=True, which "
            "needs log-probabilities before the groups are chosen. Set vllm_importance_sampling_correction: false."
        )
    keeps_base = args.vllm_mode != "server" and not args.vllm_enable_sleep_mode
    if args.vllm_enable_lora and not keeps_base:
        raise ValueError(
            f"vllm_enable_lora=True needs a vLLM that keeps its base weights, but vllm_mode={args.vllm_mode!r}, "
            f"vllm_enable_sleep_mode={args.vllm_enable_sleep_mode}. Set vllm_mode: colocate and "
            "vllm_enable_sleep_mode: false, or remove vllm_enable_lora."
        )


def _refuse_single_completions(args: "ProRLConfig") -> None:
    if args.advantage_estimator not in UNGROUPED:
        raise ValueError(
            f"num_generations=1 does not work with advantage_estimator={args.advantage_estimator!r}, which compares "
            "completions of the same prompt. Set num_generations: 2 (or more), or advantage_estimator: "
            f"{' or '.join(UNGROUPED)}."
        )
    for key in ("dynamic_sampling_rounds", "prompt_pool", "drop_zero_rows"):
        if getattr(args, key):
            raise ValueError(
                f"{key}={getattr(args, key)} compares completions of the same prompt, but num_generations=1. Set "
                f"num_generations: 2 (or more), or remove {key}."
            )


def refuse_losses(args: "ProRLConfig") -> None:
    """
    Check losses and guards:

    - a `loss_type` or an `importance_sampling_level` that [the lists](supported.md#losses) do not have.
    - `loss_mode` or `trust_region` with a `loss_type` that has no clipped ratio (`cispo`, `sapo`, `vespo`).
    - `trust_region` with `loss_mode`, which sets the ratio, too.
    - `trust_region` with `importance_sampling_level: sequence`: the papers compare tokens.
    - `trust_region` with vLLM and `top_p`, `top_k` or `min_p`: its log-probabilities are then not the policy's.
    - `skip_zero_rows` with `top_entropy_quantile` below 1, which needs the entropies of all rows.
    - `skip_zero_rows` with `kl_in: reward` and `kl_target` or `ref_reset_kl`, which act on the mean KL of all rows.
    - `nonfinite: skip` with fp16, whose loss scaler already skips steps.
    - `guard_gap` with `prompt_pool`: accuracy also falls without reward hacking.
    """
    for name, listed in (("loss_type", LOSS_TYPES), ("importance_sampling_level", IMPORTANCE_LEVELS)):
        if getattr(args, name) not in listed:
            raise ValueError(f"{name}={getattr(args, name)!r} is not supported. Set it to one of {', '.join(listed)}.")
    for key in ("loss_mode", "trust_region"):
        value = getattr(args, key)
        if value is not None and args.loss_type not in CLIPPED_LOSSES:
            raise ValueError(
                f"{key}={value!r} needs a loss with a clipped ratio, but loss_type={args.loss_type!r} has none. Set "
                f"loss_type to one of {', '.join(CLIPPED_LOSSES)}, or remove {key}."
            )
    if args.trust_region is not None:
        _refuse_trust_region(args)
    if args.skip_zero_rows and (args.top_entropy_quantile < 1.0 or args.follows_kl is not None):
        raise ValueError(
            f"skip_zero_rows=True is not supported: {args.zero_rows_obstacle} Set skip_zero_rows: false, or "
            "top_entropy_quantile: 1.0."
        )
    if args.nonfinite == "skip" and args.fp16:
        raise ValueError(
            "nonfinite='skip' is not supported with fp16, whose loss scaler already skips steps. Set nonfinite: stop."
        )
    if args.guard_gap is not None and args.prompt_pool:
        raise ValueError(
            f"guard_gap={args.guard_gap} compares accuracy and reward of different steps, but with prompt_pool=True "
            "accuracy also falls because solved prompts rest. Remove guard_gap, or set prompt_pool: false."
        )


def _refuse_trust_region(args: "ProRLConfig") -> None:
    region = f"trust_region={args.trust_region!r}"
    if args.loss_mode is not None:
        raise ValueError(
            f"{region} conflicts with loss_mode={args.loss_mode!r}: both replace TRL's clipped ratio. Remove one."
        )
    if args.importance_sampling_level != "token":
        raise ValueError(
            f"{region} compares tokens, but importance_sampling_level={args.importance_sampling_level!r}. Set "
            "importance_sampling_level: token."
        )
    if args.use_vllm and not args.samples_whole:
        raise ValueError(
            f"{region} compares with vLLM's log-probabilities, which top_p={args.top_p}, top_k={args.top_k} and "
            f"min_p={args.min_p} change. Set top_p: 1.0, top_k: 0 and min_p: null."
        )


def refuse_stop(args: "ProRLConfig") -> None:
    """
    Check the end of a run:

    - `enable_jit_checkpoint: true`: on SIGTERM it saves in the middle of a step, and the resume would skip a batch.
    - `stop_stall` with `save_strategy: "no"`: the best checkpoint would not be saved.
    - `stop_stall` with `save_total_limit: 1`: the checkpoint of the stop would be removed, and a resume would train on
      from the best one.
    - `stop_stall` with another `metric_for_best_model` than `ref_reset_metric`, or with `greater_is_better: false`:
      another checkpoint would be kept.
    """
    if args.enable_jit_checkpoint:
        raise ValueError(
            "enable_jit_checkpoint=True saves in the middle of a step when the job is ended, so the resume would skip "
            "a batch. Set enable_jit_checkpoint: false, save_strategy: steps and save_steps, and start the job with "
            "resume_from_checkpoint: auto."
        )
    if not args.stop_stall:
        return
    if args.save_strategy == "no":
        raise ValueError(
            f"stop_stall={args.stop_stall} keeps the best checkpoint, but save_strategy='no'. Set save_strategy: best."
        )
    if args.save_total_limit == 1:
        raise ValueError(
            f"stop_stall={args.stop_stall} keeps the best checkpoint and the last one, but save_total_limit=1. Set "
            "save_total_limit: 2 (or more)."
        )
    watched = args.ref_reset_metric
    best = args.metric_for_best_model
    if best is not None and best.removeprefix("eval_") != watched.removeprefix("eval_"):
        raise ValueError(
            f"stop_stall={args.stop_stall} watches ref_reset_metric={watched!r}, but the checkpoint that is kept is "
            f"the best by metric_for_best_model={best!r}. Set both to the same, or remove metric_for_best_model."
        )
    if args.greater_is_better is False:
        raise ValueError(
            f"greater_is_better=False contradicts stop_stall={args.stop_stall}, which takes larger values of "
            "ref_reset_metric for better. Remove one of the two."
        )


def refuse_engines(args: "ProRLConfig") -> None:
    """
    Check what else changes the model's forward:

    - `torch_compile`, or `use_kernels` in `model_init_kwargs`, with `fast` (`pack_groups`, `compact_generation`): both
      replace it.
    """
    keys = [key for key in ("pack_groups", "compact_generation") if getattr(args, key) != "off"]
    engines = {key: getattr(args, key) for key in ("torch_compile", "torch_compile_backend", "torch_compile_mode")}
    if isinstance(args.model_init_kwargs, dict):
        engines["use_kernels"] = args.model_init_kwargs.get("use_kernels")
    for name, value in engines.items():
        if keys and value:
            key = "fast" if args.fast else keys[0]
            off = "false" if args.fast else '"off"'
            raise ValueError(
                f"{name}={value!r} is not supported with {key}={getattr(args, key)!r}: both replace the model's "
                f"forward. Remove {name}, or set {key}: {off}."
            )


CLIPS = Requirement(
    lambda values: values["loss_mode"] in (None, "clipped") and values["trust_region"] is None,
    "a clipped ratio (loss_mode: clipped, and no trust_region)",
)


def changes_rate(values: Values) -> bool:
    kind = values["lr_scheduler_type"]
    if kind == "constant_with_warmup":
        return bool(values.get("warmup_steps") or values.get("warmup_ratio"))
    return kind != "constant"


def updates_before_use(values: Values) -> bool:
    """Return whether some samples are used after an update."""
    generate_every = values["steps_per_generation"] * values["num_iterations"]
    return values["gradient_accumulation_steps"] % generate_every != 0


def resets_something(values: Values) -> bool:
    moves_reference = values["beta"] != 0.0 and values["ref_reset_mix"] != 0.0
    treats_optimizer = values["optimizer_reset"] != "keep" or values["optimizer_reset_rewarmup_steps"] > 0
    return moves_reference or treats_optimizer or values["optimizer_reset_schedule"] == "restart"


LATER_USE = "an update between sampling and use (num_iterations: 2, or a larger steps_per_generation)"
RESETTABLE = Requirement(resets_something, "something to reset (beta > 0, or an optimizer_reset)")
# Keys of TRL's, and some of ours, that other keys leave without effect, in addition to `Key.needs`.
ACTS_ONLY_WITH = {
    "beta_old": Requirement(
        lambda values: updates_before_use(values) and values["kl_in"] == "loss", f"{LATER_USE}, and kl_in: loss"
    ),
    "trust_region": Requirement(
        lambda values: updates_before_use(values) or values["use_vllm"], f"{LATER_USE}, or use_vllm"
    ),
    "ref_reset_every": RESETTABLE,
    "ref_reset_stall": RESETTABLE,
    "ref_reset_drop": RESETTABLE,
    "ref_reset_kl": Requirement(
        lambda values: values["beta"] != 0.0 and resets_something(values), "a KL to a reference (beta > 0)"
    ),
    "use_bias_correction_kl": Requirement(lambda values: values["kl_in"] == "loss", "a KL in the loss (kl_in: loss)"),
    "epsilon": CLIPS,
    "epsilon_high": CLIPS,
    "delta": CLIPS,
    "scale_rewards": Requirement(
        lambda values: values["advantage_estimator"] is None, "TRL's advantages (advantage_estimator: null)"
    ),
    "optimizer_reset_schedule": Requirement(
        lambda values: values["optimizer_reset_schedule"] == "keep" or changes_rate(values),
        "a learning rate that changes (lr_scheduler_type: cosine, or another, or warmup_steps)",
    ),
}


def find_late_keys(args: "ProRLConfig", steps: int, eval_steps: float, guard_window: int) -> dict[str, int]:
    """
    Return the keys that cannot act within `steps` optimizer steps, with the first step at which each could.

    Args:
        args ([`ProRLConfig`]): The configuration.
        steps (`int`): Optimizer steps of the run.
        eval_steps (`float`): Optimizer steps from one evaluation to the next.
        guard_window (`int`): Optimizer steps of an average of `guard_gap`.
    """
    first = {}
    for key in ("ref_reset_every", "lora_growth_every", "elastic_reset_every"):
        if getattr(args, key):
            first[key] = args.next_boundary(getattr(args, key)) + 1
    if args.has_own_triggers:  # for a script's triggers alone it may be above `max_steps`
        first.pop("ref_reset_every", None)
    if args.ref_reset_kl_window > 1:
        first["ref_reset_kl_window"] = args.next_boundary(args.ref_reset_kl_window) + 1
    if args.entropy_floor is not None:
        first["entropy_patience"] = args.entropy_patience
    if args.guard_gap is not None:  # it compares two averages
        first["guard_gap"] = guard_window + 1
    if args.eval_strategy == "steps" and args.ref_reset_stall:  # the first evaluation is the best so far
        evaluations = args.ref_reset_stall + (not args.eval_on_start)
        first["ref_reset_stall"] = args.next_boundary(evaluations * eval_steps) + 1
    if args.eval_strategy == "steps" and args.stop_stall:
        first["stop_stall"] = (args.stop_stall + 1) * eval_steps
    return {key: step for key, step in first.items() if step > steps}


REFUSALS = (
    refuse_kl,
    refuse_resets,
    refuse_samples,
    refuse_losses,
    refuse_stop,
    refuse_engines,
)


def check_folders_and_beta(args: Any) -> None:
    """
    Raise `ValueError` for values of TRL's keys with which code of ours would be wrong: an empty folder name, as of an
    unset shell variable, and a negative `beta`.
    """
    for name in ("output_dir", "resume_from_checkpoint"):
        if getattr(args, name) == "":
            raise ValueError(f"{name}='' names no folder. Set it to a path, or remove {name}.")
    check_values(args, {"beta": Key(ge=0, types=(float,))})
