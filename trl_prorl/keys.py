"""
The keys, each declared once: its type, its default, what [`Key`] says of it and, in the docstring, its meaning. Help,
the reference page, the checks of a value, the rules of a resume, the names of configurations in a report and
`ProRLConfig.is_trl` follow. Nothing is imported that takes long, because a command line asks before torch is there.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, replace
from enum import Flag, auto
from numbers import Real
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from .length_rewards import LENGTH_REWARDS
from .objective.anchors import ANCHOR_KEYS, ANCHORS
from .resets.treatments import names_with_alpha


ValueOf = Callable[[str], Any]  # the value of a key by its name, `None` for one that a configuration lacks
# The reason for which a resume cannot change a key, by its values then and now and by all keys as they are now.
ResumeRule = Callable[[Any, Any, Mapping[str, Any]], str | None]


class Effect(Flag):
    """What a key changes of TRL's training where it is not at its default."""

    NOTHING = 0  # it watches, or says how something is done that another key asks for
    STEP = auto()  # the numbers or the forwards of a step
    TERM = auto()  # it adds a KL term
    KL = auto()  # how a KL term is computed, TRL's own among them
    BOUNDARY = auto()  # weights or ranks, at a generation boundary
    RESET = auto()  # it requests resets


@dataclass(frozen=True)
class Need:
    """
    What a key has no effect without.

    Attributes:
        is_met (`Callable[[ValueOf], bool]`): Whether it is there.
        words (`str`): The keys that bring it.
    """

    is_met: Callable[[ValueOf], bool]
    words: str


def is_on(value: Any) -> bool:
    """Return whether a value is not off: not `None`, 0, `False` or `"off"`."""
    return value not in (None, 0, "off")


def switched_on(changed: Mapping[str, list[Any]], key: str) -> bool:
    """Return whether a key was off, `[then, now]`, and is not any more."""
    then, now = changed.get(key, (None, None))
    return is_on(now) and not is_on(then)


def switched_off(changed: Mapping[str, list[Any]], key: str) -> bool:
    """Return whether a key was on, `[then, now]`, and is not any more."""
    then, now = changed.get(key, (None, None))
    return is_on(then) and not is_on(now)


def needs(*keys: str, value: Any = None) -> Need:
    """Make the need of other keys: one of them has to be on, or to have the value."""

    def is_met(value_of: ValueOf) -> bool:
        if value is None:
            return any(is_on(value_of(key)) for key in keys)
        return any(value_of(key) == value for key in keys)

    words = " or ".join(keys)
    if value is not None:
        words = f"{words}: {value}"
    return Need(is_met, words)


WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    str: "text",
    dict: "a mapping",
    list[str]: "a list of names",
}


def is_number(value: Any) -> bool:
    """Return whether a value is a number, as NumPy's are; a bool is none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def fits(value: Any, kind: Any) -> bool:
    """Return whether a value is of a type that stands in [`WORDS`]."""
    if kind in (int, float):
        return is_number(value) and math.isfinite(value) and (kind is float or value == int(value))
    if kind == list[str]:
        return isinstance(value, list) and value != [] and all(isinstance(name, str) for name in value)
    return isinstance(value, kind)


@dataclass(frozen=True)
class Key:
    """
    What a field says of its key beside type, default and docstring: `name: Annotated[TYPE, Key(...)] = DEFAULT`.

    Attributes:
        choices (`tuple[str, ...]`, *optional*): All values, where they are names.
        ge, gt, le, lt (`float`, *optional*): Bounds of a number: at least, more than, at most, less than.
        changes (`Effect`, *optional*): What it changes of TRL's training.
        needs (`Need`, *optional*): What it has no effect without.
        free (`bool`, *optional*): Whether a resume may change it, because no number of a run depends on it.
        resume (`ResumeRule`, *optional*): A rule of a resume. Without one, a change acts from the checkpoint on.
        label (`str`, *optional*): Its form in the names of configurations in a report; `None`: `key=value`.
        fast (`Any`, *optional*): The value that the key `fast` gives it.
        default (`Any`), types (`tuple`): Those of the field, see [`declared`].
    """

    choices: tuple[str, ...] = ()
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    changes: Effect = Effect.NOTHING
    needs: Need | None = None
    free: bool = False
    resume: ResumeRule | None = None
    label: str | None = None
    fast: Any = None
    default: Any = None
    types: tuple[Any, ...] = ()

    def objection(self, name: str, value: Any) -> str | None:
        """Return the line that refuses a value that is wrong by itself, with the key, the value and what is right."""
        if value is None and NoneType in self.types:
            return None
        if self.choices:
            names = (None, *self.choices) if NoneType in self.types else self.choices
            return None if value in names else f"{name}={value!r} is not one of {', '.join(map(str, names))}."
        kinds = [kind for kind in self.types if kind is not NoneType]
        if any(fits(value, kind) for kind in kinds) and self._is_within(value):
            return None
        signs = {">=": self.ge, ">": self.gt, "<=": self.le, "<": self.lt}
        bounds = [f"{sign} {bound:g}" for sign, bound in signs.items() if bound is not None]
        words = " or ".join(WORDS[kind] for kind in kinds)
        return f"{name}={value!r} must be {' '.join([words, ' and '.join(bounds)]).strip()}."

    def _is_within(self, value: Any) -> bool:
        if self.ge is not None and value < self.ge:
            return False
        if self.gt is not None and value <= self.gt:
            return False
        if self.le is not None and value > self.le:
            return False
        return self.lt is None or value < self.lt


def declared(cls: type) -> dict[str, Key]:
    """
    Collect what a dataclass's own fields say, by name.

    Raises:
        `TypeError`: A field says nothing, or what it says contradicts itself.
    """
    keys = {}
    hints = get_type_hints(cls, include_extras=True)
    for field in fields(cls):
        hint = hints[field.name]
        said = [part for part in getattr(hint, "__metadata__", ()) if isinstance(part, Key)]
        if len(said) != 1:
            raise TypeError(f"{field.name}: declare it as Annotated[TYPE, Key(...)] = DEFAULT.")
        kind = hint.__origin__
        types = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
        key = replace(said[0], default=field.default, types=types)
        objection = key.objection(field.name, field.default)
        if objection is not None:
            raise TypeError(f"{objection} It is the default.")
        if key.free and key.changes:
            raise TypeError(f"{field.name} changes training, so that a resume is not free to change it.")
        keys[field.name] = key
    return keys


def check_values(configuration: Any, keys: Mapping[str, Key]) -> None:
    """
    Refuse a value that is wrong by itself.

    Args:
        configuration (`Any`): A dataclass.
        keys (`Mapping[str, Key]`): What its fields say, from [`declared`].

    Raises:
        `ValueError`: The line names the first such key, its value and what is right.
    """
    for name, key in keys.items():
        objection = key.objection(name, getattr(configuration, name))
        if objection is not None:
            raise ValueError(objection)


def check_used(configuration: Any, keys: Mapping[str, Key]) -> None:
    """
    Refuse a value that nothing would ever look at, with the arguments of [`check_values`].

    Raises:
        `ValueError`: The line names the first such key, its value and what it needs.
    """

    def value_of(name: str) -> Any:
        return getattr(configuration, name)

    for name, key in keys.items():
        value = value_of(name)
        if key.needs is not None and value != key.default and not key.needs.is_met(value_of):
            raise ValueError(
                f"{name}={value!r} has no effect without {key.needs.words}. Set that, or leave {name} out."
            )


OFF_ON_AUTO = ("off", "on", "auto")
AN_ANCHOR = needs(*ANCHOR_KEYS)
IN_REWARD = needs(*(anchor.key for anchor in ANCHORS if anchor.works_in_reward))
AN_EVALUATION = needs("ref_reset_stall", "ref_reset_drop")
GROWTH = needs("lora_growth_every")
COSINE = needs("length_reward", value="cosine")
# A script may have added treatments.
AN_ALPHA = Need(lambda value_of: value_of("optimizer_reset") in names_with_alpha(), "optimizer_reset: soft")
ADVANTAGES = (
    "raw",
    "centered",
    "group_normalized",
    "batch_normalized",
    "global_normalized",
    "rloo",
    "max",
    "best_of_group",
)
UNGROUPED_ADVANTAGES = ("global_normalized", "raw")  # they compare no completions of a prompt, so one is enough


def effects(value_of: ValueOf) -> Effect:
    """Combine what all keys of a configuration change, given the value of each."""
    together = Effect.NOTHING
    for name, key in KEYS.items():
        if value_of(name) not in (None, key.default):
            together |= key.changes
    if value_of("loss_mode") == "no_ratio":
        together |= Effect.KL
    if value_of("guard_gap_action") == "reset":
        together |= Effect.RESET
    return together


def requests_reset(value_of: ValueOf) -> bool:
    """Return whether any key requests resets."""
    return Effect.RESET in effects(value_of)


A_RESET = Need(
    requests_reset,
    "a key that requests resets: ref_reset_every, or another trigger's (with triggers of your own alone, set "
    "ref_reset_every to more than max_steps)",
)


# Rules of a resume.


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


@dataclass
class ProlongedKeys:
    r"""
    Configuration of [`ProRLTrainer`]: all keys of [`~trl.GRPOConfig`], and those of prolonged training.

    TRL's `beta` keeps its meaning, the coefficient of the KL to the reference model. Variant A is `beta > 0` with
    resets; B is `beta = 0` and `beta_old > 0`, a *different objective* that needs no reference model; C is A with
    `optimizer_reset`.

    Example:

    ```python
    >>> from trl_prorl import ProRLConfig

    >>> common = {"learning_rate": 1e-5, "bf16": False}  # TRL's default, bf16=True, needs a GPU
    >>> no_kl = ProRLConfig("runs/no-kl", fast=True, **common)
    >>> fixed_reference = ProRLConfig("runs/fixed", beta=0.3, kl_target=0.1, **common)
    >>> moving_reference = ProRLConfig("runs/A", beta=0.3, kl_target=0.1, ref_reset_every=200, **common)
    >>> old_policy = ProRLConfig("runs/B", beta_old=0.3, num_iterations=2, **common)
    >>> optimizer_reset = ProRLConfig("runs/C", beta=0.3, ref_reset_every=200, optimizer_reset="hard", **common)
    ```

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
            function's `batch_verifier`) has fallen by more than this from its highest value while the reward is no
            lower than it was then, both as averages over 40 optimizer steps: possible reward hacking. It needs more
            steps than that. `None`: off.
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

    beta_old: Annotated[float, Key(ge=0, changes=Effect.TERM, label="β_old={}")] = 0.0
    beta_base: Annotated[float, Key(ge=0, changes=Effect.TERM, label="β_base={}")] = 0.0
    base_anchor_every: Annotated[int, Key(ge=1, needs=needs("beta_base"))] = 1
    kl_estimator: Annotated[str, Key(("k1", "k2", "k3"), changes=Effect.KL)] = "k3"
    kl_clamp: Annotated[float | None, Key(gt=0, changes=Effect.KL, needs=AN_ANCHOR)] = None
    kl_in: Annotated[str, Key(("loss", "reward"), changes=Effect.KL, needs=IN_REWARD, label="KL in {}")] = "loss"
    ref_compute: Annotated[str, Key(("cached", "naive_epoch"), changes=Effect.STEP, needs=needs("beta"))] = "cached"
    kl_target: Annotated[float | None, Key(gt=0, changes=Effect.STEP, needs=AN_ANCHOR, label="KL target {}")] = None
    kl_horizon: Annotated[int, Key(ge=1, needs=needs("kl_target"))] = 100

    ref_reset_every: Annotated[int, Key(ge=0, changes=Effect.RESET, resume=has_moved, label="K={}")] = 0
    ref_reset_kl: Annotated[float | None, Key(gt=0, changes=Effect.RESET, resume=has_moved, label="KL>{}")] = None
    ref_reset_kl_window: Annotated[int, Key(ge=1, needs=needs("ref_reset_kl"), label="over {} steps")] = 1
    ref_reset_stall: Annotated[int, Key(ge=0, changes=Effect.RESET, resume=has_moved, label="stall {}")] = 0
    ref_reset_drop: Annotated[float | None, Key(gt=0, changes=Effect.RESET, resume=has_moved, label="drop {}")] = None
    ref_reset_metric: Annotated[str, Key(needs=AN_EVALUATION, label="of {}")] = "eval_reward"
    ref_reset_metric_mode: Annotated[str, Key(("max", "min"), needs=AN_EVALUATION)] = "max"
    ref_reset_min_delta: Annotated[float, Key(ge=0, needs=AN_EVALUATION)] = 0.0
    ref_reset_cooldown: Annotated[int, Key(ge=0, needs=A_RESET, label="cooldown {}")] = 0
    ref_reset_mix: Annotated[float, Key(ge=0, le=1, label="mix {}")] = 1.0
    adapter_restart: Annotated[str, Key(("off", "merge"), needs=A_RESET, resume=has_restarted, label="restart")] = (
        "off"
    )
    optimizer_reset: Annotated[str, Key(needs=A_RESET, label="{}")] = "keep"
    optimizer_reset_alpha: Annotated[float, Key(gt=0, le=1, needs=AN_ALPHA, label="{}")] = 0.1
    optimizer_reset_schedule: Annotated[str | None, Key(("keep", "restart"), needs=A_RESET)] = None
    optimizer_reset_rewarmup_steps: Annotated[int, Key(ge=0, needs=A_RESET)] = 0
    elastic_reset_every: Annotated[int, Key(ge=0, changes=Effect.BOUNDARY, resume=has_average, label="every {}")] = 0
    elastic_ema: Annotated[float, Key(ge=0, lt=1, needs=needs("elastic_reset_every"), label="EMA {}")] = 0.99

    lora_growth_every: Annotated[
        int, Key(ge=0, changes=Effect.BOUNDARY, resume=has_grown, label="growth every {}")
    ] = 0
    lora_growth_step: Annotated[int, Key(ge=1, needs=GROWTH, label="by {} ranks")] = 4
    lora_growth_max_rank: Annotated[int, Key(ge=1, needs=GROWTH, label="up to {}")] = 64

    fast: Annotated[bool, Key(free=True)] = False
    reuse_old_logps: Annotated[bool, Key(changes=Effect.STEP, fast=True)] = False
    pack_groups: Annotated[str, Key(OFF_ON_AUTO, changes=Effect.STEP, fast="auto")] = "off"
    pack_max_tokens: Annotated[int | None, Key(ge=1, needs=needs("pack_groups"))] = None
    compact_generation: Annotated[str, Key(OFF_ON_AUTO, changes=Effect.STEP, fast="auto")] = "off"
    compact_max_rows: Annotated[int | None, Key(ge=1, needs=needs("compact_generation"))] = None
    compact_merge: Annotated[bool, Key(needs=needs("compact_generation"))] = True
    vllm_enable_lora: Annotated[bool, Key(needs=needs("use_vllm"))] = False
    skip_zero_rows: Annotated[bool, Key(changes=Effect.STEP)] = False
    drop_zero_rows: Annotated[bool, Key(changes=Effect.KL, needs=AN_ANCHOR)] = False

    dynamic_sampling_rounds: Annotated[int, Key(ge=0, changes=Effect.STEP)] = 0
    dynamic_sampling_rewards: Annotated[list[str] | None, Key(needs=needs("dynamic_sampling_rounds"))] = None
    advantage_estimator: Annotated[str | None, Key(ADVANTAGES, changes=Effect.STEP)] = None
    loss_mode: Annotated[str | None, Key(("no_ratio", "unclipped", "clipped"), changes=Effect.STEP, label="{}")] = None

    entropy_floor: Annotated[float | None, Key(gt=0)] = None
    entropy_patience: Annotated[int, Key(ge=1, needs=needs("entropy_floor"))] = 10
    entropy_stop: Annotated[bool, Key(needs=needs("entropy_floor"))] = False
    guard_gap: Annotated[float | None, Key(gt=0)] = None
    guard_gap_action: Annotated[str, Key(("event", "reset", "stop"), needs=needs("guard_gap"))] = "event"
    rollback: Annotated[int, Key(ge=0)] = 0
    rollback_rate: Annotated[float, Key(gt=0, le=1, needs=needs("rollback"))] = 0.5
    nonfinite: Annotated[str, Key(("stop", "skip"))] = "stop"
    reward_timeout: Annotated[float | None, Key(gt=0, free=True)] = 600.0
    allow_config_change: Annotated[bool, Key(free=True)] = False

    run_dir: Annotated[str | None, Key(free=True)] = None
    log_update_norm: Annotated[bool, Key(free=True)] = False
    hub_push_reference: Annotated[bool, Key(free=True, needs=needs("beta"))] = False


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

    task: Annotated[str, Key()] = "reverse_digits"
    task_level: Annotated[int | None, Key()] = None
    task_options: Annotated[dict | str | None, Key()] = None
    task_seed: Annotated[int, Key()] = 0
    train_rows: Annotated[int | None, Key(ge=1)] = None
    eval_rows: Annotated[int, Key(ge=0)] = 64

    length_reward: Annotated[str | None, Key(tuple(LENGTH_REWARDS))] = None
    length_least: Annotated[float, Key(needs=COSINE)] = -1.0
    length_on: Annotated[int, Key(ge=1, needs=COSINE)] = 1
    length_off: Annotated[int, Key(ge=0, needs=COSINE)] = 0
    length_target: Annotated[int | None, Key(ge=1, needs=needs("length_reward", value="target"))] = None
    length_cost: Annotated[float, Key(ge=0, needs=needs("length_reward", value="target"))] = 0.0003
    length_margin: Annotated[int | None, Key(ge=1, needs=needs("length_reward", value="overlong"))] = None

    thinking_budget: Annotated[int | None, Key(ge=1)] = None
    thinking_text: Annotated[str, Key(needs=needs("thinking_budget"))] = "\n\nFinal answer: "
    thinking_answer_tokens: Annotated[int, Key(ge=1, needs=needs("thinking_budget"))] = 32


KEYS = declared(ProlongedKeys)
TASK_KEYS = declared(TaskKeys)
TRIGGER_KEYS = tuple(name for name, key in KEYS.items() if key.changes is Effect.RESET)
FAST = {name: key.fast for name, key in KEYS.items() if key.fast is not None}
# Keys of ours whose values on and off YAML reads as true and false.
BARE_WORDS = tuple(name for name, key in KEYS.items() if "off" in key.choices)
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
FREE_KEYS = {name for name, key in KEYS.items() if key.free} | {*FREE_UPSTREAM_KEYS}


def read_bare_word(value: Any) -> Any:
    """Make text again of a bare on or off."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return value


def read_resume_word(value: Any) -> str | None:
    """Return what `resume_from_checkpoint` means: `"True"`, a path, or `None`; YAML reads a bare true as a bool."""
    if value is None or str(value).lower() == "false":
        return None
    return "True" if str(value).lower() == "true" else str(value)


def switched_on_by_fast(given: Collection[str], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys to which `fast` gives a value: those at their defaults that were not set by hand."""
    found = {}
    for key, value in FAST.items():
        if key not in given and values[key] == KEYS[key].default:
            found[key] = value
    return found


# Keys of other versions' recipes, and what to write instead.
RENAMED = {
    "torch_dtype": "write dtype",
    "lr": "write learning_rate",
    "overwrite_output_dir": "leave it out; a folder that holds a run is never overwritten",
    "evaluation_strategy": "write eval_strategy",
    "max_prompt_length": "leave it out; prompts are never cut",
}
