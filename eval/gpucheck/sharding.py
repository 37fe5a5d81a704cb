"""Right: the shipped configurations of FSDP2 and ZeRO-2 train A with a reset, through the launcher, as one process."""

import json
import sys
from pathlib import Path
from typing import NamedTuple

from trl_prorl.eval.gpucheck.folder import ROOT
from trl_prorl.eval.gpucheck.needs import why_skipped
from trl_prorl.eval.gpucheck.process import last_words, run_command
from trl_prorl.eval.gpucheck.result import Result
from trl_prorl.eval.gpucheck.sharded_run import FACTS, STEPS
from trl_prorl.eval.gpucheck.size import Size
from trl_prorl.eval.gpucheck.training import lines


class Case(NamedTuple):
    """
    Attributes:
        file (`str`): Of `accelerate_configs`.
        needs (`tuple[str, ...]`): Without which it is skipped.
        distributed (`str`), zero_stage (`int` or `None`), shards (`bool`): What it has to make of a trainer.
    """

    file: str
    needs: tuple[str, ...]
    distributed: str
    zero_stage: int | None
    shards: bool


CASES = {
    "FSDP2 with one process": Case("fsdp2.yaml", ("cuda",), "FSDP", None, True),
    "ZeRO-2 with one process": Case("zero2.yaml", ("cuda", "deepspeed"), "DEEPSPEED", 2, False),
}
LIMIT = 70.0


def sharding(size: Size, folder: Path) -> Result:
    """Each configuration in its own process."""
    result = Result()
    for name, case in CASES.items():
        config = ROOT / "accelerate_configs" / case.file
        reason = why_skipped(case.needs, size)
        if reason is None and not config.is_file():
            reason = "the configurations are in a checkout of the project only"
        if reason is not None:
            result.skipped[name] = reason
            continue
        out, log = folder / case.file, folder / f"{case.file}.log"
        launch = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(config)]
        launch += ["--num_processes", "1", "--main_process_port", "0"]  # a port that is free
        launch += ["-m", "trl_prorl.eval.gpucheck.sharded_run", size.name, str(out.resolve())]
        (out / FACTS).unlink(missing_ok=True)  # an earlier call's
        status = run_command(launch, log, LIMIT, ROOT)
        right, found = verdict(case, status, out)
        result.check(name, right, found if right else f"{found}; {last_words(log)}")
    return result


def verdict(case: Case, status: int | None, out: Path) -> tuple[bool, str]:
    """Whether a run was spread as its configuration says, and was reset; and the numbers that say so."""
    file = out / FACTS
    facts = json.loads(file.read_text()) if file.is_file() else {}
    rows, events = lines(out / "metrics.jsonl"), lines(out / "events.jsonl")
    applied = [event["step_applied"] for event in events if event["event"] == "reset"]
    spread = (
        facts.get("distributed") == case.distributed
        and facts.get("zero_stage") == case.zero_stage
        and bool(facts.get("sharded")) == case.shards
    )
    kl = [row["kl_ref"] for row in rows]
    trained = len(rows) == STEPS and applied == [2] and abs(kl[2]) < 3e-4 < kl[1]
    return status == 0 and spread and trained, f"exit code {status}, {facts}, resets at {applied}, kl_ref {kl}"
