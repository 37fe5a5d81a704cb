"""
Evaluations during training: metrics over all rows, and pass@k.

A reward function's attribute `batch_verifier` is called with `prompts`, `completions` and the rows' columns, and with
`completion_ids`, `environments` and `trainer_state` if it names them. It returns one bool per completion: whether it
is correct.
"""

import inspect
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from accelerate.utils import broadcast_object_list, gather_object
from transformers.trainer_utils import has_length
from trl.trainer.utils import nanstd

from .cli.dropout import own_random_state
from .errors import EvaluationError, InputError, RewardError
from .guards.rewards import VERIFIERS, guard_reward
from .kl import completion_mask, zero_masked
from .parts import MicroBatch
from .pass_at_k import as_verdict, pass_at_k
from .rollout import EQUAL_GROUPS, RolloutResult, groups_without_signal, weighted_sum
from .run.meter import Means, StageTimer
from .run.record import token_means
from .supported import TOKEN_LOSSES
from .text import last_text


def count_rows(dataset: Any, n: int) -> int | None:
    """
    Count completions, `n` per prompt; `None` without a length. With several processes the last batch is filled with
    prompts from the beginning, which must not count twice.
    """
    return len(dataset) * n if has_length(dataset) else None


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


def find_verifier(functions: Iterable[Any]) -> Callable | None:
    """Return the verifier of reward functions. Raises `InputError`: several, and their order would choose one."""
    verifiers = []
    for function in functions:
        candidates = [getattr(function, name, None) for name in VERIFIERS]
        verifier = next(filter(callable, candidates), None)
        if verifier is not None and verifier not in verifiers:
            verifiers.append(verifier)
    if len(verifiers) > 1:
        raise InputError(
            f"{len(verifiers)} reward functions have a batch_verifier of their own. Remove all but one, or give the "
            "trainer verify=is_correct."
        )
    return verifiers[0] if verifiers else None


class OneByOne:
    """Wraps `verify(completion, row) -> bool` as a `batch_verifier`."""

    def __init__(self, verify: Callable):
        self.verify = verify

    def batch_verifier(self, prompts: list, completions: list, **columns: list) -> list[bool]:
        verdicts = []
        for place, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
            text = completion if isinstance(completion, str) else last_text(completion)
            row = {name: values[place] for name, values in columns.items()}
            verdicts.append(self.verify(text, {"prompt": prompt, **row}))
        return verdicts


def judges(verify: Callable | None, functions: Iterable[Any]) -> list:
    """Return the objects that may have a `batch_verifier`: the reward functions, unless `verify` takes their place."""
    return [*functions] if verify is None else [OneByOne(verify)]


def beside_rows(trainer, completion_ids: list[list[int]]) -> dict[str, Any]:
    """Return what TRL passes to reward functions beside the rows' columns, without its functions that log."""
    more = {"completion_ids": completion_ids, "trainer_state": trainer.state}
    if trainer.environments is not None:
        more["environments"] = trainer.environments
    return more


def named_by(function: Callable) -> Collection[str]:
    """Return the names of a function's parameters; none if it does not tell them, as a compiled one may not."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return ()


def pass_k_values(n: int) -> list[int]:
    return [1 << power for power in range(n.bit_length())]


def measure_pass_at_k(correct: Sequence[bool], tasks: Sequence[str | None], n: int) -> dict[str, float]:
    """
    Compute mean pass@k over prompts for k = 1, 2, 4 … `n`, and per task if there are several. `correct` and `tasks`:
    per completion, `n` per prompt.
    """
    counts = [sum(correct[first : first + n]) for first in range(0, len(correct), n)]
    measured = _mean_pass_at_k(counts, n)
    known = sorted({task for task in tasks if task is not None})
    if len(known) > 1:
        task_of_prompt = tasks[::n]
        for task in known:
            of_task = [count for count, its_task in zip(counts, task_of_prompt, strict=True) if its_task == task]
            measured |= _mean_pass_at_k(of_task, n, suffix=f"/{task}")
    return measured


def _mean_pass_at_k(counts: Sequence[int], n: int, suffix: str = "") -> dict[str, float]:
    if not counts:
        return {}
    means = {k: sum(pass_at_k(n, count, k) for count in counts) / len(counts) for k in pass_k_values(n)}
    return {f"pass@{k}{suffix}": mean for k, mean in means.items()}


class Verdicts:
    """
    Gathers an evaluation's verdicts; none without a `batch_verifier`. `n`: completions per prompt; `seconds`: the
    verifier's time limit per batch.
    """

    def __init__(self, functions: Iterable[Any], n: int, seconds: float | None):
        self.n = n
        verifier = find_verifier(functions)
        self.name = getattr(verifier, "__qualname__", "batch_verifier")
        self._verify = None
        if verifier is not None:
            self._verify = guard_reward(verifier, self.name, seconds, "stop")
            self._names = named_by(verifier)
        self.begin()

    def begin(self) -> None:
        self._correct: list[bool] = []
        self._tasks: list[str | None] = []

    def judge(self, examples: list[Mapping], prompts: list, completions: list, more: Mapping[str, Any]) -> list[bool]:
        """
        Judge this process's completions; returns all processes' verdicts. `more`: [`beside_rows`]. Raises
        [`RewardError`]: the verifier fails, exceeds its time, or returns no bools.
        """
        if self._verify is None:
            return []
        keys = [key for key in examples[0] if key not in ("prompt", "completion", "completion_ids")]
        columns = {key: [example[key] for example in examples] for key in keys}
        columns |= {name: value for name, value in more.items() if name in self._names}
        verdicts = self._verify(prompts=prompts, completions=completions, **columns)
        return gather_object([as_verdict(verdict, self.name) for verdict in verdicts])

    def add(self, correct: list[bool], tasks: list[str | None]) -> None:
        self._correct += correct
        self._tasks += tasks

    def measure_set(self, rows: Any, prefix: str) -> dict[str, float]:
        if self._verify is None:
            return {}
        end = count_rows(rows, self.n)
        measured = measure_pass_at_k(self._correct[:end], self._tasks[:end], self.n)
        return {f"{prefix}_{name}": value for name, value in measured.items()}


class EvaluatedRows:
    """
    Computes an evaluation's metrics over all rows.

    With several processes the last batch may be filled with prompts from the beginning. Rewards, entropy and KL
    exclude them; TRL's own metrics and the loss, means over batches, include them.
    """

    def __init__(self, names: Sequence[str], weights: torch.Tensor, aggregation: str):
        self.names = names
        self.weights = weights
        self.aggregation = aggregation
        self.begin()

    def begin(self) -> None:
        self.means = Means()
        self._rewards: list[torch.Tensor] = []  # (N, F) of each batch
        self._sums: dict[str, list[torch.Tensor]] = defaultdict(list)  # over the tokens of each row
        self._tokens: list[torch.Tensor] = []  # per row

    def add_samples(self, result: RolloutResult) -> None:
        self._rewards.append(result.rewards.detach().cpu().float())
        self.means.merge(result.means(result.trl_metrics))

    def add_losses(
        self, trl_metrics: Mapping[str, float], tokens: torch.Tensor, sums: Mapping[str, torch.Tensor], level: str
    ) -> None:
        """Add TRL's metrics of a batch, and token counts and sums by row."""
        self._tokens.append(tokens)
        for name, row_sums in sums.items():
            self._sums[name].append(row_sums)
        names = token_means(level)
        for name, value in trl_metrics.items():
            weight = tokens.sum().item() if name in names else len(tokens)
            if weight:
                self.means.add(name, value, weight)

    def metrics(self, rows: int | None, group_size: int) -> dict[str, float]:
        metrics = self.means.values_by_name()
        if self.means.is_plain("loss"):
            del metrics["loss"]  # Trainer's excludes rows that fill up a batch
        if self._rewards:
            rewards = torch.cat(self._rewards)[:rows]
            metrics.pop(EQUAL_GROUPS, None)
            metrics |= measure_rewards(rewards, self.names, self.weights, group_size, self.aggregation)
        if self._tokens:
            tokens = torch.cat(self._tokens)[:rows].sum().item()
            for name, of_rows in self._sums.items():
                if tokens:
                    metrics[name] = torch.cat(of_rows)[:rows].double().sum().item() / tokens
        return {name: value for name, value in metrics.items() if not math.isnan(value)}


class EvaluationMixin:
    """The part of [`ProRLTrainer`] for evaluations, in their order."""

    @property
    def _evaluates_as_trl(self) -> bool:
        """Whether evaluations use the training's random numbers."""
        return self.args.is_trl and not self.resets.possible

    def evaluate(self, *args, **kwargs):
        """Evaluate with separate random numbers: the number of evaluations must not change the training."""
        with nullcontext() if self._evaluates_as_trl else own_random_state():
            try:
                return super().evaluate(*args, **kwargs)
            except RewardError as error:
                # Its cause keeps the relevant frames.
                raise error.with_traceback(None)  # noqa: B904

    def evaluation_loop(self, dataloader, *args, metric_key_prefix="eval", **kwargs):
        """Add pass@k, the share of training prompts, and metrics over all rows instead of means over batches."""
        self.verdicts.begin()
        self.evaluated.begin()
        output = super().evaluation_loop(dataloader, *args, metric_key_prefix=metric_key_prefix, **kwargs)
        self.trl_metrics["eval"].read(self.evaluated.means)  # a subclass's
        output.metrics.update(self.verdicts.measure_set(dataloader.dataset, metric_key_prefix))
        share = self.share_in_training(dataloader.dataset)
        if share:
            output.metrics[f"{metric_key_prefix}_in_training"] = share
        rows = count_rows(dataloader.dataset, self.num_generations_eval)
        measured = self.evaluated.metrics(rows, self.num_generations_eval)
        output.metrics.update({f"{metric_key_prefix}_{name}": value for name, value in measured.items()})
        return output

    def _evaluate(self, *args, skip_scheduler=False, **kwargs):
        """Write the evaluation's row, and check the watched metrics."""
        # `eval_on_start`, the only caller that skips the scheduler, evaluates at each `train`; a resume has done it.
        if skip_scheduler and self._resume is not None:
            return {}
        timer = StageTimer(self.accelerator.device)
        with timer.stage("eval"):
            metrics = super()._evaluate(*args, skip_scheduler=skip_scheduler, **kwargs)
        watched = {name: "ref_reset_metric" for callback in self.resets.callbacks for name in callback.metrics()}
        best = self.args.metric_for_best_model
        if best is not None:
            key = "ref_reset_metric" if self.args.stop_stall else "metric_for_best_model"
            watched[f"eval_{best.removeprefix('eval_')}"] = key
        for name, key in watched.items():
            if name not in metrics:
                known = ", ".join(sorted(metrics))
                raise EvaluationError(f"{key}={name!r} is not a metric of the evaluation; it has: {known}.")
        self.recorder.evaluation(self.state.global_step, metrics, timer.seconds["eval"])
        return metrics

    def _determine_best_metric(self, metrics, trial):
        """Add `stop_stall`, and keep a save that was requested before."""
        # Trainer calls this after each evaluation except `eval_on_start`. `save_strategy: best` saves if it returns
        # true, also for an earlier stop's request.
        stop = self.stall_stop
        if stop is None:
            return super()._determine_best_metric(metrics, trial) or self.control.should_save
        (metrics,) = broadcast_object_list([metrics])  # all processes stop, or none
        if stop.watch.best is None:  # first evaluation, or a new key
            if self.state.best_model_checkpoint is None:
                self.state.best_metric = None
            stop.watch.best = self.state.best_metric
        saves = super()._determine_best_metric(metrics, trial) or self.control.should_save
        event = stop.fire(self.state.global_step, metrics)
        if event is not None:
            self.parts["end"].ended_by = event["event"]
            saves = True
            self.control.should_training_stop = True
            best = {"checkpoint": f"checkpoint-{self.state.best_global_step}", "best": self.state.best_metric}
            self._event({**event, **best})
        self.control.should_save = saves
        return saves  # for `save_strategy: best`

    def _sample_evaluated(self, inputs) -> dict[str, torch.Tensor]:
        batch, result = self._sample_as_trl(inputs)
        self.evaluated.add_samples(result)
        return batch

    def _record_evaluated(self, micro_batch: MicroBatch) -> None:
        batch = micro_batch.batch
        mask = completion_mask(batch)
        sums = {"entropy": (zero_masked(micro_batch.entropies, mask) * mask).sum(dim=1)}
        primary = self.anchors.primary
        if self.args.adds_penalty and primary is not None and primary.name in micro_batch.kls:
            sums["kl"] = (micro_batch.kls[primary.name].detach() * mask).sum(dim=1)
        tokens = self.accelerator.gather(mask.sum(dim=1))
        row_sums = {name: self.accelerator.gather(values) for name, values in sums.items()}
        trl_metrics = {name: value for name, value in micro_batch.trl_metrics.items() if name not in sums}
        self.evaluated.add_losses(trl_metrics, tokens, row_sums, self.importance_sampling_level)
        weight = tokens.sum().item() if self.loss_type in TOKEN_LOSSES else len(tokens)
        loss = self.accelerator.gather(micro_batch.loss.detach()).mean().item()
        self.evaluated.means.add("loss", loss, weight)
