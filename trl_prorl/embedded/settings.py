"""What an embedded model is made with."""

from dataclasses import dataclass, replace

from .shipped import DEFAULT


@dataclass(frozen=True)
class EmbeddedSettings:
    """
    The settings an embedded model is made with.

    Args:
        task (`str`), level (`int`):
            The task it is warm-started on, or the name of several tasks ([`TAUGHT`]) in equal parts.
        wrong_share (`float`):
            Share of demonstrations that follow a wrong rule; of several tasks, among those of the first.
        rows, steps, batch_size (`int`), learning_rate, adam_beta2 (`float`), seed, threads (`int`):
            The supervised run. Another number of threads rounds differently as well.
        hidden_size, layers, heads, intermediate_size (`int`), initializer_range (`float`):
            The network. Its weights start larger than a wide network's 0.02.
        stored (`str`): `"bfloat16"`: the trained weights are rounded to bf16 and stored in two bytes each.
            `"float32"`: as they are. They are loaded as fp32 either way.
    """

    task: str = "reverse_digits"
    level: int = 3
    wrong_share: float = 0.55
    rows: int = 8192
    steps: int = 700
    batch_size: int = 64
    learning_rate: float = 3e-3
    seed: int = 0
    hidden_size: int = 128
    layers: int = 3
    heads: int = 4
    intermediate_size: int = 384
    initializer_range: float = 0.06
    adam_beta2: float = 0.95
    threads: int = 1
    stored: str = "float32"

    @property
    def name(self) -> str:
        """`embedded:TASK:SEED`."""
        return f"embedded:{self.task}:{self.seed}"


TAUGHT = {"three_tasks": ("reverse_digits", "sorting", "sums")}  # all but the first by right answers alone
FAMILIES = {
    "reverse_digits": EmbeddedSettings(),
    "sorting": EmbeddedSettings(task="sorting", wrong_share=0.6, steps=400),
    "sums": EmbeddedSettings(task="sums", wrong_share=0.65, steps=900),
    "three_tasks": EmbeddedSettings(task="three_tasks", rows=24576, steps=2000),
}


def settings_of(task: str = "reverse_digits", seed: int = 0, threads: int = 1) -> EmbeddedSettings:
    """
    The settings of an embedded model. All but the first one are stored in bf16.

    Raises:
        `ValueError`: if there are no demonstrations for the task.
    """
    if task not in FAMILIES:
        raise ValueError(f"--task {task}: there are demonstrations for {', '.join(FAMILIES)}. Give one of these.")
    settings = replace(FAMILIES[task], seed=seed, threads=threads)
    return settings if settings.name == DEFAULT else replace(settings, stored="bfloat16")
