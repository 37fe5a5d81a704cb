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
from trl_prorl.eval.analysis.sampled_scores import task_and_level
from trl_prorl.eval.analysis.statistics import MIN_PROMPTS as MIN_FOR_INTERVAL
from trl_prorl.eval.analysis.statistics import prompt_interval
from trl_prorl.eval.pages.table import percent
from trl_prorl.eval.readiness.data import judge, without_nan
from trl_prorl.eval.readiness.finding import LOOK, NOT_MEASURED, STOP, Finding, make_finding
from trl_prorl.eval.readiness.samples_of import sample_rows
from trl_prorl.evaluation import find_verifier
from trl_prorl.text import last_text


FULL_REWARD = "full reward of 1: no verifier"
SAME = 1e-6  # rewards closer than this are equal: their mean is rounded
MAX_ZERO_SIGNAL = 0.5  # share of groups without a gradient above which a change is suggested
TARGET_ZERO_SIGNAL = 0.3  # share that the suggested change aims at
MAX_TRUNCATED = 0.1
MAX_UNANSWERED = 0.2
UNRELIABLE_TRUNCATED = 0.5  # above this share of truncated completions, the accuracy is unreliable
MAX_ACCURACY = 0.9
MIN_ACCURACY = 0.02
GROUPS = (4, 8, 16, 32, 64)
MIN_PROMPTS = 4  # fewer prompts of a task or level are too few for a conclusion about it
# If less than this share of the variance of verdicts is within prompts, a prompt is either always or never solved.
MIN_WITHIN_PROMPT_VARIANCE = 0.2
LIMITS = ("beta", "beta_base", "kl_target", "guard_gap")  # keys that limit or report reward hacking
MAX_TARGET = 2.0  # a kl_target above this multiple of the suggested one is too large
REWARDS_WRONG = "groups that pay a wrong answer like a right one"
NEEDED_KL = "KL to the base that right answers need"
NO_VERIFIER = f"{NOT_MEASURED}: no verifier"
JUDGED = (
    "reward hacking cannot be detected: pass verify=is_correct, a function of a completion and its row. If "
    "only a judge, a rubric or a reward model can score answers, keep a KL to the starting model (beta with "
    "kl_target), read samples, and evaluate with a different judge"
)
VARY = "raise temperature, or use prompts of medium difficulty (task_level, dynamic_sampling_rounds)"
NO_END_TOKEN = 0.9  # from this share of truncated completions on, the end token may be missing
EXAMPLE_LENGTH = 60  # characters


@dataclass
class Rollouts:
    """
    Samples of P prompts with G completions each, prompt by prompt; lists of completions have length P·G.

    Attributes:
        args ([`ProRLConfig`]): The trainer's.
        group_size (`int`): G.
        source (`str`): The judge of correct completions, in words.
        answered (`list[bool]`, *optional*): Whether a verifier finds an answer at all; `None` if that is not known.
        rewards (`list[float]`): Weighted sum of all reward functions; NaN if none applies.
        for_answers (`list[float]`): The same without length rewards.
        compared (`list[float]`): What TRL's `multi_objective_aggregation` compares within a group.
        correct (`list[bool]`): Verdicts.
        truncated (`list[bool]`): Whether a completion was truncated at `max_completion_length`.
        lengths (`list[int]`): Sampled tokens.
        texts (`list[str]`): The completions.
        parts (`list[tuple]`): Task and level of each prompt, shape (P,).
        batch (`dict[str, torch.Tensor]`): The first generation batch, to score it again.
    """

    args: ProRLConfig
    group_size: int
    source: str
    answered: list[bool] | None
    rewards: list[float] = field(default_factory=list)
    for_answers: list[float] = field(default_factory=list)
    compared: list[float] = field(default_factory=list)
    correct: list[bool] = field(default_factory=list)
    truncated: list[bool] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    parts: list[tuple] = field(default_factory=list)
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
    task. Without them, a completion is correct if the first reward function gives it the full reward of 1.
    """
    size = trainer.num_generations
    together = max(1, trainer.args.generation_batch_size // size)
    has_verifier = task is not None or find_verifier(trainer.reward_funcs, verify) is not None
    answered = None if task is None else []
    found = Rollouts(trainer.args, size, "verify" if has_verifier else FULL_REWARD, answered)
    for start in range(0, len(rows), together):
        batch = rows[start : start + together]
        sampled = sample_rows(trainer, batch, verify)
        found.batch = found.batch or sampled.batch
        row_of_each = [row for row in batch for _ in range(size)]
        found.rewards += sampled.total.tolist()
        found.for_answers += sampled.for_answers.tolist()
        found.compared += sampled.compared.tolist()
        found.truncated += sampled.truncated
        found.lengths += sampled.lengths
        texts = [text if isinstance(text, str) else last_text(text) for text in sampled.completions]
        found.texts += texts
        found.parts += map(task_and_level, batch)
        if sampled.correct:
            found.correct += sampled.correct
        elif task is not None:
            found.correct += judge(task, texts, row_of_each)
        else:
            found.correct += (sampled.rewards[:, 0] >= 1.0).tolist()
        if task is not None:
            found.answered += [task.has_answer(text, row) for text, row in zip(texts, row_of_each, strict=True)]
        if bar is not None:
            bar.update(len(row_of_each))
    return found


def expected_zero_signal(p: float, size: int) -> float:
    """
    Return the share of groups of `size` completions that are all correct or all wrong, if each is correct with
    probability p.
    """
    return p**size + (1 - p) ** size


def rewards_differ(rewards: list[float]) -> bool:
    """Return whether rewards of a group differ."""
    values = without_nan(rewards)
    return bool(values) and max(values) - min(values) > SAME


def has_gradient(found: Rollouts, rewards: list[float], truncated: list[bool]) -> bool:
    """Return whether a completion of the group is in the loss and has a reward other than the group's mean."""
    if not found.args.mask_truncated_completions or not rewards_differ(rewards):
        return rewards_differ(rewards)
    average = fmean(without_nan(rewards))
    return any(
        abs(reward - average) > SAME
        for reward, was_truncated in zip(rewards, truncated, strict=True)
        if not was_truncated
    )


def share_within(found: Rollouts) -> float:
    """
    Return the share of the variance of verdicts, p (1 − p), that is within prompts, unbiased: 1 if prompts are
    equally difficult, 0 if the completions of each prompt are all correct or all wrong.
    """
    p = fmean(found.correct)
    size = found.group_size
    if not 0 < p < 1 or size == 1:
        return 1.0
    counts = map(sum, found.groups(found.correct))
    within = fmean(correct * (size - correct) / (size * (size - 1)) for correct in counts)
    return within / (p * (1 - p))


def signal_findings(found: Rollouts, gold_length: int | None, tells: bool | None) -> list[Finding]:
    """
    Return the findings about samples of the starting model. `gold_length` is the length of the longest reference
    answer in tokens; `tells` is whether correct answers get more reward than wrong ones, `None` if that is not known.
    """
    return [
        *accuracy_findings(found, tells),
        group_finding(found, tells),
        verifier_finding(found),
        *needed_kl_findings(found),
        *disagreement_findings(found),
        *full_reward_findings(found),
        truncated_finding(found, gold_length),
        *unanswered_findings(found),
    ]


def accuracy_findings(found: Rollouts, tells: bool | None) -> list[Finding]:
    """Return the accuracy with its interval over prompts, for all prompts and for each task and level."""
    rates = [fmean(group) for group in found.groups(found.correct)]
    truncated = fmean(found.truncated)
    by_part: dict[tuple, list[float]] = {}
    for part, value in zip(found.parts, rates, strict=True):
        by_part.setdefault(part, []).append(value)
    findings = [accuracy_finding(f"base pass rate ({found.source})", rates, tells, truncated)]
    if len(by_part) > 1:
        for (task, level), values in by_part.items():
            names = [task, None if level is None else f"level {level}"]
            name = ", ".join(filter(None, names)) or "the other prompts"
            findings.append(accuracy_finding(f"base pass rate of {name}", values, tells, truncated))
    return findings


def accuracy_finding(what: str, rates: list[float], tells: bool | None, truncated: float) -> Finding:
    """Return the accuracy on some prompts, from that of each; `tells` and `truncated` are other causes of a 0."""
    p = fmean(rates)
    low, high = prompt_interval(rates)
    change = ""
    if len(rates) < MIN_PROMPTS and not MIN_ACCURACY < p < MAX_ACCURACY:
        change = "too few prompts for a conclusion: raise --prompts"
    elif p >= MAX_ACCURACY:
        doubt = ", unless the reward accepts anything" if tells is None else ""
        change = f"nearly every prompt is solved already{doubt}: use a harder task_level or other data"
    elif p <= MIN_ACCURACY and tells is False:
        change = "unreliable, because the reward does not separate correct from wrong answers: fix the reward first"
    elif p <= MIN_ACCURACY and truncated > UNRELIABLE_TRUNCATED:
        change = "unreliable, because most completions are truncated: raise max_completion_length first"
    elif p <= MIN_ACCURACY:
        works = " (the reward works on reference answers)" if tells else ""
        doubt = ", unless the reward is wrong" if tells is None else ""
        change = (
            f"the starting model solves almost nothing{works}{doubt}: use an easier task_level, a graded reward, or "
            "supervised fine-tuning first"
        )
    values = {"pass_rate": p, "interval": [low, high], "prompts": len(rates)}
    prompts = "1 prompt" if len(rates) == 1 else f"{len(rates)} prompts"
    number = f"{p:.2f} [{low:.2f}, {high:.2f}], {prompts}"
    if math.isnan(low):
        number = f"{p:.2f}, {prompts} (too few for an interval)"
    return Finding(what, number, change, LOOK if change else "fine", values)


def group_finding(found: Rollouts, tells: bool | None) -> Finding:
    """Return the share of groups that give no gradient: observed, and expected from the accuracy."""
    if found.group_size == 1 or getattr(found.args, "advantage_estimator", None) in UNGROUPED:
        return batch_finding(found, tells)
    groups = found.groups(found.compared)
    truncated = found.groups(found.truncated)
    with_gradient = sum(has_gradient(found, *group) for group in zip(groups, truncated, strict=True))
    p = fmean(found.correct)
    size = found.group_size
    observed = 1 - with_gradient / len(groups)
    expected = expected_zero_signal(p, size)
    values = {"observed": observed, "expected": expected, "num_generations": size, "pass_rate": p}
    what = "groups without signal, expected"
    number = f"{len(groups) - with_gradient} of {len(groups)} (expected {percent(expected)})"
    if observed == 1.0:
        return Finding(what, number, cure_of_zero_signal(found, tells), STOP, values)
    if observed <= MAX_ZERO_SIGNAL:
        return Finding(what, number, values=values)
    better = next((group for group in GROUPS if expected_zero_signal(p, group) <= TARGET_ZERO_SIGNAL), None)
    if share_within(found) < MIN_WITHIN_PROMPT_VARIANCE and MIN_ACCURACY < p < MAX_ACCURACY:
        change = f"a prompt is solved always or never, so larger groups change little: {VARY}"
    elif better is not None and better > size:
        share = percent(expected_zero_signal(p, better))
        change = f"most groups are wasted: set num_generations: {better}, which leaves {share} without a gradient"
    else:
        change = (
            "most groups are wasted: use other prompts (dynamic_sampling_rounds), another task_level, or a graded "
            "reward"
        )
    return Finding(what, number, change, LOOK, values)


def batch_finding(found: Rollouts, tells: bool | None) -> Finding:
    """Return whether rewards differ between prompts, if completions are not compared within a group."""
    values = without_nan(found.rewards)
    compared = "prompts" if found.group_size == 1 else "completions"
    what = f"{compared} with a signal"
    if has_gradient(found, found.rewards, found.truncated):
        lowest = min(values)
        highest = max(values)
        return Finding(what, f"rewards from {lowest:.2g} to {highest:.2g} over {len(values)} {compared}")
    return Finding(what, f"0 of {len(found.rewards)}", cure_of_zero_signal(found, tells), STOP)


def cure_of_zero_signal(found: Rollouts, tells: bool | None) -> str:
    """Return why no group gives a gradient, and the cure, by the first cause in the samples."""
    p = fmean(found.correct)
    rewards = without_nan(found.rewards)
    if tells is False:
        return "correct answers get no more reward than wrong ones: fix the reward function"
    if fmean(found.truncated) > UNRELIABLE_TRUNCATED:
        return "most completions are truncated: raise max_completion_length"
    if not rewards:
        return "every reward function returns None for every completion: fix the reward functions"
    if tells is None and not rewards_differ(rewards):
        return f"every completion got the reward {rewards[0]:g}: check that the reward can differ between answers"
    if p >= MAX_ACCURACY:
        return "nearly every answer is correct already: use a harder task_level"
    if p <= MIN_ACCURACY:
        return "almost no answer is correct: use an easier task_level or a graded reward"
    if share_within(found) < MIN_WITHIN_PROMPT_VARIANCE:
        return f"the completions of a prompt are all correct or all wrong: {VARY}"
    return "correct and wrong completions get the same reward: fix the reward function"


def verifier_finding(found: Rollouts) -> Finding:
    """Return whether a verifier, apart from the reward, finds the correct answers; it shows reward hacking."""
    what = "verifier beside the reward"
    values = {"verifier": found.source}
    if found.source != FULL_REWARD:
        return Finding(what, "yes", values=values)
    return Finding(what, "none", JUDGED, LOOK, values)


def needed_kl(found: Rollouts) -> float:
    """
    Return the KL to the starting model, in nats per token, that correct answers need. Among all policies that always
    answer a prompt correctly, the closest to the starting model is the starting model conditioned on a correct answer,
    at −log p (the I-projection of Csiszár, 1975). Here p, the starting model's chance of a correct answer, is
    (correct + ½) / (G + 1). A prompt without a correct answer counts as log 2(G + 1), which is too low. The mean over
    prompts is divided by the mean length of correct answers.
    """
    nats = []
    for group in found.groups(found.correct):
        chance = (sum(group) + 0.5) / (found.group_size + 1)
        nats.append(-math.log(chance))
    correct = [length for length, verdict in zip(found.lengths, found.correct, strict=True) if verdict]
    return fmean(nats) / fmean(correct or found.lengths)


def needed_kl_findings(found: Rollouts) -> list[Finding]:
    """Return the KL that correct answers need; a number only if there is a verifier."""
    if found.source == FULL_REWARD:
        return [Finding(NEEDED_KL, NO_VERIFIER)]
    needed = needed_kl(found)
    return [Finding(NEEDED_KL, f"{needed:.2g} nats per token{few_prompts(found)}", values={"kl": needed})]


def disagreement_findings(found: Rollouts) -> list[Finding]:
    """Return how many groups give a wrong completion as much reward as a correct one, if there is a verifier."""
    if found.source == FULL_REWARD:
        return [Finding(REWARDS_WRONG, NO_VERIFIER)]
    mixed = 0
    wrong = 0
    for verdicts, rewards in zip(found.groups(found.correct), found.groups(found.rewards), strict=True):
        of_correct = without_nan(reward for reward, verdict in zip(rewards, verdicts, strict=True) if verdict)
        of_wrong = without_nan(reward for reward, verdict in zip(rewards, verdicts, strict=True) if not verdict)
        if of_correct and of_wrong:
            mixed += 1
            wrong += min(of_correct) <= max(of_wrong)
    if not mixed:
        return []
    values = {"wrong": wrong, "mixed": mixed}
    number = f"{wrong} of {mixed}"
    if not wrong:
        return [Finding(REWARDS_WRONG, number, values=values)]
    missing = missing_limits(found)
    if missing:
        change = f"the reward can be hacked: fix it, or set {' and '.join(missing)}"
    else:
        limits = ", ".join(f"{key}: {value:g}" for key, value in limits_set(found.args).items())
        change = (
            f"the reward can be hacked: the recipe already limits this ({limits}). "
            f"Suggested kl_target: {needed_kl(found):.2g}"
        )
    if "kl_target" in change:
        change += few_prompts(found)
    return [Finding(REWARDS_WRONG, number, change, LOOK, values | {"limited": not missing})]


def few_prompts(found: Rollouts) -> str:
    """Return a note about a number from few prompts; empty if there are enough."""
    count = len(found.parts)
    return "" if count >= MIN_FOR_INTERVAL else f", from {count} prompts only: raise --prompts"


def limits_set(args: ProRLConfig) -> dict[str, float]:
    """Return those of the keys [`LIMITS`] that are set."""
    return {key: getattr(args, key) for key in LIMITS if getattr(args, key, None)}


def missing_limits(found: Rollouts) -> list[str]:
    """Return the settings against reward hacking; empty if the configuration already limits it."""
    limits = limits_set(found.args)
    adapted = next((key for key in ANCHOR_KEYS if getattr(found.args, key, None)), None)
    target = f"{needed_kl(found):.2g}"
    if not hasattr(found.args, "kl_target"):  # of another trainer
        return [] if limits else [f"beta: 0.3 (ProRLTrainer adapts it to kl_target: {target})"]
    missing = []
    if "kl_target" not in limits or adapted in (None, "beta_old"):  # π_old follows the policy
        missing.append(f"kl_target: {target} (beta: 0.3 to start)")
    elif limits["kl_target"] > MAX_TARGET * needed_kl(found):
        missing.append(f"kl_target: {target} (now {limits['kl_target']:g})")
    if found.args.resets and adapted != "beta_base":
        missing.append("no reset trigger, because a reset moves the reference")
    return missing


def full_reward_findings(found: Rollouts) -> list[Finding]:
    """
    Return the share of correct answers among those with the highest reward of their task, without length rewards: the
    accuracy that training leads to, as long as the policy chooses among its answers with full reward as the starting
    model does. A task whose rewards are all equal does not count.
    """
    if found.source == FULL_REWARD:
        return []
    tasks = [task for task, _ in found.parts for _ in range(found.group_size)]
    best = []
    for name in dict.fromkeys(tasks):
        of_task = [place for place, task in enumerate(tasks) if task == name]
        rewards = [found.for_answers[place] for place in of_task]
        if rewards_differ(rewards):
            highest = max(without_nan(rewards))
            best += [found.correct[place] for place in of_task if found.for_answers[place] >= highest - SAME]
    if not best:
        return []
    share = fmean(best)
    number = f"{percent(share)} of {len(best)}"
    return [Finding("right among answers paid in full", number, values={"right_among_paid": share, "paid": len(best)})]


def truncated_finding(found: Rollouts, gold_length: int | None) -> Finding:
    """
    Return the share of truncated completions, with one of two causes: too little room, or no end token. If all are
    truncated, the run cannot learn with `mask_truncated_completions`, which leaves them out of the loss.
    """
    truncated = fmean(found.truncated)
    most = found.args.max_completion_length
    cause = "answers do not fit"
    if found.args.mask_truncated_completions:
        cause = "mask_truncated_completions leaves truncated completions out of the loss"
    raised = f"raise max_completion_length (now {most}), or ask for shorter answers"
    change = f"{cause}: {raised}"
    if truncated >= NO_END_TOKEN and most is not None and gold_length is not None and gold_length < most / 2:
        change = (
            f"the end token may be missing, because the longest reference answer has {gold_length} tokens of {most}: "
            "check the tokenizer's eos_token, the model's eos_token_id and the chat template. "
            f"Otherwise {raised}"
        )
    level = STOP if truncated == 1.0 and found.args.mask_truncated_completions else LOOK
    length = fmean(found.lengths)
    values = {"cut": truncated, "mean_length": length, "limit": most}
    number = f"{percent(truncated)} (mean length {length:.0f} of {most or 'any'})"
    return make_finding("completions cut off", number, truncated > MAX_TRUNCATED, change, level, **values)


def unanswered_findings(found: Rollouts) -> list[Finding]:
    """Return the share of completions in which the verifier finds no answer, with two examples."""
    if found.answered is None:
        return []
    share = 1 - fmean(found.answered)
    examples = [text for text, has in zip(found.texts, found.answered, strict=True) if not has][:2]
    ends = " and ".join(repr(text[-EXAMPLE_LENGTH:]) for text in examples)
    change = f"the verifier finds no answer: ask for the format in the prompt, or fix the verifier (seen: {ends})"
    what = "completions without an answer to verify"
    return [make_finding(what, percent(share), share > MAX_UNANSWERED, change, share=share, examples=examples)]
