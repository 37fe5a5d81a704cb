"""Prompts in tokens, samples and log-probabilities of a trainer, ours or TRL's."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch

from trl_prorl.evaluation import Verdicts, beside_rows, find_verifier
from trl_prorl.rollout import compared_rewards, weighted_sum


SAMPLING = "_generate_and_score_completions"  # TRL's method


@dataclass(frozen=True)
class SampledRows:
    """
    Completions of rows that are looked at, and not trained on: G for each, row by row; N in all.

    Attributes:
        completions (`list`): As reward functions get them: texts, or lists of messages.
        lengths (`list[int]`): Tokens that the model has sampled: without those of tools and environments.
        truncated (`list[bool]`): Whether each was truncated at the greatest length instead of ending.
        rewards (`torch.Tensor` of shape `(N, F)`): By reward function; NaN if it does not apply.
        total (`torch.Tensor` of shape `(N,)`): Their weighted sum; NaN if none applies.
        compared (`torch.Tensor` of shape `(N,)`): What `multi_objective_aggregation` compares within a group.
        correct (`list[bool]`): The verifier's verdicts; empty without a verifier.
        batch (`dict[str, torch.Tensor]`): As a step would train on it.
    """

    completions: list
    lengths: list[int]
    truncated: list[bool]
    rewards: torch.Tensor
    total: torch.Tensor
    compared: torch.Tensor
    correct: list[bool]
    batch: dict[str, torch.Tensor]


def tokenize_prompts(trainer, prompts: list) -> list[list[int]]:
    """Turn the training set's prompts into token ids, with the chat template and the tools of their environments."""
    if trainer.environment_factories is not None:
        names = trainer.train_dataset["environment"] if trainer._multi_environment else [None] * len(prompts)
        trainer._batch_environments = list(names)  # TRL looks there for each prompt's tools
    return trainer._tokenize_prompts(prompts)[0]


def takes_images(trainer) -> bool:
    """Return whether the trainer's model reads images beside text."""
    return trainer._is_vlm


def watch(owner, name: str, see: Callable) -> None:
    """Call `see(call, *args)` in place of a method of an object; `call` is the method."""
    setattr(owner, name, partial(see, getattr(owner, name)))


def sampled_columns(trainer, rows: Sequence[dict]) -> list[dict]:
    """Return rows of the training set with the columns that a step has, see `remove_unused_columns`."""
    if not trainer.args.remove_unused_columns:
        return list(rows)
    trainer._set_signature_columns_if_needed()
    return [{name: row[name] for name in row if name in trainer._signature_columns} for row in rows]


@contextmanager
def sampled_by(trainer, sample: Callable) -> Iterator[None]:
    """Context in which `sample(prompt_ids, …)` returns completions (token ids) and `None` in place of the policy."""
    own = vars(trainer).get("_generate_single_turn")
    trainer._generate_single_turn = sample
    try:
        yield
    finally:
        del trainer._generate_single_turn
        if own is not None:
            trainer._generate_single_turn = own


@torch.no_grad()
def sample_rows(trainer, rows: Sequence[dict], verify: Callable | None = None) -> SampledRows:
    """
    Sample and reward rows of the training set as a step does, `num_generations` completions each. Own rewards see the
    step that is done last; `verify(completion, row) -> bool` decides which completions are correct, or else the
    `batch_verifier` of a reward function.
    """
    seen = []
    masks = []

    def see(call, inputs, prompts, completions, ids):
        rewards = call(inputs, prompts, completions, ids)
        seen[:] = rewards, inputs, prompts, completions, [[*map(int, tokens)] for tokens in ids]
        return rewards

    def see_masks(call, prompts):
        generated = call(prompts)
        masks[:] = generated[2] or []
        return generated

    trainer.model.train()  # rollouts of a step are drawn so
    # Own copies: an environment may change its row's lists.
    inputs = [copy.deepcopy(row) for row in sampled_columns(trainer, rows) for _ in range(trainer.num_generations)]
    watch(trainer, "_calculate_rewards", see)
    watch(trainer, "_generate", see_masks)
    try:
        if hasattr(trainer, "_sample"):  # ours, without the resets that are due before a step's batch
            batch, _ = trainer._sample(inputs)
        else:
            batch = trainer._generate_and_score_completions(inputs)
    finally:
        del trainer._calculate_rewards
        del trainer._generate
    rewards, inputs, prompts, completions, ids = seen
    verdicts = Verdicts(find_verifier(trainer.reward_funcs, verify), None)
    weights = trainer.reward_weights
    aggregation = trainer.args.multi_objective_aggregation
    ends = {*trainer.eos_token_ids, trainer._tokenizer.pad_token_id}
    return SampledRows(
        completions=completions,
        lengths=[int(sum(mask)) for mask in masks] or [len(tokens) for tokens in ids],
        truncated=[not tokens or tokens[-1] not in ends for tokens in ids],
        rewards=rewards.cpu(),
        total=weighted_sum(rewards, weights).cpu(),
        compared=compared_rewards(rewards, trainer.num_generations, weights, aggregation).cpu(),
        correct=verdicts.judge(inputs, prompts, completions, beside_rows(trainer, ids)),
        batch=batch,
    )


@torch.no_grad()
def policy_logps(trainer, batch: dict[str, torch.Tensor]) -> torch.Tensor | None:
    """Score sampled tokens by the policy as it now is, without dropout; `(N, T)`, or `None` for images."""
    if "pixel_values" in batch:
        return None
    trainer.model.eval()
    tokens = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    length = batch["completion_ids"].shape[1]
    size = trainer.args.per_device_train_batch_size
    return score_rows(trainer, tokens, mask, length, batch_size=size)[0]


def score_rows(trainer, ids: torch.Tensor, mask: torch.Tensor, length: int, **options) -> tuple:
    """Score rows by the policy, as a step does: log-probabilities and entropies `(N, T)`, and a MoE's loss."""
    return trainer._get_per_token_logps_and_entropies(trainer.model, ids, mask, length, **options)
