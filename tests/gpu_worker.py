"""A training on a GPU in a process of its own, started by test_on_gpu.py: of NaN, or killed."""

import math
import os
import signal
import sys
from pathlib import Path

import torch
from transformers import TrainerCallback


sys.path.append(str(Path(__file__).parent / "forks"))

from training import build  # noqa: E402


os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
KEYS = {
    "use_cpu": not torch.cuda.is_available(),
    "bf16": True,
    "max_steps": 4,
    "num_iterations": 2,
    "save_strategy": "no",
    "beta": 0.3,
    "ref_reset_every": 2,
    "pack_groups": "auto",
    "report_to": "none",
}


SAVED = {"save_strategy": "steps", "save_steps": 1, "compact_generation": "on"}


class Killed(TrainerCallback):
    """Kill the process in the third step."""

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 2:
            os.kill(os.getpid(), signal.SIGKILL)


def main(model: str, out: str, kind: str) -> None:
    if kind in ("saved", "killed", "resumed"):
        torch.use_deterministic_algorithms(True, warn_only=True)
        trainer = build(model, out, True, 16, KEYS | SAVED)
        if kind == "killed":
            trainer.add_callback(Killed())
        trainer.train(resume_from_checkpoint=kind == "resumed")
        return
    trainer = build(model, out, True, 16, KEYS)
    if kind == "nan":
        weights = trainer.model.named_parameters()
        with torch.no_grad():
            next(param for name, param in weights if "down_proj.base" in name).view(-1)[3] = math.nan
    trainer.train()


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)
