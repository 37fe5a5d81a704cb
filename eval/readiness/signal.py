"""Samples of the base, as a run draws and rewards them: does any group teach something, and if not, why?"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

from trl_prorl.eval.analysis.statistics import bootstrap_interval
from trl_prorl.eval.pages.table import percent
from trl_prorl.eval.readiness.data import reward_columns, without_nan
from trl_prorl.eval.readiness.finding import LOOK, STOP, Finding, make_finding
from trl_prorl.pass_at_k import as_verdict
from trl_prorl.rollout.rewards import guard_reward
from trl_prorl.rollout.turns import transcript
from trl_prorl.rollout.verdicts import find_verifier


FULL_REWARD = "full reward of 1: no verifier"
SAME = 1e-6  # rewards closer than this are equal: their mean is rounded
MOST_SILENT = 0.5  # share of groups without signal that is worth a change
AIM = 0.3  # what the change aims at
MOST_CUT = 0.1
MOST_UNANSWERED = 0.2
MASKED = 0.5  # share of completions cut that hides what the base could do
SOLVED = 0.9  # pass rates
HOPELESS = 0.02
GROUPS = (4, 8, 16, 32, 64)
FEW = 4  # prompts of a task or level that say nothing of it
SAME_FATE = 0.2  # share of the variance of verdicts within prompts below which those of a prompt are alike
GAMED = "watch gold (guard_gap: 0.1), and keep the policy near its base ({}; study/README.md)"
PAYS_WRONG = "groups that pay a wrong answer like a right one"
NEEDED_KL = "KL to the base that right answers need"
UNSEEN = "not measured: no verifier"
JUDGED = (
    "give the reward function an attribute batch_verifier, or pass task=. Where only a judge, a rubric or a reward "
    "model can tell, nothing here and no guard_gap sees that it is gamed: keep a KL to the base (beta with "
    "kl_target), read samples, and evaluate with another judge"
)
ALIKE = "raise temperature, or take prompts of middling difficulty (task_level, dynamic_sampling_rounds)"
NEVER = 0.9  # share of completions cut at which the end token may be at fault
EXAMPLE_LENGTH = 60  # characters


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
        masks_cut (`bool`): Whether `mask_truncated_completions` leaves cut completions out of the loss.
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
    masks_cut: bool = False

    def groups(self, values: Sequence[Any]) -> list[list[Any]]:
        """Values of completions, by prompt."""
        return [list(values[i : i + self.group_size]) for i in range(0, len(values), self.group_size)]


def sample_base(
    trainer, rows: Sequence[Mapping], task=None, advance: Callable[[int], None] = lambda count: None
) -> Rollouts:
    """
    Sample P rows of the training set as a trainer that has not begun to train does, a generation batch at a time;
    `advance` gets the number of completions of every batch.

    Completions are right by the verifier of a reward function, else by the task, else if the first reward function
    gives them the full reward of 1, as `pass_rate/TASK` in the record has it.
    """
    size = trainer.num_generations
    verifier = find_verifier(trainer.reward_funcs)
    together = max(1, trainer.args.generation_batch_size // size)
    found = Rollouts(
        group_size=size,
        rewards=[],
        correct=[],
        answered=None if task is None else [],
        cut=[],
        lengths=[],
        texts=[],
        parts=[],
        reward_seconds=0.0,
        masks_cut=trainer.args.mask_truncated_completions,
    )
    if verifier is None and task is None:
        found.source = FULL_REWARD
    elif verifier is not None:
        name = getattr(verifier, "__qualname__", "batch_verifier")
        verifier = guard_reward(verifier, name, trainer.args.reward_timeout, "stop")
    for start in range(0, len(rows), together):
        batch = [dict(row) for row in rows[start : start + together]]
        sampled = trainer.sample_rows(batch)
        found.batch = found.batch or sampled.batch
        row_of_each = [row for row in batch for _ in range(size)]
        found.rewards += sampled.total.tolist()
        found.cut += sampled.cut
        found.lengths += [len(ids) for ids in sampled.ids]
        texts = [last_text(completion) for completion in sampled.completions]
        found.texts += texts
        found.parts += [(row.get("task"), row.get("level")) for row in batch]
        found.reward_seconds += sampled.reward_seconds
        if verifier is not None:
            prompts = [row["prompt"] for row in row_of_each]
            verdicts = verifier(prompts=prompts, completions=sampled.completions, **reward_columns(row_of_each))
        elif task is not None:
            verdicts = task.verify_many(texts, row_of_each)
        else:
            verdicts = (sampled.rewards[:, 0] >= 1.0).tolist()
        found.correct += [as_verdict(verdict, "the verifier") for verdict in verdicts]
        if task is not None:
            found.answered += [task.has_answer(text, row) for text, row in zip(texts, row_of_each, strict=True)]
        advance(len(row_of_each))
    return found


def last_text(completion: str | list[Mapping]) -> str:
    """Return a completion, or the text of its last message, or of all its turns; a call of a tool may have none."""
    if isinstance(completion, str):
        return completion
    return transcript(completion)


def expected_silent(p: float, size: int) -> float:
    """
    Return the share of groups of `size` completions that are all right or all wrong if each is right with chance p.
    """
    return p**size + (1 - p) ** size


def smallest_group(p: float) -> int | None:
    """Return the smallest usual group of which at most `AIM` have no signal; `None` if there is none."""
    return next((size for size in GROUPS if expected_silent(p, size) <= AIM), None)


def rewards_differ(rewards: list[float]) -> bool:
    """Return whether rewards of a group differ."""
    values = without_nan(rewards)
    return bool(values) and max(values) - min(values) > SAME


def teaches(rewards: list[float], cut: list[bool], masks_cut: bool) -> bool:
    """Return whether a group has a completion that is in the loss and whose reward is not the group's mean."""
    if not masks_cut or not rewards_differ(rewards):
        return rewards_differ(rewards)
    average = mean(without_nan(rewards))
    return any(abs(reward - average) > SAME for reward, was_cut in zip(rewards, cut, strict=True) if not was_cut)


def share_within(found: Rollouts) -> float:
    """
    Return the share of the variance of verdicts, p (1 − p), that lies within prompts, unbiased: 1 where prompts are
    equally difficult, 0 where the completions of each are all right or all wrong.
    """
    p = rate(found.correct)
    if not 0 < p < 1:
        return 1.0
    size = found.group_size
    if size == 1:
        return 1.0
    within = []
    for group in found.groups(found.correct):
        right = sum(group)
        within.append(right * (size - right) / (size * (size - 1)))
    return sum(within) / len(within) / (p * (1 - p))


def rate(values: list[bool]) -> float:
    return sum(values) / len(values)


def signal_findings(found: Rollouts, max_completion_length: int | None, gold_length: int | None, tells: bool | None):
    """
    The findings of samples of the base. `gold_length` is in tokens, of the longest gold answer; `tells` says whether
    right answers get more reward than wrong ones, `None` if that is not known.
    """
    return [
        *pass_findings(found, tells),
        group_finding(found, tells),
        verifier_finding(found),
        *needed_kl_findings(found),
        *disagreement_findings(found),
        *paid_findings(found),
        cut_finding(found, max_completion_length, gold_length),
        *unanswered_findings(found),
    ]


def pass_findings(found: Rollouts, tells: bool | None) -> list[Finding]:
    """Return the pass rate with its interval over prompts, of all prompts and of each task and level."""
    rates = [rate(group) for group in found.groups(found.correct)]
    cut = rate(found.cut)
    by_part: dict[tuple, list[float]] = {}
    for part, value in zip(found.parts, rates, strict=True):
        by_part.setdefault(part, []).append(value)
    findings = [pass_finding(f"base pass rate ({found.source})", rates, tells, cut)]
    if len(by_part) > 1:
        for (task, level), values in by_part.items():
            name = f"{task}" if level is None else f"{task}, level {level}"
            findings.append(pass_finding(f"base pass rate of {name}", values, tells, cut))
    return findings


def pass_finding(what: str, rates: list[float], tells: bool | None, cut: float) -> Finding:
    """Return the pass rate of some prompts, from each one's; `tells` and `cut` say what else keeps it at 0."""
    p = sum(rates) / len(rates)
    low, high = bootstrap_interval(rates)
    interval = "n/a" if math.isnan(low) else f"{low:.2f}, {high:.2f}"
    change = ""
    if len(rates) < FEW and not HOPELESS < p < SOLVED:
        change = "too few prompts to tell: raise --prompts"
    elif p >= SOLVED:
        doubt = ", unless the reward pays anything" if tells is None else ""
        change = f"the base is nearly perfect{doubt}: take a harder task_level or other data"
    elif p <= HOPELESS and tells is False:
        change = "do not read this as the base's: the reward does not tell right from wrong; mend it first"
    elif p <= HOPELESS and cut > MASKED:
        change = "do not read this as the base's: most completions are cut off; mend that first"
    elif p <= HOPELESS:
        right = "gold answers get their reward, so " if tells else ""
        doubt = ", unless the reward is wrong" if tells is None else ""
        change = f"{right}the base does not solve it{doubt}: easier task_level, graded reward, or supervised steps"
    values = {"pass_rate": p, "interval": [low, high], "prompts": len(rates)}
    prompts = "1 prompt" if len(rates) == 1 else f"{len(rates)} prompts"
    return Finding(what, f"{p:.2f} [{interval}], {prompts}", change, LOOK if change else "fine", values)


def group_finding(found: Rollouts, tells: bool | None) -> Finding:
    """Groups whose rewards are all equal: observed, and expected at the pass rate."""
    if found.group_size == 1:
        return batch_finding(found, tells)
    groups = found.groups(found.rewards)
    cuts = found.groups(found.cut)
    silent = sum(not teaches(group, cut, found.masks_cut) for group, cut in zip(groups, cuts, strict=True))
    p = rate(found.correct)
    size = found.group_size
    observed = silent / len(groups)
    expected = expected_silent(p, size)
    values = {"observed": observed, "expected": expected, "num_generations": size, "pass_rate": p}
    what = "groups without signal, expected"
    number = f"{percent(observed)} of {len(groups)}, {percent(expected)} at G = {size}"
    if observed == 1.0:
        return Finding(what, number, f"{cure_of_silence(found, tells)}; no group taught anything", STOP, values)
    if observed <= MOST_SILENT:
        return Finding(what, number, values=values)
    better = smallest_group(p)
    if share_within(found) < SAME_FATE and HOPELESS < p < SOLVED:
        change = f"{ALIKE}: a prompt is solved always or never, and larger groups would change little"
    elif better is not None and better > size:
        change = f"num_generations: {better} leaves {percent(expected_silent(p, better))} silent at this pass rate"
    else:
        change = "other prompts (dynamic_sampling_rounds), another task_level, or a graded reward"
    return Finding(what, number, change, LOOK, values)


def batch_finding(found: Rollouts, tells: bool | None) -> Finding:
    """Return whether the rewards of different prompts differ, which one completion a prompt is compared by."""
    values = without_nan(found.rewards)
    what = "prompts with a signal"
    if teaches(found.rewards, found.cut, found.masks_cut):
        lowest = min(values)
        highest = max(values)
        return Finding(what, f"rewards from {lowest:.2g} to {highest:.2g} over {len(values)} prompts")
    change = f"{cure_of_silence(found, tells)}; every prompt got one reward"
    return Finding(what, f"0 of {len(found.rewards)}", change, STOP)


def cure_of_silence(found: Rollouts, tells: bool | None) -> str:
    """What to change where no group has a signal, by the first cause that the samples show."""
    p = rate(found.correct)
    paid = without_nan(found.rewards)
    if tells is False:
        return "mend the reward function: it pays right answers no more than wrong ones"
    if rate(found.cut) > MASKED:
        return "let completions end: most are cut off"
    if not paid:
        return "mend the reward functions: each returns None for every completion"
    if tells is None and not rewards_differ(paid):
        return f"see whether the reward can tell answers apart: every completion got {paid[0]:g}"
    if p >= SOLVED:
        return "take a harder task_level: every answer is right already"
    if p <= HOPELESS:
        return "take an easier task_level or a graded reward: no answer is right"
    if share_within(found) < SAME_FATE:
        return f"{ALIKE}: completions of a prompt are all right or all wrong"
    return "mend the reward function: right and wrong completions get one reward"


def verifier_finding(found: Rollouts) -> Finding:
    """Return whether anything but the reward says what is right; otherwise nobody sees that the reward is gamed."""
    what = "verifier beside the reward"
    values = {"verifier": found.source}
    if found.source != FULL_REWARD:
        return Finding(what, found.source, values=values)
    return Finding(what, "none", JUDGED, LOOK, values)


def needed_kl(found: Rollouts) -> float:
    """
    Return the KL to the base, in nats a token, that right answers need. Of all policies that answer a prompt rightly
    every time, the base conditioned on a right answer is nearest to the base, at −log p (the I-projection of Csiszár,
    1975); p is the base's chance of a right answer, here (right + ½) / (G + 1); without a right answer log 2(G + 1)
    counts, which is too little. The mean over prompts, by the mean length of right answers.
    """
    nats = []
    for group in found.groups(found.correct):
        chance = (sum(group) + 0.5) / (found.group_size + 1)
        nats.append(-math.log(chance))
    right = [length for length, verdict in zip(found.lengths, found.correct, strict=True) if verdict]
    return mean(nats) / mean(right or found.lengths)


def needed_kl_findings(found: Rollouts) -> list[Finding]:
    """Return the KL that right answers need; a number only where a verifier says which are right."""
    if found.source == FULL_REWARD:
        return [Finding(NEEDED_KL, UNSEEN)]
    needed = needed_kl(found)
    return [Finding(NEEDED_KL, f"{needed:.2g} nats a token", values={"kl": needed})]


def disagreement_findings(found: Rollouts) -> list[Finding]:
    """Groups in which a wrong completion got as much reward as a right one; a number only where a verifier tells."""
    if found.source == FULL_REWARD:
        return [Finding(PAYS_WRONG, UNSEEN)]
    mixed = 0
    wrong = 0
    for verdicts, rewards in zip(found.groups(found.correct), found.groups(found.rewards), strict=True):
        right = without_nan(reward for reward, verdict in zip(rewards, verdicts, strict=True) if verdict)
        others = without_nan(reward for reward, verdict in zip(rewards, verdicts, strict=True) if not verdict)
        if right and others:
            mixed += 1
            wrong += min(right) <= max(others)
    if not mixed:
        return []
    keys = f"kl_target: {needed_kl(found):.2g} with beta: 0.3 to begin with"
    cure = f"the reward can be gamed: mend it, or {GAMED.format(keys)}"
    return [make_finding(PAYS_WRONG, f"{wrong} of {mixed}", wrong > 0, cure, wrong=wrong, mixed=mixed)]


def paid_findings(found: Rollouts) -> list[Finding]:
    """
    Return the share of right answers among those that get the highest reward: what learning to be paid leads to, as
    long as the policy chooses among its paid answers as the base does.
    """
    if found.source == FULL_REWARD or not rewards_differ(found.rewards):
        return []
    highest = max(without_nan(found.rewards))
    paid = [right for right, reward in zip(found.correct, found.rewards, strict=True) if reward >= highest - SAME]
    share = rate(paid)
    number = f"{percent(share)} of {len(paid)}"
    return [Finding("right among answers paid in full", number, values={"right_among_paid": share, "paid": len(paid)})]


def cut_finding(found: Rollouts, most: int | None, gold_length: int | None) -> Finding:
    """
    Completions that were cut, and which of two reasons it has: too little room, or no end token. Where all were cut,
    nothing is learned if `mask_truncated_completions` leaves them out of the loss.
    """
    cut = rate(found.cut)
    raised = f"raise max_completion_length={most}, or ask for shorter answers"
    if found.masks_cut:
        raised += ": mask_truncated_completions leaves cut completions out of the loss"
    change = raised
    if cut >= NEVER and most is not None and gold_length is not None and gold_length < most / 2:
        change = (
            f"the longest gold answer has {gold_length} tokens of {most}, so the end token may never come: look at "
            f"the tokenizer's eos_token, the model's eos_token_id and the chat template; or {raised}"
        )
    level = STOP if cut == 1.0 and found.masks_cut else LOOK
    values = {"cut": cut, "mean_length": mean(found.lengths), "limit": most}
    number = f"{percent(cut)} (mean length {values['mean_length']:.0f} of {most or 'any'})"
    return make_finding("completions cut off", number, cut > MOST_CUT, change, level, **values)


def unanswered_findings(found: Rollouts) -> list[Finding]:
    """Completions in which the verifier finds no answer, with two of them to look at."""
    if found.answered is None:
        return []
    share = 1 - rate(found.answered)
    examples = [text for text, has in zip(found.texts, found.answered, strict=True) if not has][:2]
    ends = " and ".join(repr(text[-EXAMPLE_LENGTH:]) for text in examples)
    change = f"ask for the form in the prompt, or mend the verifier: {ends}"
    what = "completions without an answer to verify"
    return [make_finding(what, percent(share), share > MOST_UNANSWERED, change, share=share, examples=examples)]
