"""What becomes of a `passk.json` that is there already: the same evaluation is completed, and no fuller one is lost."""

from pathlib import Path

from eval.runs import InputError, read_env, with_nan
from eval.statistics import paired_bootstrap_difference, pass_at_k_per_prompt, summarise_counts
from trl_prorl.run_files import passk, read_json
from trl_prorl.run_id import RUN_ID, other_run


PASSK_FILE = "passk.json"
# What decides an evaluation, and the option that asks for it; task and level are the run's.
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


def earlier_result(run_dir: Path, asked: dict, steps: list[int], others: list[str], greedy: bool) -> dict | None:
    """
    The `passk.json` of the same evaluation, which [`completed`] goes on with; `None` if there is none, or one that the new
    evaluation holds as a part.

    Args:
        run_dir (`Path`): The run folder.
        asked (`dict`): The new evaluation's settings, with the keys of `OPTIONS`.
        steps (`list[int]`), others (`list[str]`), greedy (`bool`): What is asked for beside it.

    Raises:
        InputError: If something that was measured would be lost.
    """
    path = run_dir / PASSK_FILE
    if not path.is_file():
        return None
    earlier = with_nan(read_json(path, passk))
    if other_run(earlier, read_env(run_dir).get(RUN_ID)):
        raise InputError(f"'{path}' is of another run, which had this folder before; give --replace to lose it")
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
            f"'{path}' has results that this larger evaluation leaves out; add {' and '.join(lost)} to what is asked, or give "
            "--replace to lose them"
        )
    return None


def _difference(earlier: dict, asked: dict, differing: list[str]) -> str:
    """What an earlier evaluation is, and what would complete it."""
    shown = [key for key in differing if key != "prompt_ids"]
    told = ", ".join(
        f"{key} {f'{earlier[key]} (asked: {asked[key]})' if key in earlier else 'not recorded'}" for key in shown
    )
    options = [
        "--greedy" if key == "temperature" and not earlier[key] else f"{OPTIONS[key]} {earlier[key]}"
        for key in shown
        if OPTIONS[key] and key in earlier
    ]
    complete = f"{' '.join(options)} to complete it, or " if options else ""
    return f"holds another evaluation: {told or 'other prompts'}; give {complete}--replace to lose it"


def completed(earlier: dict, result: dict) -> dict | None:
    """
    A new result and what only the earlier one of the same evaluation has; `None` if that was of other weights.

    Args:
        earlier (`dict`), result (`dict`): Contents of `passk.json`; the new one's `k` holds the earlier one's.
    """
    if earlier.get("step") != result["step"]:
        return None
    if any(earlier[side]["correct"] != result[side]["correct"] for side in ("base", "trained")):
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
    n = other["n"]
    per_prompt = {k: [pass_at_k_per_prompt(other[side]["correct"], n, k) for side in ("trained", "base")] for k in ks}
    return {
        **other,
        "k": ks,
        **{side: _with_ks(other[side], n, ks) for side in ("base", "trained")},
        "gain": {f"pass@{k}": list(paired_bootstrap_difference(*sides)) for k, sides in per_prompt.items()},
    }
