"""
The second half of a run, in a process of its own: held-out samples, drift, and the run's rows in the tables. It is
given the plan that the runner wrote beside the run's folder:

    python -m study.evaluate runs/study/…/A-seed1-240.plan.json
"""

import hashlib
import json
import shutil
import sys
import time
from pathlib import Path
from statistics import mean

import pandas as pd

from eval import drift, passk
from eval.analysis import stability
from eval.pages.drift import drift_series
from eval.run_folder.reading import load_run, write_json
from eval.run_folder.run import RecordedRun
from eval.samples.held_out import HeldOut
from study.matrix import RunKey
from study.runner import stopped
from study.stops import stop_rows
from study.tables import CURVE_VALUES
from trl_prorl.errors import RunError
from trl_prorl.record.run_files import ELASTIC, RESET


KS = ("1", "8")


def is_collapsed(run: RecordedRun) -> bool:
    """
    Whether a run collapsed: it met numbers that are not finite; or the mean training reward of the last 10 % of its
    steps, at least 10, is below half of the best 10-step mean that it ever had; or that best is 0. A run of fewer than
    10 steps collapses at numbers that are not finite alone.
    """
    verdict, smooth = stability.has_collapsed(run), stability.smoothed_reward(run)
    return bool(verdict) if verdict is not None else smooth is not None and float(smooth.max()) <= 0


def mean_reward(folder: Path, split: str, prompts: int, samples: int) -> float:
    """Mean reward of the trained policy's held-out samples, which are on disk."""
    held_out = HeldOut(folder, split, prompts)
    completions = held_out.samples(held_out.trained, samples)["completion"]
    return mean(held_out.task.reward_many(list(completions), [row for row in held_out.rows for _ in range(samples)]))


def curve_rows(run: RecordedRun) -> list[dict]:
    """A row for each step. A reset stands at the first step that it acts on, the one after `step_applied`."""
    values = {name: run.measured(name) for name in CURVE_VALUES} | {"drift": drift_series(run, "kl_to_base")}
    steps = run.metrics["step"].astype(int)
    rows = pd.DataFrame({name: each for name, each in values.items() if each is not None}).reindex(steps)
    words: dict[int, list[str]] = {}
    for step, reason in run.reset_reasons():
        words.setdefault(step + 1, []).append(reason or RESET)
    words |= {step + 1: [ELASTIC] for step in run.event_steps(ELASTIC)}
    rows["event"] = [" ".join(words.get(step, ())) for step in steps]
    return rows.rename_axis("step").reset_index().to_dict("records")


def prompt_rows(n: int, correct: list[int], greedy: list[int]) -> list[dict]:
    """A row for each held-out prompt, by place in the split."""
    rows = pd.DataFrame({"n": n, "correct": correct, "greedy": greedy}).rename_axis("prompt")
    return rows.reset_index().to_dict("records")


def outcomes(passk: dict, of: str) -> tuple[dict[str, float], list[dict]]:
    """Of the trained policy or of the base: its scores, and its rows by prompt."""
    scores = {f"pass@{k}": passk[of][f"pass@{k}"] for k in KS} | {"greedy": passk["greedy"][of]["accuracy"]}
    return scores, prompt_rows(passk["n"], passk[of]["correct"], passk["greedy"][of]["correct"])


def point_rows(run: RecordedRun, steps: int) -> list[dict]:
    """Every task at every checkpoint, at the base (step 0) and at the end."""
    return [
        {**measured, "task": task, "step": steps if point["step"] is None else point["step"]}
        for point in run.drift["points"]
        for task, measured in {run.drift["task"]: point, **point.get("others", {})}.items()
    ]


def rows_of(folder: Path, plan: dict, proxy: float | None = None) -> dict:
    """
    What a finished run adds to the tables, without the columns of its key: `run`, `curve`, `prompts`, and, where it
    was evaluated, `base`, `base_prompts` and `points`. One that stopped at numbers that are not finite scores 0 on
    every prompt. `plan` is what the runner wrote, `began` in seconds since the epoch; `proxy` the mean reward of the
    samples that `pass@1` counts. Raises `RunError`: the run is not at its end.
    """
    run, steps = load_run(folder), RunKey(*plan["key"]).steps
    ended, done = stopped(folder), int(run.metrics["step"].max())
    if not ended and (done != steps or run.passk is None or run.drift is None):
        raise RunError(f"{folder}: {done} of {steps} steps, or not evaluated; run the study again")
    base_hash = (run.env.get("base_model") or {}).get("sha256")
    if base_hash is None:
        raise RunError(f"{folder}: env.json has no hash of the base; the study needs an embedded base")
    both = {name: plan[name] for name in ("split", "prompts", "samples")}
    both |= {"base_hash": base_hash, "commit": run.env["git_commit"]}
    row = {"block": plan["block"], "variant": run.variant, "recipe": plan["recipe_hash"], **both}
    row |= {
        "collapsed": int(is_collapsed(run)),
        "steps_done": len(run.metrics),
        "resets": len(run.reset_steps() or []),
    }
    row |= {name: int(run.total(name) or 0) for name in ("ref_forward_calls", "tokens_generated")}
    row |= {"seconds": float(round(time.time() - plan["began"]))}
    rows = {"run": row, "curve": curve_rows(run)}
    if ended:
        none = [0] * plan["prompts"]
        row |= dict.fromkeys(("pass@1", "pass@8", "greedy", "gold", "proxy"), 0.0)
        return rows | {"prompts": prompt_rows(plan["samples"], none, none)}
    trained, rows["prompts"] = outcomes(run.passk, "trained")
    base, rows["base_prompts"] = outcomes(run.passk, "base")
    end, ids = run.drift["points"][-1], json.dumps(run.passk["prompt_ids"])
    row |= {**trained, "gold": trained["pass@1"], "proxy": proxy}
    row |= {"drift": end["kl_to_base"], "drift_tokens": end["mean_tokens"]}
    rows["base"] = {f"base_{name}": value for name, value in base.items()} | both
    rows["base"]["prompts_hash"] = hashlib.sha256(ids.encode()).hexdigest()[:12]
    rows["points"] = point_rows(run, steps) if plan["others"] else []
    return rows


def main() -> int:
    plan = json.loads(Path(sys.argv[1]).read_text())
    folder, split, prompts, samples = Path(plan["folder"]), plan["split"], plan["prompts"], plan["samples"]
    checkpoints = list(folder.glob("checkpoint-*"))
    proxy = None
    stops = {}
    if not stopped(folder):
        common = ["--run", str(folder), "--split", split, "--prompts", str(prompts)]
        along = ["--checkpoints", "all"] if checkpoints else []
        along += ["--others", *plan["others"]] if plan["others"] else []
        failed = passk.main([*common, "--n", str(samples), "--k", *KS])
        failed = failed or drift.main([*common, "--samples", str(plan["drift_samples"]), *along])
        if failed:
            return failed
        proxy = mean_reward(folder, split, prompts, samples)
        if "checkpoints" in plan:
            stops = stop_rows(folder, plan)
    write_json(Path(plan["rows"]), rows_of(folder, plan, proxy) | stops)
    for checkpoint in checkpoints:
        shutil.rmtree(checkpoint)
    return 0


if __name__ == "__main__":
    sys.exit(main())
