"""A training on a GPU in a process of its own, started by test_on_gpu.py: of NaN, or spread by a launcher."""

import json
import math
import os
import sys
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor


sys.path.append(str(Path(__file__).parent / "forks"))

from training import build  # noqa: E402


# FSDP2 in bf16 rounds log-probabilities to bf16, so that an update must be large for the KL to show it.
KEYS = {
    "use_cpu": False,
    "bf16": True,
    "max_steps": 4,
    "num_iterations": 2,
    "save_strategy": "no",
    "beta": 0.3,
    "ref_reset_every": 2,
    "pack_groups": "auto",
    "report_to": "none",
}


def main(model: str, out: str, kind: str) -> None:
    trainer = build(model, out, True, 16, KEYS)
    if kind == "nan":
        weights = trainer.model.named_parameters()
        with torch.no_grad():
            next(param for name, param in weights if "down_proj.base" in name).view(-1)[3] = math.nan
    trainer.train()
    plugin = trainer.accelerator.state.deepspeed_plugin
    facts = {
        "distributed": trainer.accelerator.distributed_type.value,
        "sharded": any(isinstance(param, DTensor) for param in trainer.model_wrapped.parameters()),
        "zero_stage": None if plugin is None else plugin.zero_stage,
    }
    Path(out, "spread.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)
