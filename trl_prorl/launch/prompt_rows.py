"""
Rows that cannot be trained or evaluated on: their prompts, their columns, their length. Those of a data set are looked
at before the first step, those of a stream as they come.
"""

import heapq
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from datasets import Dataset

from ..errors import InputError
from ..text import quoted, short


logger = logging.getLogger(__name__)

# What TRL hands to every reward function under these names, whatever a column of that name holds.
RESERVED = {
    "prompts": "the prompts",
    "completions": "the sampled completions",
    "completion_ids": "the sampled tokens",
    "trainer_state": "the state of the trainer",
    "log_extra": "a function that logs a column",
    "log_metric": "a function that logs a metric",
}
ENVIRONMENTS = {"environments": "the environments"}
CURE = "Correct the row, or drop it: dataset.filter(...)."
LONGEST = 1000  # rows of most bytes, among which the prompts of most tokens are sought
OF_A_MESSAGE = 16  # tokens that a chat template puts around a message, at most


def reserved_names(functions: Iterable[Any], has_environment: bool) -> dict[str, str]:
    """
    Return the names that columns must not have, with what TRL hands to reward functions by them; none where the
    rewards are models alone, which get no columns.
    """
    only_models = all(isinstance(function, str | torch.nn.Module) for function in functions)
    if has_environment:
        return RESERVED | ENVIRONMENTS
    return {} if only_models else RESERVED


def check_names(columns: Iterable[str], which: str, reserved: Mapping[str, str]) -> None:
    """Raise `InputError` for a column of the data set `which` that a reward function could not get."""
    for name in columns:
        if name in reserved:
            raise InputError(
                f"{which} has a column {name!r}, and reward functions get {reserved[name]} by that name, not the "
                f"column. Rename it: dataset.rename_column({name!r}, 'my_{name}')."
            )


def named_sets(train: Any, evaluation: Any) -> dict[str, Any]:
    """Return the data sets of a trainer by the words for them; the evaluation may be several by name."""
    sets = {"train_dataset": train}
    if isinstance(evaluation, Mapping):
        sets.update({f"eval_dataset[{name!r}]": rows for name, rows in evaluation.items()})
    else:
        sets["eval_dataset"] = evaluation
    return sets


def check_sets(sets: Mapping[str, Any], reserved: Mapping[str, str]) -> None:
    """
    Refuse columns and prompts of data sets; the prompts of streams, and of rows that are made as they are read, come
    later to [`check_batch`].

    Raises:
        `InputError`: The line names the column, or the row, its value and the cure.
    """
    for which, rows in sets.items():
        check_names(getattr(rows, "column_names", None) or (), which, reserved)
        check_prompts(rows, which)


def check_prompts(rows: Any, which: str) -> None:
    """Raise `InputError` for the first prompt of a data set that is none."""
    for index, prompt in prompts_of(rows):
        fault = find_fault(prompt)
        if fault is not None:
            raise InputError(f"{which}, row {index}: prompt={short(prompt)} {fault}. {CURE}")


def prompts_of(rows: Any) -> Iterator[tuple[int, Any]]:
    """Yield index and prompt of the rows of a [`~datasets.Dataset`]; none of anything else."""
    if not isinstance(rows, Dataset) or "prompt" not in rows.column_names or rows.format["type"] == "custom":
        return
    index = 0
    for part in rows.select_columns(["prompt"]).with_format(None).iter(batch_size=1000):
        for prompt in part["prompt"]:
            yield index, prompt
            index += 1


def find_fault(prompt: Any) -> str | None:
    """Say what is wrong with a prompt; `None` if it is a text or a list of messages."""
    if prompt is None:
        return "is missing"
    if isinstance(prompt, str):
        return None
    if not isinstance(prompt, list):
        return "is neither a text nor a list of messages"
    if not prompt:
        return "has no message"
    for message in prompt:
        fault = _fault_of_message(message)
        if fault is not None:
            return fault
    return None


def _fault_of_message(message: Any) -> str | None:
    if not isinstance(message, dict):
        return "has a message that is no mapping of role and content"
    if not isinstance(message.get("role"), str):
        return "has a message without a role"
    content = message.get("content")
    if content is None and not message.get("tool_calls"):
        return "has a message without content"
    if content is not None and not isinstance(content, str | list):
        return f"has a message whose content is {short(content)}, which is no text"
    if isinstance(content, list) and not all(isinstance(part, dict) and "type" in part for part in content):
        return "has a message whose content is a list of other things than parts with a type"
    return None


def check_batch(rows: list[Mapping[str, Any]], which: str, reserved: Mapping[str, str], needs_prompts: bool) -> None:
    """Raise `InputError` for rows as they come, of a stream for one; their index is not known."""
    check_names(rows[0], which, reserved)
    for row in rows:
        if "prompt" not in row and not needs_prompts:
            continue
        fault = find_fault(row.get("prompt"))
        if fault is not None:
            raise InputError(f"a row of {which}: prompt={short(row.get('prompt'))} {fault}. {CURE}")
    if len({isinstance(row.get("prompt"), str) for row in rows}) > 1:
        raise InputError(
            f"{which} has prompts of both kinds in one batch, {short(rows[0]['prompt'])} among them: texts and lists "
            "of messages. Make all of them lists of messages."
        )


class Context:
    """
    The positions of a model, and the tokens of prompts against them.

    Args:
        policy (`torch.nn.Module`): The model.
        completion (`int`): The most tokens of a completion.
        limit (`int`, *optional*): A smaller limit on both together, of vLLM.
    """

    def __init__(self, policy: torch.nn.Module, completion: int, limit: int | None = None):
        self.completion = completion
        positions = getattr(policy.config.get_text_config(), "max_position_embeddings", None)
        self.ends = positions is not None and has_learned_positions(policy, positions)
        self.positions = min((size for size in (positions, limit) if size is not None), default=None)
        self._said = False

    def may_exceed(self, tokens: int) -> bool:
        """Return whether a prompt of so many tokens, with the longest completion, leaves the positions."""
        return self.positions is not None and tokens + self.completion > self.positions

    def check(self, tokens: int, where: str) -> None:
        """
        Look at a prompt of so many tokens.

        Raises:
            `InputError`: It leaves the positions of a model that has no more. Another model goes on without having
                learned such positions: a line says so, once.
        """
        if not self.may_exceed(tokens):
            return
        line = (
            f"{where}: the prompt has {tokens} tokens; with max_completion_length={self.completion} that exceeds the "
            f"{self.positions} positions of the model. Lower max_completion_length, or drop long prompts."
        )
        if self.ends:
            raise InputError(line)
        if not self._said:
            logger.warning(line)
        self._said = True

    def check_longest(self, prompts: list[list[int]]) -> None:
        """Look at the prompts of a batch, as [`check`] does; a stream's are not known before."""
        lengths = list(map(len, prompts))
        if 0 in lengths:
            raise InputError(f"row {lengths.index(0)} of the batch: the prompt has no tokens: an empty text. {CURE}")
        self.check(max(lengths), f"row {lengths.index(max(lengths))} of the batch")


def has_learned_positions(policy: torch.nn.Module, positions: int) -> bool:
    """Return whether a model looks its positions up in a table, beyond whose end there is nothing."""
    tokens = policy.get_input_embeddings()
    tables = [module for module in policy.modules() if isinstance(module, torch.nn.Embedding) and module is not tokens]
    return any(positions <= table.num_embeddings <= positions + 8 for table in tables)  # OPT has two more


def check_tokens(sets: Mapping[str, Any], tokenize: Callable[[list], list[list[int]]], context: Context) -> None:
    """
    Tokenize prompts of data sets: those that may be longest, and one of each kind that a tokenizer or a chat template
    may refuse.

    Raises:
        `InputError`: The line names the row that cannot be tokenized, has no tokens or is too long.
    """
    for which, rows in sets.items():
        kinds: dict[Any, tuple[int, Any]] = {}
        largest: list[tuple[int, int, Any]] = []  # a heap
        for index, prompt in prompts_of(rows):
            kinds.setdefault(_kind(prompt), (index, prompt))
            heapq.heappush(largest, (_size(prompt), -index, prompt))
            if len(largest) > LONGEST:
                heapq.heappop(largest)
        around = 0
        for index, prompt in kinds.values():
            around = max(around, _count_tokens(prompt, tokenize, f"{which}, row {index}"))
        for size, place, prompt in sorted(largest, reverse=True):
            if context.may_exceed(size + around):
                where = f"{which}, row {-place}"
                context.check(_count_tokens(prompt, tokenize, where), where)


def _kind(prompt: Any) -> Any:
    """Return what decides whether a prompt can be tokenized: whether a text is empty, or what messages are."""
    if isinstance(prompt, str):
        return bool(prompt.strip())
    return tuple((message["role"], type(message.get("content"))) for message in prompt)


def _size(prompt: Any) -> int:
    """Return the most tokens that a prompt can have, without what is put around it: one for each byte."""
    if isinstance(prompt, str):
        return len(prompt.encode(errors="replace"))
    return sum(len(str(message.get("content")).encode(errors="replace")) + OF_A_MESSAGE for message in prompt)


def _count_tokens(prompt: Any, tokenize: Callable[[list], list[list[int]]], where: str) -> int:
    try:
        tokens = len(tokenize([prompt])[0])
    except Exception as error:
        said = " ".join(str(error).split())[:200]
        raise InputError(
            f"{where}: the prompt {quoted(prompt)} cannot be tokenized: {type(error).__name__}: {said}. {CURE}"
        ) from error
    if tokens == 0:
        raise InputError(f"{where}: prompt={short(prompt)} has no tokens, so that nothing can follow it. {CURE}")
    return tokens
