"""Configurations: which runs repeat one, which runs can be compared, and the short name of each."""

from collections import Counter
from typing import Any

from trl_prorl.descriptor import is_on
from trl_prorl.eval.run_folder.run import MODEL, Run, base_family
from trl_prorl.keys import AN_EVALUATION, FREE_KEYS, KEYS, TASK_KEYS
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
EFFECTIVE_WITH = {name: key.need for name, key in (KEYS | TASK_KEYS).items() if key.need and key.need.adjusted}
EFFECTIVE_WITH |= dict.fromkeys(VALIDATION_KEYS, AN_EVALUATION)
TASK = "task"
# The settings that have a short form, in the order of a name: of resets and growth, then the others; any other setting
# is named `key=value`, after these.
OURS = {name: key.short for name, key in KEYS.items() if key.short is not None}
SHORT_FORMS = {
    **{TASK: "{}", MODEL: "{}", "optimizer_reset": "{}", "optimizer_reset_alpha": "{}"},
    **{name: form for name, form in OURS.items() if name.startswith(("ref_reset", "elastic", "lora"))},
    **{"beta": "β={}", **OURS, "learning_rate": "lr={}", "max_steps": "{} steps"},
}


def matters(key: str, config: dict) -> bool:
    """Whether a number of a run with this configuration depends on a key of it."""
    return key not in REPETITION_KEYS and (key not in EFFECTIVE_WITH or EFFECTIVE_WITH[key].is_met(config.get))


def repetitions(runs: list[Run]) -> list[list[Run]]:
    """
    Groups of runs of one variant and one configuration, seeds aside, that of an embedded base too, and keys on which
    no number depends; in given order.
    """
    groups = {}
    for run in runs:
        settings = {key: value for key, value in run.config.items() if matters(key, run.config)}
        settings[MODEL] = run.base[0]
        groups.setdefault((run.variant, repr(sorted(settings.items()))), []).append(run)
    return list(groups.values())


def seed_count(group: list[Run]) -> int:
    """Different pairs of the base's seed and the training seed."""
    return len({run.repetition for run in group})


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


def belonging(combinations: list[tuple[Run, Run]]) -> list[tuple[Run, Run]]:
    """
    Of combinations of two runs those that belong together: on the same ground, or all where none is, and of these the
    ones that share the seeds of base and training, or all where none does.
    """
    same = [(a, b) for a, b in combinations if a.ground == b.ground] or combinations
    return [(a, b) for a, b in same if a.repetition == b.repetition] or same


def matched_control(run: Run, runs: list[Run]) -> Run | None:
    """
    The control on the same ground and of the same seeds of base and training, which differs from the run in nothing
    but the arm; of several the one with the same `beta`, else the first. `None` without one.
    """
    controls = [
        other
        for other in runs
        if other.variant == "control" and other.ground == run.ground and other.repetition == run.repetition
    ]
    same_beta = (control for control in controls if control.config.get("beta") == run.config.get("beta"))
    return next(same_beta, controls[0] if controls else None)


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
    A short name per configuration, as [`repetitions`] groups them, no two alike: the variant, with the settings that
    differ among its configurations and are not off: `A K=40 β=1`, `A K=100 β=1`, `C soft 0.1`.
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
