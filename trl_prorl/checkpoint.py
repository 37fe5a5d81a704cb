"""
How a run begins, saves and resumes, exactly.

In reading order:

- `CheckpointMixin` is a part of [`ProRLTrainer`]: begin, or go on; save; push.
- `Resume` says where a run goes on, and what of its log files stays.
- A roll-back on its way: `RollbackRequest`, and which checkpoint counts after a kill in the middle of one.
- What a checkpoint has in addition to TRL's: samples that are still to be trained on (`save_buffer`), TRL's table of
  completions (`completions_to_json`), the state of a run's parts (`read_state`). Parts write their tensors themselves.
- `keep_parameters`: what is loaded goes into the parameters that there are.

`checkpoint_files.py` writes complete checkpoints only and finds them; `identity.py` says whether it is the same run.
"""

import json
import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import is_peft_model, patch_environment
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import EarlyStoppingCallback
from trl.trainer.utils import get_config_model_id, strip_images_from_messages

from .checkpoint_files import (
    WholeCheckpoint,
    adopt_unnamed,
    begins_again,
    buffer_file,
    describe_failed_write,
    find_checkpoint,
    is_failed_write,
    means_newest,
)
from .errors import CheckpointError, NonFiniteError, RunError, naming
from .extras.vllm import describe_engine
from .files import check_contents
from .hub.downloads import PREFIX, fetch_run
from .identity import (
    BATCH_KEYS,
    EVALUATIONS_ACT,
    IDENTITY_FILE,
    changing_keys,
    check_same_run,
    hyperparameters,
    restore_hyperparameters,
)
from .keys import AUTO_RESUME, read_resume_word
from .parts import Part
from .provenance import remove_secrets, write_config, write_env
from .quiet import without_warning
from .run_files import (
    BASE_ADAPTER,
    EVENTS_FILE,
    NONFINITE,
    RESUME,
    ROLLBACK,
    TRAINER_STATE,
    read_jsonl,
    write_run_id,
)
from .run_folder import COMPLETIONS, FolderLock, RunFolder, by_main_process, step_of
from .run_shapes import STATE_FILE, check_shape, read_shaped
from .supported import PATH_DEPENDENT_SCHEDULES
from .text import visible
from .weights import load_checkpoint, whole_weights


logger = logging.getLogger(__name__)


class CheckpointMixin:
    """Is the part of [`ProRLTrainer`] that begins a run, continues with it, saves it and pushes it."""

    initial_adapter = None  # of a run with an adapter: the policy as it was then, see reference.py
    _aside: WholeCheckpoint | None = None  # the checkpoint that is being written
    _epochs_done = 0
    _folder: RunFolder | None = None  # of the run that `train` begins or continues
    _folder_lock: FolderLock | None = None
    _has_trained = False
    _sets_aside = False  # whether what lies in the run's folder is set aside when it begins
    _trained_in: Path | None = None  # the folder of this trainer's last training
    made_by_trl: set[str] = frozenset()  # names in the folder that TRL's trainer made
    _model_name: str | None = None  # of the model that the trainer was given
    _best_step: int | None = None  # of the checkpoint that `load_best_model_at_end` has loaded
    _loads_from: Path | None = None  # the checkpoint of which Trainer loads the weights
    _resume: "Resume | None" = None
    rollback: Part | None = None  # extras/rollback.py, of a run that goes back when it collapses
    stall_stop: Part | None = None  # watch.py, of a run that ends when it no longer improves
    _run_id: str | None = None  # of the run that `train` begins or continues

    def base_name(self) -> str | None:
        """
        Name the model that the run started from as recipe or script do: Hub name, folder, `smollm2` and the like.
        """
        of_recipe = next(
            (part.model_name_or_path for part in self.recipe if hasattr(part, "model_name_or_path")), None
        )
        given = of_recipe or self._model_name
        return given or get_config_model_id(self.accelerator.unwrap_model(self.model).config) or None

    @property
    def folder(self) -> RunFolder:
        """The folder that the run writes to: `output_dir`, or the folder of a trial in a search."""
        return self._folder or RunFolder(self.args.output_dir)

    @contextmanager
    def hold_folder(self):
        """
        Keep other runs out of the run's folder. May be entered again. The main process holds it, for all.

        Raises:
            [`~trl_prorl.run_folder.FolderInUseError`]: On every process, if another run holds it.
        """
        if self._folder_lock is None or not self._folder_lock.held:
            self._folder_lock = FolderLock(self.folder.path)
        by_main_process(self.is_world_process_zero(), self._folder_lock.hold)
        try:
            yield
        finally:
            if self.is_world_process_zero():
                self._folder_lock.release()

    # ------------------------------------------------------------------------------------ begin, or go on

    def train(self, resume_from_checkpoint=None, trial=None, *args, **kwargs):
        """
        Train as [`~transformers.Trainer.train`] does.

        A resume continues the run exactly, even from the middle of a generation batch.

        Args:
            resume_from_checkpoint (`str` or `bool`, *optional*):
                A checkpoint, or `True` for the newest complete one in `output_dir`, or `"auto"`: that one, or step 0
                if there is none. `"hub:USER/RUN"`: the newest complete one that a run has pushed.

        Raises:
            `ValueError`: That checkpoint is not whole, the run would not be the same (see `allow_config_change`),
                another process trains into `output_dir`, or a new run would lie in it among other files.
        """
        self._folder = RunFolder(super()._get_output_dir(trial), self.made_by_trl)
        is_main = self.is_world_process_zero()
        by_main_process(is_main, self.folder.check_usable)
        with self.hold_folder():
            self._resume = None
            self._sets_aside = self.args.overwrite or self._folder.path == self._trained_in
            if str(resume_from_checkpoint).startswith(PREFIX):
                resume_from_checkpoint = by_main_process(is_main, lambda: self._fetch_run(resume_from_checkpoint))
            if resume_from_checkpoint and not self._begins_again(resume_from_checkpoint):
                by_main_process(is_main, self._prepare_resume)
                self._resume = self._find_resume(resume_from_checkpoint)
            by_main_process(is_main, self._check_folder)
            return self._train_with_rollbacks(trial, *args, **kwargs)

    def _fetch_run(self, resume_from: str) -> Path:
        return fetch_run(resume_from, self.folder, self._folder_lock, self.args.overwrite, self.args.hub_token)

    def _begins_again(self, resume_from) -> bool:
        """Return whether a resume with `"auto"` begins the run again, because it has no checkpoint."""
        if read_resume_word(resume_from) != AUTO_RESUME:
            return False
        again = by_main_process(self.is_world_process_zero(), lambda: begins_again(resume_from, self.folder))
        if again:
            self._sets_aside = True
            if self.is_world_process_zero():
                print(f"{self.run_dir} has no complete checkpoint: the run starts at step 0", file=sys.stderr)
        return again

    def _prepare_resume(self) -> None:
        folder = self.folder
        check_contents(folder.path, folder.given)
        read_jsonl(folder.path / EVENTS_FILE)  # a resume reads them, to continue their attempts
        adopt_unnamed(folder.path)

    def _train_with_rollbacks(self, *args, **kwargs):
        """
        Train to the end. Whenever the run collapses, go back to a good checkpoint and train on from there.

            TRL's train ──▶ step ──▶ step ──▶ NonFiniteError, or `_stop` raises RollbackRequest
                 ▲                                               │
                 └── self._resume ◀── event on disk ◀── planned ─┘   (nothing planned: the error ends the run)
        """
        while True:
            self._remove_noise_hook()
            checkpoint = str(self._resume.checkpoint) if self._resume is not None else None
            try:
                return super().train(checkpoint, *args, **kwargs)
            except RollbackRequest as request:
                rollback = request.event
            except NonFiniteError as error:
                step = self.state.global_step
                rollback = self._plan_rollback({"event": NONFINITE, "step_applied": step, "last_good": step})
                if rollback is None:
                    raise
                logger.warning("Rolled back to %s instead of stopping with: %s", rollback["checkpoint"], error)
            self._event(rollback)
            self._resume = self._find_resume(self.run_dir / rollback["checkpoint"])

    def _plan_rollback(self, event: Mapping[str, Any]) -> dict[str, Any] | None:
        """Plan the way back because of an event; `None` if there is none."""
        return self.rollback.plan(event) if self.rollback is not None else None

    def _stop(self, event) -> None:
        """Go back because of an event, if the run may; else end it with a checkpoint."""
        rollback = self._plan_rollback(event)
        if rollback is not None:
            raise RollbackRequest(rollback)
        self.parts["end"].ended_by = event["event"]
        self.control.should_training_stop = True
        self.control.should_save = True

    def _remove_noise_hook(self) -> None:
        """Remove NEFTune's hook that a training left behind when it was broken off: else there would be two."""
        hook = getattr(self, "neftune_hook_handle", None)
        if hook is not None:
            hook.remove()

    def _check_folder(self) -> None:
        if not self._begins_in_its_folder():
            self.folder.check_own(self._resume.checkpoint)
        elif self._sets_aside:
            self.folder.check_movable(self.base_name())
        else:
            self.folder.check_new()

    def _begins_in_its_folder(self) -> bool:
        """
        Return whether nothing in `output_dir` is of this run yet: it is new, or its checkpoint lies in another folder.
        """
        return self._resume is None or not self.folder.has_checkpoint(self._resume.checkpoint)

    def _find_resume(self, resume_from) -> "Resume":
        """
        Find the checkpoint to resume from, and refuse one from which this would not be the same run.

        Args:
            resume_from (`str`, `os.PathLike` or `bool`): A checkpoint, or `True` for the newest complete one.

        Raises:
            `ValueError`: The checkpoint is not whole, or the run would not be the same.
        """
        began = time.perf_counter()
        checkpoint, skipped = find_checkpoint(resume_from, self.folder.path)
        if means_newest(resume_from):
            checkpoint = checkpoint_after_rollback(checkpoint, self.run_dir)
        changed = check_same_run(checkpoint, self._whole_identity(), self.args.allow_config_change)
        for name, reason in skipped.items():
            logger.warning("%s", visible(f"Skipping checkpoint {name}: {reason}."))
        state = read_shaped(checkpoint / TRAINER_STATE)
        best = find_best_beside(checkpoint, state["best_model_checkpoint"])
        return Resume(checkpoint, state["global_step"], int(state["epoch"]), best, skipped, changed, began)

    def _whole_identity(self) -> dict:
        """Return what makes a resumed run the same run, the recipe's keys included."""
        return {**self._identity, EVALUATIONS_ACT: self._evaluations_act(), **changing_keys(*self.recipe)}

    def _evaluations_act(self) -> bool:
        """Return whether the training would be another one with other evaluations."""
        args = self.args
        chooses = args.load_best_model_at_end or args.lr_scheduler_type.value in PATH_DEPENDENT_SCHEDULES
        stops = any(isinstance(callback, EarlyStoppingCallback) for callback in self.callback_handler.callbacks)
        triggers = any(callback.watches_evaluations for callback in self.resets.callbacks)
        return self._evaluates_as_trl or chooses or stops or triggers or self.stall_stop is not None

    def _inner_training_loop(self, *args, **kwargs):
        """Begin or continue the run's files. Not in `train`: weights that cannot be loaded must leave no trace."""
        if self._has_trained:  # and was ended or broken off; weights and the reference stay as they are
            for part in self.parts.values():
                part.begin()
            self._generations = 0
            self._forget_logs()
        self._has_trained = True
        self._best_step = None
        resume = self._resume
        folder = self.folder
        self._trained_in = folder.path
        is_main = self.is_world_process_zero()
        if self._begins_in_its_folder() and self._sets_aside:
            base = self.base_name()
            by_main_process(is_main, lambda: folder.set_aside(base, self._folder_lock))
        self._epochs_done = resume.epochs if resume is not None else 0
        checkpoint = resume.checkpoint if resume is not None else None
        # One process chooses the id for all: on several nodes, several may save.
        self._run_id = by_main_process(is_main, lambda: folder.id_of_run(checkpoint))
        if is_main:
            folder.clear_leftovers()
            if self.log_completions:  # TRL made the folder with the trainer; it may be set aside by now
                Path(self.args.output_dir, COMPLETIONS).mkdir(exist_ok=True)
            if resume is None:
                self.recorder.open(self.run_dir)
            else:
                resume.abandoned = list(folder.abandon_newer(resume.checkpoint, resume.skipped))
                self.recorder.open(self.run_dir, resumes=True)
                self.recorder.event(resume.event)
            # Before any other file with content: it has the id by which they are known as this run's.
            self.write_env()
            write_config(self.run_dir, self.args, self.recipe)
            if self.initial_adapter is not None and (resume is None or not (self.run_dir / BASE_ADAPTER).exists()):
                self.initial_adapter.save(self.run_dir / BASE_ADAPTER)
        # The best one need not lie where the state says, of which Trainer warns.
        knows_best = resume is not None and resume.best is not None
        quiet = without_warning("transformers.trainer", "The best checkpoint") if knows_best else nullcontext()
        with quiet, self._named_run():
            return super()._inner_training_loop(*args, **kwargs)

    def _named_run(self) -> AbstractContextManager:
        """Let Weights & Biases show a run and its resumes as one run, unless the user names it."""
        if "wandb" not in self.args.report_to or "WANDB_RUN_ID" in os.environ:
            return nullcontext()
        return patch_environment(WANDB_RUN_ID=self._run_id, WANDB_RESUME="allow")

    def write_env(self) -> None:
        """Write `env.json` of the run."""
        write_env(self.run_dir, self.args, self.model, self._execution(), self.base_name(), self._run_id)

    def _execution(self) -> dict[str, Any]:
        """Return how the run is computed, for `env.json`."""
        execution = {
            "packing": str(self.acceleration.packing),
            "compact_generation": str(self.acceleration.generation),
            "merging": str(self.acceleration.merging),
        }
        if self.unused_defaults:
            execution["unused_defaults"] = self.unused_defaults
        if self.compact is not None:
            execution.update(self.compact.facts())
        if self.use_vllm:
            execution["vllm"] = describe_engine(self.args)
        return execution

    def _forget_logs(self) -> None:
        """Empty what TRL has gathered for its next log: it is of steps that are no longer part of the run."""
        pending = [*self._metrics.values(), self._pending_metrics, self._pending_extra_logs]
        for values in [*pending, *self._logs.values()]:
            values.clear()

    def _load_optimizer_and_scheduler(self, checkpoint):
        """Load what the parts and the buffer remember. Called in every set-up, after the weights are loaded."""
        made_with = hyperparameters(self.optimizer)
        if checkpoint is None:
            super()._load_optimizer_and_scheduler(checkpoint)
            return
        with naming(Path(checkpoint)):
            super()._load_optimizer_and_scheduler(checkpoint)
            self._go_on_with(Path(checkpoint), made_with)

    def _go_on_with(self, folder: Path, made_with: list[dict[str, Any]]) -> None:
        """
        Continue what Trainer does not load from a checkpoint.

        Args:
            folder (`Path`): The checkpoint.
            made_with (`list[dict[str, Any]]`): The optimizer's hyperparameters before Trainer loaded its state.
        """
        self._go_on_with_state(folder)
        changed = self._resume.changed
        if changed:
            restore_hyperparameters(self.optimizer, self.lr_scheduler, made_with)
        for part in self.parts.values():
            part.load(folder, changed)
        buffer = folder / buffer_file(self.accelerator.process_index)
        if buffer.exists():
            self._buffered_inputs = load_buffer(buffer, self.accelerator.device)
        state = read_state(folder)
        self.parts.load_state_dict(state["parts"], changed)
        self._generations = state["generations"]
        is_cut_anew = not set(BATCH_KEYS).isdisjoint(changed)  # which is only possible at the end of a batch
        self._step = 0 if is_cut_anew else state["micro_batches"]
        restore_completions(state["completions"], self._logs)
        self.recorder.of_step["time_load"] = time.perf_counter() - self._resume.began

    def _go_on_with_state(self, checkpoint: Path) -> None:
        """Correct what Trainer's state has from the checkpoint, and finish what the run had begun."""
        self.state.compute_steps(self.args, self.state.max_steps)  # it brings its own logging_steps, save_steps, …
        if self._resume.best is not None:
            self.state.best_model_checkpoint = str(self._resume.best)
        if self.args.should_save and self.folder.has_checkpoint(checkpoint):
            # The run may have ended between its last save and the removal that follows a save.
            self._remove_oldest()

    def _load_from_checkpoint(self, resume_from_checkpoint, model=None):
        """Load every weight, into the parameters that there are."""
        policy = self.accelerator.unwrap_model(self.model)
        with self._load_into_parameters(Path(resume_from_checkpoint)):
            super()._load_from_checkpoint(resume_from_checkpoint, model)
            if is_peft_model(policy) and len(policy.peft_config) > 1 and not self.is_fsdp_enabled:
                # transformers up to 5.22 then loads all adapters but the policy's, which starts from scratch.
                policy.load_adapter(resume_from_checkpoint, "default", is_trainable=True)

    def _load_best_model(self):
        """Load every weight, into the parameters that there are, and keep its step."""
        with self._load_into_parameters(Path(self.state.best_model_checkpoint)):
            super()._load_best_model()
        self._best_step = self.state.best_global_step

    @property
    def step_of_weights(self) -> int:
        """The step whose weights the policy has: the last one, or after `load_best_model_at_end` the best one."""
        return self.state.global_step if self._best_step is None else self._best_step

    @contextmanager
    def _load_into_parameters(self, folder: Path):
        """Load a checkpoint's weights in this context, and all of them, into the parameters that there are."""
        with whole_weights(folder), keep_parameters(self.accelerator.unwrap_model(self.model)):
            for part in self.parts.values():
                part.before_load(folder)
            self._loads_from = folder
            yield

    def _issue_warnings_after_load(self, load_result):
        """Load a file whose names are not those of the modules; Trainer only warns of it."""
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            super()._issue_warnings_after_load(load_result)
            return
        policy = self.accelerator.unwrap_model(self.model)
        ties = getattr(policy, "all_tied_weights_keys", None) or {}
        if load_result.unexpected_keys or set(load_result.missing_keys) - set(ties):
            load_checkpoint(policy, self._loads_from)

    def _get_train_sampler(self, dataset=None):
        """Draw the orders of the epochs that are done: the generator is the sampler's own, and in no checkpoint."""
        sampler = super()._get_train_sampler(dataset)
        if sampler.shuffle:
            for _ in range(self._epochs_done):
                torch.randperm(sampler.num_samples, generator=sampler.generator)
        return sampler

    def _run_epoch(self, *args, **kwargs):
        """Train no step more if the run has ended: Trainer trains one before it looks."""
        has_ended = self.parts["end"].ended_by is not None
        if self.state.global_step >= self.state.max_steps or has_ended:
            self.control.should_training_stop = True
            return
        super()._run_epoch(*args, **kwargs)

    # ------------------------------------------------------------------------------------------------ save

    def _get_output_dir(self, trial):
        """Return the folder in which a checkpoint is written before it gets its name."""
        return str(self._aside.folder) if self._aside is not None else super()._get_output_dir(trial)

    def _save_checkpoint(self, model, trial):
        """Write a checkpoint aside, add what a resume needs, and name it when it is complete."""
        sharded = self.is_fsdp_enabled or self.is_deepspeed_enabled
        checkpoint = WholeCheckpoint(self.folder.path, self.state.global_step, not self.args.save_only_model, sharded)
        try:
            with checkpoint.write_aside(self.accelerator, self.args.should_save, self.recorder.files):
                self._aside = checkpoint
                with checkpoint.note_failure():
                    super()._save_checkpoint(model, trial)
                with checkpoint.note_failure():
                    self._save_beside(checkpoint)
        finally:
            self._aside = None
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(checkpoint.final))
        if self.args.should_save:
            self._remove_oldest()

    def _remove_oldest(self) -> None:
        state = self.state
        self.folder.remove_oldest(state.global_step, self.args.save_total_limit, state.best_model_checkpoint)

    def _note_failure(self):
        """
        Return a context in which a write of a checkpoint may fail and this process goes on.

        It is for what comes before Trainer's barrier inside a save, at which the other processes wait.
        """
        return self._aside.note_failure() if self._aside is not None else nullcontext()

    def _save_beside(self, checkpoint: WholeCheckpoint) -> None:
        """Write what the run needs beyond TRL's checkpoint."""
        folder = checkpoint.aside
        if self._step % self.args.generate_every != 0 and self._buffered_inputs is not None:
            save_buffer(folder / buffer_file(self.accelerator.process_index), self._buffered_inputs)
        for part in self.parts.values():
            part.save_shards(folder)
        is_best = self.state.best_model_checkpoint == str(folder)
        if is_best:  # every process reads it at the end
            self.state.best_model_checkpoint = str(checkpoint.final)
        if not self.args.should_save:
            return
        if is_best:
            self.state.save_to_json(str(folder / "trainer_state.json"))
        for part in self.parts.values():
            part.save(folder)
        state = {
            "generations": self._generations,
            "micro_batches": self._step,
            "parts": self.parts.state_dict(),
            "completions": completions_to_json(self._logs) if self.log_completions else {},
        }
        (folder / STATE_FILE).write_text(json.dumps(state, default=_as_json))
        (folder / IDENTITY_FILE).write_text(json.dumps(self._whole_identity(), indent=1))

    def save_model(self, output_dir=None, _internal_call=False):
        """Save the model with its card and the run's id, without secrets; a failed write is one line."""
        try:
            with self._note_failure():
                self._save_weights(output_dir)
            if output_dir is None or Path(output_dir) == Path(self.args.output_dir):
                self.create_model_card()  # PEFT has written its own
            if self.args.push_to_hub and not _internal_call:
                self.push_to_hub(commit_message="Model save", revision=self.args.hub_revision)
        except Exception as error:
            if self._aside is not None or isinstance(error, RunError) or not is_failed_write(error):
                raise
            folder = Path(output_dir or self.args.output_dir)
            message = describe_failed_write(folder, Path(self.args.output_dir), error)
            raise CheckpointError(f"The model in {message}") from error

    def _save_weights(self, output_dir: str | Path | None) -> None:
        token = self.args.hub_token
        init = self.args.model_init_kwargs
        self.args.hub_token = None  # the arguments are pickled next to the weights
        self.args.model_init_kwargs = remove_secrets(init)
        folder = Path(output_dir or self.args.output_dir)
        if self.args.should_save:
            write_run_id(folder, None)  # until they are whole
        try:
            super().save_model(output_dir, _internal_call=True)
        finally:
            self.args.hub_token = token
            self.args.model_init_kwargs = init
        if self.args.should_save and folder.is_dir():  # other processes come here before it is there
            write_run_id(folder, self._run_id, self.step_of_weights)

    # ------------------------------------------------------------------------------- push, see hub/uploads.py

    def init_hf_repo(self, token=None, *args, **kwargs):  # newer versions also pass `private`
        """Use the repository that was made before the model was loaded, where an error is one line."""
        if self.is_world_process_zero():
            self.uploads.open(token, *args, **kwargs)

    def create_model_card(self, model_name=None, dataset_name=None, tags=None):
        """Write the card of the run so far. A failure to write it does not stop a run."""
        try:
            with self._note_failure():
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
        more = {key: kwargs[key] for key in ("private", "dataset_name", "tags") if key in kwargs}
        return self.uploads.push(commit_message, blocking, token, revision, **more)

    def _push_from_checkpoint(self, checkpoint_folder):
        """Push a checkpoint once it has its name."""
        if self._aside is None:
            self.uploads.push_checkpoint(Path(checkpoint_folder))


@dataclass
class Resume:
    """
    Says where a run goes on.

    Attributes:
        checkpoint (`Path`): The checkpoint.
        step (`int`): Optimizer steps done.
        epochs (`int`): Epochs that were completed.
        best (`Path`, *optional*): The best checkpoint so far.
        skipped (`dict[str, str]`): Newer checkpoints that were not usable, with the reason.
        changed (`dict[str, list]`): Keys that differ from the checkpoint's, `[then, now]`.
        began (`float`): When the search for the checkpoint began, by `time.perf_counter`.
        abandoned (`list[str]`): Newer checkpoints that were renamed.
    """

    checkpoint: Path
    step: int
    epochs: int
    best: Path | None
    skipped: dict[str, str]
    changed: dict[str, list[Any]]
    began: float
    abandoned: list[str] = field(default_factory=list)

    @property
    def event(self) -> dict[str, Any]:
        """Event of this resume for `events.jsonl`."""
        return {
            "event": RESUME,
            "step_requested": self.step,
            "step_applied": self.step,
            "checkpoint": self.checkpoint.name,
            "skipped": self.skipped,
            "changed": self.changed,
            "abandoned": self.abandoned,
        }


def find_best_beside(checkpoint: Path, recorded: str | None) -> Path | None:
    """
    Find the best checkpoint of a run that is resumed from `checkpoint`.

    `recorded` is its path at that time, which may be relative to another directory, or the path of a folder that was
    renamed. It is still next to the checkpoint.
    """
    if recorded is None:
        return None
    beside = checkpoint.with_name(Path(recorded).name)
    return beside if beside.is_dir() else None


class RollbackRequest(RunError):
    """Leaves the training loop in the middle of it, so that `train` can continue from an earlier checkpoint."""

    def __init__(self, event: dict[str, Any]):
        super().__init__(f"step {event['step_requested']}: {event['reason']}")
        self.event = event


def checkpoint_after_rollback(newest: Path, run_dir: Path) -> Path:
    """
    Return the checkpoint from which a run goes on whose newest is `newest`.

    It is another one if the run was killed in a roll-back, after its event and before the newer checkpoints were
    renamed: the one that the event names.
    """
    last = last_rollback(run_dir)
    if last is None:
        return newest
    with naming(run_dir / EVENTS_FILE):
        return _checkpoint_after(last, newest)


def _checkpoint_after(last: Mapping[str, Any], newest: Path) -> Path:
    step = step_of(newest)
    if step <= last["step_applied"]:
        return newest
    state = read_state(newest)["parts"].get("rollback", {})
    if state.get("known", 0) < last["rollbacks"]:
        return newest.with_name(last["checkpoint"])
    return newest


def last_rollback(run_dir: Path) -> dict[str, Any] | None:
    """Return the last roll-back on record; earlier ones may have been behind its checkpoint."""
    for event in reversed(read_jsonl(run_dir / EVENTS_FILE)):
        if event["event"] == ROLLBACK:
            return event
    return None


def save_buffer(path: Path, batches: list[Mapping[str, Any]]) -> None:
    """Write micro-batches, each a mapping of tensors and of values that JSON can hold."""
    tensors = {}
    values = []
    for number, batch in enumerate(batches):
        others = {}
        for name, value in batch.items():
            if isinstance(value, torch.Tensor):
                # Micro-batches are slices of one tensor, and safetensors refuses tensors that share memory.
                tensors[f"{number}.{name}"] = value.detach().clone().contiguous()
            else:
                others[name] = value
        values.append(others)
    save_file(tensors, path, metadata={"values": json.dumps(values)})


def load_buffer(path: Path, device: torch.device) -> list[dict[str, Any]]:
    """Read what [`save_buffer`] wrote."""
    # Read on the CPU, as one of several processes there has the device "cpu:0", which safetensors does not know.
    with safe_open(path, framework="pt") as file:
        batches = json.loads(file.metadata()["values"])
        for key in file.keys():
            number, name = key.split(".", 1)
            batches[int(number)][name] = file.get_tensor(key).to(device)
    return batches


def completions_to_json(completions: Mapping[str, Any]) -> dict[str, Any]:
    """Convert TRL's table of completions, which it writes with every log, to JSON values."""
    table = {name: list(map(strip_images_from_messages, completions[name])) for name in ("prompt", "completion")}
    table["advantages"] = list(completions["advantages"])
    for name in ("rewards", "extra"):
        table[name] = {column: list(values) for column, values in completions[name].items()}
    return table


def restore_completions(table: Mapping[str, Any], completions: Mapping[str, Any]) -> None:
    """Put the values of [`completions_to_json`] into TRL's table."""
    for name, values in table.items():
        if isinstance(values, dict):
            for column, column_values in values.items():
                completions[name][column].extend(column_values)
        else:
            completions[name].extend(values)


def read_state(folder: Path) -> dict[str, Any]:
    """Read the trainer's state beyond weights and optimizer."""
    path = folder / STATE_FILE
    with naming(path):
        state = json.loads(path.read_text(), object_hook=_from_json)
    check_shape(path, state)
    return state


def _as_json(value):
    """
    Convert values that JSON does not know, which `log_extra` may hold: NumPy's keep their type, so that a table prints
    them as before.
    """
    if isinstance(value, (np.generic, np.ndarray)):
        return {"numpy": value.dtype.str, "value": value.tolist()}
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.item()
    return str(value)


def _from_json(value: dict):
    if value.keys() == {"numpy", "value"}:
        return np.array(value["value"], value["numpy"])[()]
    return value


@contextmanager
def keep_parameters(model: torch.nn.Module) -> Iterator[None]:
    """
    Keep a model's parameters while PEFT loads adapters into it; afterwards they have the values that were loaded.

    PEFT 0.21 replaces the parameters of an adapter in bf16 or fp16 by new ones in fp32 when it loads one. TRL keeps
    the adapter of a quantised model in bf16, so that a resumed run would train other numbers than the run that it
    continues, and parts that hold its parameters would hold those that are no longer trained.
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
