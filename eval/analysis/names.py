"""The name of a configuration: its variant and the settings that set it apart, nothing that is the same everywhere."""

from collections import Counter
from typing import Any

from trl_prorl.descriptor import is_on
from trl_prorl.eval.analysis.repetitions import matters
from trl_prorl.eval.run_folder.run import MODEL, Run, base_family
from trl_prorl.keys import KEYS
from trl_prorl.variants import NEVER_RESET


TASK = "task"
# The settings that have a short form, in the order of a name: of resets and growth, then the others; any other setting
# is named `key=value`, after these.
OURS = {name: key.short for name, key in KEYS.items() if key.short is not None}
SHORT_FORMS = {
    **{TASK: "{}", MODEL: "{}", "optimizer_reset": "{}", "optimizer_reset_alpha": "{}"},
    **{name: form for name, form in OURS.items() if name.startswith(("ref_reset", "elastic", "lora"))},
    **{"beta": "β={}", **OURS, "learning_rate": "lr={}", "max_steps": "{} steps"},
}


def value_of(run: Run, key: str) -> Any:
    """The value of a setting, the seed of an embedded base aside; `None` where it is off or has no effect."""
    value = run.config.get(key) if matters(key, run.config) else None
    if not is_on(value):
        return None
    return base_family(value)[0] if key == MODEL else value


def setting(key: str, value: Any) -> str:
    """One setting in its short form, or as `key=value`."""
    if key == MODEL:
        value = str(value).rstrip("/").rsplit("/", 1)[-1]
    if isinstance(value, bool):
        text = str(value).lower()
    else:
        text = format(value, "g") if isinstance(value, int | float) and abs(value) < 1e6 else str(value)
    return SHORT_FORMS[key].format(text) if key in SHORT_FORMS else f"{key}={text}"


def _differing(runs: list[Run]) -> list[str]:
    """Settings in which runs differ, those with a short form first."""
    order, keys = list(SHORT_FORMS), {key for run in runs for key in run.config}
    differing = (key for key in keys if len({repr(value_of(run, key)) for run in runs}) > 1)
    return sorted(differing, key=lambda key: (order.index(key) if key in order else len(order), key))


def configuration_labels(groups: list[list[Run]]) -> list[str]:
    """
    A short name per configuration, no two alike: the variant, with the settings that differ among its configurations
    and are not off: `A K=40 β=1`, `A K=100 β=1`, `C soft 0.1`.

    Args:
        groups (`list[list[Run]]`): As [`~eval.analysis.repetitions.repetitions`] gives them.
    """
    labels, first = [], [group[0] for group in groups]
    for run, group in zip(first, groups, strict=True):
        same = [other for other in first if other.variant == run.variant]
        keys = _differing(same)
        if TASK in keys:  # whatever goes with the task is said by its name
            keys = [TASK, *_differing([other for other in same if value_of(other, TASK) == value_of(run, TASK)])]
        named = [setting(key, value) for key in keys if (value := value_of(run, key)) is not None]
        never = ["(never reset)"] * all(each.without_reset == NEVER_RESET for each in group)
        labels.append(" ".join([run.variant, *named, *never]))
    counts, twice = Counter(), Counter(labels)
    for place, label in enumerate(labels):
        counts[label] += 1
        if twice[label] > 1 and counts[label] > 1:
            labels[place] = f"{label} ({counts[label]})"
    return labels
