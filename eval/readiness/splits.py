"""Are the prompts of validation and test kept out of training?"""

from collections.abc import Mapping, Sequence

from datasets import Dataset

from trl_prorl.eval.readiness.finding import Finding, advice


HELD_OUT = 128  # rows of a task's validation and test that are compared with training


def content(prompt: Sequence[Mapping] | str) -> str:
    """A prompt's text, spaces made even."""
    text = prompt if isinstance(prompt, str) else "\n".join(str(message.get("content")) for message in prompt)
    return " ".join(text.split())


def held_out_prompts(evaluation, task=None, seed: int = 0) -> dict[str, list]:
    """
    Prompts that a run does not train on, by the name of their set.

    Args:
        evaluation ([`~datasets.Dataset`] or `dict` of them, *optional*): What the run evaluates on.
        task ([`~tasks.Task`], *optional*): Gives its validation, if the run has none, and its test.
        seed (`int`, *optional*, defaults to `0`): The seed by which the run draws rows of the task.
    """
    several = isinstance(evaluation, Mapping)
    sets = {f"eval_{name}": rows for name, rows in evaluation.items()} if several else {"validation": evaluation}
    found = {
        name: list(rows["prompt"])
        for name, rows in sets.items()
        if isinstance(rows, Dataset) and "prompt" in rows.column_names
    }
    for split in ("validation", "test") if task is not None else ():
        for count in (HELD_OUT, None) if split == "test" or not found else ():
            try:
                found[split] = list(task.rows(split, count, seed=seed)["prompt"])
                break
            except (ValueError, TypeError, KeyError, OSError, NotImplementedError):
                continue  # fewer rows, or none
    return found


def split_findings(prompts: Mapping[str, Sequence]) -> list[Finding]:
    """
    Prompts that two splits share.

    Args:
        prompts (`Mapping[str, Sequence]`): The prompts of each split that there is, as chat messages or text.
    """
    texts = {split: {content(prompt) for prompt in of_split} for split, of_split in prompts.items()}
    names, findings = list(texts), []
    for place, first in enumerate(names):
        for second in names[place + 1 :]:
            shared = len(texts[first] & texts[second])
            cure = f"drop these prompts from {first}: what is measured on {second} would be what was learnt by heart"
            findings.append(
                Finding(
                    f"prompts of {second} in {first}",
                    f"{shared} of {len(texts[second])}",
                    **advice(shared > 0, cure),
                    values={"shared": shared, "of": len(texts[second])},
                )
            )
    return findings
