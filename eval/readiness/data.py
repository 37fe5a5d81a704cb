"""The data of a run: do verifier and rewards know right from wrong, are splits apart, do texts fit their limits?"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from datasets import Dataset
from trl.trainer.utils import is_async_callable

from trl_prorl.errors import RewardError
from trl_prorl.eval.readiness.finding import LOOK, STOP, Finding, make_finding
from trl_prorl.rollout.outcome import weighted_sum


MOST_ACCEPTED = 0.1  # share of other rows' answers that may be right by chance, as where there are few answers
NO_COLUMNS = ("prompt", "completion", "completion_ids")  # a reward function gets these as arguments of their own
HELD_OUT = 128  # rows of a task's validation and test that are compared with training


@dataclass(frozen=True)
class GoldAnswers:
    """
    Verdicts and rewards of answers that are known to be right, and of answers of other rows that differ from them.

    Attributes:
        verified (`list[bool]`): Of each row's gold answer, shape (R,).
        accepted (`list[bool]`): Of each other row's answer, shape (O,).
        rewards, other_rewards (`list[float]`): Weighted sums of the reward functions, NaN where none applies; empty
            where they cannot be asked.
        failed (`str`, *optional*): Why they could not be asked.
    """

    verified: list[bool]
    accepted: list[bool]
    rewards: list[float]
    other_rewards: list[float]
    failed: str | None = None

    @property
    def reward_tells(self) -> bool | None:
        """Whether right answers get more reward than wrong ones on average; `None` if that is not known."""
        right = without_nan(reward for reward, is_right in zip(self.rewards, self.verified, strict=False) if is_right)
        wrong = without_nan(
            reward for reward, passes in zip(self.other_rewards, self.accepted, strict=False) if not passes
        )
        return mean(right) > mean(wrong) if right and wrong else None


def without_nan(values) -> list[float]:
    return [value for value in values if not math.isnan(value)]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def check_gold_answers(task, rows: Sequence[Mapping], reward: Callable | None = None) -> GoldAnswers:
    """
    Ask a task, by `gold` and `verify_many`, about the gold answers of R rows and about one other row's answer for
    each; a reward, which takes completions and rows and returns a number for each, is asked too.
    """
    golds = [task.gold(row) for row in rows]
    others = []
    for place, row in enumerate(rows):
        alike = [k for k in range(1, len(rows)) if rows[(place + k) % len(rows)].get("task") == row.get("task")]
        differ = (golds[(place + k) % len(rows)] for k in alike if golds[(place + k) % len(rows)] != golds[place])
        other = next(differ, None)
        if other is not None:
            others.append((other, row))
    texts, asked = [text for text, _ in others], [row for _, row in others]
    rewards, other_rewards, failed = [], [], None
    try:
        if reward is not None:
            rewards = list(reward(golds, rows))
            other_rewards = list(reward(texts, asked)) if others else []
    except RewardError as error:  # it may need what only a rollout has; samples are asked about, too
        rewards, other_rewards, failed = [], [], str(error)
    return GoldAnswers(
        verified=list(map(bool, task.verify_many(golds, rows))),
        accepted=list(map(bool, task.verify_many(texts, asked))) if others else [],
        rewards=rewards,
        other_rewards=other_rewards,
        failed=failed,
    )


def summed_reward(trainer) -> Callable[[list[str], list[Mapping]], list[float]] | None:
    """
    The reward of a completion as the run sums it, of texts and rows: over the reward functions that have a weight and
    are neither models nor asynchronous; `None` if there are none. They raise [`RewardError`] where they fail.
    """
    pairs = [
        (function, weight)
        for function, weight in zip(trainer.reward_funcs, trainer.reward_weights.tolist(), strict=True)
        if weight and not isinstance(function, torch.nn.Module) and not is_async_callable(function)
    ]
    if not pairs:
        return None
    tokenizer = text_tokenizer(trainer)

    def ask(texts: list[str], rows: list[Mapping]) -> list[float]:
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
        found = [[math.nan if one is None else float(one) for one in function(**arguments)] for function, _ in pairs]
        return weighted_sum(torch.tensor(found).T, torch.tensor([weight for _, weight in pairs])).tolist()

    return ask


def reward_columns(rows: Sequence[Mapping]) -> dict[str, list]:
    """The columns of rows that reward functions get by their names."""
    return {key: [row[key] for row in rows] for key in rows[0] if key not in NO_COLUMNS}


def text_tokenizer(trainer):
    """The tokenizer, of a processor too."""
    return getattr(trainer.processing_class, "tokenizer", trainer.processing_class)


def gold_findings(found: GoldAnswers) -> list[Finding]:
    """What the verdicts and rewards say."""
    total, right = len(found.verified), sum(found.verified)
    cure, level = "mend the verifier, or drop the rows whose own answer it refuses", LOOK
    if right == 0:
        cure, level = "mend the task: the verifier refuses its own answers, so that nothing can ever be right", STOP
    what, number = "gold answers verify", f"{right} of {total}"
    findings = [make_finding(what, number, right < total, cure, level, rows=total, verified=right)]
    if found.accepted:
        wrong, of = sum(found.accepted), len(found.accepted)
        cure = "mend the verifier: it accepts answers to other questions"
        what, number = "other rows' answers that verify", f"{wrong} of {of}"
        findings.append(make_finding(what, number, wrong > MOST_ACCEPTED * of, cure, rows=of, accepted=wrong))
    what = "reward of gold answers, of other rows'"
    if found.failed is not None:
        return [*findings, Finding(what, "not known", f"it could not be asked: {found.failed}", LOOK)]
    gold, others = without_nan(found.rewards), without_nan(found.other_rewards)
    if found.rewards and not gold:
        cure = "mend the reward functions: they return None for right answers"
        findings.append(Finding(what, "none", cure, LOOK))
    elif gold and others:
        means = {"gold": mean(gold), "others": mean(others)}
        cure = "mend the reward function: it pays right answers no more than wrong ones, whatever the model does"
        number = ", ".join(f"{value:.2f}" for value in means.values())
        findings.append(make_finding(what, number, found.reward_tells is False, cure, **means))
    return findings


def prompt_text(prompt: Sequence[Mapping] | str) -> str:
    """A prompt's text, spaces made even."""
    text = prompt if isinstance(prompt, str) else "\n".join(str(message.get("content")) for message in prompt)
    return " ".join(text.split())


def held_out_prompts(evaluation, task=None, seed: int = 0) -> dict[str, list]:
    """
    Prompts that a run does not train on, by the name of their set: what the run evaluates on, a data set or a `dict`
    of them, and the test rows of its task, drawn by its seed; its validation rows if the run has none.
    """
    several = isinstance(evaluation, Mapping)
    sets = {f"eval_{name}": rows for name, rows in evaluation.items()} if several else {"validation": evaluation}
    found = {
        name: list(rows["prompt"])
        for name, rows in sets.items()
        if isinstance(rows, Dataset) and "prompt" in rows.column_names
    }
    for split in ("validation", "test") if task is not None else ():
        for count in (HELD_OUT, None) if split == "test" or not found else ():
            try:
                found[split] = list(task.rows(split, count, seed=seed)["prompt"])
                break
            except (ValueError, TypeError, KeyError, OSError, NotImplementedError):
                continue  # fewer rows, or none
    return found


def split_findings(prompts: Mapping[str, Sequence]) -> list[Finding]:
    """Prompts that two splits share, from those of each split as chat messages or text."""
    texts = {split: {prompt_text(prompt) for prompt in of_split} for split, of_split in prompts.items()}
    findings = []
    for first, second in combinations(texts, 2):
        shared, of = len(texts[first] & texts[second]), len(texts[second])
        cure = f"drop these prompts from {first}: what is measured on {second} would be what was learnt by heart"
        number = f"{shared} of {of}"
        findings.append(
            make_finding(f"prompts of {second} in {first}", number, shared > 0, cure, shared=shared, of=of)
        )
    return findings


def length_findings(
    prompts: Sequence[int], golds: Sequence[int], most: int | None, context: int | None
) -> list[Finding]:
    """
    Tokens of each prompt against the model's context, those of each gold answer, without the end token, against
    `max_completion_length`.
    """
    longest, needed = max(prompts), max(prompts) + (most or 0)
    limit = f" of {context}" if context else ""
    too_long = context is not None and needed > context
    cure = "lower max_completion_length, or drop long prompts"
    what, number = "longest prompt, with a completion", f"{longest} tokens, {needed}{limit}"
    findings = [make_finding(what, number, too_long, cure, prompt=longest, needed=needed, context=context)]
    if golds and most is not None:
        room = sum(length < most for length in golds)  # one token more, for the end
        what = "gold answers that fit max_completion_length"
        number = f"{room} of {len(golds)} (longest {max(golds)} of {most} tokens)"
        cure = f"set max_completion_length to {max(golds) + 1} or more"
        findings.append(make_finding(what, number, room < len(golds), cure, fit=room, longest=max(golds), limit=most))
    return findings
