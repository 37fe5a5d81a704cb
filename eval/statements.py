"""What the numbers say, in words made from the numbers, and what they cannot say."""

import math
import shlex

from eval.runs import Run
from eval.statistics import (
    MIN_PROMPTS,
    NO_INTERVAL_NOTE,
    Estimate,
    found_four_times_in_five,
    paired_bootstrap_difference,
    paired_bootstrap_ratio,
)
from eval.tables import (
    DIFFERENT_OBJECTIVE,
    REPETITION_KEYS,
    both_a_and_b,
    gain,
    interval_cell,
    per_prompt,
    repetitions,
    seed_count,
    share_cell,
)


# What defines an arm; in every other key the arms of a comparison should agree.
ARM_KEYS = {"beta", "beta_old", "beta_base", "base_anchor_every", "kl_estimator", "use_bias_correction_kl"}
ARM_PREFIXES = ("ref_", "optimizer_reset")


def passk_command(runs: list[Run]) -> str:
    """The command that evaluates these runs."""
    return "python -m eval.passk " + " ".join(f"--run {shlex.quote(str(run.path))}" for run in runs)


def max_new_tokens(run: Run) -> int | None:
    """Tokens after which a completion was cut: as evaluated, in older results the run's own, which was the default."""
    return run.passk.get("max_new_tokens") or run.config.get("max_completion_length")


def same_prompts(a: Run, b: Run) -> bool:
    """Whether two runs were evaluated on the same prompts in the same way, so that prompts can be paired."""
    if a.passk is None or b.passk is None:
        return False
    evaluated_alike = all(
        a.passk.get(key) == b.passk.get(key) for key in ("split", "prompts", "n", "temperature", "task", "level")
    )
    evaluated_alike = evaluated_alike and max_new_tokens(a) == max_new_tokens(b)
    if "prompt_ids" in a.passk and "prompt_ids" in b.passk:
        return evaluated_alike and a.passk["prompt_ids"] == b.passk["prompt_ids"]
    return evaluated_alike and all(
        (a.config.get(key) or None) == (b.config.get(key) or None) for key in ("task_options", "task_seed")
    )


def pairs(runs: list[Run], first: str, second: str) -> list[tuple[Run, Run]]:
    """Runs of two variants that belong together: those of one seed, or all combinations where no seed is shared."""
    combinations = [(a, b) for a in runs if a.variant == first for b in runs if b.variant == second]
    return [(a, b) for a, b in combinations if a.seed == b.seed] or combinations


def gain_statements(runs: list[Run]) -> list[str]:
    """What each run gained in held-out pass@1 over base, and whether that could be chance."""
    lines = []
    for run in runs:
        if run.passk is None:
            continue
        estimate = gain(run)
        if math.isnan(estimate.low):
            body = "too few prompts for an interval"
        else:
            body = f"the interval {'covers' if estimate.low <= 0 <= estimate.high else 'excludes'} 0"
        lines.append(
            f"`{run.name}` ({run.variant}) went from {per_prompt(run, 'base').mean():.3f} to "
            f"{per_prompt(run, 'trained').mean():.3f} in held-out pass@1, a gain of {_signed(estimate)}: {body}."
        )
    return lines


def share_statements(runs: list[Run]) -> list[str]:
    """B's held-out pass@1 as a share of A's, pair by pair; the first says that the two optimise different objectives."""
    lines = []
    for b, a in pairs(runs, "B", "A"):
        heading = f"`{b.name}` (B) against `{a.name}` (A), held-out pass@1: "
        if not same_prompts(a, b):
            body = _not_comparable(a, b)
        elif not any(a.passk["trained"]["correct"]):
            body = "A solved no prompt, so there is no share to give."
        else:
            share = paired_bootstrap_ratio(per_prompt(b, "trained"), per_prompt(a, "trained"))
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
        difference = paired_bootstrap_difference(per_prompt(control, "trained"), per_prompt(a, "trained"))
        if math.isnan(difference.low):
            body = "too few prompts for an interval."
        elif difference.low <= 0 <= difference.high:
            found = f"one of {found_four_times_in_five(difference):.3f} would be found four times in five"
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
        return [f"Not evaluated on held-out prompts: {names}."]
    return [f"Not evaluated on held-out prompts: {names}. Run `{passk_command(can_be)}`, then this report again."]


def caveats(runs: list[Run]) -> list[str]:
    """What the numbers cannot show: seeds, evaluation, differences between the runs beyond their variants."""
    lines = []
    groups = repetitions(runs)
    if all(seed_count(group) == 1 for group in groups):
        lines.append(
            "One training seed per arm: the intervals are over prompts only and say nothing of the variation between "
            "seeds, which may be larger than the differences shown."
        )
    else:
        counts = ", ".join(f"{seed_count(group)} ({group[0].variant})" for group in groups)
        lines.append(
            f"Training seeds per arm: {counts}. Intervals of single runs are over prompts only; those in the table "
            "over seeds are over seeds only, and wide, for the seeds are few."
        )
    settings = {
        f"{run.passk['split']} split, {run.passk['prompts']} prompts, {run.passk['n']} samples each, "
        f"{f'cut after {tokens} tokens, ' if (tokens := max_new_tokens(run)) else ''}"
        f"{'greedy decoding' if run.passk['temperature'] == 0 else 'temperature {:g}'.format(run.passk['temperature'])}"
        for run in runs
        if run.passk
    }
    if settings:
        lines.append(
            f"Held-out numbers: {'; '.join(sorted(settings))}. pass@k is the unbiased estimator of Chen et al. (2021), "
            "its intervals are 95 % percentile bootstraps over prompts. Training reward is on training prompts and is "
            "no held-out number."
        )
    if any(part["prompts"] < MIN_PROMPTS for run in runs if run.passk for part in _evaluations(run.passk)):
        lines.append(NO_INTERVAL_NOTE)
    if len(settings) > 1:
        lines.append("The runs were not all evaluated in the same way: compare held-out numbers only where it agrees.")
    if any(run.variant == "B" for run in runs):
        lines.append(
            "B's KL to the sampling policy overlaps with what the clipping of the ratio does: B's numbers do not tell "
            "the two apart."
        )
    steps = {int(run.metrics["step"].max()) for run in runs}
    if len(steps) > 1:
        lines.append(f"The runs differ in length, {min(steps)} to {max(steps)} steps; nothing is matched by steps.")
    lines += _config_differences(runs)
    lines += _execution_differences(runs)
    if len({repr(run.env.get("hardware")) for run in runs}) > 1:
        lines.append("The runs differ in `hardware` (see `env.json`): step times do not compare.")
    return lines


def comparison_statements(runs: list[Run]) -> list[str]:
    """Everything that is said of the runs, in the order of the report."""
    lines = gain_statements(runs) + share_statements(runs) + control_statements(runs) + missing_statements(runs)
    if both_a_and_b(runs) and not any(DIFFERENT_OBJECTIVE in line for line in lines):
        lines.append(DIFFERENT_OBJECTIVE)
    return lines


def _evaluations(passk: dict) -> list[dict]:
    return [passk, *(passk.get("by") or []), *(passk.get("others") or {}).values()]


def _signed(estimate: Estimate) -> str:
    return interval_cell(estimate, "+.3f")


def _not_comparable(a: Run, b: Run) -> str:
    if a.passk is None or b.passk is None:
        return "not compared, for not both were evaluated."
    return "not compared, for they were not evaluated on the same prompts in the same way."


def _execution_differences(runs: list[Run]) -> list[str]:
    """Ways of computing that differ though the arms could share them: the loss, and having a reference, define an arm."""
    lines = []
    for key in ("packing", "old_logps", "ref_compute"):
        recorded = [(run.env.get("execution") or {}).get(key) for run in runs]
        values = {value: None for value in recorded if value not in (None, "none")}
        if len(values) > 1:
            lines.append(
                f"The runs differ in `{key}` ({' and '.join(map(str, values))}; `execution` in `env.json`): step times "
                "compare these ways of computing too."
            )
    return lines


def _config_differences(runs: list[Run]) -> list[str]:
    expected = ARM_KEYS | REPETITION_KEYS
    keys = sorted({key for run in runs for key in run.config} - expected)
    differing = []
    for key in keys:
        if key.startswith(ARM_PREFIXES):
            continue
        values = {repr(run.config.get(key, "default")): None for run in runs}
        if len(values) > 1:
            differing.append(f"`{key}` ({', '.join(value.strip(chr(39)) for value in values)})")
    return [f"The runs differ beyond their variants, in {', '.join(differing)}."] if differing else []
