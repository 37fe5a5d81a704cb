"""
What becomes of a `passk.json` that is there already: the same evaluation is completed, and no fuller one is lost.
"""

from pathlib import Path

from trl_prorl.errors import InputError
from trl_prorl.eval.analysis.passk import SIDES, gain
from trl_prorl.eval.analysis.statistics import summarise_counts


# The settings that decide an evaluation, and their options; task and level are the run's.
OPTIONS = {
    "prompts": "--prompts",
    "n": "--n",
    "split": "--split",
    "temperature": "--temperature",
    "max_new_tokens": "--max-new-tokens",
    "seed": "--seed",
    "task": None,
    "level": None,
    "prompt_ids": None,
}


def to_complete(
    earlier: dict, asked: dict, *, steps: list[int], others: list[str], greedy: bool, path: Path
) -> dict | None:
    """
    The earlier result if it is of the same evaluation, which [`completed`] goes on with; `None` if the new evaluation
    holds it as a part.

    Args:
        earlier (`dict`): Content of `passk.json`.
        asked (`dict`): The new evaluation's settings, with the keys of `OPTIONS`.
        steps (`list[int]`), others (`list[str]`), greedy (`bool`): What else is asked for.
        path (`Path`): Where the earlier result is, for messages.

    Raises:
        InputError: If something that was measured would be lost.
    """
    differing = [key for key in OPTIONS if key not in earlier or earlier[key] != asked[key]]
    if not differing:
        return earlier
    larger = set(differing) <= {"prompts", "n", "prompt_ids"} and (
        earlier.get("n", 0) <= asked["n"] and set(earlier.get("prompt_ids", [None])) <= set(asked["prompt_ids"])
    )
    if not larger:
        raise InputError(f"'{path}' {_difference(earlier, asked, differing)}")
    lost = []
    # The last step's is the trained model, which is in every evaluation.
    gone = {point["step"] for point in earlier.get("checkpoints", [])} - {earlier.get("step"), *steps}
    if gone:
        lost.append(f"--checkpoints {' '.join(map(str, sorted(gone)))}")
    if gone := [name for name in earlier.get("others", {}) if name not in others]:
        lost.append(f"--others {' '.join(gone)}")
    if "greedy" in earlier and not greedy:
        lost.append("greedy decoding (no --no-greedy)")
    if lost:
        raise InputError(
            f"'{path}' has results that this larger evaluation leaves out; add {' and '.join(lost)} to what is asked, "
            "or give --replace to lose them"
        )
    return None


def _difference(earlier: dict, asked: dict, differing: list[str]) -> str:
    """What an earlier evaluation is, and what would complete it."""
    shown = [key for key in differing if key != "prompt_ids"]
    settings = ", ".join(
        f"{key} {f'{earlier[key]} (asked: {asked[key]})' if key in earlier else 'not recorded'}" for key in shown
    )
    options = [
        "--greedy" if key == "temperature" and not earlier[key] else f"{OPTIONS[key]} {earlier[key]}"
        for key in shown
        if OPTIONS[key] and key in earlier
    ]
    complete = f"{' '.join(options)} to complete it, or " if options else ""
    return f"holds another evaluation: {settings or 'other prompts'}; give {complete}--replace to lose it"


def completed(earlier: dict, result: dict) -> dict | None:
    """
    The new result, with the parts that only the earlier one has; `None` if the earlier one is of other weights.

    Args:
        earlier (`dict`), result (`dict`): Contents of `passk.json`; the new one's `k` holds the earlier one's.
    """
    if earlier.get("step") != result["step"]:
        return None
    if any(earlier[side]["correct"] != result[side]["correct"] for side in SIDES):
        return None
    result, ks = dict(result), result["k"]
    if "greedy" in earlier:
        result.setdefault("greedy", earlier["greedy"])
    if "checkpoints" in earlier or "checkpoints" in result:
        points = {point["step"]: _with_ks(point, result["n"], ks) for point in earlier.get("checkpoints", [])}
        points |= {point["step"]: point for point in result.get("checkpoints", [])}
        result["checkpoints"] = [points[step] for step in sorted(points)]
    if "others" in earlier or "others" in result:
        kept = {name: _other_with_ks(other, ks) for name, other in earlier.get("others", {}).items()}
        result["others"] = kept | result.get("others", {})
    return result


def _with_ks(summary: dict, n: int, ks: list[int]) -> dict:
    """A summary with pass@k for every k, from its counts."""
    return {**summary, **summarise_counts(summary["correct"], n, ks)}


def _other_with_ks(other: dict, ks: list[int]) -> dict:
    return {
        **other,
        "k": ks,
        **{side: _with_ks(other[side], other["n"], ks) for side in SIDES},
        "gain": {f"pass@{k}": list(gain(other, k)) for k in ks},
    }
