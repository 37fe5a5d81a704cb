"""The name of a configuration: its variant and the settings that set it apart, nothing that is the same everywhere."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from trl_prorl.descriptor import is_on
from trl_prorl.eval.analysis.repetitions import EFFECTIVE_WITH, matters
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
# Their commonest value is named too: `C` alone would not say which treatment of the optimizer it is.
ALWAYS_NAMED = {TASK, "optimizer_reset", "optimizer_reset_alpha"}


def value_of(run: Run, key: str) -> Any:
    """The value of a setting, the seed of an embedded base aside; `None` where it has no effect."""
    value = run.config.get(key) if matters(key, run.config) else None
    return base_family(value)[0] if key == MODEL else value


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return format(value, "g") if abs(value) < 1e6 else str(value)
    return str(value)


def setting(key: str, value: Any) -> str:
    """One setting in its short form, or as `key=value`."""
    if key == MODEL:
        value = str(value).rstrip("/").rsplit("/", 1)[-1]
    return SHORT_FORMS[key].format(_text(value)) if key in SHORT_FORMS else f"{key}={_text(value)}"


def _in_order(keys) -> list[str]:
    order = list(SHORT_FORMS)
    return sorted(keys, key=lambda key: (order.index(key) if key in order else len(order), key))


def _differing(runs: list[Run]) -> list[str]:
    keys = {key for run in runs for key in run.config if matters(key, run.config) or key == MODEL}
    return _in_order(key for key in keys if len({repr(value_of(run, key)) for run in runs}) > 1)


def _commonest(groups: list[list[Run]], key: str) -> Any:
    """
    The value of most runs, of the variants within which the setting differs; `None` where it is off in most of them,
    or where two values are equally common.
    """
    by_variant = {}
    for group in groups:
        by_variant.setdefault(group[0].variant, []).extend(group)
    runs = [run for same in by_variant.values() if key in _differing(same) for run in same]
    values = [value_of(run, key) for run in runs if matters(key, run.config)]
    counts = Counter(map(repr, values)).most_common(2)
    if not counts or (len(counts) == 2 and counts[0][1] == counts[1][1]):
        return None
    commonest = next(value for value in values if repr(value) == counts[0][0])
    return commonest if is_on(commonest) else None


def _of_task(groups: list[list[Run]], task: Any) -> list[list[Run]]:
    return [group for group in groups if value_of(group[0], TASK) == task]


def _named_keys(groups: list[list[Run]], group: list[Run]) -> list[str]:
    """The settings that differ among the configurations of one variant and one task."""
    same = [other[0] for other in groups if other[0].variant == group[0].variant]
    task = value_of(group[0], TASK)
    differing = _differing([run for run in same if value_of(run, TASK) == task])
    # Whatever goes with the task is said by its name.
    return [TASK, *differing] if TASK in _differing(same) else differing


def _named(groups: list[list[Run]], group: list[Run], is_named: Callable[[str, Any], bool]) -> str:
    keys = ((key, value_of(group[0], key)) for key in _named_keys(groups, group))
    named = [group[0].variant, *(setting(key, value) for key, value in keys if is_named(key, value))]
    return " ".join([*named, *["(never reset)"] * all(run.without_reset == NEVER_RESET for run in group)])


def configuration_labels(groups: list[list[Run]]) -> list[str]:
    """
    A short name per configuration, no two alike: `A`, `A K=100`, `C soft 0.1`.

    A setting is named where it differs among the configurations of a variant and a task, unless it is off, has no
    effect, or has the value that is the commonest of that task among all runs ([`unnamed_settings`]).

    Args:
        groups (`list[list[Run]]`): As [`~eval.analysis.repetitions.repetitions`] gives them.
    """

    labels = []
    for group in groups:
        same = _of_task(groups, value_of(group[0], TASK))

        def is_named(key, value, same=same):
            return is_on(value) and (key in ALWAYS_NAMED or value != _commonest(same, key))

        labels.append(_named(groups, group, is_named))
    # Two that differ in settings that are off in different ways, or in none that a name shows.
    twice = {label for label, count in Counter(labels).items() if count > 1}
    labels = [
        _named(groups, group, lambda key, value: True) if label in twice else label
        for label, group in zip(labels, groups, strict=True)
    ]
    counts = Counter()
    for place, label in enumerate(labels):
        counts[label] += 1
        if counts[label] > 1:
            labels[place] = f"{label} ({counts[label]})"
    return labels


def unnamed_settings(groups: list[list[Run]]) -> list[str]:
    """
    What a name leaves out because most runs have it, a line per task: `reverse_digits: K=40, β=1`. Settings that only
    adjust another one are left out.

    Args:
        groups (`list[list[Run]]`): As [`~eval.analysis.repetitions.repetitions`] gives them.
    """
    lines = []
    for task in dict.fromkeys(value_of(group[0], TASK) for group in groups):
        same = _of_task(groups, task)
        keys = {key for group in same for key in _named_keys(groups, group)} - ALWAYS_NAMED - set(EFFECTIVE_WITH)
        common = ((key, _commonest(same, key)) for key in _in_order(keys))
        settings = ", ".join(setting(key, value) for key, value in common if value is not None)
        if settings:
            lines.append(f"{task}: {settings}")
    return lines
