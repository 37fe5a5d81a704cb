"""A teacher (`ref_model`): another model as the fixed reference, loaded frozen, with the policy's vocabulary."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from datasets import Dataset
from peft import PeftConfig, PeftModel
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.peft_utils import find_adapter_config_file
from trl.trainer.utils import add_fused_lm_head, disable_dropout_in_model, get_config_model_id

from ..cli.fp32_head import cast_head_to_fp32, decoder_dtype
from ..cli.model_name import find_model
from ..cli.prompt_rows import has_images, prompts_of
from ..errors import InputError
from ..fast.families import listing_obstacle
from ..fast.prefix import accept_prefixes
from ..keys import warn_unused
from ..reference import Teacher
from ..text import one_line, short
from ..upstream.vocabulary import load_tokenizer
from ..upstream.weights import load_model


PROMPTS_COMPARED = 1000  # training prompts whose token ids are compared
# Arguments of `from_pretrained` for the policy that also hold for a teacher: a revision is of one model.
SHARED = ("attn_implementation", "cache_dir", "token", "local_files_only")


@dataclass(frozen=True)
class TeacherSource:
    """
    Where a teacher is.

    Attributes:
        name (`str`): As `ref_model` names it.
        model ([`~transformers.PreTrainedModel`], *optional*): A loaded one.
        path (`str`, *optional*): Folder or Hub name of the model, under an adapter that of its base model.
        adapter (`str`, *optional*): Folder or Hub name of an adapter.
    """

    name: str
    model: PreTrainedModel | None = None
    path: str | None = None
    adapter: str | None = None

    @property
    def tokenizer_path(self) -> str | None:
        if self.model is not None:
            return get_config_model_id(self.model.config) or None
        return self.adapter or self.path


def find_teacher(args, model: PreTrainedModel | None) -> TeacherSource | None:
    """
    Find the teacher of a run; nothing is loaded.

    Args:
        args ([`ProRLConfig`]): The settings. Its `ref_model` becomes the name of a loaded model.
        model ([`~transformers.PreTrainedModel`], *optional*): A script's loaded teacher.

    Raises `ValueError`: there is no such model, or it is quantised otherwise than by bitsandbytes.
    """
    if model is not None and args.beta == 0.0:
        warn_unused(["ref_model (needs beta)"])
        return None
    if model is not None:
        args.ref_model = args.ref_model or get_config_model_id(model.config) or type(model).__name__
        if isinstance(model, PeftModel):
            raise InputError("ref_model is a PeftModel. Pass model.merge_and_unload().")
        refuse_quantised(args.ref_model, model.config.to_dict())
        return TeacherSource(args.ref_model, model=model)
    name = args.ref_model
    if name is None:
        return None
    place = {key: value for key, value in (args.model_init_kwargs or {}).items() if key in SHARED}
    path = name
    adapter = None
    try:
        if find_adapter_config_file(name) is not None:
            adapter = name
            path = PeftConfig.from_pretrained(name).base_model_name_or_path
    except (OSError, ValueError):
        pass  # `find_model` raises an error with the key
    path = find_model(path, "ref_model", place)
    config, _ = PreTrainedConfig.get_config_dict(path)
    refuse_quantised(name, config)
    return TeacherSource(name, path=path, adapter=adapter)


def refuse_quantised(name: str, config: Mapping[str, Any]) -> None:
    """Raise [`InputError`] for a configuration quantised otherwise than by bitsandbytes."""
    quantization = config.get("quantization_config") or {}
    method = quantization.get("quant_method", "bitsandbytes")
    if method != "bitsandbytes":
        raise InputError(
            f"ref_model={name!r} is quantised by {getattr(method, 'value', method)}. Set it to a model that is not "
            "quantised, or that is quantised by bitsandbytes."
        )


@contextmanager
def without_reference(args) -> Iterator[None]:
    """Context in which TRL's trainer makes no reference, neither a second model nor an adapter `ref`."""
    beta = args.beta
    args.beta = 0.0
    try:
        yield
    finally:
        args.beta = beta


def load_teacher(trainer, source: TeacherSource) -> Teacher:
    """
    Load the teacher, frozen and without dropout, in the policy's dtype, and make it the trainer's `ref_model`.

    Raises `ValueError`: its vocabulary is not the policy's.
    """
    args = trainer.args
    policy = trainer.accelerator.unwrap_model(trainer.model)
    with torch.random.fork_rng():  # as without a teacher
        model = source.model
        if model is None:
            model = _load(source, policy, args)
    tokenizer = _find_tokenizer(source, args.trust_remote_code)
    check_vocabulary(trainer, source.name, model, tokenizer)
    model.requires_grad_(False)
    model.eval()
    disable_dropout_in_model(model)
    if args.cast_lm_head_to_fp32:
        cast_head_to_fp32(model)
    add_fused_lm_head(model, temperature=trainer.temperature, cast_lm_head_to_fp32=args.cast_lm_head_to_fp32)
    trainer.ref_model = trainer.accelerator.prepare_model(model, evaluation_mode=True)
    trainer.beta = args.beta  # TRL's trainer was made without
    packs = trainer.acceleration.packs and listing_obstacle(model, "shared_prompts") is None
    if packs:
        accept_prefixes(model)
    return Teacher(trainer.accelerator.unwrap_model(trainer.ref_model), source.name, packs)


def _load(source: TeacherSource, policy: torch.nn.Module, args) -> PreTrainedModel:
    dtype = decoder_dtype(policy)
    if not dtype.is_floating_point:  # a quantised policy
        dtype = policy.config.dtype
    init = {key: value for key, value in (args.model_init_kwargs or {}).items() if key in SHARED}
    init |= {"dtype": dtype, "trust_remote_code": args.trust_remote_code}
    model = load_model(source.path, source.adapter, **init)
    return model if source.adapter is None else model.merge_and_unload()


def _find_tokenizer(source: TeacherSource, trust_remote_code: bool) -> PreTrainedTokenizerBase | None:
    """Return the teacher's tokenizer; `None` for a loaded model without one."""
    path = source.tokenizer_path
    try:
        return None if path is None else load_tokenizer(path, trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        if source.model is not None:
            return None
        raise InputError(
            f"ref_model={source.name!r} has no tokenizer to compare with the policy's: {one_line(error)} Save it "
            "with the model."
        ) from error


def check_vocabulary(trainer, name: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> None:
    """
    Raise [`InputError`] for the first difference between the vocabularies of policy and teacher, or between their
    token ids of a training prompt. Embeddings may have more rows than the vocabulary has tokens.
    """
    start = f"ref_model={name!r} needs the policy's vocabulary, but "
    cure = "Set it to a model with the policy's tokenizer."
    policy = trainer.accelerator.unwrap_model(trainer.model)
    ours = embedded_tokens(trainer.text_tokenizer, policy)
    rows = model.get_input_embeddings().num_embeddings
    if rows <= max(ours.values()):
        raise InputError(f"{start}has {rows} embeddings for {max(ours.values()) + 1} tokens. {cure}")
    if tokenizer is None:
        return
    theirs = embedded_tokens(tokenizer, model)
    for token in sorted(ours.keys() | theirs.keys(), key=lambda token: (ours.get(token, rows), token)):
        if ours.get(token) != theirs.get(token):
            ids = f"{ours.get(token, 'missing')} in the policy's and {theirs.get(token, 'missing')} in its own"
            raise InputError(f"{start}the token {token!r} is {ids}. {cure}")
    for text in prompt_texts(trainer):
        own_ids = trainer.text_tokenizer(text, add_special_tokens=False).input_ids
        ids = tokenizer(text, add_special_tokens=False).input_ids
        if ids != own_ids:
            raise InputError(f"{start}its tokenizer gives the prompt {short(text)} other token ids. {cure}")


def embedded_tokens(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> dict[str, int]:
    """Return the token ids that have an embedding, by token: a class of tokenizers may add others."""
    rows = model.get_input_embeddings().num_embeddings
    return {token: number for token, number in tokenizer.get_vocab().items() if number < rows}


def prompt_texts(trainer) -> list[str]:
    """Return the first training prompts in the policy's chat template."""
    if not isinstance(trainer.train_dataset, Dataset) or has_images(trainer):
        return []
    prompts = [prompt for _, prompt in islice(prompts_of(trainer.train_dataset), PROMPTS_COMPARED)]
    return trainer.text_tokenizer.batch_decode(trainer.tokenize_prompts(prompts)) if prompts else []
