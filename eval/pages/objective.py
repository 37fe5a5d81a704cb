"""A and B optimise different objectives, and wherever they stand side by side a reader is told."""

from eval.run_folder.run import Run
from trl_prorl.variants import DIFFERENT_OBJECTIVE


FOOTNOTE = "B optimises a different objective from A: KL to the sampling policy, not to a reference."


def both_a_and_b(runs: list[Run]) -> bool:
    """Whether A and B stand side by side, so that their objectives must be told apart."""
    return {"A", "B"} <= {run.variant for run in runs}


def objective_notes(runs: list[Run]) -> list[str]:
    """The note of a table."""
    return [DIFFERENT_OBJECTIVE] if both_a_and_b(runs) else []


def with_objective(runs: list[Run], text: str) -> str:
    """The caption of a picture."""
    return " ".join([text, *objective_notes(runs)])
