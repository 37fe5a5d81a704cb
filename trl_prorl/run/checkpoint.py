"""Start, save and resume a run exactly."""

import json
import logging
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import is_peft_model, patch_environment, send_to_device
from datasets import IterableDataset
from safetensors import SafetensorError
from transformers import EarlyStoppingCallback
from trl.trainer.utils import get_config_model_id, strip_images_from_messages

from ..errors import CheckpointError, RunError
from ..extras.vllm import describe_engine
from ..keys import AUTO_RESUME, read_resume_word
from ..optimizer import inner_of
from ..parts import Event
from ..supported import SCHEDULES
from ..text import visible
from ..upstream.modules import is_sharded
from ..upstream.weights import load_checkpoint, whole_weights
from .folder import COMPLETIONS, RunFolder, first_of_processes, is_written, on_main_process, step_of, steps_of, sync
from .identity import (
    CHOSEN_LATER,
    EVALUATIONS_ACT,
    IDENTITY_FILE,
    LENGTHS,
    TEACHER,
    buffer_file,
    changing_keys,
    find_start,
    hyperparameters,
    restore_hyperparameters,
)
from .log_files import BASE_ADAPTER, RESUME, TRAINER_STATE, read_json, write_run_id
from .meter import Means
from .provenance import as_plain, remove_secrets, write_config, write_env


logger = logging.getLogger(__name__)

STATE_FILE = "prorl_state.json"


class CheckpointMixin:
    """The part of [`ProRLTrainer`] that starts or resumes a run, saves it and pushes it."""

    initial_adapter = None  # the policy at the start of a run with an adapter, see reference.py
    has_trained = False
    _folder: RunFolder | None = None
    _staging: Path | None = None  # of the checkpoint being written
    _failed_write: Exception | None = None  # of this process, in that checkpoint
    _resume: "Resume | None" = None
    _run_id: str | None = None
    _model_name: str | None = None
    _best_step: int | None = None  # set by `load_best_model_at_end`
    _loads_from: Path | None = None

    def base_name(self) -> str | None:
        """The starting model as recipe or script name it: Hub name, folder, `smollm2` and the like."""
        names = [part.model_name_or_path for part in self.recipe if hasattr(part, "model_name_or_path")]
        names += [self._model_name, get_config_model_id(self.accelerator.unwrap_model(self.model).config)]
        return next(filter(None, names), None)

    @property
    def folder(self) -> RunFolder:
        if self._folder is None or self._folder.path != Path(self.args.output_dir):
            self._folder = RunFolder(self.args.output_dir)
        return self._folder

    @contextmanager
    def hold_folder(self) -> Iterator[None]:
        """Lock the run's folder, on the main process. Raises [`FolderInUseError`] on every process."""
        with ExitStack() as stack:
            on_main_process(self.is_world_process_zero(), lambda: stack.enter_context(self.folder.held()))
            yield

    # ------------------------------------------------------------------------------------ begin, or go on

    def train(self, resume_from_checkpoint=None, trial=None, *args, **kwargs):
        """
        Train as [`~transformers.Trainer.train`] does.

        Args:
            resume_from_checkpoint (`str` or `bool`, *optional*):
                A checkpoint, or `True` for the newest complete one in `output_dir`, or `"auto"`: that one, or step 0
                if there is none.

        Raises:
            `ValueError`: The checkpoint is not complete, belongs to a different run (see `allow_config_change`),
                another process trains into `output_dir`, or a new run would mix with other files there.
        """
        if trial is not None or self.has_trained:
            raise ValueError("a trainer trains once, and not in a search: make a new trainer.")
        began = time.perf_counter()
        self._identity |= self._keys_set_later()
        resume_from = read_resume_word(resume_from_checkpoint)
        with self.hold_folder():
            checkpoint, changed = on_main_process(self.is_world_process_zero(), lambda: self._begin(resume_from))
            if checkpoint is not None:
                state = read_json(checkpoint / TRAINER_STATE)
                best = find_best(checkpoint, state)
                step = state["global_step"]
                self._resume = Resume(checkpoint, step, int(state["epoch"]), best, changed, began)
            self.has_trained = True
            return super().train(None if checkpoint is None else str(checkpoint), trial, *args, **kwargs)

    def _begin(self, resume_from: str | None) -> tuple[Path | None, dict[str, list[Any]]]:
        """Return the checkpoint to resume from, if any, and what has changed since."""
        args = self.args
        checkpoint, changed = find_start(self.folder, resume_from, self._whole_identity(), args.allow_config_change)
        if checkpoint is not None and isinstance(self.train_dataset, IterableDataset):
            raise ValueError(
                f"a run on a stream (IterableDataset) cannot be resumed from {checkpoint.name}, because its rows have "
                "no number. Pass a Dataset, or start a new run."
            )
        if checkpoint is not None and args.dataloader_persistent_workers:  # they would draw their seed again
            raise ValueError(
                "dataloader_persistent_workers=True has no exact resume. Set it to false and allow_config_change."
            )
        overwrite = args.overwrite or resume_from == AUTO_RESUME
        return self.folder.begin(checkpoint, overwrite, self.base_name()), changed

    def _keys_set_later(self) -> dict[str, Any]:
        """Return the keys that the trainer has chosen, and those that a script has set since it was made."""
        keys = changing_keys(self.args)
        changed = {name for name in keys if keys[name] != self._first_keys.get(name)}
        return {name: keys[name] for name in changed | CHOSEN_LATER}

    def _whole_identity(self) -> dict[str, Any]:
        identity = self._identity | changing_keys(*self.recipe)
        evaluations_act = self._evaluations_act()
        if not evaluations_act:  # then their keys are free
            identity = {key: identity[key] for key in identity if "eval" not in key and key not in CHOSEN_LATER}
        elif self.args.eval_strategy == "steps" and self.args.eval_steps < 1:  # a share of the run's length
            identity |= {key: getattr(self.args, key) for key in LENGTHS}
        return identity | {EVALUATIONS_ACT: evaluations_act}

    def _evaluations_act(self) -> bool:
        """Return whether the training reads evaluations, or shares its random numbers with them, as TRL's does."""
        schedule = SCHEDULES.get(self.args.lr_scheduler_type.value)
        callbacks = self.callback_handler.callbacks
        return (
            self._evaluates_as_trl
            or self.args.load_best_model_at_end
            or self.args.stop_stall > 0
            or (schedule is not None and schedule.follows_rates)
            or any(isinstance(callback, EarlyStoppingCallback) for callback in callbacks)
            or any(callback.watches_evaluations for callback in self.resets.callbacks)
        )

    def _stop(self, event: Event) -> None:
        """End the run with a checkpoint."""
        self.parts["end"].ended_by = event["event"]
        self.control.should_training_stop = True
        self.control.should_save = True

    def _inner_training_loop(self, *args, **kwargs):
        """Open the run's files. Not in `train`: a failure to load weights must leave no files."""
        self._run_id = on_main_process(self.is_world_process_zero(), self._open_files)
        with self._named_run():
            return super()._inner_training_loop(*args, **kwargs)

    def _open_files(self) -> str:
        """Return the run's id."""
        resume = self._resume
        folder = self.folder
        self._run_id = folder.id_of_run(None if resume is None else resume.checkpoint)
        if resume is not None and folder.has_checkpoint(resume.checkpoint):
            folder.abandon_newer(resume.checkpoint, resume.step)
        if self.log_completions:  # TRL's folder, made with the trainer, may be moved aside by now
            (folder.path / COMPLETIONS).mkdir(exist_ok=True)
        self.recorder.open(folder.path, resumes=resume is not None)
        self.write_env()  # before the first line: its id tells that these files are this run's
        if resume is not None:
            self.recorder.on_event(resume.event)
        write_config(folder.path, self.args, self.recipe)
        if self.initial_adapter is not None and not (folder.path / BASE_ADAPTER).exists():
            self.initial_adapter.save(folder.path / BASE_ADAPTER)
        return self._run_id

    def _named_run(self) -> AbstractContextManager:
        """Make Weights & Biases show a run and its resumes as one, unless the user names it."""
        if "wandb" not in self.args.report_to or "WANDB_RUN_ID" in os.environ:
            return nullcontext()
        return patch_environment(WANDB_RUN_ID=self._run_id, WANDB_RESUME="allow")

    def write_env(self) -> None:
        start = self._start
        teacher = None
        if self.teacher is not None:
            teacher = {"weights": self._identity[TEACHER], "packed": self.teacher.packs}
        execution = self._execution()
        write_env(self.run_dir, self.args, self.model, execution, self.base_name(), self._run_id, start, teacher)

    def _execution(self) -> dict[str, Any]:
        execution = {
            "packing": str(self.acceleration.packing),
            "compact_generation": str(self.acceleration.generation),
        }
        if self.unused_defaults:
            execution["unused_defaults"] = self.unused_defaults
        if self.compact is not None:
            execution.update(self.compact.facts())
        if self.use_vllm:
            execution["vllm"] = describe_engine(self.args)
        return execution

    def _load_optimizer_and_scheduler(self, checkpoint):
        """Also load the state of parts and buffer."""
        configured = hyperparameters(inner_of(self.optimizer))
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            self._load_state(Path(checkpoint), configured)

    def _load_state(self, folder: Path, configured: list[dict[str, Any]]) -> None:
        changed = self._resume.changed
        best = self._resume.best
        self.state.best_model_checkpoint = None if best is None else str(best)
        self.state.compute_steps(self.args, self.state.max_steps)  # the checkpoint has other intervals
        if self.args.should_save and self.folder.has_checkpoint(folder):
            self._remove_oldest()  # a kill may have come before
        if changed:
            restore_hyperparameters(self.optimizer, self.lr_scheduler, configured)
        if "entropy_coef" in changed:  # with `use_adaptive_entropy` TRL has loaded the old one
            self.entropy_coef = self.args.entropy_coef
        for part in self.parts.values():
            part.load(folder, changed)
        buffer = buffer_file(folder, self.accelerator.process_index)
        if buffer.exists():
            inputs = torch.load(buffer, "cpu", weights_only=True)
            self._buffered_inputs = send_to_device(inputs, self.accelerator.device)
        state = read_json(folder / STATE_FILE)
        self.parts.load_state_dict(state["parts"], changed)
        self._generations = state["generations"]
        self._step = state["micro_batches"]
        restore_completions(state["completions"], self._logs)
        self._metrics["train"].update(state["metrics"])
        self.trl_metrics.read(Means())  # the rows have them
        self.recorder.of_step["time_load"] = time.perf_counter() - self._resume.began

    def _load_from_checkpoint(self, resume_from_checkpoint, model=None):
        """Load every weight into the existing parameters."""
        policy = self.accelerator.unwrap_model(self.model)
        with self._load_into_parameters(Path(resume_from_checkpoint)):
            super()._load_from_checkpoint(resume_from_checkpoint, model)
            if is_peft_model(policy) and len(policy.peft_config) > 1 and not is_sharded(self.accelerator):
                # transformers up to 5.22 loads all adapters except the policy's.
                policy.load_adapter(resume_from_checkpoint, "default", is_trainable=True)

    def _load_best_model(self):
        """Load into the existing parameters, and keep the step."""
        with self._load_into_parameters(Path(self.state.best_model_checkpoint)):
            super()._load_best_model()
        self._best_step = self.state.best_global_step
        self._last_loaded_step = -1  # vLLM has the weights of the last step

    def _finalize_training(self, *args, **kwargs):
        """Finish, without removing checkpoints: for a limit of 1 transformers removes folders of others, too."""
        limit = self.args.save_total_limit
        self.args.save_total_limit = None
        try:
            return super()._finalize_training(*args, **kwargs)
        finally:
            self.args.save_total_limit = limit

    @property
    def step_of_weights(self) -> int:
        """Step of the policy's weights, also after `load_best_model_at_end`."""
        return self.state.global_step if self._best_step is None else self._best_step

    @contextmanager
    def _load_into_parameters(self, folder: Path):
        with whole_weights(), keep_parameters(self.accelerator.unwrap_model(self.model)):
            for part in self.parts.values():
                part.before_load(folder)
            self._loads_from = folder
            yield

    def _issue_warnings_after_load(self, load_result):
        """Load a file with other parameter names, of which Trainer only warns."""
        if is_sharded(self.accelerator):
            super()._issue_warnings_after_load(load_result)
            return
        policy = self.accelerator.unwrap_model(self.model)
        ties = getattr(policy, "all_tied_weights_keys", None) or {}
        if load_result.unexpected_keys or set(load_result.missing_keys) - set(ties):
            load_checkpoint(policy, self._loads_from)

    def _get_train_sampler(self, dataset=None):
        """Replay the shuffles of completed epochs: no checkpoint has the sampler's generator."""
        sampler = super()._get_train_sampler(dataset)
        for _ in range(self._resume.epochs if self._resume is not None and sampler.shuffle else 0):
            torch.randperm(sampler.num_samples, generator=sampler.generator)
        return sampler

    def _run_epoch(self, *args, epoch, epochs_trained, steps_trained_in_current_epoch, **kwargs):
        """Train no step after the run has ended: Trainer checks only after a step."""
        if self.state.global_step >= self.state.max_steps or self.parts["end"].ended_by is not None:
            self.control.should_training_stop = True
            return
        places = {"epochs_trained": epochs_trained, "steps_trained_in_current_epoch": steps_trained_in_current_epoch}
        super()._run_epoch(*args, epoch=epoch, **places, **kwargs)

    # ------------------------------------------------------------------------------------------------ save

    def _get_output_dir(self, trial):
        """Return the folder of the checkpoint being written."""
        return str(self._staging or super()._get_output_dir(trial))

    def _save_checkpoint(self, model, trial):
        """Write aside, with the state for a resume, then give the checkpoint its name."""
        step = self.state.global_step
        checkpoint = self.folder.path / f"checkpoint-{step}"
        self._staging = self.folder.staging(step)
        self._failed_write = None
        try:
            with self._failures_noted(checkpoint):
                super()._save_checkpoint(model, trial)
                self._save_beside(self._staging / checkpoint.name, checkpoint)
            self._raise_failure(checkpoint)
            with self._failures_noted(checkpoint):
                if self.args.should_save:
                    for path in self.recorder.files:
                        sync(path)
                    self.folder.name(step, resumable=not self.args.save_only_model)
            self._raise_failure(checkpoint)
        finally:
            self._staging = None
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(checkpoint))
        if self.args.should_save:
            self._remove_oldest()

    def _remove_oldest(self) -> None:
        state = self.state
        self.folder.remove_oldest(state.global_step, self.args.save_total_limit, state.best_model_checkpoint)

    @contextmanager
    def _failures_noted(self, target: Path) -> Iterator[None]:
        """Note a failed write in a checkpoint, and continue to the next barrier, where other processes wait."""
        try:
            yield
        except Exception as error:
            if not is_failed_write(error):
                raise
            if self._staging is None:
                raise CheckpointError(describe_failed_write(target, self.folder.path, error)) from error
            self._failed_write = self._failed_write or error

    def _raise_failure(self, checkpoint: Path) -> None:
        """Wait for every process, and raise the first one's failed write on all."""
        message = None
        if self._failed_write is not None:
            message = describe_failed_write(checkpoint, self.folder.path, self._failed_write)
            if self.accelerator.num_processes > 1:
                message = f"In process {self.accelerator.process_index}, {message}"
        message = first_of_processes(message)
        if message is None:
            return
        if self.args.should_save:
            shutil.rmtree(self._staging, ignore_errors=True)
        error = CheckpointError(message)
        error.already_reported = not self.is_world_process_zero()
        raise error from self._failed_write

    def _save_beside(self, folder: Path, checkpoint: Path) -> None:
        if self._step % self.args.generate_every != 0 and self._buffered_inputs is not None:
            inputs = send_to_device(self._buffered_inputs, "cpu")
            torch.save(inputs, buffer_file(folder, self.accelerator.process_index))
        if self.state.best_model_checkpoint == str(folder):  # every process reads it at the end of training
            self.state.best_model_checkpoint = str(checkpoint)
        if not self.args.should_save:
            return
        self.state.save_to_json(str(folder / TRAINER_STATE))
        for part in self.parts.values():
            part.save(folder)
        state = {
            "generations": self._generations,
            "micro_batches": self._step % self.args.generate_every,
            "parts": self.parts.state_dict(),
            "completions": completions_to_json(self._logs) if self.log_completions else {},
            "metrics": {name: list(map(float, values)) for name, values in self._metrics["train"].items()},
        }
        (folder / STATE_FILE).write_text(json.dumps(as_plain(state)))
        (folder / IDENTITY_FILE).write_text(json.dumps(self._whole_identity(), indent=1))

    def save_model(self, output_dir=None, _internal_call=False):
        """Save the model with its card and the run's id, without secrets."""
        folder = Path(output_dir or self.args.output_dir)
        with self._failures_noted(folder):
            self._save_weights(folder)
        if folder == Path(self.args.output_dir):
            self.create_model_card()  # PEFT has written its own
        if self.args.push_to_hub and not _internal_call:
            self.push_to_hub(commit_message="Model save", revision=self.args.hub_revision)

    def _save_weights(self, folder: Path) -> None:
        token, init = self.args.hub_token, self.args.model_init_kwargs
        self.args.hub_token, self.args.model_init_kwargs = None, remove_secrets(init)  # they are pickled
        if self.args.should_save:
            write_run_id(folder, None)  # until the weights are complete
        try:
            super().save_model(str(folder), _internal_call=True)
        finally:
            self.args.hub_token, self.args.model_init_kwargs = token, init
        if self.args.should_save:
            write_run_id(folder, self._run_id, self.step_of_weights)

    # ------------------------------------------------------------------------------- push, see hub/uploads.py

    def init_hf_repo(self, token=None, *args, **kwargs):
        """Use the repository made before the model was loaded."""
        if self.is_world_process_zero():
            self.uploads.open(token, *args, **kwargs)

    def create_model_card(self, model_name=None, dataset_name=None, tags=None):
        """Write the run's card; a failure only warns."""
        try:
            with self._failures_noted(self.folder.path):
                self.uploads.write_card(dataset_name, tags)
        except ValueError as error:
            logger.warning("The model card could not be updated: %s", error)

    def push_to_hub(self, commit_message="End of training", blocking=True, token=None, revision=None, **kwargs):
        """
        Push as [`~transformers.Trainer.push_to_hub`] does, with the files of [`~trl_prorl.hub.publish`].

        Raises:
            [`~trl_prorl.errors.PushError`]: The upload failed; everything is on disk.
        """
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero():
            return None
        self._finish_current_push()
        return self.uploads.push(commit_message, blocking, token, revision, **kwargs)

    def _push_from_checkpoint(self, checkpoint_folder):
        """Push a checkpoint after it has its name."""
        if self._staging is None:
            self.uploads.push_checkpoint(Path(checkpoint_folder))


@dataclass
class Resume:
    """
    A checkpoint to resume from, and the `best` one so far. `changed`: keys that differ from the checkpoint's,
    `[then, now]`; `began`: start of the search for it, by `time.perf_counter`.
    """

    checkpoint: Path
    step: int
    epochs: int
    best: Path | None
    changed: dict[str, list[Any]]
    began: float

    @property
    def event(self) -> Event:
        where = {"step_requested": self.step, "step_applied": self.step, "checkpoint": self.checkpoint.name}
        return {"event": RESUME, **where, "changed": self.changed}


def find_best(checkpoint: Path, state: Mapping[str, Any]) -> Path | None:
    """
    Find the best checkpoint of a run with this `TrainerState`: `checkpoint` itself, one next to it (the folder may
    have moved), or the recorded one, in a folder from which an earlier resume continued.
    """
    recorded = state["best_model_checkpoint"]
    if recorded is None:
        return None
    name = Path(recorded).name
    if name == f"checkpoint-{state['global_step']}":
        return checkpoint
    for path in (checkpoint.with_name(name), Path(recorded)):
        if (path / TRAINER_STATE).is_file():
            history = read_json(path / TRAINER_STATE)["log_history"]
            # As text, because NaN is unequal to itself. Another run may have taken the name.
            if json.dumps(history) == json.dumps(state["log_history"][: len(history)]):
                return path
    logger.warning("The best checkpoint, %s, is missing: only a better one will be loaded.", visible(recorded))
    return None


def is_failed_write(error: Exception) -> bool:
    # tokenizers raises plain `Exception`.
    is_any = isinstance(error, OSError | RuntimeError | SafetensorError) or type(error) is Exception
    return is_any and not isinstance(error, RunError)


def describe_failed_write(target: Path, output_dir: Path, error: Exception) -> str:
    newest = max(filter(is_written, steps_of(output_dir)), key=step_of, default=None)
    saved = "There is no checkpoint" if newest is None else f"The newest checkpoint is {newest.name}"
    free = shutil.disk_usage(output_dir).free / 2**30
    return (
        f"{target} could not be written: {type(error).__name__}: {error} ({free:.2f} GiB free). {saved}. Free some "
        "space, or lower save_total_limit, then resume with resume_from_checkpoint: true."
    )


def completions_to_json(completions: Mapping[str, Any]) -> dict[str, Any]:
    table = {name: list(map(strip_images_from_messages, completions[name])) for name in ("prompt", "completion")}
    table["advantages"] = list(completions["advantages"])
    for name in ("rewards", "extra"):
        table[name] = {column: list(values) for column, values in completions[name].items()}
    return table


def restore_completions(table: Mapping[str, Any], completions: Mapping[str, Any]) -> None:
    for name, values in table.items():
        if isinstance(values, dict):
            for column, column_values in values.items():
                completions[name][column].extend(column_values)
        else:
            completions[name].extend(values)


@contextmanager
def keep_parameters(model: torch.nn.Module) -> Iterator[None]:
    """
    Keep parameters (objects and dtypes) while PEFT loads adapters into them: it replaces those in bf16 by new ones in
    fp32, which optimizer and parts would not know.
    """
    before = dict(model.named_parameters())
    yield
    for name, param in [*model.named_parameters()]:
        old = before.get(name)
        if old is not None and old is not param:
            old.data = param.data.to(old.dtype)
            old.requires_grad_(param.requires_grad)
            owner, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(owner), leaf, old)
