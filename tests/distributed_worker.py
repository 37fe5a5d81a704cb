"""One of several real processes, started by test_distributed.py as `torchrun` would."""

import hashlib
import json
import os
import sys
from pathlib import Path

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoTokenizer

from trl_prorl import ProRLConfig, ProRLTrainer, Reason, ReferenceResetCallback, Trigger


class SeenBy(Trigger):
    """Fires after step 2 in one process alone."""

    def __init__(self, rank):
        self.rank = rank

    def observe_step(self, step, kl_ref=None):
        here = torch.distributed.get_rank()
        return Reason(f"seen by {here}", 1.0, 0.0, step) if step == 2 and here == self.rank else None


def digest(tensors):
    return hashlib.sha256(b"".join(tensor.detach().numpy().tobytes() for tensor in tensors)).hexdigest()


def small_trainer(model, out, kind, given=None, **keys):
    """A trainer of a tiny model: `kind` is `lora` or `full`, `given` goes to it, `keys` are the configuration's."""
    torch.set_num_threads(1)
    fixed = {"beta": 0.1, "per_device_train_batch_size": 4, "num_generations": 4, "num_iterations": 2}
    fixed |= {"max_completion_length": 6, "learning_rate": 5e-3, "lr_scheduler_type": "constant", "seed": 7}
    fixed |= {"bf16": False, "use_cpu": True, "gradient_checkpointing": False, "ddp_find_unused_parameters": False}
    fixed |= {"report_to": "none", "disable_tqdm": True}
    prompts = [[{"role": "user", "content": f"say {i}"}] for i in range(16)]
    ours = {
        "reward_funcs": lambda completions, **kwargs: [len(set(c[-1]["content"])) / 6 for c in completions],
        "train_dataset": Dataset.from_dict({"prompt": prompts}),
        "processing_class": AutoTokenizer.from_pretrained(model),
        "peft_config": LoraConfig(r=4, target_modules=["q_proj", "v_proj"]) if kind == "lora" else None,
    }
    return ProRLTrainer(model=model, args=ProRLConfig(output_dir=out, **(fixed | keys)), **ours | (given or {}))


def main(model, out, kind, seen_by):
    own = {"max_steps": 4, "reuse_old_logps": True, "save_strategy": "no"}
    given = {"callbacks": [ReferenceResetCallback([SeenBy(seen_by)])]}
    trainer = small_trainer(model, out, kind, given, **own)
    seen = []
    original = trainer.resets.boundary

    def watched(*args):
        before = digest(ref for ref, _ in trainer.reference.pairs())
        event = original(*args)
        references, policies = map(digest, zip(*trainer.reference.pairs(), strict=True))
        step = {"step": trainer.state.global_step, "moved": references != before}
        seen.append(step | {"reference": references, "policy": policies})
        return event

    trainer.resets.boundary = watched
    trainer.train()
    Path(out, f"rank{trainer.accelerator.process_index}.json").write_text(json.dumps(seen))
    trainer.accelerator.end_training()


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]))
    # All is done and written. When the interpreter tears gloo's threads down, about one run in twenty is aborted.
    sys.stdout.flush()
    os._exit(0)
