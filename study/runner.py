"""`make study`: trains the runs that are not in the tables yet, writes their rows, and commits them."""

import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from study.estimate import clock, seconds_left
from study.frozen import base_hash, commit_tables, frozen_commit, git, worktree
from study.job import Job
from study.matrix import MATRIX, Matrix, Run, RunKey
from study.tables import FOLDER, BaseKey, Tables, check_base, read_tables, write_tables
from study.tuned import with_choices
from trl_prorl.errors import InputError, RunError
from trl_prorl.record.lock import FolderInUseError, FolderLock, holder


PLACE = Path("runs", "study")  # below the checkout
LOOK_EVERY = 1.0  # seconds
IN_A_ROW = 3  # failures of different runs, after which something is wrong with all


@dataclass(frozen=True)
class Options:
    """
    What the command line says.

    Attributes:
        jobs (`int`): Runs at a time.
        commit (`str` or `None`): The commit to freeze the code at, from now on.
        commits (`bool`): Whether rows are committed.
        commit_every (`float`): Least seconds between two commits.
    """

    jobs: int = 2
    commit: str | None = None
    commits: bool = True
    commit_every: float = 300.0


def check_tables(tables: Tables, matrix: Matrix) -> None:
    """
    Refuse to add runs to tables of another study.

    Raises:
        InputError: A finished run had other keys, or another evaluation, than the matrix gives it now.
    """
    for run in matrix.runs:
        row, key = tables.runs.get(run.key), run.key
        if row is None or run.waits:
            continue
        drop = f"`python -m study drop --families {key.family} --arms {key.arm}`"
        if row["recipe"] != run.recipe_hash:
            raise InputError(
                f"{MATRIX}, {key.family}, {key.arm}: its keys are not those of the runs in the tables (hash "
                f"{run.recipe_hash}, {row['recipe']} there). Restore them, give the new arm a name of its own, or "
                f"{drop}"
            )
        if (row["prompts"], row["samples"]) != (matrix.prompts, matrix.samples):
            raise InputError(
                f"{MATRIX}: evaluation asks for {matrix.prompts} prompts and {matrix.samples} samples, and {key} was "
                f"evaluated on {row['prompts']} and {row['samples']}. Restore it, or {drop}"
            )


def check_bases(tables: Tables, runs: list[Run], code: Path) -> set[BaseKey]:
    """
    Refuse bases that the frozen code has otherwise than the tables.

    Returns:
        `set[BaseKey]`: The bases that the frozen code lacks, whose runs have to wait.

    Raises:
        InputError: Naming the base and the cure; also where the frozen code has none of them.
    """
    bases = {BaseKey.of(run.key): run.recipe["task"] for run in runs}
    lacking: dict[BaseKey, InputError] = {}
    for base, task in bases.items():
        try:
            here = base_hash(code, task, base.base_seed)
        except InputError as error:
            lacking[base] = error
            continue
        if base in tables.bases:
            check_base(tables.bases[base], here)
    if lacking and len(lacking) == len(bases):
        raise next(iter(lacking.values()))
    return set(lacking)


@contextmanager
def alone(place: Path) -> Iterator[None]:
    """
    The time in which this process alone runs the study of a checkout.

    Raises:
        InputError: Another one does.
    """
    lock = FolderLock(place)
    try:
        lock.hold()
    except FolderInUseError:
        raise InputError(f"the study runs already: {holder(place) or 'another process'}. Wait, or stop it") from None
    try:
        yield
    finally:
        lock.let_go()


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM does what Ctrl-C does."""

    def interrupt(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Runner:
    """
    The runs of a selection, a few at a time, each into the tables as it ends.

    Args:
        root (`Path`): The checkout, which holds matrix and tables.
        whole (`Matrix`): The matrix.
        matrix (`Matrix`): The selection of it.
        options (`Options`): What the command line says.
        console (`Console`, *optional*): Where it speaks.
    """

    def __init__(self, root: Path, whole: Matrix, matrix: Matrix, options: Options, console: Console | None = None):
        self.root, self.whole, self.matrix, self.options = root, whole, matrix, options
        self.console = console or Console()
        self.tables = Tables()
        self.failed: list[Job] = []
        self.uncommitted: list[str] = []
        self._in_a_row = 0
        self._tried: set[RunKey] = set()
        self._lacking: set[BaseKey] = set()
        self._committed_at = 0.0

    def run(self) -> None:
        """
        Train everything that is not finished.

        Raises:
            InputError: What was asked for cannot be run.
            RunError: Runs failed; all others were trained.
        """
        with alone(self.root / PLACE), terminated_as_interrupted():
            self.tables = read_tables(self.root)
            self._take_choices()
            check_tables(self.tables, self.matrix)
            commit = frozen_commit(self.root, self.options.commit)
            place = self.root / PLACE / commit[:12]
            missing = self._missing()
            code = worktree(self.root, commit, place / "code")
            self._lacking = check_bases(self.tables, missing, code)
            self._announce(commit, missing)
            try:
                while ready := [run for run in self._missing() if self._is_ready(run)]:
                    self._tried |= {run.key for run in ready}
                    self._train([Job(run, self.matrix, code, place) for run in ready])
                    self._take_choices()
            finally:
                self._commit(now=True)
            if waiting := [run for run in self._missing() if run.waits]:
                of = ", ".join(sorted({run.key.family for run in waiting}))
                self.console.print(
                    f"{len(waiting)} runs ({of}) wait for values that are chosen on validation: select the tuning "
                    "blocks too.",
                    soft_wrap=True,
                )
        if self.failed:
            lines = "; ".join(f"{job.run.key}: {job.last_line()} ({job.log})" for job in self.failed[:3])
            raise RunError(f"{len(self.failed)} runs failed. {lines}. The same command tries them again")

    def _take_choices(self) -> None:
        self.matrix = with_choices(self.matrix, self.whole, self.tables)

    def _missing(self) -> list[Run]:
        return [run for run in self.matrix.runs if run.key not in self.tables.runs]

    def _is_ready(self, run: Run) -> bool:
        return not run.waits and run.key not in self._tried and BaseKey.of(run.key) not in self._lacking

    def _announce(self, commit: str, missing: list[Run]) -> None:
        total = len(self.matrix.runs)
        left = clock(self._left([run.key for run in missing]))
        self.console.print(
            f"study: {total - len(missing)} of {total} runs are in {FOLDER}; code of {commit[:12]}; "
            f"{self.options.jobs} at a time, left: {left if missing else 'nothing'}",
            soft_wrap=True,
        )
        if self._lacking:
            names = ", ".join(f"{base.family} {base.base_seed}" for base in sorted(self._lacking))
            self.console.print(f"runs wait for bases that this code does not have: {names}", soft_wrap=True)
        if missing and git(self.root, "status", "--porcelain", "--", str(MATRIX.parent)):
            self.console.print(f"{MATRIX.parent} has changes that are not committed, and the runs are made by them.")

    def _left(self, waiting: list[RunKey]) -> float | None:
        return seconds_left(waiting, self.tables.runs, self.options.jobs)

    def _train(self, waiting: list[Job]) -> None:
        running: list[Job] = []
        ended: list[Job] = [job for job in waiting if job.finished]
        waiting = [job for job in waiting if not job.finished]
        columns = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, TextColumn("{task.fields[more]}"), console=self.console) as progress:
            whole = progress.add_task("study", total=len(waiting) + len(ended), more="")
            bars = {}
            try:
                while waiting or running or ended:
                    ended = self._merge(ended, progress, last=not waiting and not running)
                    while waiting and len(running) < self.options.jobs and self._in_a_row < IN_A_ROW:
                        job = waiting.pop(0)
                        job.start()
                        bars[job] = progress.add_task(
                            f"{job.folder.parent.name} {job.folder.name}", total=job.run.key.steps, more=job.phase
                        )
                        running.append(job)
                    if not running:
                        if self._in_a_row >= IN_A_ROW:
                            break
                        continue
                    time.sleep(LOOK_EVERY)
                    for job in list(running):
                        code = job.check()
                        progress.update(bars[job], completed=job.steps_done(), more=job.phase)
                        if code is not None:
                            running.remove(job)
                            progress.remove_task(bars.pop(job))
                            self._note(job, code, ended)
                    left = self._left([job.run.key for job in (*waiting, *running)])
                    done = progress.tasks[0].total - len(waiting) - len(running) - len(ended)
                    progress.update(whole, completed=done, more=f"left: {clock(left)}")
            finally:
                before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the end is short
                for job in running:
                    job.end()
                self._merge(ended, progress, last=False)
                signal.signal(signal.SIGINT, before)

    def _note(self, job: Job, code: int, ended: list[Job]) -> None:
        if code == 0:
            self._in_a_row = 0
            ended.append(job)
            return
        self._in_a_row += 1
        self.failed.append(job)
        self.console.print(f"{job.run.key}: failed: {job.last_line()} ({job.log})", soft_wrap=True, markup=False)

    def _merge(self, ended: list[Job], progress: Progress, last: bool) -> list[Job]:
        """Write the rows of runs that ended; returns those whose base no run has measured yet."""
        waiting = []
        if ended:
            self.tables = read_tables(self.root)  # another branch may be checked out by now
        added = []
        for job in ended:
            rows = json.loads(job.rows.read_text())
            base = BaseKey.of(job.run.key)
            if "base" in rows:
                self.tables.add_base(rows["base"], rows["base_prompts"])
            if base not in self.tables.bases:
                waiting.append(job)
                continue
            self.tables.add_run(rows["run"], rows["curve"], rows["prompts"])
            row = rows["run"]
            collapsed = ", collapsed" if row["collapsed"] else ""
            added.append(f"{job.run.key}: pass@1 {row['pass@1']:.3f}{collapsed}")
        if added:
            write_tables(self.root, self.tables)
            self.uncommitted += added
            for line in added:
                progress.console.print(line, soft_wrap=True, highlight=False)
        self._commit()
        if last and waiting:
            self.failed += waiting
            self.console.print(
                f"{len(waiting)} runs stopped at numbers that are not finite, and no other run on their base has "
                "measured it: they are not in the tables yet. Run another arm on that base."
            )
            return []
        return waiting

    def _commit(self, now: bool = False) -> None:
        if not self.options.commits or not self.uncommitted:
            return
        if not now and time.monotonic() - self._committed_at < self.options.commit_every:
            return
        lines = self.uncommitted
        subject = lines[0] if len(lines) == 1 else f"{len(lines)} runs"
        try:
            commit_tables(self.root, f"Study: {subject}" + ("\n\n" + "\n".join(lines) if len(lines) > 1 else ""))
            self.uncommitted = []
        except RunError as error:  # a merge in the checkout, say; the rows are on disk
            self.console.print(f"not committed yet: {error}", soft_wrap=True, markup=False)
        self._committed_at = time.monotonic()
