"""
Makes and scores questions of reasoning-gym; `tasks/reasoning_gym.py` talks to it.

Some of its scorers call `eval` on the answer (`spiral_matrix`, `string_insertion`, `n_queens`, `binary_matrix`;
sympy's parser elsewhere). Here `eval` takes plain values and formulas only, in a process that can start no other
process, open no connection and change no file. The questions depend on the order of sets, which is fixed for this
process.
"""

import re
from difflib import get_close_matches
from functools import lru_cache

import reasoning_gym
from answering import answer_lines
from plain_eval import guard
from reasoning_gym.coaching.base_curriculum import BaseCurriculum
from reasoning_gym.factory import DATASETS, create_curriculum, has_curriculum


# Answers that can be right only by chance, tried on a few questions.
PROBES = ("no such answer", "", "0", "nan", "inf")
PROBE_SEEDS = range(4)
# Every comparison with such a number is false, and every distance from it is no number, so its score is chance.
NO_NUMBER = re.compile(r"(?<![A-Za-z0-9_])(?:nan|inf|infinity|oo|zoo)j?(?![A-Za-z0-9_])", re.IGNORECASE)


def configuration(family: str, level: int | None, config: tuple) -> dict:
    """
    Return the settings of a family at a level of its curriculum (from 1), or its own settings; `config` overrides
    both.
    """
    settings = {}
    if level is not None:
        curriculum: BaseCurriculum = create_curriculum(family)
        curriculum.set_global_level(level - 1)
        settings = dict(vars(curriculum.generate_configuration()))
    return {**settings, **dict(config)}


@lru_cache(maxsize=4096)
def question(family: str, level: int | None, config: tuple, seed: int) -> tuple:
    """Return a data set of one question, and that question."""
    settings = {**configuration(family, level, config), "seed": seed, "size": 1}
    dataset = reasoning_gym.create_dataset(family, **settings)
    return dataset, dataset[0]


def answer(request: dict) -> dict:
    """
    `{"do": "check", "family", "level", "config"}` -> `{"problem"}`, `None` if there is none.
    `{"do": "make", ..., "seed"}` -> `{"question", "answer"}`.
    `{"do": "score", ..., "seed", "answer"}` -> `{"score"}`.
    """
    family = request["family"]
    level = request["level"]
    config = tuple((key, tuple(v) if isinstance(v, list) else v) for key, v in sorted(request["config"].items()))
    if request["do"] == "check":
        return {"problem": find_problem(family, level, config)}
    dataset, entry = question(family, level, config, request["seed"])
    if request["do"] == "make":
        return {"question": entry["question"], "answer": entry["answer"]}
    return {"score": score(dataset, entry, request["answer"])}


def score(dataset, entry: dict, text: str) -> float:
    """
    Return the scorer's points; 0 for an answer with NaN or an infinity, unless the family's own answer has one too.
    """
    if NO_NUMBER.search(text) and not NO_NUMBER.search(entry["answer"] or ""):
        return 0.0
    return float(dataset.score_answer(text, entry))


def is_fooled(dataset, entry: dict, text: str) -> bool:
    """Return whether a text that is not the answer gets a full point."""
    try:
        return text != (entry["answer"] or "").strip() and score(dataset, entry, text) == 1.0
    except Exception:
        return False


def find_problem(family: str, level: int | None, config: tuple) -> str | None:
    """Return the problem with the name or the settings."""
    if family not in DATASETS:
        nearest = get_close_matches(family, DATASETS, n=3) or sorted(DATASETS)
        return f"reasoning-gym has no family {family!r}; the nearest of its {len(DATASETS)} are {', '.join(nearest)}"
    if level is not None and not has_curriculum(family):
        return f"level={level}: {family} has no curriculum; set its config instead"
    try:
        questions = [question(family, level, config, seed) for seed in PROBE_SEEDS]
    except Exception as error:
        return f"config={dict(config)!r} does not suit {family}: {type(error).__name__}: {error}"
    for probe in PROBES:
        fooled = sum(is_fooled(*each, probe) for each in questions)
        # game_of_life_halting of 0.1.25 takes bool() of the text; coin_flip's tolerance is above its probabilities.
        if fooled > len(questions) / 2:
            return f"its scorer gives a full point for nonsense ({probe!r}), so nothing can be learned from it"
    return None


if __name__ == "__main__":
    guard(("reasoning_gym.", "sympy.parsing."))
    answer_lines(answer, memory_mib=8192, seconds=120)
