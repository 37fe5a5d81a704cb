"""`ProRLConfig`: TRL's `GRPOConfig` and the keys of prolonged training. Every key's default is off, i.e. plain TRL."""

import warnings
from dataclasses import dataclass, field

from trl import GRPOConfig

from .kl import ESTIMATORS, gradient_bias
from .optimizer_state import MODES


REF_COMPUTE = ("cached", "naive_epoch")


@dataclass
class ProRLConfig(GRPOConfig):
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
        kl_estimator (`str`, *optional*, defaults to `"k3"`):
            `"k1"`, `"k2"` or `"k3"`, for every anchor; together with TRL's `use_bias_correction_kl`. See
            [`~trl_prorl.kl`] for which combination has which gradient.
        ref_compute (`str`, *optional*, defaults to `"cached"`):
            `"cached"`: the reference scores each generation batch once. `"naive_epoch"`: it scores it again in every
            inner pass, with the same numbers; the wasteful baseline.

        > Parameters that control the resets

        ref_reset_every (`int`, *optional*, defaults to `0`):
            Request a reset whenever the number of optimizer steps done is a multiple of this. It is applied at the
            next generation boundary. 0: never.
        ref_reset_mix (`float`, *optional*, defaults to `1.0`):
            What the reference becomes at a reset: `mix` · policy + (1 − `mix`) · reference. 1 is a hard copy; between
            0 and 1 the parameters are averaged (with LoRA the factors A and B, which is not the average of their
            products BA); 0 leaves the reference where it is, so that only the optimizer is reset.
        optimizer_reset (`str`, *optional*, defaults to `"keep"`):
            What happens to Adam's state at a reset: `"keep"`, `"hard"` (moments and step count cleared, the learning
            rate schedule starts again, an AMP scaler goes back to its initial scale), `"soft"` (moments times
            `optimizer_reset_alpha`), `"asym"` (first moment cleared, the rest kept).
        optimizer_reset_alpha (`float`, *optional*, defaults to `0.1`):
            Factor of `optimizer_reset: soft`, in (0, 1].

        > Parameters that control the cost

        reuse_old_logps (`bool`, *optional*, defaults to `False`):
            Take π_old's log-probabilities from the first inner pass instead of a forward of their own, wherever that
            is sound: nothing was updated since sampling (`gradient_accumulation_steps` a multiple of
            `steps_per_generation`) and no vLLM correction needs them earlier. Elsewhere the forward stays, and
            `env.json` says so.

        > Parameters that control the record

        run_dir (`str`, *optional*):
            Where the record of the run goes. `None`: `output_dir`.
    """

    beta_old: float = field(
        default=0.0,
        metadata={"help": "Coefficient of the KL to pi_old, the policy that sampled the batch (variant B)."},
    )
    kl_estimator: str = field(
        default="k3", metadata={"help": "KL estimator of every anchor.", "choices": list(ESTIMATORS)}
    )
    ref_compute: str = field(
        default="cached",
        metadata={
            "help": "Score the reference once per generation batch, or again in every inner pass.",
            "choices": list(REF_COMPUTE),
        },
    )
    ref_reset_every: int = field(
        default=0, metadata={"help": "Request a reset every this many optimizer steps. 0: never."}
    )
    ref_reset_mix: float = field(
        default=1.0,
        metadata={"help": "At a reset: reference <- mix * policy + (1 - mix) * reference. 0: only the optimizer."},
    )
    optimizer_reset: str = field(
        default="keep", metadata={"help": "What a reset does to the optimizer's state.", "choices": list(MODES)}
    )
    optimizer_reset_alpha: float = field(default=0.1, metadata={"help": "Factor of optimizer_reset=soft, in (0, 1]."})
    reuse_old_logps: bool = field(
        default=False,
        metadata={"help": "Take pi_old's log-probabilities from the first inner pass wherever that is sound."},
    )
    run_dir: str | None = field(default=None, metadata={"help": "Where the record of the run goes. None: output_dir."})

    def __post_init__(self):
        super().__post_init__()
        self._check_values()
        self._check_combinations()
        self._warn_of_biased_gradients()

    # Derived, never stored.

    @property
    def generate_every(self) -> int:
        """Micro-batches from one generation to the next."""
        return self.steps_per_generation * self.num_iterations

    @property
    def on_policy(self) -> bool:
        """Whether π_θ = π_old wherever the loss is evaluated (TRL's own test for leaving out π_old's forward)."""
        return self.gradient_accumulation_steps % self.generate_every == 0

    @property
    def _schedule(self) -> str:
        return (
            f"gradient_accumulation_steps={self.gradient_accumulation_steps}, "
            f"steps_per_generation={self.steps_per_generation}, num_iterations={self.num_iterations}"
        )

    @property
    def resets(self) -> bool:
        """Whether a reset can ever be requested by a key of this configuration."""
        return self.ref_reset_every > 0

    @property
    def is_trl(self) -> bool:
        """Whether every key of ours that could change a number or a forward is off."""
        return not (self.adds_penalty or self.resets or self.reuse_old_logps or self.ref_compute != "cached")

    @property
    def adds_penalty(self) -> bool:
        """Whether the loss has a KL term that TRL's own loss cannot express."""
        return self.beta_old != 0.0 or (self.beta != 0.0 and self.kl_estimator != "k3")

    @property
    def first_pass_is_old_policy(self) -> bool:
        """Whether every first-pass micro-batch lies before the first update on its samples, with nobody asking for
        π_old's log-probabilities earlier."""
        sampler_correction = self.use_vllm and self.vllm_importance_sampling_correction
        return self.gradient_accumulation_steps % self.steps_per_generation == 0 and not sampler_correction

    @property
    def old_logps_source(self) -> str:
        """Where π_old's log-probabilities come from: `"policy"` (they are the policy's own), `"first_pass"` or
        `"forward"`."""
        if self.on_policy and not (self.use_vllm and self.vllm_importance_sampling_correction):
            return "policy"
        return "first_pass" if self.reuse_old_logps and self.first_pass_is_old_policy else "forward"

    @property
    def variant(self) -> str:
        """`"plain"` (no KL), `"control"` (a reference that never moves), `"A"`, `"B"` or `"C"`."""
        if self.beta != 0.0:
            if not self.resets:
                return "control"
            return "A" if self.optimizer_reset == "keep" else "C"
        return "B" if self.beta_old != 0.0 else "plain"

    def _check_values(self):
        for name, choices in (("kl_estimator", ESTIMATORS), ("ref_compute", REF_COMPUTE), ("optimizer_reset", MODES)):
            value = getattr(self, name)
            if value not in choices:
                raise ValueError(f"{name}={value!r} is not one of {', '.join(choices)}.")
        for name in ("beta", "beta_old", "ref_reset_every"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not value >= 0:
                raise ValueError(f"{name}={value!r} must be a number that is not negative.")
        if int(self.ref_reset_every) != self.ref_reset_every:
            raise ValueError(f"ref_reset_every={self.ref_reset_every!r} must be a whole number of optimizer steps.")
        if not 0.0 <= self.ref_reset_mix <= 1.0:
            raise ValueError(f"ref_reset_mix={self.ref_reset_mix!r} is outside [0, 1]; 1 is a hard copy.")
        if not 0.0 < self.optimizer_reset_alpha <= 1.0:
            raise ValueError(
                f"optimizer_reset_alpha={self.optimizer_reset_alpha!r} is outside (0, 1]; to clear the state use "
                "optimizer_reset: hard."
            )

    def _check_combinations(self):
        anchored = self.beta != 0.0 or self.beta_old != 0.0
        if anchored and self.kl_estimator == "k1" and not self.use_bias_correction_kl:
            raise ValueError(
                "kl_estimator='k1' with use_bias_correction_kl=False has zero expected gradient: it would penalise "
                "nothing. Set use_bias_correction_kl: true, or kl_estimator: k3."
            )
        if self.beta_old != 0.0 and self.on_policy:
            raise ValueError(
                f"beta_old={self.beta_old} can do nothing with {self._schedule}: no sample is used after an update, so the "
                "policy equals pi_old wherever the penalty is evaluated. Set num_iterations: 2 (or more), or a "
                "steps_per_generation larger than gradient_accumulation_steps."
            )
        if self.ref_compute == "naive_epoch" and self.beta == 0.0:
            raise ValueError("ref_compute='naive_epoch' needs a reference: set beta > 0, or ref_compute: cached.")
        if self.optimizer_reset != "keep" and not self.resets:
            raise ValueError(
                f"optimizer_reset={self.optimizer_reset!r} is never applied: nothing requests a reset. Set "
                "ref_reset_every to a number of optimizer steps, or optimizer_reset: keep."
            )
        if not self.resets:
            return
        if self.beta == 0.0 and self.ref_reset_mix != 0.0:
            raise ValueError(
                f"ref_reset_every={self.ref_reset_every} moves a reference, but beta=0 means that there is none. Set "
                "beta > 0 (variants A and C), or ref_reset_mix: 0 to reset the optimizer alone."
            )
        if self.ref_reset_mix == 0.0 and self.optimizer_reset == "keep":
            raise ValueError(
                "ref_reset_mix=0 with optimizer_reset='keep' resets nothing. Set ref_reset_mix: 1, or an "
                "optimizer_reset of hard, soft or asym."
            )
        if self.sync_ref_model:
            raise ValueError(
                "sync_ref_model=True and ref_reset_every both move the reference, and TRL's callback moves it in the "
                "middle of a generation batch. Set sync_ref_model: false."
            )
        self.check_reset_schedule()

    def check_reset_schedule(self):
        """
        Refuse a schedule in which a reset has no clean place.

        Raises:
            `ValueError`: a generation falls inside an accumulation.
        """
        accumulation = self.gradient_accumulation_steps
        if accumulation % self.generate_every != 0 and self.generate_every % accumulation != 0:
            raise ValueError(
                f"With {self._schedule} a generation falls inside an accumulation, where gradients of the old reference "
                "are still waiting, so a reset has no clean place. Make one of gradient_accumulation_steps and "
                "steps_per_generation * num_iterations a multiple of the other."
            )

    def _warn_of_biased_gradients(self):
        for name in ("beta", "beta_old"):
            if getattr(self, name) == 0.0:
                continue
            bias = gradient_bias(
                self.kl_estimator, self.use_bias_correction_kl, self.importance_sampling_level, self.on_policy
            )
            if bias is not None:
                warnings.warn(f"The gradient of the {name} penalty is biased: {bias}.", stacklevel=4)
