"""The models of a run: base, checkpoints and final model; the identity of their weights; loading them."""

import filecmp
from collections.abc import Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoProcessor,
    BitsAndBytesConfig,
    PreTrainedConfig,
    ProcessorMixin,
)
from transformers.utils import PROCESSOR_NAME, cached_file
from transformers.utils.logging import disable_progress_bar

from trl_prorl.cli.environment import cpu_computes_bf16
from trl_prorl.errors import InputError
from trl_prorl.run.files import file_sha256
from trl_prorl.run.folder import steps_of
from trl_prorl.run.log_files import BASE_ADAPTER, METRICS_FILE, read_log, saved_step, weight_files, weight_hashes
from trl_prorl.run.provenance import hub_commit
from trl_prorl.text import short
from trl_prorl.upstream import vocabulary
from trl_prorl.upstream.weights import NO_SETTINGS, find_kernel, load_model, named_class, refuse_code


@dataclass(frozen=True)
class Point:
    """
    A model of a run.

    Attributes:
        label (`str`): `base`, `step-40` or `trained`.
        step (`int` or `None`): Optimizer steps done; 0 for base, `None` if unknown.
        folder (`Path` or `None`): Folder of its weights; `None` is the starting model.
    """

    label: str
    step: int | None
    folder: Path | None


def kind_of_model(folder: Path) -> str | None:
    """Return the kind of model in a folder: `"adapter"` (PEFT), `"full"`, or `None`."""
    if (folder / "adapter_config.json").is_file():
        return "adapter"
    return "full" if (folder / "config.json").is_file() else None


def check_trained_model(run_dir: Path, config: dict) -> None:
    """
    Raise an error for a run folder without a trained model.

    Raises:
        InputError: If there is none.
    """
    if not kind_of_model(run_dir):
        finish = "let the run finish" if config.get("task") else "let the script end with trainer.save_model()"
        raise InputError(
            f"run folder '{run_dir}' has no trained model (no adapter_config.json, no config.json); {finish}, or copy "
            "a checkpoint's files there"
        )


def base_point(run_dir: Path) -> Point:
    """Return the starting model of a run: its base model, with the trained adapter from which it started, if any."""
    adapter = run_dir / BASE_ADAPTER
    return Point("base", 0, adapter if kind_of_model(adapter) else None)


def last_step(run_dir: Path) -> int | None:
    """Return the last optimizer step in `metrics.jsonl`, or `None` without one."""
    return max((row["step"] for row in read_log(run_dir, METRICS_FILE)), default=None)


def trained_point(run_dir: Path, config: dict) -> Point:
    """
    Return the trained model of a run. If its weights are those of a checkpoint (the best one, or one that was copied
    there after the run was killed), it has that step. Else its step is the one saved with the weights (a run that was
    resumed and killed leaves older ones than its log files); without one, the last in `metrics.jsonl`.
    """
    check_trained_model(run_dir, config)
    found = checkpoints(run_dir)
    same = [step for step, path in found.items() if same_weights(path, run_dir)]
    if same:
        return Point("trained", max(same), run_dir)
    step = saved_step(run_dir)
    return Point("trained", last_step(run_dir) if step is None else step, run_dir)


def checkpoints(run_dir: Path) -> dict[int, Path]:
    """Return the checkpoints with weights in a run folder, by step."""
    steps = steps_of(run_dir)
    return {step: path for path, step in steps.items() if kind_of_model(path) and weight_files(path)}


def same_weights(checkpoint: Path, folder: Path) -> bool:
    """Return whether a checkpoint has the same weights as a folder, byte by byte."""
    names = [path.name for path in weight_files(folder)]
    same, _, _ = filecmp.cmpfiles(checkpoint, folder, names, shallow=False)
    return bool(names) and same == names


def checkpoint_points(run_dir: Path, config: dict, wanted: list[str]) -> list[Point]:
    """
    Return the wanted checkpoints, given by step or as `all`, without the last step, which is the trained model.

    Raises:
        InputError: If one is missing, or if `all` are wanted and there are none.
    """
    if not wanted:
        return []
    trained = trained_point(run_dir, config)
    found = checkpoints(run_dir)
    steps = sorted(found)
    if wanted != ["all"]:
        for step in wanted:
            if step not in map(str, found):
                raise InputError(
                    f"--checkpoints {step}: '{run_dir}' has no such checkpoint; it has "
                    f"{', '.join(map(str, steps)) or 'none'}. Give one of these, or all"
                )
        steps = sorted(set(map(int, wanted)))
    elif not steps:
        raise InputError(
            f"--checkpoints all: '{run_dir}' has no checkpoint; train with save_strategy: steps, save_steps: N "
            "and a save_total_limit that keeps them (save_only_model: true keeps them small)"
        )
    return [Point(f"step-{step}", step, found[step]) for step in steps if step != trained.step]


@contextmanager
def base_model_errors(base: str):
    """Turn an error of the Hub, or of transformers, about a base model into an [`InputError`]."""
    try:
        with refuse_code(f"model_name_or_path: {base} in config.yaml"):
            yield
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"model_name_or_path: {base} in config.yaml cannot be loaded: {error}") from error
    except OSError as error:
        if Path(base).is_dir():
            raise
        raise InputError(
            f"model_name_or_path: {base} in config.yaml is no folder here, and cannot be loaded from the Hub "
            f"({error}); run the command where the run was trained, or change it to where the starting model is now"
        ) from error


def revision_of_base(config: dict) -> str:
    return init_of_base(config).get("revision") or config.get("model_revision") or "main"


def init_of_base(config: dict) -> dict:
    """Return the `model_init_kwargs` of a run."""
    init = config.get("model_init_kwargs")
    return init if isinstance(init, dict) else {}


def read_base_config(config: dict) -> PreTrainedConfig:
    """Return the configuration of a run's base model, as in its files."""
    base = config["model_name_or_path"]
    place = {"revision": revision_of_base(config), "subfolder": init_of_base(config).get("subfolder") or ""}
    with base_model_errors(base):
        return AutoConfig.from_pretrained(base, trust_remote_code=False, **place)


def settings_of_base(config: dict) -> dict:
    """
    Return the settings in a run's `model_init_kwargs` by which its base model computes, in place of its files', and
    which of its files are loaded.
    """
    init = init_of_base(config)
    if not init:
        return {}
    declared = {field.name for field in fields(read_base_config(config))}  # a model's files may add arguments
    names = {*declared, "subfolder", "variant"} - NO_SETTINGS
    settings = {name: value for name, value in init.items() if name in names and not name.endswith("_implementation")}
    kernel = find_kernel(settings)  # of a part of the model
    if kernel is not None:
        raise InputError(
            f"model_init_kwargs in config.yaml names {short(kernel)}, a kernel that would be downloaded and run: "
            "remove it there"
        )
    return settings


def quantization_of_base(config: dict) -> dict:
    """Return how a run quantised its base model as it loaded it: an argument of `from_pretrained`, or none."""
    noted = config.get("quantization")
    if noted is None or getattr(read_base_config(config), "quantization_config", None) is not None:
        return {}
    return {"quantization_config": BitsAndBytesConfig.from_dict(noted)}


def identity(folder: Path | None, config: dict) -> dict:
    """
    Return the identity of a model's weights, in JSON values: hashes of the files in its folder, or the Hub's commit;
    `None` is the base model that the configuration names.
    """
    if folder is None:
        base = config["model_name_or_path"]
        settings = settings_of_base(config)
        own = {"settings": settings} if settings else {}
        if config.get("quantization"):
            own["quantization"] = config["quantization"]
        if Path(base).is_dir():
            return {"weights": model_hashes(Path(base)), **own}
        read_base_config(config)  # updates the cache
        return {"name": base, "commit": hub_commit(base, revision_of_base(config)), **own}
    own = {"weights": model_hashes(folder)}
    if kind_of_model(folder) == "adapter":
        own["base"] = identity(None, config)
        kind = read_base_config(config)
        if named_class(kind) is not MODEL_FOR_CAUSAL_LM_MAPPING.get(type(kind), None):
            own["class"] = named_class(kind).__name__  # older samples, without it, may not have used the adapter
    return own


def model_hashes(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every weight file in a folder, and of an adapter's configuration, which scales them."""
    found = weight_hashes(folder)
    if kind_of_model(folder) == "adapter":
        found["adapter_config.json"] = file_sha256(folder / "adapter_config.json")
    return found


def evaluation_dtype(config: Mapping) -> torch.dtype:
    """
    Return the precision in which the models of a run are evaluated: bfloat16 on a GPU, and on a CPU with bf16
    instructions if the run computed in bf16; else float32.
    """
    if torch.cuda.is_available():
        return torch.bfloat16
    if config.get("bf16") is True and cpu_computes_bf16():
        return torch.bfloat16
    return torch.float32


def load_saved(path, config: dict, adapter: Path | None = None, kind: type | None = None, **init):
    """Load a model, and an adapter on it, onto the GPU if there is one, in the precision of evaluations."""
    disable_progress_bar()  # for loading weights; our own bars show what takes long
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = load_model(path, adapter, kind=kind, dtype=evaluation_dtype(config), **init)
    return model if "quantization_config" in init else model.to(device)  # a quantised one is there


def load_base_model(config: dict, adapter: Path | None = None):
    """
    Load the starting model of a run, and an adapter on it. If a script trained the adapter on a causal language model
    that it extracted from a larger model, the adapter's keys fit the class of that model.

    Raises:
        InputError: If the adapter's weights fit neither class.
    """
    name = config["model_name_or_path"]
    with base_model_errors(name):
        init = {"revision": revision_of_base(config), **settings_of_base(config), **quantization_of_base(config)}
        try:
            return load_saved(name, config, adapter, **init)
        except InputError:
            if adapter is None:
                raise
            with suppress(InputError):
                return load_saved(name, config, adapter, AutoModelForCausalLM, **init)
            raise


def load_point(point: Point, config: dict):
    """Load a model of a run: base, a full model, or a PEFT adapter on base."""
    if point.folder is None:
        return load_base_model(config)
    if kind_of_model(point.folder) == "adapter":
        return load_base_model(config, point.folder)
    return load_saved(point.folder, config)


def load_tokenizer(folder: Path):
    """
    Load a run's tokenizer; without a padding token, the end-of-sequence token is used.

    Raises:
        InputError: It has code of its own, or no vocabulary.
    """
    with refuse_code(folder):
        tokenizer = vocabulary.load_tokenizer(folder, trust_remote_code=False)
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        tokenizer.pad({"input_ids": [[0]]})
    return tokenizer


def load_processor(folder: Path | str, tokenizer) -> ProcessorMixin | None:
    """
    Load the processor that TRL trains a model with, from a folder or a Hub name; `None`: there is none, so TRL trains
    with the tokenizer.

    Raises:
        InputError: It has code of its own.
    """
    if cached_file(folder, PROCESSOR_NAME, _raise_exceptions_for_missing_entries=False) is None:
        return None
    with refuse_code(folder):
        processor = AutoProcessor.from_pretrained(folder, trust_remote_code=False)
    if not isinstance(processor, ProcessorMixin):
        return None
    processor.tokenizer = tokenizer
    return processor


@torch.no_grad()
def check_computes(model, source: Path | str) -> None:
    """
    Compute the logits of one token.

    Raises:
        InputError: They are not finite.
    """
    logits = model.eval()(input_ids=torch.zeros(1, 1, dtype=torch.long, device=model.device)).logits
    if not torch.isfinite(logits).all():
        raise InputError(f"the model in {source} computes NaN or infinity: save or download it again.")
