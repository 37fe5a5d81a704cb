"""
One of two real processes (gloo) whose weights FSDP2 or whose optimizer's state ZeRO-2 shards: a training, with the
configuration's keys as JSON, and a checkpoint to resume from.

accelerate makes DDP of processes on CPUs whatever it is told, so the distributed type is set here.
"""

import json
import os
import sys
from importlib import import_module
from pathlib import Path

import torch
import yaml
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType
from distributed_worker import end, small_trainer


CONFIG = Path(__file__).parent.parent / "accelerate_configs" / "fsdp2.yaml"


def as_fsdp2():
    """What `accelerate launch --config_file accelerate_configs/fsdp2.yaml` sets, on a CPU."""
    keys = yaml.safe_load(CONFIG.read_text())["fsdp_config"]
    os.environ.update({key.upper(): str(value) for key, value in keys.items()} | {"ACCELERATE_USE_FSDP": "true"})
    original = AcceleratorState.__init__

    def init(self, *args, fsdp_plugin=None, **kwargs):
        original(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        if fsdp_plugin is not None:
            self.fsdp_plugin = fsdp_plugin
        if getattr(self, "fsdp_plugin", None) is not None:  # every later instance takes PartialState's type again
            self.distributed_type = DistributedType.FSDP

    AcceleratorState.__init__ = init


def as_zero2():
    """What `accelerate launch --config_file accelerate_configs/zero2.yaml` sets, on a CPU."""
    os.environ.update(ACCELERATE_USE_DEEPSPEED="true", DS_ACCELERATOR="cpu", ACCELERATE_TORCH_DEVICE="cpu")
    # It compiles for more than a minute.
    import_module("deepspeed.comm.torch").build_shm_op = lambda: None
    del os.environ["ACCELERATE_USE_CPU"]  # with which accelerate leaves DeepSpeed aside
    PartialState._prepare_backend = lambda *args: ("gloo", DistributedType.MULTI_GPU)
    sizes = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping")
    return {"deepspeed": {"zero_optimization": {"stage": 2}, **dict.fromkeys(sizes, "auto")}, "use_cpu": False}


def whole(tensor):
    """A tensor or all shards of it, as numbers."""
    tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return tensor.detach().float().flatten().tolist()


def main(model, out, kind, engine, keys, checkpoint=None):
    own = {"fsdp2": as_fsdp2, "zero2": as_zero2}[engine]() or {}
    own |= {"max_steps": 6, "ref_reset_every": 2, "save_strategy": "steps", "save_steps": 4}
    trainer = small_trainer(model, out, kind, **(own | keys))
    seen = []
    original = trainer.resets.on_generation

    def state():
        """Every number of references, policies and first moments."""
        references, policies = zip(*trainer.reference.pairs(), strict=True)
        moments = [state["exp_avg"] for state in trainer.optimizer.state.values() if "exp_avg" in state]
        return [torch.tensor(sum(map(whole, part), [])) for part in (references, policies, moments)]

    def watched(step):
        old, _, before = state()
        event = original(step)
        if event is not None:
            new, policy, after = state()
            mix = trainer.args.ref_reset_mix
            off = (new - mix * policy - (1 - mix) * old).abs().max().item()
            kept = (after.abs().sum() / before.abs().sum()).item()
            seen.append({"step": step, "off": off, "moved": not torch.equal(new, old), "kept": kept})
        return event

    trainer.resets.on_generation = watched
    trainer.train(resume_from_checkpoint=checkpoint)
    policy = {name: whole(param) for name, param in trainer.model.named_parameters() if param.requires_grad}
    kinds = {type(param).__name__ for param in trainer.model.parameters()}
    found = {"type": str(trainer.accelerator.distributed_type), "parameters": sorted(kinds), "seen": seen}
    return trainer, found | {"policy": policy}


if __name__ == "__main__":
    end(sys.argv[2], *main(*sys.argv[1:5], json.loads(sys.argv[5]), *sys.argv[6:]))
