"""Which runs can be compared prompt by prompt, and which belong together."""

from trl_prorl.eval.run_folder.run import Run


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


# Settings that pose the problem that a run solves: arms are compared where they agree in these.
GROUND = ("task", "task_level", "task_options", "dataset_name", "max_steps", "learning_rate")


def ground(run: Run) -> str:
    """The problem that a run solves, the seed of an embedded base aside."""
    return repr([run.base[0], *(run.config.get(key) or None for key in GROUND)])


def belonging(combinations: list[tuple[Run, Run]]) -> list[tuple[Run, Run]]:
    """
    Of combinations of two runs those that belong together: on the same ground, or all where none is, and of these the
    ones that share the seeds of base and training, or all where none does.
    """
    same = [(a, b) for a, b in combinations if ground(a) == ground(b)] or combinations
    return [(a, b) for a, b in same if a.repetition == b.repetition] or same


def matched_control(run: Run, runs: list[Run]) -> Run | None:
    """
    The control on the same ground and of the same seeds of base and training, which differs from the run in nothing
    but the arm; of several the one with the same `beta`, else the first. `None` without one.
    """
    controls = [
        other
        for other in runs
        if other.variant == "control" and ground(other) == ground(run) and other.repetition == run.repetition
    ]
    same_beta = (control for control in controls if control.config.get("beta") == run.config.get("beta"))
    return next(same_beta, controls[0] if controls else None)
