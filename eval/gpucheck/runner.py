"""Runs the parts one by one, each in a process of its own on one device; goes on where an earlier call ended."""

import contextlib
import ctypes
import dataclasses
import hashlib
import multiprocessing
import os
import platform
import re
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import torch

import trl_prorl
from trl_prorl.environment import installed
from trl_prorl.eval.gpucheck.parts import MACHINE, PARTS, Part, Result, Size


ROOT = Path(trl_prorl.__file__).parent.parent  # of a checkout, where there is one
LIBRARIES = ("torch", "transformers", "trl", "peft", "accelerate", "bitsandbytes", "triton", "deepspeed", "vllm")
LEAST = 20.0  # seconds that must be left for another part to begin
ENOUGH = 0.7  # of a part's limit, after which it begins no further measurement, and keeps those that it has
PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>
NAMED = re.compile(r"^[\w.]*(Error|Exception|Interrupt|Exit)\b(: .*)?$")  # a line that names an exception


def see_one_gpu() -> str | None:
    """
    Let this process's children see one GPU, and say so if there are more: with several in one process transformers
    would split every batch over them, which TRL refuses.
    """
    if (number := torch.cuda.device_count()) < 2:
        return None
    os.environ["CUDA_VISIBLE_DEVICES"] = first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    return f"of {number} GPUs one is used: CUDA_VISIBLE_DEVICES={first}. Set it to use another one."


def machine(size: Size, folder: Path) -> Result:
    """Name and memory of the device, and versions."""
    result = Result()
    torch.ones(8, device=size.device).sum().item()  # fails here where torch has no kernels for the card
    name, memory = f"CPU, {platform.machine()}", None
    if size.on_card:
        properties = torch.cuda.get_device_properties(0)
        name, memory = properties.name, properties.total_memory / 2**30
        # Older cards emulate bf16, which is right and slow: it says nothing about a run in fp16 or fp32.
        supported = torch.cuda.is_bf16_supported(including_emulation=False)
        result.check("bf16 is supported", supported, f"{name}: {'yes' if supported else 'only emulated'}")
    versions = {name: number for name in LIBRARIES if (number := installed(name)) is not None}
    result.facts |= {"device": name, "memory_gib": memory, "versions": versions}
    return result


class Outcome(NamedTuple):
    """What failed, as `PART: CHECK` or `PART: why it has no result`, and the parts for which no time was left."""

    failed: list[str]
    left: list[str]


def run_all(
    size: Size, folder: Path, names: Iterable[str], minutes: float, again: bool, say: Callable[[str], None]
) -> Outcome:
    """
    All of these parts that have not passed yet with this code on this device, with results in a folder; `again` runs
    the others, too. A part that finds no time in these `minutes` is left for another call. `say` takes a line.
    """
    began, failed, left = time.monotonic(), [], []
    folder.mkdir(parents=True, exist_ok=True)
    if (problem := run_part(MACHINE, size, folder, {}, MACHINE.limit)) is not None:
        return Outcome([f"machine: {problem}. Nothing was measured"], [])
    device = Result.read(folder, MACHINE.name)
    failed += [f"machine: {check.name}" for check in device.failed]
    made_with = {"code": code(), "device": device.facts["device"], **device.facts["versions"]}
    for name in PARTS:  # results of other code, other libraries or another device belong to no page with these
        if (earlier := Result.read(folder, name)) is not None and earlier.made_with != made_with:
            (folder / f"{name}.json").unlink()
    for name in names:
        earlier = Result.read(folder, name)
        if not again and earlier is not None and not earlier.failed:
            say(f"{name:<11} passed already")
            continue
        if (seconds := 60 * minutes - (time.monotonic() - began)) < LEAST:
            left.append(name)
            continue
        started = time.monotonic()
        limit = min(PARTS[name].limit, seconds) if size.on_card else seconds
        problem = run_part(PARTS[name], size, folder, made_with, limit)
        result = Result.read(folder, name)
        failed += [f"{name}: {each}" for each in ([problem] if problem else [check.name for check in result.failed])]
        said = f"FAILED: {problem}" if problem else summary(result)
        say(f"{name:<11} {time.monotonic() - started:4.0f} s  {said}")
    return Outcome(failed, left)


def summary(result: Result) -> str:
    """A part in a line."""
    said = [f"{len(result.checks) - len(result.failed)} of {len(result.checks)} checks hold"] if result.checks else []
    said += [f"{len(result.tables)} tables"] if result.tables else []
    said += [f"left out: {', '.join(result.skipped)}"] if result.skipped else []
    return "; ".join(said + [f"FAILED: {check.name}" for check in result.failed])


def run_part(part: Part, size: Size, folder: Path, made_with: dict[str, str], limit: float) -> str | None:
    """
    Run a part in a process of its own, which may crash, hang, or spoil its GPU's context, and is killed at the limit
    with all that it has begun. Returns why it brought no result, or `None`.
    """
    log = folder / f"{part.name}.log"
    for old in (log, folder / f"{part.name}.json"):
        old.unlink(missing_ok=True)
    # A copy of this process costs no imports, but cannot use CUDA.
    context = multiprocessing.get_context("spawn" if size.on_card else "fork")
    work = (part.name, part.function(), size, folder, made_with, limit, os.getpid())
    process = context.Process(target=_work_on, args=work)
    process.start()
    try:
        process.join(limit)
        status = process.exitcode
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # also what it has left behind
        if process.is_alive():  # was stopped before it led a group
            process.kill()
            process.join()
    if status is None:
        return f"was stopped after {limit:.0f} s, see {log}"
    return None if status == 0 else f"ended with exit code {status}: {last_words(log)}, see {log}"


def _work_on(
    name: str, work: Callable, size: Size, folder: Path, made_with: dict[str, str], limit: float, parent: int
) -> None:
    os.setpgid(0, 0)
    if sys.platform == "linux":  # end when the parent ends: a SIGKILL does not let it end what it has begun
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it has ended already
            os._exit(1)
    sys.stdout = sys.stderr = file = open(folder / f"{name}.log", "a", buffering=1)  # until the process ends
    for stream in (1, 2):  # of what is not Python
        os.dup2(file.fileno(), stream)
    status = 1
    try:
        torch.manual_seed(0)
        if not size.on_card:
            torch.set_num_threads(1)
        own = folder / name
        shutil.rmtree(own, ignore_errors=True)  # files of an earlier call could pass for those of this one
        own.mkdir()
        result = work(dataclasses.replace(size, ends=time.monotonic() + ENOUGH * limit), own)
        result.made_with = made_with
        result.write(folder, name)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        file.flush()
        os._exit(status)  # no threads of a GPU, of a data loader or of a copied process are waited for


def last_words(log: Path) -> str:
    """The line of a log that names its last exception, or else its last line: CUDA's errors end with advice."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()] if log.exists() else []
    lines = [line for line in lines if line]
    return ([line for line in lines if NAMED.match(line)] or lines or [""])[-1][:300]


def code() -> str:
    """A hash of our Python files: a result says nothing about other code."""
    found = hashlib.sha256()
    for path in (path for name in ("trl_prorl", "eval", "tests") for path in sorted((ROOT / name).rglob("*.py"))):
        found.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return found.hexdigest()[:16]
