"""
The second half of a run, in a process of its own: held-out samples, drift, rows. It is given the plan that the runner
wrote beside the run's folder:

    python -m study.evaluate runs/study/…/A-seed1-240.json
"""

import json
import shutil
import sys
import time
from pathlib import Path
from statistics import mean

from eval import drift, passk
from eval.run_folder.json_files import write_json
from eval.run_folder.reading import load_run
from eval.samples.held_out import HeldOut
from study.matrix import RunKey
from study.rows import rows_of, stopped_at_nonfinite


CHECKPOINTS = "checkpoint-*"


def mean_reward(folder: Path, split: str, prompts: int, samples: int) -> float:
    """Mean reward of the trained policy's held-out samples, which are on disk."""
    held_out = HeldOut(folder, split, prompts)
    completions = held_out.samples(held_out.trained, samples)["completion"]
    rows = [row for row in held_out.rows for _ in range(samples)]
    return mean(held_out.task.reward_many(list(completions), rows))


def main() -> int:
    plan = json.loads(Path(sys.argv[1]).read_text())
    folder = Path(plan["folder"])
    of_samples = (plan["split"], plan["prompts"], plan["samples"])
    proxy = None
    common = ["--run", str(folder), "--split", plan["split"], "--prompts", str(plan["prompts"])]
    if not stopped_at_nonfinite(load_run(folder)):
        ks = [str(k) for k in (1, 8)]
        failed = passk.main([*common, "--n", str(plan["samples"]), "--k", *ks])
        along = ["--checkpoints", "all"] if any(folder.glob(CHECKPOINTS)) else []
        failed = failed or drift.main([*common, "--samples", str(plan["drift_samples"]), *along])
        if failed:
            return failed
        proxy = mean_reward(folder, *of_samples)
    seconds = time.time() - plan["began"]
    rows = rows_of(
        folder, RunKey(*plan["key"]), plan["recipe_hash"], *of_samples, seconds, block=plan["block"], proxy=proxy
    )
    write_json(Path(plan["rows"]), rows)
    for checkpoint in folder.glob(CHECKPOINTS):
        shutil.rmtree(checkpoint)
    return 0


if __name__ == "__main__":
    sys.exit(main())
