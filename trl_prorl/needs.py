"""
Keys that have no effect unless another key switches on what they adjust. Nothing is imported that takes long, because
a report that compares configurations needs this table and no torch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Need:
    """
    Without which other key a key has no effect.

    Attributes:
        keys (`tuple[str, ...]`):
            The other keys; one of them suffices.
        value (`Any`):
            The value that one of them must have; `None`: any value but off (`null`, 0, `false`, `"off"`).
        told (`str`):
            The same in the words of a recipe.
        example (`Any`):
            A value of the key that is not its default.
    """

    keys: tuple[str, ...]
    value: Any
    told: str
    example: Any

    def is_met(self, value_of: Callable[[str], Any]) -> bool:
        """
        Whether the key has an effect.

        Args:
            value_of (`Callable`):
                The value of a key by its name: `config.get` for a mapping, which may lack keys that are off.
        """
        values = [value_of(key) for key in self.keys]
        return any(value not in (None, 0, "off") for value in values) if self.value is None else self.value in values


def _needs(*keys: str, value: Any = None, told: str | None = None, example: Any) -> Need:
    return Need(keys, value, told or " or ".join(keys) + (f": {value}" if value is not None else ""), example)


_WATCHES = ("ref_reset_stall", "ref_reset_drop")

# Keys of `ProRLConfig`.
NEEDS = {
    "optimizer_reset_alpha": _needs("optimizer_reset", value="soft", example=0.25),
    "kl_horizon": _needs("kl_target", example=50),
    "base_anchor_every": _needs("beta_base", told="beta_base > 0", example=4),
    "dynamic_sampling_rewards": _needs("dynamic_sampling_rounds", example=["gsm8k"]),
    "pack_max_tokens": _needs("pack_groups", told='pack_groups: "on"', example=8192),
    "elastic_ema": _needs("elastic_reset_every", example=0.9),
    "lora_growth_step": _needs("lora_growth_every", example=8),
    "lora_growth_max_rank": _needs("lora_growth_every", example=32),
    "entropy_patience": _needs("entropy_floor", example=20),
    "guard_gap_action": _needs("guard_gap", example="stop"),
    "ref_reset_kl_window": _needs("ref_reset_kl", example=5),
    "ref_reset_metric": _needs(*_WATCHES, example="eval_rewards/gsm8k/mean"),
    "ref_reset_metric_mode": _needs(*_WATCHES, example="min"),
    "ref_reset_min_delta": _needs(*_WATCHES, example=0.01),
}

# Keys of a recipe's task.
TASK_NEEDS = {
    "length_least": _needs("length_reward", value="cosine", example=-0.5),
    "length_on": _needs("length_reward", value="cosine", example=100),
    "length_off": _needs("length_reward", value="cosine", example=500),
    "length_target": _needs("length_reward", value="target", example=200),
    "length_cost": _needs("length_reward", value="target", example=0.001),
    "length_margin": _needs("length_reward", value="overlong", example=64),
    "thinking_text": _needs("thinking_budget", example="Answer: "),
    "thinking_answer_tokens": _needs("thinking_budget", example=16),
}


def is_unused(configuration: Any, key: str, need: Need) -> bool:
    """Whether a field of a dataclass instance is not at its default though nothing uses it."""
    default = configuration.__dataclass_fields__[key].default
    return getattr(configuration, key) != default and not need.is_met(lambda name: getattr(configuration, name))


def unused_line(configuration: Any, key: str, need: Need) -> str:
    """The line that refuses such a value."""
    return f"{key}={getattr(configuration, key)!r} has no effect without {need.told}. Set that, or leave {key} out."


def check_used(configuration: Any, needs: Mapping[str, Need]) -> None:
    """
    Refuse a value that nothing would ever look at.

    Args:
        configuration (dataclass instance):
            Whose fields are asked for.
        needs (`Mapping[str, Need]`):
            What each of them needs.

    Raises:
        `ValueError`: naming the first field that is not at its default though nothing uses it.
    """
    for key, need in needs.items():
        if is_unused(configuration, key, need):
            raise ValueError(unused_line(configuration, key, need))
