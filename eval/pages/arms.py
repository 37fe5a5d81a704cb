"""What each arm is: in the lead in a few words, at the end in full."""

from trl_prorl.eval.analysis.frame import Frame
from trl_prorl.eval.pages.document import Bullets, Section, Text
from trl_prorl.eval.run_folder.run import Run
from trl_prorl.resets.triggers import KEYS as TRIGGERS
from trl_prorl.variants import VARIANTS


DESCRIBED_KEYS = (
    "beta",
    "beta_old",
    "beta_base",
    "kl_estimator",
    "ref_compute",
    *TRIGGERS,
    "ref_reset_mix",
    "optimizer_reset",
    "optimizer_reset_alpha",
)


def arm_list(runs: list[Run]) -> list[str]:
    """
    What each arm is: its variant in words, its seed and the settings that set it apart, then what all arms share.
    """

    def described(run, keys):
        return ", ".join(f"`{key}: {run.config[key]}`" for key in keys if run.config.get(key))

    common = [key for key in DESCRIBED_KEYS if len({repr(run.config.get(key)) for run in runs}) == 1]
    lines = []
    for run in runs:
        seed = "seed not recorded" if run.seed is None else f"seed {run.seed}"
        description = (
            VARIANTS[run.variant].description if run.variant in VARIANTS else "a variant this report does not know"
        )
        settings = described(run, [key for key in DESCRIBED_KEYS if key not in common])
        if run.without_reset:
            description = f"{description}; this run {run.without_reset}"
        lines.append(f"**{run.name}** ({run.variant}, {seed}): {description}. {settings}".rstrip())
    if described(runs[0], common):
        lines.append(f"All arms: {described(runs[0], common)}")
    return lines


def _shared(runs: list[Run], key: str) -> str:
    values = dict.fromkeys(str(run.config.get(key, "default")) for run in runs)
    return ", ".join(f"`{value}`" for value in values)


def _batches(runs: list[Run]) -> str:
    """Completions of an optimizer step, on each device, and of a prompt, by TRL's defaults where none is given."""
    keys = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "num_generations": 8}
    values = [[run.config.get(key) or default for key, default in keys.items()] for run in runs]
    return ", ".join(
        dict.fromkeys(f"`{size * steps}` completions ({group} a prompt)" for size, steps, group in values)
    )


def lead(runs: list[Run]) -> list[Text]:
    """What was compared."""
    variants = dict.fromkeys(run.variant for run in runs)

    def named(variant: str) -> str:
        said = {run.without_reset for run in runs if run.variant == variant}
        told = said.pop() if len(said) == 1 else None
        told = told or (VARIANTS[variant].short if variant in VARIANTS else None)
        return f"{variant} ({told})" if told else variant

    arms = ", ".join(map(named, variants))
    seeds = sorted({str(run.seed) for run in runs if run.seed is not None})
    return [
        Text(
            f"Model {_shared(runs, 'model_name_or_path')}, task {_shared(runs, 'task')}, level "
            f"{_shared(runs, 'task_level')}, learning rate {_shared(runs, 'learning_rate')}, batch {_batches(runs)}. "
            "Base means the policy as a run began."
        ),
        Text(
            f"Compared: {arms}{f'; training seed{chr(115) * (len(seeds) > 1)} ' + ', '.join(seeds) if seeds else ''}."
        ),
    ]


def sections(frame: Frame) -> list[Section]:
    return [Section("What each arm is", [Bullets(arm_list(frame.runs))])]
