"""One of several real processes, started by test_distributed.py as `torchrun` would."""

import hashlib
import json
import os
import sys
from pathlib import Path

import torch
from datasets import Dataset
from training import build

from trl_prorl import Reason, ReferenceResetCallback, Trigger


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
    fixed = {
        "beta": 0.1,
        "num_iterations": 2,
        "report_to": "none",
        "save_total_limit": None,
        "lr_scheduler_type": "constant",
        "ddp_find_unused_parameters": False,
    }
    return build(model, out, kind == "lora", 16, fixed | keys, **(given or {}))


def training(model, out, kind, seen_by):
    own = {"max_steps": 4, "reuse_old_logps": True, "save_strategy": "no"}
    given = {"callbacks": [ReferenceResetCallback([SeenBy(seen_by)])]}
    trainer = small_trainer(model, out, kind, given, **own)
    seen = []
    original = trainer.resets.on_generation

    def watched(*args):
        before = digest(ref for ref, _ in trainer.reference.pairs())
        event = original(*args)
        references, policies = map(digest, zip(*trainer.reference.pairs(), strict=True))
        step = {"step": trainer.state.global_step, "moved": references != before}
        seen.append(step | {"reference": references, "policy": policies})
        return event

    trainer.resets.on_generation = watched
    trainer.train()
    return trainer, seen


# The verdicts of each process on four completions of three prompts, call by call. In batches of four a process has a
# prompt to itself: the first and the third, the second and, because the set ends, the first again. In batches of two a
# prompt is spread over both.
VERDICTS = {
    4: [[[1, 0, 0, 0], [0, 0, 0, 0]], [[1, 1, 0, 1], [1, 1, 1, 1]]],
    2: [[[1, 0], [0, 0], [1, 0]], [[0, 1], [0, 0], [0, 0]]],
}


def evaluation(model, out, batch):
    rows = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"say {i}"}] for i in range(3)]})
    seen = []

    def verifier(completions, prompts, **columns):
        seen.append([prompt[-1]["content"] for prompt in prompts])
        return VERDICTS[batch][torch.distributed.get_rank()][len(seen) - 1]

    def reward(prompts, **columns):
        return [float(prompt[-1]["content"].removeprefix("say ")) for prompt in prompts]

    reward.batch_verifier = verifier
    given = {"reward_funcs": reward, "train_dataset": rows, "eval_dataset": rows}
    trainer = small_trainer(model, out, "full", given, per_device_eval_batch_size=batch)
    metrics = trainer.evaluate()
    measured = {name: value for name, value in metrics.items() if "pass@" in name}
    return trainer, {"measured": measured, "seen": seen, "reward": metrics["eval_reward"]}


def end(out, trainer, found):
    """Write what was found, and go: when the interpreter tears gloo's threads down, one run in twenty is aborted."""
    Path(f"{out}-rank{trainer.accelerator.process_index}.json").write_text(json.dumps(found))
    trainer.accelerator.end_training()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    *given, number = sys.argv[1:]
    end(given[1], *(training if len(given) == 3 else evaluation)(*given, int(number)))
