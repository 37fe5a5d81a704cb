"""What the numbers say, in words made from the numbers."""

import math

from eval.analysis.pairing import pairs, same_prompts
from eval.analysis.passk import gain, per_prompt
from eval.analysis.statistics import (
    Estimate,
    detectable_difference,
    paired_bootstrap_difference,
    paired_bootstrap_ratio,
)
from eval.pages.cells import POWER, interval_cell, share_cell
from eval.pages.document import Bullets, Section
from eval.pages.objective import objectives_differ
from eval.pages.reproduce import passk_command
from eval.run_folder.run import Run
from trl_prorl.run.started import evaluation_of
from trl_prorl.variants import DIFFERENT_OBJECTIVE


def gain_statements(runs: list[Run]) -> list[str]:
    """What each run gained in held-out pass@1 over base, and whether that could be chance."""
    lines = []
    for run in runs:
        if run.passk is None:
            continue
        estimate = gain(run.passk, 1)
        if math.isnan(estimate.low):
            body = "too few prompts for an interval"
        else:
            body = f"the interval {'covers' if estimate.low <= 0 <= estimate.high else 'excludes'} 0"
        lines.append(
            f"`{run.name}` ({run.variant}) went from {per_prompt(run.passk, 'base').mean():.3f} to "
            f"{per_prompt(run.passk, 'trained').mean():.3f} in held-out pass@1, a gain of {_signed(estimate)}: {body}."
        )
    return lines


def share_statements(runs: list[Run]) -> list[str]:
    """
    B's held-out pass@1 as a share of A's, pair by pair; the first says that the two optimise different objectives.
    """
    lines = []
    for b, a in pairs(runs, "B", "A"):
        heading = f"`{b.name}` (B) against `{a.name}` (A), held-out pass@1: "
        if not same_prompts(a, b):
            body = _not_comparable(a, b)
        elif not any(a.passk["trained"]["correct"]):
            body = "A solved no prompt, so there is no share to give."
        else:
            share = paired_bootstrap_ratio(per_prompt(b.passk, "trained"), per_prompt(a.passk, "trained"))
            of = "too few prompts for an interval" if math.isnan(share.low) else "over prompts only"
            body = f"B reaches {share_cell(share)} of A's, {of}."
        lines.append(f"{heading}{body}" if lines else f"{heading}{body} {DIFFERENT_OBJECTIVE}")
    return lines


def control_statements(runs: list[Run]) -> list[str]:
    """Control less A in held-out pass@1: what moving the reference changed, or how large a change would be found."""
    lines = []
    for control, a in pairs(runs, "control", "A"):
        heading = f"`{control.name}` (control) less `{a.name}` (A), held-out pass@1: "
        if not same_prompts(control, a):
            lines.append(heading + _not_comparable(control, a))
            continue
        difference = paired_bootstrap_difference(per_prompt(control.passk, "trained"), per_prompt(a.passk, "trained"))
        if math.isnan(difference.low):
            body = "too few prompts for an interval."
        elif difference.low <= 0 <= difference.high:
            found = f"detectable difference ({POWER}): {detectable_difference(difference):.3f}"
            alike = control.passk["trained"]["correct"] == a.passk["trained"]["correct"]
            body = f"no difference found; {'every prompt was solved equally often' if alike else found}."
        else:
            body = f"the {'control' if difference.value > 0 else 'A'} run is higher."
        lines.append(f"{heading}{_signed(difference)}: {body}")
    return lines


def missing_statements(runs: list[Run]) -> list[str]:
    """Which runs lack a held-out evaluation, and the command that makes it."""
    missing = [run for run in runs if run.passk is None]
    if not missing:
        return []
    names = ", ".join(f"`{run.name}`" for run in missing)
    can_be = [run for run in missing if run.can_be_evaluated]
    if not can_be:
        how = evaluation_of(missing[0].config, missing[0].env, missing[0].path)
        return [f"Not evaluated on held-out prompts: {names}. {how} does it."]
    return [f"Not evaluated on held-out prompts: {names}. Run `{passk_command(can_be)}`, then this report again."]


def comparison_statements(runs: list[Run]) -> list[str]:
    """Everything that is said of the runs, in the order of the report."""
    lines = gain_statements(runs) + share_statements(runs) + control_statements(runs) + missing_statements(runs)
    if objectives_differ(runs) and not any(DIFFERENT_OBJECTIVE in line for line in lines):
        lines.append(DIFFERENT_OBJECTIVE)
    return lines


def _signed(estimate: Estimate) -> str:
    return interval_cell(estimate, "+.3f")


def _not_comparable(a: Run, b: Run) -> str:
    if a.passk is None or b.passk is None:
        return "not compared, for not both were evaluated."
    return "not compared, for they were not evaluated on the same prompts in the same way."


def sections(runs: list[Run]) -> list[Section]:
    return [Section("What the numbers say", [Bullets(comparison_statements(runs) or ["Nothing to compare yet."])])]
