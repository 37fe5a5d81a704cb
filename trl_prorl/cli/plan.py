"""Check a trainer's arguments before a model is loaded, and turn them into the arguments of TRL's trainer."""

import inspect
import logging
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from datasets import IterableDataset
from peft import PeftConfig, PeftModel
from transformers import PreTrainedModel, Trainer
from trl import GRPOTrainer
from trl.trainer.utils import get_config_model_id

from ..config import ProRLConfig
from ..evaluation import judges
from ..extras.growth import check_growing_optimizer
from ..extras.vllm import RANKS, let_engine_take_adapters
from ..keys import KEYS
from ..optimizer import check_optimizer, check_optimizer_class, full_name, inner_of
from ..reference import check_adapter
from ..refusals import SWITCHES, refuse_resets
from ..resets import ReferenceResetCallback, check_one_value
from ..run.files import check_contents
from ..run.identity import changing_keys
from ..supported import FEATURES, check_adapters, check_distribution, check_options, check_quantisation
from ..upstream.vocabulary import readable_files
from ..upstream.weights import check_decoder, differing_settings, place_of, read_config, refuse_kernel, whole_weights
from .adapters import (
    check_head,
    check_loaded,
    check_room_to_grow,
    check_trained_once,
    leave_out_towers,
    refuse_leftover_layers,
)
from .checks import (
    check_columns,
    check_measured,
    check_reward_names,
    check_rows,
    check_verifier,
    choose_best_metric,
    reward_name,
)
from .dropout import check_dropout_config
from .environment import uses_fsdp
from .model_name import find_model
from .prompt_rows import check_sets, is_text_only, named_sets, reserved_names


logger = logging.getLogger(__name__)


@dataclass
class Plan:
    """
    The arguments of a trainer, checked.

    Attributes:
        given (`dict[str, Any]`): Arguments of [`~trl.GRPOTrainer`] by name.
        name (`str`, *optional*): The model's name as given; `None` if a model object was given.
        keys (`dict[str, Any]`): The configuration as given, before TRL changes it.
        resets (`bool`): Whether a reset can be requested.
        moves (`bool`): Whether a reset moves a reference.
        fresh_adapter (`bool`): Whether the policy starts with a new LoRA adapter that is zero.
        given_wrapped (`bool`): Whether the model was given as a [`~peft.PeftModel`].
        casts_head (`bool`): Whether trl-prorl casts the LM head of a model with adapters to fp32. (TRL looks for a
            tied head's embeddings in the adapter's wrapper.)
    """

    given: dict[str, Any]
    name: str | None
    keys: dict[str, Any]
    resets: bool
    moves: bool
    fresh_adapter: bool
    given_wrapped: bool
    casts_head: bool

    @classmethod
    def from_arguments(cls, trainer: GRPOTrainer, model, reward_funcs, args, others: tuple, named: dict) -> "Plan":
        """
        Check the arguments of a trainer's `__init__`, before a model is loaded. Raises `ValueError` or `TypeError`.
        """
        if args is None:
            name = model if isinstance(model, str) else get_config_model_id(model.config)
            args = ProRLConfig(f"{name.split('/')[-1]}-GRPO")
        if not isinstance(args, ProRLConfig):
            raise TypeError(f"args must be a ProRLConfig, not a {type(args).__name__}.")
        args.disabled_reason = None  # an earlier trainer may have had the same `args`
        bound = inspect.signature(GRPOTrainer.__init__).bind(trainer, model, reward_funcs, args, *others, **named)
        given = {name: value for name, value in bound.arguments.items() if name != "self"}
        for name in ("reward_funcs", "reward_processing_classes"):
            if isinstance(given.get(name), list):
                given[name] = [*given[name]]  # TRL adds what environments reward to the script's own list
        _check_data_and_rewards(args, given, trainer.verify)
        keys = changing_keys(args)
        optimizer, _ = given.get("optimizers") or (None, None)  # a script's own, in place of the keys
        _check_optimizer(args, optimizer)
        config = given.get("peft_config")
        is_named = isinstance(model, str)
        given_wrapped = isinstance(model, PeftModel)
        adapter = _check_adapters(model, config)
        callbacks = given.get("callbacks") or []
        args.has_own_triggers = any(isinstance(callback, ReferenceResetCallback) for callback in callbacks)
        resets = args.resets
        refuse_resets(args)
        moves = args.beta != 0.0 and resets
        is_full = config is None and not given_wrapped
        _check_distribution(args, resets, moves and is_full)
        if args.lora_growth_every:
            _check_growth(args, adapter, optimizer)
        if not args.disable_dropout:
            args.disable_fast_unless(check_dropout_config, config)
        if args.vllm_enable_lora:
            _check_requests(args, adapter)
        if args.beta != 0.0 or args.copied_anchors:
            check_adapter(model, config)
        if is_named:
            given["model"] = find_model(model, "model", args.model_init_kwargs)
        check_quantisation(given.get("quantization_config"))
        _check_model(given["model"], args)
        if is_full and args.beta != 0.0 and not is_named and not get_config_model_id(model.config):
            raise ValueError(
                f"beta={args.beta} with a full model that was not loaded from a path: TRL loads the reference from "
                "there. Save the model with save_pretrained, and pass the folder."
            )
        if not is_named and (moves or args.beta == 0.0 or not is_full):  # else reference.py compares it
            _warn_of_other_settings(model, args)
        if config is not None:
            given["peft_config"] = _adapter_of_text(args, given)
        return cls(
            given=given,
            name=model if is_named else None,
            keys=keys,
            resets=resets,
            moves=moves,
            fresh_adapter=getattr(config, "init_lora_weights", None) in (True, "gaussian"),
            given_wrapped=given_wrapped,
            casts_head=args.cast_lm_head_to_fp32 and (config is not None or given_wrapped),
        )

    @property
    def args(self) -> ProRLConfig:
        return self.given["args"]

    @contextmanager
    def loading(self) -> Iterator[None]:
        """
        Context in which TRL's trainer is made: models get all weights, vLLM accepts adapters, and the LM head of a
        model with adapters is not cast.
        """
        model = self.given["model"]
        args = self.args
        source = model if isinstance(model, str) else get_config_model_id(model.config)
        engine = nullcontext()
        if args.vllm_enable_lora:
            config = self.given.get("peft_config") or model.peft_config["default"]
            engine = let_engine_take_adapters(_largest_rank(args, config))
        casts = args.cast_lm_head_to_fp32
        args.cast_lm_head_to_fp32 = casts and not self.casts_head
        try:
            with whole_weights(source), readable_files(source), engine:
                yield
        finally:
            args.cast_lm_head_to_fp32 = casts


def _check_adapters(model: PreTrainedModel | str, config: PeftConfig | None) -> PeftConfig | None:
    """Check the adapters of the model and a new one. Returns the trained one's configuration."""
    adapters = {} if config is None else {"peft_config": config}
    if not isinstance(model, PeftModel):
        check_adapters(adapters)
        refuse_leftover_layers(model)
        return config
    check_adapters(adapters | dict(model.peft_config))
    check_head(model)
    check_loaded(model)
    check_trained_once(model)
    return model.peft_config["default"]


def _adapter_of_text(args: ProRLConfig, given: dict[str, Any]):
    """Leave out the towers of a multimodal model if all prompts are text."""
    config = given["peft_config"]
    if args.is_trl or not is_text_only(given.get("train_dataset")):
        return config
    revision = (args.model_init_kwargs or {}).get("revision")
    return leave_out_towers(config, given["model"], revision=revision, trust_remote_code=args.trust_remote_code)


def _check_data_and_rewards(args: ProRLConfig, given: dict[str, Any], verify: Callable | None) -> None:
    rows = given.get("train_dataset")
    evaluation = given.get("eval_dataset")
    functions = given.get("reward_funcs")
    if not isinstance(functions, list):
        functions = [functions]
    has_environment = given.get("environment_factory") is not None  # it has its own prompts and rewards
    if not has_environment:
        check_columns(rows)
    reserved = () if args.remove_unused_columns else reserved_names(functions, has_environment)
    check_sets(named_sets(rows, evaluation), reserved, may_prefill=given.get("rollout_func") is not None)
    if args.eval_strategy != "no":
        for which, evaluated in named_sets(None, evaluation).items():
            if isinstance(evaluated, Sized) and len(evaluated) == 0:
                raise ValueError(f'{which} has no rows. Give it some, or set eval_strategy: "no".')
    check_rows(rows, args.generation_batch_size, args.num_generations)
    if isinstance(rows, IterableDataset) and args.generate_every % args.gradient_accumulation_steps != 0:
        raise ValueError(
            f"gradient_accumulation_steps={args.gradient_accumulation_steps} with a stream (IterableDataset): a "
            f"generation batch has {args.generate_every} micro-batches, so a pass can end within an update, whose "
            "gradient transformers would add to the next one. Set steps_per_generation to a multiple of it."
        )
    check_reward_names([reward_name(function) for function in functions])
    for function in functions:
        if isinstance(function, str):  # a model's name
            check_contents(function, f"reward_funcs={function!r}")
            if "attn_implementation" not in (args.model_init_kwargs or {}):
                refuse_kernel(function, **place_of(args.model_init_kwargs))
    judging = judges(verify, functions)
    choose_best_metric(args, judging, evaluation, given.get("callbacks") or [])
    metrics = {}
    if args.metric_for_best_model is not None and not args.stop_stall:  # with which it is the same as the next
        metrics["metric_for_best_model"] = args.metric_for_best_model
    if args.watches_metric:
        metrics["ref_reset_metric"] = args.ref_reset_metric
    for metric in metrics.values():
        check_one_value(f"eval_{metric.removeprefix('eval_')}", evaluation)
    needs_verdicts = {key: metric for key, metric in metrics.items() if "pass@" in metric}
    if args.guard_gap is not None:
        needs_verdicts["guard_gap"] = args.guard_gap
    if args.prompt_pool_retire != KEYS["prompt_pool_retire"].default:
        needs_verdicts["prompt_pool_retire"] = args.prompt_pool_retire
    check_verifier(judging, needs_verdicts)
    if not has_environment:  # whose rewards are known when it is made
        check_measured(metrics, functions, args.num_generations_eval or args.num_generations, evaluation)


def _check_model(model: PreTrainedModel | str, args: ProRLConfig) -> None:
    """
    Raise an error for a model that [`~trl_prorl.upstream.weights.read_config`] rejects, or for a quantisation that is
    not listed.
    """
    if isinstance(model, str):
        is_set = "attn_implementation" in (args.model_init_kwargs or {})
        with readable_files(model):
            place = place_of(args.model_init_kwargs)
            config = read_config(model, is_set, trust_remote_code=args.trust_remote_code, **place)
    else:
        config = model.config
        check_decoder(config, get_config_model_id(config))
    check_quantisation(getattr(config, "quantization_config", None))


def _warn_of_other_settings(model: PreTrainedModel, args: ProRLConfig) -> None:
    """Warn if a model object computes by other settings than the starting model that its name stands for."""
    name = get_config_model_id(model.config)
    differing = differing_settings(model.config, name, args.model_init_kwargs or {}) if name else []
    if differing and args.process_index == 0:
        logger.warning(
            "The model differs from %s in %s: passk, drift and the model card load the starting model by that name. "
            "Save the model and pass the folder, or pass the name and give these settings in model_init_kwargs.",
            name,
            ", ".join(differing),
        )


def _check_optimizer(args: ProRLConfig, optimizer) -> None:
    if optimizer is not None:
        inner = inner_of(optimizer)
        if callable(getattr(inner, "eval", None)):
            raise ValueError(
                f"optimizers: {full_name(type(inner))} {SWITCHES} Pass another optimizer, such as torch.optim.AdamW."
            )
    if args.optimizer_reset == "keep":
        return
    if optimizer is not None:
        check_optimizer(optimizer, args.optimizer_reset)
        return
    cls, arguments = Trainer.get_optimizer_cls_and_kwargs(args)
    check_optimizer_class(cls, arguments.get("momentum", 0.0), arguments.get("beta1"), args.optimizer_reset)


def _check_distribution(args: ProRLConfig, resets: bool, moves_full: bool) -> None:
    needed = {key: f"{key}={getattr(args, key)}" for key in FEATURES if getattr(args, key, None)}
    if resets:
        needed["reference"] = "a reset of the reference"
    for key in args.copied_anchors:
        if getattr(args, key):
            needed["copies"] = f"{key}={getattr(args, key)}"
    if args.elastic_reset_every:
        needed["elastic"] = f"elastic_reset_every={args.elastic_reset_every}"
    if resets and args.treats_optimizer:
        needed["treatment"] = f"optimizer_reset={args.optimizer_reset!r}, a restart of the schedule or a re-warm-up"
    if moves_full and args.save_strategy != "no":
        needed["saved_reference"] = f"save_strategy={args.save_strategy.value!r} with full fine-tuning and resets"
    stage = args.deepspeed_plugin.zero_stage if args.deepspeed_plugin is not None else None
    if stage is not None:
        check_distribution(f"DeepSpeed ZeRO-{stage}", needed, f" (zero_stage={stage})")
    elif uses_fsdp(args):
        check_distribution("FSDP", needed)
    elif args.world_size > 1:
        check_distribution("DDP", needed, f" ({args.world_size} processes)")
    if args.lora_growth_every and args.torch_compile:
        raise ValueError(
            f"lora_growth_every={args.lora_growth_every} is not supported with torch_compile=True: the adapter "
            "changes its shape. Train in one process without torch_compile, or remove lora_growth_every."
        )


def _check_growth(args: ProRLConfig, config, optimizer) -> None:
    """Raise an error for growth of an adapter, or with an optimizer, that is not listed."""
    check_options(config, "lora_growth_every", args.lora_growth_every)
    check_room_to_grow(args.lora_growth_max_rank, config)
    if optimizer is not None:
        check_growing_optimizer(type(inner_of(optimizer)))
    else:
        check_growing_optimizer(Trainer.get_optimizer_cls_and_kwargs(args)[0])


def _largest_rank(args: ProRLConfig, config) -> int:
    if args.lora_growth_every:
        return max(config.r, args.lora_growth_max_rank)
    return config.r


def _check_requests(args: ProRLConfig, config) -> None:
    check_options(config, "vllm_enable_lora", True)
    rank = _largest_rank(args, config)
    if rank > RANKS[-1]:
        raise ValueError(
            f"vllm_enable_lora=True supports ranks up to {RANKS[-1]} (vLLM's limit), but the adapter's rank reaches "
            f"{rank}. Lower lora_r or lora_growth_max_rank, or remove vllm_enable_lora."
        )
