"""How [`ProRLTrainer`] writes whole checkpoints and resumes from them exactly."""

import json
import logging
import shutil
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import torch
from accelerate.utils import broadcast_object_list
from transformers.trainer_utils import rotate_checkpoints
from trl.trainer.utils import strip_images_from_messages

from .buffer import buffer_file, load_buffer, save_buffer
from .callbacks import load_callbacks
from .checkpoint import (
    CHECKPOINT,
    INCOMPLETE,
    abandon_newer,
    find_checkpoint,
    is_failed_write,
    leftovers,
    publish,
    sync,
)
from .config_change import (
    BATCH_KEYS,
    check_change,
    hyperparameters,
    restore_hyperparameters,
    switched_off,
    switched_on,
)
from .errors import CheckpointError, RunError
from .identity import IDENTITY_FILE, changing_keys, check_same_run
from .meter import EVALUATIONS_FILE, EVENTS_FILE, METRICS_FILE, JsonLines, check_record
from .publish import staged_leftovers
from .quiet import without_warning
from .record import write_config, write_env
from .run_files import EVENTS, METRICS, read_json
from .run_id import new_run_id, recorded_run_id, saved_run_id
from .run_lock import FolderLock
from .together import by_main_process
from .triggers import Reason


STATE_FILE = "prorl_state.json"

logger = logging.getLogger(__name__)


class CheckpointMixin:
    """Part of [`ProRLTrainer`]: saving, and resuming."""

    _has_trained = False
    _run_id: str | None = None  # of the run that `train` begins or continues
    _folder_lock: FolderLock | None = None

    @contextmanager
    def folders_held(self):
        """
        Keep other runs out of `output_dir` and `run_dir`. May be entered again. The main process holds them, for all.

        Raises:
            [`~trl_prorl.run_lock.FolderInUseError`]: another process does, on every process of this run.
        """
        if self._folder_lock is None or not self._folder_lock.held:
            self._folder_lock = FolderLock(self.args.output_dir, self.run_dir)
        by_main_process(self.is_world_process_zero(), self._folder_lock.hold)
        try:
            yield
        finally:
            if self.is_world_process_zero():
                self._folder_lock.let_go()

    def train(self, resume_from_checkpoint=None, *args, **kwargs):
        """
        As [`~transformers.Trainer.train`]. A resume continues the run exactly, from the middle of a generation batch too.

        Args:
            resume_from_checkpoint (`str` or `bool`, *optional*):
                A checkpoint, or `True` for the newest complete one in `output_dir`.

        Raises:
            `ValueError`: that checkpoint is not whole, the run would not be the same (see `allow_config_change`), or another
            process trains into `output_dir` or `run_dir`.
        """
        with self.folders_held():
            return self._train(resume_from_checkpoint, *args, **kwargs)

    def _train(self, resume_from_checkpoint, *args, **kwargs):
        if resume_from_checkpoint:
            checkpoint, skipped = find_checkpoint(resume_from_checkpoint, self.args.output_dir)
            for name, reason in skipped.items():
                logger.warning("Checkpoint %s is skipped: %s.", name, reason)
            check_record(self.run_dir)
            then = read_json(checkpoint / IDENTITY_FILE)
            changed = check_same_run(then, self._identity | changing_keys(*self.recipe), self.args.allow_config_change)
            check_change(changed, self._identity | changing_keys(*self.recipe), checkpoint)
            self._resume_event = {
                "event": "resume",
                "checkpoint": checkpoint.name,
                "skipped": skipped,
                "changed": changed,
            }
            resume_from_checkpoint = str(checkpoint)
        return super().train(resume_from_checkpoint or None, *args, **kwargs)

    def _inner_training_loop(self, *args, resume_from_checkpoint=None, **kwargs):
        if self._has_trained:
            self._begin_anew()
        self._has_trained = True
        keep_row = keep_event = None
        if resume_from_checkpoint is not None:
            state = json.loads((Path(resume_from_checkpoint) / "trainer_state.json").read_text())
            step = state["global_step"]
            self._epochs_done = int(state["epoch"])
            keep_row = lambda row: row["step"] <= step  # noqa: E731
            # A reset at the checkpoint's own step came after the save, and comes again. Other events came before it.
            comes_again = ("reset", "elastic_reset")
            keep_event = lambda event: event["step_applied"] < step + (event["event"] not in comes_again)  # noqa: E731
        self._run_id = self._find_run_id(resume_from_checkpoint)
        if self.is_world_process_zero():
            for leftover in (*leftovers(Path(self.args.output_dir)), *staged_leftovers(Path(self.args.output_dir))):
                shutil.rmtree(leftover)
            if resume_from_checkpoint is not None:
                self._go_back_to(Path(resume_from_checkpoint))
            self._metrics_log = JsonLines(self.run_dir / METRICS_FILE, keep_row, METRICS)
            self._events_log = JsonLines(self.run_dir / EVENTS_FILE, keep_event, EVENTS)
            if self.args.eval_strategy != "no":
                self._evaluations_log = JsonLines(self.run_dir / EVALUATIONS_FILE, keep_row, METRICS)
            if resume_from_checkpoint is not None:
                self._log_event(self._resume_event | {"step_requested": step, "step_applied": step})
            write_config(self.run_dir, self.args, self.recipe)
            write_env(self.run_dir, self.args, self.model, self.packing, self._base_name(), self._run_id)
        return super()._inner_training_loop(*args, resume_from_checkpoint=resume_from_checkpoint, **kwargs)

    def _go_back_to(self, checkpoint: Path) -> None:
        """Before the record is cut: what is newer than a checkpoint is no longer part of the run."""
        renamed = abandon_newer(checkpoint, Path(self.args.output_dir), self._resume_event["skipped"])
        for name, now in renamed.items():
            logger.warning(
                "%s is newer than %s, from which the run goes on, and no longer part of it: it is %s now, yours to remove.",
                *(name, checkpoint.name, now),
            )
        self._resume_event["abandoned"] = list(renamed)

    def _find_run_id(self, checkpoint: str | None) -> str:
        """The id of the run that a checkpoint of `output_dir` continues, else a new one: a checkpoint of another folder forks a run."""
        found = None
        if self.is_world_process_zero():
            if checkpoint is not None and Path(checkpoint).resolve().parent == Path(self.args.output_dir).resolve():
                found = saved_run_id(checkpoint) or recorded_run_id(self.run_dir)
            found = found or new_run_id()
        return broadcast_object_list([found])[0]  # on several nodes, each may save

    def _init_training_state(self, max_steps, steps_of_epoch, epochs, resume_from_checkpoint, trial):
        best = None
        if resume_from_checkpoint is not None:
            best = _best_beside(Path(resume_from_checkpoint), Path(self.args.output_dir))
        with without_warning("transformers.trainer", "The best checkpoint") if best is not None else nullcontext():
            done = super()._init_training_state(max_steps, steps_of_epoch, epochs, resume_from_checkpoint, trial)
        self.state.compute_steps(
            self.args, max_steps
        )  # a checkpoint's logging_steps, eval_steps and save_steps are its own
        if best is not None:
            self.state.best_model_checkpoint = str(best)
        return done

    def _begin_anew(self) -> None:
        """
        Steps count from 0 again, or from a checkpoint, and another call of `train` was ended or broken off before. Weights
        and the reference stay as they are.
        """
        self._count_from_0()
        self.meter.abandon_step()
        self.beta, self.beta_old, self.beta_base = self.args.beta, self.args.beta_old, self.args.beta_base
        for callback, state in self._untouched:
            callback.load_state_dict(state)

    def _run_epoch(self, *args, **kwargs):
        if self.state.global_step >= self.state.max_steps:
            # Resumed from its last step: Trainer would do one more before it looks.
            self.control.should_training_stop = True
            return
        super()._run_epoch(*args, **kwargs)

    def _get_train_sampler(self, dataset=None):
        sampler = super()._get_train_sampler(dataset)
        if sampler.shuffle:
            for _ in range(self._epochs_done):  # its generator is its own and in no checkpoint
                torch.randperm(sampler.num_samples, generator=sampler.generator)
        return sampler

    def _get_output_dir(self, trial):
        return str(self._writing_into) if self._writing_into is not None else super()._get_output_dir(trial)

    def _save_checkpoint(self, model, trial):
        name = f"checkpoint-{self.state.global_step}"
        run_dir = Path(super()._get_output_dir(trial=trial))
        self._writing_into = run_dir / f"{INCOMPLETE}{name}"
        aside, final = self._writing_into / name, run_dir / name
        try:
            super()._save_checkpoint(model, trial)
            self._save_beside(aside, final)
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                for log in (self._metrics_log, self._events_log, self._evaluations_log):
                    if log is not None:
                        sync(log.path)
                publish(aside, final, self.state.global_step, resumable=not self.args.save_only_model)
                self._writing_into.rmdir()
        except Exception as error:
            if not is_failed_write(error):
                raise
            shutil.rmtree(self._writing_into, ignore_errors=True)
            raise CheckpointError(self._save_failed(final, run_dir, error)) from error
        finally:
            self._writing_into = None
        self.accelerator.wait_for_everyone()
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(final))
        if self.args.should_save:
            rotate_checkpoints(
                str(run_dir), self.args.save_total_limit, self.state.best_model_checkpoint, use_mtime=True
            )

    def save_model(self, output_dir=None, _internal_call=False):
        try:
            super().save_model(output_dir, _internal_call=_internal_call)
        except Exception as error:
            if self._writing_into is not None or isinstance(error, RunError) or not is_failed_write(error):
                raise
            folder = Path(output_dir or self.args.output_dir)
            message = self._save_failed(folder, Path(self.args.output_dir), error)
            raise CheckpointError(f"The model in {message}") from error

    def _save_failed(self, target: Path, run_dir: Path, error: Exception) -> str:
        kept = sorted(
            (path.name for path in run_dir.glob("checkpoint-*")),
            key=lambda name: int(CHECKPOINT.fullmatch(name)[1]) if CHECKPOINT.fullmatch(name) else -1,
        )
        free = shutil.disk_usage(run_dir).free / 2**30
        return (
            f"{target} could not be written: {type(error).__name__}: {error} ({free:.2f} GiB are free there). "
            f"{'The newest checkpoint is ' + kept[-1] if kept else 'There is no older checkpoint'}. Make room, lower "
            "save_total_limit or set another output_dir, and go on with resume_from_checkpoint: true."
        )

    def _save_beside(self, folder: Path, final: Path) -> None:
        """What the run needs beyond TRL's checkpoint."""
        if self._step % self.args.generate_every != 0 and self._buffered_inputs is not None:
            save_buffer(folder / buffer_file(self.accelerator.process_index), self._buffered_inputs)
        is_best = self.state.best_model_checkpoint == str(folder)
        if is_best:  # every process reads it at the end
            self.state.best_model_checkpoint = str(final)
        if not self.args.should_save:
            return
        if is_best:
            self.state.save_to_json(str(folder / "trainer_state.json"))
        if self.reference is not None and self._resets:
            self.reference.save(folder)
        if self.elastic is not None:
            self.elastic.save(folder)
        (folder / STATE_FILE).write_text(json.dumps(self._prorl_state(), default=_as_json))
        (folder / IDENTITY_FILE).write_text(json.dumps(self._identity | changing_keys(*self.recipe), indent=1))

    def _load_optimizer_and_scheduler(self, checkpoint):
        # The one step of a resume that every kind of set-up takes, and after the model's.
        asked = hyperparameters(self.optimizer)
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        changed = self._resume_event["changed"]
        if changed:
            restore_hyperparameters(self.optimizer, self.lr_scheduler, asked)
        folder = Path(checkpoint)
        began = any(switched_on(changed, key) for key in changed if key == "beta" or key.startswith("ref_reset_"))
        if self.reference is not None and self._resets and not (began and not self.reference.is_in(folder)):
            self.reference.load(folder)
        if self.elastic is not None:
            self.elastic.load(folder)
        buffer = folder / buffer_file(self.accelerator.process_index)
        if buffer.exists():
            self._buffered_inputs = load_buffer(buffer, self.accelerator.device)
        self._load_prorl_state(json.loads((folder / STATE_FILE).read_text(), object_hook=_from_json))

    def _prorl_state(self) -> dict:
        """What the trainer remembers beyond weights and optimizer, as JSON values."""
        return {
            "requests": [request.to_dict() for request in self._requests],
            "callbacks": [callback.state_dict() for callback in self._reset_callbacks()],
            "elastic_requested": self._elastic_requested,
            "coefficients": {name: getattr(self, name) for name in ("beta", "beta_old", "beta_base")},
            "kl_since_generation": self._kl_since_generation,
            "kl_ref": self._last_kl_ref,
            "generations": self._generations,
            "micro_batches": self._step,
            "generation_row": self._generation_row,
            "logged": self._metrics["train"],
            "completions": self._logged_completions() if self.log_completions else None,
            "nonfinite_skips": self._nonfinite_skips,
            "extra_rows": self._extra_rows.state_dict() if self._extra_rows is not None else None,
            "entropy_watch": self.entropy_watch.state_dict() if self.entropy_watch is not None else None,
            "updates_since_reset": self._rewarmup.updates if self._rewarmup is not None else None,
        }

    def _logged_completions(self) -> dict:
        """The text of the last generation batch, which TRL writes with every log."""
        logs = {name: list(map(strip_images_from_messages, self._logs[name])) for name in ("prompt", "completion")}
        logs["advantages"] = list(self._logs["advantages"])
        for name in ("rewards", "extra"):
            logs[name] = {column: list(values) for column, values in self._logs[name].items()}
        return logs

    def _load_prorl_state(self, state: dict) -> None:
        changed = self._resume_event["changed"]
        self._requests = [Reason(**request) for request in state["requests"]] if self._resets else []
        load_callbacks(self._reset_callbacks(), state["callbacks"])
        self._elastic_requested = state["elastic_requested"]
        for name, value in state["coefficients"].items():
            if name not in changed and not switched_off(changed, "kl_target"):
                setattr(self, name, value)
        self._kl_since_generation = state["kl_since_generation"]
        self._last_kl_ref = state["kl_ref"]
        self._generations = state["generations"]
        self._step = 0 if set(changed) & set(BATCH_KEYS) else state["micro_batches"]  # at the end of a batch, if so
        self._generation_row = state["generation_row"]
        self._metrics["train"].update(state["logged"])
        self._nonfinite_skips = state["nonfinite_skips"]
        for name, values in (state["completions"] or {}).items():
            if isinstance(values, dict):
                for column, column_values in values.items():
                    self._logs[name][column].extend(column_values)
            else:
                self._logs[name].extend(values)
        if self._extra_rows is not None and state["extra_rows"] is not None:
            self._extra_rows.load_state_dict(state["extra_rows"])
        if self.entropy_watch is not None and state["entropy_watch"] is not None:
            self.entropy_watch.load_state_dict(state["entropy_watch"])
        if self._rewarmup is not None:
            self._rewarmup.updates = state["updates_since_reset"]


def _best_beside(checkpoint: Path, output_dir: Path) -> Path | None:
    """
    The best checkpoint of a run that is resumed, as `output_dir` names it now. On record is its path as of then, which may be
    relative to another directory, or that of a folder that was renamed; it still lies beside the checkpoint.
    """
    recorded = json.loads((checkpoint / "trainer_state.json").read_text())["best_model_checkpoint"]
    if recorded is None:
        return None
    beside = checkpoint.with_name(Path(recorded).name)
    here = output_dir / beside.name
    if here.is_dir() and beside.is_dir() and here.samefile(beside):
        return here
    return beside if beside.is_dir() else None


def _as_json(value):
    """What JSON does not know, as `log_extra` may hold: numpy's with its type, so that a table prints it as before."""
    if isinstance(value, (np.generic, np.ndarray)):
        return {"numpy": value.dtype.str, "value": value.tolist()}
    return value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else str(value)


def _from_json(value: dict):
    return np.array(value["value"], value["numpy"])[()] if value.keys() == {"numpy", "value"} else value
