"""Two runs on the same held-out prompts: paired differences, and how large a difference would be found."""

from dataclasses import dataclass, field
from itertools import product

import numpy as np

from trl_prorl.errors import InputError
from trl_prorl.eval.analysis.pairing import ground, max_new_tokens, same_prompts
from trl_prorl.eval.analysis.passk import per_prompt
from trl_prorl.eval.analysis.statistics import (
    Estimate,
    McNemar,
    bootstrap_interval,
    detectable_difference,
    mcnemar,
    paired_bootstrap_difference,
)
from trl_prorl.eval.run_folder.run import Run, require_passk
from trl_prorl.variants import DIFFERENT_OBJECTIVE, optimises_another_objective


# How the completions were drawn, and the option that says so: where one differs, the runs differ in more than the
# model.
SAMPLING = {"n": "--n", "temperature": "--temperature", "max_new_tokens": "--max-new-tokens"}


@dataclass(frozen=True)
class Comparison:
    """
    Two trained models, prompt by prompt.

    Attributes:
        first, second (`str`): Names of the runs.
        k (`int`): Size of the draw.
        prompts, n (`int`): Prompts, and samples of each.
        first_value, second_value ([`Estimate`]): pass@k of each with its interval over prompts.
        difference ([`Estimate`]): First less second, paired bootstrap over prompts.
        better, worse, equal (`int`): Prompts with more, fewer, equally many correct samples in the first run.
        paired (`McNemar`): Exact test of right or wrong, first against second.
        paired_on (`str`): The meaning of right there: greedy decoding, or any of n samples.
        notes (`list[str]`): Other differences between the two than the one they are compared for.
    """

    first: str
    second: str
    k: int
    prompts: int
    n: int
    first_value: Estimate
    second_value: Estimate
    difference: Estimate
    better: int
    worse: int
    equal: int
    paired: McNemar
    paired_on: str
    notes: list[str] = field(default_factory=list)

    @property
    def detectable(self) -> float:
        """The true difference that is found with 80 % power."""
        return detectable_difference(self.difference)

    @property
    def differ(self) -> bool:
        """Whether the interval of the difference excludes 0."""
        return self.difference.low > 0 or self.difference.high < 0


def check_comparable(a: Run, b: Run) -> None:
    """
    Refuse two runs whose prompts cannot be paired.

    The `prompt_ids` decide where both evaluations have them, the settings of the evaluations where neither has.

    Raises:
        InputError: With the reason and the cure.
    """
    first, second = require_passk(a), require_passk(b)
    cure = f"evaluate them alike: `trl-prorl passk --run {a.path} --run {b.path}`"
    for key, option in SAMPLING.items():
        values = [max_new_tokens(run) if key == "max_new_tokens" else run.passk.get(key) for run in (a, b)]
        if values[0] != values[1]:
            # Said outright, because the default is each run's own.
            asked = f" {option} {max(values)}" if None not in values else ""
            raise InputError(
                f"'{a.name}' has {key} = {values[0]} in passk.json, '{b.name}' {values[1]}; {cure[:-1]}{asked}`"
            )
    with_ids = [run for run, passk in ((a, first), (b, second)) if passk.get("prompt_ids")]
    if len(with_ids) == 1:
        raise InputError(f"only '{with_ids[0].name}' has prompt_ids in passk.json, the other is older; {cure}")
    if with_ids and first["prompt_ids"] != second["prompt_ids"]:
        common = len(set(first["prompt_ids"]) & set(second["prompt_ids"]))
        order = " in the same order" if common == len(first["prompt_ids"]) == len(second["prompt_ids"]) else ""
        raise InputError(
            f"'{a.name}' ({len(first['prompt_ids'])} prompts) and '{b.name}' ({len(second['prompt_ids'])}) were not "
            f"evaluated on the same prompts{order} ({common} in common); {cure}"
        )
    if not with_ids and not same_prompts(a, b):
        raise InputError(
            f"'{a.name}' and '{b.name}' were not evaluated on the same prompts in the same way (split, prompts, task, "
            f"level, task_options and task_seed decide); {cure}"
        )


def _right_or_wrong(a: Run, b: Run) -> tuple[list, list, str]:
    greedy = [(run.passk.get("greedy") or {}).get("trained", {}).get("correct") for run in (a, b)]
    if all(greedy):
        return greedy[0], greedy[1], "greedy decoding"
    n = a.passk["n"]
    solved = [np.array(run.passk["trained"]["correct"]) > 0 for run in (a, b)]
    return solved[0], solved[1], "greedy decoding" if a.passk["temperature"] == 0 else f"any of {n} samples right"


def _notes(a: Run, b: Run) -> list[str]:
    notes = [f"`{run.name}`: {run.variant} {run.without_reset}." for run in (a, b) if run.without_reset]
    if optimises_another_objective(a.variant) != optimises_another_objective(b.variant):
        notes.append(DIFFERENT_OBJECTIVE)
    started = [(run.config.get("model_name_or_path"), run.config.get("model_revision") or "main") for run in (a, b)]
    if started[0] != started[1]:
        notes.append(f"The runs started from different models: {started[0][0]} and {started[1][0]}.")
    steps = [int(run.passk.get("step") or run.metrics["step"].max()) for run in (a, b)]
    if steps[0] != steps[1]:
        notes.append(f"The runs were trained for {steps[0]} and {steps[1]} steps; nothing is matched by steps.")
    notes.append(
        "One run each: the intervals are over prompts and say nothing of the variation between training seeds."
    )
    return notes


def compare(a: Run, b: Run, k: int) -> Comparison:
    """
    The trained models of two runs, paired by prompt.

    Args:
        a, b ([`Run`]): Two runs evaluated on the same prompts, with as many samples, as long, at the same temperature.
        k (`int`): Size of the draw, from 1 to n.

    Returns:
        [`Comparison`]: Of `a` less `b`.

    Raises:
        InputError: If the runs cannot be paired or `k` exceeds the samples.
    """
    check_comparable(a, b)
    n = a.passk["n"]
    if not 1 <= k <= n:
        raise InputError(f"--k {k} must lie between 1 and the {n} samples of passk.json")
    sides = [per_prompt(run.passk, "trained", k) for run in (a, b)]
    more = np.subtract(*(np.array(run.passk["trained"]["correct"]) for run in (a, b)))
    right, other_right, paired_on = _right_or_wrong(a, b)
    return Comparison(
        first=a.name,
        second=b.name,
        k=k,
        prompts=len(more),
        n=n,
        first_value=Estimate(float(sides[0].mean()), *bootstrap_interval(sides[0])),
        second_value=Estimate(float(sides[1].mean()), *bootstrap_interval(sides[1])),
        difference=paired_bootstrap_difference(*sides),
        better=int((more > 0).sum()),
        worse=int((more < 0).sum()),
        equal=int((more == 0).sum()),
        paired=mcnemar(right, other_right),
        paired_on=paired_on,
        notes=_notes(a, b),
    )


def common_sizes(a: Run, b: Run) -> list[int]:
    """Every k that both runs were evaluated at; 1 always."""
    return sorted({1} | (set(require_passk(a)["k"]) & set(require_passk(b)["k"])))


COMPARED_WITH = ("control", "A")


def arm_pairs(runs: list[Run]) -> list[tuple[Run, Run]]:
    """Evaluated runs of one seed and one ground, each against the control and against A, each pair once."""
    evaluated = [run for run in runs if run.passk]
    chosen = {}
    for reference, (first, second) in product(COMPARED_WITH, product(evaluated, evaluated)):
        if second.variant != reference or first.variant == reference or first.repetition != second.repetition:
            continue
        if ground(first) != ground(second):
            continue
        if frozenset((first.name, second.name)) not in chosen:
            chosen[frozenset((first.name, second.name))] = first, second
    return list(chosen.values())
