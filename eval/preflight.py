"""
Before a run: can it learn, will it fit, how long will it take?

    trl-prorl preflight --config RECIPE.yaml [--prompts 32] [--json FILE] [--KEY VALUE ...]

Refuses what the run would refuse (exit code 2), asks verifier and reward about answers that are known to be right and
wrong, samples the base with the run's own sampler, and does the first optimizer steps in a folder that is thrown away.
Exit code 0: the run can learn; 1: it cannot, because no group had a signal, every completion was cut and left out of
the loss (`mask_truncated_completions`), no gold answer verifies, the first updates destroy the policy, or the run
stops in its first steps. Nothing is written but `--json`.
With a trainer of your own, call [`preflight`].
"""

import functools
import os
import random
import sys
import tempfile
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import torch
from accelerate.utils import is_peft_model
from datasets import Dataset
from rich.console import Console
from transformers import PrinterCallback, ProgressCallback
from transformers.trainer_utils import SaveStrategy

from trl_prorl.ending import NOTHING_CHANGED, as_bad_input
from trl_prorl.errors import InputError, RunError
from trl_prorl.eval import command_lines
from trl_prorl.eval.command import command
from trl_prorl.eval.command_lines import PROMPTS
from trl_prorl.eval.pages.table import Table
from trl_prorl.eval.readiness.cost import (
    BatchShape,
    cost_findings,
    out_of_memory,
    process_memory,
    process_memory_finding,
)
from trl_prorl.eval.readiness.data import (
    check_gold_answers,
    gold_findings,
    held_out_prompts,
    length_findings,
    split_findings,
    summed_reward,
    text_tokenizer,
)
from trl_prorl.eval.readiness.finding import LOOK, STOP, Finding, exit_code
from trl_prorl.eval.readiness.first_steps import (
    MOST,
    first_steps,
    kl_after_updates,
    kl_finding,
    rate_findings,
    update_findings,
)
from trl_prorl.eval.readiness.memory import generation_findings
from trl_prorl.eval.readiness.signal import Rollouts, sample_base, signal_findings
from trl_prorl.eval.run_folder.reading import write_json
from trl_prorl.eval.samples.sampling import progress
from trl_prorl.launch.checks import check_packages
from trl_prorl.launch.recipe import TaskArguments, parse_recipe
from trl_prorl.text import visible
from trl_prorl.train import build, check_folder
from trl_prorl.trainer import ProRLTrainer


WIDE = 400  # columns; a table takes what it needs


def preflight(
    trainer: ProRLTrainer, task=None, prompts: int = PROMPTS, console: Console | None = None
) -> list[Finding]:
    """
    Check, before a run, whether it can learn, whether it fits into memory, and whether its reward can be hacked.

    It samples prompts of the training set and trains two steps, so the trainer cannot be used afterwards. Create one
    for the preflight alone, with its own `output_dir`.

    Args:
        trainer ([`ProRLTrainer`]): A trainer that was not used yet, in a single process. Correct completions are those
            that the `batch_verifier` of its reward function accepts; without one, those that `task` accepts; without a
            task, those with the full reward of 1 from the first reward function.
        task ([`~trl_prorl.tasks.Task`], *optional*): Provides reference answers. Without a task they are not checked,
            so a wrong reward function looks like a model that solves nothing.
        prompts (`int`, *optional*, defaults to `32`): Number of training prompts to sample.
        console (`rich.console.Console`, *optional*): Prints a line for each stage and step.

    Returns:
        `list[Finding]`: One finding per check: `what`, `number`, `change` (what to change, or empty), `level`
            (`"fine"`, `"look"`: the run can learn, and could do better, or `"stop"`: it cannot learn) and `values`.

    Raises:
        [`InputError`]: The training set is a stream, or there are several processes.

    Example:

    ```python
    >>> from trl_prorl import ProRLConfig, ProRLTrainer, embedded_model, preflight, task_reward

    >>> args = ProRLConfig("runs/preflight", learning_rate=5e-4, num_generations=4, bf16=False, report_to="none")
    >>> trial = ProRLTrainer(embedded_model(), task_reward(task), args, task.rows("train", 64))
    >>> findings = preflight(trial, task, prompts=8)
    >>> changes = {finding.what: finding.change for finding in findings if finding.level != "fine"}
    ```
    """
    check_trainer(trainer)
    available = len(trainer.train_dataset)
    # At random: evenly spaced rows of a mixture could be of one task.
    places = random.Random(trainer.args.seed).sample(range(available), min(prompts, available))
    rows = [trainer.train_dataset[place] for place in places]
    tell(console, f"gold answers, splits and lengths of {available} prompts")
    data = look_at_data(trainer, rows, task)
    if exit_code(data.findings):
        return data.findings  # nothing that a model does could be judged
    return data.findings + look_at_model(trainer, rows, task, data, console)


def tell(console: Console | None, line: str) -> None:
    """Print a line of progress, if there is a console."""
    if console is not None:
        console.print(f"preflight: {line}", markup=False, highlight=False, soft_wrap=True)


def check_trainer(trainer: ProRLTrainer) -> None:
    """
    Refuse a trainer that cannot be looked at.

    Raises:
        InputError: There is no data set whose prompts can be looked at twice, or there are several processes.
    """
    if not isinstance(trainer.train_dataset, Dataset):
        raise InputError("train_dataset is a stream, whose prompts cannot be looked at twice; give it a Dataset")
    if "prompt" not in trainer.train_dataset.column_names:
        raise InputError("train_dataset has no column 'prompt': what an environment writes cannot be looked at before")
    check_processes(trainer.accelerator.num_processes)


@dataclass(frozen=True)
class DataFindings:
    """
    What the data say before any model is used.

    Attributes:
        findings (`list[Finding]`): The findings.
        longest_prompt (`int`): Its tokens.
        gold_length (`int`, *optional*): Tokens of the longest gold answer; `None` without a task.
        reward_tells (`bool`, *optional*): Whether right answers get more reward than wrong ones; `None` if not known.
    """

    findings: list[Finding]
    longest_prompt: int
    gold_length: int | None = None
    reward_tells: bool | None = None


def look_at_data(trainer: ProRLTrainer, rows: list[dict], task) -> DataFindings:
    """Check gold answers, learning rate, splits and lengths: all that needs no model."""
    args = trainer.args
    gold_lengths = []
    reward_tells = None
    if task is not None:
        golds = check_gold_answers(task, rows, summed_reward(trainer))
        findings = gold_findings(golds)
        reward_tells = golds.reward_tells
        texts = [task.gold(row) for row in rows]
        encoded = text_tokenizer(trainer)(texts, add_special_tokens=False)
        gold_lengths = [len(ids) for ids in encoded["input_ids"]]
    else:
        cure = "pass task=, with gold and verify, to tell a wrong reward from a weak base"
        findings = [Finding("gold answers verify", "not checked", cure)]
    findings += rate_findings(args.learning_rate, is_peft_model(trainer.model))
    seed = getattr(trainer.recipe[0], "task_seed", 0) if trainer.recipe else 0
    train_prompts = list(trainer.train_dataset["prompt"])
    held_out = held_out_prompts(trainer.eval_dataset, task, seed)
    findings += split_findings({"train": train_prompts, **held_out})
    lengths = [len(ids) for ids in trainer.tokenize_prompts(train_prompts)]
    context = getattr(trainer.model.config.get_text_config(), "max_position_embeddings", None)
    findings += length_findings(lengths, gold_lengths, args.max_completion_length, context)
    return DataFindings(findings, max(lengths), max(gold_lengths, default=None), reward_tells)


def look_at_model(
    trainer: ProRLTrainer, rows: list[dict], task, data: DataFindings, console: Console | None
) -> list[Finding]:
    """Sample the base and do the first steps."""
    args = trainer.args
    findings = generation_findings(trainer, data.longest_prompt)
    for finding in findings:
        if finding.change:  # at once: on a CPU a process without memory is killed, and shows no table
            tell(console, f"{finding.what}: {finding.number}: {finding.change}")
    try:
        samples = sample_with_progress(trainer, rows, task, console)
        findings += signal_findings(samples, args.max_completion_length, data.gold_length, data.reward_tells)
        tell(console, "first steps")
        before = policy_logps(trainer, samples)
        first = first_steps(trainer, MOST, functools.partial(tell, console))
        after = policy_logps(trainer, samples)
    except torch.OutOfMemoryError:
        return [*findings, out_of_memory(args.per_device_train_batch_size)]
    except RunError as error:
        return [*findings, Finding("first samples and steps", "the run stops", str(error), STOP)]
    findings += update_findings(first.rows)
    if before is not None:
        distance = kl_after_updates(before, after, samples.batch)
        findings.append(kl_finding(distance, [row["lr"] for row in first.rows]))
    findings += cost_findings(
        first, BatchShape.of(args, trainer.num_generations), samples.reward_seconds / len(samples.rewards)
    )
    if trainer.accelerator.device.type == "cpu":
        peak_gib, total_gib = process_memory()
        findings.append(process_memory_finding(peak_gib, total_gib))
    return findings


def sample_with_progress(trainer: ProRLTrainer, rows: list[dict], task, console: Console | None) -> Rollouts:
    """Sample the base, with a bar if there is a console."""
    tell(console, f"samples: {trainer.num_generations} completions of {len(rows)} prompts")
    if console is None:
        return sample_base(trainer, rows, task)
    with progress(len(rows) * trainer.num_generations, "preflight") as bar:
        return sample_base(trainer, rows, task, bar.update)


def policy_logps(trainer: ProRLTrainer, samples: Rollouts) -> torch.Tensor | None:
    """Score the sampled tokens by the policy, without dropout; `None` where it scores more than text."""
    if not trainer.scorer.text_only:
        return None
    trainer.model.eval()
    return trainer.policy_logps(samples.batch)


def check_processes(count: int) -> None:
    """Refuse several processes by an [`InputError`]."""
    if count > 1:
        raise InputError(f"processes={count}: a preflight is of one; start it without accelerate or torchrun")


def build_trainer(argv: list[str], folder: Path) -> tuple[ProRLTrainer, TaskArguments]:
    """
    Build the trainer of a recipe, made to write into `folder` alone; return it with the recipe's task.

    Raises:
        InputError: the run would be refused.
    """
    with as_bad_input():
        task_args, args, model_args = parse_recipe(argv)
        check_processes(args.world_size)
        check_packages(args)
        check_folder(args, (task_args, model_args))  # the run's own folder
        args.output_dir = str(folder)
        args.run_dir = None
        args.resume_from_checkpoint = None
        args.push_to_hub = False
        args.hub_push_reference = False
        args.load_best_model_at_end = False
        args.eval_on_start = False
        args.save_strategy = SaveStrategy.NO
        args.report_to = []
        args.disable_tqdm = True
        args.log_completions = False
        trainer, _ = build(task_args, args, model_args)
    args.eval_strategy = "no"  # once the trainer has checked what is watched
    for callback in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(callback)
    return trainer, task_args


def table(findings: list[Finding], title: str) -> Table:
    """Return one line per finding."""
    rows = [[finding.what, finding.number, finding.change] for finding in findings]
    return Table(title, ["finding", "number", "what to change"], rows)


def verdict(findings: list[Finding]) -> str:
    """Return the last line."""
    stops = [finding for finding in findings if finding.level == STOP]
    if stops:
        return "cannot learn: " + "; ".join(f"{finding.what}: {finding.number}" for finding in stops)
    changes = sum(finding.level == LOOK for finding in findings)
    if changes == 0:
        return "can learn"
    if changes == 1:
        return "can learn; one finding suggests a change"
    return f"can learn; {changes} findings suggest a change"


def wide_console() -> Console:
    """Return a console for standard output; without a terminal it is wide, so that each finding is one line."""
    if sys.stdout.isatty() or "COLUMNS" in os.environ:
        return Console()
    return Console(width=WIDE)


@functools.partial(command, kept=NOTHING_CHANGED)
def main(argv=None) -> int:
    """Entry point."""
    args, others = command_lines.preflight(argv)
    console = wide_console()
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(sys.stderr):
        trainer, task_args = build_trainer(others, Path(folder))
        findings = preflight(trainer, task_args.make_task(), args.prompts, Console(stderr=True))
    code = exit_code(findings)
    console.print(table(findings, "Preflight").to_rich())
    console.print(visible(verdict(findings)), markup=False, highlight=False, soft_wrap=True)
    if args.json is not None:
        lines = [vars(finding) for finding in findings]
        try:
            write_json(args.json, {"exit_code": code, "verdict": verdict(findings), "findings": lines})
        except OSError as error:  # a disk that is full
            raise InputError(f"--json {args.json} could not be written: {error}; name another") from error
    return code


if __name__ == "__main__":
    sys.exit(main())
