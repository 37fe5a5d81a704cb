"""
Train a model of 650 weights to sort three numbers, in all variants: `python docs/examples/sort_toy/run.py`.

Everything but the model is this project's own: rewards, advantages, KL, losses and resets.
"""

import argparse
import os
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import product
from typing import Any


os.environ.setdefault("OMP_NUM_THREADS", "1")  # matrices of 10 x 10 need no threads

import numpy as np
import torch

from trl_prorl.advantages import estimate
from trl_prorl.kl import importance_ratio, kl_penalty
from trl_prorl.optimizer import reset_optimizer
from trl_prorl.tasks.sorting import REWARDS


PROMPTS = torch.tensor([[1, 0, 2], [3, 2, 4], [1, 2, 3]])
NUMBERS = 5  # 0 to 4
LENGTH = 3  # numbers of a prompt, and of a response
WIDTH = 10  # of an embedding, and of the hidden state
GROUP = 10  # responses of a prompt, sampled once per epoch
EVERY_RESPONSE = torch.tensor(list(product(range(NUMBERS), repeat=LENGTH)))  # shape (125, 3)
LOSSES = ("naive", "unclipped", "clipped")
DELTAS = ("raw", "centered", "group_normalized", "max")
BETA = 0.3


@dataclass(frozen=True)
class Setting:
    """The settings of one run; `anchor` is the policy to which the KL is taken: `none`, `reference` or `old`."""

    reward: str = "inclusion_ordering"
    delta: str = "group_normalized"
    loss: str = "unclipped"
    epsilon: float = 0.01  # clip of the ratio
    anchor: str = "none"
    beta: float = 0.0
    bias_correction: bool = False  # whether k3 is multiplied by the ratio, which makes its gradient exact
    reset_every: int = 0  # epochs; 0: never
    optimizer_reset: str = "keep"
    optimizer_reset_alpha: float = 0.1
    epochs: int = 100
    inner_steps: int = 10
    learning_rate: float = 1e-3
    seed: int = 0


A = {"anchor": "reference", "beta": BETA, "reset_every": 10}
VARIANTS: dict[str, dict[str, Any]] = {
    "no KL": {},
    "fixed reference": {"anchor": "reference", "beta": BETA},
    "A": A,
    "B (a different objective)": {"anchor": "old", "beta": BETA},
    "C hard": {**A, "optimizer_reset": "hard"},
    "C soft": {**A, "optimizer_reset": "soft"},
    "C asym": {**A, "optimizer_reset": "asym"},
    "C step": {**A, "optimizer_reset": "step"},
}


@dataclass
class Batch:
    """
    G responses of T numbers to each of P prompts.

    Attributes:
        tokens, old, anchor: The responses, and their log-probabilities under the policy that sampled them and the
            anchor of the KL, shape `(P, G, T)`.
        advantages, weights: Of the responses, shape `(P, G)`. The weights in the mean sum to 1.
    """

    tokens: torch.Tensor
    old: torch.Tensor
    anchor: torch.Tensor
    advantages: torch.Tensor
    weights: torch.Tensor


class Sorter(torch.nn.Module):
    """The model. Logits start with a standard deviation of about 0.5, so no response is unlikely."""

    def __init__(self, seed: int):
        super().__init__()
        generator = np.random.default_rng([seed, 0])
        shapes = {"embedding": (NUMBERS, WIDTH), "encode": (LENGTH, WIDTH, WIDTH), "decode": (LENGTH, WIDTH, WIDTH)}
        for name, shape in shapes.items():
            values = generator.normal(scale=WIDTH**-0.5, size=shape)
            setattr(self, name, torch.nn.Parameter(torch.tensor(values)))

    def forward(self) -> torch.Tensor:
        """Return log-probabilities of the numbers at each position of the responses, shape `(P, T, number)`."""
        hidden = torch.einsum("pie,ieh->ph", self.embedding[PROMPTS], self.encode)
        output = torch.einsum("ph,jhe->pje", hidden, self.decode)
        return torch.log_softmax(output @ self.embedding.T, dim=-1)


def of_tokens(logps: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Select from log-probabilities `(P, T, number)` those of tokens `(P, G, T)`."""
    prompt = torch.arange(len(tokens))[:, None, None]
    return logps[prompt, torch.arange(LENGTH), tokens]


def sample(logps: torch.Tensor, uniform: np.ndarray) -> torch.Tensor:
    """Return tokens `(P, G, T)`: the first whose cumulative probability exceeds the uniform number in [0, 1)."""
    ends = logps.exp().cumsum(dim=-1)[:, None]
    return (torch.tensor(uniform)[..., None] >= ends).sum(dim=-1).clamp(max=NUMBERS - 1)


def rewards_of(tokens: torch.Tensor, reward: str) -> torch.Tensor:
    """Return the rewards, shape `(P, G)`, of responses `(P, G, T)`."""
    values = []
    for prompt, responses in zip(PROMPTS.tolist(), tokens.tolist(), strict=True):
        answer = [str(number) for number in sorted(prompt)]
        values.append([REWARDS[reward]([str(number) for number in response], answer) for response in responses])
    return torch.tensor(values, dtype=torch.float64)


def objective(logps: torch.Tensor, batch: Batch, setting: Setting) -> torch.Tensor:
    """Return the loss, a scalar, of the policy's log-probabilities `(P, T, number)`."""
    chosen = of_tokens(logps, batch.tokens)
    mask = torch.ones_like(chosen)
    # The naive ratio is that to the policy itself: 1, with the gradient of the log-probability.
    sampler = chosen if setting.loss == "naive" else batch.old
    ratio = importance_ratio(chosen, sampler, mask, "token")
    advantages = batch.advantages[..., None]
    gain = ratio * advantages
    if setting.loss == "clipped":
        gain = torch.minimum(gain, ratio.clamp(1.0 - setting.epsilon, 1.0 + setting.epsilon) * advantages)
    correction = importance_ratio(chosen, batch.old, mask, "token") if setting.bias_correction else None
    per_token = setting.beta * kl_penalty(chosen, batch.anchor, "k3", correction) - gain
    return (batch.weights * per_token.mean(dim=-1)).sum()


def expected_reward(logps: torch.Tensor, reward: str) -> float:
    """Return the mean over prompts of Σ π(y) · R(y) over all 125 responses."""
    every = EVERY_RESPONSE.expand(len(PROMPTS), -1, -1)
    probabilities = of_tokens(logps, every).sum(dim=-1).exp()
    return (probabilities * rewards_of(every, reward)).sum(dim=-1).mean().item()


def train(setting: Setting) -> np.ndarray:
    """Return the expected reward after each epoch, shape `(epochs,)`."""
    policy = Sorter(setting.seed)
    reference = deepcopy(policy)
    optimizer = torch.optim.Adam(policy.parameters(), lr=setting.learning_rate)
    generator = np.random.default_rng([setting.seed, 1])
    weights = torch.full((len(PROMPTS), GROUP), 1.0 / (len(PROMPTS) * GROUP), dtype=torch.float64)
    found = []
    for epoch in range(setting.epochs):
        if setting.reset_every and epoch and epoch % setting.reset_every == 0:
            reference.load_state_dict(policy.state_dict())
            reset_optimizer(optimizer, setting.optimizer_reset, setting.optimizer_reset_alpha)
        with torch.no_grad():
            tokens = sample(policy(), generator.random((len(PROMPTS), GROUP, LENGTH)))
            old = of_tokens(policy(), tokens)
            anchor = of_tokens(reference(), tokens) if setting.anchor == "reference" else old
        rewards = rewards_of(tokens, setting.reward)
        advantages = estimate(rewards.flatten(), GROUP, setting.delta).view_as(rewards)
        batch = Batch(tokens, old, anchor, advantages, weights)
        for _ in range(setting.inner_steps):
            optimizer.zero_grad()
            objective(policy(), batch, setting).backward()
            optimizer.step()
        found.append(expected_reward(policy().detach(), setting.reward))
    return np.array(found)


def table(base: Setting, seeds: Iterable[int]) -> str:
    """Return, in Markdown, the expected rewards of the variants at a quarter, half and the end of a run."""
    shown = sorted({max(1, base.epochs // 4), max(1, base.epochs // 2), base.epochs})
    lines = ["| variant | " + " | ".join(f"epoch {epoch}" for epoch in shown) + " |", "|---|" + "---|" * len(shown)]
    for name, keys in VARIANTS.items():
        curve = np.mean([train(replace(base, seed=seed, **keys)) for seed in seeds], axis=0)
        lines.append(f"| {name} | " + " | ".join(f"{curve[epoch - 1]:.3f}" for epoch in shown) + " |")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reward", choices=("inclusion_ordering", "distance"), default=Setting.reward)
    parser.add_argument("--delta", choices=DELTAS, default=Setting.delta)
    parser.add_argument("--loss", choices=LOSSES, default=Setting.loss)
    parser.add_argument("--epochs", type=int, default=Setting.epochs)
    parser.add_argument("--seeds", type=int, default=1, help="number of runs of each variant; their mean is printed")
    args = parser.parse_args(argv)
    for name in ("epochs", "seeds"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} {getattr(args, name)}: give a whole number from 1")
    base = Setting(reward=args.reward, delta=args.delta, loss=args.loss, epochs=args.epochs)
    print(table(base, range(args.seeds)))


if __name__ == "__main__":
    main()
