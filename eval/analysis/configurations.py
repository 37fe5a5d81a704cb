"""Configurations: which runs repeat one with other seeds, which runs can be compared, and a short label for each."""

import os
import re
from collections import Counter
from typing import Any

from trl_prorl.cli.variants import NEVER_RESET
from trl_prorl.eval.analysis.sampled_scores import EVALUATION, SAMPLING
from trl_prorl.eval.run_folder.run import MODEL, RecordedRun, require_passk
from trl_prorl.keys import AN_EVALUATION, FREE_KEYS, KEYS, TASK_KEYS, is_on
from trl_prorl.run.provenance import evaluation_options, passk_command


# Settings in which repetitions of a configuration may differ: seeds, and keys that change no number. Model and data,
# which a resume compares by content, are compared by name here.
REPETITION_KEYS = ({"seed", "data_seed", "task_seed", "logging_dir"} | FREE_KEYS) - {
    "model_name_or_path",
    "dataset_name",
}
# Settings of evaluations during training. These have their own random state, so they change a number only if a trigger
# watches one of their metrics.
VALIDATION_KEYS = frozenset(
    "eval_strategy eval_steps eval_delay eval_on_start eval_rows eval_accumulation_steps per_device_eval_batch_size "
    "num_generations_eval".split()
)
# Settings that have no effect without another one: by the rules of the configuration, and those of evaluations.
EFFECTIVE_WITH = {
    **{name: key.needs for name, key in (KEYS | TASK_KEYS).items() if key.needs is not None},
    **dict.fromkeys(VALIDATION_KEYS, AN_EVALUATION),
}
SEED_AT_END = re.compile(r"[\W_]*(?:(?<![A-Za-z])s|seed)?[\W_]*\d*$")
TASK = "task"
PROMPT_KEYS = ("task_options", "task_seed")  # keys of a run that also decide its prompts
# Settings with a short form, in the order of a label: resets and growth, then the others. All other settings follow as
# `key=value`.
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
    """Return whether a key of this configuration changes a number of the run."""
    if key in REPETITION_KEYS:
        return False
    need = EFFECTIVE_WITH.get(key)
    return need is None or need.is_met(config)


def repetitions(runs: list[RecordedRun]) -> list[list[RecordedRun]]:
    """
    Group runs that have the same variant and configuration except for seeds (of training and of an embedded base) and
    keys that change no number; in the given order. A second run with the same seeds starts a new group, because it may
    be shorter or longer.
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


def pairing_obstacle(a: RecordedRun, b: RecordedRun) -> str | None:
    """
    Return why the prompts of two evaluated runs cannot be paired, with the cure if there is one; `None` if they can.
    """
    first = require_passk(a)
    second = require_passk(b)
    ids = first["prompt_ids"]
    other_ids = second["prompt_ids"]
    same_prompts = ids == other_ids
    if not same_prompts:
        values = {f"{key}s": (first.get(key), second.get(key)) for key in ("task", "level")}
        values |= {key: (a.config.get(key) or None, b.config.get(key) or None) for key in PROMPT_KEYS}
        for name, (of_a, of_b) in values.items():
            if of_a != of_b:
                return f"the runs have different {name}, {of_a} and {of_b}, so they cannot be compared"
    differing = []
    for key in SAMPLING if same_prompts else EVALUATION:
        if first[key] != second[key]:
            differing.append(f"{key} {first[key]} and {second[key]}")
    a_is_smaller = (first["prompts"], first["n"]) < (second["prompts"], second["n"])
    again, like = (a, b) if a_is_smaller else (b, a)
    command = passk_command(again.config, again.env, again.path) + evaluation_options(again.config, like.passk)
    cure = f"evaluate '{again.name}' again: `{command} --replace`"
    if differing:
        return f"'{a.name}' and '{b.name}' were evaluated with different settings: {', '.join(differing)}; {cure}"
    if not same_prompts:
        common = len(set(ids) & set(other_ids))
        order = " in the same order" if common == len(ids) == len(other_ids) else ""
        return (
            f"'{a.name}' ({len(ids)} prompts) and '{b.name}' ({len(other_ids)}) were not evaluated on the same "
            f"prompts{order} ({common} in common); {cure}"
        )
    return None


def value_of(run: RecordedRun, key: str) -> Any:
    """Return the value of a setting, without the seed of an embedded base; `None` if it is off or has no effect."""
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
    """Return the settings in which runs differ, those with a short form first."""
    order = {key: place for place, key in enumerate(SHORT_FORMS)}
    keys = {MODEL, *(key for run in runs for key in run.config)}
    differing = [key for key in keys if len({repr(value_of(run, key)) for run in runs}) > 1]
    return sorted(differing, key=lambda key: (order.get(key, len(order)), key))


def group_labels(groups: list[list[RecordedRun]], with_variant: bool = False) -> list[str]:
    """
    Return a unique label for every group of [`repetitions`]: the name of the run's folder, or the common part of the
    folders of its seeds. In parentheses follow the variant, if the folder's name does not contain it or `with_variant`
    is given, and the settings that differ among the groups of the variant and are not off: `fast (no KL, lr=1e-05)`.
    If the folders have no common part, the label begins with the variant: `moving reference (A), K=40 β=1`.
    """
    labels = []
    for group, settings in zip(groups, _differing_settings(groups), strict=True):
        variant = group[0].variant
        name = common_name([run.name for run in group])
        never = "never reset" if all(run.without_reset == NEVER_RESET for run in group) else ""
        if not name:
            words = never
            name = ", ".join(filter(None, [group[0].kind.label, settings]))
        else:
            shown = group[0].kind.short if with_variant or not says_variant(name, variant) else ""
            words = ", ".join(filter(None, [shown, settings, never]))
        labels.append(f"{name} ({words})" if words else name)
    return _numbered(labels)


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


def _numbered(labels: list[str]) -> list[str]:
    """Make labels unique: a second equal one gets its number."""
    counts = Counter()
    numbered = []
    for label in labels:
        counts[label] += 1
        numbered.append(f"{label} ({counts[label]})" if counts[label] > 1 else label)
    return numbered


def _differing_settings(groups: list[list[RecordedRun]]) -> list[str]:
    """Return for each group the settings that differ within its variant, in their short forms: `K=40 β=1`."""
    found = []
    first = [group[0] for group in groups]
    for run in first:
        same = [other for other in first if other.variant == run.variant]
        keys = _differing(same)
        if TASK in keys:  # the name of the task implies its other settings
            same_task = [other for other in same if value_of(other, TASK) == value_of(run, TASK)]
            keys = [TASK, *_differing(same_task)]
        values = {key: value_of(run, key) for key in keys}
        found.append(" ".join(setting(key, value) for key, value in values.items() if value is not None))
    return found


def says_variant(name: str, variant: str) -> bool:
    """Return whether the name of a run contains its variant as a word: `A_seed1` and `variantA` do, `Alpha` not."""
    letter = "[A-Za-z]"
    return re.search(rf"(?<!{letter})(variant)?{re.escape(variant)}(?!{letter})", name) is not None
