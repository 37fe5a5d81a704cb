"""A training of A with a reset, started by `accelerate launch`, that says how its weights were spread."""

import json
import sys
from pathlib import Path

from torch.distributed.tensor import DTensor

from trl_prorl.eval.gpucheck.runs import make_run
from trl_prorl.eval.gpucheck.size import SIZES


STEPS = 4
# FSDP2 in bf16 rounds log-probabilities to bf16, so that an update must be large for the KL to show it.
KEYS = {"max_steps": STEPS, "beta": 0.3, "ref_reset_every": 2, "pack_groups": "auto", "learning_rate": 3e-3}
FACTS = "spread.json"


def main(size: str, out: str) -> None:
    """Train, and write what the launcher's configuration has made of the trainer."""
    on_card = SIZES[size].on_card
    trainer = make_run(SIZES[size], Path(out), KEYS | {"bf16": on_card})
    trainer.train()
    plugin = trainer.accelerator.state.deepspeed_plugin
    facts = {
        "distributed": trainer.accelerator.distributed_type.value,
        "sharded": sum(isinstance(param, DTensor) for param in trainer.model_wrapped.parameters()),
        "zero_stage": None if plugin is None else plugin.zero_stage,
    }
    Path(out, FACTS).write_text(json.dumps(facts) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
