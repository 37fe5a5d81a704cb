"""
The keys, each declared once: its type, its default, its descriptor and, in the docstring, its meaning. Help, the
reference, refusals, the rules of a resume, the names of arms and `ProRLConfig.is_trl` follow.
"""

import math
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from .descriptor import (
    Effect,
    Key,
    Need,
    ValueOf,
    Values,
    applies,
    declared,
    free,
    is_on,
    needs,
    number,
    one_of,
    whole,
)
from .length_rewards import LENGTH_REWARDS
from .objective.anchors import ANCHOR_KEYS, ANCHORS
from .resets.treatments import SCALE_FORMS, TREATMENTS, is_treatment, names_with_alpha


NOTHING = Effect.NOTHING
STEP = Effect.STEP
TERM = Effect.TERM
KL = Effect.KL
BOUNDARY = Effect.BOUNDARY
RESET = Effect.RESET

POSITIVE = number(lambda value: 0 < value < math.inf, "a positive number")
NOT_NEGATIVE = number(lambda value: 0 <= value < math.inf, "a finite number that is not negative")
FINITE = number(math.isfinite, "a finite number")
SWITCH = Values(lambda value: isinstance(value, bool), "true or false")
ELSEWHERE = Values(lambda value: True)  # checked by whoever knows what there is
OFF_ON_AUTO = one_of("off", "on", "auto")
RATIOS = one_of("no_ratio", "unclipped", "clipped")
ACTIONS = one_of("event", "reset", "stop")
SHARE = number(lambda value: 0 <= value <= 1, "in [0, 1]; 1 is a hard copy")
DECAY = number(lambda value: 0 <= value < 1, "in [0, 1)")
FACTOR = number(lambda value: 0 < value <= 1, "in (0, 1]; to clear the state use optimizer_reset: hard")
RATE_FACTOR = number(lambda value: 0 < value <= 1, "in (0, 1]")
TREATMENT = Values(is_treatment, names=(*TREATMENTS, *SCALE_FORMS))
TEXT = Values(lambda value: isinstance(value, str), "a text")
PATH = Values(lambda value: isinstance(value, (str, os.PathLike)), "a path")


def are_names(value: Any) -> bool:
    """Return whether a value is a list of texts that is not empty."""
    return isinstance(value, list) and value != [] and all(isinstance(name, str) for name in value)


NAMES = Values(are_names, "a list of names of reward functions")
ADVANTAGES = one_of(
    "raw", "centered", "group_normalized", "batch_normalized", "global_normalized", "rloo", "max", "best_of_group"
)
UNGROUPED_ADVANTAGES = ("global_normalized", "raw")  # they compare no completions of a prompt, so one is enough


def needs_anchor(words: str) -> Need:
    """
    Return the need of a key that acts on the KL to an anchor; `words` follow the key and its value in its refusal.
    """
    return needs(*ANCHOR_KEYS, line=f"{{key}}={{value!r}} {words}")


REFERENCE = needs("beta", line="{key}={value!r} needs a reference: set beta > 0, or {key}: cached.")
REWARDED_ANCHORS = [anchor for anchor in ANCHORS if anchor.works_in_reward]
REWARDED_KEYS = [anchor.key for anchor in REWARDED_ANCHORS]
IN_REWARD = needs(
    *REWARDED_KEYS,
    line=f"{{key}}={{value!r}} needs {' or '.join(anchor.words for anchor in REWARDED_ANCHORS)}: set "
    f"{' or '.join(REWARDED_KEYS)} > 0.",
)
ONE_OF_ANCHORS = f"{', '.join(ANCHOR_KEYS[:-1])} or {ANCHOR_KEYS[-1]}"
A_PUSHED_REFERENCE = needs(
    "beta",
    line="{key}={value!r} pushes the reference, but beta=0 means that there is none. Leave {key} out, or set "
    "beta > 0.",
)
AN_ANCHOR = needs_anchor(f"bounds the KL to an anchor, and there is none. Set {ONE_OF_ANCHORS}, or leave {{key}} out.")
ANCHORED_ROWS = needs_anchor(
    f"leaves rows out of the KL, and there is none. Set {ONE_OF_ANCHORS}, or leave {{key}} out."
)
ADAPTED = needs_anchor(
    f"adapts the coefficient of an anchor, and there is none. Set {ONE_OF_ANCHORS} to the coefficient to begin with."
)
A_FLOOR = needs(
    "entropy_floor", line="{key}={value!r} never stops anything without entropy_floor: set it, in nats per token."
)
AN_EVALUATION = needs("ref_reset_stall", "ref_reset_drop")
AN_ALPHA = Need(
    lambda value_of: value_of("optimizer_reset") in names_with_alpha(),  # a script may have added treatments
    f"{{key}}={{value!r}} has no effect without optimizer_reset: {' or '.join(names_with_alpha())}. Set that, or "
    "leave {key} out.",
    adjusted=True,
)
PACKED = needs("pack_groups", written='pack_groups: "on"')
COMPACT = needs("compact_generation", written='compact_generation: "on"')
ROUNDS = needs("dynamic_sampling_rounds")


def requests_reset(value_of: ValueOf) -> bool:
    """Return whether any key requests resets, of those that need none themselves."""
    for name, key in KEYS.items():
        if key.need is not A_RESET and RESET in key.effect_of(name, value_of):
            return True
    return False


A_RESET = Need(
    requests_reset,
    "{key}={value!r} is never applied: nothing requests a reset. Set ref_reset_every (or ref_reset_kl, "
    "ref_reset_stall, ref_reset_drop), or leave {key} out. With triggers of your own alone, set ref_reset_every to "
    "more than max_steps.",
)


# Rules of a resume, see `Resume` in descriptor.py.


def has_average(then: Any, now: Any, keys: Mapping[str, Any]) -> str | None:
    """Elastic Reset cannot be switched on: its average begins with the run."""
    if is_on(now) and not is_on(then):
        return "the policy's average since the run began is not in it"
    return None


def has_grown(then: Any, now: Any, keys: Mapping[str, Any]) -> str | None:
    """Growth cannot be switched off."""
    if is_on(then) and not is_on(now):
        return "its adapter may have grown, and would not be made again; a larger value acts"
    return None


def has_restarted(then: Any, now: Any, keys: Mapping[str, Any]) -> str | None:
    """Restarts of the adapter can neither be switched on nor off."""
    return "a run with restarts keeps its reference in the frozen weights, another one in an adapter"


def has_moved(then: Any, now: Any, keys: Mapping[str, Any]) -> str | None:
    """The last trigger of a run with a reference cannot be switched off."""
    still_resets = any(is_on(keys.get(name)) for name in TRIGGER_KEYS)
    if is_on(then) and not is_on(now) and keys.get("beta") and not still_resets:
        return "without resets the reference is the base, and this run's has moved; a larger value acts"
    return None


def dependent(values: Values, need: Need, example: Any, label: str | None = None) -> Key:
    """Describe a key that only adjusts what another key switches on."""
    return Key(values, NOTHING, applies, need, example, label)


def effect_of_loss_mode(mode: str) -> Effect:
    return STEP | KL if mode == "no_ratio" else STEP


def effect_of_guard(action: str) -> Effect:
    return RESET if action == "reset" else NOTHING


@dataclass
class ProlongedKeys:
    r"""
    Configuration of [`ProRLTrainer`]: everything of [`~trl.GRPOConfig`], and the anchors and resets of prolonged RL.

    TRL's `beta` stays what it is, the coefficient of the KL to the reference model. Variant A is `beta > 0` with
    resets; B is `beta = 0` and `beta_old > 0`, a *different objective* that needs no reference model; C is A with
    `optimizer_reset`.

    Parameters:
        > Parameters that control the anchors

        beta_old (`float`, *optional*, defaults to `0.0`):
            Coefficient of the KL to π_old, the policy that sampled the batch. Costs no forward of its own. Acts only
            where samples are used after an update: `num_iterations` > 1, or a generation batch spread over several
            optimizer steps.
        beta_base (`float`, *optional*, defaults to `0.0`):
            Coefficient of the KL to the base policy, the policy as the run began, in A and B alike. Costs a forward.
        base_anchor_every (`int`, *optional*, defaults to `1`):
            The base anchor acts on every N-th generation batch, and costs a forward on those alone. The coefficient is
            not scaled up for it.
        kl_estimator (`str`, *optional*, defaults to `"k3"`):
            `"k1"`, `"k2"` or `"k3"`, for every anchor; together with TRL's `use_bias_correction_kl`. See
            [`~trl_prorl.objective.kl`] for which combination has which gradient.
        kl_clamp (`float`, *optional*):
            Bound, in nats, of every anchor's estimate at each token (verl and NeMo RL bound k3 at 10), before
            `use_bias_correction_kl` multiplies it by the ratio. A token beyond it carries no gradient of the KL, so
            nothing pulls it back; `kl_clamped` in the record counts such tokens. `kl_ref`, `kl_old` and `kl_base` stay
            unbounded, and so does what `ref_reset_kl` and `kl_target` watch; one that overflows is left out of the
            record and stops nothing (`nonfinite`). `None`: no bound.
        kl_in (`str`, *optional*, defaults to `"loss"`):
            Where the KL to the reference and to the base acts. `"loss"`: as a term of every update. `"reward"`: it is
            taken once, as a batch is sampled, and out of the reward of each completion, less coefficient · Σ (log
            π_old − log π_ref) over its tokens (k1; REINFORCE++, arXiv 2501.03262). The loss then has no KL term;
            `kl_ref` is measured as ever. Which groups are equal is told by the task's reward alone. Needs an
            `advantage_estimator`, and π_old's forward.
        ref_compute (`str`, *optional*, defaults to `"cached"`):
            `"cached"`: the reference scores each generation batch once. `"naive_epoch"`: it scores it again in every
            inner pass, with the same numbers; the wasteful baseline.

        kl_target (`float`, *optional*):
            Adapt the coefficient of the active anchor (`beta`, else `beta_old`, else `beta_base`) so that its KL
            approaches this many nats per token (arXiv 1909.08593). `None`: a fixed coefficient.
        kl_horizon (`int`, *optional*, defaults to `100`):
            Optimizer steps in which a persistent error of 20 % or more moves the coefficient by about 20 %.

        > Parameters that control the resets

        ref_reset_every (`int`, *optional*, defaults to `0`):
            Request a reset whenever the number of optimizer steps done is a multiple of this. It is applied at the
            next generation boundary. 0: never.
        ref_reset_kl (`float`, *optional*):
            Request a reset when the KL to the reference (`kl_ref`, nats per token) exceeds this. `None`: never.
        ref_reset_kl_window (`int`, *optional*, defaults to `1`):
            Steps over which that KL is averaged.
        ref_reset_stall (`int`, *optional*, defaults to `0`):
            Request a reset after this many evaluations without an improvement on the best. 0: never.
        ref_reset_drop (`float`, *optional*):
            Request a reset when the metric falls below its best by more than this. `None`: never.
        ref_reset_metric (`str`, *optional*, defaults to `"eval_reward"`):
            The validation metric that `ref_reset_stall` and `ref_reset_drop` watch: `eval_reward`; `eval_pass@1`,
            `eval_pass@2`, `eval_pass@4` … up to the completions of a prompt, correct by the task's `verify`;
            `eval_pass@1/TASK` of one task among several; or any other metric of an evaluation.
        ref_reset_metric_mode (`str`, *optional*, defaults to `"max"`):
            `"max"` if larger is better, `"min"` if smaller is.
        ref_reset_min_delta (`float`, *optional*, defaults to `0.0`):
            The least change of that metric that counts as an improvement.
        ref_reset_cooldown (`int`, *optional*, defaults to `0`):
            Optimizer steps since the last applied reset before which no trigger fires.
        ref_reset_mix (`float`, *optional*, defaults to `1.0`):
            What the reference becomes at a reset: `mix` · policy + (1 − `mix`) · reference. 1 is a hard copy; between
            0 and 1 the parameters are averaged (with LoRA the factors A and B, which is not the average of their
            products BA); 0 leaves the reference where it is, so that only the optimizer is reset. A small value with
            `ref_reset_every: 1` makes the reference a moving average of the policy (the soft update of TR-DPO, arXiv
            2404.09656), which moves once at each generation boundary. In bf16 weights a move of less than some 0.2 %
            of a parameter is lost in rounding.
        adapter_restart (`str`, *optional*, defaults to `"off"`):
            `"merge"`: a reset merges the LoRA adapter into the frozen weights, and a new one begins (B = 0, A drawn
            from the run's seed), as in ReLoRA (arXiv 2307.05695). The reference is then the model without its adapter,
            so that none is held beside it; works with `beta=0` too. Files hold one adapter over the model that the run
            began from, whose rank is `lora_r` times one more than the restarts. In the host's memory each weight that
            is merged into takes 4 bytes, and its own once more. In bf16 each restart moves the policy by rounding: see
            docs/methods.md. Not for full fine-tuning and quantised models.
        optimizer_reset (`str`, *optional*, defaults to `"keep"`):
            What happens to Adam's state at a reset: `"keep"`, `"hard"` (moments and step count cleared, the learning
            rate schedule starts again, an AMP scaler goes back to its initial scale), `"soft"` (moments times
            `optimizer_reset_alpha`), `"asym"` (first moment cleared, the rest kept), `"step"` (step count cleared, the
            moments kept: Adam-Rel, arXiv 2412.17113; Adam's family alone), `"scale(F, G)"` (the first moment times F,
            the second times G, each in [0, 1]), `"scale(F, G, step)"` (and the step count cleared). See
            [`~trl_prorl.resets.optimizer_state`] for each optimizer.
        optimizer_reset_alpha (`float`, *optional*, defaults to `0.1`):
            Factor of `optimizer_reset: soft`, in (0, 1]. The next updates are smaller at first (0.6 of the usual at
            0.1, where gradients agree), then larger (up to 2.9 times): see [`~trl_prorl.resets.optimizer_state`].
        optimizer_reset_schedule (`str`, *optional*):
            What a reset does to the learning-rate schedule: `"keep"` or `"restart"`. `None`: restart with `hard`, keep
            otherwise.
        optimizer_reset_rewarmup_steps (`int`, *optional*, defaults to `0`):
            Updates over which the learning rate rises linearly to the schedule's after a reset.
        elastic_reset_every (`int`, *optional*, defaults to `0`):
            Optimizer steps from one Elastic Reset (arXiv 2312.07551) to the next, each applied at the next generation
            boundary: policy ← its moving average, average ← the initial policy. 0: never.
        elastic_ema (`float`, *optional*, defaults to `0.99`):
            Decay of that moving average, per optimizer step.

        > Parameters that control the growth of the adapter

        lora_growth_every (`int`, *optional*, defaults to `0`):
            Optimizer steps from one growth of the LoRA adapters to the next, each applied at the next generation
            boundary, before a reset there: more ranks for the policy and its frozen copies, while every function stays
            what it is. Adam keeps its state of the old ranks, and its step count. 0: never. See docs/methods.md.
        lora_growth_step (`int`, *optional*, defaults to `4`):
            Ranks that a growth adds.
        lora_growth_max_rank (`int`, *optional*, defaults to `64`):
            The rank at which growth ends.

        > Parameters that control the cost

        fast (`bool`, *optional*, defaults to `False`):
            Every acceleration that changes no number beyond rounding, or draws from the same distribution, in bf16 up
            to rounding: `reuse_old_logps: true`, `pack_groups: auto` and `compact_generation: auto`. A key that is set
            by hand wins, at its default too (with TRL's `TrlParser`, which passes all keys, only at another value).
            What is not possible falls back, also where dropout is active; a line at the start and `env.json` say why.
            `skip_zero_rows` is not among them, because it changes means of the record.
        reuse_old_logps (`bool`, *optional*, defaults to `False`):
            Take π_old's log-probabilities from the first inner pass instead of a forward of their own, wherever that
            is sound: nothing was updated since sampling (`gradient_accumulation_steps` a multiple of
            `steps_per_generation`) and no vLLM correction needs them earlier. Elsewhere the forward stays, and
            `env.json` says so.

        pack_groups (`str`, *optional*, defaults to `"off"`):
            `"on"`: every forward that scores tokens computes each prompt once for all its completions, and no
            padding, with the same numbers (see [`~trl_prorl.scoring.packing`]). An update sees TRL's own rows; those
            of a group stand in one micro-batch as far as that allows, which is wherever an update has all rows of a
            generation. A model or a task for which packing is not possible is refused, and so is a model that gives
            other numbers or gradients for a few tokens, which are tried when the trainer is made; with `"auto"` it is
            computed as TRL computes it, and `env.json` says why.
        pack_max_tokens (`int`, *optional*):
            Most tokens of one packed forward, with a single process: no less than the longest prompt and
            `max_completion_length`. `None`: a micro-batch is one forward.
        compact_generation (`str`, *optional*, defaults to `"off"`):
            `"on"`: rollouts compute each prompt once for all its completions, drop a completion when it ends, and
            sample from a copy of the policy with LoRA merged (see [`~trl_prorl.rollout.compact`] and
            [`~trl_prorl.rollout.merged_copy`]). Settings of the generation mean what they mean in TRL. A model or a
            setting for which that is not possible is refused; with `"auto"` transformers' `generate` samples, and
            `env.json` says why.
        compact_max_rows (`int`, *optional*):
            Most completions that are decoded at once, in whole groups where a group fits; `trl-prorl preflight` says
            how many do. `None`: all of a generation batch. It is a key, and not taken from the memory that is free,
            because sampled tokens depend on it: a resume goes on with the same samples beside whatever else runs.
        compact_merge (`bool`, *optional*, defaults to `True`):
            `False`: sample from the policy and its adapter as they are. That is slower, and spares the merged copy,
            which takes as much memory as the weights that LoRA changes.
        vllm_enable_lora (`bool`, *optional*, defaults to `False`):
            Hand the adapter to vLLM as a LoRA request, and merge nothing: vLLM keeps its own base.
            `False`: TRL merges the adapter, and hands over all weights.
        skip_zero_rows (`bool`, *optional*, defaults to `False`):
            Do not compute rows that carry no gradient: those of groups whose rewards are all equal, where no penalty
            acts on them. Gradient and normaliser are the same; `rows_skipped` counts them, and the means over tokens
            in the record are of the rows that were computed.
        drop_zero_rows (`bool`, *optional*, defaults to `False`):
            Rows whose advantage is 0 carry no KL either, so that `skip_zero_rows` need not compute them in A and B.
            The normaliser counts them as before. *Another objective*: the KL no longer acts on solved and on hopeless
            prompts (unless a length reward gives them advantages), nor, with `max` and `best_of_group`, on all but
            the best rows.

        > Parameters that control the samples and their advantages

        dynamic_sampling_rounds (`int`, *optional*, defaults to `0`):
            The most rounds in which groups whose task rewards are all equal are replaced by groups of other prompts
            (DAPO, arXiv 2503.14476). What was generated in vain is counted; the logged rewards are those of the first
            round. Groups still undecided stay: see `drop_zero_rows`.
        dynamic_sampling_rewards (`list[str]`, *optional*):
            Names of the reward functions whose weighted sum decides whether a group's rewards are all equal. `None`:
            the first one that has a weight and a reward for the group, which in a recipe is the task's; a length
            reward, which tells apart any two completions of unequal lengths, does not decide.
        advantage_estimator (`str`, *optional*):
            How rewards become advantages: `"raw"`, `"centered"`, `"group_normalized"`, `"batch_normalized"`,
            `"global_normalized"`, `"rloo"`, `"max"`, `"best_of_group"`; see [`~trl_prorl.objective.advantages`].
            TRL's `scale_rewards` then has no effect. With `"global_normalized"` and `"raw"`, which compare no
            completions of a prompt, `num_generations` may be 1. `None`: TRL's own.
        loss_mode (`str`, *optional*):
            The ratio in the policy gradient: `"no_ratio"` (A ∇log π, as if every sample were fresh), `"unclipped"`
            (ratio · A) or `"clipped"`. The penalties keep their own ratio, and TRL's `off_policy_mask_threshold` and
            its correction for vLLM act with each. `None`: TRL's, which is clipped.

        > Parameters that keep a run safe

        entropy_floor (`float`, *optional*):
            Mean entropy, in nats per token, below which a policy counts as collapsed. `None`: not watched.
        entropy_patience (`int`, *optional*, defaults to `10`):
            Consecutive optimizer steps below `entropy_floor` that count as a collapse, which is logged as an event.
        entropy_stop (`bool`, *optional*, defaults to `False`):
            Whether a collapse stops the run, with a checkpoint.
        guard_gap (`float`, *optional*):
            Fires when the share of correct completions (`gold` in the record, by the task's `verify` or a reward
            function's `verifier`) has fallen by more than this from its highest value while the reward is no lower
            than it was then, both as averages over 40 optimizer steps: possible reward hacking. It needs more steps
            than that. `None`: off.
        guard_gap_action (`str`, *optional*, defaults to `"event"`):
            What then happens: `"event"` (an event in the record, and a warning), `"reset"` (a reset of the reference
            is requested too) or `"stop"` (the run ends, with a checkpoint).

        rollback (`int`, *optional*, defaults to `0`):
            How often a run that collapses may go back to its last good checkpoint, with weights, optimizer, reference,
            schedule and position in the data, at a lower learning rate; then it stops. A collapse is a mean reward of
            the last 10 % of the steps, at least 10, below half of the best mean of 10 steps. What else stops a run by
            `nonfinite: stop` (in a reward, too), `entropy_stop` or `guard_gap_action: stop` goes back as well. A
            reward function that raises or takes too long ends the run. Needs checkpoints that can be resumed from, and
            one process.
        rollback_rate (`float`, *optional*, defaults to `0.5`):
            Factor of every roll-back on the learning rate.
        nonfinite (`str`, *optional*, defaults to `"stop"`):
            What NaN or infinity in a reward, the loss, a KL or a gradient does: `"stop"` ends the run before the next
            checkpoint; `"skip"` leaves out that optimizer step (weights and optimizer state stay, the step still
            counts and the learning-rate schedule goes on) and counts it as `nonfinite_skips`. Weights that are not
            finite always stop the run.
        reward_timeout (`float`, *optional*, defaults to `600.0`):
            Seconds that a reward function may take for one batch. `None`: no limit.
        allow_config_change (`bool`, *optional*, defaults to `False`):
            Whether a resume may have other arguments that change the run. The change is logged as an event.

        > Parameters that control the record

        run_dir (`str`, *optional*):
            Where the record of the run goes. `None`: `output_dir`. The run's id tells which model belongs to a record.
        log_update_norm (`bool`, *optional*, defaults to `False`):
            Record the norm of every update of the trained parameters, which shows what a reset does to the first ones.
            Costs a copy of those parameters.
        hub_push_reference (`bool`, *optional*, defaults to `False`):
            Whether `push_to_hub` pushes the frozen adapter `ref` too, into the folder `ref`. TRL's `hub_*` keys say
            the rest; see docs/publishing.md.
    """

    beta_old: Annotated[float, Key(NOT_NEGATIVE, TERM, applies, label="β_old={}")] = 0.0
    beta_base: Annotated[float, Key(NOT_NEGATIVE, TERM, applies, label="β_base={}")] = 0.0
    base_anchor_every: Annotated[int, dependent(whole(1), needs("beta_base", written="beta_base > 0"), 4)] = 1
    kl_estimator: Annotated[str, Key(one_of("k1", "k2", "k3"), KL, applies)] = "k3"
    kl_clamp: Annotated[float | None, Key(POSITIVE, KL, applies, AN_ANCHOR, example=10.0)] = None
    kl_in: Annotated[str, Key(one_of("loss", "reward"), KL, applies, IN_REWARD, "reward", "KL in {}")] = "loss"
    ref_compute: Annotated[str, Key(one_of("cached", "naive_epoch"), STEP, applies, REFERENCE, "naive_epoch")] = (
        "cached"
    )
    kl_target: Annotated[float | None, Key(POSITIVE, STEP, applies, ADAPTED, 0.05, "KL target {}")] = None
    kl_horizon: Annotated[int, dependent(whole(1), needs("kl_target"), 50)] = 100

    ref_reset_every: Annotated[int, Key(whole(0), RESET, has_moved, label="K={}")] = 0
    ref_reset_kl: Annotated[float | None, Key(POSITIVE, RESET, has_moved, label="KL>{}")] = None
    ref_reset_kl_window: Annotated[int, dependent(whole(1), needs("ref_reset_kl"), 5, label="over {} steps")] = 1
    ref_reset_stall: Annotated[int, Key(whole(0), RESET, has_moved, label="stall {}")] = 0
    ref_reset_drop: Annotated[float | None, Key(POSITIVE, RESET, has_moved, label="drop {}")] = None
    ref_reset_metric: Annotated[str, dependent(TEXT, AN_EVALUATION, "eval_loss", "of {}")] = "eval_reward"
    ref_reset_metric_mode: Annotated[str, dependent(one_of("max", "min"), AN_EVALUATION, "min")] = "max"
    ref_reset_min_delta: Annotated[float, dependent(NOT_NEGATIVE, AN_EVALUATION, 0.01)] = 0.0
    ref_reset_cooldown: Annotated[int, dependent(whole(0), A_RESET, 20, label="cooldown {}")] = 0
    ref_reset_mix: Annotated[float, Key(SHARE, NOTHING, applies, label="mix {}")] = 1.0
    adapter_restart: Annotated[
        str, Key(one_of("off", "merge"), NOTHING, has_restarted, A_RESET, "merge", "restart")
    ] = "off"
    optimizer_reset: Annotated[str, dependent(TREATMENT, A_RESET, "hard", label="{}")] = "keep"
    optimizer_reset_alpha: Annotated[float, dependent(FACTOR, AN_ALPHA, 0.25, "{}")] = 0.1
    optimizer_reset_schedule: Annotated[str | None, dependent(one_of("keep", "restart"), A_RESET, "restart")] = None
    optimizer_reset_rewarmup_steps: Annotated[int, dependent(whole(0), A_RESET, 5)] = 0
    elastic_reset_every: Annotated[int, Key(whole(0), BOUNDARY, has_average, label="every {}")] = 0
    elastic_ema: Annotated[float, dependent(DECAY, needs("elastic_reset_every"), 0.9, label="EMA {}")] = 0.99

    lora_growth_every: Annotated[int, Key(whole(0), BOUNDARY, has_grown, label="growth every {}")] = 0
    lora_growth_step: Annotated[int, dependent(whole(1), needs("lora_growth_every"), 8, label="by {} ranks")] = 4
    lora_growth_max_rank: Annotated[int, dependent(whole(1), needs("lora_growth_every"), 32, label="up to {}")] = 64

    fast: Annotated[bool, Key(SWITCH, NOTHING, free)] = False
    reuse_old_logps: Annotated[bool, Key(SWITCH, STEP, applies, fast=True)] = False
    pack_groups: Annotated[str, Key(OFF_ON_AUTO, STEP, applies, fast="auto")] = "off"
    pack_max_tokens: Annotated[int | None, dependent(whole(1), PACKED, 8192)] = None
    compact_generation: Annotated[str, Key(OFF_ON_AUTO, STEP, applies, fast="auto")] = "off"
    compact_max_rows: Annotated[int | None, dependent(whole(1), COMPACT, 256)] = None
    compact_merge: Annotated[bool, dependent(SWITCH, COMPACT, False)] = True
    vllm_enable_lora: Annotated[bool, Key(SWITCH, NOTHING, applies, needs("use_vllm"), True)] = False
    skip_zero_rows: Annotated[bool, Key(SWITCH, STEP, applies)] = False
    drop_zero_rows: Annotated[bool, Key(SWITCH, KL, applies, ANCHORED_ROWS, example=True)] = False

    dynamic_sampling_rounds: Annotated[int, Key(whole(0), STEP, applies)] = 0
    dynamic_sampling_rewards: Annotated[list[str] | None, dependent(NAMES, ROUNDS, ["gsm8k"])] = None
    advantage_estimator: Annotated[str | None, Key(ADVANTAGES, STEP, applies)] = None
    loss_mode: Annotated[str | None, Key(RATIOS, effect_of_loss_mode, applies, label="{}")] = None

    entropy_floor: Annotated[float | None, Key(POSITIVE, NOTHING, applies)] = None
    entropy_patience: Annotated[int, dependent(whole(1), needs("entropy_floor"), 20)] = 10
    entropy_stop: Annotated[bool, dependent(SWITCH, A_FLOOR, True)] = False
    guard_gap: Annotated[float | None, Key(POSITIVE, NOTHING, applies)] = None
    guard_gap_action: Annotated[str, Key(ACTIONS, effect_of_guard, applies, needs("guard_gap"), "stop")] = "event"
    rollback: Annotated[int, Key(whole(0), NOTHING, applies)] = 0
    rollback_rate: Annotated[float, dependent(RATE_FACTOR, needs("rollback"), 0.3)] = 0.5
    nonfinite: Annotated[str, Key(one_of("stop", "skip"), NOTHING, applies)] = "stop"
    reward_timeout: Annotated[float | None, Key(POSITIVE, NOTHING, free)] = 600.0
    allow_config_change: Annotated[bool, Key(SWITCH, NOTHING, free)] = False

    run_dir: Annotated[str | None, Key(PATH, NOTHING, free)] = None
    log_update_norm: Annotated[bool, Key(SWITCH, NOTHING, free)] = False
    hub_push_reference: Annotated[bool, Key(SWITCH, NOTHING, free, A_PUSHED_REFERENCE, example=True)] = False


def needs_length_reward(name: str) -> Need:
    """Return the need of a key that adjusts one length reward."""
    assert name in LENGTH_REWARDS
    return needs("length_reward", value=name)


@dataclass
class TaskKeys:
    """
    The task of a recipe, beside TRL's [`~trl.ScriptArguments`].

    Args:
        task (`str`, *optional*, defaults to `"reverse_digits"`):
            Name of a task, see `trl-prorl tasks list`.
        task_level (`int`, *optional*):
            Its difficulty; `None` is the task's own default.
        task_options (`dict` or `str`, *optional*):
            Further options of the task, on the command line as JSON.
        task_seed (`int`, *optional*, defaults to `0`):
            The seed by which rows are drawn.
        train_rows (`int`, *optional*):
            Training prompts; `None` is all that a dataset has.
        eval_rows (`int`, *optional*, defaults to `64`):
            Validation prompts, used if `eval_strategy` asks for evaluation.
        length_reward (`str`, *optional*):
            A second reward, for the length of completions in tokens, beside the task's (`reward_weights` weighs the
            two): `"cosine"` (from 0 for an empty completion down to `length_least` for one of
            `max_completion_length`), `"target"` (−`length_cost` for each token off `length_target`) or `"overlong"`
            (TRL's soft punishment in the last `length_margin` tokens).
        length_least (`float`, *optional*, defaults to `-1.0`):
            `length_reward: cosine`: the reward of a completion of `max_completion_length`.
        length_on (`int`, *optional*, defaults to `1`):
            `length_reward: cosine` is on for this many optimizer steps, then off for `length_off`, and so on.
        length_off (`int`, *optional*, defaults to `0`):
            Optimizer steps for which `length_reward: cosine` is off in between. 0: it is always on.
        length_target (`int`, *optional*):
            `length_reward: target`: the length to aim for, in tokens; required.
        length_cost (`float`, *optional*, defaults to `0.0003`):
            `length_reward: target`: the cost of each token off `length_target`.
        length_margin (`int`, *optional*):
            `length_reward: overlong`: how many of the last tokens of `max_completion_length` are punished; required.
        thinking_budget (`int`, *optional*):
            Tokens after which a completion is interrupted and asked for its answer; see
            [`~trl_prorl.rollout.thinking`]. Needs room for `thinking_text` and `thinking_answer_tokens` in
            `max_completion_length`; not with `use_vllm`.
        thinking_text (`str`, *optional*, defaults to `"\\n\\nFinal answer: "`):
            The text that asks for it.
        thinking_answer_tokens (`int`, *optional*, defaults to `32`):
            Tokens that remain for it.
    """

    task: Annotated[str, Key(ELSEWHERE, NOTHING, applies)] = "reverse_digits"
    task_level: Annotated[int | None, Key(ELSEWHERE, NOTHING, applies)] = None
    task_options: Annotated[dict | str | None, Key(ELSEWHERE, NOTHING, applies)] = None
    task_seed: Annotated[int, Key(ELSEWHERE, NOTHING, applies)] = 0
    train_rows: Annotated[int | None, Key(ELSEWHERE, NOTHING, applies)] = None
    eval_rows: Annotated[int, Key(ELSEWHERE, NOTHING, applies)] = 64

    length_reward: Annotated[str | None, Key(one_of(*LENGTH_REWARDS), NOTHING, applies)] = None
    length_least: Annotated[float, dependent(FINITE, needs_length_reward("cosine"), -0.5)] = -1.0
    length_on: Annotated[int, dependent(whole(1), needs_length_reward("cosine"), 100)] = 1
    length_off: Annotated[int, dependent(whole(0), needs_length_reward("cosine"), 500)] = 0
    length_target: Annotated[int | None, dependent(whole(1), needs_length_reward("target"), 200)] = None
    length_cost: Annotated[float, dependent(NOT_NEGATIVE, needs_length_reward("target"), 0.001)] = 0.0003
    length_margin: Annotated[int | None, dependent(whole(1), needs_length_reward("overlong"), 64)] = None

    thinking_budget: Annotated[int | None, Key(whole(1), NOTHING, applies)] = None
    thinking_text: Annotated[str, dependent(TEXT, needs("thinking_budget"), "Answer: ")] = "\n\nFinal answer: "
    thinking_answer_tokens: Annotated[int, dependent(whole(1), needs("thinking_budget"), 16)] = 32


KEYS = declared(ProlongedKeys)
TASK_KEYS = declared(TaskKeys)
TRIGGER_KEYS = tuple(name for name, key in KEYS.items() if key.effect is RESET)
FAST = {name: key.fast for name, key in KEYS.items() if key.fast is not None}
# Keys of ours whose values on and off YAML reads as true and false.
BARE_WORDS = ("pack_groups", "compact_generation")
# Keys of TRL and transformers on which no number of a run depends: where things are written, shown and sent, and how
# long to wait for them. Model and data are told apart by content, in checkpoint/identity.py.
FREE_UPSTREAM_KEYS = (
    "output_dir logging_strategy logging_steps logging_first_step log_on_each_node logging_nan_inf_filter log_level "
    "log_level_replica disable_tqdm report_to run_name project trackio_space_id trackio_bucket_id "
    "trackio_static_space_id save_only_model save_strategy save_steps save_on_each_node save_total_limit "
    "enable_jit_checkpoint push_to_hub hub_token hub_private_repo hub_model_id hub_strategy hub_always_push "
    "hub_revision dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers "
    "dataloader_prefetch_factor dataloader_multiprocessing_context skip_memory_metrics resume_from_checkpoint "
    "local_rank do_train do_eval do_predict ddp_timeout log_completions log_multimodal num_completions_to_print "
    "log_unique_prompts log_completions_hub_repo include_num_input_tokens_seen "
    "restore_callback_states_from_checkpoint vllm_server_base_url vllm_server_host vllm_server_port "
    "vllm_server_timeout vllm_group_port model_name_or_path dataset_name"
).split()
FREE_KEYS = {name for name, key in (KEYS | TASK_KEYS).items() if key.resume is free} | {*FREE_UPSTREAM_KEYS}


def read_bare_word(value: Any) -> Any:
    """Make text again of a bare on or off."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return value


def switched_on_by_fast(given: Collection[str], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys to which `fast` gives a value: those at their defaults that were not set by hand."""
    found = {}
    for key, value in FAST.items():
        if key not in given and values[key] == KEYS[key].default:
            found[key] = value
    return found


def effects(value_of: ValueOf) -> Effect:
    """Combine what all keys of a configuration change, given the value of each."""
    together = NOTHING
    for name, key in KEYS.items():
        together |= key.effect_of(name, value_of)
    return together


# Keys of other versions' recipes, and what to write instead.
RENAMED = {
    "torch_dtype": "write dtype",
    "lr": "write learning_rate",
    "overwrite_output_dir": "leave it out; a folder that holds a run is never overwritten",
    "evaluation_strategy": "write eval_strategy",
    "max_prompt_length": "leave it out; prompts are never cut",
}
