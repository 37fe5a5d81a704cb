"""`ProRLConfig`: TRL's `GRPOConfig` and the keys of prolonged training. Every key's default is off, i.e. plain TRL."""

import math
import warnings
from dataclasses import dataclass, field

from transformers.utils import is_torch_bf16_gpu_available, is_torch_xla_available
from trl import GRPOConfig

from .launch.checks import check_used
from .objective.advantages import ESTIMATORS as ADVANTAGES
from .objective.kl import ESTIMATORS, gradient_bias
from .resets.optimizer_state import MODES
from .run.finite import MODES as NONFINITE


PACKING = ("off", "on", "auto")
REF_COMPUTE = ("cached", "naive_epoch")
LOSS_MODES = ("no_ratio", "unclipped", "clipped")
CLIPPED_LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")
METRIC_MODES = ("max", "min")
SCHEDULES = ("keep", "restart")


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
        beta_base (`float`, *optional*, defaults to `0.0`):
            Coefficient of the KL to the base policy, the policy as the run began, in A and B alike. Costs a forward.
        base_anchor_every (`int`, *optional*, defaults to `1`):
            The base anchor acts on every N-th generation batch, and costs a forward on those alone. The coefficient is
            not scaled up for it.
        kl_estimator (`str`, *optional*, defaults to `"k3"`):
            `"k1"`, `"k2"` or `"k3"`, for every anchor; together with TRL's `use_bias_correction_kl`. See
            [`~trl_prorl.objective.kl`] for which combination has which gradient.
        ref_compute (`str`, *optional*, defaults to `"cached"`):
            `"cached"`: the reference scores each generation batch once. `"naive_epoch"`: it scores it again in every
            inner pass, with the same numbers; the wasteful baseline.

        kl_target (`float`, *optional*):
            Adapt the coefficient of the active anchor (`beta`, else `beta_old`, else `beta_base`) so that its KL goes to
            this many nats per token (arXiv 1909.08593). `None`: a fixed coefficient.
        kl_horizon (`int`, *optional*, defaults to `100`):
            Optimizer steps in which a persistent error of 20 % or more moves the coefficient by 20 %.

        > Parameters that control the resets

        ref_reset_every (`int`, *optional*, defaults to `0`):
            Request a reset whenever the number of optimizer steps done is a multiple of this. It is applied at the
            next generation boundary. 0: never.
        ref_reset_kl (`float`, *optional*):
            Request a reset when the KL to the reference (`kl_ref`, nats per token) exceeds this. `None`: never.
        ref_reset_kl_window (`int`, *optional*, defaults to `1`):
            Steps over which that KL is averaged.
        ref_reset_stall (`int`, *optional*, defaults to `0`):
            Request a reset after so many evaluations without improving on the best. 0: never.
        ref_reset_drop (`float`, *optional*):
            Request a reset when the metric falls below its best by more than this. `None`: never.
        ref_reset_metric (`str`, *optional*, defaults to `"eval_reward"`):
            The validation metric that `ref_reset_stall` and `ref_reset_drop` watch.
        ref_reset_metric_mode (`str`, *optional*, defaults to `"max"`):
            `"max"` if larger is better, `"min"` if smaller is.
        ref_reset_min_delta (`float`, *optional*, defaults to `0.0`):
            What counts as an improvement of that metric.
        ref_reset_cooldown (`int`, *optional*, defaults to `0`):
            Optimizer steps since the last applied reset before which no trigger fires.
        ref_reset_mix (`float`, *optional*, defaults to `1.0`):
            What the reference becomes at a reset: `mix` · policy + (1 − `mix`) · reference. 1 is a hard copy; between
            0 and 1 the parameters are averaged (with LoRA the factors A and B, which is not the average of their
            products BA); 0 leaves the reference where it is, so that only the optimizer is reset.
        optimizer_reset (`str`, *optional*, defaults to `"keep"`):
            What happens to Adam's state at a reset: `"keep"`, `"hard"` (moments and step count cleared, the learning
            rate schedule starts again, an AMP scaler goes back to its initial scale), `"soft"` (moments times
            `optimizer_reset_alpha`), `"asym"` (first moment cleared, the rest kept). See
            [`~trl_prorl.resets.optimizer_state`] for each optimizer.
        optimizer_reset_alpha (`float`, *optional*, defaults to `0.1`):
            Factor of `optimizer_reset: soft`, in (0, 1]. The next updates are smaller at first (0.6 of the usual at 0.1,
            where gradients agree), then larger (up to 2.9 times): see [`~trl_prorl.resets.optimizer_state`].
        optimizer_reset_schedule (`str`, *optional*):
            What a reset does to the learning-rate schedule: `"keep"` or `"restart"`. `None`: restart with `hard`, keep
            otherwise.
        optimizer_reset_rewarmup_steps (`int`, *optional*, defaults to `0`):
            After a reset the learning rate rises linearly to the schedule's within so many updates.
        elastic_reset_every (`int`, *optional*, defaults to `0`):
            Elastic Reset (arXiv 2312.07551) every so many optimizer steps, at the next generation boundary: policy ← its
            moving average, average ← the initial policy. 0: never.
        elastic_ema (`float`, *optional*, defaults to `0.99`):
            Decay of that moving average, per optimizer step.

        > Parameters that control the cost

        reuse_old_logps (`bool`, *optional*, defaults to `False`):
            Take π_old's log-probabilities from the first inner pass instead of a forward of their own, wherever that
            is sound: nothing was updated since sampling (`gradient_accumulation_steps` a multiple of
            `steps_per_generation`) and no vLLM correction needs them earlier. Elsewhere the forward stays, and
            `env.json` says so.

        pack_groups (`str`, *optional*, defaults to `"off"`):
            `"on"`: every forward that scores tokens computes each prompt once for all its completions, and no
            padding, with the same numbers (see [`~trl_prorl.scoring.packing`]); groups stay together in a micro-batch. A model or
            a task for which that is not possible is refused, and so is a model on which a few tokens, tried when the trainer
            is made, give other numbers; with `"auto"` it is computed as TRL computes it, and `env.json` says why.
        pack_max_tokens (`int`, *optional*):
            Most tokens of one packed forward, with a single process: no less than the longest prompt and
            `max_completion_length`. `None`: a micro-batch is one forward.
        skip_zero_rows (`bool`, *optional*, defaults to `False`):
            Do not compute rows that carry no gradient: those of groups whose rewards are all equal, where no penalty acts
            on them. Gradient and normaliser are the same; `rows_skipped` counts them, and the means over tokens in the
            record are of the rows that were computed.
        drop_zero_rows (`bool`, *optional*, defaults to `False`):
            Rows whose advantage is 0 carry no KL either, so that `skip_zero_rows` need not compute them in A and B. The
            normaliser counts them as before. *Another objective*: the KL no longer acts on solved and on hopeless prompts
            (unless a length reward gives them advantages), nor, with `max` and `best_of_group`, on all but the best rows.

        > Parameters that control the samples and their advantages

        dynamic_sampling_rounds (`int`, *optional*, defaults to `0`):
            At most so many times, groups whose task rewards are all equal are replaced by groups of other prompts (DAPO,
            arXiv 2503.14476). What was generated in vain is counted; the logged rewards are those of the first round.
            Groups still undecided stay: see `drop_zero_rows`.

        dynamic_sampling_rewards (`list[str]`, *optional*):
            Names of the reward functions whose weighted sum decides whether a group's rewards are all equal. `None`: the
            first one that has a weight and a reward for the group, which in a recipe is the task's; a length reward, which
            tells apart any two completions of unequal lengths, does not decide.

        advantage_estimator (`str`, *optional*):
            How rewards become advantages: `"raw"`, `"centered"`, `"group_normalized"`, `"batch_normalized"`, `"rloo"`,
            `"max"`, `"best_of_group"`; see [`~trl_prorl.objective.advantages`]. TRL's `scale_rewards` then has no effect. `None`: TRL's own.

        loss_mode (`str`, *optional*):
            The ratio in the policy gradient: `"no_ratio"` (A ∇log π, as if every sample were fresh), `"unclipped"` (ratio · A)
            or `"clipped"`. The penalties keep their own ratio, and TRL's `off_policy_mask_threshold` and its correction for
            vLLM act with each. `None`: TRL's, which is clipped.

        > Parameters that keep a run safe

        entropy_floor (`float`, *optional*):
            Mean entropy, in nats per token, below which a policy counts as collapsed. `None`: not watched.
        entropy_patience (`int`, *optional*, defaults to `10`):
            Consecutive optimizer steps below it that make a collapse, which is logged as an event.
        entropy_stop (`bool`, *optional*, defaults to `False`):
            Whether a collapse stops the run, with a checkpoint.

        nonfinite (`str`, *optional*, defaults to `"stop"`):
            What NaN or infinity in a reward, the loss, a KL or a gradient does: `"stop"` ends the run before the next
            checkpoint; `"skip"` leaves out that optimizer step (weights and optimizer state stay, the step still counts
            and the learning-rate schedule goes on) and counts it as `nonfinite_skips`. Weights that are not finite always
            stop the run.
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
            Whether `push_to_hub` pushes the frozen adapter `ref` too, into the folder `ref`. TRL's `hub_*` keys say the
            rest; see docs/publishing.md.
    """

    beta_old: float = field(
        default=0.0,
        metadata={"help": "Coefficient of the KL to pi_old, the policy that sampled the batch (variant B)."},
    )
    beta_base: float = field(
        default=0.0, metadata={"help": "Coefficient of the KL to the base policy, the policy as the run began."}
    )
    base_anchor_every: int = field(
        default=1, metadata={"help": "The base anchor acts on every N-th generation batch."}
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
    kl_target: float | None = field(
        default=None, metadata={"help": "Adapt the active anchor's coefficient towards this KL, in nats per token."}
    )
    kl_horizon: int = field(default=100, metadata={"help": "Horizon of the adaptive coefficient, in optimizer steps."})
    ref_reset_every: int = field(
        default=0, metadata={"help": "Request a reset every this many optimizer steps. 0: never."}
    )
    ref_reset_kl: float | None = field(
        default=None, metadata={"help": "Request a reset when the KL to the reference exceeds this."}
    )
    ref_reset_kl_window: int = field(default=1, metadata={"help": "Steps over which that KL is averaged."})
    ref_reset_stall: int = field(
        default=0, metadata={"help": "Request a reset after so many evaluations without improving on the best."}
    )
    ref_reset_drop: float | None = field(
        default=None, metadata={"help": "Request a reset when the metric is worse than its best by more than this."}
    )
    ref_reset_metric: str = field(default="eval_reward", metadata={"help": "The validation metric that is watched."})
    ref_reset_metric_mode: str = field(
        default="max",
        metadata={"help": "Whether larger or smaller is better.", "choices": list(METRIC_MODES)},
    )
    ref_reset_min_delta: float = field(default=0.0, metadata={"help": "What counts as an improvement."})
    ref_reset_cooldown: int = field(
        default=0, metadata={"help": "Optimizer steps since the last reset before which no trigger fires."}
    )
    ref_reset_mix: float = field(
        default=1.0,
        metadata={"help": "At a reset: reference <- mix * policy + (1 - mix) * reference. 0: only the optimizer."},
    )
    optimizer_reset: str = field(
        default="keep", metadata={"help": "What a reset does to the optimizer's state.", "choices": list(MODES)}
    )
    optimizer_reset_alpha: float = field(default=0.1, metadata={"help": "Factor of optimizer_reset=soft, in (0, 1]."})
    optimizer_reset_schedule: str | None = field(
        default=None,
        metadata={
            "help": "What a reset does to the learning-rate schedule: keep or restart. None: restart with hard."
        },
    )
    optimizer_reset_rewarmup_steps: int = field(
        default=0, metadata={"help": "After a reset the learning rate rises linearly within so many updates."}
    )
    elastic_reset_every: int = field(
        default=0, metadata={"help": "Elastic Reset every so many optimizer steps. 0: never."}
    )
    elastic_ema: float = field(default=0.99, metadata={"help": "Decay of Elastic Reset's moving average."})
    reuse_old_logps: bool = field(
        default=False,
        metadata={"help": "Take pi_old's log-probabilities from the first inner pass wherever that is sound."},
    )
    pack_groups: str = field(
        default="off",
        metadata={
            "help": "Compute each prompt once for all its completions, without padding.",
            "choices": list(PACKING),
        },
    )
    pack_max_tokens: int | None = field(
        default=None, metadata={"help": "Most tokens of one packed forward. None: a micro-batch is one forward."}
    )
    skip_zero_rows: bool = field(
        default=False, metadata={"help": "Do not compute rows whose advantage is 0 and that carry no penalty."}
    )
    drop_zero_rows: bool = field(
        default=False, metadata={"help": "Leave rows whose advantage is 0 out of every KL, too."}
    )
    dynamic_sampling_rounds: int = field(
        default=0, metadata={"help": "Rounds in which groups whose rewards are all equal are replaced by new prompts."}
    )
    dynamic_sampling_rewards: list[str] | None = field(
        default=None,
        metadata={"help": "Reward functions by which a group is decided or not. None: the first, the task's."},
    )
    advantage_estimator: str | None = field(
        default=None,
        metadata={"help": f"How rewards become advantages: {', '.join(ADVANTAGES)}. None: TRL's own."},
    )
    loss_mode: str | None = field(
        default=None,
        metadata={
            "help": f"The ratio in the policy gradient: {', '.join(LOSS_MODES)}. None: TRL's, which is clipped."
        },
    )
    entropy_floor: float | None = field(
        default=None, metadata={"help": "Mean entropy, in nats per token, below which a policy counts as collapsed."}
    )
    entropy_patience: int = field(default=10, metadata={"help": "Consecutive optimizer steps below it."})
    entropy_stop: bool = field(default=False, metadata={"help": "Whether a collapse stops the run."})
    log_update_norm: bool = field(
        default=False, metadata={"help": "Record the norm of every update of the trained parameters."}
    )
    nonfinite: str = field(
        default="stop",
        metadata={"help": "What NaN or infinity does: stop the run, or skip the step.", "choices": list(NONFINITE)},
    )
    reward_timeout: float | None = field(
        default=600.0, metadata={"help": "Seconds that a reward function may take for a batch. None: no limit."}
    )
    allow_config_change: bool = field(
        default=False, metadata={"help": "Whether a resume may change the run. The change is logged as an event."}
    )
    run_dir: str | None = field(default=None, metadata={"help": "Where the record of the run goes. None: output_dir."})
    hub_push_reference: bool = field(
        default=False, metadata={"help": "Whether push_to_hub pushes the frozen adapter `ref` too."}
    )

    def __post_init__(self):
        if isinstance(self.pack_groups, bool):  # YAML takes a bare on or off for true or false
            self.pack_groups = "on" if self.pack_groups else "off"
        if str(self.resume_from_checkpoint).lower() in ("true", "false"):  # whichever way it was written
            self.resume_from_checkpoint = "True" if str(self.resume_from_checkpoint).lower() == "true" else None
        self._check_bf16()
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
        return self.ref_reset_every > 0 or self.ref_reset_kl is not None or self.watches_metric

    @property
    def watches_metric(self) -> bool:
        """Whether a trigger needs evaluations."""
        return self.ref_reset_stall > 0 or self.ref_reset_drop is not None

    @property
    def restarts_schedule(self) -> bool:
        """Whether a reset starts the learning-rate schedule again."""
        if self.optimizer_reset_schedule is None:
            return self.optimizer_reset == "hard"
        return self.optimizer_reset_schedule == "restart"

    @property
    def treats_optimizer(self) -> bool:
        """Whether a reset changes anything of the optimizer or its learning rate."""
        return self.optimizer_reset != "keep" or self.restarts_schedule or self.optimizer_reset_rewarmup_steps > 0

    @property
    def anchored(self) -> bool:
        """Whether there is a KL term at all."""
        return self.beta != 0.0 or self.beta_old != 0.0 or self.beta_base != 0.0

    @property
    def is_trl(self) -> bool:
        """Whether every key of ours that could change a number or a forward is off."""
        changes = self.adds_penalty or self.resets or self.elastic_reset_every > 0 or self.kl_target is not None
        changes = (
            changes
            or self.loss_mode is not None
            or self.advantage_estimator is not None
            or self.dynamic_sampling_rounds > 0
        )
        cheaper = self.reuse_old_logps or self.pack_groups != "off" or self.skip_zero_rows
        return not (changes or cheaper or self.ref_compute != "cached")

    @property
    def adds_penalty(self) -> bool:
        """Whether the loss has a KL term that TRL's own loss cannot express."""
        ours = self.kl_estimator != "k3" or self.drop_zero_rows or self.loss_mode == "no_ratio"
        return self.beta_old != 0.0 or self.beta_base != 0.0 or (self.beta != 0.0 and ours)

    @property
    def first_pass_is_old_policy(self) -> bool:
        """Whether every first-pass micro-batch lies before the first update on its samples, with nobody asking for
        π_old's log-probabilities earlier."""
        return self.gradient_accumulation_steps % self.steps_per_generation == 0 and not self.corrects_sampler

    @property
    def corrects_sampler(self) -> bool:
        """Whether TRL corrects for a sampler that is not the policy, for which it needs π_old's log-probabilities at once."""
        return self.use_vllm and self.vllm_importance_sampling_correction

    @property
    def old_logps_source(self) -> str:
        """Where π_old's log-probabilities come from: `"policy"` (they are the policy's own), `"first_pass"` or
        `"forward"`."""
        if self.on_policy and not self.corrects_sampler:
            return "policy"
        return "first_pass" if self.reuse_old_logps and self.first_pass_is_old_policy else "forward"

    @property
    def variant(self) -> str:
        """`"plain"` (no KL), `"control"` (a reference that never moves), `"A"`, `"B"`, `"C"`, and the arms beside them:
        `"optimizer-only"` (the reference stays), `"base-anchored"` (the base anchor alone), `"elastic"`."""
        if self.elastic_reset_every:
            return "elastic"
        if self.beta != 0.0:
            if not self.resets:
                return "control"
            if self.ref_reset_mix == 0.0:
                return "optimizer-only"
            return "C" if self.treats_optimizer else "A"
        if self.beta_old != 0.0:
            return "B"
        return "base-anchored" if self.beta_base != 0.0 else "plain"

    def _check_bf16(self):
        """Refuse, with the keys, what transformers refuses without them."""
        asked = next((key for key in ("bf16", "bf16_full_eval") if getattr(self, key)), None)
        if self.bf16 is None and not self.fp16:
            asked = "bf16"  # TRL's default
        if asked and not (self.use_cpu or is_torch_bf16_gpu_available() or is_torch_xla_available()):
            default = ", the default," if self.bf16 is None and asked == "bf16" else ""
            raise ValueError(
                f"{asked}=True{default} needs a GPU that computes in bfloat16, and torch finds none here. Set {asked}: false, "
                "and use_cpu: true to train on a CPU."
            )

    def _check_values(self):
        for name, choices in (
            ("kl_estimator", ESTIMATORS),
            ("ref_compute", REF_COMPUTE),
            ("optimizer_reset", MODES),
            ("ref_reset_metric_mode", METRIC_MODES),
            ("optimizer_reset_schedule", (None, *SCHEDULES)),
            ("nonfinite", NONFINITE),
            ("pack_groups", PACKING),
            ("advantage_estimator", (None, *ADVANTAGES)),
            ("loss_mode", (None, *LOSS_MODES)),
        ):
            value = getattr(self, name)
            if value not in choices:
                raise ValueError(f"{name}={value!r} is not one of {', '.join(map(str, choices))}.")
        for name in ("beta", "beta_old", "beta_base", "ref_reset_min_delta"):
            self._check_number(name, lambda value: 0 <= value < math.inf, "a finite number that is not negative")
        for name in (
            "ref_reset_every",
            "ref_reset_stall",
            "ref_reset_cooldown",
            "optimizer_reset_rewarmup_steps",
            "elastic_reset_every",
            "dynamic_sampling_rounds",
        ):
            self._check_number(name, lambda value: value >= 0 and value == int(value), "a whole number from 0")
        for name in ("base_anchor_every", "ref_reset_kl_window", "kl_horizon", "entropy_patience"):
            self._check_number(name, lambda value: value >= 1 and value == int(value), "a whole number from 1")
        if self.pack_max_tokens is not None:
            self._check_number(
                "pack_max_tokens", lambda value: value >= 1 and value == int(value), "a whole number from 1"
            )
        for name in ("ref_reset_kl", "ref_reset_drop", "kl_target", "reward_timeout", "entropy_floor"):
            if getattr(self, name) is not None:
                self._check_number(name, lambda value: 0 < value < math.inf, "a positive number")
        self._check_number("temperature", lambda value: 0 < value < math.inf, "a positive number")
        self._check_number("ref_reset_mix", lambda value: 0 <= value <= 1, "in [0, 1]; 1 is a hard copy")
        self._check_number("elastic_ema", lambda value: 0 <= value < 1, "in [0, 1)")
        self._check_number(
            "optimizer_reset_alpha",
            lambda value: 0 < value <= 1,
            "in (0, 1]; to clear the state use optimizer_reset: hard",
        )

        names = self.dynamic_sampling_rewards
        if names is not None and not (names and isinstance(names, list) and all(isinstance(n, str) for n in names)):
            raise ValueError(f"dynamic_sampling_rewards={names!r} must be a list of names of reward functions.")
        if not isinstance(self.hub_push_reference, bool):
            raise ValueError(f"hub_push_reference={self.hub_push_reference!r} must be true or false.")

    def _check_number(self, name, is_right, what):
        value = getattr(self, name)
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value)
        if not (number and is_right(value)):
            raise ValueError(f"{name}={value!r} must be {what}.")

    def _check_combinations(self):
        if self.nonfinite == "skip" and (self.fp16 or self.deepspeed):
            raise ValueError(
                "nonfinite='skip' with fp16 or DeepSpeed, whose loss scaler skips steps by itself, is not supported. Set "
                "nonfinite: stop, or bf16: true."
            )
        if self.anchored and self.kl_estimator == "k1" and not self.use_bias_correction_kl:
            raise ValueError(
                "kl_estimator='k1' with use_bias_correction_kl=False has zero expected gradient: it would penalise "
                "nothing. Set use_bias_correction_kl: true, or kl_estimator: k3."
            )
        if self.advantage_estimator is not None and self.multi_objective_aggregation != "sum_then_normalize":
            raise ValueError(
                f"advantage_estimator={self.advantage_estimator!r} needs one reward a completion, and "
                f"multi_objective_aggregation={self.multi_objective_aggregation!r} makes none. Set it to sum_then_normalize."
            )
        if self.dynamic_sampling_rounds:
            if self.scale_rewards == "batch" and self.advantage_estimator is None:
                raise ValueError(
                    "dynamic_sampling_rounds with scale_rewards='batch' would scale each round by itself. Set "
                    "advantage_estimator: batch_normalized, which is computed over the final batch."
                )
            if self.multi_objective_aggregation != "sum_then_normalize" and self.advantage_estimator is None:
                raise ValueError(
                    f"dynamic_sampling_rounds with multi_objective_aggregation={self.multi_objective_aggregation!r} would "
                    "normalise each round by itself. Set it to sum_then_normalize."
                )
            if self.corrects_sampler:
                raise ValueError(
                    "dynamic_sampling_rounds scores once its groups are found, and vllm_importance_sampling_correction=True "
                    "needs scores before. Set vllm_importance_sampling_correction: false."
                )
        if self.loss_mode is not None and self.loss_type not in CLIPPED_LOSSES:
            raise ValueError(
                f"loss_mode={self.loss_mode!r} is about the clipped ratio, and loss_type={self.loss_type!r} has none. Set "
                f"loss_type to one of {', '.join(CLIPPED_LOSSES)}, or leave loss_mode out."
            )
        if self.loss_mode in ("no_ratio", "unclipped") and self.delta is not None:
            raise ValueError(
                f"loss_mode={self.loss_mode!r} leaves no clip on the ratio, and delta={self.delta} is one. Leave delta "
                "out, or set loss_mode: clipped."
            )
        if self.entropy_stop and self.entropy_floor is None:
            raise ValueError(
                "entropy_stop=True never stops anything without entropy_floor: set it, in nats per token."
            )
        if self.skip_zero_rows and self.top_entropy_quantile < 1.0:
            raise ValueError(
                f"skip_zero_rows=True leaves out rows whose entropies top_entropy_quantile={self.top_entropy_quantile} "
                "ranks. Set skip_zero_rows: false, or top_entropy_quantile: 1.0."
            )
        if self.drop_zero_rows and not self.anchored:
            raise ValueError(
                "drop_zero_rows=True leaves rows out of the KL, and there is none. Set beta, beta_old or beta_base, or "
                "leave drop_zero_rows out."
            )
        if self.beta_old != 0.0 and self.on_policy:
            raise ValueError(
                f"beta_old={self.beta_old} can do nothing with {self._schedule}: no sample is used after an update, so the "
                "policy equals pi_old wherever the penalty is evaluated. Set num_iterations: 2 (or more), or a "
                "steps_per_generation larger than gradient_accumulation_steps."
            )
        if self.ref_compute == "naive_epoch" and self.beta == 0.0:
            raise ValueError("ref_compute='naive_epoch' needs a reference: set beta > 0, or ref_compute: cached.")
        if self.kl_target is not None and not self.anchored:
            raise ValueError(
                f"kl_target={self.kl_target} adapts the coefficient of an anchor, and there is none. Set beta, beta_old "
                "or beta_base to where it shall start."
            )
        if self.elastic_reset_every:
            self.check_reset_schedule()
        self._check_that_all_is_used()
        if self.hub_push_reference and self.beta == 0.0:
            raise ValueError(
                "hub_push_reference=True pushes the reference, but beta=0 means that there is none. Leave "
                "hub_push_reference out, or set beta > 0."
            )
        if not self.resets:
            for name, off in (
                ("optimizer_reset", "keep"),
                ("optimizer_reset_schedule", None),
                ("optimizer_reset_rewarmup_steps", 0),
                ("ref_reset_cooldown", 0),
            ):
                if getattr(self, name) != off:
                    raise ValueError(
                        f"{name}={getattr(self, name)!r} is never applied: nothing requests a reset. Set ref_reset_every "
                        f"(or ref_reset_kl, ref_reset_stall, ref_reset_drop), or leave {name} out. With triggers of your "
                        "own alone, set ref_reset_every to more than max_steps."
                    )
            return
        trigger = self._first_trigger
        if self.beta == 0.0 and self.ref_reset_mix != 0.0:
            raise ValueError(
                f"{trigger}={getattr(self, trigger)} moves a reference, but beta=0 means that there is none. Set "
                "beta > 0 (variants A and C), or ref_reset_mix: 0 to reset the optimizer alone."
            )
        if self.beta == 0.0 and self.ref_reset_kl is not None:
            raise ValueError(
                f"ref_reset_kl={self.ref_reset_kl} watches the KL to a reference, but beta=0 means that there is none. "
                "Set beta > 0, or use another trigger."
            )
        if self.ref_reset_mix == 0.0 and not self.treats_optimizer:
            raise ValueError(
                "ref_reset_mix=0 with optimizer_reset='keep' resets nothing. Set ref_reset_mix: 1, or an "
                "optimizer_reset of hard, soft or asym."
            )
        if self.watches_metric and not self.ref_reset_metric.startswith("eval_"):
            raise ValueError(
                f"ref_reset_metric={self.ref_reset_metric!r} is no metric of an evaluation, whose names begin with eval_. Set "
                f"it to eval_reward, or to eval_rewards/NAME/mean of one reward function."
            )
        if self.watches_metric and self.eval_strategy == "no":
            raise ValueError(
                f"{'ref_reset_stall' if self.ref_reset_stall else 'ref_reset_drop'} watches "
                f"ref_reset_metric={self.ref_reset_metric!r}, but eval_strategy='no' never measures it. Set "
                "eval_strategy: steps and eval_steps."
            )
        if self.sync_ref_model:
            raise ValueError(
                f"sync_ref_model=True and {trigger} both move the reference, and TRL's callback moves it in the "
                "middle of a generation batch. Set sync_ref_model: false."
            )
        self.check_reset_schedule()

    def _check_that_all_is_used(self):
        """Refuse a value that nothing would ever look at."""
        watches = (self.watches_metric, "ref_reset_stall or ref_reset_drop")
        needs = {
            "optimizer_reset_alpha": (self.optimizer_reset == "soft", "optimizer_reset: soft"),
            "kl_horizon": (self.kl_target is not None, "kl_target"),
            "base_anchor_every": (self.beta_base != 0.0, "beta_base > 0"),
            "dynamic_sampling_rewards": (self.dynamic_sampling_rounds > 0, "dynamic_sampling_rounds"),
            "pack_max_tokens": (self.pack_groups != "off", 'pack_groups: "on"'),
            "elastic_ema": (self.elastic_reset_every > 0, "elastic_reset_every"),
            "entropy_patience": (self.entropy_floor is not None, "entropy_floor"),
            "ref_reset_kl_window": (self.ref_reset_kl is not None, "ref_reset_kl"),
            "ref_reset_metric": watches,
            "ref_reset_metric_mode": watches,
            "ref_reset_min_delta": watches,
        }
        check_used(self, needs)

    @property
    def _first_trigger(self) -> str:
        names = ("ref_reset_every", "ref_reset_kl", "ref_reset_stall", "ref_reset_drop")
        return next(name for name in names if getattr(self, name))

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
        for name in ("beta", "beta_old", "beta_base"):
            if getattr(self, name) == 0.0:
                continue
            bias = gradient_bias(
                self.kl_estimator, self.use_bias_correction_kl, self.importance_sampling_level, self.on_policy
            )
            if bias is not None:
                warnings.warn(f"The gradient of the {name} penalty is biased: {bias}.", stacklevel=4)
