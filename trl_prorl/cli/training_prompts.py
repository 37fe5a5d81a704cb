"""Find evaluation prompts that also occur in the training set, by content."""

from collections.abc import Iterable
from typing import Any

from ..tasks.loaded import normalise_question
from .prompt_rows import prompts_of


def prompt_key(prompt: Any) -> str:
    """
    Return a prompt's messages except the system's, in lower case and with single spaces, as tasks compare questions.
    """
    if isinstance(prompt, str):
        return normalise_question(prompt)
    asked = [message for message in prompt if message["role"] not in ("system", "developer")]
    return normalise_question("\n".join(map(text_of, asked or prompt)))


def text_of(message: dict[str, Any]) -> str:
    """Return a message's content as text, also of parts."""
    content = message.get("content")
    if isinstance(content, list):
        return " ".join(str(part.get("text") or "") for part in content)
    return str(content)


class TrainingPrompts:
    """
    The prompts of a training set, for comparisons.

    Args:
        rows (`Any`): A stream is not compared.
        has_more (`bool`, *optional*, defaults to `False`): Whether the model reads more than a prompt's text (images,
            an environment's text). Then nothing is compared.
    """

    def __init__(self, rows: Any, has_more: bool = False):
        keys = set()
        if not has_more:
            keys = {hash(prompt_key(prompt)) for _, prompt in prompts_of(rows)}
        self._keys = keys

    def count(self, prompts: Iterable[Any]) -> int | None:
        """Count the prompts that occur in the training set; `None` if they cannot be compared."""
        if not self._keys:
            return None
        return sum(hash(prompt_key(prompt)) in self._keys for prompt in prompts)
