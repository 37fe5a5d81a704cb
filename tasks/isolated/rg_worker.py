"""
Generate and score questions of reasoning-gym. Used by `tasks/reasoning_gym.py`.

Some scorers call `eval` on the answer (`spiral_matrix`, `string_insertion`, `n_queens`, `binary_matrix`); others call
sympy's parser. Here `eval` accepts only plain values and formulas, and the process cannot start other processes, open
connections or change files. The questions depend on the order of sets, which is fixed for this process.
"""

import json
import re
from difflib import get_close_matches
from functools import lru_cache

import reasoning_gym
from answering import answer_lines
from plain_eval import guard
from reasoning_gym.coaching.base_curriculum import BaseCurriculum
from reasoning_gym.composite import DatasetSpec
from reasoning_gym.factory import DATASETS, create_curriculum, has_curriculum


# Answers that can only be correct by chance, tried on a few questions.
PROBES = ("no such answer", "", "0", "nan", "inf")
PROBE_SEEDS = range(4)
# NaN and infinities make comparisons and distances meaningless, so their score would be arbitrary.
NO_NUMBER = re.compile(r"(?<![A-Za-z0-9_])(?:nan|inf|infinity|oo|zoo)j?(?![A-Za-z0-9_])", re.IGNORECASE)


@lru_cache(maxsize=4096)
def question(family: str, level: int | None, config: str, seed: int) -> tuple:
    """
    Return a dataset of one question, and that question. It has the settings of the family at a level of its curriculum
    (from 1), or its default settings. `config`, as JSON, overrides both.
    """
    settings = {}
    if level is not None:
        curriculum: BaseCurriculum = create_curriculum(family)
        curriculum.set_global_level(level - 1)
        settings = vars(curriculum.generate_configuration())
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in json.loads(config).items()}
    if family == "composite":
        given["datasets"] = [DatasetSpec(**dataset) for dataset in given.get("datasets", ())]
    dataset = reasoning_gym.create_dataset(family, **{**settings, **given, "seed": seed, "size": 1})
    return dataset, dataset[0]


def answer(request: dict) -> dict:
    """
    Answer a request:

    - `{"do": "check", "family", "level", "config"}` with `{"problem"}`, `None` if there is no problem;
    - `{"do": "make", ..., "seed"}` with `{"question", "answer"}`;
    - `{"do": "score", ..., "seed", "answer"}` with `{"score"}`.
    """
    family = request["family"]
    level = request["level"]
    config = json.dumps(request["config"], sort_keys=True)  # any text can be a key of the cache
    if request["do"] == "check":
        return {"problem": find_problem(family, level, config)}
    dataset, entry = question(family, level, config, request["seed"])
    if request["do"] == "make":
        return {"question": entry["question"], "answer": entry["answer"]}
    return {"score": score(dataset, entry, request["answer"])}


def score(dataset, entry: dict, text: str) -> float:
    """
    Return the scorer's points; 0 for an answer with NaN or infinity, unless the reference answer has one too.
    """
    if NO_NUMBER.search(text) and not NO_NUMBER.search(entry["answer"] or ""):
        return 0.0
    return float(dataset.score_answer(text, entry))


def is_fooled(dataset, entry: dict, text: str) -> bool:
    """Return whether a text that is not the answer gets full reward."""
    try:
        return text != (entry["answer"] or "").strip() and score(dataset, entry, text) == 1.0
    except Exception:
        return False


def find_problem(family: str, level: int | None, config: str) -> str | None:
    """Return the problem with the name or the settings; `None` if they work."""
    if family not in DATASETS:
        nearest = get_close_matches(family, DATASETS, n=3) or sorted(DATASETS)
        return f"reasoning-gym has no family {family!r}. The nearest of its {len(DATASETS)}: {', '.join(nearest)}"
    if level is not None and not has_curriculum(family):
        return f"level={level}: {family} has no curriculum. Set config instead"
    try:
        questions = [question(family, level, config, seed) for seed in PROBE_SEEDS]
    except Exception as error:
        return f"config={config} does not suit {family}: {type(error).__name__}: {error}"
    for probe in PROBES:
        fooled = sum(is_fooled(*each, probe) for each in questions)
        # game_of_life_halting of 0.1.25 takes bool() of the text; coin_flip's tolerance is above its probabilities.
        if fooled > len(questions) / 2:
            return f"its scorer gives nonsense ({probe!r}) full reward, so a model cannot learn from it"
    return None


if __name__ == "__main__":
    guard(("reasoning_gym.", "sympy.parsing."))
    answer_lines(answer, memory_mib=8192, seconds=120)
