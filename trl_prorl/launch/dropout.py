"""
Active dropout is refused: it adds noise to every KL, and a reused log-probability would belong to another network.
"""

import logging
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from accelerate.utils import set_seed


logger = logging.getLogger(__name__)

RANDOM_PARTS = ("drop", "jitter", "noise")  # parts of the names that layers give to such rates

WHY = (
    "Dropout is active, so two forward passes of the same weights differ: a KL is not 0 where it should be, and a "
    "reused log-probability belongs to another network."
)


def check_dropout_config(peft_config: Any | None) -> None:
    """
    Raise an error for a PEFT configuration with dropout, before a model is loaded. Raises `ValueError`: naming the
    value and the cure.
    """
    rate = getattr(peft_config, "lora_dropout", 0.0)
    if rate:
        raise ValueError(f"lora_dropout={rate} is active. {WHY} Set lora_dropout: 0.0, or disable_dropout: true.")


def check_dropout(model: torch.nn.Module) -> None:
    """
    Raise an error for a model with visible active dropout: modules, and rates that attention layers apply themselves.
    A forward need not show it, for example that of an adapter which is still zero. Raises `ValueError`: naming the
    first place and the cure.
    """
    for name, module in model.named_modules():
        # TRL's disable_dropout does not reach a rate without a module. Two forwards may leave out the same layers.
        keys = ("p",) if isinstance(module, torch.nn.Dropout) else ("attention_dropout", "layerdrop")
        for key in keys:
            rate = getattr(module, key, 0.0)
            if isinstance(rate, (int, float)) and rate > 0:
                cure = "Set disable_dropout: true." if key == "p" else _cure(key)
                raise ValueError(f"{name} has a dropout rate of {rate}. {WHY} {cure}")


@torch.no_grad()
def check_randomness(
    model: torch.nn.Module, autocast: AbstractContextManager | None = None, sharded: bool = False
) -> None:
    """
    Raise an error if the forward pass in training is random, whatever the cause. A forward that draws no random
    number is not; elsewhere two seeds must give the same logits, up to the difference of two forwards with one seed on
    hardware that sums in no fixed order. Names of modules and of keys serve only to name the culprit. All random
    states and the modes of all modules are restored. A model whose weights are sharded is not tried, and a warning
    says so. Raises `ValueError`: naming the first rate that could be the reason, and the cure.
    """
    if sharded:
        logger.warning("Weights are sharded, so dropout that is not a module was not looked for.")
        return
    device = next(model.parameters()).device
    length = min(16, getattr(model.config.get_text_config(), "max_position_embeddings", None) or 16)
    vocabulary = model.get_input_embeddings().weight.shape[0]
    tokens = torch.arange(1, 2 * length + 1, device=device).remainder(vocabulary).view(2, length)

    def logits(seed: int) -> torch.Tensor:
        set_seed(seed)
        return model(input_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=False).logits.float()

    with own_random_state(), autocast or nullcontext(), evaluation_mode(model):
        model.train()
        first = logits(0)
        drawn = drew_numbers(seed=0, device=device)
        differs = drawn and _differ_by_seed(logits, first)
    if differs:
        raise ValueError(f"logits in training mode differ between two seeds{_culprit(model)}")


@contextmanager
def own_random_state() -> Iterator[None]:
    """Give the code inside random numbers of its own: Python's, NumPy's and torch's are afterwards as before."""
    python_state = random.getstate()
    numpy_state = np.random.get_state()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)


def _differ_by_seed(logits: Callable[[int], torch.Tensor], first: torch.Tensor) -> bool:
    """Return whether the logits of two seeds differ by more than those of one; `first`: those of seed 0."""
    by_seed = (first - logits(1)).abs().max()
    by_order = (first - logits(0)).abs().max()
    return bool(by_seed > 4 * by_order)


def drew_numbers(seed: int, device: torch.device) -> bool:
    """
    Return whether anything has drawn a random number since `set_seed(seed)`, by the states of the generators of
    Python, NumPy and torch. True on devices whose generators are not looked at. The generators are then as after
    `set_seed`.
    """
    states = generator_states()
    set_seed(seed)
    looked_at = device.type in ("cpu", "cuda")
    return not looked_at or states != generator_states()


def generator_states() -> tuple[Any, ...]:
    """Return the states of the generators of Python, NumPy, the CPU and all GPUs, to be compared."""
    name, words, *rest = np.random.get_state()
    devices = [torch.get_rng_state(), *torch.cuda.get_rng_state_all()]
    return (random.getstate(), (name, words.tolist(), *rest), [state.tolist() for state in devices])


def _culprit(model: torch.nn.Module) -> str:
    for name, module in model.named_modules():
        for key, rate in vars(module).items():
            if any(part in key for part in RANDOM_PARTS) and isinstance(rate, (int, float)) and rate > 0:
                # Mixtral's `router_jitter_noise` is its layers' `jitter_noise`.
                settings = model.config.to_dict()
                keys = [other for other, value in settings.items() if key in other and value == rate]
                return f": {name} has {key}={rate}. {WHY} {_cure(keys[0] if keys else key)}"
    return f". {WHY} Load the model without whatever is random in training mode."


def _cure(key: str) -> str:
    return (
        f"disable_dropout does not change it: load the model with {key}=0.0, in a recipe model_init_kwargs: "
        f"{{{key}: 0.0}}."
    )


@contextmanager
def evaluation_mode(model: torch.nn.Module) -> Iterator[None]:
    """Put every module into evaluation mode, and restore each module's mode afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
