"""Samples of the starting model, as a run draws and rewards them: does any group give a gradient, and if not, why?"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from tqdm import tqdm

from trl_prorl.advantages import UNGROUPED
from trl_prorl.anchors import ANCHOR_KEYS
from trl_prorl.config import ProRLConfig
from trl_prorl.eval.analysis.statistics import prompt_interval
from trl_prorl.eval.pages.table import percent
from trl_prorl.eval.readiness.data import judge, without_nan
from trl_prorl.eval.readiness.finding import FINE, LOOK, NOT_MEASURED, STOP, Finding, make_finding
from trl_prorl.eval.readiness.samples_of import sample_rows
from trl_prorl.text import last_text


SAME = 1e-6  # rewards closer than this are equal: their mean is rounded
MAX_ZERO_SIGNAL = 0.5  # share of groups without a gradient above which a change is suggested
TARGET_ZERO_SIGNAL = 0.3  # share that the suggested change aims at
MAX_TRUNCATED = 0.1
MAX_UNANSWERED = 0.2
UNRELIABLE_TRUNCATED = 0.5  # above this share of truncated completions, the accuracy is unreliable
MAX_ACCURACY = 0.9
MIN_ACCURACY = 0.02
GROUPS = (4, 8, 16, 32, 64)
LIMITS = ("beta", "beta_base", "kl_target", "guard_gap")  # keys that limit or report reward hacking
MAX_TARGET = 2.0  # a kl_target above this multiple of the distance of correct answers limits nothing
REWARDS_WRONG = "groups that reward a wrong answer as fully as a correct one"
NEEDED_KL = "distance of correct answers from the starting model (KL)"
JUDGED = (
    "reward hacking cannot be detected: pass verify=is_correct, a function of a completion and its row. If "
    "only a judge, a rubric or a reward model can score answers, keep a KL to the starting model (beta: 0.3), "
    "read samples, and evaluate with a different judge"
)


@dataclass
class Rollouts:
    """
    Samples of P prompts with G completions each, prompt by prompt; lists of completions have length P·G.

    Attributes:
        args ([`ProRLConfig`]): The trainer's.
        group_size (`int`): G.
        has_answer (`list[bool]`): Whether a task finds an answer at all; empty without a task.
        rewards (`list[float]`): Weighted sum of all reward functions; NaN if none applies.
        compared (`list[float]`): What TRL's `multi_objective_aggregation` compares within a group.
        correct (`list[bool]`): The verifier's verdicts; empty without a verifier.
        truncated (`list[bool]`): Whether a completion was truncated at `max_completion_length`.
        lengths (`list[int]`): Sampled tokens.
        texts (`list[str]`): The completions.
        batch (`dict[str, torch.Tensor]`): The first generation batch, to score it again.
    """

    args: ProRLConfig
    group_size: int
    has_answer: list[bool] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    compared: list[float] = field(default_factory=list)
    correct: list[bool] = field(default_factory=list)
    truncated: list[bool] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    batch: dict[str, Any] = field(default_factory=dict)

    def groups(self, values: Sequence[Any]) -> list[list[Any]]:
        """Values of completions, by prompt."""
        return [list(values[i : i + self.group_size]) for i in range(0, len(values), self.group_size)]


def sample_starting_model(
    trainer, rows: Sequence[Mapping], task=None, bar: tqdm | None = None, verify: Callable | None = None
) -> Rollouts:
    """
    Sample P rows of the training set as a trainer does before its first step, a generation batch at a time. A `bar`
    shows the number of completions.

    `verify(completion, row)` decides which completions are correct, else the verifier of a reward function, else the
    task. Without them nothing is known of correctness: no number says what a reward's maximum is.
    """
    size = trainer.num_generations
    together = max(1, trainer.args.generation_batch_size // size)
    rollouts = Rollouts(trainer.args, size)
    for start in range(0, len(rows), together):
        batch = rows[start : start + together]
        sampled = sample_rows(trainer, batch, verify)
        rollouts.batch = rollouts.batch or sampled.batch
        row_of_each = [row for row in batch for _ in range(size)]
        rollouts.rewards += sampled.total.tolist()
        rollouts.compared += sampled.compared.tolist()
        rollouts.truncated += sampled.truncated
        rollouts.lengths += sampled.lengths
        texts = [text if isinstance(text, str) else last_text(text) for text in sampled.completions]
        rollouts.texts += texts
        if sampled.correct:
            rollouts.correct += sampled.correct
        elif task is not None:
            rollouts.correct += judge(task, texts, row_of_each)
        if task is not None:
            rollouts.has_answer += [task.has_answer(text, row) for text, row in zip(texts, row_of_each, strict=True)]
        if bar is not None:
            bar.update(len(row_of_each))
    return rollouts


def expected_zero_signal(p: float, size: int) -> float:
    """
    Return the share of groups of `size` completions that are all correct or all wrong, if each is correct with
    probability p.
    """
    return p**size + (1 - p) ** size


def has_gradient(rollouts: Rollouts, rewards: list[float], truncated: list[bool]) -> bool:
    """Return whether a completion of the group is in the loss and has a reward other than the group's mean."""
    values = without_nan(rewards)
    if not values or max(values) - min(values) <= SAME:
        return False
    in_loss = rewards
    if rollouts.args.mask_truncated_completions:
        in_loss = [reward for reward, was_truncated in zip(rewards, truncated, strict=True) if not was_truncated]
    return any(abs(reward - fmean(values)) > SAME for reward in in_loss)


def signal_findings(rollouts: Rollouts, gold_length: int | None, tells: bool | None) -> list[Finding]:
    """
    Return the findings about samples of the starting model. `gold_length` is the length of the longest reference
    answer in tokens; `tells` is whether correct answers get more reward than wrong ones, `None` if that is not known.
    """
    verifier = Finding("separate verifier", "yes") if rollouts.correct else None
    return [
        accuracy_finding(rollouts),
        group_finding(rollouts, tells),
        verifier or Finding("separate verifier", "none", JUDGED, LOOK),
        *hacking_findings(rollouts),
        truncated_finding(rollouts, gold_length),
        *unanswered_findings(rollouts),
    ]


def accuracy_finding(rollouts: Rollouts) -> Finding:
    """Return the accuracy of the starting model with its interval over prompts."""
    what = "accuracy of the starting model"
    if not rollouts.correct:
        return Finding(what, NOT_MEASURED)
    rates = [fmean(group) for group in rollouts.groups(rollouts.correct)]
    p = fmean(rates)
    low, high = prompt_interval(rates)
    change = ""
    if p >= MAX_ACCURACY:
        change = "nearly every prompt is solved, or the reward accepts anything: use harder prompts"
    elif p <= MIN_ACCURACY:
        change = (
            "the starting model solves almost nothing, or the reward is wrong: use easier prompts, a graded "
            "reward, or supervised fine-tuning first"
        )
    interval = " (too few for an interval)" if math.isnan(low) else f" [{low:.2f}, {high:.2f}]"
    number = f"{p:.2f}, {len(rates)} prompts{interval}"
    values = {"pass_rate": p, "interval": [low, high], "prompts": len(rates)}
    return Finding(what, number, change, LOOK if change else FINE, values)


def group_finding(rollouts: Rollouts, tells: bool | None) -> Finding:
    """
    Return the share of groups that give no gradient: observed, and, with a verifier, expected from the accuracy. If
    completions are not compared within a group, all of them are one.
    """
    groups, truncated = rollouts.groups(rollouts.compared), rollouts.groups(rollouts.truncated)
    if rollouts.group_size == 1 or getattr(rollouts.args, "advantage_estimator", None) in UNGROUPED:
        groups, truncated = [rollouts.rewards], [rollouts.truncated]
    without = sum(not has_gradient(rollouts, *group) for group in zip(groups, truncated, strict=True))
    size = rollouts.group_size
    observed = without / len(groups)
    values = {"observed": observed, "num_generations": size}
    what = "groups that give no gradient"
    number = f"{without} of {len(groups)}"
    larger = []
    if rollouts.correct:
        p = fmean(rollouts.correct)
        expected = expected_zero_signal(p, size)
        values |= {"expected": expected, "pass_rate": p}
        number += f" (expected {percent(expected)})"
        larger = [group for group in GROUPS if group > size and expected_zero_signal(p, group) <= TARGET_ZERO_SIGNAL]
    if getattr(rollouts.args, "learns_from_teacher", False):  # every token has the gradient of its KL
        return Finding(what, number, values=values)
    if observed == 1.0:
        return Finding(what, number, cure_of_zero_signal(rollouts, tells), STOP, values)
    change = "most groups are wasted: use other prompts (dynamic_sampling_rounds, task_level) or a graded reward"
    if larger:
        change += f"; num_generations: {larger[0]} helps if prompts are about equally difficult"
    return make_finding(what, number, observed > MAX_ZERO_SIGNAL, change, **values)


def cure_of_zero_signal(rollouts: Rollouts, tells: bool | None) -> str:
    """Return why no group gives a gradient, and the cure, by the first cause in the samples."""
    if tells is False:
        return "correct answers get no more reward than wrong ones: fix the reward function"
    if fmean(rollouts.truncated) > UNRELIABLE_TRUNCATED:
        return "most completions are truncated: raise max_completion_length"
    if not without_nan(rollouts.rewards):
        return "every reward function returns None for every completion: fix the reward functions"
    p = fmean(rollouts.correct) if rollouts.correct else None
    if p is not None and p >= MAX_ACCURACY:
        return "nearly every answer is correct already: use harder prompts"
    if p is not None and p <= MIN_ACCURACY:
        return "almost no answer is correct: use easier prompts or a graded reward, or check the reward"
    return "the completions of a prompt get equal rewards: raise temperature, use other prompts, or fix the reward"


def needed_kl(rollouts: Rollouts) -> float:
    """
    Return the KL to the starting model, in nats per token, that correct answers need. Among all policies that always
    answer a prompt correctly, the closest to the starting model is the starting model conditioned on a correct answer,
    at −log p (the I-projection of Csiszár, 1975). Here p, the starting model's chance of a correct answer, is
    (correct + ½) / (G + 1). A prompt without a correct answer counts as log 2(G + 1), which is too low. The mean over
    prompts is divided by the mean length of correct answers.
    """
    nats = []
    for group in rollouts.groups(rollouts.correct):
        chance = (sum(group) + 0.5) / (rollouts.group_size + 1)
        nats.append(-math.log(chance))
    correct = [length for length, verdict in zip(rollouts.lengths, rollouts.correct, strict=True) if verdict]
    return fmean(nats) / fmean(correct or rollouts.lengths)


def hacking_findings(rollouts: Rollouts) -> list[Finding]:
    """
    Return the KL that correct answers need, and how many groups give a wrong completion as much reward as a correct
    one: then the reward can be hacked. Both need a verifier.
    """
    if not rollouts.correct:
        return [Finding(what, NOT_MEASURED) for what in (NEEDED_KL, REWARDS_WRONG)]
    needed = needed_kl(rollouts)
    findings = [Finding(NEEDED_KL, f"{needed:.2g} nats per token", values={"kl": needed})]
    mixed = 0
    wrong = 0
    for verdicts, rewards in zip(rollouts.groups(rollouts.correct), rollouts.groups(rollouts.rewards), strict=True):
        of_correct = without_nan(reward for reward, verdict in zip(rewards, verdicts, strict=True) if verdict)
        of_wrong = without_nan(reward for reward, verdict in zip(rewards, verdicts, strict=True) if not verdict)
        if of_correct and of_wrong:
            mixed += 1
            wrong += min(of_correct) <= max(of_wrong)
    missing = missing_limits(rollouts)
    change = "the reward can be hacked; its keys already limit this"
    if missing:
        change = "the reward can be hacked: reward the verifier if it can run on every completion, else set "
        change += " and ".join(missing)
    if getattr(rollouts.args, "ref_model", None) is not None:
        change = "the reward can be hacked: fix it, or set reward_weights: [0], so that the teacher alone trains"
        wrong = wrong if any(rollouts.args.reward_weights or [1.0]) else 0
    values = {"wrong": wrong, "mixed": mixed, "limited": not missing}
    return [*findings, make_finding(REWARDS_WRONG, f"{wrong} of {mixed}", wrong > 0, change, **values)]


def missing_limits(rollouts: Rollouts) -> list[str]:
    """Return the settings against reward hacking; empty if the configuration already limits it."""
    limits = {key: getattr(rollouts.args, key) for key in LIMITS if getattr(rollouts.args, key, None)}
    adapted = next((key for key in ANCHOR_KEYS if getattr(rollouts.args, key, None)), None)
    if not hasattr(rollouts.args, "kl_target"):  # of another trainer
        return [] if limits else ["beta: 0.3"]
    missing = []
    if adapted in (None, "beta_old"):  # π_old follows the policy
        missing.append("beta: 0.3")
    elif limits.get("kl_target", 0.0) > MAX_TARGET * needed_kl(rollouts):
        missing.append(f"no kl_target (now {limits['kl_target']:g})")
    if rollouts.args.resets and adapted != "beta_base":
        missing.append("no reset trigger, because a reset moves the reference")
    return missing


def truncated_finding(rollouts: Rollouts, gold_length: int | None) -> Finding:
    """
    Return the share of truncated completions, with one of two causes: too little room, or no end token. If all are
    truncated, the run cannot learn with `mask_truncated_completions`, which leaves them out of the loss.
    """
    truncated = fmean(rollouts.truncated)
    limit = rollouts.args.max_completion_length
    change = f"raise max_completion_length (now {limit}), or ask for shorter answers"
    if gold_length is not None and limit is not None and gold_length < limit / 2:
        change += (
            f"; reference answers have up to {gold_length} tokens, so the end token may be missing: check eos_token, "
            "the model's eos_token_id and the chat template"
        )
    level = STOP if truncated == 1.0 and rollouts.args.mask_truncated_completions else LOOK
    length = fmean(rollouts.lengths)
    values = {"cut": truncated, "mean_length": length, "limit": limit}
    number = f"{percent(truncated)} (mean length {length:.0f} of {limit or 'any'})"
    return make_finding("truncated completions", number, truncated > MAX_TRUNCATED, change, level, **values)


def unanswered_findings(rollouts: Rollouts) -> list[Finding]:
    """Return the share of completions in which the verifier finds no answer, with an example."""
    if not rollouts.has_answer:
        return []
    share = 1 - fmean(rollouts.has_answer)
    example = next((text for text, has in zip(rollouts.texts, rollouts.has_answer, strict=True) if not has), "")
    change = f"ask for the format in the prompt, or fix the verifier (seen: {example[-60:]!r})"
    what = "completions without an answer to verify"
    return [make_finding(what, percent(share), share > MAX_UNANSWERED, change, share=share)]
