"""
Before a run: can it learn, will it fit, how long will it take?

    trl-prorl preflight --config RECIPE.yaml [--prompts 32] [--json FILE] [--KEY VALUE ...]

Refuses what the run would refuse (exit code 2), asks verifier and reward about answers that are known to be right and
wrong, samples the base with the run's own sampler, and does the first optimizer steps in a folder that is thrown away.
Exit code 0: the run can learn; 1: it cannot, because no group had a signal, every completion was cut, no gold answer
verifies, the first updates destroy the policy, or the run stops in its first steps. Nothing is written but `--json`.
With a trainer of your own, call [`preflight`].
"""

import functools
import os
import random
import sys
import tempfile
from contextlib import nullcontext, redirect_stdout
from pathlib import Path

import torch
from accelerate.utils import is_peft_model
from datasets import Dataset
from rich.console import Console
from transformers import PrinterCallback, ProgressCallback
from transformers.trainer_utils import SaveStrategy

from trl_prorl.errors import InputError, RunError
from trl_prorl.eval import command_lines
from trl_prorl.eval.command import command
from trl_prorl.eval.command_lines import PROMPTS
from trl_prorl.eval.pages.table import Table
from trl_prorl.eval.readiness.cost import cost_findings, out_of_memory, process_memory, process_memory_finding
from trl_prorl.eval.readiness.data import (
    asked_reward,
    gold_answers,
    gold_findings,
    held_out_prompts,
    length_findings,
    split_findings,
    text_tokenizer,
)
from trl_prorl.eval.readiness.finding import LOOK, STOP, Finding, exit_code
from trl_prorl.eval.readiness.first_steps import (
    MOST,
    first_steps,
    moved,
    moved_finding,
    rate_findings,
    update_findings,
)
from trl_prorl.eval.readiness.signal import draw, signal_findings
from trl_prorl.eval.run_folder.reading import write_json
from trl_prorl.eval.samples.sampling import progress
from trl_prorl.launch.command_line import Arguments
from trl_prorl.launch.interrupt import NOTHING_CHANGED
from trl_prorl.launch.recipe import TaskArguments, parse_recipe
from trl_prorl.text import visible
from trl_prorl.train import build, check_folder, check_packages
from trl_prorl.trainer import ProRLTrainer


WIDE = 400  # columns; a table takes what it needs


def preflight(
    trainer: ProRLTrainer, task=None, prompts: int = PROMPTS, console: Console | None = None
) -> list[Finding]:
    """
    The findings of a trainer that has not begun to train. It samples, trains two steps and is of no use afterwards;
    give it an `output_dir` of its own.

    Args:
        trainer ([`ProRLTrainer`]): Of a single process. Completions are right by the attribute `verifier` of its first
            reward function that has one, else by the task, else where the first function gives the full reward of 1.
        task ([`~tasks.Task`], *optional*): Gives the gold answers; without it none is checked, so that a wrong reward
            cannot be told from a base that solves nothing.
        prompts (`int`, *optional*, defaults to `32`): Prompts of the training set to sample.
        console (`Console`, *optional*): Gets a line for each stage and step.

    Returns:
        `list[Finding]`

    Raises:
        [`InputError`]: there is no data set whose prompts can be looked at twice, or there are several processes.
    """
    args = trainer.args
    if not isinstance(trainer.train_dataset, Dataset):
        raise InputError("train_dataset is a stream, whose prompts cannot be looked at twice; give it a Dataset")
    if "prompt" not in trainer.train_dataset.column_names:
        raise InputError("train_dataset has no column 'prompt': what an environment writes cannot be looked at before")
    check_processes(trainer.accelerator.num_processes)
    available = len(trainer.train_dataset)

    def tell(line: str) -> None:
        if console is not None:
            console.print(f"preflight: {line}", markup=False, highlight=False, soft_wrap=True)

    # At random: evenly spaced rows of a mixture could be of one task.
    places = random.Random(args.seed).sample(range(available), min(prompts, available))
    rows = [trainer.train_dataset[place] for place in places]
    findings, golds, gold_length = [], None, None
    tell(f"gold answers, splits and lengths of {available} prompts")
    if task is not None:
        golds = gold_answers(task, rows, asked_reward(trainer))
        findings += gold_findings(golds)
    else:
        number, cure = "not checked", "pass task=, with gold and verify, to tell a wrong reward from a weak base"
        findings.append(Finding("gold answers verify", number, cure))
    findings += rate_findings(args.learning_rate, is_peft_model(trainer.model))
    seed = getattr(trainer.recipe[0], "task_seed", 0) if trainer.recipe else 0
    held_out = held_out_prompts(trainer.eval_dataset, task, seed)
    findings += split_findings({"train": list(trainer.train_dataset["prompt"]), **held_out})
    tokenizer = text_tokenizer(trainer)
    lengths = [len(ids) for ids in trainer.tokenize_prompts(list(trainer.train_dataset["prompt"]))]
    gold_lengths = []
    if task is not None:
        texts = [task.gold(row) for row in rows]
        gold_lengths = [len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]
        gold_length = max(gold_lengths)
    config = trainer.model.config.get_text_config()
    most = args.max_completion_length
    findings += length_findings(lengths, gold_lengths, most, getattr(config, "max_position_embeddings", None))
    if exit_code(findings):
        return findings  # nothing that a model does could be judged

    total = len(rows) * trainer.num_generations
    try:
        tell(f"samples: {trainer.num_generations} completions of {len(rows)} prompts")
        with progress(total, "preflight") if console is not None else nullcontext() as bar:
            samples = draw(trainer, rows, task, bar.update if bar else lambda count: None)
        findings += signal_findings(samples, most, gold_length, golds.reward_tells if golds else None)
        tell("first steps")
        logps = []
        if trainer.scorer.text_only:
            trainer.model.eval()  # without dropout
            logps.append(trainer.policy_logps(samples.batch))
        first = first_steps(trainer, MOST, tell)
        if logps:
            trainer.model.eval()
            logps.append(trainer.policy_logps(samples.batch))
    except torch.OutOfMemoryError:
        return [*findings, out_of_memory(args.per_device_train_batch_size)]
    except RunError as error:
        return [*findings, Finding("first samples and steps", "the run stops", str(error), STOP)]
    findings += update_findings(first.rows)
    if logps:
        findings.append(moved_finding(moved(*logps, samples.batch), [row["lr"] for row in first.rows]))
    findings += cost_findings(
        first,
        args.per_device_train_batch_size,
        trainer.num_generations,
        samples.reward_seconds / len(samples.rewards),
        args.generation_batch_size,
    )
    if trainer.accelerator.device.type == "cpu":
        peak_gib, total_gib = process_memory()
        findings.append(process_memory_finding(peak_gib, total_gib))
    return findings


def check_processes(count: int) -> None:
    """Refuse several processes by an [`InputError`]."""
    if count > 1:
        raise InputError(f"processes={count}: a preflight is of one; start it without accelerate or torchrun")


def prepared(arguments: Arguments, folder: Path) -> tuple[ProRLTrainer, TaskArguments]:
    """
    The trainer of a recipe, made to write into `folder` alone, and its task.

    Raises:
        InputError: the run would be refused.
    """
    try:
        task_args, args, model_args = parse_recipe(arguments.argv, arguments.recipe)
        check_processes(args.world_size)
        check_packages(args)
        check_folder(args, (task_args, model_args))  # the run's own folder
        args.output_dir, args.run_dir, args.resume_from_checkpoint = str(folder), None, None
        args.push_to_hub = args.hub_push_reference = args.load_best_model_at_end = args.eval_on_start = False
        args.save_strategy, args.report_to, args.disable_tqdm, args.log_completions = SaveStrategy.NO, [], True, False
        trainer, _ = build(task_args, args, model_args)
    except (ValueError, OSError) as error:
        raise InputError(" ".join(str(error).split())) from error
    args.eval_strategy = "no"  # once the trainer has checked what is watched
    for callback in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(callback)
    return trainer, task_args


def table(findings: list[Finding], title: str) -> Table:
    """One line per finding."""
    rows = [[finding.what, finding.number, finding.change] for finding in findings]
    return Table(title, ["finding", "number", "what to change"], rows)


def verdict(findings: list[Finding]) -> str:
    """The last line."""
    stops = [finding for finding in findings if finding.level == STOP]
    if stops:
        return "cannot learn: " + "; ".join(f"{finding.what}: {finding.number}" for finding in stops)
    changes = sum(finding.level == LOOK for finding in findings)
    suggested = {0: "", 1: "; one finding suggests a change"}.get(changes, f"; {changes} findings suggest a change")
    return f"can learn{suggested}"


def wide_console() -> Console:
    """For standard output; as wide as a finding needs where no terminal sets the width, so that each is one line."""
    return Console() if sys.stdout.isatty() or "COLUMNS" in os.environ else Console(width=WIDE)


@functools.partial(command, kept=NOTHING_CHANGED)
def main(argv=None) -> int:
    """Entry point."""
    args, others = command_lines.preflight(argv)
    console = wide_console()
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(sys.stderr):
        trainer, task_args = prepared(others, Path(folder))
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
