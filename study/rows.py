"""From the folder of a run that was trained and evaluated to its rows in the tables."""

import hashlib
import json
from pathlib import Path

import pandas as pd

from eval.analysis import stability
from eval.analysis.drift import drift_series
from eval.run_folder.reading import load_run
from eval.run_folder.run import Run
from study.matrix import RunKey
from study.tables import BASE_COLUMNS, CURVE_COLUMNS, CURVE_VALUES, PROMPT_COLUMNS, RUN_COLUMNS, BaseKey, as_written
from trl_prorl.errors import RunError


def stopped_at_nonfinite(run: Run) -> bool:
    """Whether the run ended at numbers that are not finite, and so left no policy."""
    events = run.events
    if events is None or events.empty or "action" not in events:
        return False
    return bool(((events["event"] == "nonfinite") & (events["action"] == "stop")).any())


def is_collapsed(run: Run) -> bool:
    """
    Whether a run collapsed: it met numbers that are not finite; or the mean training reward of the last 10 % of its
    steps, at least 10, is below half of the best 10-step mean that it ever had; or that best is 0. A run of fewer than
    10 steps collapses at numbers that are not finite alone.
    """
    told = stability.collapsed(run)
    if told is not None:
        return told
    smooth = stability.smoothed_reward(run)
    return smooth is not None and float(smooth.max()) <= 0


def curve_rows(run: Run, key: RunKey) -> list[dict]:
    """A row for each step. A reset stands at the first step that it acts on, the one after `step_applied`."""
    values = {name: run.measured(name) for name in CURVE_VALUES} | {"drift": drift_series(run, "kl_to_base")}
    events: dict[int, list[str]] = {}
    if run.events is not None and not run.events.empty:
        for event in run.events.to_dict("records"):
            if "reset" in event["event"]:
                reason = event.get("reason")
                events.setdefault(int(event["step_applied"]) + 1, []).append(
                    event["event"] if event["event"] != "reset" else str(reason if pd.notna(reason) else "reset")
                )
    rows = []
    for step in map(int, run.metrics["step"]):
        row = {name: float(series.get(step, float("nan"))) for name, series in values.items() if series is not None}
        rows.append({**key._asdict(), "step": step, **row, "event": " ".join(events.get(step, []))})
    return [as_written(row, CURVE_COLUMNS) for row in rows]


def prompt_rows(key: RunKey, n: int, correct: list[int], greedy: list[int]) -> list[dict]:
    """A row for each held-out prompt, by its place in the split."""
    return [
        as_written({**key._asdict(), "prompt": place, "n": n, "correct": right, "greedy": first}, PROMPT_COLUMNS)
        for place, (right, first) in enumerate(zip(correct, greedy, strict=True))
    ]


def prompts_hash(passk: dict) -> str:
    """Of the held-out prompts, in order."""
    return hashlib.sha256(json.dumps(passk["prompt_ids"]).encode()).hexdigest()[:12]


def base_rows(run: Run, key: RunKey) -> tuple[dict, list[dict]]:
    """The row of the run's base, and one for each held-out prompt."""
    base, passk, greedy = BaseKey.of(key), run.passk, run.passk["greedy"]["base"]
    row = {
        **base._asdict(),
        "base_hash": _base_hash(run),
        "prompts_hash": prompts_hash(passk),
        "split": passk["split"],
        "prompts": passk["prompts"],
        "samples": passk["n"],
        "base_pass@1": passk["base"]["pass@1"],
        "base_pass@8": passk["base"]["pass@8"],
        "base_greedy": greedy["accuracy"],
        "commit": run.env["git_commit"],
    }
    return as_written(row, BASE_COLUMNS), prompt_rows(
        base.run, passk["n"], passk["base"]["correct"], greedy["correct"]
    )


def rows_of(
    folder: Path,
    key: RunKey,
    recipe_hash: str,
    split: str,
    prompts: int,
    samples: int,
    seconds: float,
    block: str = "",
    proxy: float | None = None,
) -> dict:
    """
    What a finished run adds to the tables.

    Args:
        folder (`Path`): Its folder. A run that stopped at numbers that are not finite has no evaluation, and scores 0
            on every prompt.
        key (`RunKey`): What the run is called.
        recipe_hash (`str`): As [`~study.matrix.Run`] has it.
        split (`str`): Of the held-out prompts.
        prompts, samples (`int`): Held-out prompts, and samples of each.
        seconds (`float`): What the run took, evaluation included, beside whatever else the machine did.
        block (`str`, *optional*): The block of the matrix that asked for it.
        proxy (`float`, *optional*): Mean reward of the samples that `pass@1` counts.

    Returns:
        `dict`: `run`, `curve`, `prompts`, and, where the run was evaluated, `base` and `base_prompts`.

    Raises:
        RunError: The run is not at its end.
    """
    run = load_run(folder)
    stopped = stopped_at_nonfinite(run)
    steps_done = int(run.metrics["step"].max())
    if not stopped and (steps_done != key.steps or run.passk is None or run.drift is None):
        raise RunError(f"{folder}: {steps_done} of {key.steps} steps, or not evaluated; run the study again")
    row = {
        **key._asdict(),
        "block": block,
        "variant": run.variant,
        "base_hash": _base_hash(run),
        "base_pass@1": 0.0,  # the base's own row gives it
        **dict.fromkeys(("pass@1", "pass@8", "greedy", "gold", "proxy"), 0.0),
        "collapsed": int(is_collapsed(run)),
        "steps_done": len(run.metrics),
        "resets": len(run.reset_steps() or []),
        "ref_forward_calls": int(run.total("ref_forward_calls") or 0),
        "tokens_generated": int(run.total("tokens_generated") or 0),
        "recipe": recipe_hash,
        "split": split,
        "prompts": prompts,
        "samples": samples,
        "seconds": float(round(seconds)),
        "commit": run.env["git_commit"],
    }
    if stopped:
        counts = prompt_rows(key, samples, [0] * prompts, [0] * prompts)
        return {"run": as_written(row, RUN_COLUMNS), "curve": curve_rows(run, key), "prompts": counts}
    greedy, point = run.passk["greedy"]["trained"], run.drift["points"][-1]
    row |= {name: run.passk["trained"][name] for name in ("pass@1", "pass@8")}
    row |= {"gold": row["pass@1"], "proxy": proxy}
    row |= {"greedy": greedy["accuracy"], "drift": point["kl_to_base"], "drift_tokens": point["mean_tokens"]}
    base, base_prompts = base_rows(run, key)
    return {
        "run": as_written(row, RUN_COLUMNS),
        "curve": curve_rows(run, key),
        "prompts": prompt_rows(key, samples, run.passk["trained"]["correct"], greedy["correct"]),
        "base": base,
        "base_prompts": base_prompts,
    }


def _base_hash(run: Run) -> str:
    sha256 = (run.env.get("base_model") or {}).get("sha256")
    if sha256 is None:
        raise RunError(f"{run.path}: env.json has no hash of the base; the study needs an embedded base")
    return sha256
