"""Do verifier and reward know right from wrong? Gold answers, and the answers of other rows, tell without a model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from eval.readiness.finding import STOP, Finding, advice


MOST_ACCEPTED = 0.1  # share of other rows' answers that may be right by chance, as where there are few answers


@dataclass(frozen=True)
class GoldAnswers:
    """
    Verdicts and rewards of answers that are known to be right, and of answers of other rows that differ from them.

    Attributes:
        verified (`list[bool]`): Of each row's gold answer, shape (R,).
        accepted (`list[bool]`): Of each other row's answer, shape (O,).
        rewards, other_rewards (`list[float]`): Of the task's reward function; empty where it cannot be asked.
    """

    verified: list[bool]
    accepted: list[bool]
    rewards: list[float]
    other_rewards: list[float]

    @property
    def reward_tells(self) -> bool | None:
        """Whether right answers get more reward than wrong ones on average; `None` if that is not known."""
        right = [reward for reward, is_right in zip(self.rewards, self.verified, strict=False) if is_right]
        wrong = [reward for reward, passes in zip(self.other_rewards, self.accepted, strict=False) if not passes]
        return mean(right) > mean(wrong) if right and wrong else None


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def gold_answers(task, rows: Sequence[Mapping], reward: Callable | None = None) -> GoldAnswers:
    """
    Ask a task, and a reward function, about the gold answers of rows and about one other row's answer for each.

    Args:
        task ([`~tasks.Task`]): Its `gold` and `verify_many` are asked.
        rows (`Sequence[Mapping]`): R rows.
        reward (`Callable`, *optional*): Takes completions and rows, returns a number for each; by default the rewards
            are not asked for.
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
    return GoldAnswers(
        verified=list(map(bool, task.verify_many(golds, rows))),
        accepted=list(map(bool, task.verify_many(texts, asked))) if others else [],
        rewards=list(reward(golds, rows)) if reward else [],
        other_rewards=list(reward(texts, asked)) if reward and others else [],
    )


def gold_findings(found: GoldAnswers) -> list[Finding]:
    """What the verdicts and rewards say."""
    total, right = len(found.verified), sum(found.verified)
    values = {"rows": total, "verified": right}
    if right == 0:
        cure = "mend the task: the verifier refuses its own answers, so that nothing can ever be right"
        findings = [Finding("gold answers verify", f"0 of {total}", cure, STOP, values)]
    else:
        cure = "mend the verifier, or drop the rows whose own answer it refuses"
        findings = [
            Finding("gold answers verify", f"{right} of {total}", **advice(right < total, cure), values=values)
        ]
    if found.accepted:
        wrong, of = sum(found.accepted), len(found.accepted)
        cure = "mend the verifier: it accepts answers to other questions"
        findings.append(
            Finding(
                "other rows' answers that verify",
                f"{wrong} of {of}",
                **advice(wrong > MOST_ACCEPTED * of, cure),
                values={"rows": of, "accepted": wrong},
            )
        )
    if found.rewards and found.other_rewards:
        means = mean(found.rewards), mean(found.other_rewards)
        cure = "mend the reward function: it pays right answers no more than wrong ones, whatever the model does"
        findings.append(
            Finding(
                "reward of gold answers, of other rows'",
                f"{means[0]:.2f}, {means[1]:.2f}",
                **advice(found.reward_tells is False, cure),
                values={"gold": means[0], "others": means[1]},
            )
        )
    return findings
