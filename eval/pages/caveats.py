"""What the numbers cannot show: evaluation, differences between the runs beyond their variants."""

from trl_prorl.eval.analysis.frame import Frame
from trl_prorl.eval.analysis.pairing import max_new_tokens
from trl_prorl.eval.analysis.repetitions import REPETITION_KEYS
from trl_prorl.eval.analysis.statistics import MIN_PROMPTS, NO_INTERVAL_NOTE
from trl_prorl.eval.pages.document import Bullets, Section
from trl_prorl.eval.run_folder.run import Run


# The keys that define an arm; in every other key the arms of a comparison should agree.
ARM_KEYS = {"beta", "beta_old", "beta_base", "base_anchor_every", "kl_estimator", "use_bias_correction_kl"}
ARM_PREFIXES = ("ref_", "optimizer_reset")


def caveats(runs: list[Run]) -> list[str]:
    """What the numbers cannot show: evaluation, differences between the runs beyond their variants."""
    lines = []

    def decoding(passk: dict) -> str:
        return "greedy decoding" if passk["temperature"] == 0 else f"temperature {passk['temperature']:g}"

    settings = {
        f"{run.passk['split']} split, {run.passk['prompts']} prompts, {run.passk['n']} samples each, "
        f"{f'cut after {tokens} tokens, ' if (tokens := max_new_tokens(run)) else ''}"
        f"{decoding(run.passk)}"
        for run in runs
        if run.passk
    }
    if settings:
        lines.append(
            f"Held-out numbers: {'; '.join(sorted(settings))}. pass@k is the unbiased estimator of Chen et al. "
            "(2021), its intervals are 95 % percentile bootstraps over prompts. Training reward is on training "
            "prompts and is no held-out number."
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


def _evaluations(passk: dict) -> list[dict]:
    return [passk, *(passk.get("by") or []), *(passk.get("others") or {}).values()]


def _execution_differences(runs: list[Run]) -> list[str]:
    """
    Ways of computing that differ though the arms could share them: the loss, and having a reference, define an arm.
    """
    lines = []
    for key in ("packing", "old_logps", "ref_compute"):
        recorded = [(run.env.get("execution") or {}).get(key) for run in runs]
        values = {value: None for value in recorded if value not in (None, "none")}
        if len(values) > 1:
            lines.append(
                f"The runs differ in `{key}` ({' and '.join(map(str, values))}; `execution` in `env.json`): step "
                "times compare these ways of computing too."
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


def sections(frame: Frame) -> list[Section]:
    return [Section("Caveats", [Bullets(caveats(frame.runs))])]
