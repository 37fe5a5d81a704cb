"""Configurations: which runs repeat one, which runs can be compared, and the short name of each."""

import os
import re
from collections import Counter
from typing import Any

from trl_prorl.eval.run_folder.run import MODEL, RecordedRun, require_passk
from trl_prorl.keys import AN_EVALUATION, FREE_KEYS, KEYS, TASK_KEYS, is_on
from trl_prorl.record.provenance import passk_command
from trl_prorl.variants import NEVER_RESET


# Settings in which runs may differ and still be repetitions of one another: seeds, and what no number depends on. The
# model and the data, which a resume tells apart by content, are known by name alone here.
REPETITION_KEYS = ({"seed", "data_seed", "task_seed", "logging_dir"} | FREE_KEYS) - {
    "model_name_or_path",
    "dataset_name",
}
# Settings of evaluations during training, which sample from a random state of their own: only a trigger that watches
# one of their metrics lets them change a number.
VALIDATION_KEYS = frozenset(
    "eval_strategy eval_steps eval_delay eval_on_start eval_rows eval_accumulation_steps per_device_eval_batch_size "
    "num_generations_eval".split()
)
# The settings that have no effect without another one: by the rules of the configuration, and those of evaluations.
EFFECTIVE_WITH = {
    **{name: key.needs for name, key in (KEYS | TASK_KEYS).items() if key.needs is not None},
    **dict.fromkeys(VALIDATION_KEYS, AN_EVALUATION),
}
SEED_AT_END = re.compile(r"[\W_]*(?:(?<![A-Za-z])s|seed)?[\W_]*\d*$")
TASK = "task"
# How the completions were drawn, and the option that says so: where one differs, the runs differ in more than the
# model.
SAMPLING = {"n": "--n", "temperature": "--temperature", "max_new_tokens": "--max-new-tokens"}
PROMPT_KEYS = ("task_options", "task_seed")  # of a run, which decide its prompts beside its evaluation's settings
# The settings that have a short form, in the order of a name: of resets and growth, then the others; any other setting
# is named `key=value`, after these.
OURS = {name: key.label for name, key in KEYS.items() if key.label is not None}
OF_RESETS_AND_GROWTH = {name: form for name, form in OURS.items() if name.startswith(("ref_reset", "elastic", "lora"))}
SHORT_FORMS = {
    TASK: "{}",
    MODEL: "{}",
    "optimizer_reset": "{}",
    "optimizer_reset_alpha": "{}",
    **OF_RESETS_AND_GROWTH,
    "beta": "β={}",
    **OURS,
    "learning_rate": "lr={}",
    "max_steps": "{} steps",
}


def matters(key: str, config: dict) -> bool:
    """Return whether a number of a run with this configuration depends on a key of it."""
    if key in REPETITION_KEYS:
        return False
    need = EFFECTIVE_WITH.get(key)
    return need is None or need.is_met(config.get)


def repetitions(runs: list[RecordedRun]) -> list[list[RecordedRun]]:
    """
    Groups of runs of one variant and one configuration, seeds aside, that of an embedded base too, and keys on which
    no number depends; in given order. A run whose seeds another one of its group has is in a group of its own: it
    began anew, and need not be as long.
    """
    groups = {}
    counts = Counter()
    for run in runs:
        settings = {key: value for key, value in run.config.items() if matters(key, run.config)}
        settings[MODEL] = run.base[0]
        configuration = (run.variant, repr(sorted(settings.items())))
        counts[configuration, run.repetition] += 1
        groups.setdefault((configuration, counts[configuration, run.repetition]), []).append(run)
    return list(groups.values())


def max_new_tokens(run: RecordedRun) -> int | None:
    """
    Return the number of tokens after which a completion was cut: as evaluated, in older results the run's own, which
    was the default.
    """
    return run.passk.get("max_new_tokens") or run.config.get("max_completion_length")


def why_not_paired(a: RecordedRun, b: RecordedRun) -> str | None:
    """
    Return why the prompts of two evaluated runs cannot be paired, with the cure; `None` if they can. The `prompt_ids`
    decide where both evaluations have them, the settings of the evaluations where neither has.
    """
    first = require_passk(a)
    second = require_passk(b)
    cure = f"evaluate them alike: `{passk_command(a.config, a.env, a.path, b.path)}`"
    for key, option in SAMPLING.items():
        values = [max_new_tokens(run) if key == "max_new_tokens" else run.passk.get(key) for run in (a, b)]
        if values[0] != values[1]:
            # Said outright, because the default is each run's own.
            setting = f" {option} {max(values)}" if None not in values else ""
            return f"'{a.name}' has {key} = {values[0]} in passk.json, '{b.name}' {values[1]}; {cure[:-1]}{setting}`"
    ids = first.get("prompt_ids") or []
    other_ids = second.get("prompt_ids") or []
    if bool(ids) != bool(other_ids):
        return f"only '{a.name if ids else b.name}' has prompt_ids in passk.json, the other is older; {cure}"
    if ids != other_ids:
        common = len(set(ids) & set(other_ids))
        order = " in the same order" if common == len(ids) == len(other_ids) else ""
        return (
            f"'{a.name}' ({len(ids)} prompts) and '{b.name}' ({len(other_ids)}) were not evaluated on the same "
            f"prompts{order} ({common} in common); {cure}"
        )
    evaluated_alike = all(first.get(key) == second.get(key) for key in ("split", "prompts", "task", "level"))
    same_prompts = all((a.config.get(key) or None) == (b.config.get(key) or None) for key in PROMPT_KEYS)
    if not ids and not (evaluated_alike and same_prompts):
        return (
            f"'{a.name}' and '{b.name}' were not evaluated on the same prompts in the same way (split, prompts, task, "
            f"level, task_options and task_seed decide); {cure}"
        )
    return None


def value_of(run: RecordedRun, key: str) -> Any:
    """Return the value of a setting, the seed of an embedded base aside; `None` where it is off or has no effect."""
    if key == MODEL:
        return run.base[0]
    value = run.config.get(key) if matters(key, run.config) else None
    return value if is_on(value) else None


def setting(key: str, value: Any) -> str:
    """Return one setting in its short form, or as `key=value`."""
    if key == MODEL:
        value = str(value).rstrip("/").rsplit("/", 1)[-1]
    if isinstance(value, bool):
        text = str(value).lower()
    else:
        text = format(value, "g") if isinstance(value, int | float) and abs(value) < 1e6 else str(value)
    return SHORT_FORMS[key].format(text) if key in SHORT_FORMS else f"{key}={text}"


def _differing(runs: list[RecordedRun]) -> list[str]:
    """Settings in which runs differ, those with a short form first."""
    order = {key: place for place, key in enumerate(SHORT_FORMS)}
    keys = {MODEL, *(key for run in runs for key in run.config)}
    differing = [key for key in keys if len({repr(value_of(run, key)) for run in runs}) > 1]
    return sorted(differing, key=lambda key: (order.get(key, len(order)), key))


def configuration_labels(groups: list[list[RecordedRun]]) -> list[str]:
    """
    Return a short name per configuration, as [`repetitions`] groups them, no two alike: the variant, with the settings
    that differ among its configurations and are not off: `A K=40 β=1`, `A K=100 β=1`, `C soft 0.1`.
    """
    labels = []
    for group, settings in zip(groups, _settings_that_differ(groups), strict=True):
        label = " ".join([group[0].variant, *settings])
        labels.append(f"{label} (never reset)" if _never_reset(group) else label)
    return _numbered(labels)


def arm_labels(groups: list[list[RecordedRun]]) -> list[str]:
    """
    Return the names of the arms of a report, no two alike: that of the run's folder, or what the folders of its seeds
    have in common. In brackets come the variant, where the folder does not say it, and the settings that differ among
    the configurations of the variant: `fast (plain lr=1e-05)`. Where the folders have nothing in common it is the
    label of the configuration.
    """
    labels = configuration_labels(groups)
    for place, (group, settings) in enumerate(zip(groups, _settings_that_differ(groups), strict=True)):
        name = common_name([run.name for run in group])
        if not name:
            continue
        variant = group[0].variant
        words = settings if says_variant(name, variant) else [variant, *settings]
        if _never_reset(group):
            words = [*words, "never reset"]
        labels[place] = f"{name} ({' '.join(words)})" if words else name
    return _numbered(labels)


def common_name(names: list[str]) -> str:
    """
    Return with what all names begin, without the number or the word that counts seeds: `variantA` of `variantA_seed1`
    and `variantA_seed2`. It is the name itself where there is one, and empty where names have nothing in common.
    """
    if len(names) == 1:
        return names[0]
    return SEED_AT_END.sub("", os.path.commonprefix(names))


def _numbered(labels: list[str]) -> list[str]:
    """Return labels of which no two are alike: a second one is given its number."""
    counts = Counter()
    numbered = []
    for label in labels:
        counts[label] += 1
        numbered.append(f"{label} ({counts[label]})" if counts[label] > 1 else label)
    return numbered


def _never_reset(group: list[RecordedRun]) -> bool:
    return all(run.without_reset == NEVER_RESET for run in group)


def _settings_that_differ(groups: list[list[RecordedRun]]) -> list[list[str]]:
    """Return for each configuration the settings that differ among those of its variant, in their short forms."""
    found = []
    first = [group[0] for group in groups]
    for run in first:
        same = [other for other in first if other.variant == run.variant]
        keys = _differing(same)
        if TASK in keys:  # whatever goes with the task is said by its name
            same_task = [other for other in same if value_of(other, TASK) == value_of(run, TASK)]
            keys = [TASK, *_differing(same_task)]
        values = {key: value_of(run, key) for key in keys}
        found.append([setting(key, value) for key, value in values.items() if value is not None])
    return found


def says_variant(name: str, variant: str) -> bool:
    """Return whether the name of a run has its variant as a word: `A_seed1` and `variantA` do, `Alpha` does not."""
    letter = "[A-Za-z]"
    return re.search(rf"(?<!{letter})(variant)?{re.escape(variant)}(?!{letter})", name) is not None
