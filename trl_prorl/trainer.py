"""
`ProRLTrainer`: TRL's `GRPOTrainer` with moving references, an old-policy anchor, resets, and a record.

This file holds TRL's overrides in the order of a step, and the assembly of the parts that do the work. It and the
four mixins (`adapters/`, `hub/`, `interchange/` and `run/mixin.py`) alone know TRL's private methods, which
`tests/test_upstream_contract.py` pins. With every ProRL key at its default TRL's own methods compute everything, and
this class only observes.
"""

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
from accelerate.utils import is_peft_model
from trl import GRPOTrainer
from trl.extras.profiling import profiling_context
from trl.models.utils import disable_gradient_checkpointing, unwrap_model_for_generation
from trl.trainer.utils import add_fused_lm_head, split_tensor_dict

from .adapters.growable import check_growing_model
from .adapters.growing import Growth
from .adapters.mixin import AdapterMixin
from .errors import EvaluationError, RewardError
from .hub.mixin import HubMixin
from .interchange.mixin import ExchangeMixin
from .launch.checks import check_in_one_place
from .launch.plan import Plan
from .launch.ways import Ways, shards_weights
from .objective.aggregation import Aggregation
from .objective.anchors import Anchors, completion_mask, logps_key
from .objective.loss_mode import without_ratio
from .parts import Parts
from .resets.callbacks import ReferenceResetCallback
from .resets.controller import Resets
from .resets.elastic import ElasticAverage, ElasticResets
from .resets.triggers import Reason, configured_triggers
from .rollout.dynamic_sampling import DynamicSampling, named_functions
from .rollout.generation import CompactGeneration
from .rollout.kept_weights import keep_base_in_syncs, keep_unpacked, kept_weights
from .rollout.outcome import Outcome, weighted_sum, written_by_others
from .rollout.own_advantages import set_advantages
from .rollout.rewards import watched
from .rollout.sampled import Sampled
from .rollout.verdicts import Verdicts
from .run.entropy_watch import EntropyWatch
from .run.finite_guard import FiniteGuard
from .run.guard_gap import GuardGap
from .run.identity import base_parameters, dataset_hash, weights_hash
from .run.meter import Meter, StageTimer, UpdateNorm
from .run.mixin import CheckpointMixin
from .run.recorder import LOGGED, Recorder
from .run.terminal import Terminal, event_line
from .scoring.dropout import check_dropout, check_randomness
from .scoring.fp32_head import cast_head_to_fp32
from .scoring.frozen_head import add_frozen_head
from .scoring.grouping import whole_groups
from .scoring.lean_lora import lean
from .scoring.references import PolicyItself, base_of, reference_of
from .scoring.scorer import PolicyPass, Scorer, scored_rows


class ProRLTrainer(CheckpointMixin, HubMixin, AdapterMixin, ExchangeMixin, GRPOTrainer):
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
    ...     args=ProRLConfig(beta=0.05, num_iterations=2, ref_reset_every=200, fast=True),
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
        for model in (policy, self.ref_model):
            check_in_one_place(model)
        keep_unpacked(policy)
        if plan.casts_head:
            cast_head_to_fp32(policy.get_base_model())
            outputs = ("log_probs", "entropy")
            add_fused_lm_head(policy.get_base_model(), self.temperature, cast_lm_head_to_fp32=True, outputs=outputs)
        args.check_or_give_up(check_dropout, self.model)
        args.check_or_give_up(check_randomness, policy, accelerator.autocast(), shards_weights(self))
        self._identity = {
            **plan.keys,
            "processes": accelerator.num_processes,
            "weights of the model": weights_hash(base_parameters(policy)),
            "rows of the training set": dataset_hash(self.train_dataset),
            "reward functions": list(self.reward_func_names),
        }
        self.verdicts = Verdicts(self.reward_funcs, self.num_generations_eval, args.reward_timeout)
        self.reward_funcs = [
            watched(function, name, args.reward_timeout, args.nonfinite, training=lambda: self.model.training)
            for function, name in zip(self.reward_funcs, self.reward_func_names, strict=True)
        ]
        cheap = is_peft_model(policy) and args.pack_groups != "off" and not shards_weights(self)
        if cheap and not (args.cast_lm_head_to_fp32 or self._entropy_bonus_enabled):
            add_frozen_head(policy.get_base_model(), self.temperature)
        self.ways = Ways.of(self, policy, self._padded_logps)
        if cheap and self.ways.packs:
            lean(policy)
        self.recipe: tuple = ()  # dataclasses of a recipe that `config.yaml` shall hold beside `args`
        if args.loss_mode == "unclipped":
            self.epsilon_low = self.epsilon_high = math.inf
        self._generations = 0
        self._outcome: Outcome | None = None  # of the newest sampling
        self._looks: Callable | None = None  # of `sample_rows`
        self._learning_rate: float | None = None

        self.meter = Meter(accelerator.device)
        self.anchors = Anchors(args)
        self.scorer = Scorer(args, self.meter, self.ways.packs, not self._is_vlm, accelerator.autocast)
        self.recorder = Recorder(args, self.meter, self.anchors, self._total, accelerator.num_processes)
        self.guard = FiniteGuard(args.nonfinite, accelerator, self.recorder.event, self._decode)
        self.resets = Resets(args, accelerator, self.meter.timer, plan.resets)
        self.aggregation = Aggregation(args, accelerator.num_processes)
        self.parts = Parts(anchors=self.anchors, recorder=self.recorder, guard=self.guard, resets=self.resets)
        average = None
        if args.elastic_reset_every:
            trained = {name: param for name, param in policy.named_parameters() if param.requires_grad}
            average = ElasticAverage(trained, args.elastic_ema)
        if args.lora_growth_every:  # before Elastic Reset, which then copies the grown average
            check_growing_model(policy)
            copies = [average.average, average.initial] if average is not None else []
            self.parts["growth"] = Growth(args, policy, lambda: self.optimizer, copies, self.meter.timer)
        if average is not None:
            every, timer = args.elastic_reset_every, self.meter.timer
            self.parts["elastic"] = ElasticResets(average, every, timer, accelerator.num_processes)
        functions = named_functions(
            args.dynamic_sampling_rewards, self.reward_func_names, self.reward_weights.tolist()
        )
        if args.dynamic_sampling_rounds:
            self.parts["dynamic_sampling"] = DynamicSampling(
                args, accelerator, self.train_dataset, self.num_generations, self._tokenizer.pad_token_id, functions
            )
        if args.entropy_floor is not None:
            self.parts["entropy_watch"] = EntropyWatch(args.entropy_floor, args.entropy_patience, args.entropy_stop)
        if args.guard_gap is not None:
            self.parts["guard_gap"] = GuardGap(args.guard_gap, args.guard_gap_action, self.request_reset)
        if self.use_vllm and not shards_weights(self):
            keep_base_in_syncs(self.vllm_generation, policy)
        if self.ways.generation == "on":
            self.parts["generation"] = CompactGeneration(policy, self.temperature, autocasts=args.bf16 or args.fp16)

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
        self.terminal = Terminal(self)

    def _padded_logps(self, policy, input_ids, attention_mask, logits_to_keep) -> torch.Tensor:
        """Log-probabilities as TRL computes them."""
        return super()._get_per_token_logps_and_entropies(policy, input_ids, attention_mask, logits_to_keep)[0]

    def _generation_facts(self) -> dict[str, str | int]:
        """For `env.json`: how rollouts are sampled."""
        compact = self.parts.get("generation")
        return {"compact_generation": self.ways.generation} | (compact.facts() if compact is not None else {})

    def _total(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum of a tensor over processes."""
        return self.accelerator.reduce(tensor, reduction="sum")

    def _decode(self, token_ids: torch.Tensor) -> list[str]:
        return self.processing_class.batch_decode(token_ids, skip_special_tokens=True)

    def _reset_callbacks(self) -> list[ReferenceResetCallback]:
        return [cb for cb in self.callback_handler.callbacks if isinstance(cb, ReferenceResetCallback)]

    def _bind(self, callback: ReferenceResetCallback) -> None:
        self.resets.bind(callback, self.recorder.mean_so_far, lambda: self.is_in_train, self.eval_dataset)

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
        if not any(param.requires_grad for param in self.model.parameters()):
            raise ValueError(
                "nothing of the model is trainable. Load an adapter for training: "
                "PeftModel.from_pretrained(model, folder, is_trainable=True)."
            )
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
        if self.exporting is not None:
            self.exporting.boundary()
        step = self.state.global_step
        for event in self.parts.at_boundary(step):  # growth first; the reference moves to the result
            self._log_event(event)
            self._last_loaded_step = -1  # an evaluation of this step may have given vLLM the weights before it
        self._log_event(self.resets.apply(step, self.optimizer, self.lr_scheduler, self.recorder.kl_ref))
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
        set_advantages(
            batch["advantages"],
            outcome,
            self.reward_weights,
            self.num_generations,
            self.accelerator.process_index,
            self.args,
            self._logs["advantages"],
        )
        batch |= outcome.rows(self.accelerator.process_index, len(batch["advantages"]), self.num_generations)
        self._generations += 1
        advantages = self.accelerator.gather(batch["advantages"].float())
        tokens = int(self.accelerator.gather(outcome.tokens).sum())
        self.recorder.generation(self._metrics["train"], advantages, measured, tokens)
        return batch

    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations, *args, **kwargs):
        compact = self.parts.get("generation")
        if compact is None:
            # TRL casts the weights for continuous batching, and leaves them so.
            casts = self.use_transformers_continuous_batching and not shards_weights(self)
            with kept_weights(self.model) if casts else nullcontext():
                return super()._generate_single_turn(
                    prompt_ids, images, multimodal_fields, num_generations, *args, **kwargs
                )
        with (
            profiling_context(self, "transformers.generate"),
            unwrap_model_for_generation(
                self.model_wrapped,
                self.accelerator,
                generation_kwargs=self.generation_kwargs,
                gradient_checkpointing_kwargs=self.args.gradient_checkpointing_kwargs,
            ) as policy,
        ):
            return compact.sample(
                policy, prompt_ids, self.generation_config, self.eos_token_ids, self.pad_to_multiple_of
            )

    def _sample(self, inputs) -> tuple[dict[str, torch.Tensor], Outcome]:
        """The batch of TRL's method, and the outcome of its sampling."""
        with self.guard.sampling(inputs, self.state.global_step + 1), self.scorer.sampling(self.beta):
            batch = super()._generate_and_score_completions(inputs)
        outcome, self._outcome = self._outcome, None
        outcome.tokens -= written_by_others(batch)
        return batch, outcome

    def _sample_again(self, inputs) -> tuple[dict[str, torch.Tensor], Outcome]:
        """As `_sample`, for further rounds of dynamic sampling, whose chosen groups TRL's metrics leave out."""
        counted = {name: len(values) for name, values in self._metrics["train"].items()}
        result = self._sample(inputs)
        for name, values in self._metrics["train"].items():
            del values[counted.get(name, 0) :]
        return result

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        began = time.perf_counter()
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        seconds = time.perf_counter() - began
        correct = self.verdicts.judge(inputs, prompts, completions)
        self._outcome = Outcome.of(rewards, inputs, completion_ids_list, correct)
        if self._looks is not None:
            self._looks(completions, completion_ids_list, rewards, seconds)
        if not self.model.training:
            self.verdicts.add(correct, self._outcome.tasks)
        return rewards

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
        sampler_logps = None
        if (compact := self.parts.get("generation")) is not None:
            given = inputs.pop("sampling_per_token_logps", None)
            sampler_logps = given if compact.measures else None
        with self.scorer.policy_pass(self._rows_to_score(inputs) if training else PolicyPass()) as scored:
            loss = super()._compute_loss(model, without_ratio(inputs) if args.loss_mode == "no_ratio" else inputs)
        accumulation = self.current_gradient_accumulation_steps if training else None
        penalties, penalty = {}, None
        with torch.set_grad_enabled(torch.is_grad_enabled() and args.adds_penalty):
            if args.anchored and (training or args.adds_penalty):
                penalties = self.anchors.penalties(inputs, scored.logps, self.importance_sampling_level)
            if penalties:
                weights = self.aggregation.weights(inputs, accumulation)
                penalty = (self.anchors.weighted(penalties) * weights).sum()
        if args.adds_penalty:
            self._log_kl(inputs, penalties)
            if penalty is not None:
                loss = loss + penalty
                self._log_policy_loss(self.aggregation.logged(penalty.detach(), accumulation))
        if training:
            logps = scored.logps.detach()
            if args.old_logps_source == "first_pass":
                inputs.setdefault(logps_key("old"), logps)  # the buffer hands out the same dict in the next inner pass
            with self.meter.timer.stage("meter"), torch.no_grad():
                clipped = self._metrics["train"].get("clip_ratio/region_mean")
                self.recorder.micro_batch(
                    inputs, logps, scored, clipped[-1] if clipped else None, penalty, sampler_logps
                )
                # A KL that overflows is bounded in the loss, which a log-probability that is not finite would show.
                sums = [] if args.kl_clamp is not None else self.meter.named_sums("kl_")
                self.guard.look_at_loss(loss, inputs, logps, sums)
        return loss

    def _rows_to_score(self, inputs) -> PolicyPass:
        """A pass over the rows that carry a gradient; π_old's log-probabilities stand in for those of the others."""
        if not self.args.skip_zero_rows:
            return PolicyPass()
        acts = {anchor.name for anchor in self.anchors if anchor.coefficient != 0.0}
        if logps_key("base") not in inputs:
            acts.discard("base")
        # An adaptive entropy bonus and a load-balancing loss need all rows, whatever their coefficients are just now.
        needs_all = (acts and not self.args.drop_zero_rows) or self._entropy_bonus_enabled or self.aux_loss_enabled
        scored = torch.ones_like(inputs["advantages"], dtype=torch.bool) if needs_all else scored_rows(inputs)
        self.meter.add_count("rows_skipped", (~scored).sum())
        if scored.all():
            return PolicyPass()
        return PolicyPass(scored.nonzero().squeeze(1), inputs.get(logps_key("old")), completion_mask(inputs))

    def _log_kl(self, inputs, penalties: dict[str, torch.Tensor]) -> None:
        """Log TRL's metric `kl`, which its loss leaves out when its KL term is off, and one for each anchor."""
        logged = self._metrics["train" if self.model.training else "eval"]
        for metric, mean in self.anchors.means(penalties, completion_mask(inputs), self._total).items():
            logged[metric].append(mean)

    def _log_policy_loss(self, penalty: torch.Tensor) -> None:
        """Add the KL term to TRL's metric `policy_loss`, which is logged beside an entropy bonus."""
        if self._entropy_bonus_enabled:
            logged = self._metrics["train" if self.model.training else "eval"]["policy_loss"]
            logged[-1] += self.accelerator.gather(penalty).nanmean().item()

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
        self.parts.after_update(step)
        row = self.recorder.finish_step(step, self._learning_rate, grad_norm, self.guard.skips)
        for event in self.parts.observe_step(step, row):
            self._log_event(event)
            if event.get("action") == "stop":
                self.control.should_training_stop = self.control.should_save = True
        for name in LOGGED:
            if name in row:
                self._metrics["train"][f"prorl/{name}"].append(row[name])

    def _log_event(self, event: dict | None) -> None:
        if event is not None:
            self.recorder.event(event)
            self.terminal.say(event_line(event))
            if self.exporting is not None:
                self.exporting.event(event)
            if event["event"] == "reset":
                self._metrics["train"]["prorl/resets"].append(1.0)

    # ---------------------------------------------------------------------------------- beside the steps

    def log(self, logs, start_time=None):
        asked = self.num_completions_to_print
        if self.state.log_history and self.state.log_history[-1]["step"] == self.state.global_step:
            self.num_completions_to_print = 0  # the last log, of the whole training: that table was printed
        try:
            super().log(logs, start_time)
        finally:
            self.num_completions_to_print = asked

    def evaluate(self, *args, **kwargs):
        # Evaluation samples: without a random state of its own, how often one evaluates would change the training.
        is_trl = self.args.is_trl and not self.resets.possible
        with nullcontext() if is_trl else torch.random.fork_rng():
            try:
                return super().evaluate(*args, **kwargs)
            except RewardError as error:
                # The frames that matter are those of its cause, which it keeps.
                raise error.with_traceback(None)  # noqa: B904

    def evaluation_loop(self, dataloader, *args, metric_key_prefix="eval", **kwargs):
        self.verdicts.begin()
        output = super().evaluation_loop(dataloader, *args, metric_key_prefix=metric_key_prefix, **kwargs)
        output.metrics.update(self.verdicts.of_set(dataloader.dataset, metric_key_prefix))
        return output

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

    @torch.no_grad()
    def sample_rows(self, rows: list[dict]) -> Sampled:
        """
        Sample and reward rows of the training set as a step does, `num_generations` completions each, without training
        on them. Own rewards see the step that is done last.

        Args:
            rows (`list[dict]`):
                Rows with a `prompt`; by a single process.

        Returns:
            [`~trl_prorl.rollout.sampled.Sampled`]
        """
        found: list[tuple] = []

        def looks(completions, ids, rewards, seconds):
            ends = {*self.eos_token_ids, self._tokenizer.pad_token_id}
            cut = [not tokens or tokens[-1] not in ends for tokens in ids]
            total = weighted_sum(rewards, self.reward_weights)
            found.append((completions, ids, cut, rewards.cpu(), total.cpu(), seconds))

        self.model.train()  # rollouts of a step are drawn so
        self._looks = looks
        try:
            batch, _ = self._sample([dict(row) for row in rows for _ in range(self.num_generations)])
        finally:
            self._looks = None
        return Sampled(*found[0], batch)

    def policy_logps(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Log-probabilities of a batch of [`sample_rows`] under the policy as it now is, shape `(N, T)`."""
        return self._anchor_logps("old", batch, self.args.per_device_train_batch_size)

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
