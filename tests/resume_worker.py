"""
A process that trains as it is told, once per line of JSON on stdin, each time in a fork of its own that can be killed.

Prints the fork's process id when it begins, and its exit status when it has ended. The imports are paid once.
"""

import json
import os
import signal
import sys
import traceback
import warnings
from pathlib import Path

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoTokenizer

from trl_prorl import ProRLConfig, ProRLTrainer


LORA = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj", "down_proj"]}


def vowels(completions, **columns):
    """The share of bytes below 'g': it differs within almost every group."""
    return [sum(ord(ch) < 103 for ch in c[-1]["content"]) / (len(c[-1]["content"]) + 1) for c in completions]


def rows(count, first):
    return Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": f"say {i * 37 % 101}"}] for i in range(first, first + count)]}
    )


def build(model, out, lora, prompts, keys):
    defaults = {
        "output_dir": out,
        "max_steps": 9,
        "per_device_train_batch_size": 4,
        "num_generations": 4,
        "max_completion_length": 6,
        "learning_rate": 5e-3,
        "bf16": False,
        "use_cpu": True,
        "gradient_checkpointing": False,
        "save_strategy": "steps",
        "save_steps": 1,
        "save_total_limit": 3,
        "logging_steps": 2,
        "disable_tqdm": True,
        "seed": 7,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        args = ProRLConfig(**{**defaults, **keys})
    return ProRLTrainer(
        model=model,
        reward_funcs=vowels,
        args=args,
        train_dataset=rows(prompts, 0),
        eval_dataset=rows(2, 50) if args.eval_strategy != "no" else None,
        processing_class=AutoTokenizer.from_pretrained(model),
        peft_config=LoraConfig(**LORA) if lora else None,
    )


def kill_at_call(number):
    """SIGKILL this process at its n-th file operation inside a save: open, rename, remove, mkdir and the like."""
    seen = {"saving": False, "calls": 0}
    save = ProRLTrainer._save_checkpoint

    def watched_save(self, *args):
        seen["saving"] = True
        save(self, *args)
        seen["saving"] = False

    ProRLTrainer._save_checkpoint = watched_save

    def hook(event, args):
        if seen["saving"] and (event in ("open", "shutil.rmtree") or event.startswith("os.")):
            seen["calls"] += 1
            if seen["calls"] == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    return seen


def work(spec):
    torch.set_num_threads(1)
    calls = kill_at_call(spec["kill_at_call"]) if "kill_at_call" in spec else None
    trainer = build(spec["model"], spec["out"], spec["lora"], spec["prompts"], spec["keys"])
    trainer.train(resume_from_checkpoint=spec.get("resume"))
    trainer.save_model()
    if calls is not None:
        Path(spec["out"], "calls").write_text(str(calls["calls"]))


def main():
    for line in sys.stdin:
        spec = json.loads(line)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                with open(spec["log"], "a") as log:
                    os.dup2(log.fileno(), 1)
                    os.dup2(log.fileno(), 2)
                    work(spec)
                    status = 0
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
            finally:
                os._exit(status)
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
