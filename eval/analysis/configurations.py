"""Which runs repeat a configuration with other seeds, which can be compared, and a short label for each."""

import os
import re
from collections import Counter
from typing import Any

from trl_prorl.eval.run_folder.run import MODEL, RecordedRun, require_passk
from trl_prorl.keys import AN_EVALUATION, FREE_KEYS, KEYS, is_on


# Settings in which repetitions of a configuration may differ: seeds, and keys that change no number. Model and data,
# which a resume compares by content, are compared by name here.
REPETITION_KEYS = ({"seed", "data_seed", "task_seed", "logging_dir"} | FREE_KEYS) - {
    "model_name_or_path",
    "dataset_name",
}
# Evaluations have their own random state, so these change a number only if a trigger reads an evaluation.
EVALUATION_KEYS = frozenset(
    "eval_strategy eval_steps eval_delay eval_on_start eval_rows eval_accumulation_steps per_device_eval_batch_size "
    "num_generations_eval".split()
)
SEED_AT_END = re.compile(r"[\W_]*(?:(?<![A-Za-z])s|seed)?[\W_]*\d*$")
SAMPLING = ("n", "temperature", "max_new_tokens")  # settings of samples in `passk.json`
# Settings with a short form, in the order of a label. All other settings follow as `key=value`.
SHORT_FORMS = {
    "task": "{}",
    MODEL: "{}",
    "optimizer_reset": "{}",
    "optimizer_reset_alpha": "{}",
    "beta": "β={}",
    **{name: key.label for name, key in KEYS.items() if key.label is not None},
    "learning_rate": "lr={}",
    "max_steps": "{} steps",
}


def matters(key: str, config: dict) -> bool:
    """Return whether a key of this configuration may change a number of the run."""
    return key not in REPETITION_KEYS and (key not in EVALUATION_KEYS or AN_EVALUATION.is_met(config))


def repetitions(runs: list[RecordedRun]) -> list[list[RecordedRun]]:
    """
    Group runs of the same variant and configuration except for seeds (of training and of an embedded base), in the
    given order. A second run with the same seeds starts a new group, because it may be shorter or longer.
    """
    groups = {}
    counts = Counter()
    for run in runs:
        settings = {key: value for key, value in run.config.items() if matters(key, run.config)}
        settings[MODEL] = run.base[0]
        settings["changes"] = changes_of(run)
        configuration = (run.variant, repr(sorted(settings.items())))
        counts[configuration, run.repetition] += 1
        groups.setdefault((configuration, counts[configuration, run.repetition]), []).append(run)
    return list(groups.values())


def pairing_obstacle(a: RecordedRun, b: RecordedRun) -> str | None:
    """Return why the prompts of two evaluated runs cannot be paired; `None` if they can."""
    first = require_passk(a)
    second = require_passk(b)
    differing = [f"{key} {first[key]} and {second[key]}" for key in SAMPLING if first[key] != second[key]]
    if first["prompt_ids"] != second["prompt_ids"]:
        differing.append("other prompts")
    if not differing:
        return None
    return f"'{a.name}' and '{b.name}' were evaluated differently ({', '.join(differing)}); evaluate one of them again"


def value_of(run: RecordedRun, key: str) -> Any:
    """Return the value of a setting, without the seed of an embedded base; `None` if it is off."""
    if key == MODEL:
        return run.base[0]
    value = run.config.get(key)
    return value if matters(key, run.config) and is_on(value) else None


def changes_of(run: RecordedRun) -> list[str]:
    """Return what a resume changed, and when: `lr=1e-05 from step 40`. A longer run is the same one."""
    changes = {key: step for key, step in run.changes.items() if matters(key, run.config) and key != "max_steps"}
    return [f"{setting(key, run.config.get(key, 'changed'))} from step {step}" for key, step in changes.items()]


def setting(key: str, value: Any) -> str:
    """Return one setting in its short form, or as `key=value`."""
    if key == MODEL:
        value = str(value).rstrip("/").rsplit("/", 1)[-1]
    text = f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
    return SHORT_FORMS.get(key, key + "={}").format(text)


def differing_keys(runs: list[RecordedRun]) -> list[str]:
    """Return the settings in which runs differ, those with a short form first."""
    order = {key: place for place, key in enumerate(SHORT_FORMS)}
    keys = {MODEL, *(key for run in runs for key in run.config)}
    differing = [key for key in keys if len({repr(value_of(run, key)) for run in runs}) > 1]
    return sorted(differing, key=lambda key: (order.get(key, len(order)), key))


def group_labels(groups: list[list[RecordedRun]]) -> list[str]:
    """
    Return a unique label for every group of [`repetitions`]: the name of the run's folder, or the common part of the
    folders of its seeds. In parentheses follow the variant, if the folder's name does not contain it, and the settings
    that differ among the groups of the variant and are not off: `fast (no KL, lr=1e-05)`; and what a resume changed.
    """
    labels = []
    counts = Counter()
    for group in groups:
        run = group[0]
        same = [members[0] for members in groups if members[0].variant == run.variant]
        values = {key: value_of(run, key) for key in differing_keys(same)}
        words = [setting(key, value) for key, value in values.items() if value is not None and key not in run.changes]
        words += changes_of(run)
        name = common_name([member.name for member in group]) or run.kind.label
        if not says_variant(name, run.variant) and name != run.kind.label:
            words.insert(0, run.kind.short)
        label = f"{name} ({', '.join(words)})" if words else name
        counts[label] += 1
        labels.append(f"{label} ({counts[label]})" if counts[label] > 1 else label)
    return labels


def common_name(names: list[str]) -> str:
    """
    Return the common beginning of all names, without the number or word that counts seeds: `variantA` for
    `variantA_seed1` and `variantA_seed2`. A single name is returned as it is; names without a common beginning give an
    empty string.
    """
    if len(names) == 1:
        return names[0]
    common = os.path.commonprefix(names)
    if any("/" in name[len(common) :] for name in names):  # in different folders
        common = common[: common.rfind("/") + 1]
    return SEED_AT_END.sub("", common)


def says_variant(name: str, variant: str) -> bool:
    """Return whether the name of a run contains its variant as a word: `A_seed1` and `variantA` do, `Alpha` not."""
    letter = "[A-Za-z]"
    return re.search(rf"(?<!{letter})(variant)?{re.escape(variant)}(?!{letter})", name) is not None
