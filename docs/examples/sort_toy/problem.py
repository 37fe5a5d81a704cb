"""The toy without its arithmetic: the prompts, a run's settings, the random numbers that both engines share."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np


PROMPTS = np.array([[1, 0, 2], [3, 2, 4], [1, 2, 3]])
NUMBERS = 5  # 0 to 4
LENGTH = 3  # numbers of a prompt, and of a response
WIDTH = 10  # of an embedding, and of the hidden state
RESPONSES = 10  # of each prompt, sampled once an epoch
EVERY_RESPONSE = np.array(list(product(range(NUMBERS), repeat=LENGTH)))  # shape (125, 3)

LOG_HEAD = "epoch\tprompt\tresponse\tlog-probability\treward\tdelta\n"
# Rows of a run's curves: for each epoch the mean loss of its inner steps, and the *expected* reward after it, exact:
# every response counts by its probability.
LOSS = 0
REWARD = 1
DELTAS = ("raw", "centered", "group_normalized", "max")
LOSSES = ("naive", "unclipped", "clipped")
REWARDS = ("distance", "inclusion_ordering")


@dataclass(frozen=True)
class Setting:
    """
    The settings of one run.

    Attributes:
        reward (`str`): one of `REWARDS`.
        delta (`str`): the advantage of a response, one of `DELTAS`.
        loss (`str`): one of `LOSSES`.
        epsilon (`float`): how far from 1 the ratio may go before `clipped` takes its gradient away.
        anchor (`str`): the policy to which the KL is taken: `none`, `reference` or `old`.
        beta (`float`): the KL's coefficient.
        bias_correction (`bool`): whether k3 is multiplied by the ratio, which makes its gradient exact.
        reset_every (`int`): epochs from one reset to the next; 0: never.
        optimizer_reset (`str`): the effect of a reset on Adam's state: `keep`, `hard`, `soft`, `asym` or `step`.
        optimizer_reset_alpha (`float`): the factor of `soft`.
        epochs (`int`): each samples `RESPONSES` responses of every prompt.
        inner_steps (`int`): updates on the samples of one epoch.
        learning_rate (`float`): of Adam.
        seed (`int`): of the initial weights, and of the samples.
    """

    reward: str = "inclusion_ordering"
    delta: str = "group_normalized"
    loss: str = "unclipped"
    epsilon: float = 0.01
    anchor: str = "none"
    beta: float = 0.0
    bias_correction: bool = False
    reset_every: int = 0
    optimizer_reset: str = "keep"
    optimizer_reset_alpha: float = 0.1
    epochs: int = 100
    inner_steps: int = 10
    learning_rate: float = 1e-3
    seed: int = 0

    def resets_before(self, epoch: int) -> bool:
        """Whether a reset falls on the boundary before an epoch, counted from 0."""
        return self.reset_every > 0 and epoch > 0 and epoch % self.reset_every == 0


PLAIN = {"anchor": "none", "beta": 0.0}
BETA = 0.3
A = {"anchor": "reference", "beta": BETA, "reset_every": 10}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": PLAIN,
    "control": {"anchor": "reference", "beta": BETA},
    "A": A,
    "B": {"anchor": "old", "beta": BETA},
    "C hard": {**A, "optimizer_reset": "hard"},
    "C soft": {**A, "optimizer_reset": "soft"},
    "C asym": {**A, "optimizer_reset": "asym"},
    "C step": {**A, "optimizer_reset": "step"},
}


def grid(base: Setting) -> dict[tuple[str, str, str], Setting]:
    """Every loss with every delta, without KL (`plain`) and with it (`A`): 24 settings, by those three names."""
    return {
        (loss, delta, variant): replace(base, loss=loss, delta=delta, **VARIANTS[variant])
        for loss in LOSSES
        for delta in DELTAS
        for variant in ("plain", "A")
    }


def label(variant: str) -> str:
    """Return the name that tables and the picture show."""
    names = {"plain": "no KL", "control": "fixed reference", "B": "B (a different objective)"}
    return names.get(variant, variant)


def variants(base: Setting) -> dict[str, Setting]:
    """Return the settings of the variants, which differ in the anchor of the KL and in the reset."""
    return {name: replace(base, **keys) for name, keys in VARIANTS.items()}


@dataclass
class Batch:
    """
    Responses with all that a loss needs to know of them, as tensors or as arrays: G responses of T numbers to each of
    P prompts.

    Attributes:
        tokens: the responses, shape `(P, G, T)`.
        advantages: shape `(P, G)`.
        old: log-probabilities of the tokens under the policy that sampled them, shape `(P, G, T)`.
        anchor: the same under the anchor of the KL, shape `(P, G, T)`.
        weights: how much each response counts, shape `(P, G)`; they sum to 1.
    """

    tokens: Any
    advantages: Any
    old: Any
    anchor: Any
    weights: Any


def initial_weights(seed: int) -> dict[str, np.ndarray]:
    """
    The weights with which a run begins. Logits have a standard deviation of about a half, so that no response is
    unlikely.

    Returns:
        `dict[str, np.ndarray]`: `embedding` of shape `(5, 10)`, `encode` and `decode` of shape `(3, 10, 10)`: a matrix
            for each position of the prompt, and of the response.
    """
    rng = np.random.default_rng([seed, 0])
    shapes = {"embedding": (NUMBERS, WIDTH), "encode": (LENGTH, WIDTH, WIDTH), "decode": (LENGTH, WIDTH, WIDTH)}
    return {name: rng.normal(scale=WIDTH**-0.5, size=shape) for name, shape in shapes.items()}


def log_lines(epoch: int, tokens, logps, rewards, deltas) -> Iterator[str]:
    """
    Lines for the samples of an epoch: prompt, response, log-probability, reward and delta, apart by tabs.

    Args:
        epoch (`int`): counted from 0.
        tokens (`np.ndarray` of shape `(P, G, T)`): the responses.
        logps (`np.ndarray` of shape `(P, G, T)`): log-probabilities of their tokens, which add up to the response's.
        rewards, deltas (`np.ndarray` of shape `(P, G)`): of the responses.
    """
    for p, g in np.ndindex(*rewards.shape):
        prompt, response = (" ".join(map(str, numbers)) for numbers in (PROMPTS[p], tokens[p, g]))
        yield f"{epoch + 1}\t{prompt}\t{response}\t{logps[p, g].sum():.4f}\t{rewards[p, g]:.4f}\t{deltas[p, g]:.4f}\n"


def random_numbers(setting: Setting) -> Iterator[np.ndarray]:
    """
    For each epoch the numbers in [0, 1) that decide its samples, of shape `(prompts, RESPONSES, LENGTH)`: a number u
    draws the first token up to which the probabilities add up to more than u.
    """
    rng = np.random.default_rng([setting.seed, 1])
    for _ in range(setting.epochs):
        yield rng.random((len(PROMPTS), RESPONSES, LENGTH))
