"""`ProRLConfig`: TRL's `GRPOConfig` and the keys of prolonged training. Every key's default is off, i.e. plain TRL."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields

from trl import GRPOConfig

from .objective.kl import gradient_bias
from .refusals import UNCLEAN_SCHEDULE, check_batch, check_combinations, check_launcher, check_machine, check_values
from .resets.treatments import TREATMENTS
from .resets.triggers import CONFIGURED
from .variants import variant_of


# What `fast` switches on.
FAST = {"reuse_old_logps": True, "pack_groups": "auto", "compact_generation": "auto"}


class Given:
    """Knows the keywords by which it was made: a value that equals its default does not tell who set it."""

    given: frozenset[str] = frozenset()

    def __new__(cls, *args, **keys):
        made = super().__new__(cls)
        everything = {field.name for field in fields(cls) if field.init} <= keys.keys()  # as TrlParser makes it
        made.given = frozenset() if everything else frozenset(keys)
        return made


@dataclass
class ProRLConfig(GRPOConfig, Given):
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
        ref_compute (`str`, *optional*, defaults to `"cached"`):
            `"cached"`: the reference scores each generation batch once. `"naive_epoch"`: it scores it again in every
            inner pass, with the same numbers; the wasteful baseline.

        kl_target (`float`, *optional*):
            Adapt the coefficient of the active anchor (`beta`, else `beta_old`, else `beta_base`) so that its KL
            approaches this many nats per token (arXiv 1909.08593). `None`: a fixed coefficient.
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
        optimizer_reset (`str`, *optional*, defaults to `"keep"`):
            What happens to Adam's state at a reset: `"keep"`, `"hard"` (moments and step count cleared, the learning
            rate schedule starts again, an AMP scaler goes back to its initial scale), `"soft"` (moments times
            `optimizer_reset_alpha`), `"asym"` (first moment cleared, the rest kept), `"step"` (step count cleared, the
            moments kept: Adam-Rel, arXiv 2412.17113; Adam's family alone). See [`~trl_prorl.resets.optimizer_state`]
            for each optimizer.
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
            what it is. Adam keeps its state of the old ranks, and its step count. 0: never. See docs/growth.md.
        lora_growth_step (`int`, *optional*, defaults to `4`):
            Ranks that a growth adds.
        lora_growth_max_rank (`int`, *optional*, defaults to `64`):
            The rank at which growth ends.

        > Parameters that control the cost

        fast (`bool`, *optional*, defaults to `False`):
            Every acceleration that changes no number beyond rounding, or draws from the same distribution:
            `reuse_old_logps: true`, `pack_groups: auto` and `compact_generation: auto`. A key that is set by hand
            wins, at its default too (with TRL's `TrlParser`, which passes all keys, only at another value). What is
            not possible falls back, also where dropout is active; a line at the start and `env.json` say why.
            `skip_zero_rows` is not among them, because it changes means of the record.
        reuse_old_logps (`bool`, *optional*, defaults to `False`):
            Take π_old's log-probabilities from the first inner pass instead of a forward of their own, wherever that
            is sound: nothing was updated since sampling (`gradient_accumulation_steps` a multiple of
            `steps_per_generation`) and no vLLM correction needs them earlier. Elsewhere the forward stays, and
            `env.json` says so.

        pack_groups (`str`, *optional*, defaults to `"off"`):
            `"on"`: every forward that scores tokens computes each prompt once for all its completions, and no
            padding, with the same numbers (see [`~trl_prorl.scoring.packing`]); groups stay together in a micro-batch.
            A model or a task for which that is not possible is refused, and so is a model that gives other numbers
            for a few tokens, which are tried when the trainer is made; with `"auto"` it is computed as TRL computes
            it, and `env.json` says why.
        pack_max_tokens (`int`, *optional*):
            Most tokens of one packed forward, with a single process: no less than the longest prompt and
            `max_completion_length`. `None`: a micro-batch is one forward.
        compact_generation (`str`, *optional*, defaults to `"off"`):
            `"on"`: rollouts compute each prompt once for all its completions, drop a completion when it ends, and
            sample from a copy of the policy with LoRA merged (see [`~trl_prorl.rollout.compact`] and
            [`~trl_prorl.rollout.merged_copy`]). Settings of the generation mean what they mean in TRL. A model or a
            setting for which that is not possible is refused; with `"auto"` transformers' `generate` samples, and
            `env.json` says why. The copy takes memory of its own for the weights that LoRA changes.
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
            How rewards become advantages: `"raw"`, `"centered"`, `"group_normalized"`, `"batch_normalized"`, `"rloo"`,
            `"max"`, `"best_of_group"`; see [`~trl_prorl.objective.advantages`]. TRL's `scale_rewards` then has no
            effect. `None`: TRL's own.
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
            than it was then, both as averages over 20 optimizer steps: the reward is being gamed. `None`: off.
        guard_gap_action (`str`, *optional*, defaults to `"event"`):
            What then happens: `"event"` (an event in the record, and a warning), `"reset"` (a reset of the reference
            is requested too) or `"stop"` (the run ends, with a checkpoint).

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

    beta_old: float = 0.0
    beta_base: float = 0.0
    base_anchor_every: int = 1
    kl_estimator: str = "k3"
    kl_clamp: float | None = None
    ref_compute: str = "cached"
    kl_target: float | None = None
    kl_horizon: int = 100

    ref_reset_every: int = 0
    ref_reset_kl: float | None = None
    ref_reset_kl_window: int = 1
    ref_reset_stall: int = 0
    ref_reset_drop: float | None = None
    ref_reset_metric: str = "eval_reward"
    ref_reset_metric_mode: str = "max"
    ref_reset_min_delta: float = 0.0
    ref_reset_cooldown: int = 0
    ref_reset_mix: float = 1.0
    optimizer_reset: str = "keep"
    optimizer_reset_alpha: float = 0.1
    optimizer_reset_schedule: str | None = None
    optimizer_reset_rewarmup_steps: int = 0
    elastic_reset_every: int = 0
    elastic_ema: float = 0.99

    lora_growth_every: int = 0
    lora_growth_step: int = 4
    lora_growth_max_rank: int = 64

    fast: bool = False
    reuse_old_logps: bool = False
    pack_groups: str = "off"
    pack_max_tokens: int | None = None
    compact_generation: str = "off"
    skip_zero_rows: bool = False
    drop_zero_rows: bool = False

    dynamic_sampling_rounds: int = 0
    dynamic_sampling_rewards: list[str] | None = None
    advantage_estimator: str | None = None
    loss_mode: str | None = None

    entropy_floor: float | None = None
    entropy_patience: int = 10
    entropy_stop: bool = False
    guard_gap: float | None = None
    guard_gap_action: str = "event"
    nonfinite: str = "stop"
    reward_timeout: float | None = 600.0
    allow_config_change: bool = False

    run_dir: str | None = None
    log_update_norm: bool = False
    hub_push_reference: bool = False

    def __post_init__(self):
        self.given_up: str | None = None  # why nothing is accelerated that `fast` has switched on
        for key, value in FAST.items() if self.fast else ():
            if key not in self.given and getattr(self, key) == self.__dataclass_fields__[key].default:
                setattr(self, key, value)
        for key in ("pack_groups", "compact_generation"):
            if isinstance(getattr(self, key), bool):  # YAML takes a bare on or off for true or false
                setattr(self, key, "on" if getattr(self, key) else "off")
        if str(self.resume_from_checkpoint).lower() in ("true", "false"):  # whichever way it was written
            self.resume_from_checkpoint = "True" if str(self.resume_from_checkpoint).lower() == "true" else None
        check_machine(self)
        check_batch(self)
        try:
            super().__post_init__()
        except ValueError:
            check_batch(self)  # TRL names a key that it computed; this names the keys that were given
            raise
        check_launcher(self)
        check_values(self)
        check_combinations(self)
        for name, bias in self.gradient_biases.items():
            warnings.warn(f"The gradient of the {name} penalty is biased: {bias}.", stacklevel=3)

    def check_reset_schedule(self) -> None:
        """
        Refuse a schedule in which a reset has no clean place. Triggers that are no keys ask for it, too.

        Raises:
            `ValueError`: a generation falls inside an accumulation.
        """
        if self.generates_inside_accumulation:
            raise ValueError(UNCLEAN_SCHEDULE.line(self))

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
    def generates_inside_accumulation(self) -> bool:
        """Whether a generation falls between the micro-batches of one update, so that a reset has no clean place."""
        accumulation, every = self.gradient_accumulation_steps, self.generate_every
        return accumulation % every != 0 and every % accumulation != 0

    @property
    def schedule(self) -> str:
        """The keys that say when to generate and when to update, with their values."""
        return (
            f"gradient_accumulation_steps={self.gradient_accumulation_steps}, "
            f"steps_per_generation={self.steps_per_generation}, num_iterations={self.num_iterations}"
        )

    @property
    def resets(self) -> bool:
        """Whether a reset can ever be requested by a key of this configuration."""
        guarded = self.guard_gap is not None and self.guard_gap_action == "reset"
        return guarded or any(trigger.is_on(self) for trigger in CONFIGURED)

    def first_reset(self, steps: int) -> int | None:
        """After how many of `steps` optimizer steps `ref_reset_every` resets for the first time; `None`: never."""
        apart = max(1, self.generate_every // self.gradient_accumulation_steps)
        applied = -(-self.ref_reset_every // apart) * apart  # the next generation, which the last step does not have
        return applied if 0 < applied < steps else None

    @property
    def changes_at_boundary(self) -> bool:
        """Whether a key of this configuration changes weights, reference or ranks at a generation boundary."""
        return self.resets or self.elastic_reset_every > 0 or self.lora_growth_every > 0

    @property
    def watches_metric(self) -> bool:
        """Whether a trigger needs evaluations."""
        return self.ref_reset_stall > 0 or self.ref_reset_drop is not None

    @property
    def restarts_schedule(self) -> bool:
        """Whether a reset starts the learning-rate schedule again."""
        if self.optimizer_reset_schedule is None:
            return TREATMENTS[self.optimizer_reset].restarts_schedule
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
        penalties = self.adds_penalty or self.kl_target is not None or self.loss_mode is not None
        samples = self.dynamic_sampling_rounds > 0 or self.advantage_estimator is not None
        accelerated = any(getattr(self, key) not in (False, "off") and not self.gives_up(key) for key in FAST)
        cost = accelerated or self.skip_zero_rows or self.ref_compute != "cached"
        return not (penalties or self.changes_at_boundary or samples or cost)

    @property
    def adds_penalty(self) -> bool:
        """Whether the loss has a KL term that TRL's own loss cannot express."""
        ours = self.kl_estimator != "k3" or self.drop_zero_rows or self.loss_mode == "no_ratio"
        ours = ours or self.kl_clamp is not None
        return self.beta_old != 0.0 or self.beta_base != 0.0 or (self.beta != 0.0 and ours)

    @property
    def first_pass_is_old_policy(self) -> bool:
        """
        Whether every first-pass micro-batch lies before the first update on its samples, and nothing needs π_old's
        log-probabilities earlier.
        """
        return self.gradient_accumulation_steps % self.steps_per_generation == 0 and not self.corrects_sampler

    @property
    def corrects_sampler(self) -> bool:
        """Whether TRL corrects for a sampler that is not the policy, which takes π_old's log-probabilities at once."""
        return self.use_vllm and self.vllm_importance_sampling_correction

    @property
    def old_logps_source(self) -> str:
        """
        Where π_old's log-probabilities come from: `"policy"` (they are the policy's own), `"first_pass"` or
        `"forward"`.
        """
        if self.on_policy and not self.corrects_sampler:
            return "policy"
        reuses = self.reuse_old_logps and not self.gives_up("reuse_old_logps")
        return "first_pass" if reuses and self.first_pass_is_old_policy else "forward"

    @property
    def why_no_reuse(self) -> str | None:
        """Why π_old takes a forward of its own though `reuse_old_logps` is set; `None` if it does not."""
        if not self.reuse_old_logps or self.old_logps_source != "forward":
            return None
        if self.gives_up("reuse_old_logps") or self.corrects_sampler:
            return self.given_up or "vllm_importance_sampling_correction=True needs π_old's log-probabilities at once."
        return (
            f"gradient_accumulation_steps={self.gradient_accumulation_steps} is no multiple of "
            f"steps_per_generation={self.steps_per_generation}, so that an update precedes a part of the first pass."
        )

    def gives_up(self, key: str) -> bool:
        """Whether an acceleration that `fast` asks for is given up."""
        return self.given_up is not None and getattr(self, key) == FAST[key]

    def check_or_give_up(self, check: Callable, *about) -> None:
        """Make a check that all of ours needs; give up what `fast` asks for instead, if there is nothing else."""
        try:
            if not self.is_trl:
                check(*about)
        except ValueError as error:
            self.given_up = str(error) if self.fast else None
            if not self.is_trl:
                raise

    @property
    def variant(self) -> str:
        """
        `"plain"` (no KL), `"control"` (a reference that never moves), `"A"`, `"B"`, `"C"`, and the arms beside them:
        `"optimizer-only"` (the reference stays), `"base-anchored"` (the base anchor alone), `"elastic"`.
        """
        return variant_of(self)

    @property
    def gradient_biases(self) -> dict[str, str]:
        """By coefficient that is not 0, how the gradient of its penalty is biased, if it is."""
        asked = (self.kl_estimator, self.use_bias_correction_kl, self.importance_sampling_level, self.on_policy)
        bias = gradient_bias(*asked, self.kl_clamp)
        names = ("beta", "beta_old", "beta_base")
        return {} if bias is None else {name: bias for name in names if getattr(self, name) != 0.0}
