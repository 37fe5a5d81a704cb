"""Checks of a run's data: do verifier and rewards accept correct answers only, are splits disjoint, do texts fit?"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from datasets import Dataset
from trl.trainer.utils import is_async_callable

from trl_prorl.errors import RewardError
from trl_prorl.eval.readiness.finding import LOOK, NOT_MEASURED, STOP, Finding, make_finding
from trl_prorl.launch.held_out import prompt_key
from trl_prorl.pass_at_k import as_verdict
from trl_prorl.rollout import weighted_sum


MAX_ACCEPTED = 0.1  # share of other rows' answers that may be correct by chance, as in tasks with few answers
NO_COLUMNS = ("prompt", "completion", "completion_ids")  # a reward function gets these as separate arguments
HELD_OUT = 128  # rows of a task's validation and test that are compared with training


@dataclass(frozen=True)
class GoldAnswers:
    """
    Verdicts and rewards of reference answers, and of different answers, which belong to other rows.

    Attributes:
        verified (`list[bool]`): The verdict on each row's reference answer, shape (R,).
        accepted (`list[bool]`): The verdict on each other row's answer, shape (O,).
        rewards, other_rewards (`list[float]`): Weighted sums of the reward functions, NaN where none applies; empty
            if the reward functions cannot be called.
        failed (`str`, *optional*): Why they could not be called.
    """

    verified: list[bool]
    accepted: list[bool]
    rewards: list[float]
    other_rewards: list[float]
    failed: str | None = None

    @property
    def reward_tells(self) -> bool | None:
        """Whether correct answers get more reward than wrong ones on average; `None` if that is not known."""
        correct = without_nan(reward for reward, verdict in zip(self.rewards, self.verified, strict=False) if verdict)
        wrong = without_nan(
            reward for reward, verdict in zip(self.other_rewards, self.accepted, strict=False) if not verdict
        )
        return mean(correct) > mean(wrong) if correct and wrong else None


def without_nan(values) -> list[float]:
    return [value for value in values if not math.isnan(value)]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def check_gold_answers(task, rows: Sequence[Mapping], reward: Callable | None = None) -> GoldAnswers:
    """
    Check the reference answers of R rows, and one other row's answer for each, with a task's `gold` and `verify_many`.
    A reward, which takes completions and rows and returns a number for each, is called for them, too.
    """
    golds = [task.gold(row) for row in rows]
    other_golds = []
    other_rows = []  # the rows that `other_golds` are checked against
    for place, row in enumerate(rows):
        other = _other_gold(golds, rows, place)
        if other is not None:
            other_golds.append(other)
            other_rows.append(row)
    rewards = []
    other_rewards = []
    failed = None
    try:
        if reward is not None:
            rewards = list(reward(golds, rows))
            other_rewards = list(reward(other_golds, other_rows)) if other_rows else []
    except RewardError as error:  # it may need what only a rollout has; it is called for samples, too
        rewards = []
        other_rewards = []
        failed = str(error)
    return GoldAnswers(
        verified=judge(task, golds, rows),
        accepted=judge(task, other_golds, other_rows),
        rewards=rewards,
        other_rewards=other_rewards,
        failed=failed,
    )


def judge(task, answers: list[str], rows: Sequence[Mapping]) -> list[bool]:
    """Return the task's verdict on each answer; an empty list for no answers."""
    if not answers:
        return []
    return [as_verdict(verdict, f"verify of {type(task).__name__}") for verdict in task.verify_many(answers, rows)]


def _other_gold(golds: list[str], rows: Sequence[Mapping], place: int) -> str | None:
    """Return the next different reference answer of the same task; `None` if there is none."""
    for offset in range(1, len(rows)):
        other = (place + offset) % len(rows)
        if rows[other].get("task") == rows[place].get("task") and golds[other] != golds[place]:
            return golds[other]
    return None


def summed_reward(trainer) -> Callable[[list[str], list[Mapping]], list[float]] | None:
    """
    Return a function of texts and rows that sums rewards as the run does, over the reward functions that have a weight
    and are neither models nor asynchronous; `None` if there are none. It raises [`RewardError`] if one of them fails.
    """
    pairs = [
        (function, weight)
        for function, weight in zip(trainer.reward_funcs, trainer.reward_weights.tolist(), strict=True)
        if weight and not isinstance(function, torch.nn.Module) and not is_async_callable(function)
    ]
    if not pairs:
        return None
    tokenizer = text_tokenizer(trainer)

    def sum_rewards(texts: list[str], rows: list[Mapping]) -> list[float]:
        chats = not isinstance(rows[0]["prompt"], str)
        arguments = {
            **reward_columns(rows),
            "prompts": [row["prompt"] for row in rows],
            "completions": [[{"role": "assistant", "content": text}] if chats else text for text in texts],
            "completion_ids": tokenizer(texts, add_special_tokens=False)["input_ids"],
            "trainer_state": trainer.state,
            "log_extra": lambda *_: None,
            "log_metric": lambda *_: None,
        }
        rewards = []
        for function, _ in pairs:
            rewards.append([math.nan if value is None else float(value) for value in function(**arguments)])
        weights = torch.tensor([weight for _, weight in pairs])
        return weighted_sum(torch.tensor(rewards).T, weights).tolist()

    return sum_rewards


def reward_columns(rows: Sequence[Mapping]) -> dict[str, list]:
    """Return the columns that reward functions get as keyword arguments."""
    return {key: [row[key] for row in rows] for key in rows[0] if key not in NO_COLUMNS}


def text_tokenizer(trainer):
    """Return the tokenizer, also that of a processor."""
    return getattr(trainer.processing_class, "tokenizer", trainer.processing_class)


def gold_findings(found: GoldAnswers) -> list[Finding]:
    """Return the findings about reference answers: verdicts and rewards."""
    total = len(found.verified)
    correct = sum(found.verified)
    if correct == 0:
        level = STOP
        cure = "the verifier rejects every reference answer, so nothing can ever be correct: fix the task"
    else:
        level = LOOK
        cure = "the verifier rejects reference answers: fix it, or drop these rows"
    what = "gold answers verify"
    number = f"{correct} of {total}"
    findings = [make_finding(what, number, correct < total, cure, level, rows=total, verified=correct)]
    if found.accepted:
        wrong = sum(found.accepted)
        of = len(found.accepted)
        cure = "the verifier accepts wrong answers: fix it"
        what = "other rows' answers that verify"
        number = f"{wrong} of {of}"
        findings.append(make_finding(what, number, wrong > MAX_ACCEPTED * of, cure, rows=of, accepted=wrong))
    what = "reward of gold answers, of other rows'"
    if found.failed is not None:
        cause = f"a reward function failed; ignore this if it needs values that only a rollout has: {found.failed}"
        return [*findings, Finding(what, NOT_MEASURED, cause, LOOK)]
    gold = without_nan(found.rewards)
    others = without_nan(found.other_rewards)
    if found.rewards and not gold:
        cure = "the reward functions return None for reference answers: fix them"
        findings.append(Finding(what, "none", cure, LOOK))
    elif gold and others:
        means = {"gold": mean(gold), "others": mean(others)}
        cure = "correct answers get no more reward than wrong ones: fix the reward function"
        number = ", ".join(f"{value:.2f}" for value in means.values())
        findings.append(make_finding(what, number, found.reward_tells is False, cure, **means))
    return findings


def held_out_prompts(evaluation, task=None, seed: int = 0) -> dict[str, list]:
    """
    Return the prompts that a run does not train on, by the name of their set: the run's own evaluation set or `dict`
    of sets, and the test rows of its task, drawn with its seed. Without an evaluation set, also the validation rows of
    its task.
    """
    if isinstance(evaluation, Mapping):
        sets = {f"eval_{name}": rows for name, rows in evaluation.items()}
    else:
        sets = {"validation": evaluation}
    found = {
        name: list(rows["prompt"])
        for name, rows in sets.items()
        if isinstance(rows, Dataset) and "prompt" in rows.column_names
    }
    if task is None:
        return found
    splits = ["test"] if found else ["validation", "test"]
    for split in splits:
        prompts = _prompts_of_task(task, split, seed)
        if prompts is not None:
            found[split] = prompts
    return found


def _prompts_of_task(task, split: str, seed: int) -> list | None:
    """
    Return the prompts of a split: `HELD_OUT` of them, or all if there are fewer; `None` if the task has none.
    """
    for count in (HELD_OUT, None):
        try:
            return list(task.rows(split, count, seed=seed)["prompt"])
        except (ValueError, TypeError, KeyError, OSError, NotImplementedError):
            continue
    return None


def split_findings(prompts: Mapping[str, Sequence]) -> list[Finding]:
    """Return a finding about shared prompts for each pair of splits; prompts are chat messages or text."""
    texts = {split: {prompt_key(prompt) for prompt in of_split} for split, of_split in prompts.items()}
    findings = []
    for first, second in combinations(texts, 2):
        shared = len(texts[first] & texts[second])
        of = len(texts[second])
        cure = f"scores on {second} would be inflated by memorised answers: drop these prompts from {first}"
        number = f"{shared} of {of}"
        findings.append(
            make_finding(f"prompts of {second} in {first}", number, shared > 0, cure, shared=shared, of=of)
        )
    return findings


def length_findings(
    prompts: Sequence[int], golds: Sequence[int], most: int | None, context: int | None
) -> list[Finding]:
    """
    Compare the lengths of prompts with the model's context, and the lengths of reference answers, without the end
    token, with `max_completion_length`. All are in tokens.
    """
    longest = max(prompts)
    needed = longest + (most or 0)
    limit = f" of {context}" if context else ""
    too_long = context is not None and needed > context
    cure = "a completion can exceed the model's context: lower max_completion_length, or drop long prompts"
    what = "longest prompt, with a completion"
    number = f"{longest} tokens, {needed}{limit}"
    findings = [make_finding(what, number, too_long, cure, prompt=longest, needed=needed, context=context)]
    if golds and most is not None:
        room = sum(length < most for length in golds)  # one token more, for the end
        what = "gold answers that fit max_completion_length"
        number = f"{room} of {len(golds)} (longest {max(golds)} of {most} tokens)"
        cure = f"correct answers are truncated: set max_completion_length: {max(golds) + 1} or more"
        findings.append(make_finding(what, number, room < len(golds), cure, fit=room, longest=max(golds), limit=most))
    return findings
