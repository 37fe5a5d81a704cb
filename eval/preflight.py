"""
Check a recipe before training: can it learn, will it fit, how long will it take?

    trl-prorl preflight RECIPE [--prompts 32] [--all] [--json FILE] [--KEY VALUE ...]

Calls verifier and reward functions on reference answers and on answers to other prompts, samples the starting model
with the run's own sampler, and takes the first optimizer steps in a temporary folder. Only the file of `--json` is
written. Exit code 0: the run can learn; 1: it cannot learn; 2: the run itself would fail with the same error.
An `output_dir` that `train` would not accept is a finding.
For your own trainer, call [`preflight`].
"""

import functools
import random
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout
from pathlib import Path

import torch
from accelerate.utils import is_peft_model
from datasets import Dataset
from jinja2 import TemplateError
from rich.console import Console
from rich.table import Table
from rich.text import Text
from transformers import DefaultFlowCallback
from transformers.trainer_utils import IntervalStrategy, SaveStrategy
from trl import GRPOTrainer

from trl_prorl.cli.ending import as_bad_input, command
from trl_prorl.cli.prompt_rows import read_prompts
from trl_prorl.cli.recipe import TaskArguments, parse_recipe
from trl_prorl.cli.terminal import highest_rate
from trl_prorl.config import ProRLConfig
from trl_prorl.errors import InputError, RunError
from trl_prorl.eval import command_lines
from trl_prorl.eval.command_lines import PROMPTS
from trl_prorl.eval.pages.table import printed, terminal
from trl_prorl.eval.readiness.cost import MEMORY, WALL_TIME, cost_findings, out_of_memory
from trl_prorl.eval.readiness.data import (
    GOLD_VERIFIES,
    answered,
    check_gold_answers,
    held_out_prompts,
    length_findings,
    message_findings,
    split_findings,
    summed_reward,
    text_tokenizer,
)
from trl_prorl.eval.readiness.finding import FINE, LOOK, NOT_MEASURED, STOP, Finding, exit_code
from trl_prorl.eval.readiness.first_steps import first_steps, kl_finding, rate_findings
from trl_prorl.eval.readiness.micro_batch import micro_batch_findings
from trl_prorl.eval.readiness.prompt_tokens import prompt_findings, template_error
from trl_prorl.eval.readiness.put_back import put_back
from trl_prorl.eval.readiness.samples_of import policy_logps, takes_images, tokenize_prompts
from trl_prorl.eval.readiness.signal import sample_starting_model, signal_findings
from trl_prorl.eval.readiness.teacher import teacher_findings
from trl_prorl.eval.run_folder.reading import write_json
from trl_prorl.eval.samples.sampling import progress
from trl_prorl.guards.noise import find_noise
from trl_prorl.resets import ReferenceResetCallback
from trl_prorl.tasks.own import check_verifier
from trl_prorl.text import visible
from trl_prorl.train import build, check_folder
from trl_prorl.trainer import ProRLTrainer


NO_TASK = (
    "a wrong reward function looks like a weak starting model: pass task=, with gold and verify, or give rows an "
    "answer that verify accepts"
)
NO_STEP = "no step: the prompts of the training set do not fill one generation batch"
MORE_PROMPTS = "raise train_rows, or lower generation_batch_size"


class Findings(list):
    """The [`Finding`]s of a preflight: a list that is displayed as their table."""

    def __repr__(self) -> str:
        return printed(functools.partial(print_findings, self, True))


def preflight(
    trainer: GRPOTrainer,
    task=None,
    prompts: int = PROMPTS,
    console: Console | None = None,
    verify: Callable | None = None,
) -> Findings:
    """
    Check, before a run, whether it can learn, whether it fits into memory, and whether its reward can be hacked.

    It samples prompts of the training set and trains two steps in a temporary folder. Then weights, optimizer, random
    states, order of the data and logs are put back: `trainer.train()` trains as if there had been no preflight.
    Callbacks of your own are not called. The state of your reward functions is not put back.

    Args:
        trainer (`GRPOTrainer`): TRL's trainer, a subclass or [`ProRLTrainer`], in a single process. Checks that need
            [`ProRLTrainer`] are left out for others.
        task ([`~trl_prorl.tasks.Task`], *optional*): Provides reference answers. Without a task they are not checked,
            so a wrong reward function looks like a model that solves nothing.
        prompts (`int`, *optional*, defaults to `32`): Number of training prompts to sample.
        console (`rich.console.Console`, *optional*): Prints a line for each stage and step.
        verify (`Callable`, *optional*): `verify(completion, row) -> bool`: whether the text `completion` is correct.
            Without it the trainer's `verify` decides, else the `batch_verifier` of a reward function, else `task`.
            Without any, nothing is said of correct completions.

    Returns:
        `list[Finding]`: One finding per check: `what`, `number`, `change` (what to change, or empty), `level`
            (`"fine"`, `"look"`: the run can learn, and could do better, or `"stop"`: it cannot learn) and `values`.
            `print` and a notebook show the list as a table.

    Raises:
        [`InputError`]: The training set is a stream, there are several processes, or `verify` fails on the first row.

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
    with put_back(trainer), tempfile.TemporaryDirectory() as folder:
        keep_aside(trainer, folder)
        return Findings(check(trainer, task, prompts, console, verify))


def keep_aside(trainer: GRPOTrainer, folder: str) -> None:
    """Make a trainer write into `folder` only: it saves nothing, evaluates nothing, calls no callback of others."""
    args = trainer.args
    args.output_dir = folder
    args.logging_strategy = IntervalStrategy.STEPS
    args.logging_steps = 1
    args.save_strategy = SaveStrategy.NO
    args.eval_strategy = IntervalStrategy.NO
    args.eval_on_start = False
    args.load_best_model_at_end = False
    args.push_to_hub = False
    args.disable_tqdm = True
    trainer.log_completions = False
    trainer.has_trained = False  # ours trains once, and these steps are none of a run
    callbacks = trainer.callback_handler.callbacks
    callbacks[:] = [
        callback for callback in callbacks if isinstance(callback, DefaultFlowCallback | ReferenceResetCallback)
    ]


def check(
    trainer: GRPOTrainer, task, prompts: int, console: Console | None, verify: Callable | None = None
) -> list[Finding]:
    """Do the checks of [`preflight`] with a trainer that may be changed."""
    verify = verify or getattr(trainer, "verify", None)
    if verify is not None:
        check_verifier(verify, trainer.train_dataset[0], "verify")  # a row of a transform may draw random numbers
    available = len(trainer.train_dataset)
    # Random, because evenly spaced rows of a mixture could all belong to one task.
    places = random.Random(trainer.args.seed).sample(range(available), min(prompts, available))
    rows = [trainer.train_dataset[place] for place in places]
    print_progress(console, f"reference answers, splits and lengths of {available} prompts")
    findings = [Finding(GOLD_VERIFIES, NOT_MEASURED, NO_TASK)]
    tells = None
    gold_lengths = []
    if task is not None:
        findings, tells = check_gold_answers(task, rows, summed_reward(trainer))
        texts = [task.gold(row) for row in answered(rows)]
        if texts:
            gold_lengths = [len(ids) for ids in text_tokenizer(trainer)(texts, add_special_tokens=False)["input_ids"]]
    optimizer = trainer.optimizer  # a script's, in place of the key
    rate = trainer.args.learning_rate if optimizer is None else highest_rate(optimizer)
    findings += rate_findings(rate, is_peft_model(trainer.model))
    train_prompts = read_prompts(trainer.train_dataset)
    recipe = getattr(trainer, "recipe", ())
    seed = getattr(recipe[0], "task_seed", 0) if recipe else 0
    findings += split_findings(train_prompts, held_out_prompts(trainer.eval_dataset, task, seed))
    try:
        ids = tokenize_prompts(trainer, train_prompts)
    except (TemplateError, TypeError) as error:
        return [*findings, template_error(error)]
    if not takes_images(trainer):  # by which alone prompts may differ
        settings = trainer.args.chat_template_kwargs or {}
        findings += prompt_findings(train_prompts, ids, text_tokenizer(trainer), settings)
    lengths = list(map(len, ids))
    context = getattr(trainer.model.config.get_text_config(), "max_position_embeddings", None)
    findings += length_findings(lengths, gold_lengths, trainer.args.max_completion_length, context)
    noise = find_noise(trainer.accelerator.unwrap_model(trainer.model), trainer.accelerator)
    if noise is not None and (trainer.args.beta or trainer.args.num_iterations > 1):
        findings.append(Finding("two forwards of a row", "differ", noise, LOOK))
    if exit_code(findings):
        return findings  # no completion could be judged
    findings += look_at_model(trainer, rows, task, max(gold_lengths, default=None), tells, console, verify)
    has_stopped = any(finding.level == STOP and finding.what != MEMORY for finding in findings)
    if has_stopped or not isinstance(trainer, ProRLTrainer):
        return findings
    return findings + micro_batch_findings(trainer, max(lengths))


def print_progress(console: Console | None, line: str) -> None:
    """Print a progress line, if there is a console."""
    if console is not None:
        console.print(f"preflight: {visible(line)}", markup=False, highlight=False, soft_wrap=True)


def check_trainer(trainer: GRPOTrainer) -> None:
    """
    Raise an error for a trainer that cannot be checked.

    Raises:
        InputError: The training set is a stream or has no prompts, or there are several processes.
    """
    if not isinstance(trainer.train_dataset, Dataset):
        raise InputError("train_dataset is a stream, which can be read only once: pass a Dataset")
    if "prompt" not in trainer.train_dataset.column_names:
        raise InputError("train_dataset has no column 'prompt': prompts that an environment writes cannot be checked")
    check_processes(trainer.accelerator.num_processes)


def look_at_model(
    trainer: GRPOTrainer,
    rows: list[dict],
    task,
    gold_length: int | None,
    tells: bool | None,
    console: Console | None,
    verify: Callable | None,
) -> list[Finding]:
    """
    Sample the starting model and take the first steps. `gold_length` and `tells` are as in [`signal_findings`].
    """
    completions = trainer.num_generations * len(rows)
    print_progress(console, f"samples: {trainer.num_generations} completions for each of {len(rows)} prompts")
    findings = []
    try:
        with nullcontext() if console is None else progress(completions, "preflight") as bar:
            samples = sample_starting_model(trainer, rows, task, bar, verify)
        findings += signal_findings(samples, gold_length, tells)
        findings += message_findings(trainer, samples.texts, [row for row in rows for _ in range(samples.group_size)])
        print_progress(console, "first steps")
        before = policy_logps(trainer, samples.batch)
        steps = first_steps(trainer, functools.partial(print_progress, console))
        after = policy_logps(trainer, samples.batch)
    except torch.OutOfMemoryError:
        return [*findings, out_of_memory(trainer.args.per_device_train_batch_size)]
    except RunError as error:
        return [*findings, Finding("first samples and steps", "the run stops", str(error), STOP)]
    if not steps:
        return [*findings, Finding("first samples and steps", NO_STEP, MORE_PROMPTS, STOP)]
    if before is not None:
        findings.append(kl_finding(before, after, samples.batch, [row["lr"] for row in steps]))
    findings += teacher_findings(trainer, rows, task, samples, before, steps, verify)
    return findings + cost_findings(trainer, steps)


def check_processes(count: int) -> None:
    """Raise an [`InputError`] for several processes."""
    if count > 1:
        raise InputError(f"processes={count}: preflight needs one process; start it without accelerate or torchrun")


def build_trainer(argv: list[str], folder: Path) -> tuple[ProRLTrainer, TaskArguments, list[Finding]]:
    """
    Build the trainer of a recipe, which writes only into `folder`; return it with the recipe's task, and a finding if
    `train` would not accept the recipe's own folder.

    Raises:
        InputError: The run itself would fail with this error.
    """
    with as_bad_input():
        task_args, args, model_args = parse_recipe(argv)
        check_processes(args.world_size)
        findings = folder_findings(args, (task_args, model_args))
        args.output_dir = str(folder)
        args.resume_from_checkpoint = None
        args.push_to_hub = False
        args.hub_push_reference = False
        args.report_to = []
        args.log_completions = False
        trainer, _ = build(task_args, args, model_args)
    keep_aside(trainer, str(folder))
    return trainer, task_args, findings


def folder_findings(args: ProRLConfig, recipe: tuple) -> list[Finding]:
    """Return a finding if `train` would not accept the run's own folder, in which a preflight writes nothing."""
    try:
        check_folder(args, recipe)
    except ValueError as error:
        return [Finding("output_dir", "train would fail", str(error), LOOK)]
    return []


def verdict(findings: list[Finding]) -> str:
    """Return whether the run can learn, and how many findings suggest a change."""
    stops = [finding for finding in findings if finding.level == STOP]
    learns = "can learn"
    if stops:
        learns = "cannot learn: " + "; ".join(f"{finding.what}: {finding.number}" for finding in stops)
    changes = sum(finding.level == LOOK for finding in findings)
    return f"{learns}; findings that suggest a change: {changes}" if changes else learns


def print_findings(findings: list[Finding], with_passed: bool, console: Console) -> None:
    """
    Print the findings that need a change, those that stop the run first, or with `with_passed` all of them, a line
    each; and a last line: the verdict, the expected time, and how many checks are not shown.
    """
    stops = [finding for finding in findings if finding.level == STOP]
    changes = stops + [finding for finding in findings if finding.level == LOOK]
    passed = [finding for finding in findings if finding.level == FINE and finding.what != WALL_TIME]
    summary = [f"The run {verdict(findings)}"]
    summary += [f"{finding.what}: {finding.number}" for finding in findings if finding.what == WALL_TIME]
    if with_passed:
        for finding in [*changes, *passed]:
            line = f"{finding.what}: {finding.number}"
            if finding.change:
                line += f" -> {finding.change}"
            console.print(Text(visible(line)), soft_wrap=True)
    else:
        if changes:
            console.print(grid(changes))
        summary.append(f"{len(passed)} other checks: --all shows them")
    console.print(Text(visible("; ".join(summary) + ".")), soft_wrap=True)


def grid(findings: list[Finding]) -> Table:
    """Return one row per finding: check, measured value, meaning and cure."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for width in (33, 24, None):
        table.add_column(max_width=width)
    for finding in findings:
        table.add_row(*(Text(visible(text)) for text in (finding.what, finding.number, finding.change)))
    return table


@command
def main(argv=None) -> int:
    """Entry point."""
    args, others = command_lines.preflight(argv)
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(sys.stderr):
        trainer, task_args, first_findings = build_trainer(others, Path(folder))
        check_trainer(trainer)
        task = task_args.make_task()
        if task_args.reward and not task.accepts_answers(trainer.train_dataset):
            task = None  # the verifier may want more than an answer
        findings = first_findings + check(trainer, task, args.prompts, Console(stderr=True))
    code = exit_code(findings)
    print_findings(findings, args.all, terminal())
    if args.json is not None:
        write_json(args.json, {"exit_code": code, "verdict": verdict(findings), "findings": list(map(vars, findings))})
    return code


if __name__ == "__main__":
    sys.exit(main())
