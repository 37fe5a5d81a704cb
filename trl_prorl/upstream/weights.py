"""
Strict loading: every weight comes from its file, and every tensor of the file is used. transformers and PEFT only
warn, and use random numbers or ignore the adapter.
"""

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from peft import PeftModel, get_peft_model_state_dict
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils import SAFETENSORS_WEIGHTS_NAME, WEIGHTS_NAME, load_peft_weights
from peft.utils.other import TrainableTokensWrapper
from safetensors import SafetensorError
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
from ..text import cut, one_line, short


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
def whole_weights(source: str | Path) -> Iterator[None]:
    """
    Raise `InputError` if a model or an adapter loaded in this context lacks weights or leaves tensors unused. Tied
    weights, and keys that a model's class ignores, are allowed.
    """
    report = modeling_utils.log_state_dict_report
    load_adapter = PeftModel.load_adapter
    modeling_utils.log_state_dict_report = functools.partial(_insist_on_model, report, source)
    PeftModel.load_adapter = _insisting_on_adapter(load_adapter)
    try:
        yield
    except (SafetensorError, OSError) as error:
        names_folder = Path(source).is_dir() and str(source) and str(source) in str(error)
        if isinstance(error, OSError) and not names_folder:
            raise  # the Hub's, or of another file
        why = one_line(error)
        raise InputError(f"{source} lacks a file, or one is corrupt ({why}): save or download it again.") from error
    finally:
        modeling_utils.log_state_dict_report = report
        PeftModel.load_adapter = load_adapter


@contextmanager
def refuse_code(source: str | Path) -> Iterator[None]:
    """
    Raise `InputError` if a model, an adapter or a tokenizer needs `trust_remote_code`, or a file in its folder is
    damaged.
    """
    try:
        yield
    except (InputError, OSError, SafetensorError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # libraries raise various errors for wrong file content
        if "trust_remote_code" in str(error):
            raise InputError(
                f"{source} has code of its own (auto_map in its config.json or tokenizer_config.json), which is not "
                "run here: remove auto_map and name a class of transformers. Such a model can be trained, and not "
                "evaluated (docs/howto-model.md)."
            ) from error
        if not Path(source).is_dir():
            raise
        why = cut(one_line(error))
        raise InputError(
            f"{source} cannot be loaded ({type(error).__name__}: {why}): save or download it again."
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
    Load a model, and optionally an adapter; weights that are missing or do not fit raise an error.

    transformers and PEFT only warn of missing weights, and fill them with random numbers.

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
        [`InputError`]: Weights are missing, not in the model, or of another shape.

    Example:

    ```python
    >>> from trl_prorl import embedded_model, load_model

    >>> model = load_model(embedded_model(), adapter="runs/example")
    >>> merged = model.merge_and_unload()
    ```
    """
    init.setdefault("trust_remote_code", False)
    place = {key: init[key] for key in ("revision", "subfolder", "trust_remote_code") if key in init}
    with whole_weights(name), refuse_code(name):
        if "attn_implementation" not in init:
            refuse_kernel(name, **place)
        kind = kind or named_class(AutoConfig.from_pretrained(name, **place))
        model = kind.from_pretrained(name, **init)
    if adapter is None:
        return model
    with whole_weights(adapter), refuse_code(adapter):
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
    held = {name: value for name, value in config.items() if name not in WITHOUT_EFFECT}
    return {name: settings_of(value) if isinstance(value, Mapping) else value for name, value in held.items()}


def named_class(config: PreTrainedConfig) -> type:
    names = config.architectures or [""]
    return getattr(transformers, names[0], None) or MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), AutoModelForCausalLM)


def refuse_keys(
    source: Any,
    missing: Iterable[str] = (),
    unexpected: Iterable[str] = (),
    mismatched: Iterable[str] = (),
    cure: str = "It is damaged or belongs to another model: save or download it again.",
) -> None:
    faults = []
    for what, keys in (("missing", missing), ("not in the model", unexpected), ("of another shape", mismatched)):
        names = sorted(key.removeprefix("base_model.model.") for key in keys)
        if names:
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            faults.append(f"{what}: {', '.join(names[:SHOWN])}{more}")
    if faults:
        raise InputError(f"The weights of {source} do not fit the model ({'; '.join(faults)}). {cure}")


def copy_tensors(file: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Copy a file's tensors into `tensors`, all or none. Raises `InputError`: other names or shapes."""
    try:
        held = load_file(file)  # memory-mapped, not read
    except (SafetensorError, OSError) as error:
        raise InputError(f"{file} is missing, truncated or corrupt ({error}): use another checkpoint.") from error
    mismatched = [name for name in held.keys() & tensors.keys() if held[name].shape != tensors[name].shape]
    refuse_keys(file, tensors.keys() - held.keys(), held.keys() - tensors.keys(), mismatched)
    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(held[name])


def load_checkpoint(model: PreTrainedModel, folder: str | Path) -> None:
    """
    Load a saved model's weights by `from_pretrained`: names in the file may differ from the modules'. Raises
    `InputError`: other weights.
    """
    with whole_weights(folder), torch.random.fork_rng():
        refuse_kernel(folder)
        saved = type(model).from_pretrained(folder, dtype="auto", trust_remote_code=False)
    model.load_state_dict(saved.state_dict())


def _insist_on_model(report, source, *, loading_info, pretrained_model_name_or_path, **rest) -> None:
    info = loading_info
    mismatched = [*(name for name, *_ in info.mismatched_keys), *info.conversion_errors]
    missing = info.missing_keys - set(mismatched)
    file = source if Path(source).is_file() else pretrained_model_name_or_path
    refuse_keys(file, missing, info.unexpected_keys, mismatched)
    report(loading_info=info, pretrained_model_name_or_path=pretrained_model_name_or_path, **rest)


def _insisting_on_adapter(load_adapter):
    """Wrap `PeftModel.load_adapter`, also called by `PeftModel.from_pretrained` and a Trainer's resume."""

    @functools.wraps(load_adapter)
    def load(self, model_id, adapter_name, *args, **kwargs):
        cure = "Load the adapter with the model and class that it was trained with, or save it again."
        files = [Path(model_id, name) for name in (SAFETENSORS_WEIGHTS_NAME, WEIGHTS_NAME)]
        if Path(model_id).is_dir() and not any(file.is_file() for file in files):
            raise InputError(f"{files[0]} is missing: save or download the adapter again.")
        try:
            result = load_adapter(self, model_id, adapter_name, *args, **kwargs)
        except KeyError as error:  # a fully saved module
            refuse_keys(model_id, missing=[str(error.args[0])], cure=cure)
        except RuntimeError as error:
            if "size mismatch for " not in str(error):
                raise
            refuse_keys(model_id, mismatched=re.findall(r"size mismatch for (\S+):", str(error)), cure=cure)
        if self.peft_config[adapter_name].is_prompt_learning:  # its one module is loaded strictly
            return result
        missing = _missing_of_adapter(self, model_id, adapter_name, result.missing_keys)
        refuse_keys(model_id, missing, result.unexpected_keys, cure=cure)
        return result

    return load


def _missing_of_adapter(model: PeftModel, folder: str | Path, name: str, reported: list[str]) -> list[str]:
    """
    Return the keys missing in an adapter's file: PEFT's report, and biases, which it omits. For an adapter named
    `base` it reports every adapter's keys: all begin with `base_model`.
    """
    config = model.peft_config[name]
    reported = [key for key in reported if f".{name}." in f"{key}."]
    aliases: dict[int, list[str]] = {}
    for key, param in model.named_parameters(remove_duplicate=False):
        aliases.setdefault(id(param), []).append(key)
    # A vector shared by all layers is one parameter with many names.
    missing = [keys[0] for keys in aliases.values() if set(keys) <= set(reported)]
    if getattr(config, "bias", "none") != "none":
        saved = load_peft_weights(str(folder), device="cpu")
        expected = get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)
        missing += [key for key in expected if key.endswith("bias") and key not in saved]
    return missing
