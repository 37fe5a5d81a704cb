"""A training as it is told, in a process of its own that can be killed: see server.py."""

import os
import signal
import sys
import time
import warnings
from pathlib import Path

from datasets import Dataset
from peft import LoraConfig
from tiny_run import LORA, SETTINGS, vowels
from transformers import AutoTokenizer, TrainerCallback

from trl_prorl import ProRLConfig, ProRLTrainer


def rows(count, first):
    return Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": f"say {i * 37 % 101}"}] for i in range(first, first + count)]}
    )


def build(model, out, lora, prompts, keys, **given):
    defaults = {
        "output_dir": out,
        "max_steps": 9,
        "per_device_train_batch_size": 4,
        "use_cpu": True,
        **SETTINGS,
        "save_strategy": "steps",
        "save_steps": 1,
        "save_total_limit": 3,
        "logging_steps": 2,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        args = ProRLConfig(**{**defaults, **keys})
    ours = {
        "reward_funcs": vowels,
        "train_dataset": rows(prompts, 0),
        "eval_dataset": rows(2, 50) if args.eval_strategy != "no" else None,
        "processing_class": AutoTokenizer.from_pretrained(model),
        "peft_config": LoraConfig(**LORA) if lora else None,
    }
    return ProRLTrainer(model=model, args=args, **ours | given)


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


class AtStep(TrainerCallback):
    """Calls a function when a step is done and not yet saved."""

    def __init__(self, step, act):
        self.step = step
        self.act = act

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            self.act(args)


def kill(args):
    """SIGKILL this process, and its group if it is one of several ranks."""
    if args.world_size > 1:
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def hold(args):
    """The run goes no further, so that a kill from outside is in time on a machine with other work, too."""
    while True:
        time.sleep(1)


def wait_in_save(trainer, step, signals):
    """Half a checkpoint is written when this process says so, and waits until it is told to go on."""
    save = trainer._save_beside
    signals = Path(signals)

    def wait(checkpoint):
        if trainer.state.global_step == step:
            (signals / "waits").touch()
            while not (signals / "go").exists():
                time.sleep(0.01)
        save(checkpoint)

    trainer._save_beside = wait


def train(spec):
    calls = kill_at_call(spec["kill_at_call"]) if "kill_at_call" in spec else None
    trainer = build(spec["model"], spec["out"], spec["lora"], spec["prompts"], spec["keys"])
    for key, act in (("kill_at_step", kill), ("hold_at_step", hold)):
        if key in spec:
            trainer.add_callback(AtStep(spec[key], act))
    if "wait_in_save" in spec:
        wait_in_save(trainer, *spec["wait_in_save"])
    trainer.train(resume_from_checkpoint=spec.get("resume"))
    trainer.save_model()
    if calls is not None:
        Path(spec["out"], "calls").write_text(str(calls["calls"]))
