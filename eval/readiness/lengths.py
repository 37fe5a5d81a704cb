"""Lengths in tokens against their limits."""

from collections.abc import Sequence

from trl_prorl.eval.readiness.finding import Finding, advice


def length_findings(
    prompts: Sequence[int], golds: Sequence[int], most: int | None, context: int | None
) -> list[Finding]:
    """
    Prompts against the model's context, gold answers against the greatest length of a completion.

    Args:
        prompts (`Sequence[int]`): Tokens of each prompt.
        golds (`Sequence[int]`): Tokens of each gold answer, without the end token; empty if there are none.
        most (`int`, *optional*): `max_completion_length`.
        context (`int`, *optional*): Tokens that the model can attend to.
    """
    longest, needed = max(prompts), max(prompts) + (most or 0)
    limit = f" of {context}" if context else ""
    too_long = context is not None and needed > context
    cure = "lower max_completion_length, or drop long prompts"
    findings = [
        Finding(
            "longest prompt, with a completion",
            f"{longest} tokens, {needed}{limit}",
            **advice(too_long, cure),
            values={"prompt": longest, "needed": needed, "context": context},
        )
    ]
    if golds and most is not None:
        room = sum(length < most for length in golds)  # one token more, for the end
        findings.append(
            Finding(
                "gold answers that fit max_completion_length",
                f"{room} of {len(golds)} (longest {max(golds)} of {most} tokens)",
                **advice(room < len(golds), f"set max_completion_length to {max(golds) + 1} or more"),
                values={"fit": room, "longest": max(golds), "limit": most},
            )
        )
    return findings
