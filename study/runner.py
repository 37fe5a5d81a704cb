"""
`make study`: trains the runs that are not in the tables yet, a few at a time, writes their rows, and commits them.

A run is two processes of the frozen code, training and evaluation. A run that was cut short goes on from its last
checkpoint, or begins anew; one whose rows are in the tables is finished.
"""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from study.bases import base_hash, model_of
from study.frozen import commit_tables, frozen_commit, git, worktree
from study.matrix import MATRIX, MODEL, TRAINED_BY, Matrix, Run, RunKey
from study.tables import BASES, FOLDER, Tables, check_base, read_tables, write_tables
from study.tuned import with_choices
from trl_prorl.errors import InputError, RunError
from trl_prorl.files import replaced
from trl_prorl.record.folders import FolderInUseError, FolderLock, holder
from trl_prorl.record.run_files import read_jsonl


PLACE = Path("runs", "study")  # below the checkout
LOOK_EVERY = 1.0  # seconds
IN_A_ROW = 3  # failures of different runs, after which something is wrong with all
LONG, CHECKPOINTS = 500, 6  # steps from which a run keeps checkpoints, to go on from and to measure its way; how many
NICE = 10  # the study leaves the machine to whoever works on it
# None but the runner's own keys may end up in a run.
SETTINGS = {"save_strategy": "no", "disable_tqdm": True, "report_to": "none"}
ALONE = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

_prctl = getattr(ctypes.CDLL(None), "prctl", None)
PR_SET_PDEATHSIG = 1
say = partial(print, flush=True)


def seconds_left(waiting: Iterable[RunKey], finished: pd.DataFrame, jobs: int) -> float:
    """
    Seconds until these runs are finished, `jobs` at a time; NaN before the first one is. A run takes as long as those
    of its family and steps; else of its family, by the step; else of all, by the step.
    """
    rates = finished["seconds"] / finished.index.get_level_values("steps")
    alike, kin = (rates.groupby(level=names).mean() for names in (["family", "steps"], "family"))
    times = [key.steps * alike.get((key.family, key.steps), kin.get(key.family, rates.mean())) for key in waiting]
    return sum(times) / jobs


def clock(seconds: float) -> str:
    """`2 h 05 min`, `7 min`, `under a minute`, or that nothing is known."""
    if seconds != seconds:
        return "unknown before the first run is finished"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min" if minutes else "under a minute"


def progress(matrix: Matrix, tables: Tables, jobs: int) -> str:
    """How many runs are finished, and what is left; a run of two blocks counts once."""
    total, missing = len(matrix.runs), [run.key for run in matrix.runs if run.key not in tables.runs.index]
    left = clock(seconds_left(missing, tables.runs, jobs)) if missing else "nothing"
    return f"{total - len(missing)} of {total} runs are in {FOLDER}; {jobs} at a time, left: {left}"


def status(matrix: Matrix, tables: Tables) -> str:
    """A row for each arm of a block: finished of all runs, by family, and how many collapsed."""
    runs = pd.DataFrame([{**run.key._asdict(), "block": block.name} for block in matrix.blocks for run in block.runs])
    runs = runs.join(tables.runs["collapsed"], on=list(RunKey._fields))  # NaN where it is not finished
    cells = runs.groupby(["block", "arm", "family"], sort=False)["collapsed"]
    counts = cells.count().astype(str) + "/" + cells.size().astype(str)
    table = counts.unstack("family", fill_value="")[runs["family"].unique()]
    table["collapsed"] = runs.groupby(["block", "arm"])["collapsed"].sum().astype(int)
    return table.reindex(pd.MultiIndex.from_frame(runs[["block", "arm"]]).unique()).to_string()


def check_tables(tables: Tables, runs: Iterable[Run]) -> None:
    """Refuse, as an `InputError`, keys or an evaluation of a finished run other than it had."""
    for run in (run for run in runs if run.key in tables.runs.index and not run.waits):
        row, asked, of = tables.runs.loc[run.key], run.evaluation, f"{run.key.family}, {run.key.arm}"
        drop = f"`python -m study drop --families {run.key.family} --arms {run.key.arm}`"
        if row["recipe"] != run.recipe_hash:
            raise InputError(
                f"{MATRIX}, {of}: its keys are not those of the runs in the tables (hash {run.recipe_hash}, "
                f"{row['recipe']} there). Restore them, name the new arm otherwise, or {drop}"
            )
        if (row["prompts"], row["samples"]) != (asked["prompts"], asked["samples"]):
            raise InputError(
                f"{MATRIX}: evaluation asks for {asked['prompts']} prompts and {asked['samples']} samples, and "
                f"{run.key} was evaluated on {row['prompts']} and {row['samples']}. Restore it, or {drop}"
            )


def check_bases(tables: Tables, runs: list[Run], code: Path) -> set[str]:
    """The models that are not here, whose runs wait; an `InputError` if none is, or one is not that of the tables."""
    bases = {run.key.base: run.recipe[MODEL] for run in runs}
    hashes = {model: base_hash(code, model) for model in bases.values()}
    lacking = {model for model, sha256 in hashes.items() if sha256 is None}
    for base, model in bases.items():
        if model not in lacking:
            check_base(tables.bases, base, hashes[model])
    if lacking and lacking == hashes.keys():
        raise InputError(
            f"{min(lacking)} does not come with commit {git(code, 'rev-parse', '--short=12', 'HEAD')}. Choose other "
            "pairs in matrix.yaml, or freeze a commit that has it: make study COMMIT=…"
        )
    return lacking


@contextmanager
def alone(place: Path) -> Iterator[None]:
    """While this process alone runs the study of a checkout, else an `InputError`; SIGTERM does what Ctrl-C does."""
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


def stopped(folder: Path) -> bool:
    """Whether a run ended at numbers that are not finite, and so left no policy."""
    events = read_jsonl(folder / "events.jsonl", growing=True)
    return any(event["event"] == "nonfinite" and event.get("action") == "stop" for event in events)


class Files:
    """Where a run lies on the disk; those on one base lie side by side, and share its samples."""

    def __init__(self, place: Path, key: RunKey):
        self.folder = place / f"{key.family}-base{key.base_seed}" / f"{key.arm}-seed{key.seed}-{key.steps}"
        self.recipe, self.plan, self.rows, self.log = self.beside = [
            self.folder.with_name(f"{self.folder.name}.{name}") for name in ("yaml", "plan.json", "rows.json", "log")
        ]

    def trained(self) -> bool:
        """Whether training has come to its end, with a model or without."""
        return stopped(self.folder) or (self.folder / "adapter_model.safetensors").exists()


def checkpoint_keys(run: Run) -> dict[str, Any]:
    """
    The keys by which a run keeps checkpoints: as many as its block asks for, else six of a long run. What the study
    itself trains keeps none; it is short, and begins anew.
    """
    checkpoints = run.evaluation.get("checkpoints")
    if checkpoints is None and run.key.steps >= LONG:
        checkpoints = CHECKPOINTS
    if checkpoints is None or TRAINED_BY in run.recipe:
        return {}
    return {"save_strategy": "steps", "save_steps": run.key.steps // checkpoints}


def training_command(run: Run, files: Files, code: Path) -> list[str]:
    """The arguments of Python that train a run: the product's launcher, or the study's own module."""
    module = run.recipe.get(TRAINED_BY)
    if module is not None:
        return ["-m", module, str(files.recipe)]
    return [str(code / "recipes" / "grpo_variantA.py"), "--config", str(files.recipe)]


def make(run: Run, place: Path, code: Path) -> Iterator[None]:
    """
    Train and evaluate a run below `place` with the code of a worktree, or go on with it, and write its rows: yields as
    long as a process of it runs, which is killed when this is closed. Raises `RunError`: a process left nothing.
    """
    files = Files(place, run.key)
    began = time.time()
    own = {MODEL: model_of(code, run.recipe[MODEL]), "output_dir": str(files.folder)}
    keys = {**run.product_recipe, **SETTINGS, **checkpoint_keys(run), **own}
    recipe = yaml.safe_dump(keys)
    if not files.recipe.is_file() or files.recipe.read_text() != recipe:  # of another matrix
        shutil.rmtree(files.folder, ignore_errors=True)
        for path in files.beside:
            path.unlink(missing_ok=True)
        files.recipe.parent.mkdir(parents=True, exist_ok=True)
        with replaced(files.recipe) as aside:
            aside.write_text(recipe)
    if not files.trained():
        command = training_command(run, files, code)
        if any(files.folder.glob("checkpoint-*")):
            command += ["--resume_from_checkpoint", "True"]
        elif files.folder.exists():
            shutil.rmtree(files.folder)
        yield from process(command, code, files.log, files.trained)
    if not files.rows.is_file():
        plan = {"folder": str(files.folder), "rows": str(files.rows), "key": list(run.key), "block": run.block}
        plan |= {"recipe_hash": run.recipe_hash, **run.evaluation, "began": began}
        files.plan.write_text(json.dumps(plan))
        yield from process(["-m", "study.evaluate", str(files.plan)], code, files.log, files.rows.is_file)


def process(command: list[str], code: Path, log: Path, made: Callable[[], bool]) -> Iterator[None]:
    """
    A Python process of the frozen code, which yields to other work, and ends if the runner is killed or this is
    closed. Raises `RunError`: it has not `made` what it was to make; with the last line that it wrote.
    """

    def in_child() -> None:
        os.nice(NICE)
        if _prctl is not None:
            _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    env = {**os.environ, **ALONE, "PYTHONPATH": str(code)}  # before the installation's own checkout
    with log.open("w") as written:
        child = subprocess.Popen(
            [sys.executable, *command], stdin=subprocess.DEVNULL, stdout=written, stderr=subprocess.STDOUT, cwd=code,
            env=env, preexec_fn=in_child, start_new_session=True,  # Ctrl-C is the runner's to tell
        )  # fmt: skip
    try:
        while child.poll() is None:
            yield
    finally:
        child.kill()
        child.wait()
    if not made():
        line = (log.read_text(errors="replace").strip().splitlines() or ["it wrote nothing"])[-1].strip()
        raise RunError(f"{line} ({log})")


@dataclass
class Runner:
    """
    The runs of a selection of a checkout's whole matrix, `jobs` at a time, each into the tables as it ends; the code
    of further runs is frozen at `commit`, if it is given. `commits`: whether rows are committed.
    """

    root: Path
    whole: Matrix
    matrix: Matrix
    jobs: int = 2
    commit: str | None = None
    commits: bool = True
    tables: Tables = field(default_factory=Tables)
    failed: dict[RunKey, str] = field(default_factory=dict)

    def run(self) -> None:
        """
        Train everything that is not finished. Raises `InputError`: what was asked for cannot be run; `RunError`: runs
        failed; all others were trained.
        """
        with alone(self.root / PLACE):
            self.tables = read_tables(self.root)
            missing = self._missing()
            check_tables(self.tables, self.matrix.runs)
            commit = frozen_commit(self.root, self.commit)
            place = self.root / PLACE / commit[:12]
            code = worktree(self.root, commit, place / "code")
            lacking = check_bases(self.tables, missing, code)
            say(f"study: {progress(self.matrix, self.tables, self.jobs)}; code of {commit[:12]}")
            if lacking:
                say(f"runs wait for bases that this code does not have: {', '.join(sorted(lacking))}")
            if missing and git(self.root, "status", "--porcelain", "--", str(MATRIX.parent)):
                say(f"{MATRIX.parent} has changes that are not committed, and the runs are made by them.")
            tried: set[RunKey] = set()
            while ready := [run for run in missing if not run.waits and run.recipe[MODEL] not in lacking]:
                tried |= {run.key for run in ready}
                self._train(ready, place, code)
                missing = [run for run in self._missing() if run.key not in tried]
            if waiting := [run for run in missing if run.waits]:
                of = ", ".join(sorted({run.key.family for run in waiting}))
                say(f"{len(waiting)} runs ({of}) wait for values chosen on validation: select the tuning blocks too.")
        if self.failed:
            lines = "; ".join(f"{key}: {line}" for key, line in list(self.failed.items())[:3])
            raise RunError(f"{len(self.failed)} runs failed. {lines}. The same command tries them again")

    def _missing(self) -> list[Run]:
        """With the values that have been chosen by now."""
        self.matrix = with_choices(self.matrix, self.whole, self.tables)
        return [run for run in self.matrix.runs if run.key not in self.tables.runs.index]

    def _train(self, waiting: list[Run], place: Path, code: Path) -> None:
        """Make all of these runs, and add each to the tables as it ends."""
        running: dict[Run, Iterator[None]] = {}
        homeless: list[Run] = []  # whose base no run has measured yet
        in_a_row = 0
        try:
            while running or waiting and in_a_row < IN_A_ROW:
                while waiting and len(running) < self.jobs and in_a_row < IN_A_ROW:
                    run = waiting.pop(0)
                    running[run] = make(run, place, code)
                for run, job in list(running.items()):
                    try:
                        next(job)
                    except StopIteration:
                        del running[run]
                        in_a_row, homeless = 0, self._add([*homeless, run], place)
                    except RunError as error:
                        del running[run]
                        in_a_row += 1
                        self.failed[run.key] = str(error)
                        say(f"{run.key}: failed: {error}")
                time.sleep(LOOK_EVERY if running else 0)
        finally:
            for job in running.values():
                job.close()
        why = f"stopped at numbers that are not finite, and no run has a row for its base in {BASES}: run another arm"
        self.failed |= {run.key: why for run in homeless}

    def _add(self, ended: list[Run], place: Path) -> list[Run]:
        """Write the rows of runs that ended; returns those whose base no run has measured yet."""
        self.tables = read_tables(self.root)  # another branch may be checked out by now
        left, lines = [], []
        for run in ended:
            rows = json.loads(Files(place, run.key).rows.read_text())
            if not self.tables.add(run.key, rows):
                left.append(run)
                continue
            collapsed = ", collapsed" if rows["run"]["collapsed"] else ""
            lines.append(f"{run.key}: pass@1 {rows['run']['pass@1']:.3f}{collapsed}")
            say(f"{lines[-1]}; {progress(self.matrix, self.tables, self.jobs)}")
        write_tables(self.root, self.tables)
        try:
            if lines and self.commits:
                commit_tables(self.root, "\n".join([f"Study: {lines[0]}", *lines[1:]]))
        except RunError as error:  # a merge in the checkout, say; the rows are on disk
            say(f"not committed yet: {error}")
        return left
