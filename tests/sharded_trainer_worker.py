"""
One of two real processes (gloo) that train with DDP, FSDP2 or ZeRO-2: what the trainer does, on shards.

accelerate makes DDP of processes on CPUs even if it is told FSDP, so the distributed type is set here.
"""

import json
import os
import sys
from pathlib import Path


ENGINES = {
    "ddp": {},
    "fsdp2": {"ACCELERATE_USE_FSDP": "true"},
    "zero2": {"ACCELERATE_USE_DEEPSPEED": "true", "DS_ACCELERATOR": "cpu"},
}
CONFIGS = Path(__file__).parent.parent / "accelerate_configs"


def as_fsdp():
    """What `accelerate launch --config_file accelerate_configs/fsdp2.yaml` sets, on a CPU."""
    import yaml
    from accelerate.state import AcceleratorState
    from accelerate.utils import DistributedType

    keys = yaml.safe_load((CONFIGS / "fsdp2.yaml").read_text())["fsdp_config"]
    os.environ.update({key.upper(): str(value) for key, value in keys.items()})
    original = AcceleratorState.__init__

    def init(self, *args, fsdp_plugin=None, **kwargs):
        original(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        if fsdp_plugin is not None:
            self.fsdp_plugin = fsdp_plugin
        if getattr(self, "fsdp_plugin", None) is not None:  # every later instance takes PartialState's type again
            self.distributed_type = DistributedType.FSDP

    AcceleratorState.__init__ = init


def whole(tensor):
    """A tensor or all shards of it, as numbers."""
    tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return tensor.detach().float().flatten().tolist()


def main(engine, model, out, kind, keys, resume):
    os.environ.update(ENGINES[engine])
    if engine == "fsdp2":
        as_fsdp()
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoTokenizer

    from trl_prorl import ProRLConfig, ProRLTrainer

    torch.set_num_threads(1)
    if engine == "zero2":
        del os.environ["ACCELERATE_USE_CPU"]  # with which accelerate leaves DeepSpeed aside
        sizes = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping")
        keys["deepspeed"] = {"zero_optimization": {"stage": 2}, **dict.fromkeys(sizes, "auto")}
    args = ProRLConfig(
        output_dir=out,
        beta=0.1,
        ref_reset_every=2,
        max_steps=6,
        per_device_train_batch_size=4,
        num_generations=4,
        num_iterations=2,
        max_completion_length=6,
        learning_rate=5e-3,
        lr_scheduler_type="constant",
        bf16=False,
        use_cpu=engine != "zero2",
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="steps",
        save_steps=4,
        disable_tqdm=True,
        seed=7,
        ddp_find_unused_parameters=False,
        **keys,
    )
    prompts = [[{"role": "user", "content": f"say {i}"}] for i in range(16)]
    trainer = ProRLTrainer(
        model=model,
        reward_funcs=lambda completions, **kwargs: [len(set(c[-1]["content"])) / 6 for c in completions],
        args=args,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=AutoTokenizer.from_pretrained(model),
        peft_config=LoraConfig(r=4, target_modules=["q_proj", "v_proj"]) if kind == "lora" else None,
    )
    seen, original = [], trainer.resets.boundary

    def watched(step):
        event = original(step)
        if event is not None:
            pairs = [(whole(reference), whole(policy)) for reference, policy in trainer.reference.pairs()]
            states = [whole(state["exp_avg"]) for state in trainer.optimizer.state.values() if "exp_avg" in state]
            seen.append({"step": step, "moved": all(a == b for a, b in pairs), "moments": sum(map(sum, states))})
        return event

    trainer.resets.boundary = watched
    trainer.train(resume_from_checkpoint=str(Path(out, "checkpoint-4")) if resume else None)
    policy = {name: whole(param) for name, param in trainer.model.named_parameters() if param.requires_grad}
    kinds = {type(param).__name__ for param in trainer.model.parameters()}
    found = {"type": str(trainer.accelerator.distributed_type), "parameters": sorted(kinds), "seen": seen}
    found |= {"engine": type(trainer.model_wrapped).__name__, "policy": policy}
    Path(f"{out}-rank{trainer.accelerator.process_index}.json").write_text(json.dumps(found))
    trainer.accelerator.end_training()


if __name__ == "__main__":
    main(*sys.argv[1:5], json.loads(sys.argv[5]), sys.argv[6:] == ["resume"])
    # All is done and written. When the interpreter tears gloo's threads down, about one run in twenty is aborted.
    sys.stdout.flush()
    os._exit(0)
