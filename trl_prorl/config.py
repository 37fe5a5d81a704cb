"""`ProRLConfig`: TRL's `GRPOConfig` and the keys of prolonged training."""

import inspect
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from trl import GRPOConfig

from .anchors import ANCHOR_KEYS
from .cli.variants import variant_of
from .keys import (
    BARE_WORDS,
    FAST,
    KEYS,
    REQUIREMENTS,
    Effect,
    ProlongedKeys,
    check_values,
    cure_of,
    drop_unused,
    effects,
    read_bare_word,
    read_resume_word,
    refuse_text,
    warn_unused,
)
from .kl import gradient_bias
from .refusals import ACTS_ONLY_WITH, REFUSALS, check_folders_and_beta, refuse_engines
from .supported import LOSS_TYPES
from .text import short
from .treatments import treatment_of


class KeepsKeywords:
    """
    Records the given keywords, and suggests the nearest one for an unknown keyword. A value equal to its default does
    not show whether it was set.
    """

    given: frozenset[str] = frozenset()

    def __new__(cls, *args, **keys):
        known = inspect.signature(cls.__init__).parameters
        unknown = sorted(keys.keys() - known.keys())
        takes_others = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
        if unknown and not takes_others:
            name = unknown[0]
            raise TypeError(f"{cls.__name__} has no key {name}={short(keys[name])}{cure_of(name, known)}.")
        made = super().__new__(cls)
        if not {field.name for field in fields(cls) if field.init} <= keys.keys():  # TrlParser passes all of them
            made.given = frozenset(keys)
        return made


@dataclass
class ProRLConfig(ProlongedKeys, GRPOConfig, KeepsKeywords):
    """Configuration of [`ProRLTrainer`]: TRL's `GRPOConfig` and [`~trl_prorl.keys.ProlongedKeys`]."""

    __doc__ = ProlongedKeys.__doc__  # for `help`

    def __post_init__(self):
        self.has_own_triggers = False  # whether a script passes triggers of resets; set by the trainer
        self.disabled_reason: str | None = None  # why `fast` is off, see `disable_fast_unless`
        if self.fast:
            for key, value in FAST.items():
                if key not in self.given and getattr(self, key) == KEYS[key].default:
                    setattr(self, key, value)
        for key in BARE_WORDS:
            setattr(self, key, read_bare_word(getattr(self, key)))
        self.resume_from_checkpoint = read_resume_word(self.resume_from_checkpoint)
        check_values(self, KEYS)
        refuse_text(self)
        treatment_of(self.optimizer_reset, self.optimizer_reset_alpha)  # raises an error for an unknown treatment
        check_folders_and_beta(self)
        refuse_engines(self)  # before transformers sets the environment for torch_compile
        best = self.metric_for_best_model
        greater = self.greater_is_better
        self._complete_as_trl()
        if best is None:  # transformers would set the loss, which is meaningless in GRPO: the trainer chooses
            self.metric_for_best_model = None
            self.greater_is_better = greater
        unused = drop_unused(self, ACTS_ONLY_WITH)
        warn_unused(unused + drop_unused(self, REQUIREMENTS))
        if self.beta == 0.0 and self.resets:  # of the optimizer alone
            self.ref_reset_mix = 0.0
        for refuse in REFUSALS:
            refuse(self)
        if self.stop_stall:  # the best checkpoint is the best by the watched metric
            self.metric_for_best_model = self.ref_reset_metric
            self.greater_is_better = True
        bias = gradient_bias(
            self.kl_estimator,
            self.use_bias_correction_kl,
            self.importance_sampling_level,
            self.on_policy,
            self.kl_clamp,
        )
        for key in ANCHOR_KEYS:
            if bias is not None and getattr(self, key) != 0.0:
                warnings.warn(f"The gradient of the {key} penalty is biased: {bias}.", stacklevel=3)

    def _complete_as_trl(self) -> None:
        """
        Run TRL's `__post_init__`, which rejects one completion per prompt, although TRL's trainer supports it. During
        it, all completions that a process generates at once count as one group.
        """
        if self.num_generations != 1:
            super().__post_init__()
            return
        of_evaluation = self.num_generations_eval
        self.num_generations = self.generation_batch_size
        if self.num_generations is None:  # of all processes if set, else of this one
            micro_batches = self.steps_per_generation or self.gradient_accumulation_steps
            self.num_generations = self.per_device_train_batch_size * micro_batches
        self.num_generations_eval = of_evaluation or 1
        try:
            super().__post_init__()
        finally:
            self.num_generations = 1
            self.num_generations_eval = of_evaluation

    # The keys' effects on TRL's training.

    @property
    def effect(self) -> Effect:
        in_use = dict(vars(self))
        for key in FAST:
            if self.is_disabled(key):
                del in_use[key]
        in_use["skip_zero_rows"] = self.skips_zero_rows or None
        return effects(in_use)

    @property
    def is_trl(self) -> bool:
        """Whether no key of ours can change a result or a forward pass."""
        changes = self.effect & (Effect.STEP | Effect.RESET | Effect.BOUNDARY)
        return not changes and not self.adds_penalty

    @property
    def adds_penalty(self) -> bool:
        """Whether the loss has a KL term that TRL's own loss does not support."""
        changes_trl_term = self.beta != 0.0 and Effect.KL in self.effect
        return Effect.TERM in self.effect or changes_trl_term

    @property
    def learns_from_teacher(self) -> bool:
        """Whether completions of equal rewards have a gradient: that of the KL to a teacher."""
        return self.ref_model is not None and not self.drop_zero_rows

    @property
    def resets(self) -> bool:
        return Effect.RESET in self.effect or self.has_own_triggers

    @property
    def changes_at_boundary(self) -> bool:
        return bool(self.effect & (Effect.RESET | Effect.BOUNDARY))

    # Accelerations of `fast` that the model does not support.

    def disable_fast_unless(self, check: Callable[..., None], *about: Any) -> None:
        """
        Run a check that applies only if our keys change the training.

        If it fails with `fast`, the accelerations are disabled, with a `disabled_reason`. Raises `ValueError`: it
        failed, and a key other than those of `fast` changes the training.
        """
        if self.is_trl:
            return
        try:
            check(*about)
        except ValueError as error:
            if self.fast:
                self.disabled_reason = str(error)
            if not self.is_trl:
                raise

    def is_disabled(self, key: str) -> bool:
        """Return whether the model does not support an acceleration of `fast`."""
        return self.disabled_reason is not None and getattr(self, key) == FAST[key]

    @property
    def zero_rows_obstacle(self) -> str | None:
        """Why rows with an advantage of 0 cannot be skipped (`skip_zero_rows`); `None` if they can."""
        if self.top_entropy_quantile < 1.0:
            return f"top_entropy_quantile={self.top_entropy_quantile} needs the entropies of all rows."
        if self.has_entropy_bonus:
            return "an entropy bonus acts on every row."
        acts_always = self.beta != 0.0 or self.beta_old != 0.0 or self.base_anchor_every == 1
        if self.anchored and acts_always and self.kl_in == "loss" and not self.drop_zero_rows:
            return "a KL acts on every row."
        if self.follows_kl is not None:
            return f"{self.follows_kl} acts on the mean KL of all rows."
        return None

    @property
    def follows_kl(self) -> str | None:
        """The key=value that acts on the measured KL although the loss has none (`kl_in: reward`)."""
        for key in ("kl_target", "ref_reset_kl"):
            if self.kl_in == "reward" and getattr(self, key) is not None:
                return f"{key}={getattr(self, key)}"
        return None

    @property
    def skips_zero_rows(self) -> bool:
        """Whether rows without gradient are skipped, as far as a micro-batch has any."""
        if self.skip_zero_rows is not None:
            return self.skip_zero_rows
        is_possible = self.disabled_reason is None and self.zero_rows_obstacle is None
        # Triggers of a script may watch the mean of all rows.
        return self.fast and is_possible and self.entropy_floor is None and not self.has_own_triggers

    # Times of sampling and of use.

    @property
    def generate_every(self) -> int:
        """Micro-batches from one generation to the next."""
        return self.steps_per_generation * self.num_iterations

    @property
    def has_entropy_bonus(self) -> bool:
        """Whether TRL's loss has an entropy bonus; an adaptive one may be 0 for a while."""
        return self.entropy_coef != 0.0 or self.use_adaptive_entropy

    @property
    def exchangeable_micro_batches(self) -> int:
        """Consecutive micro-batches that may exchange rows without changing an update's gradient."""
        if self.compares_tokens is not None:
            return 1
        return math.gcd(self.gradient_accumulation_steps, self.steps_per_generation)

    @property
    def compares_tokens(self) -> str | None:
        """The key=value by which a loss averages or ranks the tokens of each micro-batch."""
        if LOSS_TYPES[self.loss_type].aggregation == "batch_mean":
            return f"loss_type={self.loss_type!r}"
        if self.trust_region == "m2po":
            return "trust_region='m2po'"
        if self.has_entropy_bonus:
            return f"entropy_coef={self.entropy_coef}, use_adaptive_entropy={self.use_adaptive_entropy}"
        if self.top_entropy_quantile < 1.0:
            return f"top_entropy_quantile={self.top_entropy_quantile}"
        return None

    @property
    def on_policy(self) -> bool:
        """Whether π_θ = π_old whenever the loss is evaluated (TRL's own test)."""
        return self.gradient_accumulation_steps % self.generate_every == 0

    @property
    def generates_inside_accumulation(self) -> bool:
        """Whether a batch is generated between micro-batches of one update."""
        accumulation = self.gradient_accumulation_steps
        every = self.generate_every
        return accumulation % every != 0 and every % accumulation != 0

    @property
    def schedule(self) -> str:
        return (
            f"gradient_accumulation_steps={self.gradient_accumulation_steps}, "
            f"steps_per_generation={self.steps_per_generation}, num_iterations={self.num_iterations}"
        )

    # Resets.

    def next_boundary(self, step: int) -> int:
        """Return the first optimizer step, from `step` on, after which a batch is generated."""
        steps_a_generation = max(1, self.generate_every // self.gradient_accumulation_steps)
        return math.ceil(step / steps_a_generation) * steps_a_generation

    @property
    def watches_metric(self) -> bool:
        return self.ref_reset_stall > 0 or self.ref_reset_drop is not None or self.stop_stall > 0

    @property
    def restarts_schedule(self) -> bool:
        if self.optimizer_reset_schedule is None:
            return treatment_of(self.optimizer_reset).restarts_schedule
        return self.optimizer_reset_schedule == "restart"

    @property
    def treats_optimizer(self) -> bool:
        return self.optimizer_reset != "keep" or self.restarts_schedule or self.optimizer_reset_rewarmup_steps > 0

    # Source of π_old's log-probabilities.

    @property
    def corrects_sampler(self) -> bool:
        """Whether TRL corrects for vLLM, which needs π_old's log-probabilities at once."""
        return self.use_vllm and self.vllm_importance_sampling_correction

    @property
    def samples_whole(self) -> bool:
        """Whether sampling uses the full softmax, without top-p, top-k and min-p."""
        return self.top_p == 1.0 and not self.top_k and not self.min_p

    @property
    def old_logps_source(self) -> str:
        """
        Source of π_old's log-probabilities: `"policy"` (they equal the policy's), `"first_pass"` (each micro-batch
        comes before the first update and nothing needs them earlier), or `"forward"`.
        """
        needed_at_once = self.corrects_sampler or self.kl_in == "reward"
        if self.on_policy and not needed_at_once:
            return "policy"
        reuses = self.reuse_old_logps and not self.is_disabled("reuse_old_logps")
        if reuses and not needed_at_once and self.gradient_accumulation_steps % self.steps_per_generation == 0:
            return "first_pass"
        return "forward"

    @property
    def reuse_obstacle(self) -> str | None:
        """Reason for a separate forward pass of π_old although `reuse_old_logps` is set; `None` if there is none."""
        if not self.reuse_old_logps or self.old_logps_source != "forward":
            return None
        if self.kl_in == "reward":
            return "kl_in='reward' needs π_old's log-probabilities when a batch is sampled."
        if self.is_disabled("reuse_old_logps"):
            return self.disabled_reason
        if self.corrects_sampler:
            return "vllm_importance_sampling_correction=True needs π_old's log-probabilities when a batch is sampled."
        return (
            f"gradient_accumulation_steps={self.gradient_accumulation_steps} is not a multiple of "
            f"steps_per_generation={self.steps_per_generation}, so an update comes before the end of the first pass."
        )

    # Anchors, and the name of the variant.

    @property
    def anchored(self) -> bool:
        return any(getattr(self, key) != 0.0 for key in ANCHOR_KEYS)

    @property
    def variant(self) -> str:
        """
        `"plain"` (no KL), `"control"` (a fixed reference), `"A"`, `"B"`, `"C"`, `"optimizer-only"` (only the optimizer
        is reset), `"teacher"` (`ref_model`), `"base-anchored"` (only the KL of `beta_base`), or `"elastic"`.
        """
        return variant_of(self)
