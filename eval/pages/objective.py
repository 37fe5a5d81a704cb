"""A and B optimise different objectives, and wherever they stand side by side a reader is told."""

from trl_prorl.eval.run_folder.run import Run
from trl_prorl.variants import DIFFERENT_OBJECTIVE, optimises_another_objective


FOOTNOTE = "B optimises a different objective from A: KL to the sampling policy, not to a reference."


def objectives_differ(runs: list[Run]) -> bool:
    """Whether A stands beside a variant of another objective."""
    variants = {run.variant for run in runs}
    return "A" in variants and any(map(optimises_another_objective, variants))


def objective_notes(runs: list[Run]) -> list[str]:
    """The note of a table."""
    return [DIFFERENT_OBJECTIVE] if objectives_differ(runs) else []


def with_objective(runs: list[Run], text: str) -> str:
    """The caption of a picture."""
    return " ".join([text, *objective_notes(runs)])


def footnote(runs: list[Run]) -> str:
    """What a picture file says that stands alone."""
    return FOOTNOTE if objectives_differ(runs) else ""
