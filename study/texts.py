"""
Held-out texts of a run: of its end and its base, and of its checkpoints where they are asked for. Part of a run's
evaluation (`study/evaluate.py`) where its block asks for `texts`.
"""

import json
from pathlib import Path

from trl_prorl.eval.samples.held_out import HeldOut
from trl_prorl.eval.samples.models import Point, checkpoint_points


def rows_of_split(held_out: HeldOut, point: Point, split: str, samples: int, greedy: bool) -> list[dict]:
    """Return a row for each of so many texts of a model for every prompt, or for each of its greedy ones."""
    if greedy:
        drawn = held_out.samples(point, 1, temperature=0.0)
        of_each = 1
    else:
        drawn = held_out.samples(point, samples)
        of_each = samples
    rows = []
    for place, (text, right) in enumerate(zip(drawn["completion"], drawn["correct"], strict=True)):
        prompt = place // of_each
        rows.append(
            {
                "step": point.step,
                "split": split,
                "greedy": int(greedy),
                "prompt": prompt,
                "asked": json.dumps(asked_of(held_out.rows[prompt])),
                "text": json.dumps(text),
                "right": int(right),
            }
        )
    return rows


def asked_of(row: dict) -> str:
    """Return what a prompt says: itself, or what its last message does."""
    prompt = row["prompt"]
    return prompt if isinstance(prompt, str) else prompt[-1]["content"]


def text_rows(folder: Path, plan: dict) -> dict[str, list[dict]]:
    """
    Return the rows `texts` and `base_texts` of a run; `plan` is what the runner wrote. End and base have `samples`
    texts of each test prompt, a checkpoint has `drift_samples`. Where checkpoints are asked for, each of them and the
    end have as many of each validation prompt.
    """
    split = plan["split"]
    test = HeldOut(folder, split, plan["prompts"])

    def of_test(point: Point, samples: int) -> list[dict]:
        sampled = rows_of_split(test, point, split, samples, greedy=False)
        return sampled + rows_of_split(test, point, split, samples, greedy=True)

    rows = of_test(test.trained, plan["samples"])
    if plan["texts"]["checkpoints"]:
        validation = HeldOut(folder, "validation", plan["prompts"])
        before_the_end = checkpoint_points(folder, test.config, ["all"])
        for point in before_the_end:
            rows += of_test(point, plan["drift_samples"])
        for point in (*before_the_end, test.trained):
            rows += rows_of_split(validation, point, "validation", plan["drift_samples"], greedy=False)
    return {"texts": rows, "base_texts": of_test(test.base, plan["samples"])}
