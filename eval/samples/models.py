"""The models of a run: base, checkpoints and the one at its end; the identity of their weights; loading them."""

import filecmp
import os
import re
import sys
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.trainer import TRAINING_ARGS_NAME
from transformers.utils.logging import disable_progress_bar

from trl_prorl.environment import cpu_computes_bf16
from trl_prorl.errors import InputError
from trl_prorl.eval.run_folder.reading import read_env
from trl_prorl.eval.samples.local_paths import find_output_dir
from trl_prorl.files import file_sha256
from trl_prorl.record.base_model import WEIGHTS, hub_commit
from trl_prorl.record.links import check_links
from trl_prorl.record.run_files import BASE_ADAPTER, METRICS, METRICS_FILE, read_jsonl
from trl_prorl.record.run_id import RUN_ID, saved_run_id
from trl_prorl.weights import load_model, named_class


@dataclass(frozen=True)
class Point:
    """
    A model of a run.

    Attributes:
        label (`str`): `base`, `step-40` or `trained`.
        step (`int` or `None`): Optimizer steps done; 0 for base, `None` where the record does not tell.
        folder (`Path` or `None`): Where its weights are; `None` is the base model of the run's configuration.
    """

    label: str
    step: int | None
    folder: Path | None


def kind_of_model(folder: Path) -> str | None:
    """What a folder holds: `"adapter"` (PEFT), `"full"`, or `None`."""
    if (folder / "adapter_config.json").is_file():
        return "adapter"
    return "full" if (folder / "config.json").is_file() else None


def find_trained_model(run_dir: Path, config: dict) -> Path:
    """
    Return the folder of the model that a run left behind: the run folder or, if the record lies elsewhere by
    `run_dir`, its `output_dir`. There a model counts only if its run's id is that of the record, because another run
    may have that name now.

    Raises:
        InputError: If there is none, or the one that is there is another run's.
    """
    env = read_env(run_dir)
    run = env.get(RUN_ID)
    saved = saved_run_id(run_dir)
    if kind_of_model(run_dir):
        if None not in (run, saved) and saved != run:
            raise InputError(
                f"run folder '{run_dir}' holds the model of another run ({RUN_ID} {saved}, by env.json {run}); let "
                "the run finish, or copy the files of one of its checkpoints there"
            )
        return run_dir
    elsewhere = separate_output_dir(run_dir, config, env)
    if elsewhere is not None:
        check_links(elsewhere)
    if elsewhere is None or not kind_of_model(elsewhere):
        finish = "let the run finish" if config.get("task") else "let the script end with trainer.save_model()"
        raise InputError(
            f"run folder '{run_dir}' has no trained model (no adapter_config.json, no config.json); {finish}, or copy "
            "a checkpoint's files there"
        )
    saved = saved_run_id(elsewhere)
    if run is None or saved != run:
        raise InputError(
            f"run folder '{run_dir}' has no trained model, and nothing says that the one in output_dir '{elsewhere}' "
            f"is this run's ({RUN_ID} {saved}, by env.json {run}); if it is, copy its files into the run folder"
        )
    return elsewhere


def separate_output_dir(run_dir: Path, config: dict, env: dict) -> Path | None:
    """
    Return the run's `output_dir` if `run_dir` put the record elsewhere; else `None`: model and record share a folder.
    """
    record = config.get("run_dir")
    output = config.get("output_dir")
    if not record or not output or os.path.normpath(record) == os.path.normpath(output):
        return None
    found = find_output_dir(run_dir, config, env)
    return None if found is None or Path(found).resolve() == run_dir.resolve() else Path(found)


def base_point(run_dir: Path) -> Point:
    """Return the policy as a run began: its base model, with the trained adapter from which it began, if any."""
    adapter = run_dir / BASE_ADAPTER
    return Point("base", 0, adapter if kind_of_model(adapter) else None)


def last_step(run_dir: Path) -> int | None:
    """Return the last optimizer step on record, or `None` without a record."""
    return max((row["step"] for row in read_jsonl(run_dir / METRICS_FILE, METRICS)), default=None)


def trained_point(run_dir: Path, config: dict) -> Point:
    """
    Return the model that the run left behind. It is of the last step on record, unless its weights are those of a
    checkpoint: the best one, or one whose files were copied there after a run was killed.
    """
    folder = find_trained_model(run_dir, config)
    found, _ = checkpoints(folder, run_dir)
    step = last_step(run_dir)
    for checkpoint_step, path in sorted(found.items(), reverse=True):
        if same_weights(path, folder):
            step = checkpoint_step
            break
    return Point("trained", step, folder)


def checkpoints(folder: Path, run_dir: Path) -> tuple[dict[int, Path], dict[int, Path]]:
    """
    Return the checkpoints in a folder that hold weights, by step: this run's, and those of other runs. One that says
    of no run counts as this one's in the run folder, and nowhere else.
    """
    run = read_env(run_dir).get(RUN_ID)
    here = folder.resolve() == run_dir.resolve()
    found = {}
    others = {}
    for path in folder.glob("checkpoint-*"):
        match = re.fullmatch(r"checkpoint-(\d+)", path.name)
        if match and kind_of_model(path) and weight_files(path):
            saved = saved_run_id(path)
            step = int(match[1])
            if saved == run or (here and None in (saved, run)):
                found[step] = path
            else:
                others[step] = path
    return found, others


def weight_files(folder: Path) -> list[str]:
    """Return the names of the files of a model that hold weights."""
    return sorted(path.name for glob in WEIGHTS for path in folder.glob(glob))


def same_weights(checkpoint: Path, folder: Path) -> bool:
    """Return whether a checkpoint, which holds more than a model, holds the weights of a folder, byte by byte."""
    names = [name for name in weight_files(folder) if name != TRAINING_ARGS_NAME]
    if not names:
        return False
    _, different, unreadable = filecmp.cmpfiles(checkpoint, folder, names, shallow=False)
    return not different and not unreadable


def checkpoint_points(run_dir: Path, config: dict, wanted: list[str]) -> list[Point]:
    """
    Return the checkpoints that are wanted, by their steps or as `all`; the last step's is left out, because it is the
    trained model.

    Raises:
        InputError: If one is missing, or all are wanted and there are none.
    """
    if not wanted:
        return []
    trained = trained_point(run_dir, config)
    found, others = checkpoints(trained.folder, run_dir)
    steps = sorted(found)
    if others:
        names = ", ".join(path.name for _, path in sorted(others.items()))
        print(f"{trained.folder}: {names} of another run, left out.", file=sys.stderr)
    if wanted != ["all"]:
        for step in wanted:
            if not step.isdigit() or int(step) not in found:
                raise InputError(
                    f"--checkpoints {step}: '{trained.folder}' has no such checkpoint; it has "
                    f"{', '.join(map(str, steps)) or 'none'}. Give some of these, or all"
                )
        steps = sorted(set(map(int, wanted)))
    elif not steps:
        raise InputError(
            f"--checkpoints all: '{trained.folder}' has no checkpoint; train with save_strategy: steps, save_steps: N "
            "and a save_total_limit that keeps them (save_only_model: true keeps them small)"
        )
    return [Point(f"step-{step}", step, found[step]) for step in steps if step != trained.step]


@contextmanager
def hub_errors(base: str):
    """The Hub's refusal of a base model, as an [`InputError`]."""
    try:
        yield
    except OSError as error:
        if Path(base).is_dir():
            raise
        raise InputError(
            f"model_name_or_path: {base} of config.yaml is no folder here, and the Hub did not give it ({error}); "
            "start where the run was trained, or write there where its base model is now"
        ) from error


def identity(folder: Path | None, config: dict) -> dict:
    """
    Return the identity of a model's weights, in JSON values: hashes of the files in its folder, or the Hub's commit;
    `None` is the base model that the configuration names.
    """
    base = config["model_name_or_path"]
    if folder is None:
        if not Path(base).is_dir():
            revision = config.get("model_revision") or "main"
            with hub_errors(base):
                AutoConfig.from_pretrained(base, revision=revision)  # which brings the cache up to date
            return {"name": base, "commit": hub_commit(base, revision)}
        folder = Path(base)
        return {"weights": weight_hashes(folder)}
    own = {"weights": weight_hashes(folder)}
    if kind_of_model(folder) == "adapter":
        own["base"] = identity(None, config)
        kind = AutoConfig.from_pretrained(base, revision=config.get("model_revision") or "main")
        if named_class(kind) is not MODEL_FOR_CAUSAL_LM_MAPPING.get(type(kind), None):
            own["class"] = named_class(kind).__name__  # samples without it may be of a model without the adapter
    return own


def weight_hashes(folder: Path) -> dict[str, str]:
    """SHA-256 by file of the weights in a folder, and of an adapter's configuration, which scales them."""
    globs = (*WEIGHTS, "adapter_config.json")
    files = sorted(file for glob in globs for file in folder.glob(glob) if file.name != "training_args.bin")
    return {file.name: file_sha256(file) for file in files}


def evaluation_dtype(config: Mapping) -> torch.dtype:
    """
    Return the precision in which the models of a run are evaluated: bfloat16 on a GPU, and on a CPU that has
    instructions for it if the run computed in it; else float32.
    """
    if torch.cuda.is_available():
        return torch.bfloat16
    if config.get("bf16") is True and cpu_computes_bf16():
        return torch.bfloat16
    return torch.float32


def load_saved(path, config: dict, revision: str | None = None, adapter: Path | None = None, kind: type | None = None):
    """Load a model, and an adapter on it, onto the GPU if there is one, in the precision of evaluations."""
    disable_progress_bar()  # of weights: our own bars show what takes long
    device = "cuda" if torch.cuda.is_available() else "cpu"
    init = {"revision": revision or "main", "dtype": evaluation_dtype(config)}
    return load_model(path, adapter, kind=kind, **init).to(device)


def load_base_model(config: dict, adapter: Path | None = None):
    """
    Load the model that a run started from, and an adapter on it. A script may have trained that on a causal language
    model which it took out of a larger one; then the adapter's keys fit that class.

    Raises:
        InputError: The adapter's weights fit neither.
    """
    name = config["model_name_or_path"]
    revision = config.get("model_revision")
    with hub_errors(name):
        try:
            return load_saved(name, config, revision, adapter)
        except InputError as error:
            if adapter is None:
                raise
            try:
                return load_saved(name, config, revision, adapter, AutoModelForCausalLM)
            except InputError:
                raise error from None


def load_point(point: Point, config: dict):
    """A model of a run: base, a full model, or a PEFT adapter on base."""
    if point.folder is None:
        return load_base_model(config)
    if kind_of_model(point.folder) == "adapter":
        return load_base_model(config, point.folder)
    return load_saved(point.folder, config)


def load_tokenizer(folder: Path):
    """A run's tokenizer; where it has no padding token, the end-of-sequence token pads."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer
