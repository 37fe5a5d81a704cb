"""
The toy in NumPy alone: rewards, advantages, the loss and its gradient by hand. Clipping, Adam and resets are the work
of the engine in `docs/examples/numpy_engine`, which reads and writes the exchange files.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from .exchange import EngineAdam
from .problem import (
    EVERY_RESPONSE,
    NUMBERS,
    PROMPTS,
    RESPONSES,
    Batch,
    Setting,
    initial_weights,
    random_numbers,
)


STD_EPSILON = 1e-4  # added to the standard deviation of a group
ROUNDING = 1e-6  # relative: rewards that are closer are equal


def forward(weights: dict[str, np.ndarray], prompts: np.ndarray) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """
    The model.

    Args:
        weights (`dict[str, np.ndarray]`):
            As [`initial_weights`] makes them.
        prompts (`np.ndarray` of shape `(P, T)`):
            The prompts.

    Returns:
        Log-probabilities of shape `(P, T, number)`, and whatever `backward` needs: the embedded prompts, the hidden
            state and the outputs before the embedding.
    """
    embedded = weights["embedding"][prompts]
    hidden = np.einsum("pie,ieh->ph", embedded, weights["encode"])
    output = np.einsum("ph,jhe->pje", hidden, weights["decode"])
    logits = output @ weights["embedding"].T
    logits = logits - logits.max(axis=-1, keepdims=True)
    logps = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    return logps, (embedded, hidden, output)


def backward(
    weights: dict[str, np.ndarray],
    prompts: np.ndarray,
    logps: np.ndarray,
    activations: tuple[np.ndarray, ...],
    on_logps: np.ndarray,
) -> dict[str, np.ndarray]:
    """
    The gradient in the weights, from that in the log-probabilities: the chain rule from the last line of `forward` to
    its first.

    Args:
        weights (`dict[str, np.ndarray]`), prompts (`np.ndarray` of shape `(P, T)`):
            As given to `forward`.
        logps (`np.ndarray` of shape `(P, T, number)`), activations (`tuple[np.ndarray, ...]`):
            As returned by it.
        on_logps (`np.ndarray` of shape `(P, T, number)`):
            The derivative of the loss in every log-probability.
    """
    embedded, hidden, output = activations
    # A softmax: raising one logit lowers every other log-probability.
    on_logits = on_logps - np.exp(logps) * on_logps.sum(axis=-1, keepdims=True)
    on_output = on_logits @ weights["embedding"]
    on_hidden = np.einsum("pje,jhe->ph", on_output, weights["decode"])
    on_embedded = np.einsum("ph,ieh->pie", on_hidden, weights["encode"])
    on_embedding = np.einsum("pjn,pje->ne", on_logits, output)  # as the output layer
    np.add.at(on_embedding, prompts, on_embedded)  # and as the input layer
    return {
        "embedding": on_embedding,
        "encode": np.einsum("pie,ph->ieh", embedded, on_hidden),
        "decode": np.einsum("ph,pje->jhe", hidden, on_output),
    }


def of_tokens(logps: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """The entries, shape `(P, G, T)`, of log-probabilities of shape `(P, T, number)` that belong to tokens."""
    return np.take_along_axis(logps[:, None], tokens[..., None], axis=-1)[..., 0]


def sample(logps: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Tokens of shape `(P, G, T)`: for each random number the first up to which the probabilities exceed it."""
    ends = np.exp(logps).cumsum(axis=-1)[:, None]
    return (numbers[..., None] >= ends).sum(axis=-1).clip(max=NUMBERS - 1)


def objective(logps: np.ndarray, batch: Batch, setting: Setting) -> tuple[float, np.ndarray]:
    """The loss, and its derivative in every log-probability, shape `(P, T, number)`."""
    chosen = of_tokens(logps, batch.tokens)
    advantages = batch.advantages[..., None]
    ratio = np.exp(chosen - batch.old)
    if setting.loss == "naive":
        per_token = np.broadcast_to(-advantages, chosen.shape)
        slope = np.broadcast_to(-advantages, chosen.shape)
    else:
        per_token = -advantages * ratio
        slope = -advantages * ratio
        if setting.loss == "clipped":
            beyond = np.where(advantages > 0.0, ratio > 1.0 + setting.epsilon, ratio < 1.0 - setting.epsilon)
            bounded = ratio.clip(1.0 - setting.epsilon, 1.0 + setting.epsilon)
            per_token = np.where(beyond, -advantages * bounded, per_token)
            slope = np.where(beyond, 0.0, slope)
    if setting.beta != 0.0:
        log_ratio = chosen - batch.anchor
        k3 = np.exp(-log_ratio) - 1.0 + log_ratio
        k3_slope = 1.0 - np.exp(-log_ratio)
        if setting.bias_correction:
            k3_slope = ratio * (k3 + k3_slope)
            k3 = ratio * k3
        per_token = per_token + setting.beta * k3
        slope = slope + setting.beta * k3_slope
    # Each response counts by its weight, each of its tokens equally.
    share = batch.weights[..., None] / chosen.shape[-1]
    on_logps = np.zeros_like(logps)
    prompt = np.arange(len(logps))[:, None, None]
    position = np.arange(chosen.shape[-1])
    np.add.at(on_logps, (prompt, position, batch.tokens), share * slope)
    return float((share * per_token).sum()), on_logps


def rewards_of(tokens: np.ndarray, prompts: np.ndarray, reward: str) -> np.ndarray:
    """Rewards, shape `(P, G)`, of tokens of shape `(P, G, T)`: the share of the points that a response can have."""
    length = prompts.shape[-1]
    if reward == "distance":
        return (tokens == np.sort(prompts)[:, None]).mean(axis=-1)
    included = (tokens[..., None] == prompts[:, None, None]).any(axis=-2).sum(axis=-1)
    in_order = (np.diff(tokens) >= 0).sum(axis=-1)
    return (included + in_order) / (2 * length - 1)


def advantages_of(rewards: np.ndarray, delta: str) -> np.ndarray:
    """The advantage of each response, shape `(P, G)`, from the rewards of its group."""
    if delta == "raw":
        return rewards
    centered = rewards - rewards.mean(axis=1, keepdims=True)
    least = rewards.min(axis=1, keepdims=True)
    best = rewards.max(axis=1, keepdims=True)
    if delta == "group_normalized":
        size = np.float32(rewards.shape[1])  # TRL has n / (n - 1) in float32, whatever the rewards are
        variance = np.square(centered).mean(axis=1, keepdims=True) * np.float64(size / (size - 1))
        advantages = centered / (np.sqrt(variance) + STD_EPSILON)
    elif delta == "max":
        advantages = np.where(best - rewards <= ROUNDING * best, centered, 0.0)
    else:
        advantages = centered
    return np.where(best - least <= ROUNDING * best, 0.0, advantages)


def expected_reward(logps: np.ndarray, reward: str) -> float:
    """The mean over the prompts of Σ π(response) · reward over all 125 responses."""
    every = np.broadcast_to(EVERY_RESPONSE, (len(PROMPTS), *EVERY_RESPONSE.shape))
    probabilities = np.exp(of_tokens(logps, every).sum(axis=-1))
    return float((probabilities * rewards_of(every, PROMPTS, reward)).sum(axis=-1).mean())


def train(setting: Setting) -> np.ndarray:
    """Return the curves of one run, shape `(2, epochs)`. Its files lie in a folder that is removed at the end."""
    with TemporaryDirectory() as folder:
        optimizer = EngineAdam(initial_weights(setting.seed), setting.learning_rate, Path(folder))
        reference = optimizer.weights
        equally = np.full((len(PROMPTS), RESPONSES), 1.0 / (len(PROMPTS) * RESPONSES))
        losses = []
        expected = []
        for epoch, numbers in enumerate(random_numbers(setting)):
            if setting.resets_before(epoch):
                reference = optimizer.weights
                optimizer.reset(setting.optimizer_reset, setting.optimizer_reset_alpha)
            logps, _ = forward(optimizer.weights, PROMPTS)
            tokens = sample(logps, numbers)
            old = of_tokens(logps, tokens)
            anchor = of_tokens(forward(reference, PROMPTS)[0], tokens) if setting.anchor == "reference" else old
            advantages = advantages_of(rewards_of(tokens, PROMPTS, setting.reward), setting.delta)
            batch = Batch(tokens, advantages, old, anchor, equally)
            total = 0.0
            for _ in range(setting.inner_steps):
                logps, activations = forward(optimizer.weights, PROMPTS)
                loss, on_logps = objective(logps, batch, setting)
                optimizer.step(backward(optimizer.weights, PROMPTS, logps, activations, on_logps))
                total += loss
            losses.append(total / setting.inner_steps)
            expected.append(expected_reward(forward(optimizer.weights, PROMPTS)[0], setting.reward))
        return np.array([losses, expected])
