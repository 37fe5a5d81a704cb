"""The keys of a run's log files, for docs/reference.md. A test compares them with real runs."""

import re
from dataclasses import dataclass

from ..anchors import ANCHORS, ReferenceAnchor
from ..text import nearest
from ..treatments import names_with_alpha
from ..watch import CONFIGURED
from .log_files import (
    AT_BOUNDARY,
    ENTROPY_COLLAPSE,
    EVENT_KINDS,
    GROWTH,
    GUARD_GAP,
    NONFINITE,
    RESET,
    RESUME,
    STALL,
)


@dataclass(frozen=True)
class RecordKey:
    """
    Describes a key of a log file.

    Args:
        unit, meaning (`str`): Its unit and its meaning.
        when (`str`, *optional*, defaults to `""`): When the key is present; empty means always.
        events (`tuple[str, ...]`, *optional*): Kinds of events with it; not for `metrics.jsonl`.
        logged (`bool`, *optional*, defaults to `False`): Whether the trainer's own log has it too, under `prorl/`.
    """

    unit: str
    meaning: str
    when: str = ""
    events: tuple[str, ...] = ()
    logged: bool = False


TOKEN = "nats per token"
TOKENS = "tokens"
CALLS = "calls"
SECONDS = "s"
GPU = "a GPU"
KL_TO = {ReferenceAnchor: "the reference, with `ref_model` to the teacher"}
REUSED = "batches that are trained on after an update"
DYNAMIC = "`dynamic_sampling_rounds`"
POOL = "`prompt_pool`"
VERIFIER = "a recipe's task, `verify`, or a reward function with a `batch_verifier`"

BY_PRECEDENCE = ", else ".join(f"`{anchor.key}`" for anchor in ANCHORS)

# One row per optimizer step. TASK is the name of a task. Counts are sums over processes, times are the main process's.
METRICS = {
    "step": RecordKey("optimizer steps", "number of this step, from 1"),
    "attempt": RecordKey("", "how often the run had been resumed: 0, 1, …"),
    "reward": RecordKey("reward", "mean reward of the step's generation batch (weighted sum of all reward functions)"),
    "reward_std": RecordKey("reward", "standard deviation of the reward in its generation batch"),
    "frac_reward_zero_std": RecordKey(
        "share", "share of prompts whose completions all got the same reward: they give no gradient"
    ),
    "rewards/NAME/mean": RecordKey("reward", "mean of one reward function, over the completions it scored"),
    "rewards/NAME/std": RecordKey("reward", "standard deviation of one reward function"),
    "reward/TASK": RecordKey(
        "reward", "mean reward of one task, by the first reward function, if it scores the task", "a column `task`"
    ),
    "pass_rate/TASK": RecordKey(
        "share",
        "share of one task's completions that are correct by the verifier",
        "a column `task`, and a verifier",
    ),
    "accuracy": RecordKey(
        "share",
        "share of completions that are correct by the verifier; before `dynamic_sampling_rounds`",
        VERIFIER,
        logged=True,
    ),
    "completion_length": RecordKey(TOKENS, "mean length of a completion"),
    "truncated_fraction": RecordKey("share", "share of completions truncated at the maximum length"),
    "advantage_mean": RecordKey("advantage", "mean advantage of the generation batch"),
    "advantage_std": RecordKey("advantage", "standard deviation of the advantage"),
    "interrupted_fraction": RecordKey(
        "share", "share of completions whose reasoning was cut short to ask for the answer", "`thinking_budget`"
    ),
    "mean_abs_dlogp_sampler": RecordKey(
        TOKEN,
        "mean abs(log π_sampler − log π_old), where the sampler is a merged copy or vLLM",
        "`compact_generation`, a copy below fp32; `use_vllm` without `top_p`, `top_k` and `min_p`",
    ),
    "groups_replaced": RecordKey("groups", "new groups that replaced groups with equal task rewards", DYNAMIC),
    "groups_generated_again": RecordKey("groups", "groups generated as replacements, used or not", DYNAMIC),
    "groups_undecided": RecordKey(
        "groups", "groups whose task rewards were still equal after the last round", DYNAMIC
    ),
    "groups_with_signal": RecordKey("share", "share of the pool's groups whose task rewards differ", POOL),
    "prompts_unseen": RecordKey("share", "share of prompts that were not asked yet", POOL),
    "prompts_resting": RecordKey("share", "share of prompts that rest", POOL),
    "prompts_solved": RecordKey(
        "share", "share of prompts whose pass rate has reached `prompt_pool_retire`", f"{POOL}; {VERIFIER}"
    ),
    "entropy": RecordKey(TOKEN, "mean entropy of the policy, over the completions that are not in `rows_skipped`"),
    **{
        anchor.kl_key: RecordKey(
            TOKEN,
            f"KL of the policy to {KL_TO.get(anchor, anchor.words)} (k3 estimate, uncorrected)",
            anchor.measured_when,
            logged=True,
        )
        for anchor in ANCHORS
    },
    "k2_ref_over_old": RecordKey(
        TOKEN,
        "KL of the reference to π_old (k2 estimate): how far the reference lags behind",
        f"`beta` > 0 and {REUSED}",
    ),
    "kl": RecordKey(
        TOKEN, "KL of the policy to the primary anchor as in the loss, by `kl_estimator`", "an anchor in the loss"
    ),
    "loss": RecordKey("loss", "the loss, its KL term included"),
    "kl_penalty": RecordKey(
        "loss", "the KL term of the loss, with coefficient and normaliser", "an anchor in the loss", logged=True
    ),
    "kl_clamped": RecordKey(
        TOKENS, "tokens whose KL to an active anchor exceeds `kl_clamp`, summed over passes", "`kl_clamp`"
    ),
    "mean_abs_dlogp": RecordKey("nats", "mean abs(log π_θ − log π_old) over tokens", REUSED),
    "clip_region_mean": RecordKey(
        "share", "share of tokens without policy gradient because of the ratio's clip, or of the `trust_region`"
    ),
    "rows_skipped": RecordKey(
        "completions",
        "completions skipped because they give no gradient; no mean of the policy is over them",
        "`skip_zero_rows`",
    ),
    "beta": RecordKey(
        "coefficient", f"current coefficient of the primary anchor: {BY_PRECEDENCE}, else 0", logged=True
    ),
    "lr": RecordKey("learning rate", "learning rate of this update, including a re-warm-up"),
    "grad_norm": RecordKey("norm", "gradient norm before clipping"),
    "update_norm": RecordKey("norm", "norm of the change of the trained parameters", "`log_update_norm`"),
    "nonfinite_skips": RecordKey("steps", "updates skipped so far because of NaN or infinity", "`nonfinite: skip`"),
    "policy_forward_calls": RecordKey(CALLS, "forward passes of the policy with gradient"),
    **{
        f"{anchor.name}_forward_calls": RecordKey(
            CALLS, f"forward passes of {anchor.words}; 0 {anchor.never_scored}", logged=anchor is ReferenceAnchor
        )
        for anchor in ANCHORS
    },
    "tokens_processed_policy": RecordKey(TOKENS, "token positions in the policy's forward passes, padding included"),
    **{
        f"tokens_processed_{anchor.name}": RecordKey(TOKENS, f"token positions in forward passes of {anchor.words}")
        for anchor in ANCHORS
    },
    "tokens_generated": RecordKey(
        TOKENS, "tokens sampled in this step; 0 if the batch was sampled in an earlier step"
    ),
    "tokens_per_second": RecordKey(
        "tokens / s", "tokens in the loss (every pass, including skipped rows) / `time_step`"
    ),
    "positions_per_second": RecordKey("positions / s", "`tokens_processed_policy` / `time_step`"),
    "time_step": RecordKey(SECONDS, "duration of the step; each second is counted in one stage only"),
    "time_rollout": RecordKey(SECONDS, "generation and rewards"),
    "time_reward": RecordKey(SECONDS, "reward functions (part of `time_rollout`)"),
    **{f"time_{anchor.name}": RecordKey(SECONDS, f"scoring by {anchor.words}") for anchor in ANCHORS},
    "time_reset": RecordKey(SECONDS, "resets and adapter growth"),
    "time_update": RecordKey(SECONDS, "forward, backward, optimizer, data loading"),
    "time_load": RecordKey(SECONDS, "reading a checkpoint; not part of `time_step`", "the first step after a resume"),
    "time_meter": RecordKey(SECONDS, "this bookkeeping itself"),
    "time_ended": RecordKey("s since 1970", "end of the step; shows which runs trained at the same time"),
    "ref_time_fraction": RecordKey("share", "`time_ref` / `time_step`", logged=True),
    "peak_memory_gib": RecordKey("GiB", "peak memory allocated during the step", GPU),
    "gpu_utilization": RecordKey("%", "GPU utilization, mean over readings", "a GPU, and nvidia-ml-py"),
    "…": RecordKey(
        "", "every other metric of TRL's log, under its name there: `completions/min_length`, `clip_ratio/low_mean`, …"
    ),
}

# One row per evaluation during training. K is 1, 2, 4 … up to the completions per prompt.
EVALUATIONS = {
    "step": RecordKey("optimizer steps", "number of steps done; 0 with `eval_on_start`"),
    "attempt": RecordKey("", "as in `metrics.jsonl`"),
    "time_eval": RecordKey(SECONDS, "duration of the evaluation"),
    "eval_pass@K": RecordKey("share", "pass@K: unbiased estimate, mean over prompts", VERIFIER),
    "eval_pass@K/TASK": RecordKey("share", "pass@K on the prompts of one task", "several names in a column `task`"),
    "eval_reward": RecordKey("reward", "mean reward (weighted sum of all reward functions)"),
    "eval_rewards/NAME/mean": RecordKey("reward", "mean of one reward function"),
    "eval_in_training": RecordKey(
        "share",
        "share of evaluation prompts that are also in the training set, so the result is not held-out",
        "if any does",
    ),
    "eval_…": RecordKey("", "every other metric of TRL's evaluation: `eval_loss`, `eval_entropy`, …"),
}

WATCHED = (ENTROPY_COLLAPSE, GUARD_GAP)
FIRED = tuple(kind for kind in EVENT_KINDS if kind not in (RESUME, NONFINITE))  # of something watched
REASONS = tuple(reason for trigger in CONFIGURED for reason in trigger.reasons)

# One row per event.
EVENTS = {
    "event": RecordKey("", "its kind", events=EVENT_KINDS),
    "attempt": RecordKey("", "as in `metrics.jsonl`; a `resume` has a new one", events=EVENT_KINDS),
    "step_requested": RecordKey("optimizer steps", "when it was asked for", events=EVENT_KINDS),
    "step_applied": RecordKey("optimizer steps", "when it happened", events=EVENT_KINDS),
    "reason": RecordKey(
        "",
        f"triggers that fired: {', '.join(f'`{name}`' for name in REASONS)}, or your own",
        events=FIRED,
    ),
    "value": RecordKey("of what is watched", "value that fired the first trigger", events=FIRED),
    "threshold": RecordKey("of what is watched", "threshold that it was compared with", events=FIRED),
    "requests": RecordKey(
        "", "all requests merged into this reset, each with its own `reason`, `value` and so on", events=(RESET,)
    ),
    "ref_reset_mix": RecordKey("", "value of that key", events=(RESET,)),
    "optimizer_reset": RecordKey("", "value of that key", events=(RESET,)),
    "alpha": RecordKey(
        "", "`optimizer_reset_alpha`", f"`optimizer_reset: {' or '.join(names_with_alpha())}`", events=(RESET,)
    ),
    "kl_before": RecordKey(TOKEN, "`kl_ref` of the last step before the reset", "`kl_ref` measured", events=(RESET,)),
    "rank_before": RecordKey("ranks", "adapter rank before the growth", events=(GROWTH,)),
    "rank": RecordKey("ranks", "adapter rank after the growth", events=(GROWTH,)),
    "seconds_copy": RecordKey(SECONDS, "time to move the parameters", events=AT_BOUNDARY),
    "seconds_optimizer": RecordKey(SECONDS, "time to change the optimizer state", events=(RESET, GROWTH)),
    "seconds_sync": RecordKey(SECONDS, "time to synchronise processes", events=(RESET,)),
    "world_size": RecordKey("processes", "number of processes", events=AT_BOUNDARY),
    "action": RecordKey(
        "", "what was done: `stop`, `skip`, `log`, `event` or `reset`", events=(NONFINITE, STALL, *WATCHED)
    ),
    "last_good": RecordKey("optimizer steps", "last step before the trouble", events=WATCHED),
    "tensor": RecordKey("", "first tensor with NaN or infinity", events=(NONFINITE,)),
    "prompts": RecordKey("", "prompts of the batch in which it was found", events=(NONFINITE,)),
    "checkpoint": RecordKey(
        "", "checkpoint from which the run continues; for a `stall`, the best one", events=(RESUME, STALL)
    ),
    "best": RecordKey("of what is watched", "value of the best checkpoint", events=(STALL,)),
    "changed": RecordKey(
        "", "keys whose values differ from the checkpoint's (`allow_config_change`)", events=(RESUME,)
    ),
}


def check_metric(name: str, where: str) -> None:
    """Raise `ValueError` for a name that no row of `metrics.jsonl` can have; `where` is the place of the name."""
    patterns = [re.sub("NAME|TASK", ".+", re.escape(key)) for key in METRICS]
    if not any(re.fullmatch(pattern, name) for pattern in patterns):
        cure = nearest(name, METRICS)
        raise ValueError(f"{where}={name!r} is not a metric of metrics.jsonl{cure}; docs/reference.md lists them.")
