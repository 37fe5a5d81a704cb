"""An adapter for the families of reasoning-gym."""

import json
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from random import Random

from trl_prorl.tasks.base import check_choice, check_integer
from trl_prorl.tasks.generated import MAX_LEVEL, GeneratedTask
from trl_prorl.tasks.worker import Worker


REWARDS = ("exact", "score")
INSTRUCTION = "Put the final answer, and nothing else, between <answer> and </answer>."
ANSWER = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL)
SECONDS = 5.0
MAKING_SECONDS = 120.0
MAX_LENGTH = 20_000

WORKER = Worker(Path(__file__).with_name("isolated") / "rg_worker.py", SECONDS)


def extract_answer(completion: str) -> str:
    """
    Return the content of the last `<answer></answer>`, or the entire completion if there is none, without surrounding
    whitespace.
    """
    answers = ANSWER.findall(completion)
    return (answers[-1] if answers else completion).strip()


class ReasoningGym(GeneratedTask):
    """
    A family of [reasoning-gym](https://arxiv.org/abs/2505.24760), such as `rg:chain_sum`.

    An answer is correct only if the scorer gives exactly 1.0, because scorers give partial credit for many wrong
    answers. Some scorers evaluate the answer as code, so questions are generated and scored in a sandboxed process,
    which is killed at its limits (5 s per score).

    Args:
        family (`str`): name of the family, `chain_sum` in `rg:chain_sum`.
        level (`int`, *optional*): level of the family's curriculum, from 1 to 8, capped at the family's highest level.
            By default the family's own settings are used, and the column `level` is 0.
        config (`dict`, *optional*): settings of the family, such as `{"min_terms": 2}`; they override those of the
            level.
        reward (`str`, *optional*, defaults to `"exact"`): `"exact"` (0 or 1) or `"score"` (the scorer's points).

    Raises:
        `ValueError`: If reasoning-gym is not installed, or has no such family, level or setting.
    """

    def __init__(self, family: str, level: int | None = None, config: dict | None = None, reward: str = "exact"):
        self.name = f"rg:{family}"
        if find_spec("reasoning_gym") is None:
            raise ValueError(f"{self.name} needs reasoning-gym. Install it with `pip install 'trl-prorl[rg]'`")
        check_choice("reward", reward, REWARDS)
        if level is not None:
            check_integer("level", level, 1, MAX_LEVEL)
        if config is not None and not isinstance(config, dict):
            raise ValueError(f"config={config!r} must be a mapping of {family}'s settings")
        if set(config or {}) & {"seed", "size"}:
            raise ValueError(f"config={config!r} must not set seed or size. They follow from split, seed and rows")
        self.level = level or 0
        self._reward = reward
        self._settings = {"family": family, "level": level, "config": config or {}}
        reply = WORKER.ask({"do": "check", **self._settings}, MAKING_SECONDS)
        if reply is None:
            raise ValueError(f"{self.name}: generating one question takes more than {MAKING_SECONDS:g} s")
        problem = reply.get("problem", "its questions cannot be generated")
        if problem:
            raise ValueError(f"{self.name}: {' '.join(problem.split())}")

    def sample(self, rng: Random) -> tuple[str, str, dict]:
        # `rng` is seeded by a hash of name, level, split, seed and index. reasoning-gym adds seed and index, so its
        # own streams would overlap.
        seed = rng.getrandbits(32)
        reply = WORKER.ask({"do": "make", **self._settings, "seed": seed}, MAKING_SECONDS)
        if not reply:
            raise ValueError(f"{self.name}: no question with {json.dumps(self._settings)} and seed {seed}")
        return f"{reply['question']}\n{INSTRUCTION}", reply["answer"] or "", {"seed": seed}

    def answer_of(self, completion: str, row: Mapping) -> str | None:
        return extract_answer(completion) or None

    def verify(self, completion: str, row: Mapping) -> bool:
        return self.score(completion, row) == 1.0

    def reward(self, completion: str, row: Mapping) -> float:
        score = self.score(completion, row)
        return score if self._reward == "score" else float(score == 1.0)

    def score(self, completion: str, row: Mapping) -> float:
        """Return the scorer's points in [0, 1]; 0 if it fails or takes too long."""
        answer = extract_answer(completion)
        if len(answer) > MAX_LENGTH:
            return 0.0
        reply = WORKER.ask({"do": "score", **self._settings, "seed": row["seed"], "answer": answer})
        score = (reply or {}).get("score", 0.0)
        return min(max(score, 0.0), 1.0) if score == score else 0.0

    def gold(self, row: Mapping) -> str:
        """Return the family's reference answer. A few families have only a scorer, which does not accept this text."""
        return f"<answer>{row['answer']}</answer>"
