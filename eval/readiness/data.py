"""Checks of a run's data: do verifier and rewards accept correct answers only, are splits disjoint, do texts fit?"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from statistics import fmean

import torch
from datasets import Dataset
from trl.trainer.utils import is_async_callable

from trl_prorl.cli.prompt_rows import read_prompts
from trl_prorl.cli.training_prompts import prompt_key
from trl_prorl.errors import RewardError
from trl_prorl.eval.readiness.finding import LOOK, NOT_MEASURED, STOP, Finding, make_finding
from trl_prorl.guards.rewards import guard_reward
from trl_prorl.pass_at_k import as_verdict
from trl_prorl.rollout import weighted_sum


MAX_ACCEPTED = 0.1  # share of other rows' answers that may be correct by chance, as in tasks with few answers
NO_COLUMNS = ("prompt", "completion", "completion_ids")  # a reward function gets these as separate arguments
GOLD_VERIFIES = "reference answers that the verifier accepts"
GOLD_REWARD = "mean reward of reference answers, of answers to other prompts"
NO_ANSWERS = "a wrong reward function looks like a weak starting model: these questions have no reference answer"
HELD_OUT = 128  # rows of a task's test that are compared with training


def check_gold_answers(
    task, rows: Sequence[Mapping], reward: Callable | None = None
) -> tuple[list[Finding], bool | None]:
    """
    Check the reference answers of R rows, and one other row's answer for each, with a task's `gold` and `verify_many`,
    and with a reward, which takes completions and rows and returns a number for each. Rows with an empty `answer`,
    such as those of a family that has only a scorer, are left out.

    Returns:
        The findings, and whether correct answers get more reward than wrong ones on average; `None` if that is not
        known.
    """
    rows = answered(rows)
    if not rows:
        return [Finding(GOLD_VERIFIES, NOT_MEASURED, NO_ANSWERS)], None
    golds = [task.gold(row) for row in rows]
    other_golds = []
    other_rows = []  # the rows that `other_golds` are checked against
    for place, row in enumerate(rows):
        other = _other_gold(golds, rows, place)
        if other is not None:
            other_golds.append(other)
            other_rows.append(row)
    verified = judge(task, golds, rows)
    accepted = judge(task, other_golds, other_rows) if other_golds else []
    findings = verdict_findings(verified, accepted)
    if reward is None:
        return findings, None
    try:
        rewards = reward(golds, rows)
        other_rewards = reward(other_golds, other_rows) if other_golds else []
    except RewardError as error:  # it may need a rollout's columns; it is called for samples, too
        cause = f"a reward function failed; ignore this if it needs values that only a rollout has: {error}"
        return [*findings, Finding(GOLD_REWARD, NOT_MEASURED, cause, LOOK)], None
    correct = without_nan(reward for reward, verdict in zip(rewards, verified, strict=True) if verdict)
    wrong = without_nan(reward for reward, verdict in zip(other_rewards, accepted, strict=True) if not verdict)
    tells = fmean(correct) > fmean(wrong) if correct and wrong else None
    return findings + reward_findings(without_nan(rewards), without_nan(other_rewards), tells), tells


def answered(rows: Sequence[Mapping]) -> list[Mapping]:
    """Return the rows that have a reference answer."""
    return [row for row in rows if row.get("answer") != ""]


def judge(task, answers: list[str], rows: Sequence[Mapping]) -> list[bool]:
    """Return the task's verdict on each answer."""
    return [as_verdict(verdict, f"verify of {type(task).__name__}") for verdict in task.verify_many(answers, rows)]


def _other_gold(golds: list[str], rows: Sequence[Mapping], place: int) -> str | None:
    """Return the next different reference answer of the same task; `None` if there is none."""
    for offset in range(1, len(rows)):
        other = (place + offset) % len(rows)
        if rows[other].get("task") == rows[place].get("task") and golds[other] != golds[place]:
            return golds[other]
    return None


def verdict_findings(verified: list[bool], accepted: list[bool]) -> list[Finding]:
    """Return the findings about the verdicts on reference answers and on other rows' answers."""
    total = len(verified)
    correct = sum(verified)
    if correct == 0:
        level = STOP
        cure = "the verifier rejects every reference answer, so nothing can ever be correct: fix the task"
    else:
        level = LOOK
        cure = "the verifier rejects reference answers: fix it, or drop these rows"
    number = f"{correct} of {total}"
    findings = [make_finding(GOLD_VERIFIES, number, correct < total, cure, level, rows=total, verified=correct)]
    if accepted:
        wrong = sum(accepted)
        of = len(accepted)
        cure = "the verifier accepts wrong answers: fix it"
        what = "answers to other prompts that the verifier accepts"
        number = f"{wrong} of {of}"
        findings.append(make_finding(what, number, wrong > MAX_ACCEPTED * of, cure, rows=of, accepted=wrong))
    return findings


def reward_findings(gold: list[float], others: list[float], tells: bool | None) -> list[Finding]:
    """Return the finding about the rewards of reference answers and of other rows' answers, if there are both."""
    if not gold:
        return [Finding(GOLD_REWARD, "none", "the reward functions return None for reference answers: fix them", LOOK)]
    if not others:
        return []
    cure = "correct answers get no more reward than wrong ones: fix the reward function"
    number = f"{fmean(gold):.2f}, {fmean(others):.2f}"
    return [make_finding(GOLD_REWARD, number, tells is False, cure, gold=fmean(gold), others=fmean(others))]


def without_nan(values: Iterable[float]) -> list[float]:
    return [value for value in values if not math.isnan(value)]


def summed_reward(trainer) -> Callable[[list[str], list[Mapping]], list[float]] | None:
    """
    Return a function of texts and rows that sums rewards as the run does, over the reward functions that have a weight
    and are neither models nor asynchronous; `None` if there are none. It raises [`RewardError`] if one of them fails.
    """
    functions = trainer.reward_funcs
    if not hasattr(trainer, "run_dir"):  # TRL's own, whose functions are bare
        names = trainer.reward_func_names
        functions = [guard_reward(*pair, None, "skip", lambda: False) for pair in zip(functions, names, strict=True)]
    pairs = [
        (function, weight)
        for function, weight in zip(functions, trainer.reward_weights.tolist(), strict=True)
        if weight and not isinstance(function, torch.nn.Module) and not is_async_callable(function)
    ]
    if not pairs:
        return None
    tokenizer = text_tokenizer(trainer)

    def sum_rewards(texts: list[str], rows: list[Mapping], as_text: bool = False) -> list[float]:
        chats = not (as_text or isinstance(rows[0]["prompt"], str))
        arguments = {
            **{key: [row[key] for row in rows] for key in rows[0] if key not in NO_COLUMNS},
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


def message_findings(trainer, texts: list[str], rows: Sequence[Mapping]) -> list[Finding]:
    """Return a finding if rewards tell completions apart as texts, and not as the lists of messages that they get."""
    reward = summed_reward(trainer)
    if reward is None or isinstance(rows[0]["prompt"], str):
        return []
    try:
        as_messages = set(reward(texts, rows))
        as_texts = set(reward(texts, rows, as_text=True))
    except (RewardError, TypeError, ValueError):  # a reward of messages may fail for text
        return []
    cure = "a completion is a list of messages here, and the reward reads it as text: use completion[-1]['content']"
    confused = len(as_messages) == 1 and len(as_texts) > 1
    return [Finding("rewards of messages", "all equal", cure, STOP)] if confused else []


def text_tokenizer(trainer):
    """Return the tokenizer, also that of a processor."""
    return getattr(trainer.processing_class, "tokenizer", trainer.processing_class)


def held_out_prompts(evaluation, task=None, seed: int = 0) -> dict[str, list]:
    """Return the prompts that a run does not train on: of its evaluation set or sets, and the task's test rows."""
    sets = evaluation if isinstance(evaluation, Mapping) else {"validation": evaluation}
    prompts = {
        name: read_prompts(rows)
        for name, rows in sets.items()
        if isinstance(rows, Dataset) and "prompt" in rows.column_names
    }
    if task is not None:
        for count in (HELD_OUT, None):  # all rows, if there are fewer
            with suppress(ValueError, TypeError, KeyError, OSError, NotImplementedError):
                prompts["test"] = list(task.rows("test", count, seed=seed)["prompt"])
                break
    return prompts


def split_findings(train: Sequence, held_out: Mapping[str, Sequence]) -> list[Finding]:
    """Return a finding about shared prompts for each held-out set; prompts are chat messages or text."""
    known = set(map(prompt_key, train))
    findings = []
    for name, prompts in held_out.items():
        texts = set(map(prompt_key, prompts))
        shared = len(texts & known)
        cure = f"scores on {name} would be inflated by memorised answers: drop these prompts from train"
        number = f"{shared} of {len(texts)}"
        findings.append(make_finding(f"prompts of {name} in train", number, shared > 0, cure, shared=shared))
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
        what = "reference answers that fit max_completion_length"
        number = f"{room} of {len(golds)} (longest {max(golds)} of {most} tokens)"
        cure = f"correct answers are truncated: set max_completion_length: {max(golds) + 1} or more"
        findings.append(make_finding(what, number, room < len(golds), cure, fit=room, longest=max(golds), limit=most))
    return findings
