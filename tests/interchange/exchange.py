"""Shared by the tests of the exchange: names, a callback that exports every update, torch's state by name."""

import importlib.util
import sys
from pathlib import Path

import torch
from transformers import TrainerCallback

from trl_prorl.interchange import export_update


EXAMPLES = Path(__file__).parent.parent.parent / "docs" / "examples"
STATE = ("parameters", "exp_avg", "exp_avg_sq", "steps")
A = "layer.lora_A.default.weight"
B = "layer.lora_B.default.weight"


def script(path: Path):
    """A script of the examples as a module."""
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def norm_of(gradients):
    return torch.cat([gradient.flatten().double() for gradient in gradients.values()]).norm().item()


def live_state(trainer):
    """Parameters, m, v and t by name, straight from torch."""
    optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
    found = {kind: {} for kind in STATE}
    for name, param in trainer.accelerator.unwrap_model(trainer.model).named_parameters():
        if param in optimizer.state:
            state = optimizer.state[param]
            found["parameters"][name] = param.detach().clone()
            found["exp_avg"][name] = state["exp_avg"].clone()
            found["exp_avg_sq"][name] = state["exp_avg_sq"].clone()
            found["steps"][name] = state["step"].clone().reshape(1)
    return found


class EveryUpdate(TrainerCallback):
    """Exports every update into `folder/1`, `folder/2`, …, and keeps what torch made of it."""

    def __init__(self, folder):
        self.folder = folder
        self.trainer = None
        self.export = None
        self.after = {}

    def on_step_begin(self, args, state, control, **kwargs):
        if self.export is None or self.export.done:  # the export of a step that was left out waits
            self.export = export_update(self.trainer, self.folder / str(state.global_step + 1))

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.after[state.global_step + 1] = live_state(self.trainer)
