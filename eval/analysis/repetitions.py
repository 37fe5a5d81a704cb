"""Which runs are repetitions of one configuration: they differ in seeds, and in what no number depends on."""

from trl_prorl.eval.run_folder.run import MODEL, Run
from trl_prorl.keys import AN_EVALUATION, FREE_KEYS, KEYS, TASK_KEYS


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
