"""
Sample a model in batches from the full softmax. Each sample has its text, its tokens and its verdict.
"""

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache

import torch
from tqdm import tqdm
from transformers import GenerationConfig, StoppingCriteria
from trl import prepare_multimodal_messages

from trl_prorl.cli.model_defaults import describe_unused, plain_generation_config
from trl_prorl.errors import InputError
from trl_prorl.eval.run_folder.run import DEFAULT_MAX_COMPLETION_LENGTH, DEFAULT_TEMPERATURE
from trl_prorl.fast.compact import compact_sample
from trl_prorl.fast.families import listing_obstacle
from trl_prorl.fast.head import contiguous_states
from trl_prorl.fast.merged_copy import merge_obstacle
from trl_prorl.fast.recording import Recordings
from trl_prorl.guards.rewards import DeadlineExceeded, call_within
from trl_prorl.pass_at_k import as_verdict
from trl_prorl.text import cut, visible


logger = logging.getLogger(__name__)
MAX_PROMPT = 2**20  # characters
TEMPLATE_SECONDS = 60.0  # for the prompts of a batch; a thousand take less than one
# Keys of rollouts that are not used here, and their values if they are off.
ROLLOUTS_ONLY = {
    "top_p": 1.0,
    "top_k": 0,
    "min_p": None,
    "repetition_penalty": 1.0,
    "generation_kwargs": None,
    "thinking_budget": None,
}


@dataclass(frozen=True)
class SamplingSettings:
    """
    Sampling settings: everything that determines completions except model, prompts and seed.

    Attributes:
        temperature (`float`, *optional*, defaults to `1.0`): Temperature of the full softmax; 0 decodes greedily.
        max_new_tokens (`int`, *optional*, defaults to `512`): Maximum number of new tokens.
        chat_template_kwargs (`dict`, *optional*): Arguments of the tokenizer's chat template.
    """

    temperature: float = DEFAULT_TEMPERATURE
    max_new_tokens: int = DEFAULT_MAX_COMPLETION_LENGTH
    chat_template_kwargs: dict | None = None

    @classmethod
    def of_run(
        cls, config: Mapping, temperature: float | None = None, max_new_tokens: int | None = None
    ) -> "SamplingSettings":
        """
        Return the sampling settings of a run with this configuration; given arguments override them. Logs the keys of
        rollouts that are not used.
        """
        unused = [f"{key}={config[key]}" for key, off in ROLLOUTS_ONLY.items() if (config.get(key) or off) != off]
        if unused:
            warn_of_unused(f"Sampled from the full softmax: the run's {cut(', '.join(unused), 200)} is not used.")
        if temperature is None:
            temperature = config.get("temperature") or DEFAULT_TEMPERATURE
        if max_new_tokens is None:
            max_new_tokens = config.get("max_completion_length") or DEFAULT_MAX_COMPLETION_LENGTH
        return cls(float(temperature), max_new_tokens, config.get("chat_template_kwargs") or None)

    def to_json(self) -> dict:
        """Return the fields as JSON values, without those that are `None`."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class Sample:
    """
    One completion: its plain text; its tokens, including the one that ended it; whether it was truncated; the task's
    verdict (`None` without a verifier), and the answer that the task extracted from the text.
    """

    text: str
    ids: list[int]
    truncated: bool
    correct: bool | None
    answer: str | None


def judge_completions(task, texts: list[str], rows: list[Mapping]) -> Iterator[tuple[bool | None, str | None]]:
    """Yield the verdict of each completion with its row, and its answer; see [`~trl_prorl.tasks.Task.answer_of`]."""
    verdicts = task.verify_many(texts, rows)
    for text, row, verdict in zip(texts, rows, verdicts, strict=True):
        correct = None if verdict is None else as_verdict(verdict, f"verify of {type(task).__name__}")
        yield correct, task.answer_of(text, row)


def stop_token_ids(model, tokenizer) -> list[int]:
    """Return every token that ends a completion: the tokenizer's and those of the model, as in TRL's rollouts."""
    declared = model.generation_config.eos_token_id
    if not isinstance(declared, list):
        declared = [declared]
    tokens = dict.fromkeys([tokenizer.eos_token_id, *declared])  # each once
    return [token for token in tokens if token is not None]


def prompt_ids(processing_class, rows: list[dict], chat_template_kwargs: dict | None = None) -> list[list[int]]:
    """
    Return the tokens of every row's prompt, as in TRL: messages by the chat template of a tokenizer or a processor,
    or plain text.
    """
    if rows and isinstance(rows[0]["prompt"], str):
        return processing_class(text=[row["prompt"] for row in rows])["input_ids"]
    settings = {**(chat_template_kwargs or {}), "add_generation_prompt": True}
    tokenizer = getattr(processing_class, "tokenizer", processing_class)
    source = tokenizer.name_or_path
    if processing_class is not tokenizer:  # a processor, whose template gets messages of parts

        def tokenize() -> list[list[int]]:
            messages = [prepare_multimodal_messages(row["prompt"]) for row in rows]
            return processing_class.apply_chat_template(messages, tokenize=True, return_dict=True, **settings)[
                "input_ids"
            ]

        return fill_template(tokenize, source)

    def fill() -> list[str]:
        return [tokenizer.apply_chat_template(row["prompt"], tokenize=False, **settings) for row in rows]

    texts = fill_template(fill, source)
    longest = max(map(len, texts), default=0)
    if longest > MAX_PROMPT:
        raise InputError(
            f"the chat template of the tokenizer in '{source}' makes a prompt of {longest:,} characters, more than "
            f"{MAX_PROMPT:,}; replace its chat_template"
        )
    found = tokenizer(texts, add_special_tokens=False)["input_ids"]
    if [] in found:
        raise InputError(f"the tokenizer in '{source}' makes no token of a prompt; replace its chat_template")
    return found


def fill_template(fill: Callable[[], list], source: str) -> list:
    """
    Fill a chat template with prompts. The template comes with the model: it may loop, or break the rules of its
    sandbox.

    Args:
        fill (`Callable`): Returns the texts, or their tokens.
        source (`str`): Source of the tokenizer.

    Raises:
        InputError: It takes longer than `TEMPLATE_SECONDS`, or fails.
    """
    try:
        return call_within(TEMPLATE_SECONDS, fill)
    except DeadlineExceeded:
        why = f"did not end within {TEMPLATE_SECONDS:g} s"
    except Exception as error:
        why = f"raised {type(error).__name__}: {error}"
    raise InputError(f"the chat template of the tokenizer in '{source}' {why}; replace its chat_template")


def progress(total: int, description: str) -> tqdm:
    """Return a progress bar on stderr over samples; without a terminal, it prints once a minute after ten seconds."""
    in_notebook = "ipykernel" in sys.modules  # whose stderr is no terminal
    seldom = {} if sys.stderr.isatty() or in_notebook else {"delay": 10, "mininterval": 60}
    return tqdm(total=total, desc=description, unit="sample", **seldom)


class TokensOnBar(StoppingCriteria):
    """
    Shows on a progress bar how many tokens a batch has, because a batch of a large model takes minutes. It never stops
    generation.
    """

    def __init__(self, bar: tqdm, prompt_length: int, most: int):
        self.bar = bar
        self.prompt_length = prompt_length
        self.most = most

    def __call__(self, input_ids: torch.Tensor, scores, **kwargs) -> torch.Tensor:
        written = input_ids.shape[1] - self.prompt_length
        self.bar.set_postfix_str(f"token {written} of {self.most}", refresh=False)
        self.bar.update(0)  # draws it, unless it has just been drawn
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


@cache
def warn_of_unused(line: str) -> None:
    """Log once which settings of a run or of a model's generation config are not used."""
    logger.warning("%s", visible(line))


def prepare_for_sampling(model, merge: bool = True) -> tuple[torch.nn.Module, dict | None]:
    """
    Return a loaded model ready for sampling, and the settings of compact generation: the loop of rollouts, for a
    listed family of models, otherwise `None`. With `merge`, an adapter is merged in float32 if that only
    changes rounding; the model must then have no other use.
    """
    unused = describe_unused(model.generation_config, GenerationConfig(do_sample=True))
    if unused:
        warn_of_unused(unused)
    compact = None
    if listing_obstacle(model, "compact") is None:
        on_cuda = next(model.parameters()).device.type == "cuda"
        records = on_cuda and listing_obstacle(model, "graphed") is None
        compact = {"recordings": Recordings() if records else None}
    exact = all(param.dtype == torch.float32 for param in model.parameters())
    if merge and compact is not None and exact and merge_obstacle(model) is None:
        model = model.merge_and_unload()
    return model, compact


@torch.no_grad()
def sample(
    model,
    processing_class,
    task,
    rows: list[dict],
    n: int,
    sampling: SamplingSettings,
    *,
    compact: dict | None = None,
    bar: tqdm | None = None,
) -> list[list[Sample]]:
    """
    Sample `n` completions for each of P rows in one call of `generate`, and grade them with `task.verify_many`.

    A model's own generation config is ignored. Samples depend on torch's global seed and on the batch. `compact`
    computes a prompt once for all its samples, and drops a sample when it ends. A `bar` shows the number of the
    current token.

    Returns:
        `list[list[Sample]]`: Shape (P, n).
    """
    model.eval()
    tokenizer = getattr(processing_class, "tokenizer", processing_class)
    device = next(model.parameters()).device
    options = {"do_sample": False}
    if sampling.temperature > 0:
        options = {"do_sample": True, "temperature": sampling.temperature, "top_k": 0, "top_p": 1.0}
    stops = stop_token_ids(model, tokenizer)
    prompts = prompt_ids(processing_class, rows, sampling.chat_template_kwargs)
    inputs = tokenizer.pad({"input_ids": prompts}, padding_side="left", return_tensors="pt").to(device)
    if compact is not None:
        copies = torch.arange(len(prompts), device=device).repeat_interleave(n)
        several = {"custom_generate": compact_sample, "copies": copies, **compact}
    else:
        several = {"num_return_sequences": n}
    prompt_length = inputs["input_ids"].shape[1]
    most = sampling.max_new_tokens
    criteria = [] if bar is None else [TokensOnBar(bar, prompt_length, most)]
    with plain_generation_config(model), contiguous_states(model):
        sequences = model.generate(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            max_new_tokens=most,
            eos_token_id=stops,
            pad_token_id=tokenizer.pad_token_id,
            stopping_criteria=criteria,
            **options,
            **several,
        )
    sequences = sequences if compact is None else sequences.ids
    completions = [until_stop(ids, stops) for ids in sequences[:, prompt_length:].tolist()]
    texts = tokenizer.batch_decode([ids for ids, _ in completions], skip_special_tokens=True)
    row_of_each = [row for row in rows for _ in range(n)]
    verdicts = judge_completions(task, texts, row_of_each)
    samples = []
    for text, (ids, ended), (correct, answer) in zip(texts, completions, verdicts, strict=True):
        samples.append(Sample(text, ids, not ended, correct, answer))
    return [samples[start : start + n] for start in range(0, len(samples), n)]


def until_stop(ids: list[int], stops: list[int]) -> tuple[list[int], bool]:
    """
    Return the tokens up to and including the first stop token, and whether there is one; the rest is padding.
    """
    for place, token in enumerate(ids):
        if token in stops:
            return ids[: place + 1], True
    return ids, False
