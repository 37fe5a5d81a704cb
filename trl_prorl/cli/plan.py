"""Turn a trainer's arguments into those of TRL's trainer. What would make *our* numbers wrong raises an error here."""

import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from peft import PeftModel
from transformers import EarlyStoppingCallback, Trainer
from trl import GRPOTrainer
from trl.trainer.utils import get_config_model_id

from ..config import ProRLConfig
from ..errors import InputError
from ..evaluation import find_verifier
from ..extras.teacher import TeacherSource, find_teacher, without_reference
from ..extras.vllm import let_engine_take_adapters
from ..keys import KEYS
from ..optimizer import check_optimizer, check_optimizer_class
from ..reference import check_active_adapter
from ..refusals import refuse_resets
from ..resets import ReferenceResetCallback, check_one_value
from ..run.identity import changing_keys
from ..supported import check_adapter
from ..upstream.weights import place_of, refuse_kernel, whole_weights
from .fp32_head import without_cast
from .model_name import find_model
from .towers import leave_out_towers


@dataclass
class Plan:
    """
    The arguments of a trainer.

    Attributes:
        given (`dict[str, Any]`): Arguments of [`~trl.GRPOTrainer`] by name.
        name (`str`, *optional*): The model's name as given; `None` if a model object was given.
        keys (`dict[str, Any]`): The configuration as given, before TRL changes it.
        resets (`bool`): Whether a reset can be requested.
        moves (`bool`): Whether a reset moves a reference.
        teacher ([`~trl_prorl.extras.teacher.TeacherSource`], *optional*): The model of `ref_model`.
        fresh_adapter (`bool`): Whether the policy starts with a new LoRA adapter that is zero.
        given_wrapped (`bool`): Whether the model was given as a [`~peft.PeftModel`].
    """

    given: dict[str, Any]
    name: str | None
    keys: dict[str, Any]
    resets: bool
    moves: bool
    teacher: TeacherSource | None
    fresh_adapter: bool
    given_wrapped: bool

    @classmethod
    def from_arguments(cls, trainer: GRPOTrainer, model, reward_funcs, args, others: tuple, named: dict) -> "Plan":
        """Raises `ValueError` or `TypeError`, before a model is loaded."""
        if args is None:
            name = model if isinstance(model, str) else get_config_model_id(model.config)
            args = ProRLConfig(f"{name.split('/')[-1]}-GRPO")
        if not isinstance(args, ProRLConfig):
            raise TypeError(f"args must be a ProRLConfig, not a {type(args).__name__}.")
        if isinstance(model, PeftModel) and not args.is_trl:
            check_active_adapter(model)
        args.disabled_reason = None  # an earlier trainer may have had the same `args`
        bound = inspect.signature(GRPOTrainer.__init__).bind(trainer, model, reward_funcs, args, *others, **named)
        # Copies of a script's lists: TRL adds to them what environments reward.
        given = {name: [*value] if type(value) is list else value for name, value in bound.arguments.items()}
        del given["self"]
        if args.watches_metric:
            check_one_value(f"eval_{args.ref_reset_metric.removeprefix('eval_')}", given.get("eval_dataset"))
        keys = changing_keys(args)
        functions = reward_funcs if isinstance(reward_funcs, list) else [reward_funcs]
        callbacks = given.get("callbacks") or []
        verifier = find_verifier(functions, trainer.verify)
        choose_best_metric(args, verifier, callbacks)
        _check_verifier(args, verifier)
        config = given.get("peft_config")
        given_wrapped = isinstance(model, PeftModel)
        args.has_own_triggers = any(isinstance(callback, ReferenceResetCallback) for callback in callbacks)
        teacher = find_teacher(args, trainer.given_teacher)
        refuse_resets(args)
        check_whole_weights(args)
        optimizer, _ = given.get("optimizers") or (None, None)
        if args.resets:
            _check_treatment(args, optimizer)
        moves = args.beta != 0.0 and args.resets and teacher is None
        copies = [key for key in ("beta_base", "elastic_reset_every", "lora_growth_every") if getattr(args, key)]
        if moves:
            copies.append("a reset of the reference")
        if copies:
            for adapter in (config, *(model.peft_config.values() if given_wrapped else ())):
                check_adapter(adapter, copies[0])
        if isinstance(model, str):
            given["model"] = find_model(model, "model", args.model_init_kwargs)
        if config is not None and not args.is_trl:
            revision = (args.model_init_kwargs or {}).get("revision")
            place = {"revision": revision, "trust_remote_code": args.trust_remote_code}
            given["peft_config"] = leave_out_towers(config, given["model"], given.get("train_dataset"), **place)
        for name in functions:  # names of reward models; `find_model` has checked the policy
            if isinstance(name, str) and "attn_implementation" not in (args.model_init_kwargs or {}):
                refuse_kernel(name, **place_of(args.model_init_kwargs))
        return cls(
            given=given,
            name=model if isinstance(model, str) else None,
            keys=keys,
            resets=args.resets,
            moves=moves,
            teacher=teacher,
            fresh_adapter=getattr(config, "init_lora_weights", None) in (True, "gaussian"),
            given_wrapped=given_wrapped,
        )

    @property
    def args(self) -> ProRLConfig:
        return self.given["args"]

    @contextmanager
    def loading(self) -> Iterator[None]:
        """
        Context in which TRL's trainer is made: models get all weights, vLLM accepts adapters, an adapter's head is
        cast later, and beside a teacher there is no other reference.
        """
        model = self.given["model"]
        adapter = model.peft_config.get("default") if self.given_wrapped else self.given.get("peft_config")
        is_adapted = self.given_wrapped or adapter is not None
        engine = let_engine_take_adapters(self.args, adapter)
        reference = nullcontext() if self.teacher is None else without_reference(self.args)
        with whole_weights(), without_cast(self.args, is_adapted), engine, reference:
            yield


def check_whole_weights(args: ProRLConfig) -> None:
    """Raise `InputError` for FSDP or DeepSpeed with a key of ours that changes or measures a step."""
    uses_fsdp = args.fsdp or os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"
    if not uses_fsdp and args.deepspeed_plugin is None:
        return
    acting = {name: key for name, key in KEYS.items() if not key.free or name == "log_update_norm"}
    changed = [f"{name}={getattr(args, name)!r}" for name, key in acting.items() if getattr(args, name) != key.default]
    if args.has_own_triggers:
        changed.append("a ReferenceResetCallback")
    if changed:
        raise InputError(f"{changed[0]} needs DDP or one process: without such keys FSDP and DeepSpeed train.")


def _check_verifier(args: ProRLConfig, verifier: Callable | None) -> None:
    """Raise `ValueError` for a key that needs to know which completions are correct, without a verifier."""
    needing = [key for key in ("guard_gap", "prompt_pool_retire") if getattr(args, key) != KEYS[key].default]
    if needing and verifier is None:
        raise ValueError(
            f"{needing[0]}={getattr(args, needing[0])} needs to know which completions are correct: pass verify, or a "
            "reward function with a batch_verifier."
        )


def _check_treatment(args: ProRLConfig, optimizer) -> None:
    if args.optimizer_reset == "keep":
        return
    if optimizer is not None:
        check_optimizer(optimizer, args.optimizer_reset)
        return
    optimizer_class, settings = Trainer.get_optimizer_cls_and_kwargs(args)
    check_optimizer_class(optimizer_class, settings.get("momentum", 0.0), settings.get("beta1"), args.optimizer_reset)


def stops_early(callback: Any) -> bool:
    """Return whether a callback, an object or a class, is transformers' early stopping."""
    kind = callback if isinstance(callback, type) else type(callback)
    return issubclass(kind, EarlyStoppingCallback)


def choose_best_metric(args: ProRLConfig, verifier: Callable | None, callbacks: list) -> None:
    """Set `metric_for_best_model` if it is needed and not given: transformers' is the loss, meaningless in GRPO."""
    chooses = args.load_best_model_at_end or args.save_strategy == "best" or any(map(stops_early, callbacks))
    if args.metric_for_best_model is None and chooses:
        args.metric_for_best_model = "eval_reward" if verifier is None else "eval_pass@1"
        args.greater_is_better = True if args.greater_is_better is None else args.greater_is_better
