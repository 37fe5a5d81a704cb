"""A number to guess within four turns."""

import re
from collections.abc import Mapping, Sequence
from random import Random

from trl_prorl.tasks.base import check_choice
from trl_prorl.tasks.generated import GeneratedTask


REWARDS = ("exact", "near")


class Guess(GeneratedTask):
    """
    Guess a number within four turns: `guess 52817` -> `4`, `guess > 4` -> `7`, `guess < 7` -> `5`.

    Level L, 1 to 8, has the numbers 0 to L + 1, so bisection always finds the number. The guess of a turn is its first
    digit. The reply is `guess > 4` or `guess < 4`, or `guess` if the turn has no digit. The game ends at the correct
    guess or after the fourth turn. The number in the prompt identifies the game and is unrelated to the number to
    guess, so held-out games are new but have the same numbers as in training.

    Args:
        level (`int`, *optional*, defaults to `3`): difficulty, from 1 to 8.
        reward (`str`, *optional*, defaults to `"exact"`): `"exact"` rewards only a won game. `"near"` also rewards a
            lost game, by its last guess: (1 - d / 10) / 2 for a guess that is d off.

    Raises:
        `ValueError`: If the level or the reward is invalid.
    """

    name = "guess"
    turns = 4

    def __init__(self, level: int = 3, reward: str = "exact"):
        super().__init__(level)
        check_choice("reward", reward, REWARDS)
        self._reward = reward

    def sample(self, rng: Random) -> tuple[str, str]:
        return f"guess {''.join(rng.choices('0123456789', k=5))}", str(rng.randint(0, self.level + 1))

    def reply(self, turns: Sequence[str], row: Mapping) -> str | None:
        guess = guess_of(turns[-1])
        if guess == row["answer"] or len(turns) >= self.turns:
            return None
        if guess is None:
            return "guess"
        return f"guess {'>' if guess < row['answer'] else '<'} {guess}"

    def answer_of(self, completion: str, row: Mapping) -> str | None:
        """Return the last guess."""
        return guess_of(completion.rstrip().split("\n")[::2][-1])

    def verify(self, completion: str, row: Mapping) -> bool:
        """Return whether this is a complete game with the task's own replies, and its last guess is correct."""
        lines = completion.rstrip().split("\n")
        guesses = lines[::2]
        replies = [self.reply(guesses[:count], row) for count in range(1, len(guesses) + 1)]
        is_whole = replies == [*lines[1::2], None]
        return is_whole and super().verify(completion, row)

    def reward(self, completion: str, row: Mapping) -> float:
        points = super().reward(completion, row)
        last = self.answer_of(completion, row)
        if points or last is None or self._reward == "exact":
            return points
        distance = abs(int(last) - int(row["answer"]))
        return (1 - distance / 10) / 2

    def gold(self, row: Mapping) -> str:
        """Return the game played by bisection."""
        left = range(self.level + 2)
        lines = []
        while True:
            middle = len(left) // 2
            lines.append(str(left[middle]))
            reply = self.reply(lines[::2], row)
            if reply is None:
                return "\n".join(lines)
            lines.append(reply)
            left = left[middle + 1 :] if ">" in reply else left[:middle]


def guess_of(turn: str) -> str | None:
    """Return the first digit."""
    digit = re.search("[0-9]", turn)
    return digit and digit[0]
