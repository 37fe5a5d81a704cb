"""What the chat template makes of a run's prompts: does their content arrive, as text, and the same on every day?"""

import json
from collections.abc import Sequence
from typing import Any

from trl_prorl.eval.readiness.finding import LOOK, STOP, Finding, make_finding


TEMPLATE = "chat template"
ALIKE = "prompts that differ as tokens"


def template_error(error: Exception) -> Finding:
    """Return the finding about a chat template that fails."""
    cause = f"{type(error).__name__}: {error}: fix the chat template of the tokenizer, or the prompts' roles and parts"
    return Finding(TEMPLATE, "fails", cause, STOP)


def prompt_findings(prompts: Sequence, ids: Sequence[Sequence[int]], tokenizer: Any, settings: dict) -> list[Finding]:
    """
    Return the findings about P prompts, texts or lists of messages, and their token ids; `settings` are the arguments
    of the chat template.
    """
    different = len({json.dumps(prompt, sort_keys=True, default=str) for prompt in prompts})
    arrived = len(set(map(tuple, ids)))
    cure = "the chat template drops content, such as parts or a role that it does not know: fix it, or the prompts"
    level = STOP if arrived == 1 else LOOK
    findings = [make_finding(ALIKE, f"{arrived} of {different}", arrived < different, cure, level, arrived=arrived)]
    template = tokenizer.chat_template
    if isinstance(prompts[0], str) or template is None:
        return findings
    parts = [message["content"] for message in prompts[0] if isinstance(message["content"], list)]
    text = tokenizer.decode(ids[0])
    if any(str(content) in text for content in parts):
        cure = "it writes Python's lists into the prompts: give each message's content as text"
        return [*findings, Finding(TEMPLATE, "prints parts", cure, STOP)]
    if "strftime_now" in template and "date_string" not in settings:
        cure = "a resume on another day has other prompts: set chat_template_kwargs: {date_string: ...}"
        return [*findings, Finding(TEMPLATE, "writes today's date", cure, LOOK)]
    return findings
