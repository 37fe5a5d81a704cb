"""The arms of a report: what was compared, and what the numbers cannot show."""

from collections.abc import Callable
from typing import Any

from trl_prorl.eval.analysis.configurations import REPETITION_KEYS, max_new_tokens
from trl_prorl.eval.analysis.frame import Frame
from trl_prorl.eval.analysis.statistics import MIN_PROMPTS, NO_INTERVAL_NOTE
from trl_prorl.eval.pages.document import Bullets, Section, Text
from trl_prorl.eval.run_folder.run import MODEL, RecordedRun
from trl_prorl.objective.anchors import ANCHOR_KEYS
from trl_prorl.record.run_files import training_note
from trl_prorl.variants import VARIANTS


# The keys that define an arm; in every other key the arms of a comparison should agree.
ARM_KEYS = {*ANCHOR_KEYS, "base_anchor_every", "kl_estimator", "use_bias_correction_kl"}
MOST_SETTINGS = 10  # in one sentence
ARM_PREFIXES = ("ref_", "optimizer_reset")


def _distinct(runs: list[RecordedRun], value_of: Callable[[RecordedRun], Any]) -> list:
    """Return the different values of runs, in their order."""
    return list(dict.fromkeys(map(value_of, runs)))


def _values(runs: list[RecordedRun], value_of: Callable[[RecordedRun], Any], otherwise: str = "") -> str:
    """Return the different values of runs as code, with words for those that have none; empty if none has one."""
    values = list(map(value_of, runs))
    known = dict.fromkeys(_spelt(value) for value in values if value is not None)
    shown = [f"`{value}`" for value in known]
    if shown and otherwise and None in values:
        shown.append(otherwise)
    return ", ".join(shown)


def _spelt(value: Any) -> str:
    return format(value, "g") if isinstance(value, float) else str(value)


def lead(runs: list[RecordedRun]) -> list[Text]:
    """What was compared."""
    settings = {
        "model": _values(runs, lambda run: run.model, "one without a name"),
        "task": _values(runs, lambda run: run.config.get("task"), "a script's own"),
        "level": _values(runs, lambda run: run.config.get("task_level")),
        "learning rate": _values(runs, lambda run: run.config.get("learning_rate"), "TRL's default")
        or "TRL's default",
    }
    shared = "; ".join(f"{name} {values}" for name, values in settings.items() if values)
    arms = ", ".join(_described(variant, runs) for variant in _distinct(runs, lambda run: run.variant))
    seeds = sorted({str(run.seed) for run in runs if run.seed is not None})
    trained_with = ""
    if seeds:
        seed_word = "seed" if len(seeds) == 1 else "seeds"
        trained_with = f"; training {seed_word} {', '.join(seeds)}"
    return [
        Text(f"{shared[0].upper()}{shared[1:]}. Base means the policy as a run began."),
        Text(f"Compared: {arms}{trained_with}."),
    ]


def _described(variant: str, runs: list[RecordedRun]) -> str:
    """Return a variant with what is said of it in short, or with the lack of resets that all its runs share."""
    without_reset = {run.without_reset for run in runs if run.variant == variant}
    short = without_reset.pop() if len(without_reset) == 1 else None
    if not short and variant in VARIANTS:
        short = VARIANTS[variant].short
    return f"{variant} ({short})" if short else variant


def _evaluation(run: RecordedRun) -> str:
    """Return how a run was evaluated, in words."""
    passk = run.passk
    tokens = max_new_tokens(run)
    cut = f"cut after {tokens} tokens, " if tokens else ""
    decoding = "greedy decoding" if passk["temperature"] == 0 else f"temperature {passk['temperature']:g}"
    split = f"{passk['split']} split{training_note(passk)}"
    return f"{split}, {passk['prompts']} prompts, {passk['n']} samples each, {cut}{decoding}"


def caveats(runs: list[RecordedRun]) -> list[str]:
    """What the numbers cannot show: evaluation, differences between the runs beyond their variants."""
    lines = []
    evaluated = [run for run in runs if run.passk]
    settings = sorted(_distinct(evaluated, _evaluation))
    if settings:
        lines.append(
            f"Held-out numbers: {'; '.join(settings)}. pass@k is the unbiased estimator of Chen et al. "
            "(2021), its intervals are 95 % percentile bootstraps over prompts. Training reward is on training "
            "prompts and is no held-out number."
        )
    parts = []
    for run in evaluated:
        parts.append(run.passk)
        parts += run.passk.get("by") or []
        parts += (run.passk.get("others") or {}).values()
    if any(part["prompts"] < MIN_PROMPTS for part in parts):
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
    return lines + _differences(runs)


def _differences(runs: list[RecordedRun]) -> list[str]:
    """Settings, ways of computing and hardware in which runs differ though arms could share them."""
    lines = []
    differing = {}
    for key in sorted({MODEL, *(key for run in runs for key in run.config)} - ARM_KEYS - REPETITION_KEYS):
        values = _distinct(runs, lambda run, key=key: repr(_setting_of(run, key)))
        if len(values) > 1 and not key.startswith(ARM_PREFIXES):
            differing[key] = [value.strip(chr(39)) for value in values]
    if differing:
        lines.append(f"The runs differ beyond their variants, in {_listed_settings(differing)}.")
    for key in ("packing", "old_logps", "ref_compute"):  # the loss, and having a reference, define an arm
        values = _distinct(runs, lambda run, key=key: (run.env.get("execution") or {}).get(key))
        values = [value for value in values if value not in (None, "none")]
        if len(values) > 1:
            lines.append(
                f"The runs differ in `{key}` ({' and '.join(map(str, values))}; `execution` in `env.json`): step "
                "times compare these ways of computing too."
            )
    for key in ("hardware", "versions"):
        if len(_distinct(runs, lambda run, key=key: repr(run.env.get(key)))) > 1:
            lines.append(f"The runs differ in `{key}` (see `env.json`): step times may not compare.")
    return lines


def _listed_settings(differing: dict[str, list[str]]) -> str:
    """
    Return settings with their values, those first that several runs set; of many the first and the number of the
    others, because a script sets few of the keys that a recipe has.
    """
    order = sorted(differing, key=lambda key: "default" in differing[key])
    listed = [f"`{key}` ({', '.join(differing[key])})" for key in order[:MOST_SETTINGS]]
    if len(order) > MOST_SETTINGS:
        listed.append(f"and {len(order) - MOST_SETTINGS} more that only some set (see their `config.yaml`)")
    return ", ".join(listed)


def _setting_of(run: RecordedRun, key: str) -> Any:
    """Return the value of a key of the configuration, of the model the name that is on record."""
    value = run.model if key == MODEL else run.config.get(key, "default")
    return "default" if value is None else value


def sections(frame: Frame) -> list[Section]:
    return [Section("Caveats", [Bullets(caveats(frame.runs))])]
