"""
Should I reset now? Continue a run from one of its checkpoints in several ways, and compare the results.

    trl-prorl branch --run runs/a --at 500 --steps 60 --try ref_reset --try "ref_reset optimizer_reset=hard"

Each trial is a run folder of its own (`runs/a-branch-500/NAME`): the run, resumed from the checkpoint with the same
prompts and seeds, one trial after the other. The first one, `keep`, changes nothing: it is the control. All are
evaluated as by `passk`, on the same held-out prompts, and compared as by `compare`. The run's own folder is only read.
A branch that was stopped continues with the same command.
"""

import argparse
import contextlib
import dataclasses
import hashlib
import multiprocessing
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from trl_prorl.checkpoint_files import why_unusable
from trl_prorl.cli.ending import as_bad_input, end_interrupted
from trl_prorl.cli.recipe import parse_recipe
from trl_prorl.config import ProRLConfig
from trl_prorl.errors import InputError, RunError
from trl_prorl.eval import command_lines
from trl_prorl.eval.analysis.pairs import GREEDY, compare_pairs, comparisons_to_json
from trl_prorl.eval.command import command
from trl_prorl.eval.pages.branch import ONE_SEED, branch_picture, find_winner, group_trials
from trl_prorl.eval.pages.comparison import answer, terminal_table
from trl_prorl.eval.pages.table import print_bullets, terminal
from trl_prorl.eval.passk import announcement, evaluate_and_write
from trl_prorl.eval.run_folder.reading import load_config, load_run, read_env, write_json
from trl_prorl.eval.run_folder.run import RecordedRun
from trl_prorl.eval.samples.local_paths import with_local_paths
from trl_prorl.eval.samples.models import last_step
from trl_prorl.eval.samples.run_samples import held_out_rows, held_out_tasks
from trl_prorl.eval.samples.sampling import SamplingSettings
from trl_prorl.eval.samples.task_name import TaskName
from trl_prorl.eval.trial import NO_RESET
from trl_prorl.files import check_contents, file_sha256
from trl_prorl.hub.publish import REFERENCE_FOLDER, files_to_push
from trl_prorl.identity import IDENTITY_FILE, changing_keys, check_same_run
from trl_prorl.keys import cure_of
from trl_prorl.provenance import plugin_options
from trl_prorl.run_files import (
    CONFIG_FILE,
    RUN_ID_FILE,
    read_json,
    recorded_run_id,
)
from trl_prorl.run_folder import (
    LOCK_FILE,
    MANIFEST_FILE,
    FolderLock,
    step_of,
    steps_of,
)
from trl_prorl.supported import ENDLESS_SCHEDULES
from trl_prorl.tasks.registry import PLUGINS
from trl_prorl.text import nearest, shell_quote, visible


KEEP = "keep"
REF_RESET = "ref_reset"
TRIAL = "trl_prorl.eval.trial"
BRANCH_FILE = "branch.json"  # in the branch's folder: of which checkpoint of which run it is
MAX_NAME = 100  # letters of a folder
# Keys that a branch sets itself.
OWN_KEYS = frozenset("output_dir overwrite resume_from_checkpoint allow_config_change push_to_hub max_steps".split())
# A trigger that never fires: the trial's reference stays movable, so that every resume of it knows the reference that
# was reset.
NEVER = 10**9


@dataclass(frozen=True)
class Trial:
    """
    One continuation.

    Attributes:
        name (`str`): The change, as given.
        folder (`Path`): Its run folder.
        resets (`bool`): Whether a reset is requested.
        keys (`dict[str, str]`): The keys that it changes, as on a command line.
    """

    name: str
    folder: Path
    resets: bool = False
    keys: dict[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str, out: Path) -> "Trial":
        """
        Parse `ref_reset`, `KEY=VALUE`, or several of these.

        Raises:
            InputError: A word is neither, or a key is unknown or not to be set.
        """
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise InputError(f"--try {text!r}: {error}") from error
        keys = {}
        for word in words:
            key, is_pair, value = word.partition("=")
            if word == REF_RESET:
                continue
            if not is_pair:
                raise InputError(
                    f"--try {text!r}: {word!r} is neither {REF_RESET} nor KEY=VALUE{nearest(word, [REF_RESET])}"
                )
            if key in OWN_KEYS:
                raise InputError(f"--try {text!r}: {key} is set by the branch itself; remove it")
            known = [each.name for each in dataclasses.fields(ProRLConfig) if each.init]
            if key not in known:
                raise InputError(f"--try {text!r}: {key!r} is no key of ProRLConfig{cure_of(key, known)}")
            if key in keys:
                raise InputError(f"--try {text!r}: {key} is given twice; remove one")
            keys[key] = value
        if not words:
            raise InputError(f"--try {text!r} changes nothing; write {REF_RESET} or KEY=VALUE")
        return cls(" ".join(words), out / folder_name(words), REF_RESET in words, keys)


def folder_name(words: list[str]) -> str:
    """Return a name that every file system takes, different for different words."""
    name = "+".join(words)
    safe = re.sub(r"[^\w.,=+-]", "_", name, flags=re.ASCII)[:MAX_NAME]
    if safe == name:
        return name
    return f"{safe}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def parse_trials(texts: list[str], out: Path) -> list[Trial]:
    """Return the control and the other trials, each once."""
    trials = [Trial(KEEP, out / KEEP)]
    for text in texts:
        if text.strip() != KEEP:
            trials.append(Trial.parse(text, out))
    if len(trials) == 1:
        raise InputError(f"--try {KEEP} is the control, which is always trained; add another --try")
    folders = [trial.folder.name.lower() for trial in trials]
    for trial in trials:
        if folders.count(trial.folder.name.lower()) > 1:
            raise InputError(f"--try {trial.name!r} is given twice; remove one")
    return trials


# ------------------------------------------------------------------------------------------------- the checkpoint


def find_start(run_dir: Path, at: int | None) -> Path:
    """Return the complete checkpoint of a step, by default the newest. Raises `InputError`: there is none."""
    complete = {step: path for path, step in steps_of(run_dir).items() if why_unusable(path, content=False) is None}
    if not complete:
        raise InputError(
            f"'{run_dir}' has no complete checkpoint; train with save_strategy: steps and save_steps: N, without "
            "save_only_model"
        )
    step = max(complete) if at is None else at
    if step not in complete:
        there = ", ".join(map(str, sorted(complete)))
        raise InputError(f"--at {step}: '{run_dir}' has no complete checkpoint of that step; give one of {there}")
    check_contents(complete[step])
    return complete[step]


def find_folder(run_dir: Path, start: Path, out: Path | None) -> Path:
    """
    Return the folder of a branch. Raises `InputError`: it contains something else, a link, or the branch of another
    checkpoint.
    """
    if out is None:
        named = run_dir if run_dir.name.strip(".") else run_dir.resolve()
        out = named.with_name(f"{named.name}-branch-{step_of(start)}")
    if out.is_symlink():
        raise InputError(f"'{out}' is a link, to '{out.resolve()}': give the folder itself, or remove the link")
    check_contents(out)
    file = out / BRANCH_FILE
    if file.is_file() and read_json(file) != identify(run_dir, start):
        raise InputError(f"'{out}' is the branch of another checkpoint; give another folder with --out")
    there = sorted({path.name for path in out.iterdir()} - {LOCK_FILE}) if out.is_dir() else []
    if there and not file.is_file():
        raise InputError(f"'{out}' contains {there[0]}, which no branch wrote; give another folder with --out")
    return out


def identify(run_dir: Path, start: Path) -> dict[str, str | None]:
    """Return the run's id, and the hash of its checkpoint's manifest."""
    return {"run": recorded_run_id(run_dir), "checkpoint": file_sha256(start / MANIFEST_FILE)}


# ----------------------------------------------------------------------------------------------------- the trials


def recipe_arguments(trial: Trial, recipe: Path, start: Path, *more: str) -> list[str]:
    """
    Return the command line with which `train` begins or continues a trial; `more` goes before the trial's own keys.
    """
    resumes = newest_step(trial.folder) is not None
    more += ("--overwrite", str(trial.folder.is_dir() and not resumes))  # a trial that was killed before it had saved
    argv = ["--config", str(recipe), *more]
    for key, value in trial.keys.items():
        argv += [f"--{key}", value]
    argv += ["--output_dir", str(trial.folder)]
    changes = str(bool(trial.keys or trial.resets))
    begin_at = "True" if resumes else str(start)
    return [*argv, "--allow_config_change", changes, "--resume_from_checkpoint", begin_at, "--push_to_hub", "False"]


def check_trials(trials: list[Trial], recipe: Path, start: Path, until: int) -> dict[str, list[str]]:
    """
    Check all trials before any is trained.

    Args:
        trials (`list[Trial]`): The control first.
        recipe (`Path`): The run's `config.yaml`.
        start (`Path`): The checkpoint.
        until (`int`): Their last step.

    Returns:
        `dict[str, list[str]]`: By the name of each trial, the arguments that its recipe needs in addition.

    Raises:
        InputError: A key has a wrong value or cannot change here, or the run ends before the trials do.
    """
    processes = read_json(start / IDENTITY_FILE).get("processes", 1)
    if processes != 1:
        raise InputError(f"'{start}' is of a run with {processes} processes; a branch continues runs of one process")
    _, args, _ = parse_recipe(recipe_arguments(trials[0], recipe, start))
    total = read_json(start / "trainer_state.json", ("max_steps",))["max_steps"]
    longer = []
    if until > total:
        if "max_steps" in changing_keys(args):
            raise InputError(
                f"--steps {until - step_of(start)} ends at step {until}, but the run and its schedule at {total}, "
                f"lr_scheduler_type={args.lr_scheduler_type.value!r}; give fewer --steps, or an earlier --at"
            )
        longer = ["--max_steps", str(until)]
    additions = {}
    for trial in trials:
        more = list(longer)
        try:
            if trial.resets and not args.resets:
                has_reference = float(trial.keys.get("beta", args.beta)) != 0.0
                more += ["--ref_reset_kl" if has_reference else "--ref_reset_every", str(NEVER)]
            task_args, trial_args, model_args = parse_recipe(recipe_arguments(trial, recipe, start, *more))
            identity = changing_keys(trial_args, task_args, model_args)
            check_same_run(start, identity, trial_args.allow_config_change)
        except ValueError as error:
            raise InputError(f"--try {trial.name!r}: {error}") from error
        newest = newest_step(trial.folder)
        if newest is not None and newest > until:
            raise InputError(
                f"'{trial.folder}' is already at step {newest}, and this command ends at step {until}; give more "
                "--steps, or another folder with --out"
            )
        additions[trial.name] = more
    return additions


def newest_step(folder: Path) -> int | None:
    """Return the step of the newest checkpoint of a folder; `None` if there is none."""
    return max(steps_of(folder).values(), default=None)


def install_model(checkpoint: Path, folder: Path) -> None:
    """Copy the model of a checkpoint into the run's folder, as the end of a training saves it."""
    files = files_to_push(checkpoint, checkpoint, record=False)
    for name in (*files, RUN_ID_FILE):
        shutil.copy2(checkpoint / name, folder / name)
    if (checkpoint / REFERENCE_FOLDER).is_dir():
        shutil.copytree(checkpoint / REFERENCE_FOLDER, folder / REFERENCE_FOLDER, dirs_exist_ok=True)


def train(trial: Trial, recipe: Path, start: Path, until: int, more: list[str]) -> str | None:
    """
    Train a trial up to a step, or the rest of it.

    Args:
        trial ([`Trial`]): The trial.
        recipe (`Path`): The run's `config.yaml`.
        start (`Path`): The checkpoint.
        until (`int`): The last step.
        more (`list[str]`): From [`check_trials`].

    Returns:
        `str` or `None`: Why it did not get there.
    """
    folder = trial.folder
    log = folder.with_name(f"{folder.name}.log")
    problem = None
    if newest_step(folder) != until:
        print(visible(f"{trial.name}: to step {until}, output in {log}"), flush=True)
        reset_at = step_of(start) if trial.resets else NO_RESET
        words = recipe_arguments(trial, recipe, start, *more)
        for plugin in PLUGINS:
            words += ["--plugin", str(plugin)]
        problem = run_command([sys.executable, "-m", TRIAL, str(until), str(reset_at), *words], log)
    reached = newest_step(folder)
    if problem is None and reached != until:
        problem = f"it ended at step {reached}"
    if problem is not None:
        return f"{problem} (output in {log})"
    install_model(folder / f"checkpoint-{until}", folder)  # it may have been killed while it saved the model
    return None


def run_command(command: list[str], log: Path) -> str | None:
    """
    Run a command. Return `None` if it succeeds, otherwise the reason with its last line. Its stdin has no content, and
    ends with this process.
    """
    with log.open("w") as written:
        streams = {"stdin": subprocess.PIPE, "stdout": written, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(command, **streams, start_new_session=True)
        try:
            status = process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # including child processes
            process.wait()
    if status == 0:
        return None
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    return f"exit code {status}: {last[:300]}"


def train_all(args: argparse.Namespace, out: Path, trials: list[Trial], start: Path) -> dict[str, str]:
    """
    Train all trials, one after the other.

    Returns:
        `dict[str, str]`: Why a trial failed, by its name.

    Raises:
        InputError: A trial cannot be trained; nothing was written.
        RunError: The control failed.
    """
    until = step_of(start) + args.steps
    recipe = args.run / CONFIG_FILE
    # Not in this process, which would hold memory of the GPU while the trials train.
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(1, fork, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as process:
        additions = process.submit(check_trials, trials, recipe, start, until).result()
    lock = FolderLock(out)
    with as_bad_input():
        lock.hold()
    try:
        write_json(out / BRANCH_FILE, identify(args.run, start))
        failed = {}
        for trial in trials:
            problem = train(trial, recipe, start, until, additions[trial.name])
            if problem is not None and trial.name == KEEP:
                raise RunError(f"the control, {KEEP}, failed, so there is nothing to compare with: {problem}")
            if problem is not None:
                failed[trial.name] = problem
        return failed
    finally:
        lock.release()


# ----------------------------------------------------------------------------------------------------- the result


def evaluate(trial: Trial, args: argparse.Namespace, sampling: SamplingSettings) -> RecordedRun:
    """Measure held-out pass@k of a trial, and return its run."""
    with contextlib.redirect_stdout(sys.stderr):  # progress is shown there, too
        (held_out,) = held_out_tasks(trial.folder, args)
        held_out.sampling = sampling
        print(announcement(held_out, args))
        evaluate_and_write(held_out, args, {})
    return load_run(trial.folder, trial.name)


def next_command(winner: Trial, run_dir: Path, steps: int) -> str:
    """Return the command that goes on with the best trial; with the control, the one that continues the run."""
    folder = run_dir if winner.name == KEEP else winner.folder
    config = load_config(folder)
    words = f"trl-prorl train{plugin_options(read_env(folder))} {shell_quote(str(folder / CONFIG_FILE))}"
    words += " --resume_from_checkpoint True"
    last = last_step(folder)
    if 0 < config.get("max_steps", -1) <= last and config.get("lr_scheduler_type") in ENDLESS_SCHEDULES:
        words += f" --max_steps {last + steps}"
    return words


@command
def main(argv=None) -> int:
    """Entry point."""
    args = command_lines.branch(argv)
    if not load_config(args.run).get("task"):
        raise InputError(
            f"'{args.run}' is the run of a script, which config.yaml cannot start again; branch in the script: "
            "trainer.train(resume_from_checkpoint=CHECKPOINT) with another output_dir and allow_config_change=True"
        )
    start = find_start(args.run, args.at)
    out = find_folder(args.run, start, args.out)
    trials = parse_trials(args.tries, out)
    name = TaskName.of_run(with_local_paths(args.run, load_config(args.run)))
    held_out_rows(name, name.make(), args.split, args.prompts)  # fails before anything is trained
    try:
        return run_branch(args, out, trials, start)
    except KeyboardInterrupt:
        end_interrupted(
            f"the trials' checkpoints and finished samples are kept in {out}. Run the same command again with --at "
            f"{step_of(start)} to continue."
        )


def run_branch(args: argparse.Namespace, out: Path, trials: list[Trial], start: Path) -> int:
    """Train, evaluate, compare and print; return the exit code."""
    failed = train_all(args, out, trials, start)
    trained = {trial.name: trial for trial in trials if trial.name not in failed}
    if len(trained) == 1:
        raise RunError("; ".join(f"{name}: {problem}" for name, problem in failed.items()))
    # A trial may train with another temperature, length or chat template; all are evaluated alike.
    sampling = SamplingSettings.of_run(load_config(trials[0].folder), args.temperature, args.max_new_tokens)
    groups = group_trials([evaluate(trial, args, sampling) for trial in trained.values()])
    keep, *others = groups
    outcomes = [*args.k, GREEDY] if args.with_greedy else args.k
    comparisons, left_out = compare_pairs([(group, keep) for group in others], outcomes)
    left_out += [f"`{name}` is left out: {problem}." for name, problem in failed.items()]
    if not comparisons:
        raise RunError(f"no trial can be compared with {KEEP}: {' '.join(left_out)}")
    sentence = answer(comparisons, {name: name for name in trained})
    winner = find_winner(comparisons) or KEEP
    command_line = next_command(trained[winner], args.run, args.steps)
    picture = branch_picture(groups).write_png(out)
    console = terminal()
    print(visible(sentence))
    console.print("", terminal_table(comparisons), sep="\n")
    print_bullets(console, [ONE_SEED, *left_out])
    print(visible(f"Wrote {picture}."))
    print(visible(f"Continue with {winner}: {command_line}"))
    if args.json is not None:
        rows = comparisons_to_json(comparisons)
        result = {
            "answer": sentence,
            "winner": winner,
            "next": command_line,
            "comparisons": rows,
            "left_out": left_out,
        }
        write_json(args.json, result)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
