"""
What this project does, one command each: `make features`, or `python scripts/features.py`. features.yaml is the list.
A key that no command there sets is a feature, too: a run trains with another value of it.

Every command runs as a user would type it, in a folder that is removed afterwards, and has to leave what the list says
about it; else the exit status is 1. The libraries are imported once: `trl-prorl …`, `python …` and `accelerate …` run
in forks of this process, everything else in a process of its own.
"""

import argparse
import gc
import json
import math
import os
import re
import runpy
import shlex
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any


QUIET = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
os.environ.update(QUIET)  # before NumPy and PyTorch begin

import yaml  # noqa: E402

from trl_prorl.keys import KEYS, TASK_KEYS, Key  # noqa: E402
from trl_prorl.run.columns import METRICS  # noqa: E402
from trl_prorl.run.log_files import EVALUATIONS_FILE, EVENTS_FILE, METRICS_FILE, read_log  # noqa: E402


ROOT = Path(__file__).resolve().parent.parent
LIST = Path(__file__).with_suffix(".yaml")
LINKED = ("recipes", "docs", "accelerate_configs")  # folders of the checkout that commands name
KILLED_AT = "killed-at"  # before a command: FILE, at which it is killed
SECONDS = 900  # after which a command counts as failed
PAUSE = 0.05  # between two looks
OURS = KEYS | TASK_KEYS


@dataclass
class Feature:
    """A row of the list; features.yaml says what each field means."""

    name: str
    see: str
    do: str | list[str] = ()
    script: str = ""
    after: list[str] = ()
    only_if: str = "True"
    ranks: int = 0
    folder: str = "."

    @property
    def script_file(self) -> str:
        return f"{self.name}-feature.py"  # no module has such a name

    @property
    def commands(self) -> list[str]:
        if self.script:
            return [f"python {self.script_file}"]
        return [self.do] if isinstance(self.do, str) else list(self.do)

    @property
    def is_here(self) -> bool:
        return bool(eval(self.only_if, {"find_spec": find_spec, "which": shutil.which, "Path": Path, "ROOT": ROOT}))


@dataclass
class Result:
    """What became of a feature."""

    feature: Feature
    seconds: float  # of processors
    failed: bool
    said: str = ""  # why it failed


def read_list() -> tuple[dict[str, Feature], dict[str, Any]]:
    """Return the features by name, and what they share."""
    content = yaml.safe_load(LIST.read_text())
    features = {name: Feature(name, **row) for name, row in content["features"].items()}
    commands = " ".join(" ".join([*feature.commands, feature.script]) for feature in features.values())
    for name, key in OURS.items():
        is_listed = name in features or re.search(rf"\b{name}[ =]", commands)
        if not is_listed and not name.startswith("vllm_"):
            features |= make_key_features(name, key, content["shared"]["key"])
    return features, content["shared"]


def other_values(key: Key) -> list[Any]:
    """Return values of a key that are not its default: all choices, the other truth, or a near number."""
    if key.choices:
        return [choice for choice in key.choices if choice != key.default]
    if bool in key.types:
        return [not key.default]
    if float in key.types:
        return [key.default / 2 if key.default else 0.5]
    if int in key.types:
        return [(key.default or 0) + 1]
    return []  # a text: a feature of the list


def needed_options(key: Key) -> str:
    """Return the options of what a key requires, if that is another key of ours: the first of several."""
    if key.needs is None:
        return ""
    name, _, value = key.needs.names.split(" or ")[0].partition(": ")
    if name not in OURS:
        return ""  # the command of all keys has it
    needed = OURS[name]
    return f"{needed_options(needed)} --{name} {value or other_values(needed)[0]}"


def make_key_features(name: str, key: Key, command: str) -> dict[str, Feature]:
    """Return a feature for each other value of a key: it acts, and gives the columns that need it."""
    features = {}
    for value in other_values(key):
        columns = [column for column, row in METRICS.items() if row.when in (f"`{name}`", f"`{name}: {value}`")]
        see = f"config[{name!r}] == {value!r} and 'no effect' not in printed and has('grad_norm', *{columns})"
        feature = f"{name}-{value}"
        features[feature] = Feature(feature, see, f"{command} {needed_options(key)} --{name} {value}")
    return features


def select(features: dict[str, Feature], names: Iterable[str]) -> list[Feature]:
    """Return the features of these names and those after which they run, in the order of the list."""
    chosen = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in features:
            raise SystemExit(f"error: no feature is called {name!r}; --list shows all")
        chosen.add(name)
        waiting += features[name].after
    return [feature for name, feature in features.items() if name in chosen]


def make_folder(features: list[Feature], shared: dict[str, Any]) -> Path:
    """Return a new folder with the files that commands name."""
    folder = Path(tempfile.mkdtemp(prefix="features-"))
    for name in LINKED:
        (folder / name).symlink_to(ROOT / name)
    for name, text in shared["files"].items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    for feature in features:
        if feature.script:
            (folder / feature.script_file).write_text(feature.script)
    for name in ("logs", "runs"):
        (folder / name).mkdir()
    return folder


def split_command(command: str, feature: Feature, small: dict[str, Any], folder: Path) -> list[str]:
    """Return the words of a command. SMALL becomes options that make a training small, but for those it has."""
    words = []
    for word in shlex.split(command.replace("WORK", str(folder)).replace("ROOT", str(ROOT))):
        if word != "SMALL":
            words.append(word)
            continue
        for key, value in (small | {"output_dir": f"runs/{feature.name}"}).items():
            if f"--{key} " not in command:
                words += [f"--{key}", str(value)]
    return words


def run_python(words: list[str]) -> None:
    """Run `python FILE …` or `python -m MODULE …` in this process."""
    is_module = words[0] == "-m"
    sys.argv = words[1:] if is_module else words
    sys.orig_argv = [sys.executable, *words]
    if is_module:
        sys.path.insert(0, "")
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(words[0]).resolve().parent))
        runpy.run_path(words[0], run_name="__main__")


def run_here(words: list[str]) -> None:
    """Run a command in this process, which it may replace."""
    program, *arguments = words
    if program == "python":
        run_python(arguments)
    elif program == "trl-prorl":
        run_python(["-m", "trl_prorl", *arguments])
    elif program == "accelerate":
        (script,) = entry_points(group="console_scripts", name=program)
        sys.argv = words
        sys.exit(script.load()())
    else:
        os.execvp(program, words)


def end_as(action, *arguments) -> None:
    """Do something in a fork, and end it with the exit status that a process of its own would have."""
    status = 1
    try:
        action(*arguments)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def forked(action, *arguments, env: dict[str, str] | None = None) -> int:
    """Return the process id of a fork that does something."""
    sys.stdout.flush()
    process = os.fork()
    if process == 0:
        # Makes torch's pool of threads again; if several threads are the first to need it, one of them finds none.
        sys.modules["torch"].set_num_threads(1)
        os.environ.update(env or {})
        end_as(action, *arguments)
    return process


def run_command(words: list[str], feature: Feature) -> int:
    """Run a command in a fork, or in a fork for each rank, and return its exit status."""
    if feature.ranks:
        env = {"ACCELERATE_USE_CPU": "true", "MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": str(feature.ranks)}
        env["MASTER_PORT"] = str(20000 + os.getpid() % 10000)
        ranks = [
            forked(run_here, words, env=env | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
            for rank in range(feature.ranks)
        ]
        return max(os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) != 0 for rank in ranks)
    return os.waitstatus_to_exitcode(os.waitpid(forked(run_here, words), 0)[1])


def kill_when_there(words: list[str], file: Path) -> None:
    """Run a command in a fork, and kill it once a file is there."""
    process = forked(run_here, words)
    while not file.exists():
        if os.waitpid(process, os.WNOHANG) != (0, 0):
            raise SystemExit(f"it ended before {file.name} was there")
        time.sleep(PAUSE)
    os.kill(process, signal.SIGKILL)
    if os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) != -signal.SIGKILL:
        raise SystemExit("it ended before it was killed")


def read_lines(file: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSON Lines file; none where there is no file."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def record_of(name: str) -> dict[str, Any]:
    """Return what `see` may name: the record of `runs/NAME` in the current folder, and what reads other files."""
    run = Path("runs", name)
    rows = read_log(run, METRICS_FILE)
    env = run / "env.json"
    config = run / "config.yaml"

    def has(*keys: str) -> bool:
        return bool(rows) and all(math.isfinite(row[key]) for row in rows for key in keys)

    return {
        "run": run,
        "rows": rows,
        "events": read_log(run, EVENTS_FILE),
        "evaluations": read_log(run, EVALUATIONS_FILE),
        "env": json.loads(env.read_text()) if env.exists() else {},
        "config": yaml.safe_load(config.read_text()) if config.exists() else {},
        "printed": Path("logs", name).read_text(),
        "has": has,
        "of": lambda other: read_log(Path("runs", other), METRICS_FILE),
        "lines": read_lines,
        "load": lambda file: json.loads(Path(file).read_text()),
        "isclose": math.isclose,
        "isfinite": math.isfinite,
        "Path": Path,
    }


def last_line(log: Path) -> str:
    """Return the last line that a feature printed."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else ""


def do(feature: Feature, folder: Path, small: dict[str, Any]) -> None:
    """Run the commands of a feature, and look at what they left."""
    os.setpgid(0, 0)  # so that all its processes can be killed
    log = folder / "logs" / feature.name
    written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(written, 1)
    os.dup2(written, 2)
    os.chdir(folder / feature.folder.replace("ROOT", str(ROOT)))
    commands = [split_command(command, feature, small, folder) for command in feature.commands]
    for words in commands:
        if words[0] == KILLED_AT:
            kill_when_there(words[2:], Path(words[1]))
            continue
        status = run_command(words, feature)
        if status:
            raise SystemExit(f"exit code {status}: {last_line(log)}")
    os.chdir(folder)
    sys.stdout.flush()
    if not eval(feature.see, record_of(feature.name)):
        raise SystemExit(f"not so: {feature.see}")


def import_libraries() -> None:
    """Import once what a training, an evaluation and a report import."""
    import bitsandbytes  # noqa: F401
    import matplotlib.figure  # noqa: F401
    import pandas  # noqa: F401
    import scipy.stats  # noqa: F401
    import torch
    from trl import GRPOTrainer  # noqa: F401

    from trl_prorl import ProRLTrainer  # noqa: F401

    torch.set_num_threads(1)
    gc.freeze()  # a fork that collects garbage need not walk, and thereby copy, all that was imported


def run_all(features: list[Feature], folder: Path, small: dict[str, Any], jobs: int) -> Iterable[Result]:
    """Run features, so many at a time, each after those it needs, and yield the result of each."""
    waiting = list(features)
    names = {feature.name for feature in features}
    done = {name: False for feature in features for name in feature.after if name not in names}  # name -> it failed
    running = {}  # process id -> feature, and when it began
    try:
        while waiting or running:
            for feature in [one for one in waiting if all(name in done for name in one.after)]:
                failed = [name for name in feature.after if done[name]]
                if failed:
                    waiting.remove(feature)
                    done[feature.name] = True
                    yield Result(feature, 0.0, True, f"it runs after {', '.join(failed)}, which failed")
                elif len(running) < jobs:
                    waiting.remove(feature)
                    running[forked(do, feature, folder, small)] = (feature, time.monotonic())
            for process, (feature, begun) in list(running.items()):
                ended, status, usage = os.wait4(process, os.WNOHANG)
                if ended:
                    del running[process]
                    done[feature.name] = status != 0
                    said = last_line(folder / "logs" / feature.name) if status else ""
                    yield Result(feature, usage.ru_utime + usage.ru_stime, status != 0, said)
                elif time.monotonic() - begun > SECONDS:
                    os.killpg(process, signal.SIGKILL)
            time.sleep(PAUSE)
    finally:  # of a run that was interrupted
        for process in running:
            os.killpg(process, signal.SIGKILL)


def print_row(name: str, command: str, seconds: str, verdict: str) -> None:
    print(f"{name:<24} {seconds:>7}  {verdict:<8}  {command}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these, and those after which they run")
    parser.add_argument("--list", action="store_true", help="print the list")
    parser.add_argument("--jobs", type=int, default=2, help="how many run at a time")
    parser.add_argument("--keep", action="store_true", help="keep the folder")
    args = parser.parse_args()
    known, shared = read_list()
    features = select(known, args.only or known)
    if args.list:
        for feature in features:
            print(f"{feature.name:<24} {' && '.join(feature.commands)}")
        return 0
    print_row("feature", "command", "CPU s", "")
    here = [feature for feature in features if feature.is_here]
    for feature in features:
        if feature not in here:
            print_row(feature.name, " && ".join(feature.commands), "", "not here")
    begun = time.monotonic()
    folder = make_folder(here, shared)
    os.environ["HF_DATASETS_CACHE"] = str(folder / "datasets")
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    import_libraries()
    cpu = time.process_time()
    failed = 0
    for result in run_all(here, folder, shared["small"], args.jobs):
        failed += result.failed
        cpu += result.seconds
        commands = " && ".join(result.feature.commands)
        print_row(result.feature.name, commands, f"{result.seconds:.1f}", "FAIL" if result.failed else "ok")
        if result.failed:
            print(f"    {result.said}", flush=True)
    wall = time.monotonic() - begun
    print(f"{len(here)} features, {failed} failed: {wall:.0f} s, of which processors worked {cpu:.0f} s")
    if args.keep or failed:
        print(f"Their files: {folder}")
    else:
        shutil.rmtree(folder)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
