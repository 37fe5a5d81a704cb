"""
Completions of several turns, for a task that replies ([`~trl_prorl.tasks.base.Task.reply`]).

In training the task is the environment of TRL's `environment_factory`, which answers calls of tools and ends with a
turn that calls none. So every turn, whatever its text, is made a call. [`play`] samples the same tokens elsewhere.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedTokenizerBase
from trl.chat_template_utils import parse_response, supports_tool_calling

from ..errors import RewardError
from ..rewards import locate_error, own_traceback
from ..text import quoted, short


TOOL = "take_turn"
# In front of a base's chat template: a reply is a message of the user's, and no tool is described.
REPLIES = (
    "{%- set tools = none -%}{%- set turns = namespace(messages=[]) -%}{%- for message in messages -%}"
    "{%- set content = message.content ~ (message.tool_calls | tojson if message.tool_calls else '') -%}"
    "{%- set role = 'user' if message.role == 'tool' else message.role -%}"
    "{%- set turns.messages = turns.messages + [{'role': role, 'content': content}] -%}"
    "{%- endfor -%}{%- set messages = turns.messages -%}"
)


class ReplyFailed(BaseException):
    """
    Says, in its `error`, why a task could not reply.

    It is no `Exception`, because TRL gives those of a tool to the model, as the tool's answer.
    """

    def __init__(self, error: RewardError):
        super().__init__(str(error))
        self.error = error


def ask_reply(task, turns: Sequence[str], row: Mapping) -> str | None:
    """
    Ask a task for its reply, see [`~trl_prorl.tasks.base.Task.reply`].

    Raises:
        [`RewardError`]: The task raised, or its reply is no text.
    """
    prompt = quoted(row.get("prompt"))
    try:
        reply = task.reply(turns, row)
    except Exception as error:
        raised = f"raised {type(error).__name__}: {error}{locate_error(error, task.reply)}"
        raise RewardError(f"reply of task {task.name!r} {raised} for the prompt {prompt}.") from own_traceback(error)
    if not isinstance(reply, str | None):
        raise RewardError(
            f"reply of task {task.name!r} returned {short(reply)}, which is neither a string nor None, for the prompt "
            f"{prompt}."
        )
    return reply


def prepare_tokenizer(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """
    Change a tokenizer in place, so that its chat template takes replies, and it parses a text as a call of the one
    tool.

    Raises:
        `ValueError`: The base cannot chat.
    """
    template = tokenizer.chat_template or ""
    if tokenizer.eos_token is None or not template:
        raise ValueError("a multi-turn task needs a model with a chat template and an end-of-text token.")
    tokenizer.chat_template = template if template.startswith(REPLIES) else REPLIES + template
    call = {"type": "function", "function": {"name": TOOL, "arguments": {"text": "{content}"}}}
    tokenizer.response_template = {
        "defaults": {"role": "assistant"},
        "start_anchor_pattern": r"\A.*",  # everything
        "fields": {
            "tool_calls": {"close": tokenizer.eos_token, "content": "text", "repeats": True, "transform": call}
        },
    }
    if not supports_tool_calling(tokenizer):
        raise ValueError("a multi-turn task needs a model whose chat template supports several messages.")
    return tokenizer


def make_environment(task, max_tokens: int) -> type:
    """
    Make the environment of a task, as `environment_factory` takes it.

    TRL leaves out a reply that does not fit into the `max_tokens` of a completion, and ends the completion before it:
    that is how one ends here.
    """

    class Environment:
        def reset(self, **row) -> None:
            self._row = row
            self._turns = []

        def take_turn(self, text: str) -> str:
            """
            Take a turn.

            Args:
                text: The turn.
            """
            self._turns.append(join_lines(text))
            try:
                reply = ask_reply(task, self._turns, self._row)
            except RewardError as error:
                raise ReplyFailed(error) from error
            return " ".join(map(str, range(max_tokens + 1))) if reply is None else reply

    return Environment


def join_lines(text: str) -> str:
    """Join the lines of a text."""
    return " ".join(text.split())


def transcript(messages: Sequence[Mapping]) -> str:
    """
    Write the text of a completion: of its last message or, if it has turns, of each of them and each reply, by line.
    """
    calls = [first_call(message) for message in messages]
    has_turns = any(call.get("name") == TOOL for call in calls)
    if not has_turns:
        return str(messages[-1].get("content") or "")
    lines = []
    for call, message in zip(calls, messages, strict=True):
        text = call["arguments"]["text"] if call else message["content"]
        lines.append(join_lines(text))
    return "\n".join(lines)


def first_call(message: Mapping) -> Mapping:
    """Return the first tool call of a message, its name and arguments; an empty mapping if it has none."""
    calls = message.get("tool_calls")
    if not calls:
        return {}
    return calls[0].get("function", {})


def reply_ids(tokenizer: PreTrainedTokenizerBase, reply: str, **settings) -> list[int]:
    """
    Return the tokens from the end of a turn to the beginning of the next one.

    Args:
        tokenizer: From [`prepare_tokenizer`].
        reply (`str`): The reply.
        settings: Of the chat template.
    """
    messages = [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}]
    settings = {**settings, "tokenize": True, "return_dict": False}
    before = tokenizer.apply_chat_template(messages, **settings)
    messages.append({"role": "tool", "content": reply})
    after = tokenizer.apply_chat_template(messages, add_generation_prompt=True, **settings)
    # The end token is the turn's own; what a template writes behind it belongs to the reply.
    return after[len(before) - before[::-1].index(tokenizer.eos_token_id) :]


@dataclass
class Game:
    """Holds a game: its environment, the tokens of its prompt and of what followed, and its messages."""

    environment: Any
    prompt: list[int]
    ids: list[int] = field(default_factory=list)
    messages: list[dict] = field(default_factory=list)
    ended: bool = False


def play(
    task,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Mapping],
    prompts: Sequence[list[int]],
    max_tokens: int,
    complete: Callable[[list[list[int]], int], list[tuple[list[int], bool]]],
    **settings,
) -> tuple[list[str], list[tuple[list[int], bool]]]:
    """
    Play B games at once, as TRL does with [`make_environment`].

    Args:
        task ([`~trl_prorl.tasks.base.Task`]): The task that replies.
        tokenizer: From [`prepare_tokenizer`].
        rows (`Sequence[Mapping]`): B rows.
        prompts (`Sequence[list[int]]`): The tokens of their prompts.
        max_tokens (`int`): Tokens of a completion, replies included.
        complete (`Callable`): Takes tokens and a greatest length; returns a turn of each, and whether it ended.
        settings: Of the chat template.

    Returns:
        `list[str]`: The text of each completion.
        `list[tuple[list[int], bool]]`: Its tokens, and whether its last turn ended.

    Raises:
        [`RewardError`]: The task could not reply.
    """
    make = make_environment(task, max_tokens)
    games = [Game(make(), prompt) for prompt in prompts]
    for game, row in zip(games, rows, strict=True):
        game.environment.reset(**row)
    going = games
    while going:
        longest = max(1, max_tokens - min(len(game.ids) for game in going))
        drawn = complete([game.prompt + game.ids for game in going], longest)
        playing = going
        going = []
        for game, (turn, stopped) in zip(playing, drawn, strict=True):
            room = max_tokens - len(game.ids)
            game.ended = stopped and len(turn) <= room
            turn = turn[:room]
            if not turn:
                continue
            game.ids += turn
            message = parse_response(tokenizer, turn, prefix=[])
            game.messages.append(message)
            if not message.get("tool_calls"):
                continue
            try:
                reply = game.environment.take_turn(**message["tool_calls"][0]["function"]["arguments"])
            except ReplyFailed as failure:
                raise failure.error from failure.error.__cause__
            added = reply_ids(tokenizer, reply, **settings)
            if len(game.ids) + len(added) <= max_tokens:
                game.ids += added
                game.messages.append({"role": "tool", "name": TOOL, "content": reply})
                going.append(game)
    return [transcript(game.messages) for game in games], [(game.ids, game.ended) for game in games]
