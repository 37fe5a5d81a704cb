"""One of two real processes that evaluate three prompts with four completions each, started by test_distributed.py."""

import json
import os
import sys
from pathlib import Path

import torch
from datasets import Dataset
from transformers import AutoTokenizer

from trl_prorl import ProRLConfig, ProRLTrainer


# The verdicts of each process, call by call. In batches of four a process has a prompt to itself: the first and the
# third, the second and, because the set ends, the first again. In batches of two a prompt is spread over both.
VERDICTS = {
    4: [[[1, 0, 0, 0], [0, 0, 0, 0]], [[1, 1, 0, 1], [1, 1, 1, 1]]],
    2: [[[1, 0], [0, 0], [1, 0]], [[0, 1], [0, 0], [0, 0]]],
}


def main(model, out, batch):
    torch.set_num_threads(1)
    args = ProRLConfig(
        output_dir=out,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=batch,
        num_generations=4,
        max_completion_length=4,
        bf16=False,
        use_cpu=True,
        gradient_checkpointing=False,
        report_to="none",
        disable_tqdm=True,
        seed=7,
    )
    rows = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"say {i}"}] for i in range(3)]})
    seen = []

    def reward(completions, **columns):
        return [0.5] * len(completions)

    def verifier(completions, prompts, **columns):
        seen.append([prompt[-1]["content"] for prompt in prompts])
        return VERDICTS[batch][torch.distributed.get_rank()][len(seen) - 1]

    reward.verifier = verifier
    trainer = ProRLTrainer(
        model=model,
        reward_funcs=reward,
        args=args,
        train_dataset=rows,
        eval_dataset=rows,
        processing_class=AutoTokenizer.from_pretrained(model),
    )
    measured = trainer.evaluate()
    found = {"measured": {name: value for name, value in measured.items() if "pass@" in name}, "seen": seen}
    Path(f"{out}-rank{trainer.accelerator.process_index}.json").write_text(json.dumps(found))
    trainer.accelerator.end_training()


if __name__ == "__main__":
    main(*sys.argv[1:3], int(sys.argv[3]))
    # All is done and written. When the interpreter tears gloo's threads down, about one run in twenty is aborted.
    sys.stdout.flush()
    os._exit(0)
