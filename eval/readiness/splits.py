"""Are the prompts of validation and test kept out of training?"""

from collections.abc import Mapping, Sequence

from eval.readiness.finding import Finding, advice


def content(prompt: Sequence[Mapping] | str) -> str:
    """A prompt's text, spaces made even."""
    text = prompt if isinstance(prompt, str) else "\n".join(str(message.get("content")) for message in prompt)
    return " ".join(text.split())


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
