"""
Trainings as real processes: forks of this one, which has paid for the imports.

A process runs the recipe script itself, with what its `Job` holds done to it first: see stages.py and mutants.py.
"""

import faulthandler
import os
import pickle
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import wait
from pathlib import Path

import bitsandbytes  # noqa: F401  imported by every training
import torch
from mutants import MUTANTS
from stages import Accident, Watch

import trl_prorl.train  # noqa: F401  what every recipe script imports


HANGS = 900  # seconds, for a run of a few; a machine that is busy with other things takes many
GRACE = 5  # seconds that a process has when another one of its run is dead, as a launcher gives


@dataclass
class Job:
    """What runs, where, and what happens to it."""

    script: str
    argv: list[str]
    cwd: Path
    folder: Path  # for logs, notes and counts
    processes: int = 1
    accident: Accident | None = None
    rank: int = 0  # of the process to which the accident happens
    kill_after: float = 0.0  # seconds after which every process is killed, wherever it is
    all_die: bool = False  # the others die with the process that an accident kills, as in a power loss
    mutant: str | None = None  # a defect, see mutants.py
    count: bool = False  # count calls and file operations by stage


@dataclass
class Ended:
    """How it ended."""

    statuses: list[int]  # of every process, a signal's negative
    log: str
    seconds: float
    counts: dict[tuple[str, int], Counter] = field(default_factory=dict)  # of calls and file operations
    struck: str = ""  # stage, step and line of the accident, if it came

    @property
    def hung(self) -> bool:
        return "Timeout (0:" in self.log

    @property
    def failed(self) -> str:
        """How it did not end well, with the end of its log; empty if it did."""
        return "\n".join(["failed:", *self.log.strip().splitlines()[-40:]]) if any(self.statuses) else ""


def train(job: Job, rank: int, port: int, log: int) -> None:
    """The body of every process."""
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir(job.cwd)
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(HANGS, exit=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs begin with it ignored
    signal.setitimer(signal.ITIMER_REAL, job.kill_after)  # nothing handles its signal, so that it kills
    if job.processes > 1:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        os.environ |= dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank))
        os.environ |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(job.processes))
    if job.mutant:
        MUTANTS[job.mutant]()
    watched = rank == job.rank and (job.accident or job.count)
    watch = Watch(job.folder / "note", job.accident) if watched else None
    sys.argv = [job.script, *job.argv]
    runpy.run_path(job.script, run_name="__main__")
    if watch is not None:
        watch.over()
        (job.folder / "counts").write_bytes(pickle.dumps(dict(watch.counts)))


def run(job: Job) -> Ended:
    """A run, from its start to its end, whatever that is."""
    os.environ |= {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    job.folder.mkdir(parents=True)
    began = time.monotonic()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with open(job.folder / "log", "wb") as written:
        # Through a pipe, as a terminal is none of the files that a full disk or a limit of their size reaches.
        cat = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=written, start_new_session=True)
    log = cat.stdin.fileno()
    fork = get_context("fork").Process
    group = [fork(target=train, args=(job, rank, port, log)) for rank in range(job.processes)]
    for process in group:
        process.start()
    cat.stdin.close()
    while running := [process for process in group if process.is_alive()]:
        wait([process.sentinel for process in running])
        if any(process.exitcode for process in group):
            for process in running:
                process.join(0 if job.all_die else GRACE)
                (process.kill if job.all_die else process.terminate)()
    cat.wait()
    ended = Ended(
        statuses=[process.exitcode for process in group],
        log=(job.folder / "log").read_text(errors="replace"),
        seconds=time.monotonic() - began,
    )
    note = job.folder / "note"
    counts = job.folder / "counts"
    if note.exists():
        ended.struck = note.read_text()
    elif -signal.SIGALRM in ended.statuses:
        ended.struck = "any time"
    if counts.exists():
        ended.counts = pickle.loads(counts.read_bytes())
    return ended
