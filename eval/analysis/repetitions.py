"""Which runs are repetitions of one configuration, and what sets configurations of a variant apart."""

from eval.run_folder.run import Run
from trl_prorl.needs import NEEDS, TASK_NEEDS
from trl_prorl.run.identity import HARMLESS


# Settings in which runs may differ and still be repetitions of one another: seeds, and what no number depends on. The
# model and the data, which a resume tells apart by content, are known by name alone here.
REPETITION_KEYS = ({"seed", "data_seed", "task_seed", "logging_dir"} | HARMLESS) - {
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
EFFECTIVE_WITH = {**NEEDS, **TASK_NEEDS, **dict.fromkeys(VALIDATION_KEYS, NEEDS["ref_reset_metric"])}


def matters(key: str, config: dict) -> bool:
    """Whether a number of a run with this configuration depends on a key of it."""
    return key not in REPETITION_KEYS and (key not in EFFECTIVE_WITH or EFFECTIVE_WITH[key].is_met(config.get))


def repetitions(runs: list[Run]) -> list[list[Run]]:
    """Groups of runs of one variant and one configuration, keys aside on which no number depends; in given order."""
    groups = {}
    for run in runs:
        settings = {key: value for key, value in run.config.items() if matters(key, run.config)}
        groups.setdefault((run.variant, repr(sorted(settings.items()))), []).append(run)
    return list(groups.values())


def seed_count(group: list[Run]) -> int:
    return len({str(run.seed) for run in group})


def configuration_labels(groups: list[list[Run]]) -> list[str]:
    """
    A short name per configuration: its variant, with the settings that set it apart from others of the variant. A
    setting that does nothing in a configuration is not named there, as α where the reset is hard.

    Args:
        groups (`list[list[Run]]`): As [`repetitions`] gives them.
    """
    labels = []
    for group in groups:
        own = group[0].config
        same_variant = [other[0].config for other in groups if other[0].variant == group[0].variant]
        keys = sorted({key for config in same_variant for key in config if matters(key, own)})
        differing = [
            key
            for key in keys
            if len({repr(config.get(key)) if matters(key, config) else "no effect" for config in same_variant}) > 1
        ]
        settings = ", ".join(f"{key}: {own.get(key, 'default')}" for key in differing)
        labels.append(f"{group[0].variant} ({settings})" if settings else group[0].variant)
    return labels


def mean_measured(values: list[float | None]) -> float | None:
    """Mean of the values that were measured; `None` if none was."""
    values = [value for value in values if value is not None]
    return sum(values) / len(values) if values else None
