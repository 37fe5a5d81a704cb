"""Right: the shipped configurations of FSDP2 and ZeRO-2 train A with resets, through the launcher, as one process."""

import os
import subprocess
import sys
from pathlib import Path

from eval.gpucheck.folder import ROOT
from eval.gpucheck.needs import why_skipped
from eval.gpucheck.process import last_words
from eval.gpucheck.result import Result
from eval.gpucheck.size import Size
from eval.gpucheck.training import lines


STEPS = 4
CASES = {  # a file of accelerate_configs, and what it needs
    "FSDP2": ("fsdp2.yaml", ("cuda",)),
    "ZeRO-2": ("zero2.yaml", ("cuda", "deepspeed")),
}
KEYS = {
    "max_steps": STEPS,
    "num_iterations": 2,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "num_generations": 4,
    "max_completion_length": 8,
    "beta": 0.3,
    "ref_reset_every": 2,
    "gradient_checkpointing": False,
    "bf16": True,
    "train_rows": 16,
    "pack_groups": "auto",
    "compact_generation": "auto",
    "save_strategy": "no",
    "disable_tqdm": True,
}
LIMIT = 100.0


def sharding(size: Size, folder: Path) -> Result:
    """The tiny recipe of A by `accelerate launch`, each configuration in its own process."""
    result = Result()
    recipe = ROOT / "recipes" / "tiny" / "variantA.yaml"
    for name, (file, needs) in CASES.items():
        config = ROOT / "accelerate_configs" / file
        reason = why_skipped(needs, size)
        if reason is None and not (config.is_file() and recipe.is_file()):
            reason = "the configurations are in a checkout of the project only"
        if reason is not None:
            result.skipped[f"{name} with one process"] = reason
            continue
        out, log = folder / name, folder / f"{name}.log"
        settings = {"output_dir": out, "use_cpu": False} | KEYS
        arguments = [word for key, value in settings.items() for word in (f"--{key}", str(value))]
        launch = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(config)]
        launch += ["--num_processes", "1", str(ROOT / "recipes" / "grpo_variantA.py"), "--config", str(recipe)]
        with open(log, "w") as written:
            try:
                status = subprocess.run(
                    [*launch, *arguments],
                    stdout=written,
                    stderr=written,
                    timeout=LIMIT,
                    env={**os.environ},
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired:
                status = None
        rows, events = lines(out / "metrics.jsonl"), lines(out / "events.jsonl")
        applied = [event["step_applied"] for event in events if event["event"] == "reset"]
        said = f"exit code {status}, {len(rows)} steps, resets at {applied}; {last_words(log) if status else ''}"
        right = status == 0 and len(rows) == STEPS and applied == [2] and abs(rows[2]["kl_ref"]) < 1e-3
        result.check(f"{name} with one process", right, said)
    return result
