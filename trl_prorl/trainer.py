"""`ProRLTrainer`: TRL's `GRPOTrainer` with moving references, an old-policy anchor, resets, and a record.

This file and its parts (`trainer_adapter.py`, `trainer_checkpoints.py`, `trainer_finite.py`, `trainer_hub.py`) are the only
ones that know TRL's private methods; `tests/test_upstream_contract.py` pins them. With every ProRL key at its default TRL's own methods compute
everything, and this class only watches.
"""

import inspect
import logging
import math
import os
import tempfile
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch
from accelerate.utils import broadcast_object_list, gather_object, is_peft_model, set_seed
from datasets import Dataset
from peft import PeftModel, get_peft_model
from transformers import AutoProcessor, PreTrainedModel, Trainer
from trl import GRPOTrainer
from trl.models.utils import disable_gradient_checkpointing
from trl.trainer.utils import (
    add_fused_lm_head,
    create_model_from_path,
    get_callable_name,
    get_config_model_id,
    split_tensor_dict,
)

from . import kl
from .adapter_init import changes_model, without_initialisation
from .adaptive import next_coefficient
from .advantages import estimate
from .callbacks import ReferenceResetCallback
from .checks import check_columns, check_pack_limit, check_rows
from .config import ProRLConfig
from .dropout import check_dropout, check_dropout_config, check_randomness
from .dynamic_sampling import ExtraRows, deciding, named_functions, put_groups, undecided, weighted_sum
from .elastic import ElasticAverage
from .entropy_watch import EntropyWatch
from .errors import EvaluationError
from .fp32_head import cast_head_to_fp32, check_full_model
from .grouping import whole_groups
from .identity import changing_keys, dataset_hash, weights_hash
from .meter import Meter, StageTimer, UpdateNorm
from .normalizer import WINDOW_LOSSES, token_weights
from .optimizer_state import apply_reset, check_optimizer, check_optimizer_class, plan_reset, reset_scaler
from .packing import packed_logps, why_not
from .packing_probe import probe
from .quiet import without_warning
from .reference import (
    AdapterReference,
    PolicyItself,
    SnapshotReference,
    check_adapter,
    frozen_adapter,
    frozen_copy,
    move_reference,
)
from .rewards import watched
from .schedule import Rewarmup, restart_schedule, snapshot_schedule
from .trainer_adapter import AdapterMixin
from .trainer_checkpoints import CheckpointMixin
from .trainer_finite import FiniteMixin
from .trainer_hub import HubMixin
from .triggers import KLSpike, Periodic, Reason, Stall, Trigger


TRL_LOGGER = "trl.trainer.grpo_trainer"

logger = logging.getLogger(__name__)


class ProRLTrainer(FiniteMixin, CheckpointMixin, HubMixin, AdapterMixin, GRPOTrainer):
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

    def __init__(self, model, reward_funcs=None, args=None, *others, **named):
        if args is None:
            name = model if isinstance(model, str) else get_config_model_id(model.config)
            args = ProRLConfig(f"{name.split('/')[-1]}-GRPO")
        if not isinstance(args, ProRLConfig):
            raise TypeError(f"args is a {type(args).__name__}; ProRLTrainer needs a ProRLConfig.")
        bound = inspect.signature(GRPOTrainer.__init__).bind(self, model, reward_funcs, args, *others, **named)
        given = {name: value for name, value in bound.arguments.items() if name != "self"}
        if given.get("environment_factory") is None:  # an environment brings prompts of its own
            check_columns(given.get("train_dataset"))
        check_rows(given.get("train_dataset"), args.generation_batch_size, args.num_generations)
        functions = given.get("reward_funcs")
        functions = functions if isinstance(functions, list) else [functions]
        if given.get("environment_factory") is None and all(map(inspect.isroutine, functions)):
            names = [get_callable_name(function) for function in functions]  # others have theirs when they are loaded
            named_functions(args.dynamic_sampling_rewards, names, args.reward_weights)
        keys = changing_keys(args)  # before TRL changes any
        self._check_optimizer(args, given.get("optimizers"))
        own_triggers = any(isinstance(callback, ReferenceResetCallback) for callback in given.get("callbacks") or [])
        self._resets = args.resets or own_triggers
        if self._resets:
            args.check_reset_schedule()
        self._check_sharding(args)
        if not args.is_trl and not args.disable_dropout:
            check_dropout_config(given.get("peft_config"))
        moves = args.beta != 0.0 and self._resets
        if moves or args.beta_base:
            check_adapter(model, given.get("peft_config"))
        self._check_hub(args, given, moves)
        # A new LoRA adapter is zero, unless it is initialised from the weights, which it then changes (PiSSA and others).
        fresh_adapter = getattr(given.get("peft_config"), "init_lora_weights", None) in (True, "gaussian")
        loads = False
        wraps = given.get("peft_config") is not None and not isinstance(model, PeftModel)  # TRL refuses to wrap twice
        if moves and wraps:
            # Given a `peft_config`, TRL's reference is the base model, which cannot move; given a `PeftModel`, it is an
            # adapter of its own. The seed is set as TRL sets it before it wraps a model.
            set_seed(args.seed)
            loads = isinstance(model, str)
            if loads and given.get("processing_class") is None:
                given["processing_class"] = _loaded_processor(model, args)
            given["model"] = get_peft_model(
                _loaded(model, args, given.pop("quantization_config", None)), given.pop("peft_config")
            )
        # TRL looks for the embeddings of a tied head in the adapter's wrapper, where they are not.
        casts_head = args.cast_lm_head_to_fp32 and (wraps or isinstance(model, PeftModel))
        if args.cast_lm_head_to_fp32 and not casts_head:
            init = args.model_init_kwargs or {}
            check_full_model(model, revision=init.get("revision"), trust_remote_code=args.trust_remote_code)
        full = given.get("peft_config") is None and isinstance(given["model"], PreTrainedModel)
        with _reloadable(given["model"]) if full and args.beta != 0.0 else nullcontext():
            with (
                without_warning(TRL_LOGGER, "`model_init_kwargs`") if loads else nullcontext(),  # they were used
                without_initialisation(given["model"]),  # of TRL's adapter `ref`, a copy
                _without_cast_head(args) if casts_head else nullcontext(),
            ):
                super().__init__(**given)
        if casts_head:
            self._cast_head()
        given_wrapped = isinstance(model, PeftModel)
        policy = self.accelerator.unwrap_model(self.model)
        if "default" in getattr(policy, "peft_config", {}):
            self._remember_initialisation(policy.peft_config["default"], given_wrapped, moves)
        if not args.is_trl:
            check_dropout(self.model)
            self._check_randomness()
        if args.skip_zero_rows and (self._is_vlm or self._has_images()):
            raise ValueError(
                "skip_zero_rows=True leaves out rows of text alone, and the prompts have images: set it false."
            )
        self._identity = {
            **keys,
            "processes": self.accelerator.num_processes,
            "weights of the model": weights_hash(self._base_parameters()),
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
        self._packs = self.packing.startswith("on")
        self.recipe: tuple = ()  # dataclasses of a recipe that `config.yaml` shall hold beside `args`
        self.beta_old, self.beta_base = args.beta_old, args.beta_base  # with `beta`, what `kl_target` adapts
        self.reference = self._make_reference(moves)
        self.base = self._make_base(fresh_adapter) if args.beta_base else None
        self.elastic = self._make_elastic() if args.elastic_reset_every else None
        self.meter = Meter(self.accelerator.device)
        self._metrics_log = self._events_log = self._evaluations_log = None
        self._score_kinds: list[str] = []
        self._captured: tuple[torch.Tensor, torch.Tensor | None] | None = None
        self._requests: list[Reason] = []
        self._learning_rate: float | None = None
        self._schedule_start: dict | None = None
        self._rewarmup: Rewarmup | None = None  # made with the optimizer, which DeepSpeed may make itself
        self._scored_rows: tuple[torch.Tensor, torch.Tensor | None] | None = None
        self._writing_into: Path | None = None
        self._count_from_0()
        self._tokens_sampled: torch.Tensor | None = None  # by this process, in the newest round
        self._task_names: list[str | None] = []
        self._interrupted: list[bool] = []
        self._rewards: torch.Tensor | None = None  # of all processes, by function
        self._rewards_by_round: list[torch.Tensor] = []  # the same, of every round of dynamic sampling
        self._update_norm: UpdateNorm | None = None
        self._initial_scale = self.accelerator.scaler.get_scale() if self.accelerator.scaler is not None else None
        self._untouched: list[tuple[ReferenceResetCallback, dict]] = []  # callbacks, and what they remember at first
        for callback in self._reset_callbacks():
            self._bind(callback)
        if args.resets:
            self.add_callback(ReferenceResetCallback(self._configured_triggers(), args.ref_reset_cooldown))

    # ------------------------------------------------------------------------------------------- construction

    def _cast_head(self) -> None:
        """`cast_lm_head_to_fp32` for a model with adapters, as TRL does it for one without."""
        policy = self.accelerator.unwrap_model(self.model).get_base_model()
        cast_head_to_fp32(policy)
        add_fused_lm_head(
            policy, temperature=self.temperature, cast_lm_head_to_fp32=True, outputs=("log_probs", "entropy")
        )

    def _count_from_0(self) -> None:
        """What is remembered from step to step, as a run begins."""
        args = self.args
        self._elastic_requested: int | None = None
        self._last_kl_ref: float | None = None
        self._kl_since_generation: list[float] = []
        self._generations = self._epochs_done = self._nonfinite_skips = 0
        self._generation_row: dict[str, list[float]] = {}
        self._tokens_generated: int | None = None
        self._seconds_evaluated = 0.0  # before the first step
        self._nonfinite: dict | None = None  # what was found in this step, and where
        self._extra_rows = self._check_dynamic_sampling() if args.dynamic_sampling_rounds else None
        self._deciding_functions = named_functions(
            args.dynamic_sampling_rewards, self.reward_func_names, self.reward_weights.tolist()
        )
        self.entropy_watch = (
            EntropyWatch(args.entropy_floor, args.entropy_patience) if args.entropy_floor is not None else None
        )

    @staticmethod
    def _check_optimizer(args: ProRLConfig, optimizers) -> None:
        if args.optimizer_reset == "keep":
            return
        if optimizers is not None and optimizers[0] is not None:
            check_optimizer(optimizers[0], args.optimizer_reset)
        else:
            cls, arguments = Trainer.get_optimizer_cls_and_kwargs(args)
            momentum, beta1 = arguments.get("momentum", 0.0), arguments.get("beta1")
            check_optimizer_class(cls, momentum, beta1, args.optimizer_reset)

    def _check_sharding(self, args: ProRLConfig) -> None:
        """Where parameters or optimizer states are sharded, a plain copy would do nothing or half of it: refuse."""
        copies = self._resets or args.elastic_reset_every > 0 or args.beta_base != 0.0
        plugin = args.deepspeed_plugin
        if plugin is not None and plugin.zero_stage == 3 and copies:
            raise ValueError(
                "zero_stage=3 shards the parameters, and copying them onto a reference would silently do nothing. Use "
                "zero_stage: 2 (accelerate_configs/zero2.yaml) or a single process."
            )
        if plugin is not None and self._resets and args.treats_optimizer:
            raise ValueError(
                f"optimizer_reset={args.optimizer_reset!r} under DeepSpeed, which partitions the optimizer's state, is "
                "not supported. Use optimizer_reset: keep without a schedule restart, or DDP "
                "(accelerate_configs/multi_gpu.yaml)."
            )
        fsdp = args.fsdp or os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"
        if fsdp and (args.elastic_reset_every or args.beta_base != 0.0):
            raise ValueError(
                "elastic_reset_every and beta_base keep whole copies of the parameters, which FSDP shards. Use DDP "
                "(accelerate_configs/multi_gpu.yaml)."
            )

    def _check_dynamic_sampling(self) -> ExtraRows:
        if not isinstance(self.train_dataset, Dataset):
            raise ValueError("dynamic_sampling_rounds draws further prompts, which a streamed dataset does not allow.")
        part = self.args.per_device_train_batch_size * self.args.steps_per_generation
        if part % self.num_generations:
            raise ValueError(
                f"dynamic_sampling_rounds={self.args.dynamic_sampling_rounds} replaces whole groups, and a process holds "
                f"{part} completions, not a multiple of num_generations={self.num_generations}. Change "
                "per_device_train_batch_size or steps_per_generation."
            )
        return ExtraRows(len(self.train_dataset), self.args.seed)

    def _has_images(self) -> bool:
        return not {"image", "images"}.isdisjoint(getattr(self.train_dataset, "column_names", None) or ())

    def _choose_packing(self) -> str:
        """`"on"`, with a remark if its numbers were not tried, or `"off"` with the reason why not."""
        if self.args.pack_groups == "off":
            return "off"
        policy = self.accelerator.unwrap_model(self.model)
        reason = why_not(policy)
        if self._is_vlm or self._has_images():
            reason = "the prompts have images."
        elif self.tools or self.environments is not None:
            reason = "tools write into the completions."
        elif self.aux_loss_enabled:
            reason = "the load-balancing loss averages over tokens, prompts included, as padded."
        if reason is None:
            self._check_pack_limit(self.args.pack_max_tokens, self.accelerator.num_processes)
            if self._shards_weights:
                self._check_prompts_fit()
                logger.warning("The numbers of packed rows were not tried on this model: its weights are sharded.")
                return "on; its numbers were not tried, because the weights are sharded"
            reason = self._probed(policy)
        if reason is None:
            self._check_prompts_fit()
            return "on"
        if self.args.pack_groups == "on":
            raise ValueError(
                f"pack_groups='on' is not possible: {reason} Set pack_groups: \"off\", or auto to fall back."
            )
        logger.warning("pack_groups='auto' falls back to padded rows: %s", reason)
        return f"off: {reason}"

    def _check_prompts_fit(self) -> None:
        """Every prompt with the longest completion within `pack_max_tokens`; streamed prompts are seen as they come."""
        if self.args.pack_max_tokens is None:
            return
        sets = self.eval_dataset if isinstance(self.eval_dataset, dict) else {"validation": self.eval_dataset}
        for which, rows in {"training": self.train_dataset, **sets}.items():
            if isinstance(rows, Dataset):
                prompts = rows["prompt"]
                lengths = []
                for start in range(0, len(prompts), 1000):
                    lengths += map(len, self.tokenize_prompts(prompts[start : start + 1000]))
                check_pack_limit(self.args.pack_max_tokens, lengths, self.max_completion_length, which)

    @property
    def _shards_weights(self) -> bool:
        plugin = self.args.deepspeed_plugin
        return self.is_fsdp_enabled or (plugin is not None and plugin.zero_stage == 3)

    def _probed(self, policy) -> str | None:
        """Why the model's own numbers forbid packing, the same on every process."""

        def padded(input_ids, attention_mask, logits_to_keep):
            score = super(ProRLTrainer, self)._get_per_token_logps_and_entropies
            return score(policy, input_ids, attention_mask, logits_to_keep)[0]

        def packed(input_ids, attention_mask, logits_to_keep):
            autocast = self.accelerator.autocast
            return packed_logps(policy, input_ids, attention_mask, logits_to_keep, autocast=autocast)[0]

        autocast = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.accelerator.mixed_precision)
        reason = probe(policy, policy.get_input_embeddings().weight.shape[0], padded, packed, autocast)
        return next(filter(None, gather_object([reason])), None)

    def _check_randomness(self) -> None:
        plugin = self.args.deepspeed_plugin
        if self.is_fsdp_enabled or (plugin is not None and plugin.zero_stage == 3):
            logger.warning(
                "Weights are sharded, so that no forward has looked for dropout that has no module of its own."
            )
            return
        check_randomness(self.accelerator.unwrap_model(self.model), self.accelerator.autocast())

    @staticmethod
    def _check_pack_limit(limit: int | None, processes: int) -> None:
        if limit is not None and processes > 1:
            raise ValueError(
                f"pack_max_tokens={limit} with {processes} processes, which would make unequal numbers of forwards and wait "
                "for each other for ever. Leave it out, and lower per_device_train_batch_size."
            )

    def _base_parameters(self) -> list[tuple[str, torch.Tensor]]:
        """The parameters of the policy that are those of the model it was given: without adapters, and what they change."""
        policy = self.accelerator.unwrap_model(self.model)
        configs = getattr(policy, "peft_config", {})
        others = set(configs)
        if changes_model(configs.get("default")):  # by singular vectors, whose last bits differ between machines
            others.add("base_layer")
        return [(name, param) for name, param in policy.named_parameters() if others.isdisjoint(name.split("."))]

    def _make_reference(self, moves: bool) -> AdapterReference | SnapshotReference | None:
        if self.beta == 0.0:
            return None
        if self.ref_model is not None:
            reference = SnapshotReference(
                self.accelerator.unwrap_model(self.model), self.accelerator.unwrap_model(self.ref_model)
            )
            if moves and not self.is_fsdp_enabled:
                # TRL reloads it from the model's path, which is not the policy if that was changed in memory.
                move_reference(reference, mix=1.0)
            return reference
        policy = self.accelerator.unwrap_model(self.model)
        if "ref" not in policy.peft_config:  # TRL, given a `peft_config`, takes the base model
            return AdapterReference(policy, None)
        reference = AdapterReference(policy)
        move_reference(reference, mix=1.0)  # TRL's copy leaves out the factors of embeddings
        return reference

    def _make_base(self, fresh_adapter: bool) -> AdapterReference | SnapshotReference:
        """The policy as the run began, for `beta_base`."""
        policy = self.accelerator.unwrap_model(self.model)
        if not is_peft_model(policy):
            copy = frozen_copy(policy, self.temperature, self.args.cast_lm_head_to_fp32)
            return SnapshotReference(policy, self.accelerator.prepare_model(copy, evaluation_mode=True))
        if fresh_adapter:
            return AdapterReference(policy, None)  # a new adapter is zero: the base is the model without it
        return AdapterReference(policy, frozen_adapter(policy, "base"))

    def _make_elastic(self) -> ElasticAverage:
        policy = self.accelerator.unwrap_model(self.model)
        trained = {name: param for name, param in policy.named_parameters() if param.requires_grad}
        return ElasticAverage(trained, self.args.elastic_ema)

    def _configured_triggers(self) -> list[Trigger]:
        args, triggers = self.args, []
        if args.ref_reset_every:
            triggers.append(Periodic(args.ref_reset_every))
        if args.ref_reset_kl is not None:
            triggers.append(KLSpike(args.ref_reset_kl, args.ref_reset_kl_window))
        if args.watches_metric:
            triggers.append(
                Stall(
                    args.ref_reset_metric,
                    args.ref_reset_stall,
                    args.ref_reset_drop,
                    args.ref_reset_metric_mode,
                    args.ref_reset_min_delta,
                )
            )
        return triggers

    def _reset_callbacks(self) -> list[ReferenceResetCallback]:
        return [cb for cb in self.callback_handler.callbacks if isinstance(cb, ReferenceResetCallback)]

    def _bind(self, callback: ReferenceResetCallback) -> None:
        if callback.metrics() and isinstance(self.eval_dataset, dict):
            raise ValueError(
                f"{callback.metrics()[0]!r} is watched for resets, and eval_dataset has several sets "
                f"({', '.join(self.eval_dataset)}), whose values TRL gives one name. Pass the one that decides."
            )
        callback.kl_ref = self._kl_ref_of_this_step
        callback.in_training = lambda: self.is_in_train
        self._untouched.append((callback, callback.state_dict()))

    def _kl_ref_of_this_step(self) -> float | None:
        value = self.meter.peek_mean("kl_ref", self._sum_over_processes)
        return value if _is_measured(value) else None

    def add_callback(self, callback):
        if isinstance(callback, ReferenceResetCallback):
            if not self._resets:
                raise ValueError(
                    "A ReferenceResetCallback was added to a trainer whose reference cannot move: pass it in "
                    "callbacks=[...] when the trainer is made."
                )
            self._bind(callback)
        super().add_callback(callback)

    def create_optimizer(self, *args, **kwargs):
        optimizer = super().create_optimizer(*args, **kwargs)
        if self._rewarmup is None:
            self._rewarmup = Rewarmup(optimizer, self.args.optimizer_reset_rewarmup_steps)
        if self._update_norm is None and self.args.log_update_norm:
            self._update_norm = UpdateNorm(optimizer)
        return optimizer

    def create_scheduler(self, *args, **kwargs):
        scheduler = super().create_scheduler(*args, **kwargs)
        self._schedule_start = snapshot_schedule(scheduler)
        return scheduler

    # ------------------------------------------------------------------------------------------------- resets

    def request_reset(self, reason: Reason) -> None:
        """
        Ask for a reset; it is applied at the next generation boundary, together with all that wait by then.

        Raises:
            `ValueError`: nothing of this trainer can be reset.
        """
        if not self._resets:
            raise ValueError(
                "A reset was requested of a trainer that was made without any: set ref_reset_every, or pass a "
                "ReferenceResetCallback in callbacks=[...]."
            )
        self._requests.append(reason)

    def _waiting_requests(self) -> list[Reason]:
        """What the main process's callbacks, or the user, have requested, on every process."""
        for callback in self._reset_callbacks():
            self._requests.extend(callback.take_requests())
        requests, self._requests = self._requests, []
        if self.accelerator.num_processes > 1:
            requests = broadcast_object_list([requests])[0]
        return requests

    def _apply_requested_reset(self) -> None:
        """Everything a reset does, in order, or nothing: agree, move the reference, treat the optimizer, log one event."""
        with self._timed_part("sync") as sync:
            requests = self._waiting_requests()
        if not requests:
            return
        plan = plan_reset(self.optimizer, self.args.optimizer_reset, self.args.optimizer_reset_alpha)
        with self._timed_part("copy") as copy:
            if self.reference is not None:
                move_reference(self.reference, self.args.ref_reset_mix)
        with self._timed_part("optimizer") as optimizer:
            self._treat_optimizer(plan)
        for callback in self._reset_callbacks():
            callback.triggers.applied(self.state.global_step)
        self._metrics["train"]["prorl/resets"].append(1.0)
        first = requests[0]
        event = {
            "event": "reset",
            "step_requested": first.step,
            "step_applied": self.state.global_step,
            "reason": "+".join(dict.fromkeys(request.reason for request in requests)),
            "value": first.value,
            "threshold": first.threshold,
            "requests": [request.to_dict() for request in requests],
            "ref_reset_mix": self.args.ref_reset_mix,
            "optimizer_reset": self.args.optimizer_reset,
            "seconds_copy": copy["seconds"],
            "seconds_optimizer": optimizer["seconds"],
            "seconds_sync": sync["seconds"],
            "world_size": self.accelerator.num_processes,
        }
        if self.args.optimizer_reset == "soft":
            event["alpha"] = self.args.optimizer_reset_alpha
        if self._last_kl_ref is not None:
            event["kl_before"] = self._last_kl_ref
        self._log_event(event)

    def _treat_optimizer(self, plan) -> None:
        apply_reset(plan)
        if self.args.optimizer_reset == "hard" and self.accelerator.scaler is not None:
            reset_scaler(self.accelerator.scaler, self._initial_scale)
        if self.args.restarts_schedule:
            restart_schedule(self.lr_scheduler, self._schedule_start)
        if self._rewarmup is not None:
            self._rewarmup.begin()

    def _apply_elastic_reset(self) -> None:
        """policy ← its average, average ← initial policy, as one logged event."""
        requested, self._elastic_requested = self._elastic_requested, None
        with self._timed_part("elastic") as part:
            self.elastic.reset()
        self._log_event(
            {
                "event": "elastic_reset",
                "step_requested": requested,
                "step_applied": self.state.global_step,
                "reason": "periodic",
                "value": requested,
                "threshold": self.args.elastic_reset_every,
                "seconds_copy": part["seconds"],
                "world_size": self.accelerator.num_processes,
            }
        )

    def _log_event(self, event: dict) -> None:
        if self._events_log is not None:
            self._events_log.write(event)

    # --------------------------------------------------------------------------- the active anchor's coefficient

    @property
    def _active_anchor(self) -> str | None:
        """The first of `beta`, `beta_old`, `beta_base` that is not 0."""
        return next((name for name in ("beta", "beta_old", "beta_base") if getattr(self, name) != 0.0), None)

    def _adapt_coefficient(self) -> None:
        values, self._kl_since_generation = self._kl_since_generation, []
        if self.args.kl_target is None or not values:
            return
        name, kl_mean = self._active_anchor, sum(values) / len(values)
        coefficient = next_coefficient(
            getattr(self, name), kl_mean, self.args.kl_target, len(values), self.args.kl_horizon
        )
        setattr(self, name, coefficient)

    @contextmanager
    def _timed_part(self, name: str):
        """A part of the stage `reset`; its own seconds are in the dict that it yields, once it is over."""
        part: dict[str, float] = {}
        timer = self.meter.timer
        before = timer.seconds["reset"]
        with timer.stage("reset"):
            yield part
        part["seconds"] = timer.seconds["reset"] - before

    # ------------------------------------------------------------------------------- for rollout functions

    def tokenize_prompts(self, prompts: list) -> list[list[int]]:
        """Token ids of prompts, chat template and all."""
        return self._tokenize_prompts(prompts)[0]

    def generate_tokens(self, prompt_ids: list[list[int]], max_new_tokens: int) -> list[list[int]]:
        """
        Sample one continuation of each prompt, with this run's generation settings.

        Args:
            prompt_ids (`list[list[int]]`):
                Token ids.
            max_new_tokens (`int`):
                In the place of `max_completion_length`.

        Returns:
            `list[list[int]]`: token ids, the end of sequence included where it was reached.
        """
        usual, self.generation_config.max_new_tokens = self.generation_config.max_new_tokens, max_new_tokens
        try:
            return self._generate_single_turn(prompt_ids, None, {}, self.num_generations)[0]
        finally:
            self.generation_config.max_new_tokens = usual

    # ------------------------------------------------------------------------- scoring: counted, and reused

    def _generate_and_score_completions(self, inputs):
        if not self.model.training:
            return super()._generate_and_score_completions(inputs)
        if self._elastic_requested is not None:
            self._apply_elastic_reset()
        if self._resets:
            self._apply_requested_reset()
        self._adapt_coefficient()
        # TRL scores under π_old first, then under the reference.
        sampler_correction = self.use_vllm and self.vllm_importance_sampling_correction
        scores_old = not self.args.on_policy or sampler_correction
        kinds = ["old"] * scores_old + ["ref"] * (self.beta != 0.0)
        sampling: dict[str, float] = {}
        self._rewards_by_round = []
        with self.meter.timer.stage("rollout"):
            if self.args.dynamic_sampling_rounds:
                batch, sampling = self._sample_until_decided(inputs, kinds)
            else:
                batch = self._sample(inputs, kinds)
            if self.base is not None and self._generations % self.args.base_anchor_every == 0:
                size = self.args.per_device_train_batch_size
                batch["base_per_token_logps"] = self._anchor_logps("base", self.base, self.model, batch, size)
        if self.args.advantage_estimator is not None:
            self._estimate_advantages(batch["advantages"])
        if self.args.drop_zero_rows:
            self._zero_undecided(batch["advantages"])
        self._mark_unbounded_rewards(batch["advantages"])
        self._generations += 1
        self._note_generation(batch, sampling)
        return batch

    def _sample(self, inputs, kinds: list[str]) -> dict[str, torch.Tensor]:
        """TRL's method; `kinds` are the scoring calls that it will make, in order."""
        self._score_kinds = list(kinds)
        with self._sampling_watched(inputs):
            batch = super()._generate_and_score_completions(inputs)
        self._rewards_by_round.append(self._rewards)
        return batch

    def _sample_until_decided(self, inputs, kinds: list[str]) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
        """
        Replace groups whose task rewards are all equal by groups of other prompts, and score what remains once.

        The rewards and interruptions logged are those of the first round, whose prompts nobody has chosen.
        """
        size, unscored = self.num_generations, ["unscored"] * len(kinds)
        batch = self._sample(inputs, unscored)
        rewards, by_task = self._own(self._rewards, len(inputs)), self._rewards_by_task()
        counted = {name: len(values) for name, values in self._metrics["train"].items()}
        tokens, interrupted = self._tokens_sampled, self._interrupted
        replaced, generated = 0, 0
        for _ in range(self.args.dynamic_sampling_rounds):
            places = undecided(self._deciding(rewards), size).nonzero().squeeze(1).tolist()
            # Processes generate and gather together, so all take part, with as many groups as the neediest.
            number = int(self.accelerator.gather(torch.tensor([len(places)], device=rewards.device)).max())
            if number == 0:
                break
            indices = self._extra_rows.draw(number * self.accelerator.num_processes)
            begin = self.accelerator.process_index * number
            examples = [self.train_dataset[index] for index in indices[begin : begin + number]]
            # Copies, because a rollout function's own columns are written into them, a value a completion.
            others = self._sample([dict(example) for example in examples for _ in range(size)], unscored)
            generated += number
            tokens = tokens + self._tokens_sampled
            their_rewards = self._own(self._rewards, number * size)
            decided = (~undecided(self._deciding(their_rewards), size)).nonzero().squeeze(1).tolist()[: len(places)]
            pairs = {"places": places[: len(decided)], "sources": decided, "group_size": size}
            rewards = put_groups({"rewards": rewards}, {"rewards": their_rewards}, **pairs, pad_token_id=0)["rewards"]
            batch = put_groups(batch, others, **pairs, pad_token_id=self._tokenizer.pad_token_id)
            replaced += len(decided)
        for name, values in self._metrics["train"].items():
            del values[counted.get(name, 0) :]
        self._rewards, self._interrupted = self.accelerator.gather(rewards), interrupted
        batch["num_items_in_batch"] = self.accelerator.gather(self._mask(batch).sum()).sum()
        self._score_whole(batch, kinds)
        left = undecided(self._deciding(rewards), size).sum()
        counts = self._sum_over_processes(
            torch.stack([left.new_tensor(replaced), left.new_tensor(generated), left, tokens])
        )
        names = ("groups_replaced", "groups_generated_again", "groups_undecided", "tokens")
        return batch, by_task | dict(zip(names, counts.tolist(), strict=True))

    def _own(self, gathered: torch.Tensor, count: int) -> torch.Tensor:
        """This process's part."""
        return gathered[self.accelerator.process_index * count :][:count]

    def _summed(self, rewards: torch.Tensor) -> torch.Tensor:
        """One reward a completion from those of every function, shape `(N, F)`; NaN where no function gave one."""
        return weighted_sum(rewards, self.reward_weights.to(rewards.device))

    def _deciding(self, rewards: torch.Tensor) -> torch.Tensor:
        """The same of the functions by which a group is decided: the task's, without terms for the length."""
        return deciding(
            rewards, self.reward_weights.to(rewards.device), self.num_generations, self._deciding_functions
        )

    def _score_whole(self, batch: dict[str, torch.Tensor], kinds: list[str]) -> None:
        """What TRL would have scored."""
        for kind in kinds:
            given = (
                self.args.old_logps_source == "first_pass" if kind == "old" else self.args.ref_compute == "naive_epoch"
            )
            if not given:
                anchor = PolicyItself() if kind == "old" else self.reference
                batch[f"{kind}_per_token_logps"] = self._anchor_logps(
                    kind, anchor, self.model, batch, self.args.per_device_train_batch_size
                )

    def _get_per_token_logps_and_entropies(self, model, *args, **kwargs):
        kind = "policy"
        if self.model.training and self._score_kinds:
            kind = self._score_kinds.pop(0)
            if kind == "unscored":
                return None, None, None
            # What `_compute_loss` provides is left out of TRL's scoring.
            if kind == "old" and self.args.old_logps_source == "first_pass":
                return None, None, None
            if kind == "ref" and self.args.ref_compute == "naive_epoch" and self._generating:
                return None, None, None
        score = self._packed_logps if self._packs else super()._get_per_token_logps_and_entropies
        if not self.model.training:
            result = score(model, *args, **kwargs)
        elif kind == "policy":
            counted = self.meter.counted(model, kind)
            if self._scored_rows is not None:
                result = self._score_some_rows(score, counted, *args, **kwargs)
            else:
                result = score(counted, *args, **kwargs)
        else:
            counted = self.meter.counted(model, kind)
            with self.meter.timer.stage(kind):
                return score(counted, *args, **kwargs)
        self._captured = result[:2]
        return result

    def _packed_logps(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, **others
    ):
        """What TRL's method returns, by packed rows. A micro-batch is scored at a time, as there."""
        asked = sorted(name for name, value in others.items() if value is not None and value is not False)
        if asked:
            raise ValueError(
                f"pack_groups={self.args.pack_groups!r} packs text alone; the batch has {', '.join(asked)}."
            )
        size = batch_size or len(input_ids)
        chunks = [
            packed_logps(
                model,
                input_ids[start : start + size],
                attention_mask[start : start + size],
                logits_to_keep,
                self.args.pack_max_tokens,
                compute_entropy,
                self.accelerator.autocast,
            )
            for start in range(0, len(input_ids), size)
        ]
        logps, entropies = zip(*chunks, strict=True)
        return torch.cat(logps), torch.cat(entropies) if compute_entropy else None, None

    def _score_some_rows(self, score, model, input_ids, attention_mask, logits_to_keep, **kwargs):
        """
        Score the rows that carry a gradient. The others get the old policy's log-probabilities, a ratio of 1, and the mean
        entropy of those computed, which leaves the mean as it is.
        """
        rows, fill = self._scored_rows
        logps, entropies, aux_loss = score(model, input_ids[rows], attention_mask[rows], logits_to_keep, **kwargs)
        mask = attention_mask[rows][:, -logits_to_keep:]
        mean_entropy = (entropies * mask).sum() / mask.sum().clamp(min=1)
        shape = (len(input_ids), logits_to_keep)
        fill = logps.new_zeros(shape) if fill is None else fill.to(logps.dtype)
        return fill.index_copy(0, rows, logps), mean_entropy.expand(shape).index_copy(0, rows, entropies), aux_loss

    def _prepare_inputs(self, generation_batch):
        if not (self._packs and self.model.training):
            return super()._prepare_inputs(generation_batch)
        # TRL's method, but for the shuffle: it scatters the groups over the micro-batches, and a packed row is a group.
        if self._step % self.args.generate_every == 0 or self._buffered_inputs is None:
            batch = self._generate_and_score_completions(generation_batch)
            order = whole_groups(torch.randperm(len(batch["advantages"])), self.num_generations)
            batch = {name: value[order] if value.dim() else value for name, value in batch.items()}
            self._buffered_inputs = split_tensor_dict(batch, self.args.steps_per_generation)
        return self._buffered_inputs[self._step % self.args.steps_per_generation]

    @property
    def _generating(self) -> bool:
        return "rollout" in self.meter.timer.stack

    def _anchor_logps(self, kind: str, anchor, model, inputs, batch_size: int | None = None) -> torch.Tensor:
        """Log-probabilities of a batch under an anchor, shape `(B, T)`, in chunks of `batch_size` rows."""
        unsupported = [key for key in inputs if key in ("pixel_values", "num_images", "token_type_ids")]
        if unsupported:
            raise ValueError(f"ref_compute='naive_epoch' and beta_base score text only; the batch has {unsupported}.")
        self._score_kinds = [kind]
        with (
            torch.no_grad(),
            disable_gradient_checkpointing(self.model, self.args.gradient_checkpointing_kwargs),
            anchor.active(model) as scorer,
        ):
            logps, _, _ = self._get_per_token_logps_and_entropies(
                scorer,
                torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1),
                torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1),
                inputs["completion_ids"].size(1),
                batch_size=batch_size,
            )
        return logps

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        self._rewards = rewards
        # The completion mask leaves out what `mask_truncated_completions` keeps from the loss.
        self._tokens_sampled = torch.tensor(sum(map(len, completion_ids_list)), device=rewards.device)
        # A dataset may have columns of these names that mean something else.
        tasks, interrupted = ([example.get(name) for example in inputs] for name in ("task", "interrupted"))
        self._task_names = gather_object([name if isinstance(name, str) else None for name in tasks])
        self._interrupted = gather_object([is_cut for is_cut in interrupted if isinstance(is_cut, bool)])
        return rewards

    def _estimate_advantages(self, advantages: torch.Tensor) -> None:
        """Put this estimator's advantages in the place of TRL's, here and in its table of completions."""
        size, estimator = self.num_generations, self.args.advantage_estimator
        batch = self._summed(self._rewards)
        advantages.copy_(self._own(estimate(batch, size, estimator), len(advantages)))
        # The table has the newest rows of all rounds of dynamic sampling, which need not be those of the batch.
        logged = self._logs["advantages"]
        newest = self._summed(torch.cat(self._rewards_by_round))[-logged.maxlen :]
        for _ in range(min(len(logged), len(newest))):
            logged.pop()
        logged.extend(estimate(newest, size, estimator, batch).tolist())

    def _zero_undecided(self, advantages: torch.Tensor) -> None:
        """TRL's advantages of equal rewards are 0 to rounding only, and `drop_zero_rows` looks for zeros."""
        columns = [self._summed(self._rewards)]
        if self.args.multi_objective_aggregation != "sum_then_normalize":  # each is centred by itself
            columns = self._rewards.unbind(dim=1)
        groups = torch.stack([undecided(column, self.num_generations) for column in columns]).all(dim=0)
        advantages[self._own(groups.repeat_interleave(self.num_generations), len(advantages))] = 0.0

    def _mark_unbounded_rewards(self, advantages: torch.Tensor) -> None:
        """TRL zeroes the advantages of a group with an infinite reward, in silence; they become NaN, which is seen to."""
        groups = self._rewards.isinf().any(dim=1).view(-1, self.num_generations).any(dim=1)
        rows = groups.repeat_interleave(self.num_generations)
        advantages[self._own(rows, len(advantages))] = math.nan

    # --------------------------------------------------------------------------------------------------- loss

    def _compute_loss(self, model, inputs):
        training = self.model.training
        self._scored_rows = self._rows_to_score(inputs) if training else None
        if training and self.args.ref_compute == "naive_epoch":
            inputs["ref_per_token_logps"] = self._anchor_logps("ref", self.reference, model, inputs)
        if self.args.adds_penalty:
            # TRL's own loss without its KL term, and ours on the log-probabilities that it computed on the way.
            beta, self.beta = self.beta, 0.0
            try:
                loss = self._policy_loss(model, inputs)
            finally:
                self.beta = beta
            (logps, entropies), self._captured = self._captured, None
            penalties = self._penalties(inputs, logps)
            if penalties:
                penalty = self._normalised(inputs, sum(penalties.values()))
                loss = loss + penalty
                self._log_policy_loss(penalty)
            self._log_kl(inputs, penalties)
        else:
            loss = self._policy_loss(model, inputs)
            (logps, entropies), self._captured = self._captured, None
        if training:
            logps = logps.detach()
            if self.args.old_logps_source == "first_pass":
                # The buffer hands out the same dict in the next inner pass.
                inputs.setdefault("old_per_token_logps", logps)
            with self.meter.timer.stage("meter"), torch.no_grad():
                self._observe(inputs, logps, entropies)
                self._look_for_nonfinite(loss, inputs, logps)
        return loss

    def _policy_loss(self, model, inputs) -> torch.Tensor:
        """TRL's loss, with the ratio that `loss_mode` asks for."""
        if self.args.loss_mode == "no_ratio":
            # Without π_old TRL takes the policy itself: a ratio of 1 whose gradient is that of the log-probability. Its
            # mask of samples that are too far off policy still compares with the policy that sampled.
            inputs = dict(inputs)
            old = inputs.pop("old_per_token_logps", None)
            if old is not None:
                inputs.setdefault("sampling_per_token_logps", old)
        if self.args.loss_mode != "unclipped":
            return super()._compute_loss(model, inputs)
        clip = self.epsilon_low, self.epsilon_high
        self.epsilon_low = self.epsilon_high = math.inf
        try:
            return super()._compute_loss(model, inputs)
        finally:
            self.epsilon_low, self.epsilon_high = clip

    def _rows_to_score(self, inputs) -> tuple[torch.Tensor, torch.Tensor | None] | None:
        """Indices of the rows that carry a gradient, and what stands for the others' log-probabilities; `None` if all do."""
        if not self.args.skip_zero_rows:
            return None
        penalised = any((self.beta, self.beta_old, self.beta_base and "base_per_token_logps" in inputs))
        # An adaptive entropy bonus and a load-balancing loss need all rows, whatever their coefficients are just now.
        acted_on = self._entropy_bonus_enabled or self.aux_loss_enabled
        if (penalised and not self.args.drop_zero_rows) or acted_on:
            scored = torch.ones_like(inputs["advantages"], dtype=torch.bool)
        else:
            scored = inputs["advantages"] != 0.0
            if not scored.any():
                # The backward pass, and other processes in it, need a gradient, though it be zero: of the shortest row.
                scored[inputs["completion_mask"].sum(dim=1).argmin()] = True
        self.meter.add_count("rows_skipped", (~scored).sum())
        return None if scored.all() else (scored.nonzero().squeeze(1), inputs.get("old_per_token_logps"))

    def _penalties(self, inputs, logps: torch.Tensor) -> dict[str, torch.Tensor]:
        """Coefficient times per-token penalty, shape `(B, T)`, of every anchor that has a coefficient."""
        old = inputs.get("old_per_token_logps", logps.detach())
        anchors = {}
        if self.beta != 0.0:
            anchors["ref"] = (self.beta, inputs["ref_per_token_logps"])
        if self.beta_old != 0.0:
            anchors["old"] = (self.beta_old, old)
        if self.beta_base != 0.0 and "base_per_token_logps" in inputs:
            anchors["base"] = (self.beta_base, inputs["base_per_token_logps"])
        ratio = None
        if self.args.use_bias_correction_kl:
            ratio = kl.importance_ratio(logps, old, self._mask(inputs), self.importance_sampling_level)
        carried = inputs["advantages"].unsqueeze(1) != 0.0 if self.args.drop_zero_rows else 1.0
        return {
            name: coefficient * kl.kl_penalty(logps, anchor, self.args.kl_estimator, ratio) * carried
            for name, (coefficient, anchor) in anchors.items()
        }

    def _normalised(self, inputs, per_token: torch.Tensor) -> torch.Tensor:
        """Per-token values of shape `(B, T)`, aggregated as TRL aggregates its loss: a scalar."""
        training = self.model.training
        accumulation = self.current_gradient_accumulation_steps if training else 1.0
        window = inputs["num_items_in_batch"].clamp(min=1.0) / self.accelerator.num_processes
        if training:
            window = window * accumulation / self.args.steps_per_generation
        mask = self._mask(inputs)
        weights = token_weights(mask, self.loss_type, accumulation, self.max_completion_length, window)
        return (per_token * weights).sum()

    def _log_kl(self, inputs, penalties: dict[str, torch.Tensor]) -> None:
        """TRL's metric `kl`, which its loss leaves out when its KL term is switched off, and its like."""
        mask, mode = self._mask(inputs), "train" if self.model.training else "eval"
        coefficients = {"ref": self.beta, "old": self.beta_old, "base": self.beta_base}
        for name, metric in (("ref", "kl"), ("old", "kl_old"), ("base", "kl_base")):
            if name in penalties:
                coefficient = coefficients[name]
                total = (penalties[name].detach() / coefficient * mask).sum()
                total, count = self._sum_over_processes(torch.stack([total, mask.sum().float()]))
                self._metrics[mode][metric].append((total / count.clamp(min=1.0)).item())

    def _log_policy_loss(self, penalty: torch.Tensor) -> None:
        """TRL's metric `policy_loss`, logged beside an entropy bonus, has the KL term in it: of a micro-batch by itself, or
        of its share in the window where the loss averages over that."""
        if not self._entropy_bonus_enabled:
            return
        training = self.model.training
        by_itself = training and self.loss_type not in WINDOW_LOSSES
        share = penalty.detach() * (self.current_gradient_accumulation_steps if by_itself else 1.0)
        self._metrics["train" if training else "eval"]["policy_loss"][-1] += (
            self.accelerator.gather(share).nanmean().item()
        )

    def _mask(self, inputs) -> torch.Tensor:
        mask = inputs["completion_mask"]
        return mask * inputs["tool_mask"] if "tool_mask" in inputs else mask

    # ------------------------------------------------------------------------------------------------- record

    def _note_generation(self, batch, sampling: dict[str, float]) -> None:
        """What the record says of a generation batch, from what TRL has just measured of it."""
        names = {
            "reward": "reward",
            "reward_std": "reward_std",
            "frac_reward_zero_std": "frac_reward_zero_std",
            "completion_length": "completions/mean_length",
        }
        values = {name: self._metrics["train"][theirs][-1] for name, theirs in names.items()}
        advantages = self.accelerator.gather(batch["advantages"].float())
        values["advantage_mean"] = advantages.mean().item()
        values["advantage_std"] = advantages.std().item()
        tokens = sampling.pop("tokens", None)
        values |= sampling or self._rewards_by_task()
        if self._interrupted:
            values["interrupted_fraction"] = sum(self._interrupted) / len(self._interrupted)
        if self._tokens_generated is None:  # the first generation of this step
            self._generation_row, self._tokens_generated = {}, 0
        for name, value in values.items():
            self._generation_row.setdefault(name, []).append(value)
        if tokens is None:
            tokens = int(self.accelerator.gather(self._tokens_sampled).sum())
        self._tokens_generated += tokens

    def _rewards_by_task(self) -> dict[str, float]:
        """Mean reward of every task over the completions that were scored, and the share with the full reward of 1."""
        first, values = self._rewards[:, 0], {}
        for task in sorted({name for name in self._task_names if name is not None}):
            rewards = first[[place for place, name in enumerate(self._task_names) if name == task]]
            rewards = rewards[~rewards.isnan()]
            if len(rewards):  # the first reward function may be another task's
                values[f"reward/{task}"] = rewards.mean().item()
                values[f"pass_rate/{task}"] = (rewards >= 1.0).float().mean().item()
        return values

    def _observe(self, inputs, logps: torch.Tensor, entropies: torch.Tensor) -> None:
        """Means over tokens of one micro-batch; everything has shape `(B, T)`, without gradient."""
        mask, meter = self._mask(inputs), self.meter
        meter.add_tokens_in_loss(mask)
        if self._scored_rows is not None:
            mask = torch.zeros_like(mask).index_copy(0, self._scored_rows[0], mask[self._scored_rows[0]])
        ref, old = inputs.get("ref_per_token_logps"), inputs.get("old_per_token_logps")
        base = inputs.get("base_per_token_logps")
        meter.add_mean("entropy", entropies, mask)
        # A dropped row has no penalty, so its KL steers nothing, whether it was computed or not.
        kl_mask = mask * (inputs["advantages"].unsqueeze(1) != 0.0) if self.args.drop_zero_rows else mask
        if clipped := self._metrics["train"].get("clip_ratio/region_mean"):
            meter.add_average("clip_region_mean", clipped[-1])
        if ref is not None:
            meter.add_mean("kl_ref", kl.kl_values(logps, ref, "k3"), kl_mask)
        if old is not None:
            meter.add_mean("kl_old", kl.kl_values(logps, old, "k3"), kl_mask)
            meter.add_mean("mean_abs_dlogp", (logps - old).abs(), mask)
            if ref is not None:
                meter.add_mean("k2_ref_over_old", kl.kl_values(ref, old, "k2"), mask)
        if base is not None:
            meter.add_mean("kl_base", kl.kl_values(logps, base, "k3"), kl_mask)
        if penalties := self._penalties(inputs, logps):
            meter.add_total("kl_penalty", self._normalised(inputs, sum(penalties.values())))

    def training_step(self, model, inputs, num_items_in_batch=None):
        self.has_begun = True
        if not self.meter.open:
            self.meter.begin_step()
        loss = super().training_step(model, inputs, num_items_in_batch)
        # After a reset, before the update.
        factor = self._rewarmup.factor if self._rewarmup is not None else 1.0
        self._learning_rate = self.optimizer.param_groups[0]["lr"] * factor
        return loss

    def _maybe_log_save_evaluate(self, tr_loss, grad_norm, *args, **kwargs):
        # Called once more at the end of an epoch, with no step open.
        if self.meter.open:
            self._record_step(grad_norm)
        super()._maybe_log_save_evaluate(tr_loss, grad_norm, *args, **kwargs)

    def _record_step(self, grad_norm) -> None:
        step = self.state.global_step
        with self.meter.timer.stage("meter"):
            self._check_weights()
        if self.elastic is not None:
            self.elastic.update()
            if step % self.args.elastic_reset_every == 0:
                self._elastic_requested = step
        row = {"step": step}
        row.update({name: sum(values) / len(values) for name, values in self._generation_row.items()})
        row.update(self.meter.end_step(self._sum_over_processes, self.accelerator.num_processes))
        row["time_eval"], self._seconds_evaluated = self._seconds_evaluated, 0.0
        row["beta"] = getattr(self, self._active_anchor) if self._active_anchor else 0.0
        row["lr"] = self._learning_rate
        row["tokens_generated"] = self._tokens_generated or 0
        self._tokens_generated = None
        if grad_norm is not None:
            row["grad_norm"] = float(grad_norm)
        if self._update_norm is not None:
            row["update_norm"] = self._update_norm.value
        if self.args.nonfinite == "skip":
            row["nonfinite_skips"] = self._nonfinite_skips
        row = {name: value for name, value in row.items() if _is_measured(value)}
        self._watch_entropy(step, row.get("entropy"))
        self._last_kl_ref = row.get("kl_ref")
        active_kl = {"beta": "kl_ref", "beta_old": "kl_old", "beta_base": "kl_base", None: None}[self._active_anchor]
        if active_kl in row:
            self._kl_since_generation.append(row[active_kl])
        for name in ("kl_ref", "kl_old", "kl_base", "kl_penalty", "beta", "ref_forward_calls", "ref_time_fraction"):
            if name in row:
                self._metrics["train"][f"prorl/{name}"].append(row[name])
        if self._metrics_log is not None:
            self._metrics_log.write(row)

    def _watch_entropy(self, step: int, entropy: float | None) -> None:
        if self.entropy_watch is None or not self.entropy_watch.observe(entropy):
            return
        floor, stop = self.args.entropy_floor, self.args.entropy_stop
        self._log_event(
            {
                "event": "entropy_collapse",
                "step_requested": step,
                "step_applied": step,
                "reason": f"entropy below entropy_floor for {self.args.entropy_patience} steps",
                "value": entropy,
                "threshold": floor,
                "action": "stop" if stop else "log",
            }
        )
        logger.warning("Entropy collapse at step %d: %.4g nats per token, below %.4g.", step, entropy, floor)
        self.control.should_training_stop |= stop
        self.control.should_save |= stop

    def _sum_over_processes(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.accelerator.reduce(tensor, reduction="sum")

    @property
    def run_dir(self) -> Path:
        """Where the record goes."""
        return Path(self.args.run_dir or self.args.output_dir)

    def evaluate(self, *args, **kwargs):
        if self.args.is_trl and not self._resets:
            return super().evaluate(*args, **kwargs)
        # Evaluation samples: without a random state of its own, how often one evaluates would change the training.
        with torch.random.fork_rng():
            return super().evaluate(*args, **kwargs)

    def _charge_evaluation(self, seconds: float) -> None:
        """To the step that was done before it, whose row is written; before the first step, to that."""
        step = self.state.global_step

        def charged(row):
            if row["step"] == step:
                return row | {"time_eval": row.get("time_eval", 0.0) + seconds}

        if self._metrics_log is None or not self._metrics_log.change_last(charged):
            self._seconds_evaluated += seconds

    def _evaluate(self, *args, **kwargs):
        timer = StageTimer(self.accelerator.device)
        with timer.stage("eval"):
            metrics = super()._evaluate(*args, **kwargs)
        self._charge_evaluation(timer.seconds["eval"])
        for name in (name for callback in self._reset_callbacks() for name in callback.metrics()):
            if name not in metrics:
                known = ", ".join(sorted(metrics))
                raise EvaluationError(f"ref_reset_metric={name!r} is not a metric of the evaluation; it has: {known}.")
        if self._evaluations_log is not None:
            sets = [f"{name}_" for name in self.eval_dataset] if isinstance(self.eval_dataset, dict) else []
            speeds = ("runtime", "samples_per_second", "steps_per_second", "model_preparation_time")
            of_speed = {f"eval_{of_set}{speed}" for of_set in ("", *sets) for speed in speeds}
            measured = {
                name: value for name, value in metrics.items() if name.startswith("eval_") and name not in of_speed
            }
            self._evaluations_log.write({"step": self.state.global_step, **measured})
        return metrics


def _is_measured(value) -> bool:
    return value is not None and math.isfinite(value)


def _loaded(model, args: ProRLConfig, quantization_config):
    """The model itself, loaded as TRL loads it if it is a path or a Hub name."""
    if not isinstance(model, str):
        return model
    init = dict(args.model_init_kwargs or {})
    if quantization_config is not None:
        init["quantization_config"] = quantization_config
    if args.distributed_state.distributed_type in ["MULTI_GPU", "DEEPSPEED"]:
        init["device_map"] = None
    init.setdefault("trust_remote_code", args.trust_remote_code)
    return create_model_from_path(model, **init)


def _loaded_processor(model: str, args: ProRLConfig):
    """The processing class as TRL loads it for a path or a Hub name."""
    return AutoProcessor.from_pretrained(
        model,
        revision=(args.model_init_kwargs or {}).get("revision"),
        truncation_side="left",
        padding_side="left",
        trust_remote_code=args.trust_remote_code,
    )


@contextmanager
def _without_cast_head(args: ProRLConfig):
    """For as long as TRL builds the trainer."""
    args.cast_lm_head_to_fp32 = False
    try:
        yield
    finally:
        args.cast_lm_head_to_fp32 = True


@contextmanager
def _reloadable(model: PreTrainedModel):
    """
    TRL builds a full-model reference by loading the policy's path again. A model made in memory has none: give it one
    for as long as that takes.
    """
    if get_config_model_id(model.config):
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        model.config._name_or_path = folder
        try:
            yield
        finally:
            model.config._name_or_path = ""
