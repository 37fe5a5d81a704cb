"""Run model-written code against tests, isolated, so that it can do no harm and cannot fake a pass."""

import os
import pickle
import secrets
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from trl_prorl.tasks.isolated.lockdown import MACHINES
from trl_prorl.tasks.worker import PIPES


ISOLATED = Path(__file__).with_name("isolated")
HARNESS = "harness.py"
POLL_SECONDS = 0.1
START_SECONDS = 30.0  # in addition to the time of a run; starting usually takes well below one second
INSTALL = "`apt-get install -y bubblewrap` (elsewhere: your distribution's package `bubblewrap`)"
WEAK = (
    "allow_weak_sandbox: without bubblewrap model-written code can read every file that this user can read, other "
    "processes' memory and environment included, and it sees this machine's name, users and processes. It cannot "
    "write files, open connections or start processes, and its time and memory are limited."
)


@dataclass(frozen=True)
class Limits:
    """
    The limits of one run.

    Attributes:
        cpu_seconds (`int`): CPU time of the code, and of the tests.
        wall_seconds (`float`): time from the start of the code to the verdict.
        memory_mib (`int`): address space of each process.
    """

    cpu_seconds: int = 2
    wall_seconds: float = 6.0
    memory_mib: int = 512


class Program(NamedTuple):
    """
    Code and its tests.

    Attributes:
        code (`str`): the model's code.
        tests (`tuple[str, ...]`): statements, usually one `assert` each. They call the code's functions by name;
            arguments and results are passed by value.
        entry_point (`str`): name of the function under test.
        setup (`str`): statements that run before the code and, in another process, before the tests.
    """

    code: str
    tests: tuple[str, ...]
    entry_point: str
    setup: str = ""


def mounts(paths: Sequence[Path]) -> Iterator[str]:
    """Return bubblewrap arguments that mount these folders and files read-only, and keep links as links."""
    # Parent folders, which bubblewrap would otherwise make accessible to root only.
    for parent in sorted({parent for path in paths for parent in path.parents if parent != Path("/")}):
        yield from ("--perms", "0755", "--dir", str(parent))
    for path in dict.fromkeys(paths):
        if path.is_symlink():
            yield from ("--symlink", os.readlink(path), str(path))
        elif path.exists():
            yield from ("--ro-bind", str(path), str(path))


def bubblewrap_command(python: Path, root: bool) -> list[str]:
    """
    Return the command that starts the harness in a read-only file system with Python and the system's libraries, and
    without `/proc`, `/tmp`, `/home` and `/etc`. Root gets no user namespace: it would remain the kernel's root there,
    and the limit on processes would not apply. The harness switches to the user nobody instead.
    """
    prefix = python.parent.parent
    libraries = [Path(root, name) for root in ("/usr", "/") for name in ("lib", "lib32", "lib64", "libx32")]
    shown = [*libraries, Path("/etc/ld.so.cache"), prefix / "lib", prefix / "lib64", python]
    namespaces = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    if root:
        privileges = ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        privileges = ["--unshare-user", "--uid", "65534", "--gid", "65534", "--cap-drop", "ALL"]
    return [
        *("bwrap", *namespaces, *privileges, "--die-with-parent", "--new-session", "--clearenv"),
        *("--setenv", "PYTHONHASHSEED", "0", "--hostname", "sandbox"),
        *mounts(shown),
        *("--dev-bind", "/dev/null", "/dev/null", "--ro-bind", str(ISOLATED), "/isolated"),
        *("--remount-ro", "/", "--chdir", "/"),
        *python_command(python, Path("/isolated")),
    ]


def python_command(python: Path, folder: Path) -> list[str]:
    """Return the command that starts the harness without site-packages and user packages."""
    return [str(python), "-s", "-S", str(folder / HARNESS)]


class Sandbox:
    """
    Run model-written code in isolation.

    Under bubblewrap, the code is unprivileged, sees no network, environment, home folder or other processes, cannot
    write files or start processes or threads, and is killed at its limits. The tests run in a separate process, which
    calls the code by value and answers with a nonce that the code's process never sees; see
    `tasks/isolated/harness.py`.

    Args:
        limits ([`Limits`], *optional*): the limits of a run.
        allow_weak (`bool`, *optional*, defaults to `False`): run without bubblewrap if it does not work here, with a
            warning (`WEAK`) about what is then not isolated.

    Raises:
        `ValueError`: If bubblewrap does not work here, and the weaker mode is not allowed or does not work either.
    """

    def __init__(self, limits: Limits | None = None, allow_weak: bool = False):
        self.limits = limits or Limits()
        self.isolation = "bubblewrap"
        problem = find_problem("bubblewrap")
        if problem and not allow_weak:
            raise ValueError(
                f"model-written code needs a sandbox: {problem}. Or set allow_weak_sandbox: true, which lets the code "
                "read this user's files"
            )
        if problem:
            self.isolation = "weak"
            problem = find_problem("weak")
            if problem:
                raise ValueError(f"allow_weak_sandbox=True: {problem}")
            warnings.warn(WEAK, stacklevel=3)

    def run(self, program: Program) -> int:
        """
        Return the number of tests that pass; 0 if a limit ends the run, because the nonce never arrives then.

        Raises:
            `RuntimeError`: If the sandbox itself does not start.
        """
        return run_here(self.isolation, self.limits, program)

    def run_many(self, programs: Sequence[Program]) -> list[int]:
        """Call [`Sandbox.run`] for each program, as many at a time as there are CPUs."""
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            return list(pool.map(self.run, programs))


def run_here(isolation: str, limits: Limits, program: Program) -> int:
    """Call [`run_command`] with the current interpreter and user."""
    python = Path(os.path.realpath(sys.executable))
    if isolation == "bubblewrap":
        is_root = os.geteuid() == 0
        return run_command(bubblewrap_command(python, is_root), is_root, limits, program)
    return run_command(python_command(python, ISOLATED), False, limits, program)


def run_command(command: Sequence[str], drop_root: bool, limits: Limits, program: Program) -> int:
    """
    Start the harness and return the number of tests that pass; see [`Sandbox.run`].

    Args:
        command (`Sequence[str]`): the command that starts the harness.
        drop_root (`bool`): whether it starts as root and must switch to the user nobody.
        limits ([`Limits`]), program ([`Program`]): limits of the run, and the program.
    """
    nonce = secrets.token_hex(16)
    code = program.code.encode("utf-8", "replace").decode()  # lone surrogates can be neither compiled nor sent
    for_code = (program.setup, code, limits.memory_mib, limits.cpu_seconds, drop_root)
    frames = b""
    for part in (for_code, (program.tests, program.entry_point, nonce)):
        payload = pickle.dumps(part)
        frames += len(payload).to_bytes(4, "big") + payload
    env = {"PATH": os.environ.get("PATH", os.defpath), "PYTHONHASHSEED": "0"}
    process = subprocess.Popen(command, env=env, cwd="/", start_new_session=True, **PIPES)
    try:
        output, errors = communicate(process, frames, limits.wall_seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, errors = process.communicate()
    lines = output.decode("ascii", "replace").splitlines()
    if not lines or lines[0] != "ready":
        said = " ".join(errors.decode("utf-8", "replace").split())
        none = f"no answer within {limits.wall_seconds + START_SECONDS:g} s"
        raise RuntimeError(f"the sandbox did not start: {said or none}")
    if len(lines) != 2:
        return 0
    signature, _, passed = lines[1].partition(" ")
    return int(passed) if secrets.compare_digest(signature, nonce) else 0


def communicate(process: subprocess.Popen, frames: bytes, wall_seconds: float) -> tuple[bytes, bytes]:
    """
    Send the frames and return output and errors. The wall-clock limit counts from the first output, because a slow
    start, as on a busy machine, is not the code's fault.

    Raises:
        `subprocess.TimeoutExpired`: If the process has not ended by then.
    """
    unsent: bytes | None = frames
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        try:
            return process.communicate(unsent, timeout=POLL_SECONDS)
        except subprocess.TimeoutExpired as waiting:
            unsent = None  # `communicate` keeps what it has not sent yet
            if waiting.output:
                break
    return process.communicate(timeout=wall_seconds)


PROBE = Program("def twice(n):\n    return 2 * n", ("import decimal, heapq\nassert twice(21) == 42",), "twice")


@lru_cache(maxsize=2)
def find_problem(isolation: str) -> str | None:
    """Return why this isolation does not work here, and the cure; `None` if it works. Tested once per process."""
    if sys.platform != "linux" or os.uname().machine not in MACHINES:
        return f"it needs Linux on {' or '.join(MACHINES)}"
    if isolation == "bubblewrap" and shutil.which("bwrap") is None:
        return f"bubblewrap is not installed. Run {INSTALL}"
    try:
        passed = run_here(isolation, Limits(wall_seconds=30.0, cpu_seconds=20), PROBE)
        reason = None if passed == 1 else "a trivial test fails in it"
    except (RuntimeError, OSError) as error:
        reason = str(error)
    if reason and isolation == "bubblewrap":
        reason += (
            " (bubblewrap is installed; in a container it needs `--security-opt seccomp=unconfined` or "
            "`--privileged`, on Ubuntu `sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`)"
        )
    return reason
