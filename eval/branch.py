"""
Should I reset now? Continue a run from one of its checkpoints in several ways, and compare the results.

    trl-prorl branch --run runs/a --at 500 --steps 60 --try ref_reset --try "ref_reset optimizer_reset=hard"

Each trial is a run folder of its own (`runs/a-branch-500/NAME`): the run, resumed from the checkpoint with the same
prompts and seeds, one trial after the other. The first one, `keep`, changes nothing: it is the control. All are
evaluated as by `passk`, on the same held-out prompts, and compared as by `compare`. The run's own folder is only read.
A branch that was stopped continues with the same command.
"""

import argparse
import multiprocessing
import os
import shutil
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from urllib.parse import quote

from trl import ModelConfig

from trl_prorl.cli.recipe import TaskArguments, parse_recipe
from trl_prorl.errors import InputError, RunError
from trl_prorl.eval import command_lines
from trl_prorl.eval.analysis.frame import Frame, RunGroup
from trl_prorl.eval.analysis.pairs import GREEDY, compare_pairs
from trl_prorl.eval.compare import print_comparisons
from trl_prorl.eval.pages.comparison import limits, scores_panel
from trl_prorl.eval.pages.curves import CURVES, curve_panels
from trl_prorl.eval.pages.plotting import write_png
from trl_prorl.eval.pages.table import print_bullets, terminal
from trl_prorl.eval.passk import evaluate_and_write
from trl_prorl.eval.run_folder.reading import load_config, load_run, write_json
from trl_prorl.eval.samples.held_out import held_out_rows, held_out_tasks
from trl_prorl.eval.samples.sampling import SamplingSettings
from trl_prorl.eval.samples.task_name import TaskName
from trl_prorl.eval.trial import NO_RESET
from trl_prorl.hub.publish import files_to_push
from trl_prorl.run.files import check_contents, file_sha256
from trl_prorl.run.folder import MANIFEST_FILE, RunFolder, step_of, steps_of
from trl_prorl.run.log_files import CONFIG_FILE, RUN_ID_FILE, read_json, recorded_run_id
from trl_prorl.tasks.registry import PLUGINS
from trl_prorl.text import visible
from trl_prorl.train import check_start


KEEP = "keep"
REF_RESET = "ref_reset"
TRIAL = "trl_prorl.eval.trial"
BRANCH_FILE = "branch.json"  # in the branch's folder: of which checkpoint of which run it is
# Keys that a branch sets itself, and those of the task and the model, which stay.
OWN_KEYS = (
    "allow_config_change log_completions_hub_repo max_steps output_dir overwrite push_to_hub report_to "
    "resume_from_checkpoint"
)
NO_UPLOADS = "--push_to_hub False --report_to none"  # nor completions, which `trial` keeps local
FIXED = {*OWN_KEYS.split(), *(field.name for part in (TaskArguments, ModelConfig) for field in fields(part))}
# A trigger that never fires: the trial's reference stays movable, so that every resume of it knows the reference that
# was reset.
NEVER = 10**9
PICTURE = 2  # the curves of reward and KL


@dataclass(frozen=True)
class Trial:
    """
    One continuation.

    Attributes:
        words (`list[str]`): The changes, as given: `ref_reset` and `KEY=VALUE`. The control has none.
        folder (`Path`): Its run folder.
    """

    words: list[str]
    folder: Path

    @property
    def name(self) -> str:
        return " ".join(self.words) or KEEP

    @property
    def newest_step(self) -> int | None:
        """Step of the newest checkpoint; `None` if there is none."""
        return max(steps_of(self.folder).values(), default=None)


def parse_trials(texts: list[str], out: Path) -> list[Trial]:
    """
    Return the control and the other trials.

    Raises:
        InputError: A word is neither `ref_reset` nor `KEY=VALUE`, its key cannot be tried, or something is repeated.
    """
    trials = [Trial([], out / KEEP)]
    for text in texts:
        words = text.split()
        trial = Trial(words, out / "+".join(quote(word, safe="=,") for word in words))
        keys = {word.partition("=")[0] for word in words}
        are_known = all(word == REF_RESET or "=" in word for word in words) and keys.isdisjoint(FIXED)
        if not words or not are_known or len(keys) < len(words) or trial in trials:
            raise InputError(
                f"--try {text!r} cannot be tried: write {REF_RESET} or KEY=VALUE, or several of these, each once. KEY "
                f"is any of ProRLConfig, without {OWN_KEYS.replace(' ', ', ')}; {KEEP} is always trained"
            )
        trials.append(trial)
    return trials


def find_start(run_dir: Path, at: int | None) -> Path:
    """Return the complete checkpoint of a step, by default the newest. Raises `InputError`: there is none."""
    try:
        checkpoint = RunFolder(run_dir).find("True" if at is None else str(run_dir / f"checkpoint-{at}"))
    except ValueError as error:
        raise InputError(f"--at {at}: {error}") from error
    return checkpoint


def identify(run_dir: Path, start: Path) -> dict[str, str | None]:
    """Return the run's id, and the hash of its checkpoint's manifest."""
    return {"run": recorded_run_id(run_dir), "checkpoint": file_sha256(start / MANIFEST_FILE)}


def check_out(out: Path, branch: dict[str, str | None]) -> None:
    """Raise `InputError` for a link, and for a folder with something else than this branch or a link out of it."""
    if out.is_symlink():
        raise InputError(f"'{out}' is a link, to '{out.resolve()}': give the folder itself, or remove the link")
    check_contents(out)
    file = out / BRANCH_FILE
    noted = read_json(file) if file.is_file() else None
    if noted != branch and out.is_dir() and any(out.iterdir()):
        raise InputError(
            f"'{out}' is not empty, and no branch of this checkpoint of this run; give another folder with --out"
        )


def arguments(trial: Trial, run_dir: Path, start: Path, until: int) -> list[str]:
    """Return the command line with which `train` begins or continues a trial."""
    words = ["--config", str(run_dir / CONFIG_FILE), "--output_dir", str(trial.folder), *NO_UPLOADS.split()]
    words += ["--overwrite", "True"]  # a trial that was killed before its first checkpoint
    if until > read_json(start / "trainer_state.json")["max_steps"]:
        words += ["--max_steps", str(until)]
    if REF_RESET in trial.words and not load_config(run_dir).get("ref_reset_every"):
        words += ["--ref_reset_every", str(NEVER)]
    words += [f"--{word}" for word in trial.words if word != REF_RESET]
    begin_at = start if trial.newest_step is None else True
    return [*words, "--resume_from_checkpoint", str(begin_at), "--allow_config_change", str(bool(trial.words))]


def check(trial: Trial, run_dir: Path, start: Path, until: int) -> None:
    """Raise `InputError` if a trial cannot be trained, or is beyond its last step."""
    try:
        task_args, args, model_args = parse_recipe(arguments(trial, run_dir, start, until))
        check_start(args, (task_args, model_args))
    except ValueError as error:
        raise InputError(f"--try {trial.name!r}: {error}") from error
    if (trial.newest_step or 0) > until:
        raise InputError(f"'{trial.folder}' is beyond step {until}; give more --steps, or another --out")


def train(trial: Trial, run_dir: Path, start: Path, until: int) -> str | None:
    """Train a trial up to a step. Returns the reason if it did not get there."""
    if trial.newest_step != until:
        log = trial.folder.with_name(f"{trial.folder.name}.log")
        print(visible(f"{trial.name}: to step {until}, output in {log}"), flush=True)
        reset_at = step_of(start) if REF_RESET in trial.words else NO_RESET
        words = [TRIAL, str(until), str(reset_at), *arguments(trial, run_dir, start, until)]
        for plugin in PLUGINS:
            words += ["--plugin", plugin]
        status = run_command([sys.executable, "-m", *words], log)
        if trial.newest_step != until:
            return f"it ended at step {trial.newest_step} with exit code {status} (output in {log})"
    # The end of a training saves the model, too, but may have been killed.
    checkpoint = trial.folder / f"checkpoint-{until}"
    for name in (*files_to_push(checkpoint, checkpoint, record=False), RUN_ID_FILE):
        shutil.copy2(checkpoint / name, trial.folder / name)
    return None


def run_command(command: list[str], log: Path) -> int:
    """Run a command, append its output to a file, and return its exit code."""
    with log.open("a") as output:
        return subprocess.run(command, stdout=output, stderr=subprocess.STDOUT).returncode


def train_all(trials: list[Trial], args: argparse.Namespace, start: Path) -> dict[str, str]:
    """
    Check all trials, then train one after the other.

    Returns:
        `dict[str, str]`: Why a trial failed, by its name.

    Raises:
        InputError: A trial cannot be trained; nothing was written.
        RunError: The control failed.
    """
    until = step_of(start) + args.steps
    # Not in this process, which would hold memory of the GPU while the trials train.
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as process:
        for trial in trials:
            process.submit(check, trial, args.run, start, until).result()
    out = trials[0].folder.parent
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / BRANCH_FILE, identify(args.run, start))
    failed = {}
    for trial in trials:
        problem = train(trial, args.run, start, until)
        if problem is not None and trial.name == KEEP:
            raise RunError(f"the control, {KEEP}, failed, so there is nothing to compare with: {problem}")
        if problem is not None:
            failed[trial.name] = problem
    return failed


def evaluate(trials: list[Trial], args: argparse.Namespace) -> list[RunGroup]:
    """Measure held-out pass@k of trials. All are sampled with the settings of the control, the first one."""
    sampling = SamplingSettings.of_run(load_config(trials[0].folder), args.temperature, args.max_new_tokens)
    for trial in trials:
        held_out, *_ = held_out_tasks(trial.folder, args)
        held_out.sampling = sampling
        evaluate_and_write(held_out, args, {})
    rows = Frame([load_run(trial.folder, trial.name) for trial in trials]).rows
    return [RunGroup(row.run.name, [row], place) for place, row in enumerate(rows)]


def find_equal(trials: list[Trial], step: int) -> dict[str, str]:
    """Return a line for each trial whose weights at a step are those of the control, the first one; by its name."""

    def weights(trial: Trial) -> dict[str, str]:
        files = sorted((trial.folder / f"checkpoint-{step}").glob("*.safetensors"))
        return {file.name: file_sha256(file) for file in files}

    keep, *others = trials
    control = weights(keep)
    return {
        trial.name: f"{trial.name} is not compared: its weights at step {step} are those of {KEEP}."
        for trial in others
        if weights(trial) == control
    }


@command_lines.command
def main(argv=None) -> int:
    """Entry point."""
    args = command_lines.branch(argv)
    config = load_config(args.run)
    if not config.get("task"):
        raise InputError(
            f"'{args.run}' is the run of a script, which config.yaml cannot start again; branch in the script: "
            "trainer.train(resume_from_checkpoint=CHECKPOINT) with another output_dir and allow_config_change=True"
        )
    start = find_start(args.run, args.at)
    run_dir = Path(os.path.abspath(args.run))
    out = args.out or run_dir.with_name(f"{run_dir.name}-branch-{step_of(start)}")
    check_out(out, identify(args.run, start))
    trials = parse_trials(args.tries, out)
    name = TaskName.of_run(config)
    held_out_rows(name, name.make(), args.split, args.prompts)  # fails before anything is trained
    failed = train_all(trials, args, start)
    trained = [trial for trial in trials if trial.name not in failed]
    equal = find_equal(trained, step_of(start) + args.steps)
    notes = [*equal.values(), *(f"{name} is left out: {problem}." for name, problem in failed.items())]
    compared = [trial for trial in trained if trial.name not in equal]
    if equal and len(compared) == 1:  # the control
        print_bullets(terminal(), notes)
        return 1 if failed else 0
    keep, *others = groups = evaluate(compared, args)
    outcomes = [*args.k, GREEDY] if args.with_greedy else args.k
    comparisons, left_out = compare_pairs([(group, keep) for group in others], outcomes)
    notes = left_out + notes
    if not comparisons:
        raise RunError(f"no trial can be compared with {KEEP}: {' '.join(notes)}")
    picture = write_png([*curve_panels("", groups, CURVES[:PICTURE]), scores_panel(groups)], out / "branch.png")
    notes += limits([run for group in groups for run in group.runs])
    print_comparisons(comparisons, notes, args.json)
    print(visible(f"Wrote {picture}."))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
