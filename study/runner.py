"""
`make study`: trains the runs that are not in the tables yet, a few at a time, writes their rows, and commits them.

A run is two processes of the frozen code, training and evaluation. A run that was cut short goes on from its last
checkpoint, or begins anew; one whose rows are in the tables is finished.
"""

import ctypes
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from study.bases import base_hash, model_of
from study.frozen import check_at_frozen_commit, commit_tables, frozen_commit, git, holding, worktree
from study.matrix import KEEPS_CHECKPOINTS, MATRIX, MODEL, TRAINED_BY, Matrix, PlannedRun, RunKey
from study.tables import BASES, CURVES, CURVES4, FOLDER, Tables, check_base, read_folder, read_table, write_folder
from study.tuned import with_choices
from trl_prorl.errors import InputError, RunError
from trl_prorl.files import replaced
from trl_prorl.record.folder_lock import FolderInUseError, FolderLock, holder
from trl_prorl.record.run_files import read_jsonl


PLACE = Path("runs", "study")  # below the checkout
LOOK_EVERY = 1.0  # seconds
IN_A_ROW = 3  # failures of different runs, after which something is wrong with all
LONG = 500  # steps from which a run keeps checkpoints, to go on from and to measure its way
CHECKPOINTS = 6  # of such a run
NICE = 10  # the study leaves the machine to whoever works on it
# None but the runner's own keys may end up in a run.
SETTINGS = {"save_strategy": "no", "disable_tqdm": True, "report_to": "none"}
ONE_THREAD_OFFLINE = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

_prctl = getattr(ctypes.CDLL(None), "prctl", None)
PR_SET_PDEATHSIG = 1
say = partial(print, flush=True)


def seconds_left(waiting: Iterable[RunKey], finished: pd.DataFrame, jobs: int) -> float:
    """
    Estimate the seconds until these runs are finished, `jobs` at a time; NaN before the first one is. A run takes as
    long as those of its family and steps; else of its family, by the step; else of all, by the step.
    """
    rates = finished["seconds"] / finished.index.get_level_values("steps")
    by_family_and_steps = rates.groupby(level=["family", "steps"]).mean()
    by_family = rates.groupby(level="family").mean()
    total = 0.0
    for key in waiting:
        rate = by_family_and_steps.get((key.family, key.steps))
        if rate is None:
            rate = by_family.get(key.family, rates.mean())
        total += key.steps * rate
    return total / jobs


def format_duration(seconds: float) -> str:
    """Write `2 h 05 min`, `7 min`, `under a minute`, or that nothing is known."""
    if math.isnan(seconds):
        return "unknown before the first run is finished"
    hours, minutes = divmod(round(seconds / 60), 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    if minutes:
        return f"{minutes} min"
    return "under a minute"


def progress(matrix: Matrix, tables: Tables, jobs: int) -> str:
    """Say how many runs are finished, and what is left; a run of two blocks counts once."""
    total = len(matrix.runs)
    missing = [run.key for run in matrix.runs if run.key not in tables.runs.index]
    left = "nothing"
    if missing:
        left = format_duration(seconds_left(missing, tables.runs, jobs))
    return f"{total - len(missing)} of {total} runs are in {FOLDER}; {jobs} at a time, left: {left}"


def status(matrix: Matrix, tables: Tables) -> str:
    """Write a row for each arm of a block: finished of all runs, by family, and how many collapsed."""
    runs = pd.DataFrame([{**run.key._asdict(), "block": block.name} for block in matrix.blocks for run in block.runs])
    runs = runs.join(tables.runs["collapsed"], on=list(RunKey._fields))  # NaN where it is not finished
    cells = runs.groupby(["block", "arm", "family"], sort=False)["collapsed"]
    counts = cells.count().astype(str) + "/" + cells.size().astype(str)
    table = counts.unstack("family", fill_value="")[runs["family"].unique()]
    table["collapsed"] = runs.groupby(["block", "arm"])["collapsed"].sum().astype(int)
    return table.reindex(pd.MultiIndex.from_frame(runs[["block", "arm"]]).unique()).to_string()


def check_tables(tables: Tables, runs: Iterable[PlannedRun]) -> None:
    """Refuse, as an `InputError`, keys or an evaluation of a finished run other than it had."""
    for run in runs:
        if run.key not in tables.runs.index or run.open_keys:
            continue
        row = tables.runs.loc[run.key]
        drop = f"`python -m study drop --families {run.key.family} --arms {run.key.arm}`"
        if row["recipe"] != run.recipe_hash:
            raise InputError(
                f"{MATRIX}, {run.key.family}, {run.key.arm}: its keys are not those of the runs in the tables (hash "
                f"{run.recipe_hash}, {row['recipe']} there). Restore them, name the new arm otherwise, or {drop}"
            )
        wanted = run.evaluation
        if (row["prompts"], row["samples"]) != (wanted["prompts"], wanted["samples"]):
            raise InputError(
                f"{MATRIX}: evaluation asks for {wanted['prompts']} prompts and {wanted['samples']} samples, and "
                f"{run.key} was evaluated on {row['prompts']} and {row['samples']}. Restore it, or {drop}"
            )


def check_bases(tables: Tables, runs: list[PlannedRun], code: Path) -> set[str]:
    """
    Return the models that are not here, whose runs wait.

    Raises:
        InputError: None is here, or one is not that of the tables.
    """
    models = {run.key.base: run.recipe[MODEL] for run in runs}
    hashes = {model: base_hash(code, model) for model in models.values()}
    missing = {model for model, sha256 in hashes.items() if sha256 is None}
    for base, model in models.items():
        if model not in missing:
            check_base(tables.bases, base, hashes[model])
    if missing and missing == hashes.keys():
        raise InputError(
            f"{min(missing)} does not come with commit {git(code, 'rev-parse', '--short=12', 'HEAD')}. Choose other "
            "pairs in matrix.yaml, or freeze a commit that has it: make study COMMIT=…"
        )
    return missing


@contextmanager
def lock_study(place: Path) -> Iterator[None]:
    """
    Hold the lock of a checkout's study, so that no other process runs it; meanwhile SIGTERM does what Ctrl-C does.
    Raises `InputError`: another process holds it.
    """
    lock = FolderLock(place)
    try:
        lock.hold()
    except FolderInUseError:
        raise InputError(f"the study runs already: {holder(place) or 'another process'}. Wait, or stop it") from None
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        lock.let_go()


def ended_at_nonfinite(folder: Path) -> bool:
    """Whether a run ended at numbers that are not finite, and so left no policy."""
    events = read_jsonl(folder / "events.jsonl", growing=True)
    return any(event["event"] == "nonfinite" and event.get("action") == "stop" for event in events)


class RunFiles:
    """Names the folders of a run. Runs on one base lie side by side, and share its samples."""

    def __init__(self, place: Path, key: RunKey):
        self.folder = place / f"{key.family}-base{key.base_seed}" / f"{key.arm}-seed{key.seed}-{key.steps}"
        self.recipe = self._beside("yaml")
        self.plan = self._beside("plan.json")
        self.rows = self._beside("rows.json")
        self.log = self._beside("log")

    def _beside(self, ending: str) -> Path:
        return self.folder.with_name(f"{self.folder.name}.{ending}")

    def clear(self) -> None:
        """Remove the run."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for path in (self.recipe, self.plan, self.rows, self.log):
            path.unlink(missing_ok=True)

    def is_trained(self) -> bool:
        """Whether training has come to its end, with a model or without."""
        return ended_at_nonfinite(self.folder) or (self.folder / "adapter_model.safetensors").exists()


def checkpoint_keys(run: PlannedRun) -> dict[str, Any]:
    """
    Return the keys by which a run keeps checkpoints: as many as its block asks for, else six of a long run. What keeps
    none is short, and begins anew.
    """
    with_texts = run.evaluation.get("texts", {}).get("checkpoints")
    checkpoints = run.evaluation.get("checkpoints") or with_texts
    if not checkpoints and run.key.steps >= LONG:
        checkpoints = CHECKPOINTS
    trained_by = run.recipe.get(TRAINED_BY)
    if not checkpoints or not KEEPS_CHECKPOINTS.get(trained_by, True):
        return {}
    return {"save_strategy": "steps", "save_steps": run.key.steps // checkpoints}


def training_command(run: PlannedRun, files: RunFiles, code: Path) -> list[str]:
    """Return the arguments of Python that train a run: the product's launcher, or the study's own module."""
    module = run.recipe.get(TRAINED_BY)
    if module is not None:
        return ["-m", module, str(files.recipe)]
    return [str(code / "recipes" / "grpo_variantA.py"), "--config", str(files.recipe)]


def write_recipe(run: PlannedRun, files: RunFiles, code: Path) -> None:
    """Write the recipe of a run; what is there of a run with another recipe is removed."""
    recipe = {
        **run.product_recipe,
        **SETTINGS,
        **checkpoint_keys(run),
        MODEL: model_of(code, run.recipe[MODEL]),
        "output_dir": str(files.folder),
    }
    text = yaml.safe_dump(recipe)
    if files.recipe.is_file() and files.recipe.read_text() == text:
        return
    files.clear()
    files.recipe.parent.mkdir(parents=True, exist_ok=True)
    with replaced(files.recipe) as aside:
        aside.write_text(text)


def make_run(run: PlannedRun, place: Path, code: Path) -> Iterator[None]:
    """
    Train and evaluate a run with the code of a worktree, or go on with it, and write its rows.

    Args:
        run (`PlannedRun`): The run.
        place (`Path`): The folder below which its files lie.
        code (`Path`): The worktree.

    Yields:
        As long as a process of it runs, which is killed when this is closed.

    Raises:
        RunError: A process left nothing.
    """
    files = RunFiles(place, run.key)
    began = time.time()
    write_recipe(run, files, code)
    if not files.is_trained():
        command = training_command(run, files, code)
        if any(files.folder.glob("checkpoint-*")):
            command += ["--resume_from_checkpoint", "True"]
        elif files.folder.exists():
            shutil.rmtree(files.folder)
        yield from run_process(command, code, files.log, files.is_trained)
    if not files.rows.is_file():
        plan = {
            "folder": str(files.folder),
            "rows": str(files.rows),
            "key": list(run.key),
            "block": run.block,
            "recipe_hash": run.recipe_hash,
            **run.evaluation,
            "began": began,
        }
        files.plan.write_text(json.dumps(plan))
        yield from run_process(["-m", "study.evaluate", str(files.plan)], code, files.log, files.rows.is_file)


def run_process(command: list[str], code: Path, log: Path, succeeded: Callable[[], bool]) -> Iterator[None]:
    """
    Run a Python process of the frozen code, which yields to other work, and ends if the runner is killed or this is
    closed. Raises `RunError`: it has not `succeeded`; with the last line that it wrote.
    """

    def in_child() -> None:
        os.nice(NICE)
        if _prctl is not None:
            _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    env = {**os.environ, **ONE_THREAD_OFFLINE, "PYTHONPATH": str(code)}  # before the installation's own checkout
    with log.open("w") as written:
        child = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=subprocess.STDOUT,
            cwd=code,
            env=env,
            preexec_fn=in_child,
            start_new_session=True,  # Ctrl-C is the runner's to tell
        )
    try:
        while child.poll() is None:
            yield
    finally:
        child.kill()
        child.wait()
    if not succeeded():
        lines = log.read_text(errors="replace").strip().splitlines() or ["it wrote nothing"]
        raise RunError(f"{lines[-1].strip()} ({log})")


@dataclass
class Runner:
    """
    Trains the runs of a selection, each into the tables as it ends.

    Attributes:
        root (`Path`): The checkout.
        whole (`Matrix`): Its whole matrix, whose tuning blocks choose values.
        matrix (`Matrix`): The selection.
        jobs (`int`): Runs at a time.
        commit (`str`, *optional*): The commit at which the code of further runs is frozen.
        commits (`bool`): Whether rows are committed.
        elsewhere (`Path`, *optional*): The folder of the tables, in a checkout that need not have the study's code;
            else it is that of `root`. It then need not have `CURVES` either, and curves go to `CURVES4`.
        tables (`Tables`): As they are by now.
        failed (`dict`): What went wrong, by run.
    """

    root: Path
    whole: Matrix
    matrix: Matrix
    jobs: int = 2
    commit: str | None = None
    commits: bool = True
    elsewhere: Path | None = None
    tables: Tables = field(default_factory=Tables)
    failed: dict[RunKey, str] = field(default_factory=dict)

    def run(self) -> None:
        """
        Train everything that is not finished.

        Raises:
            InputError: What was asked for cannot be run.
            RunError: Runs failed; all others were trained.
        """
        with lock_study(self.root / PLACE):
            self._train_missing()
        if self.failed:
            lines = "; ".join(f"{key}: {line}" for key, line in list(self.failed.items())[:3])
            raise RunError(f"{len(self.failed)} runs failed. {lines}. The same command tries them again")

    @property
    def folder(self) -> Path:
        """The folder of the tables."""
        return self.elsewhere or self.root / FOLDER

    def _read(self) -> Tables:
        """Read the tables; curves of earlier runs, by which values are chosen, come with the code."""
        if self.elsewhere is None:
            return read_folder(self.folder)
        return read_folder(self.folder, self._earlier_curves)

    @cached_property
    def _earlier_curves(self) -> pd.DataFrame:
        return read_table(self.root / FOLDER / CURVES)

    def _train_missing(self) -> None:
        if self.elsewhere is not None and self.commit is None:
            check_at_frozen_commit(self.root, self.folder)
        self.tables = self._read()
        missing = self._missing()
        check_tables(self.tables, self.matrix.runs)
        commit = frozen_commit(self.root, self.folder, self.commit)
        place = self.root / PLACE / commit[:12]
        code = worktree(self.root, commit, place / "code")
        lacking = check_bases(self.tables, missing, code)
        say(f"study: {progress(self.matrix, self.tables, self.jobs)}; code of {commit[:12]}")
        if lacking:
            say(f"runs wait for bases that this code does not have: {', '.join(sorted(lacking))}")
        if missing and git(self.root, "status", "--porcelain", "--", str(MATRIX.parent)):
            say(f"{MATRIX.parent} has changes that are not committed, and the runs are made by them.")
        tried: set[RunKey] = set()
        while True:
            waiting = [run for run in missing if run.key not in tried]
            ready = [run for run in waiting if not run.open_keys and run.recipe[MODEL] not in lacking]
            if not ready:
                break
            tried |= {run.key for run in ready}
            self._train(ready, place, code)
            missing = self._missing()
        open_runs = [run for run in waiting if run.open_keys]
        if open_runs:
            families = ", ".join(sorted({run.key.family for run in open_runs}))
            count = f"{len(open_runs)} runs ({families})"
            say(f"{count} wait for values chosen on validation: select the tuning blocks too.")

    def _missing(self) -> list[PlannedRun]:
        """List the runs that are not in the tables, with the values that have been chosen by now."""
        self.matrix = with_choices(self.matrix, self.whole, self.tables)
        return [run for run in self.matrix.runs if run.key not in self.tables.runs.index]

    def _train(self, waiting: list[PlannedRun], place: Path, code: Path) -> None:
        """Make all of these runs, and add each to the tables as it ends."""
        running: dict[PlannedRun, Iterator[None]] = {}
        without_base: list[PlannedRun] = []  # whose base no run has measured yet
        in_a_row = 0
        try:
            while running or (waiting and in_a_row < IN_A_ROW):
                while waiting and len(running) < self.jobs and in_a_row < IN_A_ROW:
                    run = waiting.pop(0)
                    running[run] = make_run(run, place, code)
                for run, job in list(running.items()):
                    try:
                        next(job)
                    except StopIteration:
                        del running[run]
                        in_a_row = 0
                        without_base = self._add([*without_base, run], place)
                    except RunError as error:
                        del running[run]
                        in_a_row += 1
                        self.failed[run.key] = str(error)
                        say(f"{run.key}: failed: {error}")
                if running:
                    time.sleep(LOOK_EVERY)
        finally:
            for job in running.values():
                job.close()
        why = f"stopped at numbers that are not finite, and no run has a row for its base in {BASES}: run another arm"
        for run in without_base:
            self.failed[run.key] = why

    def _add(self, ended: list[PlannedRun], place: Path) -> list[PlannedRun]:
        """Write the rows of runs that ended; return those whose base no run has measured yet."""
        with holding(self.folder):
            return self._add_alone(ended, place)

    def _add_alone(self, ended: list[PlannedRun], place: Path) -> list[PlannedRun]:
        self.tables = self._read()  # another branch may be checked out by now
        without_base = []
        lines = []
        for run in ended:
            rows = json.loads(RunFiles(place, run.key).rows.read_text())
            if not self.tables.add(run.key, rows, CURVES if self.elsewhere is None else CURVES4):
                without_base.append(run)
                continue
            line = f"{run.key}: pass@1 {rows['run']['pass@1']:.3f}"
            if rows["run"]["collapsed"]:
                line += ", collapsed"
            lines.append(line)
            say(f"{line}; {progress(self.matrix, self.tables, self.jobs)}")
        write_folder(self.folder, self.tables, with_curves=self.elsewhere is None)
        if lines and self.commits:
            try:
                commit_tables(self.folder, "\n".join([f"Study: {lines[0]}", *lines[1:]]))
            except RunError as error:  # a merge in the checkout, say; the rows are on disk
                say(f"not committed yet: {error}")
        return without_base
