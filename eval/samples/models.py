"""The weights of a run's models: what tells them apart, and how they are loaded."""

from contextlib import contextmanager
from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from trl_prorl.checkpoint.files import sha256
from trl_prorl.errors import InputError
from trl_prorl.eval.samples.points import Point, kind_of_model
from trl_prorl.record.base_model import WEIGHTS, hub_commit


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
    The identity of a model's weights: hashes of its files, or the Hub's commit. JSON values.

    Args:
        folder (`Path` or `None`): As in [`Point`].
        config (`dict`): The run's configuration, which names the base model.
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
    return {**own, "base": identity(None, config)} if kind_of_model(folder) == "adapter" else own


def weight_hashes(folder: Path) -> dict[str, str]:
    """SHA-256 by file of the weights in a folder, and of an adapter's configuration, which scales them."""
    globs = (*WEIGHTS, "adapter_config.json")
    files = sorted(file for glob in globs for file in folder.glob(glob) if file.name != "training_args.bin")
    return {file.name: sha256(file) for file in files}


def load_model(path, revision: str | None = None):
    """A causal language model, on the GPU in bfloat16 if there is one, else on the CPU in float32."""
    disable_progress_bar()  # of weights: our own bars show what takes long
    device, dtype = ("cuda", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)
    return AutoModelForCausalLM.from_pretrained(path, revision=revision or "main", dtype=dtype).to(device)


def load_base_model(config: dict):
    """The model a run started from."""
    with hub_errors(config["model_name_or_path"]):
        return load_model(config["model_name_or_path"], config.get("model_revision"))


def load_point(point: Point, config: dict):
    """A model of a run: base, a full model, or a PEFT adapter on base."""
    if point.folder is None:
        return load_base_model(config)
    if kind_of_model(point.folder) == "adapter":
        return PeftModel.from_pretrained(load_base_model(config), point.folder)
    return load_model(point.folder)


def load_tokenizer(folder: Path):
    """A run's tokenizer; where it has no padding token, the end-of-sequence token pads."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer
