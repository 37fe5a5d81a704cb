"""The toy in PyTorch, by this project's own functions: rewards, advantages, KL, loss modes, resets."""

from copy import deepcopy
from typing import TextIO

import numpy as np
import torch

from trl_prorl.advantages import estimate
from trl_prorl.anchors import OldPolicyAnchor
from trl_prorl.kl import importance_ratio, kl_penalty, without_ratio
from trl_prorl.optimizer import reset_optimizer
from trl_prorl.tasks.sorting import REWARDS

from .problem import (
    EVERY_RESPONSE,
    NUMBERS,
    PROMPTS,
    RESPONSES,
    Batch,
    Setting,
    initial_weights,
    log_lines,
    random_numbers,
)


class Sorter(torch.nn.Module):
    """
    The model: it gives the distributions of all three numbers of the response at once, each on its own.

    Args:
        weights (`dict[str, np.ndarray]`):
            As [`initial_weights`] makes them.
    """

    def __init__(self, weights: dict[str, np.ndarray]):
        super().__init__()
        self.embedding = torch.nn.Parameter(torch.tensor(weights["embedding"]))
        self.encode = torch.nn.Parameter(torch.tensor(weights["encode"]))
        self.decode = torch.nn.Parameter(torch.tensor(weights["decode"]))

    def forward(self, prompts: torch.Tensor) -> torch.Tensor:
        """Log-probabilities, shape `(P, position, number)`, of prompts of shape `(P, position)`."""
        hidden = torch.einsum("pie,ieh->ph", self.embedding[prompts], self.encode)
        output = torch.einsum("ph,jhe->pje", hidden, self.decode)
        return torch.log_softmax(output @ self.embedding.T, dim=-1)


def of_tokens(logps: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The entries, shape `(P, G, T)`, of log-probabilities of shape `(P, T, number)` that belong to tokens."""
    prompt = torch.arange(len(tokens))[:, None, None]
    position = torch.arange(tokens.shape[-1])
    return logps[prompt, position, tokens]


def sample(logps: torch.Tensor, numbers: np.ndarray) -> torch.Tensor:
    """Tokens of shape `(P, G, T)`: for each random number the first up to which the probabilities exceed it."""
    ends = logps.exp().cumsum(dim=-1)[:, None]
    return (torch.tensor(numbers)[..., None] >= ends).sum(dim=-1).clamp(max=NUMBERS - 1)


def objective(logps: torch.Tensor, batch: Batch, setting: Setting) -> torch.Tensor:
    """
    The loss, a scalar.

    Args:
        logps (`torch.Tensor` of shape `(P, T, number)`):
            The policy's log-probabilities, with gradient.
        batch (`Batch`):
            The responses.
        setting (`Setting`):
            The loss, the anchor and its coefficient.
    """
    chosen = of_tokens(logps, batch.tokens)
    counts = torch.ones_like(batch.old)
    kept = {OldPolicyAnchor.column: batch.old}
    if setting.loss == "naive":
        kept = without_ratio(kept)
    # Without π_old the ratio is that to the policy itself: 1, with the gradient of the log-probability.
    ratio = importance_ratio(chosen, kept.get(OldPolicyAnchor.column, chosen), counts, "token")
    gain = ratio * batch.advantages[..., None]
    if setting.loss == "clipped":
        bounded = ratio.clamp(1.0 - setting.epsilon, 1.0 + setting.epsilon)
        gain = torch.minimum(gain, bounded * batch.advantages[..., None])
    per_token = -gain
    if setting.beta != 0.0:
        correction = importance_ratio(chosen, batch.old, counts, "token") if setting.bias_correction else None
        per_token = per_token + setting.beta * kl_penalty(chosen, batch.anchor, "k3", correction)
    return (batch.weights * per_token.mean(dim=-1)).sum()


def rewards_of(tokens: torch.Tensor, reward: str) -> torch.Tensor:
    """
    The project's rewards, shape `(P, G)`, of tokens of shape `(P, G, T)`. They are functions of texts, because a
    language model answers in text.
    """
    rewards = [
        [REWARDS[reward]([str(t) for t in response], [str(n) for n in sorted(prompt)]) for response in of_prompt]
        for prompt, of_prompt in zip(PROMPTS.tolist(), tokens.tolist(), strict=True)
    ]
    return torch.tensor(rewards, dtype=torch.float64)


def expected_reward(logps: torch.Tensor, table: torch.Tensor) -> float:
    """The mean over the prompts of Σ π(response) · reward over all 125 responses, from `table`, shape `(P, 125)`."""
    every = torch.tensor(EVERY_RESPONSE).expand(len(PROMPTS), -1, -1)
    return (of_tokens(logps, every).sum(dim=-1).exp() * table).sum(dim=-1).mean().item()


def train(setting: Setting, log: TextIO | None = None) -> np.ndarray:
    """Return the curves of one run, shape `(2, epochs)`; its samples go to `log`, if that is given."""
    policy = Sorter(initial_weights(setting.seed))
    optimizer = torch.optim.Adam(policy.parameters(), lr=setting.learning_rate)
    reference = deepcopy(policy)
    prompts = torch.tensor(PROMPTS)
    table = rewards_of(torch.tensor(EVERY_RESPONSE).expand(len(PROMPTS), -1, -1), setting.reward)
    equally = torch.full((len(PROMPTS), RESPONSES), 1.0 / (len(PROMPTS) * RESPONSES), dtype=torch.float64)
    losses = []
    expected = []
    for epoch, numbers in enumerate(random_numbers(setting)):
        if setting.resets_before(epoch):
            reference.load_state_dict(policy.state_dict())
            reset_optimizer(optimizer, setting.optimizer_reset, setting.optimizer_reset_alpha)
        with torch.no_grad():
            logps = policy(prompts)
            tokens = sample(logps, numbers)
            old = of_tokens(logps, tokens)
            anchor = of_tokens(reference(prompts), tokens) if setting.anchor == "reference" else old
        rewards = rewards_of(tokens, setting.reward)
        advantages = estimate(rewards.flatten(), RESPONSES, setting.delta).view(len(PROMPTS), RESPONSES)
        if log is not None:
            log.writelines(log_lines(epoch, *(values.numpy() for values in (tokens, old, rewards, advantages))))
        batch = Batch(tokens, advantages, old, anchor, equally)
        total = 0.0
        for _ in range(setting.inner_steps):
            loss = objective(policy(prompts), batch, setting)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        losses.append(total / setting.inner_steps)
        with torch.no_grad():
            expected.append(expected_reward(policy(prompts), table))
    return np.array([losses, expected])
