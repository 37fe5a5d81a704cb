"""Runs code that a model wrote against tests, where it can do no harm and cannot fake a pass."""

import os
import pickle
import secrets
import shutil
import signal
import subprocess
import sys
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
START_SECONDS = 30.0  # in addition to a run's own time; a start takes well below one second
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
        cpu_seconds (`int`): processor time of the code, and of the tests.
        wall_seconds (`float`): time from start to verdict.
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
        tests (`tuple[str, ...]`): statements, usually one `assert` each; they call the code's functions by name, and
            see arguments and results by value.
        entry_point (`str`): name of the function under test.
        setup (`str`): statements that run before the code and, in their own process, before the tests.
    """

    code: str
    tests: tuple[str, ...]
    entry_point: str
    setup: str = ""


def mounts(paths: Sequence[Path]) -> Iterator[str]:
    """Return arguments that make bubblewrap show these folders and files, read-only, and links as links."""
    # The folders above them, which bubblewrap would close to everyone but root.
    for parent in sorted({parent for path in paths for parent in path.parents if parent != Path("/")}):
        yield from ("--perms", "0755", "--dir", str(parent))
    for path in dict.fromkeys(paths):
        if path.is_symlink():
            yield from ("--symlink", os.readlink(path), str(path))
        elif path.exists():
            yield from ("--ro-bind", str(path), str(path))


def bubblewrap_command(python: Path, root: bool) -> list[str]:
    """
    Return the command that starts the harness in a file system which holds Python, the system's libraries and nothing
    else. It has no `/proc`, `/tmp`, `/home` or `/etc`, and nothing in it can be written. As root no user namespace is
    made, because root would remain the kernel's root there, to whom the limit on processes does not apply. The harness
    becomes nobody instead.
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
    """Return the harness under an interpreter that sees neither its own nor the user's packages."""
    return [str(python), "-s", "-S", str(folder / HARNESS)]


class Sandbox:
    """
    A place to run model-written code.

    Under bubblewrap it is unprivileged and sees no network, environment, home folder or other process; it cannot
    write, start processes or threads, and is killed at its limits. The tests run in a process of their own, which
    calls the code by value and answers with a nonce that the code's process never held: see
    `tasks/isolated/harness.py`.

    Args:
        limits ([`Limits`], *optional*): the limits of a run.
        allow_weak (`bool`, *optional*, defaults to `False`): run without bubblewrap where it does not work, and warn;
            `WEAK` says what that mode does not stop.
        workers (`int`, *optional*): runs at a time in [`Sandbox.run_many`]; by default as many as there are
            processors.

    Raises:
        `ValueError`: If bubblewrap does not work here and the weaker mode is not allowed or does not work either.
    """

    def __init__(self, limits: Limits | None = None, allow_weak: bool = False, workers: int | None = None):
        self.limits = limits or Limits()
        self.isolation = "bubblewrap"
        problem = find_problem("bubblewrap")
        if problem and not allow_weak:
            raise ValueError(
                f"model-written code needs a sandbox: {problem}; or set allow_weak_sandbox: true, which leaves this "
                "user's files readable"
            )
        if problem:
            self.isolation = "weak"
            problem = find_problem("weak")
            if problem:
                raise ValueError(f"allow_weak_sandbox=True: {problem}")
            warnings.warn(WEAK, stacklevel=3)
        self.workers = workers or len(os.sched_getaffinity(0))

    def run(self, program: Program) -> int:
        """
        Return the number of tests that pass; 0 if the limits end the run, because the nonce never arrives then.

        Raises:
            `RuntimeError`: If the sandbox itself does not start, which says nothing about the code.
        """
        return run_here(self.isolation, self.limits, program)

    def run_many(self, programs: Sequence[Program]) -> list[int]:
        """Call [`Sandbox.run`] for each program, several at a time."""
        with ThreadPoolExecutor(self.workers) as pool:
            return list(pool.map(self.run, programs))


def frame(content: dict) -> bytes:
    """Return a frame for `tasks/isolated/harness.py`: 4 bytes of length, then a pickle."""
    payload = pickle.dumps(content)
    return len(payload).to_bytes(4, "big") + payload


def run_here(isolation: str, limits: Limits, program: Program) -> int:
    """Call [`run_command`] with this process's interpreter and user."""
    python = Path(os.path.realpath(sys.executable))
    if isolation == "bubblewrap":
        is_root = os.geteuid() == 0
        return run_command(bubblewrap_command(python, is_root), is_root, limits, program)
    return run_command(python_command(python, ISOLATED), False, limits, program)


def run_command(command: Sequence[str], drop_root: bool, limits: Limits, program: Program) -> int:
    """
    Start the harness and return the number of tests that pass; see [`Sandbox.run`].

    Args:
        command (`Sequence[str]`): the command that starts it.
        drop_root (`bool`): whether it starts as root and has to become nobody.
        limits ([`Limits`]), program ([`Program`]): the run.
    """
    nonce = secrets.token_hex(16)
    code = program.code.encode("utf-8", "replace").decode()  # lone surrogates can be neither compiled nor sent
    open_part = {
        "setup": program.setup,
        "code": code,
        "drop_root": drop_root,
        "memory_mib": limits.memory_mib,
        "cpu_seconds": limits.cpu_seconds,
    }
    secret_part = {"tests": list(program.tests), "entry_point": program.entry_point, "nonce": nonce}
    env = {"PATH": os.environ.get("PATH", os.defpath), "PYTHONHASHSEED": "0"}
    process = subprocess.Popen(command, env=env, cwd="/", start_new_session=True, **PIPES)
    try:
        try:
            output, errors = process.communicate(frame(open_part) + frame(secret_part), timeout=limits.wall_seconds)
        except subprocess.TimeoutExpired as late:
            if late.output:
                raise
            # The harness has not even started, as can happen on a busy machine: that is not the code's fault.
            output, errors = process.communicate(timeout=START_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, errors = process.communicate()
    lines = output.decode("ascii", "replace").splitlines()
    if not lines or lines[0] != "ready":
        said = " ".join(errors.decode("utf-8", "replace").split())
        none = f"no sign of it in {limits.wall_seconds + START_SECONDS:g} s"
        raise RuntimeError(f"the sandbox did not start: {said or none}")
    if len(lines) != 2:
        return 0
    signature, _, passed = lines[1].partition(" ")
    return int(passed) if secrets.compare_digest(signature, nonce) else 0


PROBE = Program("def twice(n):\n    return 2 * n", ("import decimal, heapq\nassert twice(21) == 42",), "twice")


@lru_cache(maxsize=2)
def find_problem(isolation: str) -> str | None:
    """
    Return why this kind of isolation does not work here, and the cure; `None` if it works. Tested once per process.
    """
    if sys.platform != "linux" or os.uname().machine not in MACHINES:
        return f"it works on Linux on {' or '.join(MACHINES)} only"
    if isolation == "bubblewrap" and shutil.which("bwrap") is None:
        return f"bubblewrap is not installed: {INSTALL}"
    try:
        passed = run_here(isolation, Limits(wall_seconds=30.0, cpu_seconds=20), PROBE)
        reason = None if passed == 1 else "a trivial test does not pass in it"
    except (RuntimeError, OSError) as error:
        reason = str(error)
    if reason and isolation == "bubblewrap":
        reason += (
            " (bubblewrap is installed; in a container it needs `--security-opt seccomp=unconfined` or "
            "`--privileged`, on Ubuntu `sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`)"
        )
    return reason
