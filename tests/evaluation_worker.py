"""One of two real processes that evaluate three prompts with four completions each, started by test_distributed.py."""

import json
import os
import sys
from pathlib import Path

import torch
from datasets import Dataset
from distributed_worker import small_trainer
from tiny_run import constant


# The verdicts of each process, call by call. In batches of four a process has a prompt to itself: the first and the
# third, the second and, because the set ends, the first again. In batches of two a prompt is spread over both.
VERDICTS = {
    4: [[[1, 0, 0, 0], [0, 0, 0, 0]], [[1, 1, 0, 1], [1, 1, 1, 1]]],
    2: [[[1, 0], [0, 0], [1, 0]], [[0, 1], [0, 0], [0, 0]]],
}


def main(model, out, batch):
    rows = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"say {i}"}] for i in range(3)]})
    seen = []

    def verifier(completions, prompts, **columns):
        seen.append([prompt[-1]["content"] for prompt in prompts])
        return VERDICTS[batch][torch.distributed.get_rank()][len(seen) - 1]

    given = {"reward_funcs": constant(0.5, verifier), "train_dataset": rows, "eval_dataset": rows}
    trainer = small_trainer(model, out, "full", given, per_device_eval_batch_size=batch)
    measured = trainer.evaluate()
    found = {"measured": {name: value for name, value in measured.items() if "pass@" in name}, "seen": seen}
    Path(f"{out}-rank{trainer.accelerator.process_index}.json").write_text(json.dumps(found))
    trainer.accelerator.end_training()


if __name__ == "__main__":
    main(*sys.argv[1:3], int(sys.argv[3]))
    # All is done and written. When the interpreter tears gloo's threads down, about one run in twenty is aborted.
    sys.stdout.flush()
    os._exit(0)
