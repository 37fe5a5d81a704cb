"""
The parts of `trl-prorl gpu-check`: the tests that run on a GPU, `step-cost`, rollouts of a large batch, and a few
complete steps. Each part is a command in a separate process with a time limit.
"""

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import trl_prorl
from trl_prorl.files import replaced


ROOT = Path(trl_prorl.__file__).parent.parent  # root of the checkout, if there is one
TESTS = "tests"
COST = "cost"
ROLLOUTS = "rollouts"
STEPS = "steps"
VLLM = "vllm"


class Part(NamedTuple):
    """
    One part.

    Attributes:
        title (`str`): Its heading.
        seconds (`float`): Its time limit on a GPU.
        report (`str`): What its command writes, relative to the folder of results.
        module (`str`): The module that runs; none for the tests.
        on_card, toy (`list[str]`): Its options on a GPU, and at toy size; without the latter it needs a GPU.
    """

    title: str
    seconds: float
    report: str
    module: str = ""
    on_card: list[str] = []
    toy: list[str] = []


ARMS = ["--arms", "A packed", "B packed"]
SMALLER = ["--shape", "qwen2.5-0.5b"]
LARGER = ["--shape", "qwen2.5-1.5b", "--checkpointing", "on"]
BATCH = ["--prompts", "8", "--micro_batch", "16", "--longest", "256"]
LARGE_BATCH = ["--prompts", "8", "--num_generations", "64", "--micro_batch", "64", "--longest", "256"]
TOY = ["--shape", "tiny", "--prompts", "2", "--num_generations", "4", "--micro_batch", "4", "--longest", "12"]
STEP_COST = "trl_prorl.eval.step_cost"
SAMPLING = "trl_prorl.eval.gpucheck.rollouts"
PARTS = {  # 17 minutes in total
    TESTS: Part("Correctness: the tests that run on a GPU", 360, "tests.xml"),
    COST: Part(
        "Time of a step: 8 prompts × 8 completions of at most 256 tokens, micro-batches of 16",
        300,
        "cost/arms.json",
        STEP_COST,
        [*LARGER, *BATCH, "--scale", "1.5", "--rounds", "1", *ARMS],
        [*TOY, "--checkpointing", "on", "--rounds", "1", *ARMS],
    ),
    ROLLOUTS: Part(
        "Rollouts: 512 completions of 256 tokens",
        90,
        "rollouts/measured.json",
        SAMPLING,
        [*LARGER, *LARGE_BATCH],
        TOY,
    ),
    STEPS: Part(
        "Steps: memory growth",
        120,
        "steps/measured.json",
        "trl_prorl.eval.gpucheck.steps",
        [*LARGER, *BATCH],
        TOY,
    ),
    VLLM: Part(
        "The same rollouts with vLLM",
        150,
        "vllm/measured.json",
        SAMPLING,
        [*LARGER, *LARGE_BATCH, "--samplers", "vLLM"],
    ),
}
MIN_GIB = 20  # GPU memory that the larger model needs
MIN_SECONDS = 20.0  # a part starts only if at least this much time is left


@dataclass
class Result:
    """
    The result of a part.

    Attributes:
        made_with (`dict[str, str]`): code, device and versions.
        passed (`int`): number of passed checks.
        failed, skipped (`dict[str, str]`): names of failed checks, and of skipped ones, with the reason.
        seconds (`dict`): measurements of `step-cost`, by setting and variant.
        numbers (`dict[str, float]`): other measurements, by name.
    """

    made_with: dict[str, str]
    passed: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, dict] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)

    def write(self, folder: Path, name: str) -> None:
        """Write the result atomically."""
        with replaced(folder / f"{name}.json") as aside:
            aside.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path, name: str) -> "Result | None":
        """Return the result of a part, or `None` if there is none."""
        path = folder / f"{name}.json"
        return cls(**json.loads(path.read_text())) if path.is_file() else None


def run_parts(
    names: Iterable[str],
    cpu: bool,
    folder: Path,
    made_with: dict[str, str],
    minutes: float,
    again: bool,
) -> tuple[list[str], list[str]]:
    """
    Run these parts. Parts that have already passed with this code on this device are skipped, unless `again` is set.
    Return the failures, as `PART: CHECK: REASON`, and the parts for which `minutes` left no time.
    """
    began = time.monotonic()
    failed = []
    left = []
    for name in names:
        earlier = Result.read(folder, name)
        if not again and earlier and earlier.made_with == made_with and not earlier.failed:
            print(f"{name:<11} already passed", flush=True)
            continue
        seconds = 60 * minutes - (time.monotonic() - began)
        if seconds < MIN_SECONDS:
            left.append(name)
            continue
        started = time.monotonic()
        result = run_part(name, cpu, folder, min(PARTS[name].seconds, seconds), made_with)
        result.write(folder, name)
        failed += [f"{name}: {check}: {why}" for check, why in result.failed.items()]
        line = f"{result.passed} of {result.passed + len(result.failed)} checks passed"
        if result.skipped:
            line += f"; skipped: {', '.join(result.skipped)}"
        print(f"{name:<11} {time.monotonic() - started:4.0f} s  {line}", flush=True)
    return failed, left


def run_part(name: str, cpu: bool, folder: Path, limit: float, made_with: dict[str, str]) -> Result:
    """Run one part. At the limit, in seconds, its command and all child processes are killed."""
    result = Result(made_with)
    log = folder / f"{name}.log"
    reason = reason_to_skip(name, cpu)
    if reason is not None:
        result.skipped[PARTS[name].title] = reason
        return result
    report = folder / PARTS[name].report
    report.unlink(missing_ok=True)
    problem = run_command(command(name, cpu, report.resolve()), log, limit)
    if report.is_file() and name == TESTS:
        read_report(report, result)
    elif report.is_file():
        found = json.loads(report.read_text())
        result.seconds = found.get("results", {})
        result.numbers = found.get("numbers", {})
        result.failed |= found.get("failed", {})
        if not result.failed and problem is None:
            result.passed += 1
    if problem and not result.failed:
        result.failed[PARTS[name].title] = f"{problem}, see {log}"
    return result


def command(name: str, cpu: bool, report: Path) -> list[str]:
    """Return the command of a part, which writes `report`."""
    if name == TESTS:
        options = ["-q", "-m", "gpu", "-p", "no:cacheprovider", "--rootdir", str(ROOT), f"--junitxml={report}"]
        return [sys.executable, "-m", "pytest", *options, *marked_files()]
    part = PARTS[name]
    options = ["--device", "cpu", *part.toy] if cpu else ["--device", "cuda", *part.on_card]
    if name == COST and not cpu and memory_gib() < MIN_GIB:
        options += SMALLER  # the last shape counts
    return [sys.executable, "-m", part.module, *options, "--out", str(report.parent)]


def run_command(command: list[str], log: Path, limit: float | None = None) -> str | None:
    """
    Run a command. Return `None` if it succeeds, otherwise the reason with its last line. Its stdin has no content, and
    ends with this process.
    """
    with log.open("w") as written:
        streams = {"stdin": subprocess.PIPE, "stdout": written, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(command, **streams, start_new_session=True)
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            return f"stopped after {limit:.0f} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # including child processes
            process.wait()
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    if status == 0:
        return None
    last = lines[-1] if lines else ""
    return f"exit code {status}: {last[:300]}"


def reason_to_skip(name: str, cpu: bool) -> str | None:
    """Return why a part cannot run here, in a few words, or `None`."""
    if cpu and name == TESTS:
        return "needs a GPU; `make test` runs most of them on a CPU"
    if cpu and name == VLLM:
        return "needs a GPU; `make test-vllm` tries rollouts with vLLM on a CPU"
    if name == VLLM and importlib.util.find_spec("vllm") is None:
        return "vllm is not installed"
    if name in (ROLLOUTS, STEPS) and not cpu and memory_gib() < MIN_GIB:
        return f"needs a GPU with {MIN_GIB} GiB, and this one has {memory_gib():.0f}"
    if name == TESTS and not (ROOT / "tests" / "test_on_gpu.py").is_file():
        return "needs a checkout of the project, which has the tests"
    if name == TESTS and importlib.util.find_spec("pytest") is None:
        return "pytest is not installed (pip install -e '.[dev]')"
    return None


def memory_gib() -> float:
    """Return the memory of the GPU in GiB."""
    import torch  # slow to import, and not needed for the names above

    return torch.cuda.get_device_properties(0).total_memory / 2**30


def marked_files() -> list[str]:
    """Return the files with GPU tests. Collecting all tests would take longer than running these."""
    return [str(path) for path in sorted((ROOT / "tests").rglob("test_*.py")) if "pytest.mark.gpu" in path.read_text()]


def read_report(report: Path, result: Result) -> None:
    """Add every test of a JUnit report to the result as passed, failed or skipped."""
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}: {case.get('name')}"
        wrong = [child.get("message", "") for kind in ("failure", "error") for child in case.findall(kind)]
        skipped = case.find("skipped")
        if skipped is not None:
            result.skipped[name] = skipped.get("message", "")
        elif wrong:
            result.failed[name] = " ".join(" ".join(wrong).split())[:300]
        else:
            result.passed += 1
