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

from study import sorting_ends  # noqa: F401  registers its task
from study.matrix import RunKey
from study.passk import passk_rows
from study.runner import ended_at_nonfinite
from study.stops import stop_rows
from study.tables import CURVE_VALUES
from study.texts import text_rows
from trl_prorl.errors import RunError
from trl_prorl.eval import drift, passk
from trl_prorl.eval.analysis import stability
from trl_prorl.eval.pages.drift import drift_series
from trl_prorl.eval.run_folder.reading import load_run, write_json
from trl_prorl.eval.run_folder.run import RecordedRun
from trl_prorl.eval.samples.held_out import HeldOut
from trl_prorl.record.run_files import ELASTIC, RESET


KS = ("1", "8")


def is_collapsed(run: RecordedRun) -> bool:
    """
    Whether a run collapsed: it met numbers that are not finite; or the mean training reward of the last 10 % of its
    steps, at least 10, is below half of the best 10-step mean that it ever had; or that best is 0. A run of fewer than
    10 steps collapses at numbers that are not finite alone.
    """
    verdict = stability.has_collapsed(run)
    if verdict is not None:
        return bool(verdict)
    smooth = stability.smoothed_reward(run)
    return smooth is not None and float(smooth.max()) <= 0


def mean_reward(folder: Path, split: str, prompts: int, samples: int) -> float:
    """Return the mean reward of the trained policy's held-out samples, which are on disk."""
    held_out = HeldOut(folder, split, prompts)
    completions = held_out.samples(held_out.trained, samples)["completion"]
    rows = [row for row in held_out.rows for _ in range(samples)]
    return mean(held_out.task.reward_many(list(completions), rows))


def events_by_step(run: RecordedRun) -> dict[int, str]:
    """Return the reasons of a run's resets by the first step that a reset acts on, the one after `step_applied`."""
    words: dict[int, list[str]] = {}
    for step, reason in run.reset_reasons():
        words.setdefault(step + 1, []).append(reason or RESET)
    for step in run.event_steps(ELASTIC):
        words[step + 1] = [ELASTIC]
    return {step: " ".join(reasons) for step, reasons in words.items()}


def curve_rows(run: RecordedRun) -> list[dict]:
    """Return a row for each step."""
    values = {name: run.measured(name) for name in CURVE_VALUES}
    values["drift"] = drift_series(run, "kl_to_base")
    steps = run.metrics["step"].astype(int)
    rows = pd.DataFrame({name: series for name, series in values.items() if series is not None}).reindex(steps)
    events = events_by_step(run)
    rows["event"] = [events.get(step, "") for step in steps]
    return rows.rename_axis("step").reset_index().to_dict("records")


def prompt_rows(n: int, correct: list[int], greedy: list[int]) -> list[dict]:
    """Return a row for each held-out prompt, by place in the split."""
    rows = pd.DataFrame({"n": n, "correct": correct, "greedy": greedy}).rename_axis("prompt")
    return rows.reset_index().to_dict("records")


def scores_of(passk: dict, model: str) -> dict[str, float]:
    """Return the scores of a model, `trained` or `base`."""
    scores = {f"pass@{k}": passk[model][f"pass@{k}"] for k in KS}
    scores["greedy"] = passk["greedy"][model]["accuracy"]
    return scores


def prompt_rows_of(passk: dict, model: str) -> list[dict]:
    """Return the rows by prompt of a model, `trained` or `base`."""
    return prompt_rows(passk["n"], passk[model]["correct"], passk["greedy"][model]["correct"])


def point_rows(run: RecordedRun, steps: int) -> list[dict]:
    """Return a row for every task at every checkpoint, at the base (step 0) and at the end."""
    rows = []
    for point in run.drift["points"]:
        step = steps if point["step"] is None else point["step"]
        tasks = {run.drift["task"]: point, **point.get("others", {})}
        for task, measured in tasks.items():
            rows.append({**measured, "task": task, "step": step})
    return rows


def check_finished(run: RecordedRun, folder: Path, steps: int) -> None:
    """Refuse, as a `RunError`, a run that has not come to its end, or is not evaluated."""
    done = int(run.metrics["step"].max())
    if done != steps or run.passk is None or run.drift is None:
        raise RunError(f"{folder}: {done} of {steps} steps, or not evaluated; run the study again")


def rows_of(folder: Path, plan: dict, proxy: float | None = None) -> dict:
    """
    Collect what a finished run adds to the tables, without the columns of its key.

    Args:
        folder (`Path`): The run's folder.
        plan (`dict`): What the runner wrote; `began` is in seconds since the epoch.
        proxy (`float`, *optional*): The mean reward of the samples that `pass@1` counts.

    Returns:
        `dict`: `run`, `curve`, `prompts`, and, where the run was evaluated, `base`, `base_prompts` and `points`. A run
        that stopped at numbers that are not finite scores 0 on every prompt.

    Raises:
        RunError: The run is not at its end.
    """
    run = load_run(folder)
    steps = RunKey(*plan["key"]).steps
    has_policy = not ended_at_nonfinite(folder)
    if has_policy:
        check_finished(run, folder, steps)
    base_hash = (run.env.get("base_model") or {}).get("sha256")
    if base_hash is None:
        raise RunError(f"{folder}: env.json has no hash of the base; the study needs an embedded base")
    of_run_and_base = {
        "split": plan["split"],
        "prompts": plan["prompts"],
        "samples": plan["samples"],
        "base_hash": base_hash,
        "commit": run.env["git_commit"],
    }
    row = {
        "block": plan["block"],
        "variant": run.variant,
        "recipe": plan["recipe_hash"],
        **of_run_and_base,
        "collapsed": int(is_collapsed(run)),
        "steps_done": len(run.metrics),
        "resets": len(run.reset_steps() or []),
        "ref_forward_calls": int(run.total("ref_forward_calls") or 0),
        "tokens_generated": int(run.total("tokens_generated") or 0),
        "seconds": float(round(time.time() - plan["began"])),
    }
    curve = curve_rows(run)
    if not has_policy:
        none = [0] * plan["prompts"]
        row |= dict.fromkeys(("pass@1", "pass@8", "greedy", "gold", "proxy"), 0.0)
        return {"run": row, "curve": curve, "prompts": prompt_rows(plan["samples"], none, none)}
    trained = scores_of(run.passk, "trained")
    end = run.drift["points"][-1]
    row |= {
        **trained,
        "gold": trained["pass@1"],
        "proxy": proxy,
        "drift": end["kl_to_base"],
        "drift_tokens": end["mean_tokens"],
    }
    base = {f"base_{name}": value for name, value in scores_of(run.passk, "base").items()}
    ids = json.dumps(run.passk["prompt_ids"])
    base["prompts_hash"] = hashlib.sha256(ids.encode()).hexdigest()[:12]
    return {
        "run": row,
        "curve": curve,
        "prompts": prompt_rows_of(run.passk, "trained"),
        "base": {**base, **of_run_and_base},
        "base_prompts": prompt_rows_of(run.passk, "base"),
        "points": point_rows(run, steps) if plan["others"] else [],
    }


def measure(folder: Path, plan: dict) -> int:
    """Draw the held-out samples of a run and measure its drift, as the product's commands do; return an exit code."""
    common = ["--run", str(folder), "--split", plan["split"], "--prompts", str(plan["prompts"])]
    failed = passk.main([*common, "--n", str(plan["samples"]), "--k", *KS])
    if failed:
        return failed
    options = ["--samples", str(plan["drift_samples"])]
    if any(folder.glob("checkpoint-*")):
        options += ["--checkpoints", "all"]
    if plan["others"]:
        options += ["--others", *plan["others"]]
    return drift.main([*common, *options])


def main() -> int:
    """Evaluate the run of a plan, write its rows, and remove its checkpoints."""
    plan = json.loads(Path(sys.argv[1]).read_text())
    folder = Path(plan["folder"])
    proxy = None
    beside = {}
    if not ended_at_nonfinite(folder):
        failed = measure(folder, plan)
        if failed:
            return failed
        proxy = mean_reward(folder, plan["split"], plan["prompts"], plan["samples"])
        if "checkpoints" in plan:
            beside |= stop_rows(folder, plan)
        if "passk" in plan:
            beside |= passk_rows(folder, plan)
        if "texts" in plan:
            beside |= text_rows(folder, plan)
    write_json(Path(plan["rows"]), {**rows_of(folder, plan, proxy), **beside})
    for checkpoint in folder.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    return 0


if __name__ == "__main__":
    sys.exit(main())
