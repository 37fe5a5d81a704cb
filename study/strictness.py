"""
The strictnesses of the blocks `dose` and `dose_long`: how many digits at either end the reward of reversing, or of
sorting, wants right. `python -m study.strictness [sorting]` measures, for each candidate, how many of the answers that
it pays for are right, on validation questions and on bases that the block does not use, and says which four are
nearest to the shares of the protocol.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import mean

import torch
from transformers import AutoTokenizer, set_seed

from study.bases import model_of
from study.fine_tuning import FULL, draw, read_recipe
from study.matrix import MATRIX
from study.sorting_ends import SortingEnds
from trl_prorl.tasks import get_task
from trl_prorl.tasks.base import Task
from trl_prorl.train import find_model
from trl_prorl.weights import load_model


Ends = tuple[int, int]  # digits that have to be right: the first, the last
CANDIDATES: tuple[Ends, ...] = ((0, 0), (1, 0), (1, 1), (2, 1), (2, 2), (3, 2))
TARGETS = (0.05, 0.2, 0.5, 0.8)
# By the family whose bases answer: the task whose reward has the strictnesses, and its other options.
TASKS = {"reverse_digits": ("reverse_digits", {"reward": "ends"}), "sorting": (SortingEnds.name, {})}
BASES = (0, 6)
QUESTIONS = 256


def share_of_right(task: Task, rows: list[dict], texts: list[list[str]]) -> float:
    """Return the share of right texts among those that the task pays in full; `texts` are those of each row."""
    paid = 0
    right = 0
    for row, of_question in zip(rows, texts, strict=True):
        copies = [row] * len(of_question)
        rewards = task.reward_many(of_question, copies)
        verdicts = task.verify_many(of_question, copies)
        paid += sum(reward >= FULL for reward in rewards)
        right += sum(verdicts)
    return right / paid


def nearest(shares: Mapping[Ends, float]) -> list[Ends]:
    """Return for each of the protocol's shares, the lowest first, the nearest candidate that is not taken yet."""
    chosen: list[Ends] = []
    for target in TARGETS:
        left = [ends for ends in shares if ends not in chosen]
        chosen.append(min(left, key=lambda ends: abs(shares[ends] - target)))
    return chosen


def measure(root: Path, family: str, base_seed: int) -> dict[Ends, float]:
    """Return the share of each candidate on a base of a checkout: all judge the same texts."""
    name, options = TASKS[family]
    recipe = read_recipe(root / MATRIX.parent / f"{family}.yaml")
    base = find_model(model_of(root, f"{recipe.model.model_name_or_path}-{base_seed}"))
    tokenizer = AutoTokenizer.from_pretrained(base, padding_side="left")
    exact = recipe.task.make_task()
    rows = list(exact.rows("validation", QUESTIONS, seed=recipe.task.task_seed))
    set_seed(base_seed)
    drawn = draw(load_model(base, dtype=torch.float32), tokenizer, exact, rows, recipe.training.max_completion_length)
    shares = {}
    for first, last in CANDIDATES:
        task = get_task(name, level=exact.level, first=first, last=last, **options)
        shares[first, last] = share_of_right(task, rows, drawn.texts)
    return shares


def main() -> None:
    """Print the shares of each base, their mean, and the choice."""
    family = sys.argv[1] if len(sys.argv) > 1 else "reverse_digits"
    of_bases = [measure(Path.cwd(), family, base_seed) for base_seed in BASES]
    means = {ends: mean(shares[ends] for shares in of_bases) for ends in CANDIDATES}
    for ends, share in means.items():
        by_base = ", ".join(f"{shares[ends]:.3f}" for shares in of_bases)
        print(f"first {ends[0]}, last {ends[1]}: {share:.3f} (bases {BASES[0]} and {BASES[1]}: {by_base})")
    for target, ends in zip(TARGETS, nearest(means), strict=True):
        print(f"nearest to {target}: first {ends[0]}, last {ends[1]}")


if __name__ == "__main__":
    main()
