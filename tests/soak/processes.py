"""
Trainings as real processes: forks of this one, which has paid for the imports, or `torchrun`.

A process runs the recipe script itself, with what `job` holds done to it first: see stages.py and mutants.py.
"""

import faulthandler
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path

import bitsandbytes  # noqa: F401  imported by every training
import torch
from mutants import MUTANTS
from stages import Accident, Watch, install

import trl_prorl.train  # noqa: F401  what every recipe script imports


WORKER = Path(__file__).with_name("worker.py")
HANGS = 900  # seconds, for a run of a few; a machine that is busy with other things takes many
GRACE = 5  # seconds that a process has when another one of its run is dead, as a launcher gives


@dataclass
class Job:
    """What runs, where, and what happens to it."""

    script: str
    argv: list[str]
    cwd: str
    folder: str  # for boards, notes and logs
    processes: int = 1
    torchrun: bool = False
    accident: Accident | None = None
    rank: int = 0  # of the process to which the accident happens
    kill_after: float | None = None  # seconds after which every process gets a SIGKILL, wherever it is
    all_die: bool = False  # the others die with the process that an accident kills, as in a power loss
    mutant: str | None = None  # a defect, see mutants.py
    count: bool = False  # count calls and file operations by stage


@dataclass
class Ended:
    """How it ended."""

    statuses: list[int]  # of every process, a signal's negative; with torchrun the launcher's alone
    log: str
    seconds: float
    counts: dict = field(default_factory=dict)  # of calls and file operations by stage and step
    struck: dict | None = None  # stage, step and line of the accident, if it came
    hung: bool = False

    @property
    def failed(self) -> str:
        """How it did not end well, with the end of its log; empty if it did."""
        if not self.hung and not any(self.statuses):
            return ""
        last = self.log.strip().splitlines()[-40 if self.hung else -12 :]
        return "\n".join(["hung:" if self.hung else "failed:", *last])


def train(job: Job, rank: int) -> int:
    """The body of every process: exit status."""
    folder = Path(job.folder)
    os.chdir(job.cwd)
    torch.set_num_threads(1)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    meant = rank == job.rank
    watch = Watch(
        folder / f"board{rank}", folder / f"note{rank}", job.accident if meant else None, job.count and meant
    )
    if job.mutant:
        MUTANTS[job.mutant]()
    install(watch)
    sys.argv = [job.script, *job.argv]
    status = 1
    try:
        runpy.run_path(job.script, run_name="__main__")
        watch.over()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        traceback.print_exc()
        status = -signal.SIGINT
    except BaseException:
        traceback.print_exc()
    watch.leave()
    if watch.counting:
        (folder / f"counts{rank}").write_text(json.dumps(watch.counts))
    sys.stdout.flush()
    sys.stderr.flush()
    return status


def fork(job: Job, rank: int, env: dict[str, str], log: int) -> int:
    """Begin, and return the process id."""
    process = os.fork()
    if process:
        return process
    status = 1
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs begin with it ignored
    try:
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ.update(env)
        status = train(job, rank)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        if status == -signal.SIGINT:  # as a shell sees a program that Ctrl-C has ended
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        os._exit(status)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Group:
    """The processes of one run, awaited together."""

    def __init__(self, job: Job, log: int):
        env = {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
        self.launcher = None
        if job.torchrun:
            order = Path(job.folder, "job.json")
            order.write_text(json.dumps(asdict(job)))
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
            command += [f"--nproc_per_node={job.processes}", str(WORKER), str(order)]
            self.launcher = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **env}, cwd=job.cwd)
            self.running = {self.launcher.pid: 0}
            return
        if job.processes > 1:
            env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(job.processes)}
            env["LOCAL_WORLD_SIZE"] = env["WORLD_SIZE"]
        self.running = {}
        for rank in range(job.processes):
            ranks = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if job.processes > 1 else {}
            self.running[fork(job, rank, env | ranks, log)] = rank

    def ended(self) -> dict[int, int]:
        """Exit status by rank of those that have ended since the last call."""
        found = {}
        for process, rank in list(self.running.items()):
            if self.launcher is not None:
                status = self.launcher.poll()
            else:
                done, code = os.waitpid(process, os.WNOHANG)
                status = os.waitstatus_to_exitcode(code) if done else None
            if status is not None:
                found[rank] = status
                del self.running[process]
        return found

    def send(self, number: int) -> None:
        for process in self.running:
            os.kill(process, number)


def run(job: Job) -> Ended:
    """A run, from its start to its end, whatever that is."""
    folder = Path(job.folder)
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    statuses: dict[int, int] = {}
    hung, first_end, struck_from_outside = False, None, None
    sys.stdout.flush()
    with open(folder / "log", "wb") as written:
        # Through a pipe, as a terminal is none of the files that a full disk or a limit of their size reaches.
        log = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=written, start_new_session=True)
    group = Group(job, log.stdin.fileno())
    log.stdin.close()
    while group.running:
        time.sleep(0.01)
        now = time.monotonic()
        statuses |= group.ended()
        if job.kill_after is not None and struck_from_outside is None and now - began > job.kill_after:
            group.send(signal.SIGKILL)
            struck_from_outside = board(folder, job.rank)
        if statuses and group.running:
            first_end = first_end or now
            waited = 3 * GRACE if job.all_die else now - first_end
            if any(statuses.values()) and waited > GRACE:
                group.send(signal.SIGKILL if waited > 2 * GRACE else signal.SIGTERM)
        if now - began > HANGS and not hung:
            hung = True
            group.send(signal.SIGTERM if job.torchrun else signal.SIGUSR1)
            time.sleep(1)
            group.send(signal.SIGTERM if job.torchrun else signal.SIGKILL)
    log.wait()
    note, counts = (written_in(folder / f"{name}{job.rank}") for name in ("note", "counts"))
    log = (folder / "log").read_text(errors="replace")
    struck = json.loads(note) if note else struck_from_outside
    ended = [statuses[rank] for rank in sorted(statuses)]
    return Ended(ended, log, time.monotonic() - began, json.loads(counts or "{}"), struck, hung)


def written_in(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def board(folder: Path, rank: int) -> dict:
    """The stage in which a process is, or was when it died."""
    words = written_in(folder / f"board{rank}").split()
    stage, step = words if len(words) == 2 else ("start", 0)
    return {"stage": stage, "step": int(step), "where": "anywhere"}
