"""The variants of a report: the comparison, and its limits."""

from collections.abc import Callable
from typing import Any

from trl_prorl.anchors import ANCHOR_KEYS
from trl_prorl.eval.analysis.configurations import REPETITION_KEYS
from trl_prorl.eval.analysis.frame import Frame
from trl_prorl.eval.analysis.statistics import METHOD, MIN_PROMPTS, NO_INTERVAL_NOTE
from trl_prorl.eval.pages.comparison import stale_notes
from trl_prorl.eval.pages.document import Section, bullets
from trl_prorl.eval.run_folder.run import MODEL, RecordedRun
from trl_prorl.run.log_files import RECORDED, training_note
from trl_prorl.text import visible


# The keys that define a variant; in all other keys, the runs of a comparison should agree.
VARIANT_KEYS = {*ANCHOR_KEYS, "base_anchor_every", "kl_estimator", "use_bias_correction_kl"}
VARIANT_PREFIXES = ("ref_", "optimizer_reset")
NOT_SET = "not set"
MAX_SETTINGS = 10  # in one sentence


def _distinct(runs: list[RecordedRun], value_of: Callable[[RecordedRun], Any]) -> list:
    """Return the different values of runs, in their order."""
    return list(dict.fromkeys(map(value_of, runs)))


def _values(runs: list[RecordedRun], value_of: Callable[[RecordedRun], Any], otherwise: str = "") -> str:
    """Return the different values of runs as code, with `otherwise` for runs without one; empty if none has one."""
    values = _distinct(runs, value_of)
    known = dict.fromkeys(
        f"{value:g}" if isinstance(value, float) else str(value) for value in values if value is not None
    )
    shown = [f"`{value}`" for value in known]
    if shown and otherwise and None in values:
        shown.append(otherwise)
    return ", ".join(shown)


def lead(runs: list[RecordedRun]) -> list[str]:
    """Return the first paragraphs of a report: model, task and variants."""
    usual = "TRL's default"
    settings = {
        "model": _values(runs, lambda run: run.model, "one without a name"),
        "task": _values(runs, lambda run: run.config.get("task"), "the data of a script"),
        "level": _values(runs, lambda run: run.config.get("task_level")),
        "learning rate": _values(runs, lambda run: run.config.get("learning_rate"), usual) or usual,
    }
    shared = "; ".join(f"{name} {values}" for name, values in settings.items() if values)
    variants = ", ".join(_described(variant, runs) for variant in _distinct(runs, lambda run: run.variant))
    seeds = sorted({str(run.seed) for run in runs if run.seed is not None})
    trained_with = ""
    if seeds:
        seed_word = "seed" if len(seeds) == 1 else "seeds"
        trained_with = f"; training {seed_word} {', '.join(seeds)}"
    return [
        visible(f"{shared[0].upper()}{shared[1:]}. Base is the starting model, before the first training step."),
        visible(f"Compared: {variants}{trained_with}."),
    ]


def _described(variant: str, runs: list[RecordedRun]) -> str:
    """Return a variant with its label, or with the lack of resets that all its runs share."""
    of_variant = [run for run in runs if run.variant == variant]
    without_reset = {run.without_reset for run in of_variant}
    known = of_variant[0].kind.short
    short = without_reset.pop() if len(without_reset) == 1 else None
    return variant if known == variant else f"{variant} ({short or known})"


def _evaluation(run: RecordedRun) -> str:
    """Return the settings with which a run was evaluated."""
    passk = run.passk
    split = f"{passk['split']} split{training_note(passk)}"
    samples = f"{passk['prompts']} prompts, {passk['n']} samples each"
    return f"{split}, {samples}, at most {passk['max_new_tokens']} tokens, temperature {passk['temperature']:g}"


def caveats(runs: list[RecordedRun]) -> list[str]:
    """Return the limits of the numbers: how they were measured, and how runs differ beyond their variants."""
    lines = []
    evaluated = [run for run in runs if run.passk]
    settings = sorted(_distinct(evaluated, _evaluation))
    if settings:
        lines.append(
            f"Held-out numbers: {'; '.join(settings)}. pass@k is the unbiased estimate of Chen et al. "
            f"(2021) with 95 % intervals over prompts ({METHOD}). The training reward is measured on "
            "training prompts, not held-out ones."
        )
    parts = []
    for run in evaluated:
        parts.append(run.passk)
        parts += [*run.passk.get("by", []), *run.passk.get("others", {}).values()]
    if any(part["prompts"] < MIN_PROMPTS for part in parts):
        lines.append(NO_INTERVAL_NOTE)
    if len(settings) > 1:
        lines.append("The runs were evaluated with different settings: compare only runs with the same settings.")
    measured = {name for run in runs for name in run.metrics}
    for run in runs:
        missing = sorted(measured.difference(run.metrics))
        if run.variant == RECORDED and missing:
            lines.append(
                visible(f"{run.name} was trained by TRL's trainer. Columns that it lacks: {', '.join(missing)}.")
            )
    if any(run.variant == "B" for run in runs):
        lines.append(
            "B's KL to the sampling policy overlaps with the clipping of the ratio: B's numbers do not separate their "
            "effects."
        )
    steps = {run.last_step for run in runs}
    if len(steps) > 1:
        lines.append(
            f"The runs have different lengths, {min(steps)} to {max(steps)} steps. Scores are not matched by step."
        )
    return lines + stale_notes(runs) + _differences(runs)


def _differences(runs: list[RecordedRun]) -> list[str]:
    """Return the settings, ways of computing and hardware in which the runs differ, but need not."""
    lines = []
    settings = []
    for key in sorted({MODEL, *(key for run in runs for key in run.config)} - VARIANT_KEYS - REPETITION_KEYS):
        values = _values_by_run(runs, key)
        if len(values) > 1 and not key.startswith(VARIANT_PREFIXES):
            shown = ", ".join(f"{value} in {' and '.join(names)}" for value, names in values.items())
            settings.append((NOT_SET in values, f"`{key}` ({shown})"))
    if settings:
        # Those that all runs set come first, because a script sets few of the keys that a recipe has.
        listed = [text for _, text in sorted(settings, key=lambda setting: setting[0])]
        if len(listed) > MAX_SETTINGS:
            more = f"and {len(listed) - MAX_SETTINGS} more that only some runs set (see their `config.yaml`)"
            listed = [*listed[:MAX_SETTINGS], more]
        lines.append(f"The runs also differ in {', '.join(listed)}.")
    step_times = dict.fromkeys(("packing", "old_logps", "ref_compute"), "step times")
    # The loss, and having a reference, define a variant.
    for key, numbers in (step_times | {"zero_rows": "`entropy` and step times"}).items():
        values = _distinct(runs, lambda run, key=key: (run.env.get("execution") or {}).get(key))
        values = [value for value in values if value not in (None, "none")]
        if len(values) > 1:
            lines.append(
                f"The runs differ in `{key}` ({' and '.join(map(str, values))}; `execution` in `env.json`): "
                f"{numbers} also reflect these ways of computing."
            )
    for key in ("hardware", "versions"):
        if len(_distinct(runs, lambda run, key=key: repr(run.env.get(key)))) > 1:
            lines.append(f"The runs differ in `{key}` (see `env.json`): step times may not be comparable.")
    return lines


def _values_by_run(runs: list[RecordedRun], key: str) -> dict[str, list[str]]:
    """Return each value of a setting with the variants that have it, or with the runs if they differ within one."""
    values = {run: run.model if key == MODEL else run.config.get(key) for run in runs}
    values = {run: NOT_SET if value is None else str(value) for run, value in values.items()}
    by_variant = len({(run.variant, value) for run, value in values.items()}) == len({run.variant for run in runs})
    having = {}
    for run, value in values.items():
        having.setdefault(value, {})[run.variant if by_variant else run.name] = None
    return {value: list(names) for value, names in having.items()}


def section(frame: Frame) -> Section:
    return Section("Caveats", [bullets(caveats(frame.runs))])
