"""Check prompts, columns and lengths: of a data set before the first step, of a stream as it is read."""

import heapq
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import torch
from datasets import Dataset

from ..errors import InputError
from ..text import cut, one_line, quoted, short


logger = logging.getLogger(__name__)

Tokenize = Callable[[list], list[list[int]]]  # prompts to token ids

# Arguments that TRL passes to every reward function. They override columns of the same name.
RESERVED = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
CURE = "Fix the row, or drop it with dataset.filter(...)."
LONGEST = 1000  # rows with the most bytes that are searched for the longest prompt
OF_A_MESSAGE = 16  # most tokens that a chat template adds to a message


def reserved_names(functions: Iterable[Any], has_environment: bool) -> tuple[str, ...]:
    """
    Return names that columns must not have: TRL passes something else to reward functions under them. Models get no
    columns.
    """
    if has_environment:
        return (*RESERVED, "environments")
    only_models = all(isinstance(function, str | torch.nn.Module) for function in functions)
    return () if only_models else RESERVED


def check_names(columns: Iterable[str], which: str, reserved: Collection[str]) -> None:
    """Raise `InputError` for a column of the data set `which` that TRL does not pass to reward functions."""
    for name in columns:
        if name in reserved:
            raise InputError(
                f"{which} has a column {name!r}, under whose name reward functions receive an argument of TRL's. "
                f"Rename the column: dataset.rename_column({name!r}, 'my_{name}')."
            )


def named_sets(train: Any, evaluation: Any) -> dict[str, Any]:
    """Return the data sets of a trainer by argument; there may be several evaluation sets."""
    sets = {"train_dataset": train}
    if isinstance(evaluation, Mapping):
        sets.update({f"eval_dataset[{name!r}]": rows for name, rows in evaluation.items()})
    else:
        sets["eval_dataset"] = evaluation
    return sets


def check_sets(sets: Mapping[str, Any], reserved: Collection[str], may_prefill: bool) -> None:
    """
    Raise `InputError` for a wrong column or prompt. [`check_batch`] checks streams and rows that are transformed when
    read. `may_prefill`: prompts may end with a message of the assistant, because a rollout function reads them.
    """
    for which, rows in sets.items():
        check_names(getattr(rows, "column_names", None) or (), which, reserved)
        check_prompts(rows, which, may_prefill)


def check_prompts(rows: Any, which: str, may_prefill: bool = False) -> None:
    for index, prompt in prompts_of(rows):
        _check_prompt(prompt, f"{which}, row {index}", may_prefill)


def prompts_of(rows: Any) -> Iterator[tuple[int, Any]]:
    """Yield index and prompt of a [`~datasets.Dataset`]; nothing for other objects."""
    if not isinstance(rows, Dataset) or "prompt" not in rows.column_names or is_transformed(rows):
        return
    parts = rows.select_columns(["prompt"]).with_format(None).iter(batch_size=1000)
    yield from enumerate(prompt for part in parts for prompt in part["prompt"])


def is_transformed(rows: Dataset) -> bool:
    """Return whether a transform makes rows as they are read: other formats, such as tensors, change no value."""
    return rows.format["type"] == "custom"


def has_prompts(rows: Dataset) -> bool:
    """Return whether rows have prompts, which a transform may make as they are read."""
    is_made = is_transformed(rows) and len(rows) > 0
    return "prompt" in (rows[0] if is_made else rows.column_names)


def read_prompts(rows: Dataset) -> list:
    """Return all prompts, also those that a transform makes."""
    return [row["prompt"] for row in rows] if is_transformed(rows) else list(rows["prompt"])


def check_template(sets: Mapping[str, Any]) -> None:
    """Raise `InputError` for messages, because the tokenizer has no chat template."""
    for which, rows in sets.items():
        for index, prompt in prompts_of(rows):
            if not isinstance(prompt, str):
                raise InputError(
                    f"{which}, row {index}: prompt={short(prompt)} is a list of messages, but the tokenizer has no "
                    "chat template. Set tokenizer.chat_template, or use text prompts."
                )


def _check_prompt(prompt: Any, where: str, may_prefill: bool) -> None:
    is_chat = isinstance(prompt, list) and prompt != [] and all(map(_is_message, prompt))
    if not isinstance(prompt, str) and not is_chat:
        raise InputError(f"{where}: prompt={short(prompt)} must be text, or messages with a role and content. {CURE}")
    if is_chat and prompt[-1]["role"] == "assistant" and not may_prefill:
        raise InputError(
            f"{where}: prompt={short(prompt)} ends with a message of the assistant, which the chat template ends "
            "before the completion begins. Put its text at the end of the chat template's generation prompt, or use "
            "text prompts that end with it."
        )


def _is_message(message: Any) -> bool:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        return False
    content = message.get("content")
    if isinstance(content, list):
        return all(isinstance(part, dict) and "type" in part for part in content)
    return isinstance(content, str) or (content is None and bool(message.get("tool_calls")))


def check_batch(
    rows: list[Mapping[str, Any]],
    which: str,
    reserved: Collection[str],
    needs_prompts: bool,
    may_prefill: bool,
) -> None:
    """Raise `InputError` for rows as they are read, with unknown index."""
    check_names(rows[0], which, reserved)
    for row in rows:
        if "prompt" in row or needs_prompts:
            _check_prompt(row.get("prompt"), f"a row of {which}", may_prefill)
    if len({isinstance(row.get("prompt"), str) for row in rows}) > 1:
        raise InputError(
            f"{which} mixes text prompts and lists of messages in one batch, for example "
            f"prompt={short(rows[0]['prompt'])}. Convert all prompts to lists of messages."
        )


class Context:
    """
    The context length of a model, and checks of prompts against it.

    Args:
        policy (`torch.nn.Module`): The model.
        completion (`int`): The longest completion, in tokens.
        limit (`int`, *optional*): vLLM's limit on prompt and completion together.
    """

    def __init__(self, policy: torch.nn.Module, completion: int, limit: int | None):
        self.completion = completion
        positions = getattr(policy.config.get_text_config(), "max_position_embeddings", None)
        self.ends = positions is not None and has_learned_positions(policy, positions)
        self.positions = min((size for size in (positions, limit) if size is not None), default=None)
        self._said = False

    def may_exceed(self, tokens: int) -> bool:
        return self.positions is not None and tokens + self.completion > self.positions

    def check(self, tokens: int, where: str) -> None:
        """
        Raise `InputError` for a prompt that exceeds learned positions. Other models can continue beyond their
        positions: a warning is logged once.
        """
        if not self.may_exceed(tokens):
            return
        line = (
            f"{where}: the prompt has {tokens} tokens, which together with {self.completion} of the completion exceed "
            f"the model's context of {self.positions}. Lower max_completion_length, or drop long prompts."
        )
        if self.ends:
            raise InputError(line)
        if not self._said:
            logger.warning(line)
        self._said = True

    def check_longest(self, prompts: list[list[int]]) -> None:
        """Check the prompts of a batch: those of a stream are not known earlier."""
        lengths = list(map(len, prompts))
        if 0 in lengths:
            raise InputError(f"row {lengths.index(0)} of the batch: the prompt has no tokens. {CURE}")
        self.check(max(lengths), f"row {lengths.index(max(lengths))} of the batch")


def has_learned_positions(policy: torch.nn.Module, positions: int) -> bool:
    """Return whether a model has a table of position embeddings, which ends at `positions`."""
    tokens = policy.get_input_embeddings()
    tables = [module for module in policy.modules() if isinstance(module, torch.nn.Embedding) and module is not tokens]
    return any(positions <= table.num_embeddings <= positions + 8 for table in tables)  # OPT has two more


def check_tokens(
    sets: Mapping[str, Any],
    tokenize: Tokenize,
    context: Context,
    end: tuple[str, int],
) -> None:
    """
    Tokenize the prompts that may be the longest, and one of each kind that a tokenizer or a chat template may reject.
    `end` is the end-of-sequence token and its id: a warning names a prompt to which it is appended.

    Raises:
        `InputError`: A prompt cannot be tokenized, is empty, or is too long.
    """
    for which, rows in sets.items():
        kinds: dict[Any, tuple[int, Any]] = {}
        for index, prompt in prompts_of(rows):
            kinds.setdefault(_kind(prompt), (index, prompt))
        counts = [_count_tokens(prompt, tokenize, f"{which}, row {index}", end) for index, prompt in kinds.values()]
        around = max(counts, default=0)  # at least what a chat template adds
        for index, prompt in heapq.nlargest(LONGEST, prompts_of(rows), key=lambda row: _size(row[1])):
            where = f"{which}, row {index}"
            if context.may_exceed(_size(prompt) + around):
                context.check(_count_tokens(prompt, tokenize, where), where)


def _kind(prompt: Any) -> Any:
    """
    Return whether a text is empty, or the roles and types of messages: these decide whether a prompt can be tokenized.
    """
    if isinstance(prompt, str):
        return bool(prompt.strip())
    return tuple((message["role"], type(message.get("content"))) for message in prompt)


def _size(prompt: Any) -> int:
    """Return an upper bound on a prompt's tokens, without the chat template: one per byte."""
    if isinstance(prompt, str):
        return len(prompt.encode(errors="replace"))
    return sum(len(str(message.get("content")).encode(errors="replace")) + OF_A_MESSAGE for message in prompt)


def _count_tokens(
    prompt: Any,
    tokenize: Tokenize,
    where: str,
    end: tuple[str, int] | None = None,
) -> int:
    try:
        ids = tokenize([prompt])[0]
    except Exception as error:
        said = cut(one_line(error))
        raise InputError(
            f"{where}: the prompt {quoted(prompt)} cannot be tokenized: {type(error).__name__}: {said}. {CURE}"
        ) from error
    if len(ids) == 0:
        raise InputError(f"{where}: prompt={short(prompt)} has no tokens. {CURE}")
    if end is not None and ids[-1] == end[1] and not (isinstance(prompt, str) and prompt.endswith(end[0])):
        logger.warning(
            f"{where}: the tokenizer appends {end[0]!r}, the end of a sequence, to the prompt {quoted(prompt)}, and "
            "the model continues after it. Set tokenizer.add_eos_token = False, or use a chat template with a "
            "generation prompt."
        )
    return len(ids)


def has_image_columns(dataset) -> bool:
    """Return whether a data set has columns in which TRL looks for images."""
    columns = getattr(dataset, "column_names", None) or ()
    return not {"image", "images"}.isdisjoint(columns)


def shows_images(row: Mapping) -> bool:
    """Return whether TRL finds images in a row: in its column, or in parts of its messages."""
    images = row.get("images")
    if row.get("image") is not None or (images is not None and len(images) > 0):
        return True
    messages = row["prompt"] if isinstance(row["prompt"], list) else []
    contents = [message["content"] for message in messages if isinstance(message.get("content"), list)]
    return any(part.get("type") == "image" for parts in contents for part in parts)


def is_text_only(dataset) -> bool:
    """Return whether features show that all prompts are text, or messages of text: not those of a transform's rows."""
    if isinstance(dataset, Dataset) and is_transformed(dataset):
        return False
    feature = (getattr(dataset, "features", None) or {}).get("prompt")
    message = getattr(feature, "feature", feature)  # of a list of messages, one
    content = message.get("content") if isinstance(message, dict) else message
    return getattr(content, "dtype", None) == "string" and not has_image_columns(dataset)


def has_images(trainer) -> bool:
    """Return whether columns, messages, or replies of tools and environments may have images."""
    if not trainer.is_vlm:
        return has_image_columns(trainer.train_dataset)
    if trainer.tools or trainer.environment_factories is not None:
        return True
    sets = named_sets(trainer.train_dataset, trainer.eval_dataset).values()
    return not all(rows is None or is_text_only(rows) for rows in sets)


def images_refused(anchor: str, args) -> str:
    """Return the error for prompts with images if we score an anchor, from token ids alone, and not TRL."""
    key, cure = {
        "ref": ("ref_compute='naive_epoch'", "ref_compute: cached"),
        "old": (f"kl_in='reward' with {args.schedule}", "kl_in: loss"),
        "base": (f"beta_base={args.beta_base}", "beta_base: 0"),
    }[anchor]
    return f"{key} does not support prompts with images. Set {cure}."


def check_images(trainer) -> None:
    """Raise an error for prompts with images if the model or a key supports only text."""
    if not has_images(trainer):
        return
    args = trainer.args
    if args.skip_zero_rows:
        raise ValueError("skip_zero_rows=True does not support prompts with images. Set skip_zero_rows: false.")
    if args.dynamic_sampling_rounds:
        raise ValueError(
            f"dynamic_sampling_rounds={args.dynamic_sampling_rounds} does not support prompts with images. Set "
            "dynamic_sampling_rounds: 0."
        )
    # Messages, tools and environments of a model that sees may be text: `score_anchor` looks at the batch.
    has_column = has_image_columns(trainer.train_dataset)
    if has_column and args.ref_compute == "naive_epoch" and args.beta != 0.0:
        raise ValueError(images_refused("ref", args))
    if has_column and args.beta_base != 0.0:
        raise ValueError(images_refused("base", args))
    if has_column and args.kl_in == "reward" and args.on_policy and not args.corrects_sampler:
        raise ValueError(images_refused("old", args))
    if not trainer.is_vlm:
        raise ValueError(
            "train_dataset has an image column, but the model reads only text. Remove the column, or train a "
            "vision-language model with its processor."
        )
