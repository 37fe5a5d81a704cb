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


class Changes:
    """
    Counts what this process changes in a folder, or beside it under names that begin as the folder's, from now on; at
    the `last` of these changes the process is killed, and `log` has them. A file that it would open to write is then
    there, and empty.
    """

    def __init__(self, folder, last, log):
        self.folder = folder
        self.last = last
        self.log = log
        self.seen = []
        sys.addaudithook(self.hook)

    def hook(self, event, args):
        if event not in CHANGES:
            return
        path, *others = args
        if event == "open" and not (isinstance(others[1], int) and others[1] & (os.O_WRONLY | os.O_RDWR)):
            return
        if not isinstance(path, (str, bytes, os.PathLike)):
            return
        path = os.fsdecode(path)
        descriptor = args[-1] if event in ("os.remove", "os.rmdir") else -1
        if descriptor >= 0:  # `shutil.rmtree` is in the folder
            path = os.path.join(os.readlink(f"/proc/self/fd/{descriptor}"), path)
        if not os.path.abspath(path).startswith(self.folder):
            return
        if event == "os.mkdir" and os.path.isdir(path) or event == "os.remove" and not os.path.lexists(path):
            return  # it changes nothing
        self.seen.append(f"{event} {os.path.relpath(path, self.folder)}")
        if len(self.seen) == self.last:
            if event == "open":
                os.close(os.open(path, others[1], 0o666))
            self.write()
            os.kill(os.getpid(), signal.SIGKILL)

    def write(self):
        Path(self.log).write_text("\n".join(self.seen))


CHANGES = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.truncate")


class SaveAgain(TrainerCallback):
    """Saves at the end of each epoch too, where a step may have been saved already."""

    def on_epoch_end(self, args, state, control, **kwargs):
        control.should_save = True


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

    def wait(*folders):
        if trainer.state.global_step == step:
            (signals / "waits").touch()
            while not (signals / "go").exists():
                time.sleep(0.01)
        save(*folders)

    trainer._save_beside = wait


def train(spec):
    changes = Changes(spec["out"], spec["killed_at"], spec["changes"]) if "killed_at" in spec else None
    trainer = build(spec["model"], spec["out"], spec["lora"], spec["prompts"], spec["keys"])
    for key, act in (("kill_at_step", kill), ("hold_at_step", hold)):
        if key in spec:
            trainer.add_callback(AtStep(spec[key], act))
    if "wait_in_save" in spec:
        wait_in_save(trainer, *spec["wait_in_save"])
    if spec.get("saves_again"):
        trainer.add_callback(SaveAgain())
    trainer.train(resume_from_checkpoint=spec.get("resume"))
    trainer.save_model()
    if trainer.args.push_to_hub:
        trainer._finish_current_push()
    if changes is not None and trainer.is_world_process_zero():
        changes.write()
