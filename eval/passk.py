"""
Measure held-out pass@k of a run, trained model against starting model, on the same prompts.

    trl-prorl passk --run runs/demo/variantA --prompts 256 --n 64 --k 1 8 64 --checkpoints all
    trl-prorl passk --run runs/demo/variantA --prompts 256 --others parity@2 sorting
    trl-prorl passk --model ADAPTER_OR_MODEL --base NAME --task gsm8k --prompts 256

Writes `passk.json`, the samples (`samples/`, parquet) and a picture (`passk.png`) into each run folder (of a model
without a run: into `--out`). No sample is drawn twice: a stopped evaluation continues, and one with more samples,
prompts or checkpoints draws the missing ones; `passk.json` has what the last command asked for. Base is the starting
model; runs in the same folder share its samples.
"""

import argparse
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pandas as pd
import torch

from trl_prorl.errors import InputError
from trl_prorl.eval import command_lines
from trl_prorl.eval.analysis.fitted_rate import rates
from trl_prorl.eval.analysis.sampled_scores import by_task_and_level, gain, greedy_side, summarise_samples
from trl_prorl.eval.analysis.statistics import paired_difference
from trl_prorl.eval.pages.score_sections import result_notes, result_tables, write_picture
from trl_prorl.eval.pages.table import Measured, terminal
from trl_prorl.eval.run_folder.reading import write_json
from trl_prorl.eval.samples.held_out import (
    HeldOut,
    check_default_folder,
    held_out_model,
    held_out_tasks,
    judges,
)
from trl_prorl.eval.samples.models import checkpoint_points, last_step
from trl_prorl.eval.samples.trainer_held_out import POLICY, TrainerHeldOut, as_trainer
from trl_prorl.run.log_files import PASSK_FILE, SIDES
from trl_prorl.tasks.plugin import OWN


def base_and_trained(held_out: HeldOut, args: argparse.Namespace) -> tuple[dict, dict[str, pd.DataFrame]]:
    """
    Sample base and trained model on one task.

    Returns:
        `tuple[dict, dict[str, pd.DataFrame]]`: The part of `passk.json` for this task, and the samples by side.
    """
    points = dict(zip(SIDES, (held_out.base, held_out.trained), strict=True))
    sides = {side: held_out.samples(point, args.n) for side, point in points.items()}
    result = {
        **held_out.settings(n=args.n),
        "k": args.k,
        **{side: summarise_samples(samples, args.k) for side, samples in sides.items()},
    }
    result["gain"] = {f"pass@{k}": list(gain(result, k)) for k in args.k}
    if args.with_greedy:
        greedy = {side: greedy_side(held_out.samples(point, 1, temperature=0.0)) for side, point in points.items()}
        difference = paired_difference(greedy["trained"]["correct"], greedy["base"]["correct"])
        result["greedy"] = {**greedy, "gain": list(difference)}
    return result, sides


def evaluate_and_write(held_out: HeldOut, args: argparse.Namespace, others: Mapping[str, HeldOut]) -> dict:
    """
    Evaluate a run on its own task, at its checkpoints and on other tasks; write and return the content of
    `passk.json`.

    Args:
        held_out ([`HeldOut`]): The run on its own task.
        args (`argparse.Namespace`): Samples per prompt `n`, values of `k`, `with_greedy`, and `checkpoints`: their
            steps, or `all`.
        others (`Mapping[str, HeldOut]`): The run on other tasks, by their names.
    """
    if not judges(held_out.task):
        raise InputError(
            "pass@k needs verify(completion, row), by --plugin or the key verify; `drift` works without it"
        )
    points = checkpoint_points(held_out.run_dir, args.checkpoints)
    versions = held_out.versions()
    result, sides = base_and_trained(held_out, args)
    trained_step = held_out.trained.step
    result |= {"step": trained_step, **versions}
    if held_out.name.is_own or held_out.in_training:
        result["in_training"] = held_out.in_training
    result["steps_on_record"] = last_step(held_out.run_dir)  # larger if the best checkpoint was kept
    groups = by_task_and_level(sides, args.n, args.k, result["task"])
    if groups:
        result["by"] = groups
    if args.checkpoints:
        if trained_step is not None:
            points.append(held_out.trained)
        result["checkpoints"] = [
            {"step": point.step, **summarise_samples(held_out.samples(point, args.n), args.k)}
            for point in sorted(points, key=lambda point: point.step)  # the best one may have been kept
        ]
    if others:
        result["others"] = {name: base_and_trained(other, args)[0] for name, other in others.items()}
    held_out.check_unchanged(versions)
    write_json(held_out.run_dir / PASSK_FILE, result)
    return result


def present(run_dir: Path, result: dict) -> Measured:
    """Draw a result, and return it with its tables and notes."""
    fitted = rates(result)
    write_picture(run_dir, result, fitted)
    return Measured(result, result_tables(run_dir, result, fitted), result_notes(result))


def evaluate(
    trainer_or_model,
    rows,
    verifier: Callable,
    *,
    n: int = 16,
    k: Sequence[int] | None = None,
    greedy: bool = True,
    temperature: float | None = None,
    max_new_tokens: int | None = None,
    seed: int = 0,
    batch_size: int = 512,
    name: str = OWN,
    output_dir: str | None = None,
) -> Measured:
    """
    Measure held-out pass@k of the starting model and of the trained one, with 95 % intervals, and store it.

    Call it after training, because it draws random numbers. The starting model (`base`) is the model without its
    adapter, or with the adapter that the run started from. In full fine-tuning the model that the run started from is
    loaded again.

    Args:
        trainer_or_model (`GRPOTrainer`, `PeftModel` or `PreTrainedModel`): TRL's trainer, a subclass or
            [`ProRLTrainer`] that has finished training, in a single process; or a model.
        rows (`datasets.Dataset`): Held-out rows with a `prompt` (chat messages or text) and the columns that
            `verifier` reads. Rows that equal an earlier one are left out.
        verifier (`Callable`): `verifier(completion, row) -> bool`: whether the text `completion` answers `row`
            correctly. It must not raise on any text, and is tried on the first row before anything is sampled.
        n (`int`, *optional*, defaults to `16`): Samples per prompt.
        k (`Sequence[int]`, *optional*): Values of k; by default 1, 4 and 8, up to `n`.
        greedy (`bool`, *optional*, defaults to `True`): Evaluate greedy decoding, too.
        temperature (`float`, *optional*): Sampling temperature; by default the run's.
        max_new_tokens (`int`, *optional*): Maximum number of new tokens; by default the run's `max_completion_length`.
        seed (`int`, *optional*, defaults to `0`): Seed of the sampling.
        batch_size (`int`, *optional*, defaults to `512`): Sequences per call of `generate`.
        name (`str`, *optional*, defaults to `"own"`): Name of the data in tables and files.
        output_dir (`str`, *optional*): Folder of the result of a model; by default `passk/` and the model's name.

    Returns:
        `dict`: The content of `passk.json` in the run folder; `print` and a notebook show it as its table. `base` and
            `trained` contain `pass@K` and `interval@K` for each k, `gain` their difference, and `correct` the number
            of correct samples of each prompt.

    Raises:
        [`InputError`]: `rows` have no prompts, or images; `verifier` fails on the first row; or the trainer has
            several processes, tools, environments or a `rollout_func`.

    Example:

    ```python
    >>> from trl_prorl import evaluate

    >>> rows = task.rows("test", 32)  # rows that were not trained on
    >>> result = evaluate(trainer, rows, task.verify, n=8, k=[1, 8])
    >>> list(result["trained"])
    ['pass@1', 'pass@8', 'interval@1', 'interval@8', 'correct', 'mean_tokens', 'truncated']
    ```
    """
    is_model = isinstance(trainer_or_model, torch.nn.Module)
    trainer = as_trainer(trainer_or_model, output_dir) if is_model else trainer_or_model
    n = operator.index(n)
    ks = command_lines.sizes([operator.index(size) for size in ([] if k is None else k)], n)
    args = argparse.Namespace(n=n, k=ks, with_greedy=greedy, checkpoints=[])
    sampling = {"temperature": temperature, "max_new_tokens": max_new_tokens, "seed": seed, "batch_size": batch_size}
    held_out = TrainerHeldOut(trainer, rows, verifier, name, **sampling)
    if is_model and output_dir is None:
        check_default_folder(held_out, POLICY, "output_dir=")
    return present(held_out.run_dir, evaluate_and_write(held_out, args, {}))


@command_lines.command
def main(argv=None) -> None:
    """Entry point."""
    args = command_lines.passk(argv)
    evaluations = [held_out_tasks(run_dir, args) for run_dir in args.runs] or [[held_out_model(args)]]
    for held_out, *others in evaluations:
        result = evaluate_and_write(held_out, args, dict(zip(args.others, others, strict=True)))
        present(held_out.run_dir, result).print(terminal())


if __name__ == "__main__":
    sys.exit(main())
