"""
Trainings as real processes: forks of this one, which has paid for the imports, or `torchrun`, which starts this file.

A process runs the recipe script itself, with what its `Job` holds done to it first: see stages.py and mutants.py.
"""

import faulthandler
import json
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
    cwd: str
    folder: Path  # for logs, notes and counts
    processes: int = 1
    torchrun: bool = False
    accident: Accident | None = None
    rank: int = 0  # of the process to which the accident happens
    kill_after: float = 0.0  # seconds after which every process is killed, wherever it is
    all_die: bool = False  # the others die with the process that an accident kills, as in a power loss
    mutant: str | None = None  # a defect, see mutants.py
    count: bool = False  # count calls and file operations by stage
    port: int = 0  # at which several processes meet


@dataclass
class Ended:
    """How it ended."""

    statuses: list[int]  # of every process, a signal's negative; with torchrun the launcher's alone
    log: str
    seconds: float
    counts: dict[tuple[str, int], Counter] = field(default_factory=dict)  # of calls and file operations
    struck: dict | None = None  # stage, step and line of the accident, if it came

    @property
    def hung(self) -> bool:
        return "Timeout (0:" in self.log

    @property
    def failed(self) -> str:
        """How it did not end well, with the end of its log; empty if it did."""
        last = self.log.strip().splitlines()[-40 if self.hung else -12 :]
        return "\n".join(["failed:", *last]) if any(self.statuses) else ""


def train(job: Job, rank: int, log: int | None = None) -> None:
    """The body of every process."""
    if log is not None:
        os.dup2(log, 1)
        os.dup2(log, 2)
    os.chdir(job.cwd)
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(HANGS, exit=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs begin with it ignored
    signal.setitimer(signal.ITIMER_REAL, job.kill_after)  # nothing handles its signal, so that it kills
    if job.processes > 1 and not job.torchrun:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(job.port), "RANK": str(rank)}
        os.environ |= {"LOCAL_RANK": str(rank)} | dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(job.processes))
    if job.mutant:
        MUTANTS[job.mutant]()
    watched = rank == job.rank and (job.accident or job.count)
    watch = Watch(job.folder / "note", job.accident) if watched else None
    sys.argv = [job.script, *job.argv]
    runpy.run_path(job.script, run_name="__main__")
    if watch is not None:
        watch.over()
        (job.folder / "counts").write_bytes(pickle.dumps(dict(watch.counts)))


def torchrun(job: Job, log: int) -> None:
    """Become the launcher of a job."""
    os.dup2(log, 1)
    os.dup2(log, 2)
    (job.folder / "job").write_bytes(pickle.dumps(job))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={job.processes}"]
    os.execv(sys.executable, [*command, __file__, str(job.folder / "job")])


def run(job: Job) -> Ended:
    """A run, from its start to its end, whatever that is."""
    os.environ |= {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    job.folder.mkdir(parents=True)
    began = time.monotonic()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        job.port = probe.getsockname()[1]
    with open(job.folder / "log", "wb") as written:
        # Through a pipe, as a terminal is none of the files that a full disk or a limit of their size reaches.
        cat = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=written, start_new_session=True)
    log = cat.stdin.fileno()
    bodies = [(torchrun, (job, log))] if job.torchrun else [(train, (job, rank, log)) for rank in range(job.processes)]
    group = [get_context("fork").Process(target=target, args=args) for target, args in bodies]
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
    statuses = [process.exitcode for process in group]
    note = job.folder / "note"
    counts = job.folder / "counts"
    struck = json.loads(note.read_text()) if note.exists() else None
    if -signal.SIGALRM in statuses:
        struck = {"stage": "any", "step": "time", "where": "anywhere"}
    log = (job.folder / "log").read_text(errors="replace")
    counted = pickle.loads(counts.read_bytes()) if counts.exists() else {}
    return Ended(statuses, log, time.monotonic() - began, counted, struck)


if __name__ == "__main__":
    import processes  # the job's class is that module's

    processes.train(pickle.loads(Path(sys.argv[1]).read_bytes()), int(os.environ["RANK"]))
    # Torn down by the interpreter, gloo's threads abort the process about once in twenty runs.
    os._exit(0)
