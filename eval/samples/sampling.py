"""
Sample a model in batches from the full softmax. Each sample has its text, its tokens and its verdict.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

import torch
from tqdm import tqdm
from trl import prepare_multimodal_messages

from trl_prorl.cli.model_defaults import plain_generation_config
from trl_prorl.errors import InputError
from trl_prorl.eval.run_folder.run import DEFAULT_MAX_COMPLETION_LENGTH, DEFAULT_TEMPERATURE
from trl_prorl.fast.compact import compact_sample
from trl_prorl.fast.families import listing_obstacle
from trl_prorl.fast.head import contiguous_states
from trl_prorl.fast.merged_copy import merge_obstacle
from trl_prorl.fast.recording import Recordings
from trl_prorl.pass_at_k import as_verdict
from trl_prorl.text import visible


@dataclass(frozen=True)
class SamplingSettings:
    """
    Sampling settings: everything that determines completions except model, prompts and seed. A run's `top_p`, `top_k`
    and the like are not used.

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
        """Return the sampling settings of a run with this configuration; given arguments override them."""
        if temperature is None:
            temperature = config.get("temperature") or DEFAULT_TEMPERATURE
        if max_new_tokens is None:
            max_new_tokens = config.get("max_completion_length") or DEFAULT_MAX_COMPLETION_LENGTH
        if not temperature > 0 or not max_new_tokens > 0:
            raise InputError("--temperature and --max-new-tokens must be above 0; `passk` also decodes greedily")
        return cls(float(temperature), max_new_tokens, config.get("chat_template_kwargs") or None)

    def to_json(self) -> dict:
        """Return the fields as JSON values, without those that are `None`."""
        return {name: value for name, value in asdict(self).items() if value is not None}


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
    prompts = [row["prompt"] for row in rows]
    if prompts and isinstance(prompts[0], str):
        return processing_class(text=prompts)["input_ids"]
    if hasattr(processing_class, "tokenizer"):  # a processor, whose template gets messages of parts
        prompts = list(map(prepare_multimodal_messages, prompts))
    settings = {**(chat_template_kwargs or {}), "add_generation_prompt": True, "return_dict": True}
    return processing_class.apply_chat_template(prompts, tokenize=True, **settings)["input_ids"]


def progress(total: int, description: str) -> tqdm:
    """Return a progress bar on stderr over samples; without a terminal, it prints once a minute after ten seconds."""
    seldom = {} if sys.stderr.isatty() else {"delay": 10, "mininterval": 60}
    return tqdm(total=total, desc=visible(description), unit="sample", **seldom)


def prepare_for_sampling(model, merge: bool = True) -> tuple[torch.nn.Module, dict | None]:
    """
    Return a loaded model ready for sampling, and the settings of compact generation: the loop of rollouts, for a
    listed family of models, otherwise `None`. With `merge`, an adapter is merged in float32 if that only
    changes rounding; the model must then have no other use.
    """
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
) -> list[list[dict]]:
    """
    Sample `n` completions for each of P rows in one call of `generate`, and grade them with `task.verify_many`.

    A model's own generation config is ignored. Samples depend on torch's global seed and on the batch. `compact`
    computes a prompt once for all its samples, and drops a sample when it ends.

    Returns:
        `list[list[dict]]`: Shape (P, n): the text `completion`, its tokens `ids` with the one that ended it, whether
            it was `truncated`, whether it is `correct` (`None` without a verifier), and the `answer` in the text.
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
    with plain_generation_config(model), contiguous_states(model):
        sequences = model.generate(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            max_new_tokens=sampling.max_new_tokens,
            eos_token_id=stops,
            pad_token_id=tokenizer.pad_token_id,
            **options,
            **several,
        )
    sequences = sequences if compact is None else sequences.ids
    completions = [until_stop(ids, stops) for ids in sequences[:, inputs["input_ids"].shape[1] :].tolist()]
    texts = tokenizer.batch_decode([ids for ids, _ in completions], skip_special_tokens=True)
    row_of_each = [row for row in rows for _ in range(n)]
    verdicts = judge_completions(task, texts, row_of_each)
    samples = []
    for text, (ids, ended), (correct, answer) in zip(texts, completions, verdicts, strict=True):
        samples.append({"completion": text, "ids": ids, "truncated": not ended, "correct": correct, "answer": answer})
    return [samples[start : start + n] for start in range(0, len(samples), n)]


def until_stop(ids: list[int], stops: list[int]) -> tuple[list[int], bool]:
    """
    Return the tokens up to and including the first stop token, and whether there is one; the rest is padding.
    """
    for place, token in enumerate(ids):
        if token in stops:
            return ids[: place + 1], True
    return ids, False
