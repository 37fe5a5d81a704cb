"""
One of several processes that train with FSDP on a CPU, by TRL's trainer or ours with all our keys off; started by
test_distributed.py. Accelerate would use FSDP on GPUs only, so its state is told to use it.
"""

import json
import os
import sys
from pathlib import Path

from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType
from tiny_run import SETTINGS, vowels
from training import rows
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from trl_prorl import ProRLConfig, ProRLTrainer


KEYS = {
    "per_device_train_batch_size": 2,
    "max_steps": 4,
    "save_strategy": "steps",
    "save_steps": 2,
    "logging_steps": 1,
}
MEASURED = ("loss", "grad_norm", "reward", "kl", "entropy")
make_state = AcceleratorState.__init__


def make_sharded_state(state, *args, fsdp_plugin=None, **kwargs):
    make_state(state, *args, fsdp_plugin=fsdp_plugin, **kwargs)
    if fsdp_plugin is not None:
        state.distributed_type = DistributedType.FSDP
        state.fsdp_plugin = fsdp_plugin
        PartialState._shared_state["distributed_type"] = DistributedType.FSDP


def train(kind, model, out, resume):
    trainer_class, config_class = {"TRL": (GRPOTrainer, GRPOConfig), "ours": (ProRLTrainer, ProRLConfig)}[kind]
    settings = {"output_dir": out, "use_cpu": True, "fsdp": True, "beta": 0.1, "sync_ref_model": True}
    settings |= {"ref_model_sync_steps": 1, "report_to": "none"}
    trainer = trainer_class(
        model=model,
        reward_funcs=vowels,
        args=config_class(**settings, **SETTINGS, **KEYS),
        train_dataset=rows(8, 0),
        processing_class=AutoTokenizer.from_pretrained(model),
    )
    assert trainer.is_fsdp_enabled
    trainer.train(resume_from_checkpoint=resume or None)
    trainer.save_model()
    logs = [{name: log[name] for name in MEASURED} for log in trainer.state.log_history if "loss" in log]
    if trainer.is_world_process_zero():
        Path(out, "logs.txt").write_text(json.dumps(logs))
    trainer.accelerator.end_training()


if __name__ == "__main__":
    AcceleratorState.__init__ = make_sharded_state
    train(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)
