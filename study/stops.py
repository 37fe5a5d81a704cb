"""
What stopping a run early gives: a row for each of its checkpoints, and for its end, and one for the base; the last two
have best of 8. Part of a run's evaluation (`study/evaluate.py`) where its block asks for `checkpoints`.
"""

from pathlib import Path
from statistics import mean

from study.best_of import best_of
from trl_prorl.eval.run_folder.reading import load_run
from trl_prorl.eval.samples.held_out import HeldOut
from trl_prorl.eval.samples.models import Point, checkpoint_points
from trl_prorl.record.run_files import GAMED


BEST_OF = 8


def greedy_gold(held_out: HeldOut, point: Point) -> float:
    """Return the share of questions that a model answers rightly by greedy decoding."""
    return float(held_out.samples(point, 1, temperature=0.0)["correct"].mean())


def sampled_gold(held_out: HeldOut, point: Point, samples: int) -> float:
    """Return the share of a model's samples that are right."""
    return float(held_out.samples(point, samples)["correct"].mean())


def checkpoint_row(point: Point, measured: dict, test: HeldOut, validation: HeldOut, samples: int) -> dict:
    """Return the row of a checkpoint, or of the end; `measured` is its entry in `drift.json`, from as many samples."""
    return {
        "step": point.step,
        "gold": measured["gold"],
        "greedy": greedy_gold(test, point),
        "reward": measured["reward"],
        "kl_to_base": measured["kl_to_base"],
        "validation_gold": sampled_gold(validation, point, samples),
    }


def own_scores(test: HeldOut, point: Point, samples: int) -> dict[str, float]:
    """Return gold and reward of a model, and best of 8 by that reward, means over all its samples."""
    drawn = test.samples(point, samples)
    texts = list(drawn["completion"])
    correct = list(drawn["correct"])
    rewards = []
    chances = []
    for place, row in enumerate(test.rows):
        own = slice(place * samples, (place + 1) * samples)
        of_question = test.task.reward_many(texts[own], [row] * samples)
        rewards += of_question
        chances.append(best_of(of_question, correct[own], BEST_OF))
    return {"gold": mean(correct), "reward": mean(rewards), "best_of_8": mean(chances)}


def base_row(test: HeldOut, samples: int) -> dict:
    """Return the row of a run's base."""
    scores = own_scores(test, test.base, samples)
    return {"step": 0, **scores, "greedy": greedy_gold(test, test.base), "kl_to_base": 0.0}


def stop_rows(folder: Path, plan: dict) -> dict[str, list[dict]]:
    """
    Return the rows `stops` and `base_stops` of a run whose drift has been measured at its checkpoints. `plan` is what
    the runner wrote.
    """
    run = load_run(folder)
    test = HeldOut(folder, plan["split"], plan["prompts"])
    validation = HeldOut(folder, "validation", plan["prompts"])
    points = [test.trained]
    if any(folder.glob("checkpoint-*")):
        points = [*checkpoint_points(folder, test.config, ["all"]), test.trained]
    measured = {point["step"]: point for point in run.drift["points"]}
    first_fired = min(run.event_steps(GAMED), default=None)
    rows = []
    for point in points:
        row = checkpoint_row(point, measured[point.step], test, validation, plan["drift_samples"])
        rows.append(row | {"guard_gap": first_fired})
    rows[-1]["best_of_8"] = own_scores(test, test.trained, plan["samples"])["best_of_8"]
    return {"stops": rows, "base_stops": [base_row(test, plan["samples"])]}
