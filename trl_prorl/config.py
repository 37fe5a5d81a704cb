"""`ProRLConfig`: TRL's `GRPOConfig` and the keys of prolonged training. Every key's default is off, i.e. plain TRL."""

import inspect
import math
import os
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any

from trl import GRPOConfig

from .keys import (
    BARE_WORDS,
    FAST,
    KEYS,
    RENAMED,
    Effect,
    ProlongedKeys,
    check_used,
    check_values,
    effects,
    read_bare_word,
    read_resume_word,
    switched_on_by_fast,
)
from .objective.anchors import ANCHOR_KEYS, ANCHORS
from .objective.kl import gradient_bias
from .refusals import REFUSALS
from .resets.treatments import treatment_of
from .text import nearest, short
from .trl_values import check_mappings, check_training_values
from .variants import variant_of


class KeepsKeywords:
    """Remembers by which keywords it was made, because a value that equals its default does not tell who set it."""

    given: frozenset[str] = frozenset()

    def __new__(cls, *args, **keys):
        all_keys = {field.name for field in fields(cls) if field.init}
        check_names(cls, keys, all_keys)
        made = super().__new__(cls)
        if not all_keys <= keys.keys():  # TrlParser passes all of them
            made.given = frozenset(keys)
        return made


def check_names(cls: type, keys: Mapping[str, Any], known: Collection[str]) -> None:
    """
    Refuse keywords that a class does not take; one with an `__init__` of its own may take more than its fields.

    Raises:
        `TypeError`: As a dataclass raises it; the line names the first, and the field that is nearest to it.
    """
    if keys.keys() <= known:
        return
    parameters = inspect.signature(cls.__init__).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    unknown = sorted(keys.keys() - known - parameters.keys())
    if not unknown:
        return
    name = unknown[0]
    cure = nearest(name, known)
    if name in RENAMED:
        cure = f": {RENAMED[name]}"
    raise TypeError(f"{cls.__name__} takes no {name}={short(keys[name])}{cure}.")


@dataclass
class ProRLConfig(ProlongedKeys, GRPOConfig, KeepsKeywords):
    """Configuration of [`ProRLTrainer`]: TRL's, and [`~trl_prorl.keys.ProlongedKeys`], which describes every key."""

    __doc__ = ProlongedKeys.__doc__  # for `help`

    def __post_init__(self):
        self.given_up: str | None = None  # why `fast` accelerates nothing, see `check_or_give_up`
        self.precision_reason: str | None = None  # why a recipe's `bf16: auto` has chosen it, see launch/precision.py
        if self.fast:
            self._switch_on_accelerations()
        self._read_bare_words()
        check_values(self, KEYS)
        check_training_values(self)
        best = self.metric_for_best_model
        greater = self.greater_is_better
        self._complete_as_trl()
        check_mappings(self)
        if best is None:  # transformers takes the loss, which says nothing in GRPO: the trainer chooses
            self.metric_for_best_model = None
            self.greater_is_better = greater
        check_used(self, KEYS)
        for refuse in REFUSALS:
            refuse(self)
        for name, bias in self.gradient_biases.items():
            warnings.warn(f"The gradient of the {name} penalty is biased: {bias}.", stacklevel=3)
        if self.corrects_sampler and not self.samples_whole:
            warnings.warn(self._biased_ratio(), stacklevel=3)

    def _biased_ratio(self) -> str:
        """Say how TRL's correction for vLLM scales the loss where the softmax is cut (huggingface/trl#6789)."""
        cuts = {"top_p": self.top_p != 1.0, "top_k": bool(self.top_k), "min_p": bool(self.min_p)}
        keys = " and ".join(f"{key}={getattr(self, key)}" for key, is_set in cuts.items() if is_set)
        per = "completion by the product of what its tokens keep, so that hardly anything is learned"
        if self.vllm_importance_sampling_mode.startswith("token"):
            per = "token by the probability that is kept"
        return (
            f"With use_vllm=True and {keys} TRL scales the loss of every {per}: "
            "vllm_importance_sampling_correction=True compares vLLM's cut softmax with the policy's whole one "
            "(huggingface/trl#6789). Sample from the whole softmax, or set vllm_importance_sampling_correction=False."
        )

    def _complete_as_trl(self) -> None:
        """
        Derive and check what TRL does. TRL's configuration refuses one completion a prompt, which its trainer computes
        without a group: while it checks, the completions that a process draws at once stand for one group.
        """
        if self.num_generations != 1:
            super().__post_init__()
            return
        of_evaluation = self.num_generations_eval
        self.num_generations = self.generation_batch_size
        if self.num_generations is None:  # of all processes if it is given, else of this one
            micro_batches = self.steps_per_generation or self.gradient_accumulation_steps
            self.num_generations = self.per_device_train_batch_size * micro_batches
        self.num_generations_eval = of_evaluation or 1
        try:
            super().__post_init__()
        finally:
            self.num_generations = 1
            self.num_generations_eval = of_evaluation

    def _switch_on_accelerations(self) -> None:
        """Give the keys of `fast` their values, unless they were set by hand."""
        for key, value in switched_on_by_fast(self.given, vars(self)).items():
            setattr(self, key, value)

    def _read_bare_words(self) -> None:
        """Make text again of a bare on, off, true or false, which YAML takes for a bool, and of a path."""
        for key in BARE_WORDS:
            setattr(self, key, read_bare_word(getattr(self, key)))
        self.resume_from_checkpoint = read_resume_word(self.resume_from_checkpoint)
        if isinstance(self.run_dir, os.PathLike):
            self.run_dir = os.fspath(self.run_dir)

    # What the keys change of TRL's training.

    @property
    def effect(self) -> Effect:
        """What all keys change together."""
        in_use = dict(vars(self))
        if self.given_up is not None:
            for key in FAST:
                if self.gives_up(key):
                    del in_use[key]
        return effects(in_use.get)

    @property
    def is_trl(self) -> bool:
        """Whether every key of ours that could change a number or a forward is off."""
        changes = self.effect & (Effect.STEP | Effect.RESET | Effect.BOUNDARY)
        return not changes and not self.adds_penalty

    @property
    def adds_penalty(self) -> bool:
        """Whether the loss has a KL term that TRL's own loss cannot express."""
        changes_trl_term = self.beta != 0.0 and Effect.KL in self.effect
        return Effect.TERM in self.effect or changes_trl_term

    @property
    def resets(self) -> bool:
        """Whether a reset can ever be requested by a key of this configuration."""
        return Effect.RESET in self.effect

    @property
    def changes_at_boundary(self) -> bool:
        """Whether a key of this configuration changes weights, reference or ranks at a generation boundary."""
        return bool(self.effect & (Effect.RESET | Effect.BOUNDARY))

    # Accelerations that `fast` has switched on, and that turn out to be impossible once the model is known.

    def check_or_give_up(self, check: Callable[..., None], *about: Any) -> None:
        """
        Make a check that a run passes if a key of ours changes its training.

        With `fast`, a check that fails switches off what `fast` has switched on (`given_up` says why). If nothing else
        changes the training, the run is TRL's, and goes on.

        Args:
            check (`Callable`): Raises `ValueError` if something is not possible.
            about (`Any`): Its arguments.

        Raises:
            `ValueError`: The check failed, and a key that `fast` has not switched on changes the training.
        """
        if self.is_trl:
            return
        try:
            check(*about)
        except ValueError as error:
            if self.fast:
                self.given_up = str(error)
            if not self.is_trl:
                raise

    def gives_up(self, key: str) -> bool:
        """Return whether an acceleration has the value that `fast` gives it, and all of those are given up."""
        return self.given_up is not None and getattr(self, key) == FAST[key]

    # When samples are drawn and used.

    @property
    def generate_every(self) -> int:
        """Micro-batches from one generation to the next."""
        return self.steps_per_generation * self.num_iterations

    @property
    def exchangeable_micro_batches(self) -> int:
        """
        How many micro-batches, from the first of a generation on, may exchange their rows so that no update's gradient
        changes: those that belong to one update wherever it begins, and one alone where the loss divides by what a
        micro-batch holds or ranks its tokens.
        """
        has_entropy_bonus = self.entropy_coef != 0.0 or self.use_adaptive_entropy
        if self.loss_type == "bnpo" or has_entropy_bonus or self.top_entropy_quantile < 1.0:
            return 1
        return math.gcd(self.gradient_accumulation_steps, self.steps_per_generation)

    @property
    def on_policy(self) -> bool:
        """Whether π_θ = π_old wherever the loss is evaluated (TRL's own test for leaving out π_old's forward)."""
        return self.gradient_accumulation_steps % self.generate_every == 0

    @property
    def generates_inside_accumulation(self) -> bool:
        """Whether a generation falls between the micro-batches of one update, so that a reset has no clean place."""
        accumulation = self.gradient_accumulation_steps
        every = self.generate_every
        return accumulation % every != 0 and every % accumulation != 0

    @property
    def schedule(self) -> str:
        """The keys that say when to generate and when to update, with their values."""
        return (
            f"gradient_accumulation_steps={self.gradient_accumulation_steps}, "
            f"steps_per_generation={self.steps_per_generation}, num_iterations={self.num_iterations}"
        )

    # Resets.

    def first_reset(self, steps: int) -> int | None:
        """Return after how many of `steps` optimizer steps `ref_reset_every` first resets; `None`: never."""
        steps_a_generation = max(1, self.generate_every // self.gradient_accumulation_steps)
        # The reset waits for the next generation, which the last step does not have.
        generation = math.ceil(self.ref_reset_every / steps_a_generation)
        applied = generation * steps_a_generation
        return applied if 0 < applied < steps else None

    @property
    def watches_metric(self) -> bool:
        """Whether a trigger needs evaluations."""
        return self.ref_reset_stall > 0 or self.ref_reset_drop is not None

    @property
    def restarts_schedule(self) -> bool:
        """Whether a reset starts the learning-rate schedule again."""
        if self.optimizer_reset_schedule is None:
            return treatment_of(self.optimizer_reset).restarts_schedule
        return self.optimizer_reset_schedule == "restart"

    @property
    def treats_optimizer(self) -> bool:
        """Whether a reset changes anything of the optimizer or its learning rate."""
        return self.optimizer_reset != "keep" or self.restarts_schedule or self.optimizer_reset_rewarmup_steps > 0

    # Where π_old's log-probabilities come from.

    @property
    def corrects_sampler(self) -> bool:
        """Whether TRL corrects for a sampler that is not the policy, which takes π_old's log-probabilities at once."""
        return self.use_vllm and self.vllm_importance_sampling_correction

    @property
    def samples_whole(self) -> bool:
        """Whether every token can be drawn, so that a sampler's log-probabilities are those of the whole softmax."""
        return self.top_p == 1.0 and not self.top_k and not self.min_p

    @property
    def first_pass_is_old_policy(self) -> bool:
        """
        Whether every first-pass micro-batch lies before the first update on its samples, and nothing needs π_old's
        log-probabilities earlier.
        """
        whole = self.gradient_accumulation_steps % self.steps_per_generation == 0
        return whole and not self.corrects_sampler and self.kl_in == "loss"

    @property
    def old_logps_source(self) -> str:
        """
        Where π_old's log-probabilities come from: `"policy"` (they are the policy's own), `"first_pass"` or
        `"forward"`.
        """
        if self.on_policy and not self.corrects_sampler and self.kl_in == "loss":
            return "policy"
        reuses = self.reuse_old_logps and not self.gives_up("reuse_old_logps")
        if reuses and self.first_pass_is_old_policy:
            return "first_pass"
        return "forward"

    @property
    def why_no_reuse(self) -> str | None:
        """Why π_old takes a forward of its own though `reuse_old_logps` is set; `None` if it does not."""
        if not self.reuse_old_logps or self.old_logps_source != "forward":
            return None
        if self.kl_in == "reward":
            return "kl_in='reward' needs π_old's log-probabilities at once."
        if self.gives_up("reuse_old_logps"):
            return self.given_up
        if self.corrects_sampler:
            return "vllm_importance_sampling_correction=True needs π_old's log-probabilities at once."
        return (
            f"gradient_accumulation_steps={self.gradient_accumulation_steps} is no multiple of "
            f"steps_per_generation={self.steps_per_generation}, so that an update precedes a part of the first pass."
        )

    # The anchors, and the arm's name.

    @property
    def anchored(self) -> bool:
        """Whether there is a KL term at all."""
        return any(getattr(self, key) != 0.0 for key in ANCHOR_KEYS)

    @property
    def copied_anchors(self) -> list[str]:
        """The keys of the anchors that hold a copy of the policy as the run begins."""
        return [anchor.key for anchor in ANCHORS if anchor.copies_policy and getattr(self, anchor.key) != 0.0]

    @property
    def gradient_biases(self) -> dict[str, str]:
        """How the gradient of a penalty is biased, by its coefficient; empty if none is."""
        bias = gradient_bias(
            self.kl_estimator,
            self.use_bias_correction_kl,
            self.importance_sampling_level,
            self.on_policy,
            self.kl_clamp,
        )
        if bias is None:
            return {}
        return {key: bias for key in ANCHOR_KEYS if getattr(self, key) != 0.0}

    @property
    def variant(self) -> str:
        """
        `"plain"` (no KL), `"control"` (a reference that never moves), `"A"`, `"B"`, `"C"`, and the arms beside them:
        `"optimizer-only"` (the reference stays), `"base-anchored"` (the base anchor alone), `"elastic"`.
        """
        return variant_of(self)
