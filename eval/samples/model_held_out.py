"""A model that belongs to no run, beside the model that it was trained from."""

import os
from pathlib import Path
from types import SimpleNamespace

from huggingface_hub import snapshot_download
from peft import PeftModel
from transformers import PreTrainedModel

from trl_prorl.cli.model_name import find_model
from trl_prorl.errors import InputError
from trl_prorl.eval.samples.models import Point, kind_of_model, load_processor, load_tokenizer
from trl_prorl.eval.samples.run_samples import HeldOut, split_of
from trl_prorl.eval.samples.sampling import SamplingSettings
from trl_prorl.eval.samples.task_name import TaskName
from trl_prorl.run.files import check_contents
from trl_prorl.run.log_files import read_json
from trl_prorl.run.provenance import is_hub_name
from trl_prorl.text import one_line


FILES = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model")  # of a repository on the Hub


class ModelHeldOut(HeldOut):
    """
    A saved model on P held-out prompts of a task, or of a plugin's own rows.

    Args:
        model (`str`): Folder or Hub name of a full model or an adapter.
        base (`str`, *optional*): Folder or Hub name of the model that it was trained from; by default, for an adapter,
            the one that its configuration names.
        name ([`TaskName`]): The task.
        out (`Path`): Folder of the result. Other arguments as for [`HeldOut`].

    Raises:
        InputError: A model cannot be found, or a full model has no base.
    """

    def __init__(
        self,
        model: str,
        base: str | None,
        name: TaskName,
        out: Path,
        split: str,
        prompts: int | None,
        *,
        seed: int,
        batch_size: int,
        temperature: float | None,
        max_new_tokens: int | None,
    ):
        folder = find_folder(model)
        if base is None and kind_of_model(folder) == "adapter":
            base = read_json(folder / "adapter_config.json").get("base_model_name_or_path")
        if base is None:
            raise InputError(f"--model {model} does not name the model that it was trained from: add --base NAME")
        try:
            base = find_model(base, "--base")
        except ValueError as error:
            raise InputError(str(error)) from error
        out.mkdir(parents=True, exist_ok=True)
        check_contents(out)
        self.run_dir = out
        self.config = {"model_name_or_path": base}
        self.seed = seed
        self.batch_size = batch_size
        self._load_rows(name, split, prompts)
        if name.is_own:
            self.split = split_of(None, len(self.rows))
        self.sampling = SamplingSettings.of_run({}, temperature, max_new_tokens)
        self.trained = Point("trained", None, folder)
        self.base = Point("base", 0, None)
        has_tokenizer = (folder / "tokenizer_config.json").is_file()
        source = folder if has_tokenizer else base
        self.tokenizer = load_tokenizer(source)
        self.processor = load_processor(source, self.tokenizer)


def default_folder(model: str, option: str) -> Path:
    """
    Return the folder of a model's result, `passk/NAME`, also for a path such as `..` that has no name of its own.
    Raises [`InputError`]: A model lies there; `option` is how to give another folder.
    """
    folder = Path("passk") / Path(os.path.abspath(model)).name
    if kind_of_model(folder) is not None:
        raise InputError(f"'{folder}', the default folder of the result, contains a model: give another with {option}")
    return folder


def find_folder(model: str) -> Path:
    """
    Return the folder of a model, downloaded if it is the name of one on the Hub. Raises [`InputError`]: there is no
    model.
    """
    folder = Path(model)
    if not folder.is_dir():
        if not is_hub_name(model):
            raise InputError(
                f"--model {model} is neither a local folder nor a Hub name like Qwen/Qwen2.5-0.5B-Instruct"
            )
        try:
            folder = Path(snapshot_download(model, allow_patterns=list(FILES)))
        except OSError as error:
            raise InputError(f"--model {model} cannot be loaded: {one_line(error)}") from error
    else:
        check_contents(folder, f"--model {model}")
    if kind_of_model(folder) is None:
        raise InputError(f"--model {model} has no model: config.json and adapter_config.json are missing")
    return folder


def as_trainer(model: PreTrainedModel | PeftModel, output_dir: str | None):
    """
    Return, for a model in memory, the attributes that [`~trl_prorl.eval.samples.trainer_held_out.TrainerHeldOut`]
    reads of a trainer. The tokenizer is that of the folder or the Hub name from which the model was loaded.
    """
    name = model.config._name_or_path
    folder = output_dir or str(default_folder(name, "output_dir"))
    tokenizer = load_tokenizer(name)
    return SimpleNamespace(
        model=model,
        accelerator=SimpleNamespace(num_processes=1, unwrap_model=lambda model: model),
        args=SimpleNamespace(output_dir=folder, bf16=False, model_init_kwargs=None),
        processing_class=load_processor(name, tokenizer) or tokenizer,
        train_dataset=None,
        environment_factories=None,
        tools=None,
        rollout_func=None,
        state=SimpleNamespace(global_step=None),
    )
