"""
The meaning of the record's keys, in one place: `docs/reference.md` is made from it, and a test compares it with real
runs.
"""

from dataclasses import dataclass

from ..objective.anchors import ANCHORS
from ..resets.treatments import names_with_alpha
from ..resets.triggers import CONFIGURED
from .run_files import AT_BOUNDARY, GAMED, GROWTH, RESET


@dataclass(frozen=True)
class RecordKey:
    """
    Describes a key of `metrics.jsonl` or `events.jsonl`.

    Args:
        unit (`str`): Its unit.
        meaning (`str`): What it says.
        when (`str`, *optional*, defaults to `""`): The condition on which the key is there; empty if it always is.
        events (`tuple[str, ...]`, *optional*): The kinds of event that have it; not for `metrics.jsonl`.
        not_events (`tuple[str, ...]`, *optional*): The kinds of event that lack it, where all others have it.
    """

    unit: str
    meaning: str
    when: str = ""
    events: tuple[str, ...] = ()
    not_events: tuple[str, ...] | None = None

    def is_in(self, event: str) -> bool:
        """Whether an event of a kind may have it."""
        return event in self.events if self.not_events is None else event not in self.not_events


TOKEN = "nats per token"
TOKENS = "tokens"
CALLS = "calls"
SECONDS = "s"
GPU = "a GPU"
REUSED = "samples used after an update"
DYNAMIC = "`dynamic_sampling_rounds`"
VERIFIER = "a recipe's task, or a reward function with a `batch_verifier`"

BY_PRECEDENCE = ", else ".join(f"`{anchor.key}`" for anchor in ANCHORS)

# One row per optimizer step. TASK stands for the name of a task. Counts are sums over processes, times are those of
# the main process.
METRICS = {
    "step": RecordKey("optimizer steps", "steps done, from 1"),
    "reward": RecordKey("reward", "mean over the step's generation batch of the weighted sum of all functions"),
    "reward_std": RecordKey("reward", "its standard deviation, as TRL logs it"),
    "frac_reward_zero_std": RecordKey("share", "of prompts whose completions all got one reward: they teach nothing"),
    "rewards/NAME/mean": RecordKey("reward", "mean of one reward function, over the rows that it gave a reward"),
    "rewards/NAME/std": RecordKey("reward", "its standard deviation"),
    "reward/TASK": RecordKey(
        "reward", "mean of the first function that scores a task, over its rows", "a column `task`"
    ),
    "pass_rate/TASK": RecordKey("share", "of these completions that got the full reward of 1", "a column `task`"),
    "gold": RecordKey("share", "of the completions first sampled that the verifier accepts, paid or not", VERIFIER),
    "completion_length": RecordKey(TOKENS, "mean length of a completion"),
    "truncated_fraction": RecordKey("share", "of completions that were cut at their longest length"),
    "advantage_mean": RecordKey("advantage", "mean over the generation batch"),
    "advantage_std": RecordKey("advantage", "its standard deviation"),
    "interrupted_fraction": RecordKey("share", "of completions that were asked for their answer", "`thinking_budget`"),
    "mean_abs_dlogp_sampler": RecordKey(
        TOKEN,
        "abs(log π_sampler − log π_old) of a merged copy, or of vLLM",
        "`compact_generation`, a copy below fp32; `use_vllm` without `top_p`, `top_k` and `min_p`",
    ),
    "groups_replaced": RecordKey("groups", "that replaced groups whose task rewards are all equal", DYNAMIC),
    "groups_generated_again": RecordKey("groups", "generated for that, used or not", DYNAMIC),
    "groups_undecided": RecordKey("groups", "still undecided after the last round", DYNAMIC),
    "entropy": RecordKey(TOKEN, "mean entropy of the policy"),
    **{
        anchor.kl_key: RecordKey(TOKEN, f"k3 of the policy against {anchor.words}, uncorrected", anchor.measured_when)
        for anchor in ANCHORS
    },
    "k2_ref_over_old": RecordKey(TOKEN, "k2 of π_ref against π_old: the reference's lag", f"`beta` > 0 and {REUSED}"),
    "kl_penalty": RecordKey("loss", "what entered the loss, coefficients and normaliser included", "an anchor"),
    "kl_clamped": RecordKey(TOKENS, "whose KL to an acting anchor lies beyond the bound, in every pass", "`kl_clamp`"),
    "mean_abs_dlogp": RecordKey("nats", "mean over tokens of abs(log π_θ − log π_old)", REUSED),
    "clip_region_mean": RecordKey("share", "of tokens in the region that the ratio's clip flattens"),
    "rows_skipped": RecordKey("completions", "not computed, because they carry no gradient", "`skip_zero_rows`"),
    "beta": RecordKey("coefficient", f"of the active anchor: {BY_PRECEDENCE}, else 0"),
    "lr": RecordKey("learning rate", "of this update, re-warm-up included"),
    "grad_norm": RecordKey("norm", "of the gradient before it is clipped"),
    "update_norm": RecordKey("norm", "of what the update changed in the trained parameters", "`log_update_norm`"),
    "nonfinite_skips": RecordKey("steps", "left out so far", "`nonfinite: skip`"),
    "policy_forward_calls": RecordKey(CALLS, "scorings of a micro-batch by the policy, with gradient"),
    **{
        f"{anchor.name}_forward_calls": RecordKey(CALLS, f"scorings by {anchor.words}; 0 {anchor.never_scored}")
        for anchor in ANCHORS
    },
    "tokens_processed_policy": RecordKey(TOKENS, "positions that the policy's calls computed, padding included"),
    **{f"tokens_processed_{anchor.name}": RecordKey(TOKENS, f"the same of {anchor.words}") for anchor in ANCHORS},
    "tokens_generated": RecordKey(TOKENS, "sampled in this step; 0 where the batch is an earlier step's"),
    "tokens_per_second": RecordKey("tokens / s", "in the loss, in every pass and of skipped rows too, by `time_step`"),
    "positions_per_second": RecordKey("positions / s", "`tokens_processed_policy` by `time_step`"),
    "time_step": RecordKey(SECONDS, "the whole step; a second of it belongs to one stage only"),
    "time_rollout": RecordKey(SECONDS, "generation and rewards"),
    "time_reward": RecordKey(SECONDS, "the reward functions alone, a part of `time_rollout`"),
    **{f"time_{anchor.name}": RecordKey(SECONDS, f"scoring by {anchor.words}") for anchor in ANCHORS},
    "time_reset": RecordKey(SECONDS, "resets, and growth of the adapters"),
    "time_update": RecordKey(SECONDS, "forward and backward, optimizer, data"),
    "time_eval": RecordKey(SECONDS, "validation after the step, and before the first one; not part of `time_step`"),
    "time_load": RecordKey(SECONDS, "to read a checkpoint; not part of `time_step`", "the first step after a resume"),
    "time_meter": RecordKey(SECONDS, "the bookkeeping itself"),
    "time_ended": RecordKey("s since 1970", "when the step ended; it shows which runs trained at the same time"),
    "ref_time_fraction": RecordKey("share", "`time_ref` by `time_step`"),
    "peak_memory_gib": RecordKey("GiB", "most memory allocated in the step", GPU),
    "gpu_utilization": RecordKey(
        "%", "of the time that the GPU computed, mean over readings", "a GPU, and nvidia-ml-py"
    ),
}

# One row per evaluation during training. K is 1, 2, 4 … up to the completions of a prompt.
EVALUATIONS = {
    "step": RecordKey("optimizer steps", "steps done; 0 with `eval_on_start`"),
    "eval_pass@K": RecordKey(
        "share", "of draws of K completions with a correct one: unbiased, mean over prompts", VERIFIER
    ),
    "eval_pass@K/TASK": RecordKey("share", "the same of the prompts of one task", "several names in a column `task`"),
    "eval_reward": RecordKey("reward", "mean of the weighted sum of all reward functions"),
    "eval_rewards/NAME/mean": RecordKey("reward", "mean of one reward function"),
    "eval_in_training": RecordKey(
        "share", "of the prompts that occur in the training set: nothing here is held-out", "if any does"
    ),
    "eval_…": RecordKey("", "every other metric that TRL measured: `eval_loss`, `eval_entropy`, …"),
}

RESUME = "resume"
NONFINITE = "nonfinite"
COLLAPSE = "entropy_collapse"
REWARD_COLLAPSE = "collapse"
ROLLBACK = "rollback"
NO_SIGNAL = "no_signal"
WATCHED = (COLLAPSE, GAMED, REWARD_COLLAPSE)
NOT_FIRED = (RESUME, NONFINITE, ROLLBACK)
REASONS = tuple(reason for trigger in CONFIGURED for reason in trigger.reasons)

# One row per event.
EVENTS = {
    "event": RecordKey("", "its kind", not_events=()),
    "step_requested": RecordKey("optimizer steps", "when it was asked for", not_events=()),
    "step_applied": RecordKey("optimizer steps", "when it happened", not_events=()),
    "reason": RecordKey(
        "",
        f"the triggers that fired: {', '.join(f'`{name}`' for name in REASONS)}, your own; of a `rollback`, the event "
        "that asked for it",
        not_events=(RESUME, NONFINITE),
    ),
    "value": RecordKey("of what is watched", "what the first trigger saw", not_events=NOT_FIRED),
    "threshold": RecordKey("of what is watched", "what it compared that with", not_events=NOT_FIRED),
    "requests": RecordKey("", "every request that this reset answers, as its own `reason` and so on", events=(RESET,)),
    "ref_reset_mix": RecordKey("", "the key of that name", events=(RESET,)),
    "optimizer_reset": RecordKey("", "the key of that name", events=(RESET,)),
    "alpha": RecordKey(
        "", "`optimizer_reset_alpha`", f"`optimizer_reset: {' or '.join(names_with_alpha())}`", events=(RESET,)
    ),
    "adapter_restarts": RecordKey("restarts", "of the adapter so far", "`adapter_restart: merge`", events=(RESET,)),
    "merged_bytes": RecordKey(
        "bytes", "of the merged adapters, in every file", "`adapter_restart: merge`", events=(RESET,)
    ),
    "kl_before": RecordKey(TOKEN, "`kl_ref` of the last step before it", "`kl_ref` measured", events=(RESET,)),
    "rank_before": RecordKey("ranks", "of every layer's adapter before it", events=(GROWTH,)),
    "rank": RecordKey("ranks", "of every layer's adapter from then on", events=(GROWTH,)),
    "seconds_copy": RecordKey(SECONDS, "for moving the parameters", events=AT_BOUNDARY),
    "seconds_optimizer": RecordKey(SECONDS, "for the optimizer's state", events=(RESET, GROWTH)),
    "seconds_sync": RecordKey(SECONDS, "for agreeing between processes", events=(RESET,)),
    "world_size": RecordKey("processes", "that took part", events=AT_BOUNDARY),
    "action": RecordKey("", "`stop`, `skip`, `log`, `event` or `reset`", events=(NONFINITE, *WATCHED)),
    "last_good": RecordKey("optimizer steps", "where all was well: a `rollback` goes behind it", events=WATCHED),
    "tensor": RecordKey("", "the first that was not finite", events=(NONFINITE,)),
    "prompts": RecordKey("", "of the batch in which it was found", events=(NONFINITE,)),
    "checkpoint": RecordKey("", "that the run goes on from", events=(RESUME, ROLLBACK)),
    "rollbacks": RecordKey("roll-backs", "made so far", events=(ROLLBACK,)),
    "rate_factor": RecordKey("", "of all roll-backs together on the learning rate", events=(ROLLBACK,)),
    "skipped": RecordKey("", "newer checkpoints that were not usable, with the reason", events=(RESUME,)),
    "abandoned": RecordKey("", "newer checkpoints, now called `abandoned-checkpoint-N`", events=(RESUME,)),
    "changed": RecordKey("", "keys that differ from the checkpoint's (`allow_config_change`)", events=(RESUME,)),
}
