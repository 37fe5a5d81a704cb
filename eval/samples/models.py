"""The models of a run: base, checkpoints and final model; the identity of their weights; loading them."""

import filecmp
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from transformers import (
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
from trl_prorl.embedded.shipped import embedded_model, is_embedded, weights_sha256
from trl_prorl.errors import InputError
from trl_prorl.eval.run_folder.reading import read_env
from trl_prorl.run.files import check_contents, file_sha256
from trl_prorl.run.folder import steps_of
from trl_prorl.run.log_files import (
    BASE_ADAPTER,
    METRICS_FILE,
    STARTING_WEIGHTS,
    read_log,
    saved_step,
    weight_files,
    weight_hashes,
)
from trl_prorl.run.provenance import fingerprint, folder_of_weights, hub_commit
from trl_prorl.run.starting import starting_weights
from trl_prorl.text import short
from trl_prorl.upstream import vocabulary
from trl_prorl.upstream.weights import NO_SETTINGS, find_kernel, load_model, refuse_code


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


def check_trained_model(run_dir: Path) -> None:
    """Raise `InputError` for a run folder without a trained model."""
    if not kind_of_model(run_dir):
        raise InputError(
            f"run folder '{run_dir}' has no trained model (no adapter_config.json, no config.json); let the run "
            "finish, a script with trainer.save_model(), or copy a checkpoint's files there"
        )


def with_base_model(run_dir: Path | None, config: dict) -> dict:
    """
    Return a run's configuration with the folder or Hub name of its starting model, its Hub commit, its quantization
    and the hashes of its weights, as `env.json` has noted them. `None`: a model that belongs to no run.

    Raises:
        InputError: The folder has other weights now.
    """
    env = {} if run_dir is None else read_env(run_dir)
    noted = env.get("base_model") or {}
    name = config.get("model_name_or_path") or noted.get("name")
    if not name:
        raise InputError(f"'{run_dir}' has no record of the starting model; add model_name_or_path to its config.yaml")
    init = init_of_base(config)
    commit = noted.get("commit") if name in (noted.get("name"), noted.get("hub_id")) else None
    base = {
        "run": run_dir,
        "model_name_or_path": name,
        "revision": commit or init.get("revision") or config.get("model_revision") or "main",
        "quantization": env.get("quantization"),
        STARTING_WEIGHTS: env.get(STARTING_WEIGHTS),
    }
    weights = None
    if is_embedded(name):
        base["model_name_or_path"] = embedded_model(name)
        weights = weights_sha256(base["model_name_or_path"])
    elif Path(name).is_dir():
        check_contents(name)
        weights = fingerprint(folder_of_weights(name, init))
    if noted.get("sha256") not in (None, weights):  # without such a folder, the name may be one on the Hub
        raise InputError(
            f"'{run_dir}' started from other weights than those of {name} here and now (SHA-256 in env.json)"
        )
    return config | base


def base_point(run_dir: Path) -> Point:
    """Return the starting model of a run: its base model, with the trained adapter from which it started, if any."""
    adapter = run_dir / BASE_ADAPTER
    return Point("base", 0, adapter if kind_of_model(adapter) else None)


def last_step(run_dir: Path) -> int | None:
    """Return the last optimizer step in `metrics.jsonl`, or `None` without one."""
    return max((row["step"] for row in read_log(run_dir, METRICS_FILE)), default=None)


def trained_point(run_dir: Path) -> Point:
    """
    Return the trained model of a run. Its step is that of the checkpoint with the same weights (the best one, or one
    that was copied), else the one that was saved with it, else the last in `metrics.jsonl`.
    """
    check_trained_model(run_dir)
    names = [file.name for file in weight_files(run_dir)]
    same = [
        step
        for path, step in steps_of(run_dir).items()
        if names and filecmp.cmpfiles(path, run_dir, names, shallow=False)[0] == names
    ]
    step = max(same, default=saved_step(run_dir))
    return Point("trained", last_step(run_dir) if step is None else step, run_dir)


def checkpoint_points(run_dir: Path, wanted: list[int] | str) -> list[Point]:
    """
    Return the wanted checkpoints, given by step or as `"all"`, without the last step, which is the trained model.

    Raises:
        InputError: If one is missing.
    """
    if not wanted:
        return []
    saved = {step: path for path, step in steps_of(run_dir).items() if kind_of_model(path) and weight_files(path)}
    steps = saved if wanted == "all" else set(wanted)
    missing = sorted(set(steps) - set(saved))
    if missing or not saved:
        raise InputError(f"--checkpoints: '{run_dir}' has the checkpoints {sorted(saved)}, not {missing or 'any'}")
    trained = trained_point(run_dir)
    return [Point(f"step-{step}", step, saved[step]) for step in sorted(steps) if step != trained.step]


def read_base_config(config: dict) -> PreTrainedConfig:
    """Return the configuration of a run's base model, as in its files, which it downloads."""
    base = config["model_name_or_path"]
    place = {"revision": config.get("revision", "main"), "subfolder": init_of_base(config).get("subfolder") or ""}
    with refuse_code(base):
        return AutoConfig.from_pretrained(base, trust_remote_code=False, **place)


def init_of_base(config: dict) -> dict:
    """Return the `model_init_kwargs` of a run."""
    return config.get("model_init_kwargs") or {}


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
    Return the identity of a model, in JSON values: hashes of the files in its folder, or the Hub's commit; `None` is
    the base model that the configuration names.
    """
    if folder is None:
        base = config["model_name_or_path"]
        content = {
            "settings": settings_of_base(config),
            "quantization": config.get("quantization"),
            STARTING_WEIGHTS: config.get(STARTING_WEIGHTS),
        }
        place = {"revision": config.get("revision"), "subfolder": init_of_base(config).get("subfolder")}
        if Path(base).is_dir():
            return {**model_hashes(folder_of_weights(base, place)), **content}
        read_base_config(config)  # updates the cache
        return {"name": base, "commit": hub_commit(base, place), **content}
    content = model_hashes(folder)
    return {**content, "base": identity(None, config)} if kind_of_model(folder) == "adapter" else content


def model_hashes(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every weight file in a folder, and of the files that say how they are used."""
    files = [folder / name for name in ("config.json", "generation_config.json", "adapter_config.json")]
    return weight_hashes(folder) | {file.name: file_sha256(file) for file in files if file.is_file()}


def evaluation_dtype(config: Mapping) -> torch.dtype:
    """
    Return the precision in which the models of a run are evaluated: bfloat16 on a GPU, and on a CPU with bf16
    instructions if the run computed in bf16; else float32.
    """
    if torch.cuda.is_available() or (config.get("bf16") is True and cpu_computes_bf16()):
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
    Load the starting model of a run, and an adapter on it. If the adapter was trained on a causal language model that
    is a part of a larger model, its keys fit the class of that part.
    """
    name = config["model_name_or_path"]
    init = {"revision": config.get("revision", "main"), **settings_of_base(config), **quantization_of_base(config)}
    try:
        model = load_saved(name, config, adapter, **init)
    except InputError:
        if adapter is None:
            raise
        model = None
        with suppress(InputError):
            model = load_saved(name, config, adapter, AutoModelForCausalLM, **init)
        if model is None:
            raise
    check_starting_weights(model, config)
    return model


def check_starting_weights(model, config: dict) -> None:
    """Raise `InputError` for a base model with other weights than those that the run noted at its start."""
    noted = config.get(STARTING_WEIGHTS)
    loaded = starting_weights(model) if noted else None
    if loaded is None or noted["tensors"] != loaded["tensors"] or noted["values"] == loaded["values"]:
        return  # the same, or a part of it that another class loads
    name = config["model_name_or_path"]
    place = name if Path(name).is_dir() else f"{name} at {config['revision']}"
    raise InputError(
        f"'{config['run']}' started from other weights than those of {place}: add model_init_kwargs: {{revision: "
        "COMMIT}, or the folder of its starting model as model_name_or_path, to its config.yaml (in a script, to the "
        "trainer's arguments)"
    )


def load_point(point: Point, config: dict):
    """Load a model of a run: base, a full model, or a PEFT adapter on base."""
    if point.folder is None or kind_of_model(point.folder) == "adapter":
        return load_base_model(config, point.folder)
    return load_saved(point.folder, config)


def load_tokenizer(folder: Path | str, revision: str | None = None):
    """Load a run's tokenizer; without a padding token, the end-of-sequence token is used."""
    with refuse_code(folder):
        tokenizer = vocabulary.load_tokenizer(folder, trust_remote_code=False, revision=revision or "main")
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_processor(folder: Path | str, tokenizer, revision: str | None = None) -> ProcessorMixin | None:
    """
    Load the processor that TRL trains a model with, from a folder or a Hub name; `None`: there is none, so TRL trains
    with the tokenizer.
    """
    place = {"revision": revision or "main"}
    if cached_file(folder, PROCESSOR_NAME, _raise_exceptions_for_missing_entries=False, **place) is None:
        return None
    with refuse_code(folder):
        processor = AutoProcessor.from_pretrained(folder, trust_remote_code=False, **place)
    if not isinstance(processor, ProcessorMixin):
        return None
    processor.tokenizer = tokenizer
    return processor
