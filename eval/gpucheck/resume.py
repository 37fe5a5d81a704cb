"""Right: a run that is killed goes on and ends as one that was never touched, weights, optimizer and record alike."""

import json
import os
import signal
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import TrainerCallback

from trl_prorl.eval.gpucheck.process import last_words, run_apart
from trl_prorl.eval.gpucheck.result import Result
from trl_prorl.eval.gpucheck.runs import make_run
from trl_prorl.eval.gpucheck.size import SIZES, Size


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


def run_each(size_name: str, cases: list[str], outs: list[str], kill: bool, resume: bool) -> None:
    """
    A training of each case, with kernels that add in the same order every time. Attention is that of torch's own
    operations: with `warn_only`, which other operations need, the backward of the fused kernel may add in any order.
    """
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True, warn_only=True)
    for case, out in zip(cases, outs, strict=True):
        callbacks = [KillAt()] if kill else []
        with sdpa_kernel(SDPBackend.MATH):
            trainer = make_run(SIZES[size_name], Path(out), SAVED | CASES[case], callbacks=callbacks)
            trainer.train(resume_from_checkpoint=True if resume else None)


def resume(size: Size, folder: Path) -> Result:
    """Each case three times: undisturbed, killed, resumed. All that are not killed in a row share a process."""
    result = Result()
    cases = list(CASES) if size.thorough else list(CASES)[1:2]
    controls, killed = ([str(folder / f"{name}{n}") for n in range(len(cases))] for name in ("control", "killed"))

    def status(name: str, *work) -> int | None:
        return run_apart(run_each, (size.name, *work), folder / f"{name}.log", LIMIT, fork=not size.on_card).status

    ends = {"undisturbed": status("undisturbed", cases, controls, False, False)}
    for number, case in enumerate(cases):
        ends[f"killed{number}"] = status(f"killed{number}", [case], killed[number : number + 1], True, False)
    ends["resumed"] = status("resumed", cases, killed, False, True)
    for number, case in enumerate(cases):
        expected = {"undisturbed": 0, f"killed{number}": -signal.SIGKILL, "resumed": 0}
        wrong = [name for name, code in expected.items() if ends[name] != code]
        if wrong:
            codes = ", ".join(f"{name} {ends[name]}: {last_words(folder / f'{name}.log')}" for name in wrong)
            result.check(case, False, f"exit codes {codes}")
            continue
        apart = differences(Path(killed[number]), Path(controls[number]))
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
