"""Runs parts one after another, each in a process of its own with a limit, and goes on where an earlier call ended."""

import dataclasses
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import torch

from trl_prorl.eval.gpucheck import folder as results
from trl_prorl.eval.gpucheck.machine import machine
from trl_prorl.eval.gpucheck.part import Part
from trl_prorl.eval.gpucheck.parts import PARTS
from trl_prorl.eval.gpucheck.process import last_words, run_apart
from trl_prorl.eval.gpucheck.result import Result
from trl_prorl.eval.gpucheck.size import SIZES, Size


MACHINE = Part("machine", "The device", machine, limit=90)  # of every call: the results belong to it
LEAST = 20.0  # seconds that must be left for another part to begin
ENOUGH = 0.7  # of a part's limit, after which it begins no further measurement, and keeps those that it has


class Outcome(NamedTuple):
    """
    Attributes:
        failed (`list[str]`): `PART: CHECK`, or `PART: why it has no result`.
        left (`list[str]`): Parts for which no time was left.
    """

    failed: list[str]
    left: list[str]


def work_on(name: str, size_name: str, folder: str, made_with: dict[str, str], limit: float) -> None:
    """A part, in its own process, which is killed at the limit: its result goes to its file."""
    size = dataclasses.replace(SIZES[size_name], ends=time.monotonic() + ENOUGH * limit)
    part = {**PARTS, MACHINE.name: MACHINE}[name]
    torch.manual_seed(0)
    if not size.on_card:
        torch.set_num_threads(1)
    own = Path(folder, name)
    shutil.rmtree(own, ignore_errors=True)  # files of an earlier call could pass for those of this one
    own.mkdir(parents=True)
    results.write(Path(folder), name, part.run(size, own), made_with)


def run_part(part: Part, size: Size, folder: Path, made_with: dict[str, str], limit: float) -> str | None:
    """Run a part; why it brought no result, or `None`."""
    log = folder / f"{part.name}.log"
    for old in (log, folder / f"{part.name}.json"):
        old.unlink(missing_ok=True)
    ended = run_apart(
        work_on, (part.name, size.name, str(folder), made_with, limit), log, limit, fork=not size.on_card, lead=True
    )
    if ended.status is None or (ended.status != 0 and ended.seconds >= limit):
        return f"was stopped after {limit:.0f} s, see {log}"
    if ended.status != 0:
        return f"ended with exit code {ended.status}: {last_words(log)}, see {log}"
    return None


def run_all(
    size: Size, folder: Path, names: Iterable[str], minutes: float, again: bool, say: Callable[[str], None]
) -> Outcome:
    """
    All parts that have not passed yet with this code on this device.

    Args:
        size ([`Size`]): Of the parts.
        folder (`Path`): Of the results.
        names (`Iterable[str]`): Of the parts.
        minutes (`float`): Of all of them; what finds no time is left for another call.
        again (`bool`): Whether those that have passed run, too.
        say (`Callable`): Takes a line.
    """
    began, failed, left = time.monotonic(), [], []
    folder.mkdir(parents=True, exist_ok=True)
    problem = run_part(MACHINE, size, folder, {}, MACHINE.limit)
    if problem is not None:
        return Outcome([f"machine: {problem}. Nothing was measured"], [])
    device = results.read(folder, MACHINE.name)
    failed += [f"machine: {name}" for name in device.failed]
    made_with = {"code": results.code(), "device": device.facts["device"], **device.facts["versions"]}
    results.forget_others(folder, PARTS, made_with)
    for name in names:
        part = PARTS[name]
        if not again and results.is_finished(folder, name, made_with):
            say(f"{name:<13} passed already")
            continue
        seconds = 60 * minutes - (time.monotonic() - began)
        if seconds < LEAST:
            left.append(name)
            continue
        started = time.monotonic()
        problem = run_part(part, size, folder, made_with, min(part.limit, seconds))
        took = time.monotonic() - started
        if problem is not None:
            failed.append(f"{name}: {problem}")
            say(f"{name:<13} {took:4.0f} s  FAILED: {problem}")
            continue
        result = results.read(folder, name)
        failed += [f"{name}: {check}" for check in result.failed]
        say(f"{name:<13} {took:4.0f} s  {summary(result)}")
    return Outcome(failed, left)


def summary(result: Result) -> str:
    """A part in a line."""
    said = [f"{len(result.checks) - len(result.failed)} of {len(result.checks)} checks hold"] if result.checks else []
    said += [f"{len(result.sheets)} tables"] if result.sheets else []
    said += [f"left out: {', '.join(result.skipped)}"] if result.skipped else []
    return "; ".join(said + [f"FAILED: {name}" for name in result.failed])
