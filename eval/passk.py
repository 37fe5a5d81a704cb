"""
Measure held-out pass@k of a run, trained model against starting model, on the same prompts.

    trl-prorl passk --run runs/demo/variantA --prompts 256 --n 64 --k 1 8 64 --checkpoints all
    trl-prorl passk --run runs/demo/variantA --prompts 256 --others parity@2 sorting
    trl-prorl passk --model ADAPTER_OR_MODEL --base NAME --task gsm8k --prompts 256

Writes `passk.json`, the samples (`samples/`, parquet) and pictures (`boundary.png`, with checkpoints `trajectory.png`)
into each run folder (of a model without a run: into `--out`), and lists the prompts that are newly solved or lost. No
sample is drawn twice: a stopped evaluation continues, and an existing `passk.json` with the same settings is extended.
Base is the starting model; runs in the same folder share its samples.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pandas as pd
import torch

from trl_prorl.errors import InputError
from trl_prorl.eval.analysis.fitted_rate import rates
from trl_prorl.eval.analysis.sampled_scores import (
    by_task_and_level,
    complete_result,
    gain,
    greedy_side,
    require_same_evaluation,
    summarise_samples,
)
from trl_prorl.eval.analysis.solved_lost import boundary
from trl_prorl.eval.analysis.statistics import MIN_PROMPTS, NO_INTERVAL_NOTE, paired_difference
from trl_prorl.eval.command import command
from trl_prorl.eval.command_lines import check_passk, default_ks, passk, whole_numbers
from trl_prorl.eval.pages.measured import Measured
from trl_prorl.eval.pages.prompt_changes import boundary_statements
from trl_prorl.eval.pages.score_sections import (
    bound_note,
    checkpoint_table,
    parts_table,
    rate_table,
    result_table,
    write_pictures,
)
from trl_prorl.eval.pages.table import terminal
from trl_prorl.eval.run_folder.reading import read_evaluation, write_json, writing
from trl_prorl.eval.samples.model_held_out import ModelHeldOut, as_trainer, default_folder
from trl_prorl.eval.samples.models import checkpoint_points, last_step
from trl_prorl.eval.samples.run_samples import HeldOut, check_run_settings, held_out_tasks
from trl_prorl.eval.samples.task_name import TaskName
from trl_prorl.eval.samples.trainer_held_out import POLICY, TrainerHeldOut
from trl_prorl.run.log_files import PASSK_FILE, SIDES, has_weights_of, read_json
from trl_prorl.tasks.plugin import OWN
from trl_prorl.text import visible


def base_and_trained(
    held_out: HeldOut, args: argparse.Namespace, ks: list[int]
) -> tuple[dict, dict[str, pd.DataFrame]]:
    """
    Sample base and trained model on one task.

    Returns:
        `tuple[dict, dict[str, pd.DataFrame]]`: The part of `passk.json` for this task, and the samples by side.
    """
    points = dict(zip(SIDES, (held_out.base, held_out.trained), strict=True))
    sides = {side: held_out.samples(point, args.n) for side, point in points.items()}
    result = {
        **held_out.settings(n=args.n),
        "k": ks,
        **{side: summarise_samples(samples, ks) for side, samples in sides.items()},
    }
    result["gain"] = {f"pass@{k}": list(gain(result, k)) for k in ks}
    if args.with_greedy:
        greedy = {side: greedy_side(held_out.samples(point, 1, temperature=0.0)) for side, point in points.items()}
        difference = paired_difference(greedy["trained"]["correct"], greedy["base"]["correct"])
        result["greedy"] = {**greedy, "gain": list(difference)}
    return result, sides


def load_earlier_result(held_out: HeldOut, n: int) -> dict | None:
    """Return the run's earlier result, if there is one, for this evaluation to extend."""
    run_dir = held_out.run_dir
    earlier = read_evaluation(run_dir, PASSK_FILE)
    if not earlier:
        return earlier
    if isinstance(held_out, ModelHeldOut) and has_weights_of(earlier, held_out.trained.folder) is False:
        raise InputError(
            f"'{run_dir / PASSK_FILE}' is of other weights than {held_out.trained.folder}; give another folder with "
            "--out DIR, or overwrite it with --replace"
        )
    return require_same_evaluation(earlier, held_out.settings(n=n), run_dir / PASSK_FILE)


def check_is_of(held_out: TrainerHeldOut) -> None:
    """Raise `InputError`: the default folder has the result of another model of the same name."""
    path = held_out.run_dir / PASSK_FILE
    earlier = read_json(path) if path.is_file() else {}
    if earlier.get(POLICY) not in (None, held_out.versions()[POLICY]):
        raise InputError(f"'{path}' is of other weights than this model; give another folder with output_dir=")


def announcement(held_out: HeldOut, args: argparse.Namespace, other_tasks: int = 0) -> str:
    """Return the line that announces an evaluation: models, prompts, and samples of each."""
    models = 2 + len(checkpoint_points(held_out.run_dir, held_out.config, args.checkpoints))
    what = f"{models} models × {len(held_out.rows)} prompts × {args.n} samples"
    if args.with_greedy:
        what += ", plus greedy decoding"
    if other_tasks:
        task_word = "task" if other_tasks == 1 else "tasks"
        what += f", plus {other_tasks} other {task_word} for base and trained"
    return visible(
        f"{held_out.run_dir}: {what}, at most {held_out.sampling.max_new_tokens} tokens each. Samples on disk are "
        "reused."
    )


def evaluate_run(
    held_out: HeldOut, args: argparse.Namespace, others: Mapping[str, HeldOut], earlier: dict | None
) -> dict:
    """
    Evaluate a run: its own task, its checkpoints and other tasks.

    Args:
        held_out ([`HeldOut`]): The run on its own task.
        args (`argparse.Namespace`): Samples per prompt `n`, values of `k`, `with_greedy`, and `checkpoints`: their
            steps, or `all`.
        others (`Mapping[str, HeldOut]`): The run on other tasks, by their names.
        earlier (`dict`, *optional*): An earlier result of the same evaluation, to extend.

    Returns:
        `dict`: The content of `passk.json`.
    """
    ks = sorted({*args.k, *(earlier or {"k": []})["k"]})
    versions = held_out.versions()
    result, sides = base_and_trained(held_out, args, ks)
    trained_step = held_out.trained.step
    result["step"] = trained_step
    result |= versions
    if held_out.name.is_own or held_out.in_training:
        result["in_training"] = held_out.in_training
    result["steps_on_record"] = last_step(held_out.run_dir)  # larger if the best checkpoint was kept
    groups = by_task_and_level(sides, args.n, ks, result["task"])
    if groups:
        result["by"] = groups
    if args.checkpoints:
        points = checkpoint_points(held_out.run_dir, held_out.config, args.checkpoints)
        result["checkpoints"] = [
            {"step": point.step, **summarise_samples(held_out.samples(point, args.n), ks)} for point in points
        ]
        if trained_step is not None:
            result["checkpoints"].append({"step": trained_step, **result["trained"]})
            result["checkpoints"].sort(key=lambda point: point["step"])  # the best one may have been kept
    if others:
        result["others"] = {name: base_and_trained(other, args, ks)[0] for name, other in others.items()}
    held_out.check_unchanged(versions)
    whole = complete_result(earlier, result, versions) if earlier else result
    if whole is None:
        print(
            f"{held_out.run_dir / PASSK_FILE} was measured with other weights, another grader or in another "
            "precision: it is rewritten with the current settings."
        )
    return whole or result


def evaluate_and_write(held_out: HeldOut, args: argparse.Namespace, others: Mapping[str, HeldOut]) -> dict:
    """
    Evaluate a run with [`evaluate_run`], and extend its earlier result or, with `args.replace`, replace it. Another
    command that writes the same file waits. Returns the content of `passk.json`.

    Raises:
        InputError: If the earlier result has other settings.
    """
    path = held_out.run_dir / PASSK_FILE
    with writing(path):
        earlier = None if args.replace else load_earlier_result(held_out, args.n)
        result = evaluate_run(held_out, args, others, earlier)
        write_json(path, result)
    return result


def present(run_dir: Path, result: dict) -> Measured:
    """Draw a result, and return it with its tables and its newly solved and lost prompts."""
    tables = [result_table(run_dir, result).to_rich(narrow=True)]
    by_task = parts_table(result)
    if by_task is not None:
        tables.append(by_task.to_rich(narrow=True))
    fitted = []
    if "checkpoints" in result:
        tables.append(checkpoint_table(result).to_rich())
        fitted = rates(result)
    if fitted:
        tables.append(rate_table([(run_dir.name, rate) for rate in fitted]).to_rich())
    notes = boundary_statements(boundary(result)) + bound_note(result)
    parts = [result, *result.get("by", []), *result.get("others", {}).values()]
    if any(part["prompts"] < MIN_PROMPTS for part in parts):
        notes.append(NO_INTERVAL_NOTE)
    for picture in write_pictures(run_dir, result, fitted):
        print(visible(f"Wrote {picture}."))
    return Measured(result, tables, notes)


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
        [`InputError`]: `rows` have no prompts, or images; `verifier` fails on the first row; an option is out of
            range; or the trainer has several processes, tools, environments or a `rollout_func`.

    Example:

    ```python
    >>> from trl_prorl import evaluate

    >>> rows = task.rows("test", 32)  # rows that were not trained on
    >>> result = evaluate(trainer, rows, task.verify, n=8, k=[1, 8])
    >>> list(result["trained"])
    ['pass@1', 'pass@8', 'interval@1', 'interval@8', 'correct', 'mean_tokens', 'truncated']
    ```
    """
    trainer = trainer_or_model
    if isinstance(trainer_or_model, torch.nn.Module):
        trainer = as_trainer(trainer_or_model, output_dir)
    if verifier is None:
        raise InputError("verifier=None: pass@k needs a verifier; drift(trainer, rows) works without one")
    whole = whole_numbers(n=n, max_new_tokens=max_new_tokens, seed=seed, batch_size=batch_size)
    n = whole.pop("n")
    ks = [whole_numbers(k=size)["k"] for size in ([] if k is None else k)] or default_ks(n)
    args = argparse.Namespace(n=n, k=ks, with_greedy=greedy, checkpoints=[], replace=True)
    sampling = {"temperature": temperature, **whole}
    check_passk(n, ks, None, **sampling)
    held_out = TrainerHeldOut(trainer, rows, verifier, name, **sampling)
    if isinstance(trainer_or_model, torch.nn.Module) and output_dir is None:
        check_is_of(held_out)
    print(announcement(held_out, args), flush=True)
    return present(held_out.run_dir, evaluate_and_write(held_out, args, {}))


def held_out_model(args: argparse.Namespace) -> ModelHeldOut:
    """Return the model of `--model` on the task of `--task`, or on a plugin's rows."""
    name = TaskName(OWN, is_own=True) if args.task is None else TaskName.parse(args.task, "--task")
    return ModelHeldOut(
        args.model,
        args.base,
        name,
        args.out or default_folder(args.model, "--out DIR"),
        args.split,
        args.prompts,
        seed=args.seed,
        batch_size=args.batch_size,
        temperature=args.temperature,
        max_new_tokens=args.max_new_tokens,
    )


@command
def main(argv=None) -> None:
    """Entry point."""
    args = passk(argv)
    if args.model is not None:
        evaluations = [[held_out_model(args)]]
    else:
        for run_dir in args.runs:
            check_run_settings(run_dir, args.checkpoints, args.others)
        evaluations = [held_out_tasks(run_dir, args) for run_dir in args.runs]
    if not args.replace:
        for held_out, *_ in evaluations:
            load_earlier_result(held_out, args.n)  # fails before anything is sampled
    for held_out, *others in evaluations:
        print(announcement(held_out, args, len(others)), flush=True)
    for held_out, *others in evaluations:
        result = evaluate_and_write(held_out, args, dict(zip(args.others, others, strict=True)))
        present(held_out.run_dir, result).print(terminal())


if __name__ == "__main__":
    sys.exit(main())
