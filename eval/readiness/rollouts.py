"""Samples of the model that a run begins from, drawn, rewarded and judged as the run does it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trl_prorl.eval.readiness.gold_answers import columns_of
from trl_prorl.rollout.rewards import watched
from trl_prorl.rollout.verdicts import verifier_of


@dataclass
class Rollouts:
    """
    Samples of P prompts with G completions each, prompt by prompt; lists of completions have length P·G.

    Attributes:
        group_size (`int`): G.
        rewards (`list[float]`): Weighted sum of all reward functions; NaN where none applies.
        correct (`list[bool]`, *optional*): Verdicts; `None` where nothing says which completions are right.
        answered (`list[bool]`, *optional*): Whether a verifier finds an answer at all; `None` if that is not known.
        cut (`list[bool]`): Whether a completion was cut at the greatest length.
        lengths (`list[int]`): Tokens.
        texts (`list[str]`): The completions.
        parts (`list[tuple]`): Task and level of each prompt, shape (P,).
        reward_seconds (`float`): All reward functions took so long for all completions.
        source (`str`): How right and wrong are told apart, in words.
        batch (`dict[str, torch.Tensor]`): The first generation batch, to score it again.
    """

    group_size: int
    rewards: list[float]
    correct: list[bool] | None
    answered: list[bool] | None
    cut: list[bool]
    lengths: list[int]
    texts: list[str]
    parts: list[tuple]
    reward_seconds: float
    source: str = "verify"
    batch: dict[str, Any] = field(default_factory=dict)

    def groups(self, values: Sequence[Any]) -> list[list[Any]]:
        """Values of completions, by prompt."""
        return [list(values[i : i + self.group_size]) for i in range(0, len(values), self.group_size)]


FULL_REWARD = "full reward of 1: no verifier"


def draw(trainer, rows: Sequence[Mapping], task=None, advance: Callable[[int], None] = lambda count: None) -> Rollouts:
    """
    Sample rows as a trainer does, a generation batch at a time.

    Completions are right by the verifier of a reward function, else by the task, else if the first reward function
    gives them the full reward of 1, as `pass_rate/TASK` in the record has it.

    Args:
        trainer ([`ProRLTrainer`]): Has not begun to train.
        rows (`Sequence[Mapping]`): P rows of its training set.
        task ([`~tasks.Task`], *optional*): Says whether a completion holds an answer, and whether it is right.
        advance (`Callable`, *optional*): Told of every batch how many completions it had.
    """
    size = trainer.num_generations
    verifier = verifier_of(trainer.reward_funcs)
    together = max(1, trainer.args.generation_batch_size // size)
    found = Rollouts(size, [], [], [] if task is not None else None, [], [], [], [], 0.0)
    if verifier is None and task is None:
        found.source = FULL_REWARD
    elif verifier is not None:
        name = getattr(verifier, "__qualname__", "verifier")
        verifier = watched(verifier, name, trainer.args.reward_timeout, "stop")
    for start in range(0, len(rows), together):
        batch = [dict(row) for row in rows[start : start + together]]
        sampled = trainer.sample_rows(batch)
        found.batch = found.batch or sampled.batch
        asked = [row for row in batch for _ in range(size)]
        found.rewards += sampled.total.tolist()
        found.cut += sampled.cut
        found.lengths += [len(ids) for ids in sampled.ids]
        texts = [last_text(completion) for completion in sampled.completions]
        found.texts += texts
        found.parts += [(row.get("task"), row.get("level")) for row in batch]
        found.reward_seconds += sampled.reward_seconds
        if verifier is not None:
            prompts = [row["prompt"] for row in asked]
            verdicts = verifier(prompts=prompts, completions=sampled.completions, **columns_of(asked))
        elif task is not None:
            verdicts = task.verify_many(texts, asked)
        else:
            verdicts = (sampled.rewards[:, 0] >= 1.0).tolist()
        found.correct += map(bool, verdicts)
        if task is not None:
            found.answered += [task.has_answer(text, row) for text, row in zip(texts, asked, strict=True)]
        advance(len(asked))
    return found


def last_text(completion: str | list[Mapping]) -> str:
    """A completion, or the text of its last message; a call of a tool may have none."""
    return completion if isinstance(completion, str) else str(completion[-1].get("content") or "")
