"""
Two runs on the same held-out prompts: paired differences, and how large a difference would be found.

    python -m eval.compare --runs runs/demo/A runs/demo/C --k 1 8
"""

import argparse
import math
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rich.console import Console

from eval.command import command
from eval.runs import InputError, Run, load_run, require_passk
from eval.statements import max_new_tokens, same_prompts
from eval.statistics import (
    NO_INTERVAL_NOTE,
    Estimate,
    McNemar,
    bootstrap_interval,
    found_four_times_in_five,
    mcnemar,
    paired_bootstrap_difference,
)
from eval.tables import DIFFERENT_OBJECTIVE, Table, cell, interval_cell, per_prompt
from trl_prorl.shown import visible


# How the completions were drawn, and the option that says so: where one differs, the runs differ in more than the model.
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
        paired_on (`str`): What right means there: greedy decoding, or any of n samples.
        notes (`list[str]`): What keeps the two from being alike beyond what they are compared for.
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
    def visible(self) -> float:
        """The true difference that would be found four times in five."""
        return found_four_times_in_five(self.difference)

    @property
    def differ(self) -> bool:
        """Whether the interval of the difference excludes 0."""
        return self.difference.low > 0 or self.difference.high < 0


def check_comparable(a: Run, b: Run) -> None:
    """
    Refuse two runs whose prompts cannot be paired.

    Where both were evaluated with `prompt_ids` those decide, where neither was the settings of the evaluation do.

    Raises:
        InputError: With the reason and the cure.
    """
    first, second = require_passk(a), require_passk(b)
    cure = f"evaluate them alike: `python -m eval.passk --run {a.path} --run {b.path}`"
    for key, option in SAMPLING.items():
        values = [max_new_tokens(run) if key == "max_new_tokens" else run.passk.get(key) for run in (a, b)]
        if values[0] != values[1]:
            # Said outright, for the default is each run's own.
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
    notes = []
    if (a.variant == "B") != (b.variant == "B"):
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
    sides = [per_prompt(run, "trained", k) for run in (a, b)]
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


def comparison_table(comparisons: list[Comparison]) -> Table:
    """A row per k."""
    first, second = comparisons[0].first, comparisons[0].second
    rows = [
        [
            str(each.k),
            interval_cell(each.first_value, ".3f"),
            interval_cell(each.second_value, ".3f"),
            interval_cell(each.difference, "+.3f"),
            cell(each.visible, ".3f"),
        ]
        for each in comparisons
    ]
    header = ["k", first, second, "difference", "found 4 times in 5"]
    notes = [
        "Trained models, [95 % bootstrap over prompts], differences paired by prompt. A true difference of the last "
        "column would be found four times in five, a smaller one less often."
    ]
    return Table(f"pass@k, {first} less {second}", header, rows, notes)


def comparison_statements(comparisons: list[Comparison]) -> list[str]:
    """What the differences say, the counts behind them once, and what the pair leaves open."""
    lines = []
    for each in comparisons:
        if each.differ:
            body = f"`{each.first if each.difference.value > 0 else each.second}` is higher."
        elif each.better == each.worse == 0:
            body = "no difference at any prompt."
        elif math.isnan(each.difference.low):
            body = NO_INTERVAL_NOTE
        else:
            body = f"no difference found; one of {each.visible:.3f} would be found four times in five, a smaller one less often."
        difference = interval_cell(each.difference, "+.3f")
        lines.append(f"pass@{each.k}: `{each.first}` less `{each.second}` {difference}: {body}")
    each = comparisons[0]
    lines.append(
        f"Of {each.prompts} prompts `{each.first}` is right more often at {each.better}, less often at {each.worse}, "
        f"equally often at {each.equal} ({each.n} samples each)."
    )
    lines.append(
        f"Exact McNemar on {each.paired_on}: only `{each.first}` right at {each.paired.first_only}, only "
        f"`{each.second}` at {each.paired.second_only}, p = {each.paired.p_value:.2g}."
    )
    return lines + each.notes


def common_sizes(a: Run, b: Run) -> list[int]:
    """Every k that both runs were evaluated at; 1 always."""
    return sorted({1} | (set(require_passk(a)["k"]) & set(require_passk(b)["k"])))


@command
def main(argv=None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        prog="python -m eval.compare", description="Two runs on the same prompts, paired."
    )
    parser.add_argument("--runs", nargs=2, required=True, type=Path, metavar=("A", "B"), help="two run folders")
    parser.add_argument("--k", type=int, nargs="+", help="sizes of the draw (default: those of both evaluations)")
    args = parser.parse_args(argv)
    a, b = (load_run(folder) for folder in args.runs)
    if a.name == b.name:
        a, b = (load_run(folder, name=str(folder)) for folder in args.runs)
    comparisons = [compare(a, b, k) for k in args.k or common_sizes(a, b)]
    console = Console()
    console.print(comparison_table(comparisons).to_rich())
    for line in comparison_statements(comparisons):
        console.print(f"- {visible(line)}", markup=False, highlight=False)


if __name__ == "__main__":
    sys.exit(main())
