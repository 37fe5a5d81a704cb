"""
Rehearses, before a model is loaded, what TRL, transformers and PEFT make of the keys whose values are small languages
of their own: the optimizer and its arguments, the schedule, the generation, the chat template, the adapter. Their own
code is called, on next to nothing, so that its complaint comes in one line that names the key.
"""

import copy
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any

import torch
import transformers
from peft import LoraConfig, get_peft_model
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel, Trainer, get_scheduler
from transformers.utils import is_liger_kernel_available

from ..config import ProRLConfig
from ..errors import InputError
from ..text import cut, short


logger = logging.getLogger(__name__)

# What the trainer itself hands to a chat template, and to the method that applies it.
OF_THE_TRAINER = (
    *("conversation", "messages", "tools", "chat_template", "add_generation_prompt", "continue_final_message"),
    *("tokenize", "padding", "truncation", "max_length", "return_tensors", "return_dict"),
    *("return_assistant_tokens_mask", "tokenizer_kwargs"),
)
OF_LORA = ("target_modules", "modules_to_save", "target_parameters")


@contextmanager
def refused_by_name(**keys: Any) -> Iterator[None]:
    """
    Turn whatever is raised within into a line that names some keys with their values, without those that are `None`.

    Raises:
        `InputError`: Something was raised.
    """
    try:
        yield
    except Exception as error:
        spelt = [f"{name}={_spelt(value)}" for name, value in keys.items() if value is not None]
        said = cut(" ".join(str(error).split()), 250).rstrip(".")
        raise InputError(f"{', '.join(spelt)} cannot be used: {type(error).__name__}: {said}. Correct it.") from error


def _spelt(value: Any) -> str:
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, set):  # PEFT makes one of a list
        value = sorted(value)
    return short(value)


def rehearse(
    args: ProRLConfig, model: Any, peft_config: Any, processor: Any, prompts: list, makes_optimizer: bool
) -> None:
    """
    Rehearse a configuration; nothing of the process changes.

    Args:
        args (`ProRLConfig`):
            The configuration.
        model (`str` or `PreTrainedModel`):
            The model; only of one that is still to be loaded, the adapter is rehearsed.
        peft_config (`PeftConfig` or `None`), processor (tokenizer, processor or `None`):
            As the trainer gets them.
        prompts (`list`):
            A prompt for the chat template, or none.
        makes_optimizer (`bool`):
            Whether optimizer and schedule are made by the keys.

    Raises:
        `InputError`: A key has a value that could not be used.
    """
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # whatever warns here warns again
        skeleton = None
        if isinstance(model, str) and args.deepspeed_plugin is None:
            skeleton = skeleton_of(model, args)
        if skeleton is not None and isinstance(peft_config, LoraConfig):
            skeleton = rehearse_adapter(skeleton, peft_config)
        if makes_optimizer:
            rehearse_optimizer(args, skeleton)
            rehearse_schedule(args)
        rehearse_checkpointing(args)
        if not args.use_vllm:
            rehearse_generation(args)
        rehearse_template(args, processor, prompts)


def rehearse_optimizer(args: ProRLConfig, model: Any = None) -> None:
    """
    Make the optimizer for one number. `model`: one without weights, which some optimizers look at. Refuses arguments
    that are not written as names with values, and one that the optimizer leaves unread.
    """
    text = (args.optim_args or "").replace(" ", "")
    entries = [entry for entry in text.split(",") if entry]
    for entry in entries:
        name, _, value = entry.partition("=")
        if not name.isidentifier() or value == "" or "=" in value:
            raise InputError(f"optim_args={args.optim_args!r}: write NAME=VALUE in place of {entry!r}.")
        if value.lower().lstrip("+-") in ("nan", "inf", "infinity"):
            raise InputError(f"optim_args={args.optim_args!r}: {name} must be finite. Correct it.")
    with refused_by_name(optim=args.optim, optim_args=args.optim_args):
        try:
            made, arguments = Trainer.get_optimizer_cls_and_kwargs(args, model)
        except ValueError as error:
            if model is None and "You need to pass a" in str(error):
                return  # it has to see the model
            raise
        is_class = isinstance(made, type) and issubclass(made, torch.optim.Optimizer)
        if is_class and not {"params", "model", "optimizer_dict"} & arguments.keys():
            made([torch.nn.Parameter(torch.zeros(1))], **arguments)
    for entry in entries:
        name = entry.partition("=")[0]
        if not _changes_optimizer(args, model, name):
            raise InputError(
                f"optim_args={args.optim_args!r}: optim={args.optim.value!r} takes no {name!r}. Leave it out."
            )


def _changes_optimizer(args: ProRLConfig, model: Any, name: str) -> bool:
    """Return whether some value of an argument reaches the optimizer."""
    outcomes = set()
    for value in ("", f"{name}=0.123", f"{name}=1", f"{name}=float16"):
        changed = copy.copy(args)
        changed.optim_args = value
        try:
            _, arguments = Trainer.get_optimizer_cls_and_kwargs(changed, model)
            outcomes.add(str(arguments))
        except Exception as error:
            outcomes.add(type(error).__name__)  # it was read, and is not of this kind
    return len(outcomes) > 1


def rehearse_schedule(args: ProRLConfig) -> None:
    """Make the schedule of the learning rate, and look at a few of its values."""
    steps = args.max_steps if args.max_steps > 0 else 1000
    keys = {"lr_scheduler_type": args.lr_scheduler_type, "lr_scheduler_kwargs": args.lr_scheduler_kwargs or None}
    with refused_by_name(**keys):
        schedule = _schedule(args, steps, args.lr_scheduler_kwargs)
        for step in {0, steps // 2, steps - 1}:
            for factor in getattr(schedule, "lr_lambdas", []):
                if not factor(step) >= 0:
                    raise ValueError(f"the learning rate of step {step} is its maximum times {factor(step)}")
    if args.lr_scheduler_kwargs and _takes_anything(lambda: _schedule(args, steps, {"no_such_argument": 1})):
        raise InputError(
            f"lr_scheduler_kwargs={args.lr_scheduler_kwargs!r} has no effect, because lr_scheduler_type="
            f"{args.lr_scheduler_type.value!r} takes no arguments. Leave it out."
        )


def _schedule(args: ProRLConfig, steps: int, arguments: dict | None) -> Any:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=args.learning_rate)
    return get_scheduler(
        args.lr_scheduler_type,
        optimizer=optimizer,
        num_warmup_steps=args.get_warmup_steps(steps),
        num_training_steps=steps,
        scheduler_specific_kwargs=arguments,
    )


def _takes_anything(make: Callable[[], Any]) -> bool:
    try:
        make()
    except TypeError:
        return False
    return True


def rehearse_checkpointing(args: ProRLConfig) -> None:
    """Compute a number with activation checkpointing, and look for the package of `use_liger_kernel`."""
    arguments = getattr(args, "activation_checkpointing_kwargs", None) or args.gradient_checkpointing_kwargs
    if args.gradient_checkpointing and arguments:
        with refused_by_name(activation_checkpointing_kwargs=arguments):
            checkpoint(torch.neg, torch.ones(1, requires_grad=True), **{"use_reentrant": False, **arguments})
    if args.use_liger_kernel and not is_liger_kernel_available():
        raise InputError(
            "use_liger_kernel=True needs a package that is not installed: pip install liger-kernel, or leave it out."
        )


def rehearse_generation(args: ProRLConfig) -> None:
    """Make transformers' configuration of the generation, and check those of its keys that a recipe has, too."""
    given = args.generation_kwargs or {}
    known = vars(GenerationConfig())
    for name in given:
        if name not in known:
            raise InputError(
                f"generation_kwargs={short(given)}: transformers' generation takes no {name!r}. Correct it, or leave "
                "it out."
            )
    keys = {"cache_implementation": args.cache_implementation, "generation_kwargs": given or None}
    with refused_by_name(**keys):
        GenerationConfig(**{"do_sample": True, "cache_implementation": args.cache_implementation, **given}).validate()


def rehearse_template(args: ProRLConfig, processor: Any, prompts: list) -> None:
    """Apply the chat template with `chat_template_kwargs` to a prompt, if there are a processor and a prompt."""
    given = args.chat_template_kwargs or {}
    for name in given:
        if name in OF_THE_TRAINER:
            raise InputError(
                f"chat_template_kwargs={short(given)}: the trainer itself gives {name!r} to the chat template. Leave "
                "it out."
            )
    if not given or processor is None:
        return
    for prompt in prompts:
        if isinstance(prompt, list):
            with refused_by_name(chat_template_kwargs=given):
                processor.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True, **given)


def skeleton_of(model: str, args: ProRLConfig) -> PreTrainedModel | None:
    """
    Return a model without its weights, from its configuration alone. Refuses a `model_init_kwargs` that the
    configuration does not take, and an implementation of attention that this machine does not have.

    Returns:
        `None`: A model of this kind cannot be made without weights.
    """
    init = dict(args.model_init_kwargs or {})
    trusted = {"trust_remote_code": args.trust_remote_code}
    attention = init.pop("attn_implementation", None)
    init.pop("dtype", None)
    try:
        config = AutoConfig.from_pretrained(model, **trusted, revision=init.get("revision"))
        plain = _without_weights(config, None, trusted)
    except Exception as error:  # whoever loads it will say why
        logger.debug("no model without weights: %s", error)
        return None
    with refused_by_name(model_init_kwargs=args.model_init_kwargs):
        AutoConfig.from_pretrained(model, return_unused_kwargs=True, **{**trusted, **init})
    if attention is None:
        return plain
    with refused_by_name(attn_implementation=attention):
        return _without_weights(config, attention, trusted)


def _without_weights(config: Any, attention: Any, trusted: dict[str, bool]) -> PreTrainedModel:
    config = copy.deepcopy(config)
    architectures = getattr(config, "architectures", None) or [""]
    own = getattr(transformers, architectures[0], None)
    with torch.device("meta"):
        if own is not None:
            return own._from_config(config, attn_implementation=attention)
        return AutoModelForCausalLM.from_config(config, attn_implementation=attention, **trusted)


def rehearse_adapter(skeleton: PreTrainedModel, config: LoraConfig) -> PreTrainedModel:
    """Wrap a model without weights, and refuse names of which the model has none. Returns the wrapped model."""
    config = copy.deepcopy(config)
    config.init_lora_weights = False  # some initialisations decompose the weights
    given = {f"lora_{name}": getattr(config, name, None) for name in OF_LORA}
    modules = [name for name, _ in skeleton.named_modules()]
    parameters = [name for name, _ in skeleton.named_parameters()]
    for key, there in (("lora_modules_to_save", modules), ("lora_target_parameters", parameters)):
        for name in given[key] or []:
            if not _is_among(name, there):
                raise InputError(f"{key}={given[key]!r}: the model has no {name!r}. Correct it.")
    with refused_by_name(**given), torch.device("meta"):
        wrapped = get_peft_model(skeleton, config)
    for name in given["lora_target_modules"] or []:
        is_name = not isinstance(given["lora_target_modules"], str)
        if is_name and not _is_among(name, modules):
            logger.warning("lora_target_modules names %r, which the model does not have.", name)
    return wrapped


def _is_among(name: str, there: list[str]) -> bool:
    """Return whether a name, or the end of one, is that of a module or a parameter."""
    return any(other == name or other.endswith(f".{name}") for other in there)
