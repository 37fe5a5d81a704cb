"""
Evaluations during training: rewards and entropy over all rows, and pass@k. Triggers and the best checkpoint read
these; TRL's log has TRL's means over batches.

A reward function's attribute `batch_verifier` is called with `prompts`, `completions` and the rows' columns, and with
`completion_ids`, `environments` and `trainer_state` if it names them. It returns one bool per completion: whether it
is correct.
"""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from accelerate.utils import gather_object
from transformers.trainer_utils import has_length
from trl.trainer.utils import nanstd

from .cli.dropout import own_random_state
from .errors import EvaluationError, InputError
from .guards.rewards import VERIFIERS, guard_reward
from .kl import completion_mask, zero_masked
from .pass_at_k import as_verdict, pass_at_k
from .rollout import RolloutResult, groups_without_signal, weighted_sum
from .run.meter import Means, StageTimer
from .run.record import MetricReader
from .text import last_text


def measure_rewards(
    rewards: torch.Tensor, names: Sequence[str], weights: torch.Tensor, group_size: int, aggregation: str
) -> dict[str, float]:
    """
    Compute TRL's reward metrics from all rewards `(N, F)`, NaN if a function does not apply: standard deviations are
    not means over batches. `aggregation` is TRL's `multi_objective_aggregation`.
    """
    total = weighted_sum(rewards, weights)
    measured = {"reward": total.nanmean(), "reward_std": nanstd(total)}
    for name, column in zip(names, rewards.unbind(dim=1), strict=True):
        measured[f"rewards/{name}/mean"] = column.nanmean()
        measured[f"rewards/{name}/std"] = nanstd(column)
    if group_size > 1:
        constant = groups_without_signal(rewards, group_size, weights, aggregation)
        measured["frac_reward_zero_std"] = constant.float().mean()
    return {name: value.item() for name, value in measured.items()}


def pass_k_values(n: int) -> list[int]:
    return [1 << power for power in range(n.bit_length())]


def measure_pass_at_k(correct: Sequence[bool], tasks: Sequence[str | None], n: int) -> dict[str, float]:
    """
    Compute mean pass@k over prompts for k = 1, 2, 4 … `n`, and per task if there are several. `correct` and `tasks`:
    per completion, `n` per prompt.
    """
    if not correct:
        return {}
    counts = [sum(correct[first : first + n]) for first in range(0, len(correct), n)]
    measured = _mean_pass_at_k(counts, n)
    names = sorted({task for task in tasks if task is not None})
    if len(names) > 1:
        for name in names:
            counts_of_task = [count for count, task in zip(counts, tasks[::n], strict=True) if task == name]
            measured |= _mean_pass_at_k(counts_of_task, n, suffix=f"/{name}")
    return measured


def _mean_pass_at_k(counts: Sequence[int], n: int, suffix: str = "") -> dict[str, float]:
    means = {k: sum(pass_at_k(n, count, k) for count in counts) / len(counts) for k in pass_k_values(n)}
    return {f"pass@{k}{suffix}": mean for k, mean in means.items()}


# Verdicts.


def find_verifier(functions: Iterable[Any], verify: Callable | None = None) -> Callable | None:
    """
    Return a `batch_verifier`: that of the reward functions, unless `verify(completion, row)` takes its place. Raises
    `InputError`: several functions have one, and their order would choose.
    """
    if verify is not None:
        return verify_each(verify)
    verifiers = []
    for function in functions:
        verifier = next((getattr(function, name) for name in VERIFIERS if hasattr(function, name)), None)
        if verifier is not None and verifier not in verifiers:
            verifiers.append(verifier)
    if len(verifiers) > 1:
        raise InputError(
            f"{len(verifiers)} reward functions have a batch_verifier of their own. Remove all but one, or give the "
            "trainer verify=is_correct."
        )
    return verifiers[0] if verifiers else None


def verify_each(verify: Callable) -> Callable:
    """Make a `batch_verifier` from `verify(completion, row) -> bool`."""

    def batch_verifier(prompts: list, completions: list, **columns: list) -> list[bool]:
        verdicts = []
        for place, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
            text = completion if isinstance(completion, str) else last_text(completion)
            row = {name: values[place] for name, values in columns.items()}
            verdicts.append(verify(text, {"prompt": prompt, **row}))
        return verdicts

    return batch_verifier


def beside_rows(trainer, completion_ids: list[list[int]]) -> dict[str, Any]:
    """Return what TRL passes to reward functions beside the rows' columns, without its functions that log."""
    more = {"completion_ids": completion_ids, "trainer_state": trainer.state}
    if trainer.environments is not None:
        more["environments"] = trainer.environments
    return more


class Verdicts:
    """Calls a `batch_verifier`, with a time limit in seconds per batch. Without one there are no verdicts."""

    def __init__(self, verifier: Callable | None, seconds: float | None):
        self.verify = None
        if verifier is not None:
            self.name = getattr(verifier, "__qualname__", VERIFIERS[0])
            self.parameters = inspect.signature(verifier).parameters
            self.verify = guard_reward(verifier, self.name, seconds, "stop")

    def judge(self, examples: list[Mapping], prompts: list, completions: list, more: Mapping[str, Any]) -> list[bool]:
        """
        Judge this process's completions; returns all processes' verdicts. `more`: [`beside_rows`]. Raises
        [`RewardError`]: the verifier fails, exceeds its time, or returns no bools.
        """
        if self.verify is None:
            return []
        keys = [key for key in examples[0] if key not in ("prompt", "completion", "completion_ids")]
        columns = {key: [example[key] for example in examples] for key in keys}
        columns |= {name: value for name, value in more.items() if name in self.parameters}
        verdicts = self.verify(prompts=prompts, completions=completions, **columns)
        return gather_object([as_verdict(verdict, self.name) for verdict in verdicts])


class EvaluationMixin:
    """The part of [`ProRLTrainer`] for evaluations, in their order."""

    _evaluated: list[RolloutResult]  # by batch
    _entropies: list[torch.Tensor]  # by batch, (2, N): sum over the tokens of each completion, and their number

    @property
    def _evaluates_as_trl(self) -> bool:
        """Whether evaluations use the training's random numbers."""
        return self.args.is_trl and not self.resets.possible

    def _evaluate(self, *args, skip_scheduler=False, **kwargs):
        """Write the evaluation's row, and check the metrics that triggers watch."""
        # `eval_on_start`, the only caller that skips the scheduler, evaluates at each `train`; a resume has done it.
        if skip_scheduler and self._resume is not None:
            return {}
        timer = StageTimer(self.accelerator.device)
        with timer.stage("eval"):
            metrics = super()._evaluate(*args, skip_scheduler=skip_scheduler, **kwargs)
        for callback in self.resets.callbacks:
            for name in callback.metrics():
                if name not in metrics:
                    names = ", ".join(sorted(metrics))
                    raise EvaluationError(f"ref_reset_metric={name!r} is not a metric of the evaluation: {names}.")
        self.recorder.write_evaluation(self.state.global_step, metrics, timer.seconds["eval"])
        return metrics

    def evaluate(self, *args, **kwargs):
        """Evaluate with separate random numbers: the number of evaluations must not change the training."""
        with nullcontext() if self._evaluates_as_trl else own_random_state():
            return super().evaluate(*args, **kwargs)

    def evaluation_loop(self, dataloader, *args, metric_key_prefix="eval", **kwargs):
        """Add TRL's metrics, with rewards and entropy over all rows, pass@k, and the share of training prompts."""
        self._evaluated = []
        self._entropies = []
        trl_metrics = MetricReader(self._metrics["eval"])
        trl_metrics.read(Means())  # of a `predict`, which logs nothing
        output = super().evaluation_loop(dataloader, *args, metric_key_prefix=metric_key_prefix, **kwargs)
        means = Means()
        trl_metrics.read(means)
        measured = means.values_by_name() | self._measure_evaluation(dataloader.dataset)
        share = self.share_in_training(dataloader.dataset)
        if share:
            measured["in_training"] = share
        named = {f"{metric_key_prefix}_{name}": value for name, value in measured.items() if not math.isnan(value)}
        output.metrics.update(named)
        return output

    def _sample_evaluated(self, inputs) -> dict[str, torch.Tensor]:
        batch, result = self._sample_as_trl(inputs)
        self._evaluated.append(result)
        return batch

    def _record_evaluated(self, inputs, entropies: torch.Tensor) -> None:
        mask = completion_mask(inputs)
        sums = (zero_masked(entropies, mask) * mask).sum(dim=1)
        self._entropies.append(torch.stack([self.accelerator.gather(sums), self.accelerator.gather(mask.sum(dim=1))]))

    def _measure_evaluation(self, dataset) -> dict[str, float]:
        group_size = self.num_generations_eval
        # With several processes the last batch is filled with prompts from the beginning, which must not count twice.
        end = len(dataset) * group_size if has_length(dataset) else None
        correct = [verdict for result in self._evaluated for verdict in result.correct][:end]
        tasks = [task for result in self._evaluated for task in result.tasks][:end]
        measured = {}
        if self._evaluated:
            rewards = torch.cat([result.rewards.cpu() for result in self._evaluated])[:end]
            measured = measure_rewards(
                rewards, self.reward_func_names, self.reward_weights, group_size, self.multi_objective_aggregation
            )
        if self._entropies:  # a subclass may have a loss of its own
            sums, tokens = torch.cat(self._entropies, dim=1)[:, :end].double().sum(dim=1).tolist()
            if tokens:
                measured["entropy"] = sums / tokens
        return measured | measure_pass_at_k(correct, tasks, group_size)

    def _determine_best_metric(self, metrics, trial):
        """Pass an evaluation to the parts once the best one is known; one may stop the run, with a checkpoint."""
        is_best = super()._determine_best_metric(metrics, trial)
        if is_best and self.args.stop_stall:  # it keeps the best checkpoint, also between `save_steps`
            self.control.should_save = True
        best = {"checkpoint": f"checkpoint-{self.state.best_global_step}", "best": self.state.best_metric}
        for part in self.parts.values():
            event = part.on_evaluation(self.state.global_step, metrics)
            if event is not None:
                self._event({**event, **best})
                self._stop(event)
        return is_best or self.control.should_save  # with `save_strategy: best` whether to save
