"""
The keys. Each is declared once: type, default, [`Key`] and, in the docstring, its description. It imports nothing
slow, because command lines are checked before torch is imported.
"""

import logging
import math
import operator
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from enum import Flag, auto
from numbers import Integral, Real
from types import NoneType
from typing import Annotated, Any, get_args, get_type_hints

from .anchors import ANCHOR_KEYS, ANCHORS
from .extras.length_rewards import LENGTH_REWARDS
from .supported import ADVANTAGES, KL_ESTIMATORS, TRUST_REGIONS
from .text import cut, nearest
from .treatments import names_with_alpha


logger = logging.getLogger(__name__)

Values = Mapping[str, Any]  # keys of a configuration, possibly incomplete


class Effect(Flag):
    """Effect of a key on TRL's training if it is not at its default."""

    NOTHING = 0  # none; it observes, or is an option of another key
    STEP = auto()  # results or forward passes of a step
    TERM = auto()  # adds a KL term
    KL = auto()  # the computation of KL terms, including TRL's own
    BOUNDARY = auto()  # weights or ranks, before a generation batch
    RESET = auto()  # requests resets


@dataclass(frozen=True)
class Requirement:
    """
    Another key that a key requires.

    Attributes:
        is_met (`Callable[[Values], bool]`): Returns whether the other key is set.
        names (`str`): The other key, or several if one of them is enough.
    """

    is_met: Callable[[Values], bool]
    names: str


def is_on(value: Any) -> bool:
    """Return whether a value is not `None`, 0, `False` or `"off"`."""
    return value not in (None, 0, "off")


def switched_on(changed: Mapping[str, list[Any]], key: str) -> bool:
    """Return whether a key was off and is on now, given `[then, now]`."""
    then, now = changed.get(key, (None, None))
    return is_on(now) and not is_on(then)


def switched_off(changed: Mapping[str, list[Any]], key: str) -> bool:
    then, now = changed.get(key, (None, None))
    return is_on(then) and not is_on(now)


def needs(*keys: str, value: Any = None) -> Requirement:
    """Make a [`Requirement`]: one of the keys must be on, or have the value."""

    def is_met(values: Values) -> bool:
        given = [values.get(key) for key in keys]
        return any(map(is_on, given)) if value is None else value in given

    names = " or ".join(keys)
    if value is not None:
        names = f"{names}: {value}"
    return Requirement(is_met, names)


WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    str: "text",
    dict: "a mapping",
    list[str]: "a list of names",
}
COMPARE = {">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt}


def fits(value: Any, kind: Any) -> bool:
    """Return whether a value has a type of [`WORDS`]. Numbers may be NumPy's; a bool is not a number."""
    if kind in (int, float):
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        is_bounded = is_number and abs(value) < (2**63 if isinstance(value, int) else math.inf)
        return is_bounded and (kind is float or value == int(value))
    if kind == list[str]:
        return isinstance(value, list) and value != [] and all(isinstance(name, str) for name in value)
    return isinstance(value, kind)


def plain_number(value: Any, kinds: Collection[Any]) -> Any:
    """Convert a number of one of the types to Python's own, which JSON supports; return another value unchanged."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return value
    return int(value) if isinstance(value, Integral) or float not in kinds else float(value)


@dataclass(frozen=True)
class Key:
    """
    Properties of a key in addition to type, default and docstring: `name: Annotated[TYPE, Key(...)] = DEFAULT`.

    Attributes:
        choices (`tuple[str, ...]`, *optional*): All allowed names.
        ge, gt, le, lt (`float`, *optional*): Bounds of a number: >=, >, <=, <.
        changes (`Effect`, *optional*): Its effect on TRL's training.
        needs (`Requirement`, *optional*): The key that it requires.
        free (`bool`, *optional*): Whether a resume may change it, because no result of a run depends on it.
        label (`str`, *optional*): Its form in the names of configurations in a report; `None`: `key=value`.
        fast (`Any`, *optional*): Its value with `fast`.
        default (`Any`), types (`tuple`): Default and types of the field, set by [`declared`].
    """

    choices: tuple[str, ...] = ()
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    changes: Effect = Effect.NOTHING
    needs: Requirement | None = None
    free: bool = False
    label: str | None = None
    fast: Any = None
    default: Any = None
    types: tuple[Any, ...] = ()

    def error_for(self, name: str, value: Any) -> str | None:
        """Return the error for an invalid value; `None` for a valid one."""
        if value is None and NoneType in self.types:
            return None
        if self.choices:
            names = (None, *self.choices) if NoneType in self.types else self.choices
            return None if value in names else f"{name}={value!r} must be one of {', '.join(map(str, names))}."
        kinds = [kind for kind in self.types if kind is not NoneType]
        limits = {">=": self.ge, ">": self.gt, "<=": self.le, "<": self.lt}
        bounds = {sign: bound for sign, bound in limits.items() if bound is not None}
        has_kind = any(fits(value, kind) for kind in kinds)
        if has_kind and all(COMPARE[sign](value, bound) for sign, bound in bounds.items()):
            return None
        words = " or ".join(WORDS[kind] for kind in kinds)
        range_of = " and ".join(f"{sign} {bound:g}" for sign, bound in bounds.items())
        return f"{name}={value!r} must be {f'{words} {range_of}'.strip()}."


def declared(cls: type) -> dict[str, Key]:
    """Return the [`Key`] of each field of a dataclass, by name."""
    keys = {}
    for name, hint in get_type_hints(cls, include_extras=True).items():
        kind, key = get_args(hint)
        keys[name] = replace(key, default=getattr(cls, name), types=get_args(kind) or (kind,))
    return keys


def check_values(configuration: Any, keys: Mapping[str, Key]) -> None:
    """Raise `ValueError` for the first invalid value of a dataclass, and convert numbers to Python's own."""
    for name, key in keys.items():
        value = getattr(configuration, name)
        error = key.error_for(name, value)
        if error is not None:
            raise ValueError(error)
        setattr(configuration, name, plain_number(value, key.types))


def refuse_text(configuration: Any) -> None:
    """Raise `ValueError` for text in a field of a dataclass whose type is a number, as in `learning_rate="1e-5"`."""
    for field in fields(configuration):
        kinds = set(get_args(field.type)) or {field.type}
        value = getattr(configuration, field.name)
        if isinstance(value, str) and kinds & {int, float} and str not in kinds:
            raise ValueError(f"{field.name}={value!r} is text. Set {field.name} to a number, without quotation marks.")


def drop_unused(configuration: Any, requirements: Mapping[str, Requirement]) -> list[str]:
    """
    Set the keys of a dataclass that have no effect to their defaults, so that `beta: 0` ablates any recipe. Options of
    a reset keep their values: a script may pass triggers of its own.

    Returns `list[str]`: Each key with its value and what it requires.
    """
    defaults = {field.name: field.default for field in fields(configuration)}
    unused = []
    for name, requirement in requirements.items():
        value = getattr(configuration, name)
        if value == defaults[name] or requirement.is_met(vars(configuration)):
            continue
        unused.append(f"{name}={value!r} (needs {requirement.names})")
        if requirement is not A_RESET:
            setattr(configuration, name, defaults[name])
    return unused


def warn_unused(unused: list[str]) -> None:
    if unused and os.environ.get("RANK", "0") == "0":
        logger.warning("These keys have no effect: %s.", "; ".join(unused))


OFF_ON_AUTO = ("off", "on", "auto")
AN_ANCHOR = replace(needs(*ANCHOR_KEYS), names="beta (such as 0.3), beta_old or beta_base")
IN_LOSS = Requirement(
    lambda values: AN_ANCHOR.is_met(values) and values.get("kl_in") != "reward",
    "a KL in the loss (beta, beta_old or beta_base, with kl_in: loss)",
)
IN_REWARD = needs(*(anchor.key for anchor in ANCHORS if anchor.works_in_reward))
AN_EVALUATION = needs("ref_reset_stall", "ref_reset_drop", "stop_stall")
RANK_GROWTH = needs("lora_growth_every")
COSINE = needs("length_reward", value="cosine")
# a script may have registered treatments
AN_ALPHA = Requirement(lambda values: values.get("optimizer_reset") in names_with_alpha(), "optimizer_reset: soft")


def effects(values: Values) -> Effect:
    together = Effect.NOTHING
    for name, key in KEYS.items():
        if values.get(name) not in (None, key.default):
            together |= key.changes
    if values.get("loss_mode") == "no_ratio":
        together |= Effect.KL
    if values.get("guard_gap_action") == "reset":
        together |= Effect.RESET
    return together


A_RESET = Requirement(
    lambda values: Effect.RESET in effects(values),
    "ref_reset_every or another trigger (if all triggers are your own, set ref_reset_every above max_steps)",
)


@dataclass
class ProlongedKeys:
    r"""
    Configuration of [`ProRLTrainer`]: all keys of [`~trl.GRPOConfig`], and KL penalties and resets for prolonged RL.

    With all keys at their defaults, training is TRL's, bit for bit. Variant A is `beta > 0` (TRL's KL to the reference
    model) with resets of the reference. B is `beta = 0` and `beta_old > 0`, a *different objective* that needs no
    reference model. C is A with `optimizer_reset`.

    Example:

    ```python
    >>> from trl_prorl import ProRLConfig

    >>> common = {"learning_rate": 1e-5, "bf16": False}  # TRL's default, bf16=True, needs a GPU
    >>> no_kl = ProRLConfig("runs/no-kl", fast=True, **common)
    >>> fixed_reference = ProRLConfig("runs/fixed", beta=0.3, **common)
    >>> moving_reference = ProRLConfig("runs/A", beta=0.3, ref_reset_every=200, **common)
    >>> old_policy = ProRLConfig("runs/B", beta_old=0.3, num_iterations=2, **common)
    >>> optimizer_reset = ProRLConfig("runs/C", beta=0.3, ref_reset_every=200, optimizer_reset="hard", **common)
    ```

    Parameters:
        > KL penalties

        beta_old (`float`, *optional*, defaults to `0.0`):
            Coefficient of the KL to π_old, the policy that sampled the batch (variant B). Needs no extra forward pass.
            Acts only if samples are used after an update: with `num_iterations` > 1, or if a generation batch is split
            over several optimizer steps.
        beta_base (`float`, *optional*, defaults to `0.0`):
            Coefficient of the KL to the starting model, the policy at step 0. Costs a forward pass.
        base_anchor_every (`int`, *optional*, defaults to `1`):
            Apply `beta_base` only to every N-th generation batch, which saves the other forward passes. The
            coefficient is not scaled up.
        ref_model (`str`, *optional*):
            Teacher: another model as the fixed reference of `beta`, `kl_in`, `kl_estimator` and `kl_target`. A Hub
            name, a folder (a run with LoRA, too), or `embedded:NAME`; in a script a loaded model, as
            `ProRLTrainer(ref_model=model)`. It needs the policy's vocabulary; size and architecture may differ. See
            docs/teacher.md. `None`: the starting model.
        kl_estimator (`str`, *optional*, defaults to `"k3"`):
            Estimator of every KL penalty: `"k1"`, `"k2"` or `"k3"`. The gradient of k3 is exact with TRL's
            `use_bias_correction_kl: true`. docs/methods.md lists the gradient of each combination.
        kl_clamp (`float`, *optional*):
            Bound on the KL estimate of each token, in nats, before the ratio of `use_bias_correction_kl`. Tokens
            beyond it get no KL gradient, and `kl_clamped` counts them. Logged KLs, `ref_reset_kl` and `kl_target` use
            the KL without bound; a logged KL that overflows is omitted. `None`: no bound.
        kl_in (`str`, *optional*, defaults to `"loss"`):
            Place of the KL to the reference and to the starting model. `"loss"`: a term of the loss, in every update.
            `"reward"`: coefficient · Σ (log π_old − log π_ref) over its tokens is subtracted from each completion's
            reward (k1, as in REINFORCE++, arXiv 2501.03262); this needs an `advantage_estimator` and a forward pass of
            π_old. Nothing is subtracted for completions that `mask_truncated_completions` excludes.
        ref_compute (`str`, *optional*, defaults to `"cached"`):
            `"cached"`: the reference scores each generation batch once. `"naive_epoch"`: in every inner pass, with the
            same result, to compare costs.
        kl_target (`float`, *optional*):
            Target of the KL to the primary anchor (`beta`, else `beta_old`, else `beta_base`), in nats per token; its
            coefficient is adapted (arXiv 1909.08593). `None`: a fixed coefficient.
        kl_horizon (`int`, *optional*, defaults to `100`):
            Optimizer steps in which `kl_target` changes the coefficient by about 20 %, if the KL is at least 20 % off.

        > Resets of the reference and the optimizer

        ref_reset_every (`int`, *optional*, defaults to `0`):
            Reset the reference to the policy every N optimizer steps, before the next generation batch. ProRL v2 uses
            200 to 500. 0: never.
        ref_reset_kl (`float`, *optional*):
            Reset when the KL to the reference (`kl_ref`, in nats per token) exceeds this value. `None`: never.
        ref_reset_kl_window (`int`, *optional*, defaults to `1`):
            Optimizer steps over which `ref_reset_kl` averages the KL.
        ref_reset_stall (`int`, *optional*, defaults to `0`):
            Reset after this many evaluations without an improvement of `ref_reset_metric` over its best value. 0:
            never.
        ref_reset_drop (`float`, *optional*):
            Reset when `ref_reset_metric` is worse than its best value by more than this, in its unit. `None`: never.
        ref_reset_metric (`str`, *optional*, defaults to `"eval_reward"`):
            Evaluation metric of `ref_reset_stall`, `ref_reset_drop` and `stop_stall`: `eval_reward`; `eval_pass@1`,
            `eval_pass@2`, `eval_pass@4` … up to the number of completions per prompt, by the task's `verify`;
            `eval_pass@1/TASK` for one of several tasks; or any other evaluation metric.
        ref_reset_min_delta (`float`, *optional*, defaults to `0.0`):
            Smallest change of `ref_reset_metric` that counts as an improvement.
        ref_reset_cooldown (`int`, *optional*, defaults to `0`):
            Optimizer steps from a reset to the first after which a trigger may fire again. Resets by
            `guard_gap_action` or `request_reset` do not wait.
        ref_reset_mix (`float`, *optional*, defaults to `1.0`):
            The reference after a reset is `mix` · policy + (1 − `mix`) · reference. 1: a copy of the policy. Between 0
            and 1: averaged parameters; with LoRA the factors A and B are averaged, which is not the average of their
            products. In bf16, changes of a parameter by less than about 0.2 % are lost to rounding. 0: only the
            optimizer is reset. A small value with `ref_reset_every: 1` is the soft update of TR-DPO (arXiv
            2404.09656), once per generation batch.
        optimizer_reset (`str`, *optional*, defaults to `"keep"`):
            Treatment of the optimizer state (Adam's moments) at a reset. `"keep"`: none. `"hard"`: clear moments and
            step count, restart the learning-rate schedule, and set an AMP scaler to its initial scale. `"soft"`:
            multiply the moments by `optimizer_reset_alpha`. `"asym"`: clear only the first moment. `"step"`: clear
            only the step count (Adam-Rel, arXiv 2412.17113; Adam-type optimizers only). `"scale(F, G)"`: multiply the
            first moment by F and the second by G, each in [0, 1]; `"scale(F, G, step)"` also clears the step count
            (with Adafactor only if G is 0). docs/methods.md gives the size of the next updates.
        optimizer_reset_alpha (`float`, *optional*, defaults to `0.1`):
            Factor of `optimizer_reset: soft`, in (0, 1]. The next updates are first smaller (0.6 of the usual size at
            0.1, if gradients agree), then larger (up to 2.9 times).
        optimizer_reset_schedule (`str`, *optional*):
            Effect of a reset on the learning-rate schedule: `"keep"` or `"restart"`. `None`: restart with
            `optimizer_reset: hard`, otherwise keep.
        optimizer_reset_rewarmup_steps (`int`, *optional*, defaults to `0`):
            Updates after a reset over which the learning rate rises linearly to the schedule's value.
        elastic_reset_every (`int`, *optional*, defaults to `0`):
            Elastic Reset (arXiv 2312.07551) every N optimizer steps, before the next generation batch: the policy
            becomes its moving average, and the average becomes the initial policy. 0: never.
        elastic_ema (`float`, *optional*, defaults to `0.99`):
            Decay of the moving average of `elastic_reset_every`, per optimizer step.

        > LoRA growth

        lora_growth_every (`int`, *optional*, defaults to `0`):
            Add ranks to the LoRA adapters of the policy and its frozen copies every N optimizer steps, before the next
            generation batch. Their outputs do not change, and Adam keeps its state of the old ranks. 0: never. See
            docs/long-runs.md.
        lora_growth_step (`int`, *optional*, defaults to `4`):
            Ranks added by each growth.
        lora_growth_max_rank (`int`, *optional*, defaults to `64`):
            Rank at which growth stops.

        > Speed and memory

        fast (`bool`, *optional*, defaults to `False`):
            Switch on every acceleration that changes results only by rounding, or that samples from the same
            distribution (in bf16, up to rounding): `reuse_old_logps: true`, `pack_groups: auto` and
            `compact_generation: auto`. A key that you set yourself keeps its value, even its default. (TRL's
            `TrlParser` passes all keys, so with it only other values are kept.) Accelerations that a run does not
            support are skipped; a line at startup and `env.json` give the reason. It also skips rows without gradient
            (`skip_zero_rows`), so `entropy` is a mean over the other rows.
        reuse_old_logps (`bool`, *optional*, defaults to `False`):
            Take π_old's log-probabilities from the first inner pass instead of a separate forward pass. The forward
            pass stays, with the reason in `env.json`, if an update comes before the end of that pass
            (`gradient_accumulation_steps` is no multiple of `steps_per_generation`), or if `kl_in: reward` or a
            correction for vLLM needs it earlier.
        pack_groups (`str`, *optional*, defaults to `"off"`):
            `"on"`: every scoring forward pass computes each prompt once for all its completions, without padding. Each
            update uses the same rows as in TRL; rows of a group are moved into one micro-batch as far as possible.
            Before the first batch the scores of some rows are compared with the policy's own forward. A difference, or
            a model (docs/supported.md) or task that cannot be packed, raises an error. `"auto"`: TRL's computation
            instead, with the reason in `env.json`.
        compact_generation (`str`, *optional*, defaults to `"off"`):
            `"on"`: generation computes each prompt once for all its completions, drops finished completions, and
            samples from a copy of the policy with LoRA merged, which is not possible for quantised weights, nor for
            experts with adapters of two parameters (as by `target_modules: all-linear`). Before the first batch the
            log-probabilities of some samples are compared with the policy's own forward. A difference, or a model
            (docs/supported.md) or setting that does not support it, raises an error. `"auto"`: transformers'
            `generate` instead, with the reason in `env.json`.
        compact_max_rows (`int`, *optional*):
            Maximum completions that are decoded at once, to limit memory; groups that fit stay together. Sampled
            tokens depend on it. `trl-prorl preflight --all` prints how many fit. `None`: the whole generation batch.
        vllm_enable_lora (`bool`, *optional*, defaults to `False`):
            Pass the adapter to vLLM as a LoRA request; vLLM keeps its own base weights. `False`: all weights are sent,
            with the adapter merged.
        skip_zero_rows (`bool`, *optional*):
            Skip rows without gradient: those of groups with equal rewards, if no KL penalty acts on them. The other
            rows are packed without them; gradient and normalisation do not change. `rows_skipped` counts them. Logged
            means of the policy (`entropy`, `mean_abs_dlogp`, `kl_old`) are over the tokens of the computed rows; to
            `vespo/phi_seq_mean` a skipped row adds 1, to `clip_region_mean` nothing. `None`: with `fast`, unless
            `entropy_floor` needs the entropy of all rows, a script's triggers may, or, with `kl_in: reward`,
            `kl_target` or `ref_reset_kl` need their KL.
        drop_zero_rows (`bool`, *optional*, defaults to `False`):
            Apply no KL penalty to rows with zero advantage, so that `skip_zero_rows` can skip them. The normalisation
            still counts them. *This changes the objective*: the KL no longer acts on prompts that are always or never
            solved; with `max` and `best_of_group` a KL in the loss acts only on the best rows.

        > Sampling, advantages and loss

        dynamic_sampling_rounds (`int`, *optional*, defaults to `0`):
            Replace groups with equal task rewards, which give no gradient, by groups of further prompts, in at most
            this many rounds (DAPO, arXiv 2503.14476). The task's reward is the first function with a weight and a
            reward for the group; list length rewards, which differ for any two lengths, after it. Further prompts come
            in a shuffled order of their own, so a prompt can occur twice in a batch (not with `prompt_pool`).
            Generated tokens include replaced groups; logged rewards are those of the first round. 0: off.
        prompt_pool (`bool`, *optional*, defaults to `False`):
            Select the prompts of each generation batch by their earlier results: unseen prompts first, then those that
            wait longest. A prompt rests if its group had equal task rewards (see `dynamic_sampling_rounds`), or if
            its pass rate has reached `prompt_pool_retire`: for as many groups as there are prompts, twice as long each
            consecutive time, up to 8 times as long.
        prompt_pool_retire (`float`, *optional*, defaults to `0.9`):
            Pass rate at which a prompt counts as solved: the share of correct completions, of which the newest group
            counts half. Without a verifier only prompts with equal rewards in their group rest.
        advantage_estimator (`str`, *optional*):
            Advantages from rewards r, in place of TRL's `scale_rewards`. `"raw"`: r. `"centered"`: r − group mean.
            `"group_normalized"`: that, divided by the group's standard deviation. `"batch_normalized"`: centered,
            divided by its standard deviation in the batch. `"global_normalized"`: r − batch mean, divided by the
            batch's standard deviation (REINFORCE++). `"rloo"`: r − mean of the other completions of the group.
            `"max"`: r − group mean for the best completion of a group, 0 for the others. `"best_of_group"`: best of
            the group − best of the others. With `"global_normalized"` and `"raw"`, `num_generations` may be 1. `None`:
            TRL's own.
        loss_mode (`str`, *optional*):
            Importance ratio in the policy gradient: `"no_ratio"` (A ∇log π, as if every sample were fresh),
            `"unclipped"` (ratio · A) or `"clipped"`. KL penalties keep their own ratio, and TRL's
            `off_policy_mask_threshold` and its correction for vLLM still apply. `None`: TRL's clipped ratio.
        trust_region (`str`, *optional*):
            Mask tokens by their distance from the policy that sampled (vLLM's log-probabilities, else π_old), in place
            of TRL's clip: `"dppo_tv"` and `"dppo_kl"` (DPPO, arXiv 2602.04879v3, eq. 12 to 14), `"ipo"` (prime-rl
            since its PR 3418, without a KL), `"m2po"` (M2PO, arXiv 2510.01161v2, eq. 4 and 5, over the tokens of a
            micro-batch). Masked tokens get no policy gradient; KL penalties still act on them. `clip_region_mean`
            counts them. `None`: TRL's clip. See docs/long-runs.md.
        trust_region_threshold (`float`, *optional*):
            Threshold of `trust_region`: a change of a token's probability (`dppo_tv`, `ipo`), a KL in nats (`dppo_kl`)
            or a mean squared log-ratio (`m2po`). `None`: 0.15 for `dppo_tv`, 0.05 for `dppo_kl`, 0.3 for `ipo`, 0.04
            for `m2po`.

        > Guards and recovery

        entropy_floor (`float`, *optional*):
            Mean entropy, in nats per token, below which the policy counts as collapsed. `None`: not checked.
        entropy_patience (`int`, *optional*, defaults to `10`):
            Consecutive optimizer steps below `entropy_floor` that count as an entropy collapse, an event in
            `events.jsonl`.
        entropy_stop (`bool`, *optional*, defaults to `False`):
            Stop the run at an entropy collapse, with a checkpoint.
        guard_gap (`float`, *optional*):
            Detect reward hacking: fires when accuracy has fallen by more than this from its highest value, while the
            reward is no lower than it was then. `accuracy` is the share of completions accepted by `verify` or a
            reward function's `batch_verifier`. Both are averages over 40 optimizer steps, so the run must be longer.
            Does not work with `length_off` or `prompt_pool`. `None`: off.
        guard_gap_action (`str`, *optional*, defaults to `"event"`):
            Action of `guard_gap`: `"event"` (a warning, and a line in `events.jsonl`), `"reset"` (also request a reset
            of the reference) or `"stop"` (end the run, with a checkpoint).
        stop_stall (`int`, *optional*, defaults to `0`):
            Stop the run after this many evaluations without an improvement of `ref_reset_metric` over its best value.
            Each evaluation with a new best value saves a checkpoint, and the best one is kept and named. With
            `ref_reset_stall` a reset comes first: evaluations count from the first reset after the last improvement.
            0: never.
        nonfinite (`str`, *optional*, defaults to `"stop"`):
            Action at NaN or infinity in a reward, the loss or a gradient. `"stop"`: end the run before the next
            checkpoint. `"skip"`: skip that optimizer step (it still counts, and the learning-rate schedule advances)
            and count it in `nonfinite_skips`. Weights that are not finite always stop the run.
        reward_timeout (`float`, *optional*, defaults to `600.0`):
            Time limit for one call of a reward function, which scores a batch, in seconds. `None`: no limit.
        allow_config_change (`bool`, *optional*, defaults to `False`):
            Allow a resume to change keys that affect the run. The change is written to `events.jsonl`.

        > Log files and the Hub

        overwrite (`bool`, *optional*, defaults to `False`):
            Whether a new run may use the folder of an earlier one, which is renamed to `NAME.1` (`NAME.2` …). Without
            it such an `output_dir` is an error.
        log_update_norm (`bool`, *optional*, defaults to `False`):
            Log the norm of every update of the trained parameters. Costs a copy of those parameters.
        hub_push_reference (`bool`, *optional*, defaults to `False`):
            With `push_to_hub`, also push the adapter `ref` of a moving reference, into the folder `ref`. See
            docs/publishing.md.
    """

    beta_old: Annotated[float, Key(ge=0, changes=Effect.TERM, label="β_old={}")] = 0.0
    beta_base: Annotated[float, Key(ge=0, changes=Effect.TERM, label="β_base={}")] = 0.0
    base_anchor_every: Annotated[int, Key(ge=1, needs=needs("beta_base"))] = 1
    ref_model: Annotated[str | None, Key(changes=Effect.STEP, needs=needs("beta"), label="teacher {}")] = None
    kl_estimator: Annotated[str, Key(KL_ESTIMATORS, changes=Effect.KL, needs=IN_LOSS)] = "k3"
    kl_clamp: Annotated[float | None, Key(gt=0, changes=Effect.KL, needs=IN_LOSS)] = None
    kl_in: Annotated[str, Key(("loss", "reward"), changes=Effect.KL, needs=IN_REWARD, label="KL in {}")] = "loss"
    ref_compute: Annotated[str, Key(("cached", "naive_epoch"), changes=Effect.STEP, needs=needs("beta"))] = "cached"
    kl_target: Annotated[float | None, Key(gt=0, changes=Effect.STEP, needs=AN_ANCHOR, label="KL target {}")] = None
    kl_horizon: Annotated[int, Key(ge=1, needs=needs("kl_target"))] = 100

    ref_reset_every: Annotated[int, Key(ge=0, changes=Effect.RESET, label="K={}")] = 0
    ref_reset_kl: Annotated[float | None, Key(gt=0, changes=Effect.RESET, label="KL>{}")] = None
    ref_reset_kl_window: Annotated[int, Key(ge=1, needs=needs("ref_reset_kl"), label="over {} steps")] = 1
    ref_reset_stall: Annotated[int, Key(ge=0, changes=Effect.RESET, label="stall {}")] = 0
    ref_reset_drop: Annotated[float | None, Key(gt=0, changes=Effect.RESET, label="drop {}")] = None
    ref_reset_metric: Annotated[str, Key(needs=AN_EVALUATION, label="of {}")] = "eval_reward"
    ref_reset_min_delta: Annotated[float, Key(ge=0, needs=AN_EVALUATION)] = 0.0
    ref_reset_cooldown: Annotated[int, Key(ge=0, needs=A_RESET, label="cooldown {}")] = 0
    ref_reset_mix: Annotated[float, Key(ge=0, le=1, needs=A_RESET, label="mix {}")] = 1.0
    optimizer_reset: Annotated[str, Key(needs=A_RESET, label="{}")] = "keep"
    optimizer_reset_alpha: Annotated[float, Key(gt=0, le=1, needs=AN_ALPHA, label="{}")] = 0.1
    optimizer_reset_schedule: Annotated[str | None, Key(("keep", "restart"), needs=A_RESET)] = None
    optimizer_reset_rewarmup_steps: Annotated[int, Key(ge=0, needs=A_RESET)] = 0
    elastic_reset_every: Annotated[
        int,
        Key(
            ge=0,
            changes=Effect.BOUNDARY,
            label="every {}",
        ),
    ] = 0
    elastic_ema: Annotated[float, Key(ge=0, lt=1, needs=needs("elastic_reset_every"), label="EMA {}")] = 0.99

    lora_growth_every: Annotated[
        int,
        Key(
            ge=0,
            changes=Effect.BOUNDARY,
            label="growth every {}",
        ),
    ] = 0
    lora_growth_step: Annotated[int, Key(ge=1, needs=RANK_GROWTH, label="by {} ranks")] = 4
    lora_growth_max_rank: Annotated[int, Key(ge=1, needs=RANK_GROWTH, label="up to {}")] = 64

    fast: Annotated[bool, Key()] = False
    reuse_old_logps: Annotated[bool, Key(changes=Effect.STEP, fast=True)] = False
    pack_groups: Annotated[str, Key(OFF_ON_AUTO, changes=Effect.STEP, fast="auto")] = "off"
    compact_generation: Annotated[str, Key(OFF_ON_AUTO, changes=Effect.STEP, fast="auto")] = "off"
    compact_max_rows: Annotated[int | None, Key(ge=1, needs=needs("compact_generation"))] = None
    vllm_enable_lora: Annotated[bool, Key(needs=needs("use_vllm"))] = False
    skip_zero_rows: Annotated[bool | None, Key(changes=Effect.STEP)] = None
    drop_zero_rows: Annotated[bool, Key(changes=Effect.KL, needs=AN_ANCHOR)] = False

    dynamic_sampling_rounds: Annotated[int, Key(ge=0, changes=Effect.STEP)] = 0
    prompt_pool: Annotated[bool, Key(changes=Effect.STEP)] = False
    prompt_pool_retire: Annotated[float, Key(gt=0, le=1, needs=needs("prompt_pool"))] = 0.9
    advantage_estimator: Annotated[str | None, Key(tuple(ADVANTAGES), changes=Effect.STEP)] = None
    loss_mode: Annotated[str | None, Key(("no_ratio", "unclipped", "clipped"), changes=Effect.STEP, label="{}")] = None
    trust_region: Annotated[str | None, Key(tuple(TRUST_REGIONS), changes=Effect.STEP, label="{}")] = None
    trust_region_threshold: Annotated[float | None, Key(gt=0, needs=needs("trust_region"), label="at {}")] = None

    entropy_floor: Annotated[float | None, Key(gt=0)] = None
    entropy_patience: Annotated[int, Key(ge=1, needs=needs("entropy_floor"))] = 10
    entropy_stop: Annotated[bool, Key(needs=needs("entropy_floor"))] = False
    guard_gap: Annotated[float | None, Key(gt=0)] = None
    guard_gap_action: Annotated[str, Key(("event", "reset", "stop"), needs=needs("guard_gap"))] = "event"
    stop_stall: Annotated[int, Key(ge=0, label="stop at stall {}")] = 0
    nonfinite: Annotated[str, Key(("stop", "skip"))] = "stop"
    reward_timeout: Annotated[float | None, Key(gt=0, free=True)] = 600.0
    allow_config_change: Annotated[bool, Key(free=True)] = False

    overwrite: Annotated[bool, Key(free=True)] = False
    log_update_norm: Annotated[bool, Key(free=True)] = False
    hub_push_reference: Annotated[bool, Key(free=True, needs=needs("beta"))] = False


@dataclass
class TaskKeys:
    """
    The task of a recipe, in addition to TRL's [`~trl.ScriptArguments`].

    Args:
        > Task and data

        task (`str`, *optional*, defaults to `"reverse_digits"`):
            Name of the task. `trl-prorl tasks list` prints all.
        task_level (`int`, *optional*):
            Difficulty of the task. `None`: the task's default.
        task_options (`dict` or `str`, *optional*):
            Further options of the task; on the command line as JSON.
        task_seed (`int`, *optional*, defaults to `0`):
            Seed of the rows.
        train_rows (`int`, *optional*):
            Number of training prompts. `None`: all prompts of the data set; a task that generates them needs a number.
        eval_rows (`int`, *optional*, defaults to `64`):
            Number of validation prompts, if `eval_strategy` requests evaluations.

        > Your own data

        reward (`list[str]`, *optional*):
            Your own reward functions for the rows of `dataset_name`, a JSON Lines file: each `FILE.py:FUNCTION` or
            `PACKAGE.MODULE.FUNCTION`, with TRL's signature. They replace `task`, `task_level` and `task_options`.
            `--reward` may be repeated. In a YAML file, code also needs `--plugin FILE.py` on the command line.
        verify (`str`, *optional*):
            Function `verify(completion, row) -> bool`, named like a reward: whether the text of a completion is
            correct. pass@k, the accuracy and the preflight use it.

        > Length reward

        length_reward (`str`, *optional*):
            Second reward for the length of a completion, in tokens, added to the task's; `reward_weights` weights the
            two. `"cosine"`: falls from 0 for an empty completion to `length_least` at `max_completion_length`.
            `"target"`: −`length_cost` for each token away from `length_target`. `"overlong"`: TRL's soft penalty in
            the last `length_margin` tokens. `None`: off.
        length_least (`float`, *optional*, defaults to `-1.0`):
            Reward of `length_reward: cosine` for a completion of `max_completion_length`.
        length_on (`int`, *optional*, defaults to `1`):
            Optimizer steps with `length_reward: cosine`, before `length_off` steps without it; then it repeats.
        length_off (`int`, *optional*, defaults to `0`):
            Optimizer steps without `length_reward: cosine` in between. Each generation batch is either with it or
            without, so this and `length_on` must be multiples of the steps for which a batch is used. 0: always on.
        length_target (`int`, *optional*):
            Target length of `length_reward: target`, in tokens. Required.
        length_cost (`float`, *optional*, defaults to `0.0003`):
            Cost of `length_reward: target` for each token away from `length_target`.
        length_margin (`int`, *optional*):
            Tokens at the end of `max_completion_length` that `length_reward: overlong` penalises. Required.

        > Thinking budget

        thinking_budget (`int`, *optional*):
            Tokens after which a completion is interrupted and prompted for its answer. `thinking_text` and
            `thinking_answer_tokens` must also fit into `max_completion_length`. Not supported with `use_vllm`. `None`:
            off.
        thinking_text (`str`, *optional*, defaults to `"\\n\\nFinal answer: "`):
            Text that prompts for the answer. It has no loss.
        thinking_answer_tokens (`int`, *optional*, defaults to `32`):
            Maximum tokens of the answer.
    """

    task: Annotated[str, Key()] = "reverse_digits"
    task_level: Annotated[int | None, Key()] = None
    task_options: Annotated[dict | str | None, Key()] = None
    task_seed: Annotated[int, Key()] = 0
    train_rows: Annotated[int | None, Key(ge=1)] = None
    eval_rows: Annotated[int, Key(ge=0)] = 64

    reward: Annotated[list[str] | None, Key()] = None
    verify: Annotated[str | None, Key(needs=needs("reward"))] = None

    length_reward: Annotated[str | None, Key(tuple(LENGTH_REWARDS))] = None
    length_least: Annotated[float, Key(needs=COSINE)] = -1.0
    length_on: Annotated[int, Key(ge=1, needs=needs("length_off"))] = 1
    length_off: Annotated[int, Key(ge=0, needs=COSINE)] = 0
    length_target: Annotated[int | None, Key(ge=1, needs=needs("length_reward", value="target"))] = None
    length_cost: Annotated[float, Key(ge=0, needs=needs("length_reward", value="target"))] = 0.0003
    length_margin: Annotated[int | None, Key(ge=1, needs=needs("length_reward", value="overlong"))] = None

    thinking_budget: Annotated[int | None, Key(ge=1)] = None
    thinking_text: Annotated[str, Key(needs=needs("thinking_budget"))] = "\n\nFinal answer: "
    thinking_answer_tokens: Annotated[int, Key(ge=1, needs=needs("thinking_budget"))] = 32


KEYS = declared(ProlongedKeys)
TASK_KEYS = declared(TaskKeys)
REQUIREMENTS = {name: key.needs for name, key in KEYS.items() if key.needs is not None}
TASK_REQUIREMENTS = {name: key.needs for name, key in TASK_KEYS.items() if key.needs is not None}
TRIGGER_KEYS = tuple(name for name, key in KEYS.items() if key.changes is Effect.RESET)
FAST = {name: key.fast for name, key in KEYS.items() if key.fast is not None}
# Keys with which the mean reward also falls when nothing is wrong.
LOWER_THE_REWARD = ("prompt_pool", "elastic_reset_every", "length_off")
# our keys with the values on and off, which YAML reads as true and false
BARE_WORDS = tuple(name for name, key in KEYS.items() if "off" in key.choices)
# Keys of TRL and transformers that change no result: paths, display, uploads and timeouts. Models and data are
# compared by content, in identity.py.
FREE_UPSTREAM_KEYS = (
    "output_dir logging_strategy logging_steps logging_first_step log_on_each_node logging_nan_inf_filter log_level "
    "log_level_replica disable_tqdm report_to run_name project trackio_space_id trackio_bucket_id "
    "trackio_static_space_id save_only_model save_strategy save_steps save_on_each_node save_total_limit "
    "push_to_hub hub_token hub_private_repo hub_model_id hub_strategy hub_always_push hub_revision "
    "dataloader_num_workers dataloader_pin_memory dataloader_prefetch_factor "
    "dataloader_multiprocessing_context skip_memory_metrics resume_from_checkpoint "
    "local_rank do_train do_eval do_predict ddp_timeout log_completions log_multimodal num_completions_to_print "
    "log_unique_prompts log_completions_hub_repo include_num_input_tokens_seen "
    "restore_callback_states_from_checkpoint vllm_server_base_url vllm_server_host vllm_server_port "
    "vllm_server_timeout vllm_group_port model_name_or_path dataset_name"
).split()
FREE_KEYS = {name for name, key in KEYS.items() if key.free} | {*FREE_UPSTREAM_KEYS, "ref_model"}


def read_bare_word(value: Any) -> Any:
    """Convert an unquoted on or off, which YAML reads as a bool, back to text."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return value


AUTO_RESUME = "auto"  # resume_from_checkpoint: from the newest complete checkpoint, or from step 0 without one


def read_resume_word(value: Any) -> str | None:
    """Return `resume_from_checkpoint` as `"True"`, `"auto"`, a path, or `None`. YAML reads a bare true as a bool."""
    if value is None or str(value).lower() == "false":
        return None
    return {"true": "True", AUTO_RESUME: AUTO_RESUME}.get(str(value).lower(), str(value))


# keys in recipes of other versions, and their replacements
RENAMED = {
    "torch_dtype": "write dtype",
    "lr": "write learning_rate",
    "overwrite_output_dir": "write overwrite",
    "evaluation_strategy": "write eval_strategy",
    "max_prompt_length": "remove it; prompts are never truncated",
}


def cure_of(name: str, known: Iterable[str]) -> str:
    """Return the end of an error for an unknown key: its replacement, else the nearest known name."""
    return f": {RENAMED[name]}" if name in RENAMED else nearest(cut(name), known)
