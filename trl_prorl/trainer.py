"""
`ProRLTrainer`: TRL's `GRPOTrainer` with moving references, an old-policy anchor, resets, and a record.

This file holds TRL's overrides in the order of a step, and the assembly of the parts that do the work. It and the
three mixins (`adapters/mixin.py`, `hub/mixin.py`, `run/checkpointing.py`) alone know TRL's private methods, which
`tests/test_upstream_contract.py` pins. With every ProRL key at its default TRL's own methods compute everything, and
this class only observes.
"""

import logging
import math
from contextlib import nullcontext
from pathlib import Path

import torch
from accelerate.utils import gather_object
from trl import GRPOTrainer
from trl.models.utils import disable_gradient_checkpointing
from trl.trainer.utils import add_fused_lm_head, split_tensor_dict

from .adapters.mixin import AdapterMixin
from .errors import EvaluationError, RewardError
from .hub.mixin import HubMixin
from .launch.checks import check_prompts_fit
from .launch.plan import Plan
from .objective.advantages import estimate
from .objective.aggregation import WINDOW_LOSSES, token_weights
from .objective.anchors import Anchors, completion_mask, logps_key
from .parts import Parts
from .resets.callbacks import ReferenceResetCallback
from .resets.controller import Resets, configured_triggers
from .resets.elastic import ElasticAverage, ElasticResets
from .resets.triggers import Reason
from .rollout.dynamic_sampling import DynamicSampling, named_functions, undecided
from .rollout.outcome import Outcome, own_part, weighted_sum
from .rollout.rewards import watched
from .run.checkpointing import CheckpointMixin
from .run.entropy_watch import EntropyWatch
from .run.finite_guard import FiniteGuard
from .run.identity import base_parameters, dataset_hash, weights_hash
from .run.meter import Meter, StageTimer, UpdateNorm
from .run.recorder import LOGGED, Recorder
from .scoring.dropout import check_dropout, check_randomness
from .scoring.fp32_head import cast_head_to_fp32
from .scoring.grouping import whole_groups
from .scoring.packing import choose_packing, packed_logps
from .scoring.packing_probe import probe
from .scoring.references import PolicyItself, base_of, reference_of
from .scoring.scorer import Scorer, scored_rows


logger = logging.getLogger(__name__)


class ProRLTrainer(CheckpointMixin, HubMixin, AdapterMixin, GRPOTrainer):
    """
    Trainer for prolonged GRPO: see [`ProRLConfig`] for what it adds to [`~trl.GRPOTrainer`], whose arguments it takes.

    With LoRA, a reset copies the trained adapter onto the frozen adapter `ref`; with full fine-tuning, the model onto
    a snapshot. Variant B (`beta=0`, `beta_old>0`) has neither.

    Example:

    ```python
    >>> from trl_prorl import ProRLConfig, ProRLTrainer

    >>> trainer = ProRLTrainer(
    ...     model="Qwen/Qwen2.5-0.5B-Instruct",
    ...     reward_funcs=reward,
    ...     args=ProRLConfig(beta=0.05, num_iterations=2, ref_reset_every=200, reuse_old_logps=True),
    ...     train_dataset=dataset,
    ...     peft_config=LoraConfig(),
    ... )
    >>> trainer.train()
    ```
    """

    _tag_names = ["trl", "grpo", "prorl"]
    has_begun = False  # whether a step was begun
    anchors: Anchors | None = None  # None until TRL's trainer is made

    # ------------------------------------------------------------------------------------------------ assembly

    def __init__(self, model, reward_funcs=None, args=None, *others, **named):
        plan = Plan.of(self, model, reward_funcs, args, others, named)
        self._check_hub(plan.args, plan.given, plan.moves)
        plan.wrap()
        with plan.loading():
            super().__init__(**plan.given)
        self._assemble(plan)

    def _assemble(self, plan: Plan) -> None:
        """Make the parts; each owns what it remembers, and none knows the trainer."""
        args, accelerator = self.args, self.accelerator
        policy = accelerator.unwrap_model(self.model)
        if plan.casts_head:
            cast_head_to_fp32(policy.get_base_model())
            outputs = ("log_probs", "entropy")
            add_fused_lm_head(policy.get_base_model(), self.temperature, cast_lm_head_to_fp32=True, outputs=outputs)
        if "default" in getattr(policy, "peft_config", {}):
            self._remember_initialisation(policy.peft_config["default"], plan.given_wrapped, plan.moves)
        if not args.is_trl:
            check_dropout(self.model)
            if self._shards_weights:
                logger.warning(
                    "Weights are sharded, so that no forward has looked for dropout that has no module of its own."
                )
            else:
                check_randomness(policy, accelerator.autocast())
        if args.skip_zero_rows and self._has_images:
            raise ValueError(
                "skip_zero_rows=True leaves out rows of text alone, and the prompts have images: set it false."
            )
        self._identity = {
            **plan.keys,
            "processes": accelerator.num_processes,
            "weights of the model": weights_hash(base_parameters(policy)),
            "rows of the training set": dataset_hash(self.train_dataset),
            "reward functions": list(self.reward_func_names),
        }
        self.reward_funcs = [
            function
            if isinstance(function, torch.nn.Module)
            else watched(function, name, args.reward_timeout, args.nonfinite, training=lambda: self.model.training)
            for function, name in zip(self.reward_funcs, self.reward_func_names, strict=True)
        ]
        self.packing = self._choose_packing()
        if self.packing.startswith("on") and args.pack_max_tokens is not None:
            check_prompts_fit(self.train_dataset, self.eval_dataset, self.tokenize_prompts, args)
        self.recipe: tuple = ()  # dataclasses of a recipe that `config.yaml` shall hold beside `args`
        if args.loss_mode == "unclipped":
            self.epsilon_low = self.epsilon_high = math.inf
        self._generations = 0
        self._outcome: Outcome | None = None  # of the newest sampling
        self._learning_rate: float | None = None

        self.meter = Meter(accelerator.device)
        self.anchors = Anchors(args)
        self.scorer = Scorer(args, self.meter, self.packing.startswith("on"), not self._is_vlm, accelerator.autocast)
        self.recorder = Recorder(args, self.meter, self.anchors, self._total, accelerator.num_processes)
        self.guard = FiniteGuard(args.nonfinite, accelerator, self.recorder.event, self._decode)
        self.resets = Resets(args, accelerator, self.meter.timer, plan.resets)
        self.parts = Parts(anchors=self.anchors, recorder=self.recorder, guard=self.guard, resets=self.resets)
        if args.elastic_reset_every:
            trained = {name: param for name, param in policy.named_parameters() if param.requires_grad}
            average, every = ElasticAverage(trained, args.elastic_ema), args.elastic_reset_every
            self.parts["elastic"] = ElasticResets(average, every, self.meter.timer, accelerator.num_processes)
        functions = named_functions(
            args.dynamic_sampling_rewards, self.reward_func_names, self.reward_weights.tolist()
        )
        if args.dynamic_sampling_rounds:
            self.parts["dynamic_sampling"] = DynamicSampling(
                args, accelerator, self.train_dataset, self.num_generations, self._tokenizer.pad_token_id, functions
            )
        if args.entropy_floor is not None:
            self.parts["entropy_watch"] = EntropyWatch(args.entropy_floor, args.entropy_patience, args.entropy_stop)

        full = accelerator.unwrap_model(self.ref_model) if self.ref_model is not None else None
        fills = plan.moves and not self.is_fsdp_enabled
        self.reference = reference_of(policy, full, fills) if args.beta != 0.0 else None
        self.base = None
        if args.beta_base:
            cast = args.cast_lm_head_to_fp32
            self.base = base_of(policy, plan.fresh_adapter, self.temperature, accelerator, cast)
        self.resets.reference = self.reference
        self.resets.watch(self._reset_callbacks)
        for callback in self._reset_callbacks():
            self._bind(callback)
        if args.resets:
            self.add_callback(ReferenceResetCallback(configured_triggers(args), args.ref_reset_cooldown))

    @property
    def _has_images(self) -> bool:
        columns = getattr(self.train_dataset, "column_names", None) or ()
        return self._is_vlm or not {"image", "images"}.isdisjoint(columns)

    @property
    def _shards_weights(self) -> bool:
        plugin = self.args.deepspeed_plugin
        return self.is_fsdp_enabled or (plugin is not None and plugin.zero_stage == 3)

    def _choose_packing(self) -> str:
        policy = self.accelerator.unwrap_model(self.model)
        objections = {
            "the prompts have images.": self._has_images,
            "tools write into the completions.": bool(self.tools) or self.environments is not None,
            "the load-balancing loss averages over tokens, prompts included, as padded.": self.aux_loss_enabled,
        }
        probed = None if self._shards_weights else lambda: self._probed(policy)
        return choose_packing(self.args, policy, objections, self.accelerator.num_processes, probed)

    def _probed(self, policy) -> str | None:
        """Why the model's own numbers forbid packing, the same on every process."""
        plain, autocast = super()._get_per_token_logps_and_entropies, self.accelerator.autocast

        def padded(input_ids, attention_mask, logits_to_keep):
            return plain(policy, input_ids, attention_mask, logits_to_keep)[0]

        def packed(input_ids, attention_mask, logits_to_keep):
            return packed_logps(policy, input_ids, attention_mask, logits_to_keep, autocast=autocast)[0]

        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.accelerator.mixed_precision)
        reason = probe(policy, policy.get_input_embeddings().weight.shape[0], padded, packed, dtype)
        return next(filter(None, gather_object([reason])), None)

    def _total(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum of a tensor over processes."""
        return self.accelerator.reduce(tensor, reduction="sum")

    def _decode(self, token_ids: torch.Tensor) -> list[str]:
        return self.processing_class.batch_decode(token_ids, skip_special_tokens=True)

    def _reset_callbacks(self) -> list[ReferenceResetCallback]:
        return [cb for cb in self.callback_handler.callbacks if isinstance(cb, ReferenceResetCallback)]

    def _bind(self, callback: ReferenceResetCallback) -> None:
        self.resets.bind(callback, self.recorder.kl_ref_so_far, lambda: self.is_in_train, self.eval_dataset)

    def add_callback(self, callback):
        if isinstance(callback, ReferenceResetCallback) and self.anchors is not None:
            self._bind(callback)
        super().add_callback(callback)

    @property
    def beta(self) -> float:
        """The coefficient of the KL to the reference; 0 inside TRL's loss where the anchors add their own term."""
        if self.anchors is None:
            return self._beta_of_trl
        return 0.0 if self.scorer.in_loss and self.args.adds_penalty else self.anchors["ref"].coefficient

    @beta.setter
    def beta(self, value: float) -> None:
        self._beta_of_trl = value
        if self.anchors is not None:
            self.anchors["ref"].coefficient = value

    # ---------------------------------------------------------------------------------- before the first step

    def create_optimizer(self, *args, **kwargs):
        optimizer = super().create_optimizer(*args, **kwargs)
        self.resets.optimizer_made(optimizer)
        if self.recorder.update_norm is None and self.args.log_update_norm:
            self.recorder.update_norm = UpdateNorm(optimizer)
        return optimizer

    def create_scheduler(self, *args, **kwargs):
        scheduler = super().create_scheduler(*args, **kwargs)
        self.resets.schedule_made(scheduler)
        return scheduler

    # --------------------------------------------------------------------------------------- a step: the batch

    def training_step(self, model, inputs, num_items_in_batch=None):
        self.has_begun = True
        if not self.meter.open:
            self.meter.begin_step()
        loss = super().training_step(model, inputs, num_items_in_batch)
        # After a reset, before the update.
        self._learning_rate = self.optimizer.param_groups[0]["lr"] * self.resets.rate_factor
        return loss

    def _prepare_inputs(self, generation_batch):
        if not (self.scorer.packs and self.model.training):
            return super()._prepare_inputs(generation_batch)
        # TRL's method, but for its shuffle, which scatters the groups over the micro-batches; a packed row is a group.
        if self._step % self.args.generate_every == 0 or self._buffered_inputs is None:
            batch = self._generate_and_score_completions(generation_batch)
            order = whole_groups(torch.randperm(len(batch["advantages"])), self.num_generations)
            batch = {name: value[order] if value.dim() else value for name, value in batch.items()}
            self._buffered_inputs = split_tensor_dict(batch, self.args.steps_per_generation)
        return self._buffered_inputs[self._step % self.args.steps_per_generation]

    def _generate_and_score_completions(self, inputs):
        if not self.model.training:
            return super()._generate_and_score_completions(inputs)
        step = self.state.global_step
        if (elastic := self.parts.get("elastic")) is not None:
            self._log_event(elastic.apply(step))
        self._log_event(self.resets.apply(step, self.optimizer, self.lr_scheduler, self.recorder.kl_ref))
        self.anchors.adapt()
        with self.meter.timer.stage("rollout"):
            if (dynamic := self.parts.get("dynamic_sampling")) is not None:
                batch, outcome, measured = dynamic.sample(
                    inputs, self._sample, self._sample_again, self.reward_weights
                )
            else:
                batch, outcome = self._sample(inputs)
                measured = outcome.measurements()
            base_acts = self.base is not None and self._generations % self.args.base_anchor_every == 0
            for kind in self.scorer.kinds_of(batch, base_acts):
                batch[logps_key(kind)] = self._anchor_logps(kind, batch, self.args.per_device_train_batch_size)
        self._set_advantages(batch["advantages"], outcome)
        self._generations += 1
        advantages = self.accelerator.gather(batch["advantages"].float())
        tokens = int(self.accelerator.gather(outcome.tokens).sum())
        self.recorder.generation(self._metrics["train"], advantages, measured, tokens)
        return batch

    def _sample(self, inputs) -> tuple[dict[str, torch.Tensor], Outcome]:
        """The batch of TRL's method, and the outcome of its sampling."""
        with self.guard.sampling(inputs, self.state.global_step + 1), self.scorer.sampling(self.beta):
            batch = super()._generate_and_score_completions(inputs)
        outcome, self._outcome = self._outcome, None
        return batch, outcome

    def _sample_again(self, inputs) -> tuple[dict[str, torch.Tensor], Outcome]:
        """As `_sample`, for further rounds of dynamic sampling, whose chosen groups TRL's metrics leave out."""
        counted = {name: len(values) for name, values in self._metrics["train"].items()}
        result = self._sample(inputs)
        for name, values in self._metrics["train"].items():
            del values[counted.get(name, 0) :]
        return result

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        self._outcome = Outcome.of(rewards, inputs, completion_ids_list)
        return rewards

    def _set_advantages(self, advantages: torch.Tensor, outcome: Outcome) -> None:
        """Replace TRL's advantages by our estimator's, here and in its table of completions; mark unbounded groups."""
        size, estimator, process = self.num_generations, self.args.advantage_estimator, self.accelerator.process_index
        if estimator is not None:
            batch = weighted_sum(outcome.rewards, self.reward_weights)
            advantages.copy_(own_part(estimate(batch, size, estimator), process, len(advantages)))
            # The table has the newest rows of all rounds of dynamic sampling, which need not be those of the batch.
            logged = self._logs["advantages"]
            newest = weighted_sum(torch.cat(outcome.rounds), self.reward_weights)[-logged.maxlen :]
            for _ in range(min(len(logged), len(newest))):
                logged.pop()
            logged.extend(estimate(newest, size, estimator, batch).tolist())
        if self.args.drop_zero_rows:  # it looks for zeros, and TRL's advantages of equal rewards are only nearly 0
            together = self.args.multi_objective_aggregation == "sum_then_normalize"  # else each is centred by itself
            columns = (
                [weighted_sum(outcome.rewards, self.reward_weights)] if together else outcome.rewards.unbind(dim=1)
            )
            groups = torch.stack([undecided(column, size) for column in columns]).all(dim=0)
            advantages[own_part(groups.repeat_interleave(size), process, len(advantages))] = 0.0
        # TRL silently zeroes the advantages of a group with an infinite reward; the guard sees NaN.
        advantages[own_part(outcome.unbounded(size), process, len(advantages))] = math.nan

    # ------------------------------------------------------------------------------------ a step: its scoring

    def _get_per_token_logps_and_entropies(self, model, *args, **kwargs):
        plain = super()._get_per_token_logps_and_entropies
        return self.scorer.asked_by_trl(plain, model, self.model.training, *args, **kwargs)

    def _anchor_logps(self, kind: str, batch, batch_size: int | None = None) -> torch.Tensor:
        """Log-probabilities of a batch under an anchor, shape `(B, T)`, in chunks of `batch_size` rows."""
        anchor = {"old": PolicyItself(), "ref": self.reference, "base": self.base}[kind]
        with (
            torch.no_grad(),
            disable_gradient_checkpointing(self.model, self.args.gradient_checkpointing_kwargs),
            anchor.active(self.model) as scoring_model,
        ):
            plain = super()._get_per_token_logps_and_entropies
            return self.scorer.of_anchor(kind, plain, scoring_model, batch, batch_size)

    # -------------------------------------------------------------------------------------- a step: its loss

    def _compute_loss(self, model, inputs):
        args, training = self.args, self.model.training
        if training and args.ref_compute == "naive_epoch":
            inputs[logps_key("ref")] = self._anchor_logps("ref", inputs)
        trl_inputs = inputs
        if args.loss_mode == "no_ratio":
            # Without π_old TRL takes the policy itself: a ratio of 1 whose gradient is that of the log-probability.
            # Its mask of samples that are too far off policy still compares with the policy that sampled.
            trl_inputs = dict(inputs)
            old = trl_inputs.pop(logps_key("old"), None)
            if old is not None:
                trl_inputs.setdefault("sampling_per_token_logps", old)
        with self.scorer.policy_pass(*(self._rows_to_score(inputs) if training else ())) as scored:
            loss = super()._compute_loss(model, trl_inputs)
        penalties, penalty = {}, None
        with torch.set_grad_enabled(torch.is_grad_enabled() and args.adds_penalty):
            if args.anchored and (training or args.adds_penalty):
                penalties = self.anchors.penalties(inputs, scored.logps, self.importance_sampling_level)
            if penalties:
                penalty = (self.anchors.weighted(penalties) * self._token_weights(inputs)).sum()
        if args.adds_penalty:
            if penalty is not None:
                loss = loss + penalty
                self._log_policy_loss(penalty.detach())
            self._log_kl(inputs, penalties)
        if training:
            logps = scored.logps.detach()
            if args.old_logps_source == "first_pass":
                inputs.setdefault(logps_key("old"), logps)  # the buffer hands out the same dict in the next inner pass
            with self.meter.timer.stage("meter"), torch.no_grad():
                clipped = self._metrics["train"].get("clip_ratio/region_mean")
                self.recorder.micro_batch(inputs, logps, scored, clipped[-1] if clipped else None, penalty)
                self.guard.look_at_loss(loss, inputs, logps, self.meter.named_sums("kl_"))
        return loss

    def _rows_to_score(self, inputs) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """
        Indices of the rows that carry a gradient, and log-probabilities that stand in for the other rows'; `None` for
        both if all rows do.
        """
        if not self.args.skip_zero_rows:
            return None, None
        acts = {anchor.name for anchor in self.anchors if anchor.coefficient != 0.0}
        if logps_key("base") not in inputs:
            acts.discard("base")
        # An adaptive entropy bonus and a load-balancing loss need all rows, whatever their coefficients are just now.
        needs_all = (acts and not self.args.drop_zero_rows) or self._entropy_bonus_enabled or self.aux_loss_enabled
        scored = torch.ones_like(inputs["advantages"], dtype=torch.bool) if needs_all else scored_rows(inputs)
        self.meter.add_count("rows_skipped", (~scored).sum())
        return (None, None) if scored.all() else (scored.nonzero().squeeze(1), inputs.get(logps_key("old")))

    def _token_weights(self, inputs) -> torch.Tensor:
        """Shape `(B, T)`: TRL's aggregation of its loss, as weights."""
        training = self.model.training
        accumulation = self.current_gradient_accumulation_steps if training else 1.0
        window = inputs["num_items_in_batch"].clamp(min=1.0) / self.accelerator.num_processes
        if training:
            window = window * accumulation / self.args.steps_per_generation
        mask = completion_mask(inputs)
        return token_weights(mask, self.loss_type, accumulation, self.max_completion_length, window)

    def _log_kl(self, inputs, penalties: dict[str, torch.Tensor]) -> None:
        """Log TRL's metric `kl`, which its loss leaves out when its KL term is off, and one for each anchor."""
        mask, mode = completion_mask(inputs), "train" if self.model.training else "eval"
        for name, penalty in penalties.items():
            total = self._total(torch.stack([(penalty.detach() * mask).sum(), mask.sum().float()]))
            self._metrics[mode][self.anchors[name].metric].append((total[0] / total[1].clamp(min=1.0)).item())

    def _log_policy_loss(self, penalty: torch.Tensor) -> None:
        """
        Add the KL term to TRL's metric `policy_loss`, which is logged beside an entropy bonus: the term of a
        micro-batch by itself, or its share in the window that the loss averages over.
        """
        if not self._entropy_bonus_enabled:
            return
        training = self.model.training
        by_itself = training and self.loss_type not in WINDOW_LOSSES
        share = penalty * (self.current_gradient_accumulation_steps if by_itself else 1.0)
        logged = self._metrics["train" if training else "eval"]["policy_loss"]
        logged[-1] += self.accelerator.gather(share).nanmean().item()

    # ------------------------------------------------------------------------- a step: its update, and its row

    def _clip_grad_norm(self, model):
        self.guard.look_at_gradients(model)
        return super()._clip_grad_norm(model)

    def _get_grad_norm(self, model, grad_norm=None):
        if grad_norm is None:
            self.guard.look_at_gradients(model)
        norm = super()._get_grad_norm(model, grad_norm)
        self.guard.settle(norm, self.state.global_step + 1, self.optimizer)
        return norm

    def _maybe_log_save_evaluate(self, tr_loss, grad_norm, *args, **kwargs):
        if self.meter.open:  # called once more at the end of an epoch, with no step open
            self._end_step(grad_norm)
        super()._maybe_log_save_evaluate(tr_loss, grad_norm, *args, **kwargs)

    def _end_step(self, grad_norm) -> None:
        step = self.state.global_step
        with self.meter.timer.stage("meter"):
            self.guard.check_weights(self.model, step)
        if (elastic := self.parts.get("elastic")) is not None:
            elastic.observe_step(step)
        row = self.recorder.finish_step(step, self._learning_rate, grad_norm, self.guard.skips)
        self.anchors.observe(row)
        if (watch := self.parts.get("entropy_watch")) is not None:
            event = watch.observe_step(step, row.get("entropy"))
            self._log_event(event)
            self.control.should_training_stop |= event is not None and watch.stop
            self.control.should_save |= event is not None and watch.stop
        for name in LOGGED:
            if name in row:
                self._metrics["train"][f"prorl/{name}"].append(row[name])

    def _log_event(self, event: dict | None) -> None:
        if event is not None:
            self.recorder.event(event)
            if event["event"] == "reset":
                self._metrics["train"]["prorl/resets"].append(1.0)

    # ---------------------------------------------------------------------------------- beside the steps

    def evaluate(self, *args, **kwargs):
        # Evaluation samples: without a random state of its own, how often one evaluates would change the training.
        is_trl = self.args.is_trl and not self.resets.possible
        with nullcontext() if is_trl else torch.random.fork_rng():
            try:
                return super().evaluate(*args, **kwargs)
            except RewardError as error:
                # The frames that matter are those of its cause, which it keeps.
                raise error.with_traceback(None)  # noqa: B904

    def _evaluate(self, *args, **kwargs):
        timer = StageTimer(self.accelerator.device)
        with timer.stage("eval"):
            metrics = super()._evaluate(*args, **kwargs)
        self.recorder.charge_evaluation(self.state.global_step, timer.seconds["eval"])
        for name in (name for callback in self._reset_callbacks() for name in callback.metrics()):
            if name not in metrics:
                known = ", ".join(sorted(metrics))
                raise EvaluationError(f"ref_reset_metric={name!r} is not a metric of the evaluation; it has: {known}.")
        sets = self.eval_dataset if isinstance(self.eval_dataset, dict) else ()
        self.recorder.evaluation(self.state.global_step, metrics, sets)
        return metrics

    # ------------------------------------------------------------------------------- for users and rollouts

    @property
    def run_dir(self) -> Path:
        """The folder of the record."""
        return Path(self.args.run_dir or self.args.output_dir)

    def request_reset(self, reason: Reason) -> None:
        """
        Ask for a reset; it is applied at the next generation boundary, together with all requests that wait by then.

        Raises:
            `ValueError`: nothing of this trainer can be reset.
        """
        self.resets.request(reason)

    def tokenize_prompts(self, prompts: list) -> list[list[int]]:
        """Token ids of prompts, with the chat template."""
        return self._tokenize_prompts(prompts)[0]

    def generate_tokens(self, prompt_ids: list[list[int]], max_new_tokens: int) -> list[list[int]]:
        """
        Sample one continuation of each prompt, with this run's generation settings.

        Args:
            prompt_ids (`list[list[int]]`):
                Token ids.
            max_new_tokens (`int`):
                Most tokens of a continuation, instead of `max_completion_length`.

        Returns:
            `list[list[int]]`: token ids, the end of sequence included where it was reached.
        """
        usual, self.generation_config.max_new_tokens = self.generation_config.max_new_tokens, max_new_tokens
        try:
            return self._generate_single_turn(prompt_ids, None, {}, self.num_generations)[0]
        finally:
            self.generation_config.max_new_tokens = usual
