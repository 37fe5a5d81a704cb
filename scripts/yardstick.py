"""
Thirty short trainings (yardstick.yaml), compared with what they were at a kept commit: weights, rows, events and
evaluations. To the bit, if libraries, processor and instruction set are those of the kept file; else numbers within
1e-4, and weights not at all. One to three minutes of a processor.

    python scripts/yardstick.py                     # the code of this checkout
    python scripts/yardstick.py HEAD~1              # the code of a commit
    python scripts/yardstick.py --only A growth-killed
    python scripts/yardstick.py --write             # keep what this checkout does, and say in the commit what moved
"""

import argparse
import gzip
import hashlib
import json
import math
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from trajectory import made_with


os.environ["OMP_NUM_THREADS"] = "1"  # trajectory.py has fixed the rest, before PyTorch began

import torch  # noqa: E402
import yaml  # noqa: E402
from compare_commits import unpack  # noqa: E402
from features import PAUSE, forked, import_libraries, run_here  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

from trl_prorl.run.log_files import EVALUATIONS_FILE, EVENTS_FILE, METRICS_FILE, read_log  # noqa: E402


LIST = Path(__file__).with_suffix(".yaml")
KEPT = Path(__file__).parents[1] / "tests" / "trajectories" / "yardstick.json.gz"
TOLERANCE = 1e-4
# Parts of the names of numbers that differ between two runs of the same code.
UNSTEADY = ("time", "second", "memory", "utilization", "run_id", "attempt")


def read_runs() -> dict[str, dict[str, Any]]:
    """Return `command`, `killed` and `ranks` of each training by name."""
    content = yaml.safe_load(LIST.read_text())
    runs = {}
    for name, given in content["runs"].items():
        run = {"run": given} if isinstance(given, str) else given
        keys = dict(content["small"])
        if run.get("killed"):
            keys |= content["killed"]
        words = shlex.split(run["run"])
        for key, value in keys.items():
            if f"--{key}" not in words:
                words += [f"--{key}", str(value)]
        command = ["trl-prorl", "train", *words, "--output_dir", f"runs/{name}"]
        runs[name] = {"command": command, "killed": run.get("killed", False), "ranks": run.get("ranks", 1)}
    return runs


def start(command: list[str], ranks: int) -> list[int]:
    """Return the process ids of forks that run a command, one for each rank."""
    if ranks == 1:
        return [forked(run_here, command)]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {
        "ACCELERATE_USE_CPU": "true",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(ranks),
    }
    return [forked(run_here, command, env=env | {"RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(ranks)]


def end_of(processes: list[int]) -> list[int]:
    """Return the exit codes of processes, negative after a signal."""
    return [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]


def kill_at(processes: list[int], folder: Path) -> None:
    """Kill processes once a folder is there."""
    while not folder.exists():
        time.sleep(PAUSE)
        if os.waitid(os.P_PID, processes[0], os.WEXITED | os.WNOHANG | os.WNOWAIT):
            break
    for process in processes:
        os.kill(process, signal.SIGKILL)
    if end_of(processes) != [-signal.SIGKILL] * len(processes):
        raise SystemExit("it ended before it was killed")


def do(name: str, command: list[str], killed: bool, ranks: int) -> None:
    """Train one run in the current folder, and write what it was to `NAME.json`."""
    with open(f"{name}.log", "w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    sys.stdout.reconfigure(line_buffering=True)  # so the last lines of the log are its error
    if killed:
        kill_at(start(command, ranks), Path("runs", name, "checkpoint-2"))
        command = [*command, "--resume_from_checkpoint", "true"]
    codes = end_of(start(command, ranks))
    if any(codes):
        raise SystemExit(f"exit codes {codes}")
    Path(f"{name}.json").write_text(json.dumps(read_run(Path("runs", name))))


def read_run(run: Path) -> dict[str, Any]:
    """Return the hash of the weights that a run saved, and its rows, events and evaluations without times."""
    rows = read_log(run, METRICS_FILE)
    columns = {}
    for row in rows:
        for column in steady(row):
            columns[column] = [shown(one.get(column)) for one in rows]
    events = [steady(event) for event in read_log(run, EVENTS_FILE) if event["event"] != "resume"]
    return {
        "weights": hash_weights(run),
        "rows": columns,
        "events": events,
        "evaluations": [steady(row) for row in read_log(run, EVALUATIONS_FILE)],
    }


def steady(row: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers of a row that two runs of the same code have in common."""
    return {key: shown(value) for key, value in row.items() if not any(part in key for part in UNSTEADY)}


def shown(value: Any) -> Any:
    """Return a value as JSON can hold it."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def hash_weights(run: Path) -> str:
    """Return the SHA-256 of the tensors in the folder of a run: names, types, shapes and bytes."""
    digest = hashlib.sha256()
    for file in sorted(run.glob("*.safetensors")):
        for name, tensor in sorted(load_file(file).items()):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def train_all(names: list[str], jobs: int) -> dict[str, dict[str, Any]]:
    """Return [`read_run`] of each training; a training that failed has `failed` alone."""
    known = read_runs()
    import_libraries()
    found = {}
    back = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        waiting = list(names)
        running = {}
        while waiting or running:
            while waiting and len(running) < jobs:
                name = waiting.pop(0)
                running[forked(do, name, *known[name].values())] = name
            process, status = os.wait()
            name = running.pop(process)
            if status:
                log = Path(f"{name}.log").read_text().splitlines()
                found[name] = {"failed": [line for line in log if line.strip()][-2:]}
            else:
                found[name] = json.loads(Path(f"{name}.json").read_text())
        os.chdir(back)
    return {name: found[name] for name in names}


def equal(first: Any, second: Any, tolerance: float) -> bool:
    """Are two values equal, their numbers within a tolerance, absolute and relative?"""
    if not tolerance or type(first) is not type(second):
        return first == second
    if isinstance(first, float):
        return math.isclose(first, second, rel_tol=tolerance, abs_tol=tolerance)
    if isinstance(first, list):
        return len(first) == len(second) and all(map(equal, first, second, [tolerance] * len(first)))
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(equal(first[key], second[key], tolerance) for key in first)
    return first == second


def differences(kept: dict[str, Any], now: dict[str, Any], tolerance: float = 0.0) -> list[str]:
    """Return a line for each difference of a training from the kept one; weights count without a tolerance."""
    if "failed" in now:
        return [f"failed: {' | '.join(now['failed'])}"]
    lines = []
    if not tolerance and kept["weights"] != now["weights"]:
        lines.append("other weights")
    for word, columns in (("gone", kept["rows"].keys() - now["rows"]), ("new", now["rows"].keys() - kept["rows"])):
        if columns:
            lines.append(f"{word}: {', '.join(sorted(columns))}")
    for column in [name for name in kept["rows"] if name in now["rows"]]:
        then, later = kept["rows"][column], now["rows"][column]
        if len(then) != len(later):
            lines.append(f"{column}: {len(then)} -> {len(later)} rows")
            continue
        pairs = [pair for pair in zip(then, later, strict=True) if not equal(*pair, tolerance)]
        if pairs:
            lines.append(f"{column}: {len(pairs)} of {len(then)} rows, first {pairs[0][0]} -> {pairs[0][1]}")
    for kind in ("events", "evaluations"):
        if len(kept[kind]) != len(now[kind]):
            lines.append(f"{kind}: {len(kept[kind])} -> {len(now[kind])}")
            continue
        fields = set()
        for then, later in zip(kept[kind], now[kind], strict=True):
            keys = then.keys() | later.keys()
            fields |= {key for key in keys if not equal(then.get(key), later.get(key), tolerance)}
        if fields:
            lines.append(f"{kind}: other {', '.join(sorted(fields))}")
    return lines


def run_commit(commit: str, arguments: list[str]) -> int:
    """Run this script with the code of a commit, and return its exit code."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        unpack(commit, tree)
        env = {**os.environ, "PYTHONPATH": str(tree)}
        return subprocess.run([sys.executable, __file__, *arguments], cwd=tree, env=env).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", nargs="?", help="whose code runs (default: this checkout's)")
    parser.add_argument("--only", nargs="+", choices=read_runs(), metavar="NAME", default=list(read_runs()))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="keep what is found")
    args = parser.parse_args()
    if args.commit:
        return run_commit(args.commit, ["--jobs", str(args.jobs), "--only", *args.only])
    found = train_all(args.only, args.jobs)
    kept = json.loads(gzip.decompress(KEPT.read_bytes()))
    if args.write:
        runs = kept["runs"] | found
        content = {"made_with": made_with(), "runs": {name: runs[name] for name in read_runs() if name in runs}}
        KEPT.write_bytes(gzip.compress(json.dumps(content).encode(), mtime=0))
        return int(any("failed" in run for run in found.values()))
    tolerance = 0.0 if kept["made_with"] == made_with() else TOLERANCE
    if tolerance:
        print(f"The kept numbers are of {kept['made_with']}, not of {made_with()}: compared within {tolerance}.")
    differing = 0
    for name, run in found.items():
        lines = differences(kept["runs"][name], run, tolerance)
        differing += bool(lines)
        print(f"{name:<26} {'same' if not lines else 'DIFFERS'}")
        for line in lines:
            print(f"    {line}")
    print(f"{len(found)} trainings, {differing} differ")
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main())
