"""
`ProRLTrainer`: TRL's `GRPOTrainer` with moving references, an old-policy anchor, resets, and log files.

TRL's overrides are in the order of a step; run/checkpoint.py has those of a checkpoint, evaluation.py those of an
evaluation.

    a generation batch   `on_generation` of every part: resets.py moves the reference, optimizer.py treats Adam's state
                         TRL samples and rewards (rollout.py, guards/rewards.py)
                         reference.py scores the batch under its missing anchors; advantages.py; `on_batch`
    a micro-batch        TRL's loss, and the KL terms that it does not support (anchors.py, kl.py); `on_loss`
    an update            `on_backward`, `on_pre_optimizer_step` and `on_step_end` of every part
    its row              run/record.py; then `on_row` of every part: watch.py may request a reset at the next boundary
"""

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path

import torch
from accelerate.utils import is_peft_model
from datasets import Dataset
from transformers import PreTrainedTokenizerBase
from trl import GRPOTrainer
from trl.extras.profiling import profiling_context

from .anchors import Anchor, OldPolicyAnchor, ReferenceAnchor
from .assembly import (
    make_dynamic_sampling,
    make_prompt_pool,
    optional_parts,
    prepare_policy,
    warn_of_unused_defaults,
)
from .cli.ending import describe_saved_state, print_interrupted
from .cli.model_defaults import plain_generation_config
from .cli.plan import Plan, choose_best_metric, stops_early
from .cli.prompt_rows import has_images, prompts_of
from .cli.terminal import Terminal, write_event_line
from .cli.training_prompts import TrainingPrompts
from .errors import InputError
from .evaluation import EvaluationMixin, Verdicts, beside_rows, find_verifier
from .extras.teacher import load_teacher
from .extras.vllm import keep_weights
from .fast.acceleration import Acceleration, describe_unsupported
from .fast.choice import Choice
from .fast.comparison import HEAD, find_differences, mixed_dtype
from .fast.generation import CompactGeneration
from .guards.finite import FiniteGuard
from .guards.noise import find_noise, refuse_noise
from .guards.rewards import guard_reward, treat_nonfinite
from .guards.trained import TrainedCheck
from .hub.uploads import Uploads
from .keys import Effect
from .kl import (
    Aggregation,
    Anchors,
    completion_mask,
    without_ratio,
    zero_masked,
)
from .optimizer import inner_of
from .parts import Event, MicroBatch, Parts
from .reference import (
    AdapterReference,
    AnchorModels,
    InitialAdapter,
    PolicyPass,
    Scorer,
    check_trained,
)
from .refusals import find_late_keys
from .resets import Reason, ReferenceResetCallback, Resets, configured_callback
from .rollout import (
    RolloutResult,
    SamplingCall,
    keep_groups_together,
    set_advantages,
)
from .run.checkpoint import CheckpointMixin
from .run.folder import RunFolder, first_of_processes
from .run.identity import changing_keys, identity_of
from .run.meter import Means, Meter
from .run.record import MetricReader, Recorder
from .run.starting import note_start
from .supported import LEARNED_POSITIONS, TRUST_REGIONS
from .tasks.plugin import check_not_loading
from .trust_region import by_token, masked_tokens, sampler_of
from .upstream.modules import Modules, checkpointing_off, is_sharded
from .upstream.positions import with_positions
from .watch import GUARD_WINDOW


logger = logging.getLogger(__name__)


class ProRLTrainer(CheckpointMixin, EvaluationMixin, GRPOTrainer):
    """
    Trainer for prolonged GRPO: TRL's `GRPOTrainer` with reference resets, exact resume and log files.

    It accepts all arguments of [`~trl.GRPOTrainer`], in the same order. With every key of [`ProRLConfig`] at its
    default the training is TRL's, bit for bit.

    Args:
        model (`str`, [`~transformers.PreTrainedModel`] or [`~peft.PeftModel`]): A loaded model, or the name of one: on
            the Hub, a folder, `smollm2`, or `embedded:TASK`. The adapter of a `PeftModel` is trained; reference and
            starting model are then copies of it.
        reward_funcs (`Callable`, `str` or a list of them): A function `reward(completions, **columns)` returns one
            number per completion; `prompts` and the other columns of the data set are lists of the same length. Its
            attribute `batch_verifier`, called with the same columns, returns one bool per completion: whether it is
            correct. A `str` is the name of a reward model.
        args ([`ProRLConfig`], *optional*): The settings.
        train_dataset (`datasets.Dataset`): Rows with a `prompt` (chat messages or text). Their other columns are
            passed to the reward functions.
        eval_dataset (`datasets.Dataset` or `dict`, *optional*): Rows for evaluations during training, or several sets
            by name.
        callbacks (`list`, *optional*): Callbacks of transformers. Pass your own reset triggers in a
            [`ReferenceResetCallback`].
        peft_config ([`~peft.LoraConfig`], *optional*): Train an adapter. A reset then copies it onto the frozen
            adapter `ref`; in full fine-tuning the model onto a snapshot.
        verify (`Callable`, *optional*): `verify(completion, row) -> bool`: whether the text of a completion is
            correct. The accuracy, `eval_pass@k`, `guard_gap` and the preflight use it, in place of a `batch_verifier`.
        ref_model ([`~transformers.PreTrainedModel`], *optional*): A loaded teacher, in place of the key `ref_model`.

    Raises:
        `ValueError`: A key, or a combination of keys, model and data, is wrong or not supported. The message names the
            key, its value and the cure.

    Example:

    ```python
    >>> from peft import LoraConfig
    >>> from trl_prorl import ProRLConfig, ProRLTrainer, embedded_model, task_reward
    >>> from trl_prorl.tasks import get_task

    >>> task = get_task("reverse_digits", level=3)
    >>> trainer = ProRLTrainer(
    ...     model=embedded_model(),  # 0.7 M parameters, part of the package
    ...     reward_funcs=task_reward(task),
    ...     args=ProRLConfig(
    ...         output_dir="runs/example",
    ...         max_steps=4,
    ...         learning_rate=5e-4,
    ...         num_generations=4,
    ...         per_device_train_batch_size=16,
    ...         max_completion_length=16,
    ...         beta=0.05,
    ...         ref_reset_every=2,
    ...         bf16=False,
    ...         report_to="none",
    ...     ),
    ...     train_dataset=task.rows("train", 64),
    ...     peft_config=LoraConfig(r=8, target_modules="all-linear"),
    ... )
    >>> output = trainer.train()
    >>> trainer.state.global_step
    4
    >>> trainer.save_model()
    >>> sorted(path.name for path in trainer.run_dir.glob("*.jsonl"))
    ['events.jsonl', 'metrics.jsonl']
    ```
    """

    _tag_names = ["trl", "grpo", "prorl"]
    has_started = False
    resets: Resets | None = None  # None until TRL's trainer is made
    _reward_weights: torch.Tensor | None = None
    _call: SamplingCall | PolicyPass | None = None  # what TRL computes for us: a generation batch, or a loss

    # ------------------------------------------------------------------------------------------------ assembly

    def __init__(self, model, reward_funcs=None, args=None, *positional, **keywords):
        self.verify = keywords.pop("verify", None)
        self.given_teacher = keywords.pop("ref_model", None)
        plan = Plan.from_arguments(self, model, reward_funcs, args, positional, keywords)
        self._model_name = plan.name
        self.uploads = Uploads(self, plan.args, plan.given, plan.moves, self._tag_names)
        self.anchors = Anchors(plan.args)
        with plan.loading():
            super().__init__(**plan.given)
        self._assemble(plan)

    def _assemble(self, plan: Plan) -> None:
        args = self.args
        self._folder = RunFolder(args.output_dir)
        accelerator = self.accelerator
        policy = accelerator.unwrap_model(self.model)
        self._policy = policy
        self.modules = Modules(lambda: self.model)
        self._learns_positions = policy.config.get_text_config().model_type in LEARNED_POSITIONS
        self.acceleration = prepare_policy(self, plan, policy)
        self.teacher = None if plan.teacher is None else load_teacher(self, plan.teacher)
        self.unused_defaults = warn_of_unused_defaults(self, policy)
        self._identity = identity_of(self, plan.keys, policy)
        self._start = note_start(policy, args.model_init_kwargs)
        self._first_keys = changing_keys(args)
        self.verdicts = Verdicts(find_verifier(self.reward_funcs, self.verify), args.reward_timeout)
        self.reward_funcs = [
            guard_reward(function, name, args.reward_timeout, args.nonfinite, training=lambda: self.model.training)
            for function, name in zip(self.reward_funcs, self.reward_func_names, strict=True)
        ]
        self.recipe: tuple = ()  # dataclasses of a recipe for `config.yaml`, in addition to `args`
        if args.loss_mode == "unclipped" or args.trust_region is not None:
            self.epsilon_low = math.inf
            self.epsilon_high = math.inf
        self._generations = 0
        if is_peft_model(policy):
            self.initial_adapter = InitialAdapter(policy, is_trained=plan.given_wrapped)

        self.meter = Meter(accelerator.device)
        wrapped_by_trl = plan.given.get("peft_config") is not None
        self.anchors.make_models(AnchorModels(self, policy, plan.moves, plan.fresh_adapter, wrapped_by_trl))
        self.reference = self.anchors["ref"].model
        self.base = self.anchors["base"].model
        self._check_trained()
        self.scorer = Scorer(args, self.meter, self.anchors, self.acceleration, not has_images(self))
        self.recorder = Recorder(args, self.meter, self.anchors, accelerator)
        self.trl_metrics = MetricReader(self._metrics["train"])
        self._evaluated = []
        self._entropies = []
        self.guard = FiniteGuard(args, accelerator, self.meter, self.recorder, self.processing_class)
        self.aggregation = Aggregation(args, accelerator.num_processes)
        self.resets = Resets(args, accelerator, self.meter.timer, plan.resets, self.callback_handler)
        self.resets.reference = self.reference
        self.dynamic_sampling = make_dynamic_sampling(self)
        self.prompt_pool = make_prompt_pool(self)
        optional = optional_parts(self, policy)
        # Calling order: growth comes before a reset, which moves the reference to the grown policy. The guard of
        # reward hacking also comes before, because it requests resets.
        parts = {
            "anchors": self.anchors,
            "recorder": self.recorder,
            "guard": self.guard,
            "trained_check": TrainedCheck(accelerator),  # after the guard, which may skip an update
            **optional,
            "resets": self.resets,
            "dynamic_sampling": self.dynamic_sampling,
            "prompt_pool": self.prompt_pool,
            "generation": self.compact,
            "modules": self.modules,
        }
        self.parts = Parts({name: part for name, part in parts.items() if part is not None})
        for callback in self.resets.callbacks:
            self.resets.accept(callback, self.eval_dataset)
        if Effect.RESET in args.effect:
            self.resets.configured = configured_callback(args)
            self.add_callback(self.resets.configured)
        self.terminal = Terminal(self)

    @cached_property
    def training_prompts(self) -> TrainingPrompts:
        has_more = has_images(self) or self.environment_factories is not None
        return TrainingPrompts(self.train_dataset, has_more)

    def add_callback(self, callback):
        """Add a callback. Reset triggers get their resets; early stopping gets the metric of the best checkpoint."""
        if isinstance(callback, ReferenceResetCallback) and self.resets is not None:
            self.resets.accept(callback, self.eval_dataset)
            callback.in_training = self.is_in_train
        if stops_early(callback):
            choose_best_metric(self.args, find_verifier(self.reward_funcs, self.verify), [callback])
        super().add_callback(callback)

    @property
    def compact(self) -> CompactGeneration | None:
        """Samples rollouts compactly, if that is on."""
        return self.acceleration.compact

    @property
    def beta(self) -> float:
        """Coefficient of the KL to the reference. TRL reads 0, and computes no KL, where we compute it."""
        if self._call is not None and self._call.leaves_kl:
            return 0.0
        return self.anchors["ref"].coefficient

    @beta.setter
    def beta(self, value: float) -> None:
        """TRL sets the configured value once; a user may set another."""
        self.anchors["ref"].set(value)

    @property
    def reward_weights(self) -> torch.Tensor:
        """Weights of the reward functions, a tensor that the parts share."""
        return self._reward_weights

    @reward_weights.setter
    def reward_weights(self, values: torch.Tensor) -> None:
        """TRL sets the configured values, and adds those of environments; a user may set others."""
        if self.resets is None:
            self._reward_weights = values
        else:
            self._reward_weights.copy_(values)

    # ---------------------------------------------------------------------------------- before the first step

    def train(self, resume_from_checkpoint=None, *args, **kwargs):
        """
        Train, or continue a run with `resume_from_checkpoint=True` (the newest complete checkpoint of `output_dir`),
        `="auto"` (that checkpoint, or step 0 if there is none yet) or `="runs/x/checkpoint-100"`. Ctrl-C prints which
        checkpoint is kept, and raises `KeyboardInterrupt`.
        """
        check_not_loading()
        if not self.args.is_trl:
            self.check_own_scores()  # a script may have set methods since the trainer was made
        try:
            if not self.args.is_trl:
                self._compare_scores()
            return super().train(resume_from_checkpoint, *args, **kwargs)
        except KeyboardInterrupt as error:
            if not self.recipe and self.is_world_process_zero():  # a recipe's command line prints its own
                go_on = "train(resume_from_checkpoint='auto')"
                print_interrupted(describe_saved_state(self.args.output_dir, self.has_started, go_on))
            raise error.with_traceback(None)  # noqa: B904  the frames of an interrupted loop are not informative

    def _compare_scores(self) -> None:
        """
        Compare TRL's score, packed rows and compact samples with the policy's own forward; of a teacher TRL's score
        and packed rows. It decides equally in each start of a run, because a checkpoint is loaded later.

        Raises [`InputError`]: TRL's score differs, or an acceleration does whose key is `"on"`.
        """
        device = next(self._policy.parameters()).device
        if has_images(self) or device.type != self.accelerator.device.type:  # it comes later with `bf16_full_eval`
            return
        self._switch_off(self._find_differences(self._policy, self.acceleration))
        if self.teacher is not None:
            packing = Choice(self.teacher.packs and self.acceleration.packs)
            scoring = replace(self.acceleration, packing=packing, compact=None)
            differences = self._find_differences(self.teacher.ref_model, scoring)
            self.teacher.packs = packing.on and not differences

    def _find_differences(self, model: torch.nn.Module, acceleration: Acceleration) -> dict[str, str]:
        """Compare a model's scores. Raises [`InputError`]: TRL's score differs."""
        autocast = mixed_dtype(self.accelerator)
        differences = find_differences(model, acceleration, self._trl_score, self.temperature, autocast)
        differences = first_of_processes(differences or None) or {}
        if HEAD in differences:
            name = "" if model is self._policy else f"ref_model={self.args.ref_model!r}: "
            raise InputError(name + differences[HEAD])
        return differences

    def _switch_off(self, reasons: dict[str, str]) -> bool:
        """Switch off accelerations for reasons by key, with a warning. Returns whether one was on."""
        off = self.acceleration.switch_off(self.args, reasons)
        if off and self.is_world_process_zero():
            logger.warning("%s", describe_unsupported(off))
        return bool(off)

    def create_optimizer(self, *args, **kwargs):
        """Check the trained parameters again: a script may have changed them."""
        self._check_trained()
        return super().create_optimizer(*args, **kwargs)

    def _check_trained(self) -> None:
        """Raise an error for trained parameters outside an adapter that references or files would lack."""
        keys = []
        if not self.args.is_trl:
            keys = [anchor.key for anchor in self.anchors if isinstance(anchor.model, AdapterReference)]
        check_trained(self.accelerator.unwrap_model(self.model), keys)

    def _load_optimizer_and_scheduler(self, checkpoint):
        """Give the parts optimizer and schedule, whose states they restore."""
        self._pass_made()
        super()._load_optimizer_and_scheduler(checkpoint)

    def _run_epoch(self, *args, **kwargs):
        """Give the parts optimizer and schedule, also of a run without a checkpoint."""
        self._pass_made()
        super()._run_epoch(*args, **kwargs)

    def _pass_made(self) -> None:
        """Pass optimizer and schedule to the parts once they exist: a subclass may have made them."""
        optimizer = inner_of(self.optimizer)
        # `resets`, a part itself, has those that were passed last.
        if self.resets.optimizer is not optimizer:
            for part in self.parts.values():
                part.optimizer_made(optimizer)
        if self.resets.schedule is not self.lr_scheduler:
            for part in self.parts.values():
                part.schedule_made(self.lr_scheduler)

    # --------------------------------------------------------------------------------------- a step: the batch

    def training_step(self, model, inputs, num_items_in_batch=None):
        """Add the clock of a step, and `on_backward` of the parts after its last micro-batch."""
        if not self.has_started:
            self._warn_of_late_keys()
            self._check_noise()
        self.has_started = True
        if not self.meter.open:
            self.meter.begin_step()
        loss = super().training_step(model, inputs, num_items_in_batch)
        if self.accelerator.sync_gradients:  # gradients of the whole step, before clipping
            for part in self.parts.values():
                part.on_backward(self.modules.parameters())
        return loss

    def _warn_of_late_keys(self) -> None:
        if not self.is_world_process_zero():
            return
        args = self.args
        steps = self.state.max_steps
        late = find_late_keys(args, steps, self.state.eval_steps, GUARD_WINDOW)
        for key, first in late.items():
            logger.warning(
                "%s=%s cannot act before step %d, and the run ends at step %d: raise max_steps or lower %s.",
                key,
                getattr(args, key),
                first,
                steps,
                key,
            )

    def _check_noise(self) -> None:
        """
        Check that the policy's forward is not random, before anything is sampled. Raises `ValueError` if a key of ours
        is on, other than `fast`, which is then off. It warns if only TRL compares log-probabilities.
        """
        args = self.args
        compares = args.beta != 0.0 or args.num_iterations > 1
        is_checked = compares or not args.is_trl
        if not is_checked or is_sharded(self.accelerator) or has_images(self):
            return
        noise = first_of_processes(find_noise(self._policy, self.accelerator))
        if noise is None:
            return
        args.disable_fast_unless(refuse_noise, noise)
        keys = ("pack_groups", "compact_generation")
        is_changed = self._switch_off(dict.fromkeys(keys, noise))
        if not self.is_world_process_zero():
            return
        if is_changed:
            self.write_env()
        else:
            logger.warning("%s", noise)

    def _generate_and_score_completions(self, inputs):
        """Add what comes before a generation batch (resets), and after it: the anchors' scores and our advantages."""
        if not self.model.training:
            return self._sample_evaluated(inputs)
        self._cross_boundary(self.state.global_step)
        with self.meter.timer.stage("rollout"):
            batch, result = self._sample_rounds(inputs)
            for anchor in self.anchors.to_score(batch, self._generations):
                batch[anchor.column] = self._score(anchor, batch, self.args.per_device_train_batch_size)
        self._generations += 1
        self._set_advantages(batch, result)
        self.recorder.add_generation(result, batch["advantages"])
        for part in self.parts.values():
            part.on_batch(batch)
        # A subclass may add values in the order of `inputs`, or look at groups.
        is_seen = self.first_own("_generate_and_score_completions", "_prepare_inputs") is not None
        return self._keep_groups_together(batch) if self.acceleration.packs and not is_seen else batch

    def _cross_boundary(self, step: int) -> None:
        """Let the parts act between two generation batches: no cached log-probability survives this point."""
        for part in self.parts.values():
            event = part.on_generation(step)
            if event is not None:
                self._event(event)
                self._last_loaded_step = -1  # an evaluation at this step may have sent older weights to vLLM

    def _sample_rounds(self, inputs) -> tuple[dict[str, torch.Tensor], RolloutResult]:
        """Sample a batch, by the prompt pool and in several rounds, if they are on."""
        sample = self._sample
        if self.prompt_pool is not None:
            sample = partial(self.prompt_pool.sample, self._sample)
        if self.dynamic_sampling is not None:
            return self.dynamic_sampling.sample(inputs, sample)
        return sample(inputs)

    def _set_advantages(self, batch: dict[str, torch.Tensor], result: RolloutResult) -> None:
        """Set the advantages `(B,)` as configured, and add the columns `rewards` and `group`."""
        advantages = batch["advantages"]
        process = self.accelerator.process_index
        kl_in_reward = self.anchors.in_reward(batch)
        if kl_in_reward is not None:
            kl_in_reward = self.accelerator.gather(kl_in_reward)
        logged = self._logs["advantages"]
        set_advantages(advantages, result, self.reward_weights, process, self.args, logged, kl_in_reward)
        batch.update(result.columns(process, len(advantages)))

    def _keep_groups_together(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """
        Reorder a generation batch so that TRL's next shuffle keeps the rows of a group together, within shares whose
        order changes no update's gradient.
        """
        number = len(batch["advantages"])
        with torch.random.fork_rng(devices=[]):
            # TRL's `shuffle_sequence_dict` draws the same next, from the same random state.
            shuffle = torch.randperm(number)
        # An own loss may average or rank the rows of each micro-batch.
        micro_batches = 1 if self.own_method is not None else self.args.exchangeable_micro_batches
        rows_per_share = number // self.args.steps_per_generation * micro_batches
        order = keep_groups_together(shuffle, self.num_generations, rows_per_share)  # (B,)
        # `value[places][shuffle]`, which TRL computes, is `value[order]`.
        places = order[shuffle.argsort()].to(batch["advantages"].device)
        return {name: value[places] if value.dim() else value for name, value in batch.items()}

    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations, *args, **kwargs):
        """Sample by the run's keys alone: not by the model's generation config."""
        with plain_generation_config(self._policy), checkpointing_off(self.modules.all()):
            return self._generate_by_keys(prompt_ids, images, multimodal_fields, num_generations, *args, **kwargs)

    def _generate_by_keys(self, prompt_ids, *args, **kwargs):
        """Generate as TRL does, or compactly."""
        if self.compact is None:
            # TRL casts the weights for continuous batching, and does not cast them back.
            casts_weights = self.use_transformers_continuous_batching and not is_sharded(self.accelerator)
            with keep_weights(self.model) if casts_weights else nullcontext():
                return super()._generate_single_turn(prompt_ids, *args, **kwargs)
        with profiling_context(self, "transformers.generate"):
            settings = (self.generation_config, self.eos_token_ids, self.pad_to_multiple_of)
            return self.compact.sample(self._policy, prompt_ids, *settings)

    def _generate(self, prompts):
        """Keep the masks of tokens that tools wrote."""
        call = self._call
        if isinstance(call, SamplingCall):
            call.asks = False
        generated = super()._generate(prompts)
        if isinstance(call, SamplingCall):
            call.asks = True
            # In the batch, `mask_truncated_completions` clears those of truncated ones.
            call.tool_masks = generated[2]
        return generated

    def _sample_as_trl(self, inputs) -> tuple[dict[str, torch.Tensor], RolloutResult]:
        """Call TRL's method, and return its batch and what `_record_rewards` has recorded."""
        self._note_metrics()
        call = SamplingCall(self.model.training, self.scorer.comes_later(self.anchors["ref"]))
        with self._calling(call), self._recording_rewards(), checkpointing_off(self.modules.all()):
            batch = super()._generate_and_score_completions(inputs)
        call.result.keep_metrics(self._new_metrics(), self.reward_weights, self.multi_objective_aggregation)
        return batch, call.result

    @contextmanager
    def _calling(self, call: SamplingCall | PolicyPass) -> Iterator[None]:
        """Let the methods that TRL calls see what it computes."""
        self._call = call
        try:
            yield
        finally:
            self._call = None

    def _note_metrics(self) -> None:
        """Note what a subclass has appended to TRL's lists, before a method of TRL appends more."""
        if self.model.training:
            self.trl_metrics.read(self.recorder.subclass_metrics)

    def _new_metrics(self) -> dict[str, float]:
        """Return what a method of TRL has appended to its lists in training; an evaluation reads them at its end."""
        means = Means()
        if self.model.training:
            self.trl_metrics.read(means)
        return means.values_by_name()

    def _sample(self, inputs, again: bool = False) -> tuple[dict[str, torch.Tensor], RolloutResult]:
        """Sample a batch by TRL's method. `again` is for the prompt pool, which is called in the same way."""
        with self.guard.sampling(inputs, self.state.global_step + 1):
            return self._sample_as_trl(inputs)

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        """Treat NaN and infinity of reward models."""
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        training = self.model.training
        return treat_nonfinite(self.reward_funcs, self.reward_func_names, rewards, self.args.nonfinite, training)

    @contextmanager
    def _recording_rewards(self) -> Iterator[None]:
        """
        Record the rewards that TRL gets: a subclass or a script may change those that our method returns. TRL's own
        table of completions lacks rows of a large evaluation batch, and joins reward functions of the same name.
        """
        calculate = self._calculate_rewards
        is_set = "_calculate_rewards" in vars(self)  # by a script
        self._calculate_rewards = partial(self._record_rewards, calculate)
        try:
            yield
        finally:
            del self._calculate_rewards
            if is_set:
                self._calculate_rewards = calculate

    def _record_rewards(self, calculate: Callable, inputs, prompts, completions, completion_ids_list) -> torch.Tensor:
        """Calculate rewards, and record them with verdicts and times."""
        call = self._call
        call.asks = False  # TRL has asked for all log-probabilities, and a reward function may score
        start = time.perf_counter()
        rewards = calculate(inputs, prompts, completions, completion_ids_list)
        seconds = time.perf_counter() - start
        correct = self.verdicts.judge(inputs, prompts, completions, beside_rows(self, completion_ids_list))
        group_size = self.num_generations if call.in_training else self.num_generations_eval
        call.result = RolloutResult.from_rewards(
            rewards, group_size, inputs, completion_ids_list, call.tool_masks, correct, seconds
        )
        call.result.count_scored(self.reward_func_names)
        return rewards

    # ------------------------------------------------------------------------------------ a step: its scoring

    def _get_per_token_logps_and_entropies(self, model, input_ids, attention_mask, logits_to_keep, **kwargs):
        """Let the scorer decide whether and how a model is scored: packed, once, or not at all."""
        # TRL scores the policy in its loss, and anchors while it makes a generation batch; an evaluation or a script
        # scores any model.
        trl_score = self._trl_score
        rows = (input_ids, attention_mask, logits_to_keep)
        call = self._call
        if isinstance(call, PolicyPass):
            is_counted = self.model.training
            scored = self.scorer.score_policy(call, is_counted, trl_score, model, *rows, **kwargs)
            if call.batch is not None:
                self._apply_trust_region(call)
            return scored
        if isinstance(call, SamplingCall) and call.scores:
            return self.scorer.score_for_trl(trl_score, model, *rows, **kwargs)
        return self.scorer.score(trl_score, model, *rows, **kwargs)

    def _trl_score(self, model, *rows, **kwargs) -> tuple:
        if self._learns_positions:
            model = with_positions(model)
        return super()._get_per_token_logps_and_entropies(model, *rows, **kwargs)

    def _score(self, anchor: Anchor, batch, batch_size: int | None = None) -> torch.Tensor:
        """Return log-probabilities `(B, T)` under an anchor, scored in chunks of `batch_size` rows."""
        with checkpointing_off(self.modules.all()):
            return self.scorer.score_anchor(anchor, self._trl_score, self.model, batch, batch_size)

    # -------------------------------------------------------------------------------------- a step: its loss

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """
        Compute the loss of a micro-batch: B completions of T tokens, with advantages A `(B,)`.

            r       = π / π_old                  of each token, or of each sequence: `importance_sampling_level`
            policy  = −min(r · A, clip(r, 1 − ε_low, 1 + ε_high) · A)    `grpo`, `dapo`, …; others: `loss_type`
            KL_a    = KL(π ‖ π_a)                by `kl_estimator`; π_a is the reference, π_old or the starting model
            loss    = Σ w · (policy + Σ_a β_a · KL_a) − c · H     w: 1 / tokens, … by `loss_type`; H: entropy

        `kl_target` moves β_a between generation batches; with `kl_in: reward` the KL is in A. With a `trust_region`
        A is 0 outside of it, and nothing is clipped. TRL computes the policy term and c · H, and the KL if it is k3
        to the reference alone.
        """
        args = self.args
        training = self.model.training
        level = self.importance_sampling_level
        accumulation = self.current_gradient_accumulation_steps if training else None

        self._complete_anchors(inputs)  # log π_a of each anchor, (B, T)
        sampler_logps = self._take_sampler_logps(inputs)  # (B, T), if another model than π has sampled
        policy_pass = self._plan_policy_pass(inputs)  # rows that π computes, (R,)

        # Σ w · policy − c · H, and TRL's own KL
        policy_loss = self._compute_trl_loss(policy_pass, model, inputs, return_outputs)
        logps = policy_pass.logps  # log π, (B, T)
        if training and args.old_logps_source == "first_pass":
            inputs.setdefault(OldPolicyAnchor.column, logps.detach())  # log π_old of the next passes, (B, T)

        kls = self.anchors.kls(inputs, logps, level)  # KL_a of each anchor that acts, (B, T)
        kl_loss = None
        if kls:
            kl = self.anchors.weighted_sum(kls)  # Σ_a β_a · KL_a, (B, T)
            weights = self.aggregation.weights(inputs, accumulation)  # w, (B, T)
            kl_loss = (kl * weights).sum()

        loss = policy_loss
        if args.adds_penalty and kl_loss is not None:  # else TRL's loss has it
            loss = policy_loss + kl_loss
        self._record_loss(inputs, policy_pass, loss, kls, kl_loss, sampler_logps)
        return loss

    def _record_loss(self, inputs, policy_pass: PolicyPass, loss, kls, kl_loss, sampler_logps) -> None:
        """Give a micro-batch to the parts, or to the evaluation; changes nothing of the loss."""
        if not self.model.training:
            self._record_evaluated(inputs, policy_pass.entropies)
            return
        trl_metrics = self._new_metrics()
        if policy_pass.outside is not None:
            counts = torch.stack([policy_pass.outside.sum(), policy_pass.mask.sum()])
            outside, tokens = self.accelerator.reduce(counts, reduction="sum").tolist()
            trl_metrics["clip_ratio/region_mean"] = outside / max(tokens, 1)
        if self.args.adds_penalty and kl_loss is not None and "policy_loss" in trl_metrics:
            # TRL's is the loss without its entropy bonus.
            logged = self.aggregation.logged(kl_loss.detach(), self.current_gradient_accumulation_steps)
            trl_metrics["policy_loss"] += self.accelerator.gather(logged).nanmean().item()
        micro_batch = MicroBatch(
            batch=inputs,
            loss=loss,
            logps=policy_pass.logps.detach(),
            entropies=policy_pass.entropies,
            rows=policy_pass.rows,
            kls=kls,
            kl_loss=kl_loss,
            trl_metrics=trl_metrics,
            sampler_logps=sampler_logps,
        )
        with self.meter.timer.stage("meter"), torch.no_grad():
            for part in self.parts.values():
                part.on_loss(micro_batch)

    def _complete_anchors(self, inputs) -> None:
        """Score a reference that every pass scores, and set the anchors to 0 at masked tokens."""
        if self.model.training and self.args.ref_compute == "naive_epoch":
            inputs[ReferenceAnchor.column] = self._score(self.anchors["ref"], inputs)
        mask = completion_mask(inputs)
        for anchor in self.anchors:
            if anchor.column in inputs:
                inputs[anchor.column] = zero_masked(inputs[anchor.column], mask)

    def _take_sampler_logps(self, inputs) -> torch.Tensor | None:
        """Take the log-probabilities `(B, T)` of the sampled model, if it is not exactly the policy."""
        if self.use_vllm and self.args.samples_whole:
            return inputs.get("sampling_per_token_logps")
        if self.compact is not None:
            return self.compact.take_logps(inputs)
        return None

    def _choose_rows(self, inputs) -> torch.Tensor | None:
        """Choose the rows `(R,)` of a training micro-batch that the policy computes; `None` means all."""
        # An adaptive entropy bonus and a load-balancing loss need all rows, with any coefficient.
        needs_all = self.args.has_entropy_bonus or self.aux_loss_enabled
        if self.anchors.active(inputs) and not self.args.drop_zero_rows:
            needs_all = True
        if self.args.skip_zero_rows is None and self.own_method is not None:  # a loss that may act on every row
            needs_all = True
        return self.scorer.rows_to_score(inputs, needs_all)

    def _plan_policy_pass(self, inputs) -> PolicyPass:
        rows = self._choose_rows(inputs) if self.model.training else None
        fill = None if rows is None else inputs.get(OldPolicyAnchor.column)
        if self.model.training and self.args.skips_zero_rows:
            advantages = inputs["advantages"]
            skipped = 0 if rows is None else len(advantages) - len(rows)
            self.meter.add_count("rows_skipped", advantages.new_full((), skipped, dtype=torch.long))
        plan_key = inputs["completion_mask"] if rows is None else rows
        return PolicyPass(completion_mask(inputs), rows, plan_key, fill, leaves_kl=self.args.adds_penalty)

    def _compute_trl_loss(self, policy_pass: PolicyPass, model, inputs, return_outputs: bool) -> torch.Tensor:
        """Call TRL's method. It asks for the policy's log-probabilities, which `policy_pass` keeps."""
        self._note_metrics()
        if self.args.loss_mode == "no_ratio":
            inputs = without_ratio(inputs)
        if self.args.trust_region is not None:
            # `_apply_trust_region` changes this copy between the policy's forward and TRL's loss.
            inputs = dict(inputs)
            policy_pass.batch = inputs
        with self._calling(policy_pass):
            return super().compute_loss(model, inputs, return_outputs)  # TRL refuses outputs

    def _apply_trust_region(self, policy_pass: PolicyPass) -> None:
        """Set the advantages of tokens outside the region to 0. TRL reads them after it has called the policy."""
        args = self.args
        threshold = args.trust_region_threshold or TRUST_REGIONS[args.trust_region]
        batch = policy_pass.batch
        logps = policy_pass.logps.detach()
        advantages = batch["advantages"]
        masked = masked_tokens(
            args.trust_region, threshold, logps, sampler_of(batch, logps), advantages, policy_pass.mask
        )
        batch["advantages"] = by_token(advantages) * ~masked
        rows = policy_pass.rows
        if rows is not None:  # the others have no log-probabilities
            masked = torch.zeros_like(masked).index_copy(0, rows, masked[rows])
        policy_pass.outside = masked

    # ------------------------------------------------------------------------- a step: its update, and its row

    def _get_grad_norm(self, model, grad_norm=None):
        """Add `on_pre_optimizer_step` of the parts."""
        norm = super()._get_grad_norm(model, grad_norm)
        if norm is not None:
            norm = float(norm)  # synchronizes with the device, once for all parts and for TRL's log
        rate = float(self.optimizer.param_groups[0]["lr"]) * self.resets.rewarmup.factor
        for part in self.parts.values():
            part.on_pre_optimizer_step(self.state.global_step + 1, norm, rate)
        return norm

    def _maybe_log_save_evaluate(self, *args, **kwargs):
        """Add the row of a step. `on_step_end` would be too early: a callback that is added later runs after it."""
        # Also called at the end of an epoch: without an open step, or with one that a callback has cut short.
        ends_step = self.meter.open and self.accelerator.sync_gradients
        if ends_step:
            self._end_step(self.state.global_step)
        if ends_step and self.control.should_save and self._epoch_ends():
            # A resume would miss measurements at the epoch's end, which comes after this save.
            self.control.should_save = False
            super()._maybe_log_save_evaluate(*args, **kwargs)
            self.control.should_save = True
            return
        super()._maybe_log_save_evaluate(*args, **kwargs)

    def _epoch_ends(self) -> bool:
        """Return whether this step is the last of an epoch that ends with an evaluation or a log."""
        if "epoch" not in (self.args.eval_strategy, self.args.logging_strategy):
            return False
        is_last = float(self.state.epoch).is_integer()
        return is_last or self.control.should_epoch_stop or self.control.should_training_stop

    def _end_step(self, step: int) -> None:
        for part in self.parts.values():
            part.on_step_end(step, self.modules.parameters())
        self.trl_metrics.read(self.recorder.subclass_metrics)
        row = self.recorder.finish_step(step, self.guard.skips)
        for part in self.parts.values():
            event = part.on_row(step, row)
            if event is not None:
                self._event(event)
                if event.get("action") == "stop":
                    self._stop(event)

    def _event(self, event: Event) -> None:
        for part in self.parts.values():
            part.on_event(event)
        self.terminal.say(write_event_line(event))

    # --------------------------------------------------------------------------------------- outside a step

    def log(self, logs, start_time=None):
        """Add our values to a log of the training. To one of an evaluation TRL adds its means over batches."""
        if self.model.training or "loss" in logs:  # a callback may have evaluated since the last step
            logs.update(self.recorder.take_log())
        else:
            logs = dict(logs)  # the caller's, over all rows, are read by triggers, and choose the best checkpoint
        super().log(logs, start_time)

    # ------------------------------------------------------------------------------- for users and rollouts

    @property
    def run_dir(self) -> Path:
        """Folder of the run: `output_dir`."""
        return self.folder.path

    @property
    def rows_to_sample(self):
        """The training set with the columns that reward functions get, see `remove_unused_columns`."""
        rows = self.train_dataset
        return self._remove_unused_columns(rows, "training") if isinstance(rows, Dataset) else rows

    @property
    def text_tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer, also that of a processor."""
        return self._tokenizer

    @property
    def own_method(self) -> str | None:
        """The own method that prepares micro-batches, or computes their loss; `None` without one (`first_own`)."""
        return self.first_own("_prepare_inputs", "compute_loss", "_compute_loss")

    def first_own(self, *names: str) -> str | None:
        """Return the first of these methods that a subclass overrides, or that a script has set on this object."""
        for name in names:
            if name in vars(self) or getattr(type(self), name) is not getattr(ProRLTrainer, name):
                return name
        return None

    def check_own_scores(self) -> None:
        """Raise `ValueError` for a trainer with its own scores: its anchors are scored without them."""
        name = "_get_per_token_logps_and_entropies"
        if self.first_own(name) is not None:
            raise ValueError(
                f"{type(self).__name__} has its own {name}, but references and the old policy are scored without it. "
                "Change the model's forward or the loss instead, or train without keys of ProRLConfig."
            )

    @property
    def is_vlm(self) -> bool:
        return self._is_vlm

    def wrap_synced_weights(self, wrap: Callable) -> None:
        """Let vLLM get the policy's weights from `wrap(read)`; `read` is TRL's method that yields them by name."""
        engine = self.vllm_generation
        engine._iter_named_params = partial(wrap, engine._iter_named_params)

    def share_in_training(self, rows) -> float | None:
        """Return the share of a data set's prompts that occur in the training set; `None` if unknown."""
        prompts = [prompt for _, prompt in prompts_of(rows)]
        count = self.training_prompts.count(prompts) if prompts else None
        return None if count is None else count / len(prompts)

    def request_reset(self, reason: Reason) -> None:
        """
        Request a reset. It is applied before the next batch is generated; pending requests are merged into one reset.

        Raises:
            `ValueError`: This trainer has nothing to reset.
        """
        self.resets.request(reason)

    def tokenize_prompts(self, prompts: list) -> list[list[int]]:
        """Return token ids of prompts in the chat template."""
        if self.environment_factories is not None and not self._multi_environment:
            self._batch_environments = [None] * len(prompts)  # TRL looks there for each prompt's tools
        return self._tokenize_prompts(prompts)[0]

    def generate_tokens(self, prompt_ids: list[list[int]], max_new_tokens: int) -> list[list[int]]:
        """
        Sample one continuation per prompt with this run's settings, token ids from token ids. It includes the
        end-of-sequence token if it was reached.
        """
        configured = self.generation_config.max_new_tokens
        self.generation_config.max_new_tokens = max_new_tokens
        try:
            return self._generate_single_turn(prompt_ids, None, {}, self.num_generations)[0]
        finally:
            self.generation_config.max_new_tokens = configured
