"""Right: a run that is killed goes on and ends as one that was never touched, weights, optimizer and record alike."""

import json
import os
import shutil
import signal
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import TrainerCallback

from eval.gpucheck.process import last_words, run_apart
from eval.gpucheck.result import Result
from eval.gpucheck.runs import make_run
from eval.gpucheck.size import SIZES, Size


KILLED, STEPS = 4, 6  # the kill comes within a generation batch, before that step's checkpoint
A = {"beta": 0.3, "ref_reset_every": 3}
CASES = {
    "A, sampled by generate, in bf16": A | {"bf16": True},
    "C, packed, sampled compactly": A | {"optimizer_reset": "hard", "pack_groups": "on", "compact_generation": "on"},
}
SAVED = {"max_steps": STEPS, "save_strategy": "steps", "save_steps": 1, "save_total_limit": 2}
TIMED = ("time", "second", "memory", "utilization")  # parts of names whose values no two runs share
LIMIT = 90.0


class KillAt(TrainerCallback):
    """SIGKILL this process when a step is done and not yet saved."""

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == KILLED:
            os.kill(os.getpid(), signal.SIGKILL)


def run_once(size_name: str, keys: dict, out: str, kill: bool, resume: bool) -> None:
    """A training, with kernels that add in the same order every time."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True, warn_only=True)
    trainer = make_run(SIZES[size_name], Path(out), SAVED | keys, callbacks=[KillAt()] if kill else [])
    trainer.train(resume_from_checkpoint=True if resume else None)


def resume(size: Size, folder: Path) -> Result:
    """Each case three times: undisturbed, killed, resumed."""
    result = Result()
    cases = list(CASES) if size.thorough else list(CASES)[1:2]
    for number, case in enumerate(cases):
        control, out = folder / f"control{number}", folder / f"killed{number}"
        for path in (control, out):
            shutil.rmtree(path, ignore_errors=True)
        ends = []
        for path, kill, again in ((control, False, False), (out, True, False), (out, False, True)):
            log = folder / f"resume{number}.log"
            work = (size.name, CASES[case], str(path), kill, again)
            ends.append(run_apart(run_once, work, log, LIMIT, fork=not size.on_card).status)
        if ends != [0, -signal.SIGKILL, 0]:
            result.check(case, False, f"exit codes {ends}; {last_words(folder / f'resume{number}.log')}")
            continue
        apart = differences(out, control)
        result.check(case, not apart, ", ".join(apart) if apart else f"killed at step {KILLED}: equal to the bit")
    return result


def differences(out: Path, control: Path) -> list[str]:
    """In what two finished runs differ: files of the last checkpoint, and the record without times."""
    found = []
    mine, theirs = (folder / f"checkpoint-{STEPS}" for folder in (out, control))
    for path in sorted(theirs.rglob("*")):
        other = mine / path.relative_to(theirs)
        if path.suffix == ".safetensors" and not equal(load_file(path), load_file(other)):
            found.append(str(path.relative_to(theirs)))
        elif path.name in ("optimizer.pt", "scheduler.pt"):
            pair = [torch.load(each, map_location="cpu", weights_only=True) for each in (path, other)]
            if not equal(*pair):
                found.append(path.name)
    rows = [
        [untimed(json.loads(line)) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for folder in (out, control)
    ]
    if rows[0] != rows[1]:
        first = next((n + 1 for n, (a, b) in enumerate(zip(*rows, strict=False)) if a != b), min(map(len, rows)) + 1)
        found.append(f"the record from step {first} on")
    return found


def untimed(row: dict) -> dict:
    return {key: value for key, value in row.items() if not any(part in key for part in TIMED)}


def equal(one, other) -> bool:
    """Whether two nested states are the same to the bit."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
