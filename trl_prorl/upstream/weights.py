"""
No missing weight stays random, and no adapter is loaded in part: transformers and PEFT only warn of such names.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from peft import PeftModel, get_peft_model_state_dict
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import TrainableTokensWrapper
from safetensors.torch import load_file
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    modeling_utils,
)

from ..errors import InputError
from ..text import short


SHOWN = 2  # tensor names per message
# Arguments of `from_pretrained` that select a model's files.
PLACE = ("revision", "subfolder", "cache_dir", "token", "local_files_only")
# Settings of a model that no log-probability depends on. Trainer aligns some with the tokenizer, in the policy alone.
WITHOUT_EFFECT = (
    "_name_or_path architectures bos_token_id dtype eos_token_id id2label label2id output_attentions "
    "output_hidden_states output_router_logits pad_token_id transformers_version use_cache".split()
)
# Of a model's configuration; the rest of `model_init_kwargs` says from where and how it is loaded.
NO_SETTINGS = {*WITHOUT_EFFECT, "auto_map", "model_type", "quantization_config"}


@contextmanager
def whole_weights() -> Iterator[None]:
    """
    Raise [`InputError`] if a model loaded in this context lacks weights, or if an adapter's file has other names than
    the adapter. Tied weights, and keys that a model's class ignores, may be missing.
    """
    report = modeling_utils.log_state_dict_report
    load_adapter = PeftModel.load_adapter
    modeling_utils.log_state_dict_report = functools.partial(_check_model, report)
    PeftModel.load_adapter = _checking_names(load_adapter)
    try:
        yield
    finally:
        modeling_utils.log_state_dict_report = report
        PeftModel.load_adapter = load_adapter


@contextmanager
def refuse_code(source: str | Path) -> Iterator[None]:
    """Raise [`InputError`] if a model, an adapter or a tokenizer needs `trust_remote_code`."""
    try:
        yield
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise InputError(
            f"{source} has code of its own (auto_map in its config.json or tokenizer_config.json), which is not run "
            "here: remove auto_map and name a class of transformers. Such a model can be trained, and not evaluated "
            "(docs/howto-model.md)."
        ) from error


def load_model(
    name: str | Path,
    adapter: str | Path | None = None,
    *,
    kind: type | None = None,
    is_trainable: bool = False,
    **init,
) -> PreTrainedModel | PeftModel:
    """
    Load a model, and optionally an adapter, whole: a missing weight, or a tensor of the adapter's file that the model
    lacks, raises an error.

    transformers and PEFT only warn: a missing weight is a random number, and a tensor without a place is left out.

    Args:
        name (`str` or `Path`): Folder or Hub name of the model.
        adapter (`str` or `Path`, *optional*): Folder or Hub name of the adapter.
        kind (`type`, *optional*): A model class of transformers; by default the configuration's.
        is_trainable (`bool`, *optional*, defaults to `False`): Whether the adapter will be trained further.
        **init (`Any`): Further arguments of `from_pretrained`, such as `dtype`. Without `trust_remote_code=True` the
            model's own code is not run.

    Returns:
        [`~transformers.PreTrainedModel`] or [`~peft.PeftModel`]: The model. If the adapter changes embeddings that are
            tied to the head, they are untied, so a merge changes only them.

    Raises:
        [`InputError`]: A weight is missing, or a tensor of the adapter's file is not in the model.

    Example:

    ```python
    >>> from trl_prorl import embedded_model, load_model

    >>> model = load_model(embedded_model(), adapter="runs/example")
    >>> merged = model.merge_and_unload()
    ```
    """
    init.setdefault("trust_remote_code", False)
    place = {key: init[key] for key in ("revision", "subfolder", "trust_remote_code") if key in init}
    with whole_weights(), refuse_code(name):
        if "attn_implementation" not in init:
            refuse_kernel(name, **place)
        kind = kind or named_class(AutoConfig.from_pretrained(name, **place))
        model = kind.from_pretrained(name, **init)
    if adapter is None:
        return model
    with whole_weights(), refuse_code(adapter):
        model = PeftModel.from_pretrained(model, adapter, is_trainable=is_trainable)
    if not is_trainable:
        untie_adapted(model)
    return model


def untie_adapted(model: PeftModel) -> None:
    """Give a tied head its own weight if an adapter changes embedding or head: a merge would change both."""
    base = model.get_base_model()
    tied = [base.get_input_embeddings(), base.get_output_embeddings()]
    if None in tied or not any(isinstance(module, (BaseTunerLayer, TrainableTokensWrapper)) for module in tied):
        return
    embedding, head = map(_without_adapter, tied)
    rows = getattr(tied[1], "token_adapter", None)
    changes_as_one = rows is not None and rows.tied_adapter is not None
    if head.weight is embedding.weight and not changes_as_one:
        head.weight = torch.nn.Parameter(head.weight.detach().clone(), requires_grad=False)
        base.config.tie_word_embeddings = False
        base.config.get_text_config().tie_word_embeddings = False


def _without_adapter(module: torch.nn.Module) -> torch.nn.Module:
    if isinstance(module, TrainableTokensWrapper):
        return module.token_adapter.get_base_layer()
    return module.get_base_layer() if isinstance(module, BaseTunerLayer) else module


def place_of(init: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the arguments of [`PLACE`] that are set."""
    return {name: value for name, value in (init or {}).items() if name in PLACE and value is not None}


def refuse_kernel(name: str | Path, **place) -> None:
    """Raise [`InputError`] for a configuration that would run a kernel from the Hub."""
    keys, _ = PreTrainedConfig.get_config_dict(name, **place)
    kernel = find_kernel(keys)
    if kernel is not None:
        raise InputError(
            f"{name}: attn_implementation={short(kernel)} in its config.json is a kernel that would be downloaded and "
            "run: remove it there, or pass attn_implementation."
        )


def find_kernel(keys: Mapping[str, Any]) -> Any:
    """Return an attention, at any depth, that names a Hub repository."""
    for key, value in keys.items():
        if "attn_implementation" in key and "/" in str(value):
            return value
        inner = find_kernel(value) if isinstance(value, dict) else None
        if inner is not None:
            return inner
    return None


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings in a model's configuration that can change a log-probability, at any depth."""
    settings = {name: value for name, value in config.items() if name not in WITHOUT_EFFECT}
    return {name: settings_of(value) if isinstance(value, Mapping) else value for name, value in settings.items()}


def named_class(config: PreTrainedConfig) -> type:
    names = config.architectures or [""]
    return getattr(transformers, names[0], None) or MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), AutoModelForCausalLM)


def refuse_keys(source: Any, missing: Iterable[str] = (), unexpected: Iterable[str] = ()) -> None:
    """Raise [`InputError`] for names that a file lacks, or that a model lacks."""
    faults = []
    for what, names in (("missing", missing), ("not in the model", unexpected)):
        names = sorted(name.removeprefix("base_model.model.") for name in names)
        if names:
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            faults.append(f"{what}: {', '.join(names[:SHOWN])}{more}")
    if faults:
        raise InputError(
            f"The weights of {source} do not fit the model ({'; '.join(faults)}). Load them with the model and class "
            "that they were trained with, or save or download them again."
        )


def copy_tensors(file: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Copy a file's tensors into `tensors`, all or none. Raises [`InputError`]: other names or shapes."""
    saved = load_file(file)  # memory-mapped, not read
    if {name: tensor.shape for name, tensor in saved.items()} != {name: tensors[name].shape for name in tensors}:
        raise InputError(f"{file} has other tensors than the model: use another checkpoint.")
    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(saved[name])


def load_checkpoint(model: PreTrainedModel, folder: str | Path) -> None:
    """Load a saved model's weights by `from_pretrained`: names in the file may differ from the modules'."""
    with whole_weights(), torch.random.fork_rng():
        refuse_kernel(folder)
        saved = type(model).from_pretrained(folder, dtype="auto", trust_remote_code=False)
    model.load_state_dict(saved.state_dict())


def _check_model(report: Callable, *, loading_info, pretrained_model_name_or_path, **rest) -> None:
    """Stand in for transformers' report of a loaded model, which raises an error for other shapes alone."""
    report(loading_info=loading_info, pretrained_model_name_or_path=pretrained_model_name_or_path, **rest)
    refuse_keys(pretrained_model_name_or_path, loading_info.missing_keys)


def _checking_names(load_adapter: Callable) -> Callable:
    """Wrap `PeftModel.load_adapter`, which `PeftModel.from_pretrained` and a Trainer's resume call, too."""

    @functools.wraps(load_adapter)
    def load(self, model_id, adapter_name, *args, **kwargs):
        try:
            result = load_adapter(self, model_id, adapter_name, *args, **kwargs)
        except KeyError as error:  # a module of `modules_to_save`
            refuse_keys(model_id, missing=map(str, error.args))
        if self.peft_config[adapter_name].is_prompt_learning:  # its one module is loaded strictly
            return result
        # PEFT's report has the keys of every adapter for one named `base`: all begin with `base_model`.
        reported = [name for name in result.missing_keys if f".{adapter_name}." in f"{name}."]
        names = self.named_parameters(remove_duplicate=False)
        loaded = {param for name, param in names if name not in reported}  # layers may share a vector
        missing = [name for name, param in self.named_parameters() if name in reported and param not in loaded]
        # PEFT writes what it trains of a resized embedding twice, and loads it once.
        written = get_peft_model_state_dict(self, adapter_name=adapter_name, save_embedding_layers=True)
        refuse_keys(model_id, missing, set(result.unexpected_keys) - written.keys())
        return result

    return load
