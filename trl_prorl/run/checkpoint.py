"""Start, save and resume a run exactly."""

import json
import logging
import math
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
from datasets import IterableDataset
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import EarlyStoppingCallback
from trl.trainer.utils import get_config_model_id, strip_images_from_messages

from ..cli.quiet import without_warning
from ..errors import CheckpointError, NonFiniteError, RunError, naming
from ..extras.vllm import describe_engine
from ..hub.downloads import PREFIX, fetch_run
from ..keys import AUTO_RESUME, read_resume_word
from ..optimizer import inner_of
from ..parts import Event, Part
from ..refusals import refuse_later_changes
from ..supported import PATH_DEPENDENT_SCHEDULES
from ..text import visible
from ..upstream.weights import load_checkpoint, whole_weights
from .checkpoint_files import (
    WholeCheckpoint,
    adopt_unnamed,
    begins_again,
    buffer_file,
    describe_failed_write,
    find_checkpoint,
    is_failed_write,
    means_newest,
    refuse_finished,
)
from .files import check_contents
from .folder import COMPLETIONS, FolderLock, RunFolder, on_main_process, step_of
from .identity import (
    BATCH_KEYS,
    EVALUATIONS_ACT,
    IDENTITY_FILE,
    changing_keys,
    check_rates,
    check_same_run,
    hyperparameters,
    restore_hyperparameters,
)
from .log_files import BASE_ADAPTER, EVENTS_FILE, NONFINITE, RESUME, ROLLBACK, TRAINER_STATE, read_jsonl, write_run_id
from .provenance import remove_secrets, write_config, write_env
from .shapes import STATE_FILE, check_shape, read_shaped


logger = logging.getLogger(__name__)


class CheckpointMixin:
    """The part of [`ProRLTrainer`] that starts or resumes a run, saves it and pushes it."""

    initial_adapter = None  # the policy at the start of a run with an adapter, see reference.py
    _staged: WholeCheckpoint | None = None
    _epochs_done = 0
    _pass_is_over = False  # over the training set; at a save after its last batch
    _folder: RunFolder | None = None
    _folder_lock: FolderLock | None = None
    _sets_aside = False  # whether the folder's earlier content is set aside at the start
    _trained_in: Path | None = None  # folder of this trainer's last training
    made_by_trl: set[str] = frozenset()  # names in the folder made by TRL's trainer
    _model_name: str | None = None
    _best_step: int | None = None  # set by `load_best_model_at_end`
    _loads_from: Path | None = None
    _resume: "Resume | None" = None
    _made_with: tuple[Any, list[dict[str, Any]]] | None = None  # the optimizer, and its hyperparameters
    _passed_optimizer: Any = None  # that the parts know
    _passed_schedule: Any = None
    rollback: Part | None = None  # extras/rollback.py
    stall_stop: Part | None = None  # watch.py
    _run_id: str | None = None
    _settled_keys: Mapping[str, Any] = {}
    _keys_of_optimizer: Mapping[str, Any] = {}  # with which ours was made
    _first_keys: Mapping[str, Any] = {}  # when the trainer was made, after TRL's changes
    _keys_set_later: Mapping[str, Any] = {}

    def base_name(self) -> str | None:
        """The starting model as recipe or script name it: Hub name, folder, `smollm2` and the like."""
        of_recipe = next(
            (part.model_name_or_path for part in self.recipe if hasattr(part, "model_name_or_path")), None
        )
        given = of_recipe or self._model_name
        return given or get_config_model_id(self.accelerator.unwrap_model(self.model).config) or None

    @property
    def folder(self) -> RunFolder:
        """The run's folder: `output_dir`, or a trial's folder in a hyperparameter search."""
        return self._folder or RunFolder(self.args.output_dir)

    @contextmanager
    def hold_folder(self):
        """
        Lock the run's folder (re-entrant; by the main process). Raises [`~trl_prorl.run.folder.FolderInUseError`] on
        every process.
        """
        if self._folder_lock is None or not self._folder_lock.held:
            self._folder_lock = FolderLock(self.folder.path)
        on_main_process(self.is_world_process_zero(), self._folder_lock.hold)
        try:
            yield
        finally:
            if self.is_world_process_zero():
                self._folder_lock.release()

    # ------------------------------------------------------------------------------------ begin, or go on

    def train(self, resume_from_checkpoint=None, trial=None, *args, **kwargs):
        """
        Train as [`~transformers.Trainer.train`] does.

        Args:
            resume_from_checkpoint (`str` or `bool`, *optional*):
                A checkpoint, or `True` for the newest complete one in `output_dir`, or `"auto"`: that one, or step 0
                if there is none. `"hub:USER/RUN"`: the newest complete one that a run has pushed.

        Raises:
            `ValueError`: The checkpoint is incomplete, belongs to a different run (see `allow_config_change`), another
                process trains into `output_dir`, or a new run would mix with other files there.
        """
        self._note_later_keys()
        self._folder = RunFolder(super()._get_output_dir(trial), self.made_by_trl)
        is_main = self.is_world_process_zero()
        on_main_process(is_main, self.folder.check_usable)
        with self.hold_folder():
            self._resume = None
            self._sets_aside = self.args.overwrite or self._folder.path == self._trained_in
            resume_from = resume_from_checkpoint
            if str(resume_from).startswith(PREFIX):
                own = (self.args.overwrite, self.args.hub_token, self.args.hub_revision)
                folder = (self.folder, self._folder_lock)
                resume_from = on_main_process(is_main, lambda: fetch_run(resume_from_checkpoint, *folder, *own))
            if resume_from and not self._begins_again(resume_from):
                on_main_process(is_main, self._prepare_resume)
                self._resume = self._find_resume(resume_from)
            on_main_process(is_main, self._check_folder)
            return self._train_with_rollbacks(trial, *args, **kwargs)

    def _begins_again(self, resume_from) -> bool:
        """Return whether `"auto"` restarts the run at step 0, because it has no checkpoint."""
        if read_resume_word(resume_from) != AUTO_RESUME:
            return False
        is_main = self.is_world_process_zero()
        on_main_process(is_main, lambda: refuse_finished(resume_from, self.folder, self.args.max_steps))
        again = on_main_process(is_main, lambda: begins_again(resume_from, self.folder))
        if again:
            self._sets_aside = True
            if is_main:
                print(f"{self.run_dir} has no complete checkpoint: the run starts at step 0", file=sys.stderr)
        return again

    def _prepare_resume(self) -> None:
        folder = self.folder
        check_contents(folder.path, folder.given)
        read_jsonl(folder.path / EVENTS_FILE)  # a resume needs them to number its attempt
        adopt_unnamed(folder.path)

    def _train_with_rollbacks(self, *args, **kwargs):
        """
        Train, and after each collapse continue from an earlier checkpoint.

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

    def _plan_rollback(self, event: Event) -> Event | None:
        return self.rollback.plan(event) if self.rollback is not None else None

    def _stop(self, event) -> None:
        """Roll back if possible, else end the run with a checkpoint."""
        rollback = self._plan_rollback(event)
        if rollback is not None:
            raise RollbackRequest(rollback)
        self.parts["end"].ended_by = event["event"]
        self.control.should_training_stop = True
        self.control.should_save = True

    def _remove_noise_hook(self) -> None:
        """Remove NEFTune's hook of an interrupted training, which would add noise twice."""
        hook = getattr(self, "neftune_hook_handle", None)
        if hook is not None:
            hook.remove()

    def _check_folder(self) -> None:
        if not self._begins_in_its_folder():
            self.folder.check_own(self._resume.checkpoint)
        elif self._sets_aside:
            self.folder.check_movable(self.base_name(), self._resume.checkpoint if self._resume is not None else None)
        else:
            self.folder.check_new()

    def _begins_in_its_folder(self) -> bool:
        return self._resume is None or not self.folder.has_checkpoint(self._resume.checkpoint)

    def _find_resume(self, resume_from) -> "Resume":
        """Raises `ValueError`: the checkpoint is incomplete, or of a different run."""
        began = time.perf_counter()
        checkpoint, skipped = find_checkpoint(resume_from, self.folder.path)
        if means_newest(resume_from):
            checkpoint = checkpoint_after_rollback(checkpoint, self.run_dir)
        changed = check_same_run(checkpoint, self._whole_identity(), self.args.allow_config_change)
        if self.lr_scheduler is not None:  # a script's
            check_rates(changed, self._identity, self.lr_scheduler)
        known = known_rollbacks(checkpoint)
        if known and self.rollback is None:
            raise ValueError(
                f"rollback=0 cannot go on from {checkpoint.name}: a roll-back has lowered its learning rate, which "
                f"would rise again. Set rollback: {known}, which allows no further one, or start a new run."
            )
        for name, reason in skipped.items():
            logger.warning("%s", visible(f"Skipping checkpoint {name}: {reason}."))
        state = read_shaped(checkpoint / TRAINER_STATE)
        best = find_best(checkpoint, state)
        recorded = state["best_model_checkpoint"]
        if recorded is not None and best is None:
            logger.warning(
                "The best checkpoint, %s, is missing or belongs to another run. The run goes on without it: only a "
                "better one will be loaded or kept as the best.",
                visible(recorded),
            )
        place = None
        if isinstance(self.train_dataset, IterableDataset) and not self.args.ignore_data_skip:
            place = place_in_stream(checkpoint, state)
        return Resume(checkpoint, state["global_step"], int(state["epoch"]), best, skipped, changed, began, place)

    def _whole_identity(self) -> dict:
        identity = self._identity | self._keys_set_later
        return {**identity, EVALUATIONS_ACT: self._evaluations_act(), **changing_keys(*self.recipe)}

    def _note_later_keys(self) -> None:
        """Note what a script, or a search, has changed in `args` since the trainer was made. Raises `ValueError`."""
        refuse_later_changes(self.args, self._settled_keys)
        if any(getattr(self.args, name) != value for name, value in self._keys_of_optimizer.items()):
            # transformers keeps the optimizer of an earlier training, as of a search's trial, with its rates.
            prepared = self.accelerator._optimizers
            prepared[:] = [one for one in prepared if one is not self.optimizer]
            self.optimizer = None
            self.lr_scheduler = None
        now = changing_keys(self.args)
        self._keys_set_later = {name: value for name, value in now.items() if self._first_keys.get(name) != value}

    def _evaluations_act(self) -> bool:
        args = self.args
        chooses = args.load_best_model_at_end or args.lr_scheduler_type.value in PATH_DEPENDENT_SCHEDULES
        stops = any(isinstance(callback, EarlyStoppingCallback) for callback in self.callback_handler.callbacks)
        triggers = any(callback.watches_evaluations for callback in self.resets.callbacks)
        return self._evaluates_as_trl or chooses or stops or triggers or self.stall_stop is not None

    def _inner_training_loop(self, *args, **kwargs):
        """Open the run's files. Not in `train`: a failure to load weights must leave no files."""
        if kwargs.get("trial") is not None:  # a search has set its keys by now
            self._note_later_keys()
        if self._trained_in is not None:  # weights and the reference stay as they are
            for part in self.parts.values():
                part.begin()
            self._generations = 0
            self._forget_progress()
        self._best_step = None
        resume = self._resume
        folder = self.folder
        self._trained_in = folder.path
        is_main = self.is_world_process_zero()
        if self._begins_in_its_folder() and self._sets_aside:
            base = self.base_name()
            on_main_process(is_main, lambda: folder.set_aside(base, self._folder_lock))
        self._epochs_done = resume.epochs if resume is not None else 0
        checkpoint = resume.checkpoint if resume is not None else None
        # One process chooses the id for all: on several nodes, several may save.
        self._run_id = on_main_process(is_main, lambda: folder.id_of_run(checkpoint))
        if is_main:
            folder.clear_leftovers()
            if self.log_completions:  # TRL's folder, made with the trainer, may be set aside by now
                Path(self.args.output_dir, COMPLETIONS).mkdir(exist_ok=True)
            if resume is None:
                self.recorder.open(self.run_dir)
            else:
                resume.abandoned = list(folder.abandon_newer(resume.checkpoint, resume.step, resume.skipped))
                folder.set_aside_evaluations(resume.checkpoint, resume.step)
                self.recorder.open(self.run_dir, resumes=True)
                self.recorder.on_event(resume.event)
            # First, because it contains the id that marks all files as this run's.
            self.write_env()
            write_config(self.run_dir, self.args, self.recipe)
            if self.initial_adapter is not None and (resume is None or not (self.run_dir / BASE_ADAPTER).exists()):
                self.initial_adapter.save(self.run_dir / BASE_ADAPTER)
        # Trainer warns if the best checkpoint is not at the recorded path; `_find_resume` has looked for it.
        with without_warning("transformers.trainer", "The best checkpoint"), self._named_run():
            return super()._inner_training_loop(*args, **kwargs)

    def _named_run(self) -> AbstractContextManager:
        """Make Weights & Biases show a run and its resumes as one, unless the user names it."""
        if "wandb" not in self.args.report_to or "WANDB_RUN_ID" in os.environ:
            return nullcontext()
        return patch_environment(WANDB_RUN_ID=self._run_id, WANDB_RESUME="allow")

    def write_env(self) -> None:
        write_env(self.run_dir, self.args, self.model, self._execution(), self.base_name(), self._run_id)

    def _execution(self) -> dict[str, Any]:
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

    def _forget_progress(self) -> None:
        """Reset what TRL counts and keeps from step to step: an interrupted training may have used half a batch."""
        self._step = 0
        self._buffered_inputs = None
        self._last_loaded_step = -1  # vLLM may have weights of the same step
        self.entropy_coef = self.args.entropy_coef  # moved by `use_adaptive_entropy`
        self._last_world_entropy = math.inf
        self._entropy_window_stats = None
        pending = [*self._metrics.values(), self._pending_metrics, self._pending_extra_logs]
        for values in [*pending, *self._logs.values()]:
            values.clear()

    def _pass_others(self) -> None:
        """Pass an optimizer and a schedule to the parts that a subclass has made without our methods."""
        if self.is_deepspeed_enabled:  # may make its own, which the parts do not support
            return
        optimizer = inner_of(self.optimizer)
        if optimizer is not self._passed_optimizer:
            self._pass_optimizer(optimizer)
        if self.lr_scheduler is not self._passed_schedule:
            self._pass_schedule(self.lr_scheduler)

    def _load_optimizer_and_scheduler(self, checkpoint):
        """Also load the state of parts and buffer. transformers 5.24 calls it on a resume alone."""
        self._pass_others()
        if self._made_with is None or self._made_with[0] is not self.optimizer:  # later they may be of a roll-back
            self._made_with = self.optimizer, hyperparameters(self.optimizer)
        _, made_with = self._made_with
        if checkpoint is None:
            super()._load_optimizer_and_scheduler(checkpoint)
            return
        with naming(Path(checkpoint)):
            super()._load_optimizer_and_scheduler(checkpoint)
            self._go_on_with(Path(checkpoint), made_with)

    def _go_on_with(self, folder: Path, made_with: list[dict[str, Any]]) -> None:
        """Load our state. `made_with`: the optimizer's earlier hyperparameters."""
        self._go_on_with_state(folder)
        changed = self._resume.changed
        if changed:
            check_rates(changed, self._identity, self.lr_scheduler)  # of a `create_scheduler`
            restore_hyperparameters(self.optimizer, self.lr_scheduler, made_with)
        if "entropy_coef" in changed:  # with `use_adaptive_entropy` TRL has loaded the old one
            self.entropy_coef = self.args.entropy_coef
        for part in self.parts.values():
            part.load(folder, changed)
        buffer = folder / buffer_file(self.accelerator.process_index)
        if buffer.exists():
            self._buffered_inputs = load_buffer(buffer, self.accelerator.device)
        state = read_state(folder)
        self.parts.load_state_dict(state["parts"], changed)
        self._generations = state["generations"]
        is_cut_anew = not set(BATCH_KEYS).isdisjoint(changed)  # only possible at the end of a batch
        self._step = 0 if is_cut_anew else state["micro_batches"]
        restore_completions(state["completions"], self._logs)
        self.recorder.of_step["time_load"] = time.perf_counter() - self._resume.began

    def _go_on_with_state(self, checkpoint: Path) -> None:
        """Correct the checkpoint's `TrainerState`, and finish an interrupted save."""
        self.state.compute_steps(self.args, self.state.max_steps)  # the checkpoint has other intervals
        best = self._resume.best
        self.state.best_model_checkpoint = None if best is None else str(best)
        if self.args.should_save and self.folder.has_checkpoint(checkpoint):
            # A kill may have come before the last save removed older checkpoints.
            self._remove_oldest()

    def _load_from_checkpoint(self, resume_from_checkpoint, model=None):
        """Load every weight into the existing parameters."""
        policy = self.accelerator.unwrap_model(self.model)
        with self._load_into_parameters(Path(resume_from_checkpoint)):
            super()._load_from_checkpoint(resume_from_checkpoint, model)
            if is_peft_model(policy) and len(policy.peft_config) > 1 and not self.is_fsdp_enabled:
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
        with whole_weights(folder), keep_parameters(self.accelerator.unwrap_model(self.model)):
            for part in self.parts.values():
                part.before_load(folder)
            self._loads_from = folder
            yield

    def _issue_warnings_after_load(self, load_result):
        """Load a file with other parameter names, of which Trainer only warns."""
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            super()._issue_warnings_after_load(load_result)
            return
        policy = self.accelerator.unwrap_model(self.model)
        ties = getattr(policy, "all_tied_weights_keys", None) or {}
        if load_result.unexpected_keys or set(load_result.missing_keys) - set(ties):
            load_checkpoint(policy, self._loads_from)

    def _get_train_sampler(self, dataset=None):
        """Replay the shuffles of completed epochs: no checkpoint has the sampler's generator."""
        sampler = super()._get_train_sampler(dataset)
        if sampler.shuffle:
            for _ in range(self._epochs_done):
                torch.randperm(sampler.num_samples, generator=sampler.generator)
        return sampler

    def get_train_dataloader(self):
        """Let workers that stay (`dataloader_persistent_workers`) draw no second seed: see [`draw_no_seed`]."""
        loader = super().get_train_dataloader()
        if self._resume is not None:
            draw_no_seed(loader)
        return loader

    def get_eval_dataloader(self, *args, **kwargs):
        """Likewise, if this run has evaluated before the checkpoint."""
        loader = super().get_eval_dataloader(*args, **kwargs)
        if self._resume is not None:
            before = [entry for entry in self.state.log_history if entry["step"] <= self._resume.step]
            logged = {name for entry in before for name in entry}
            if any(name.startswith("eval_") and name.endswith("_runtime") for name in logged):
                draw_no_seed(loader)
        return loader

    def _run_epoch(self, *args, epoch, epochs_trained, steps_trained_in_current_epoch, **kwargs):
        """
        Train no step after the run has ended: Trainer checks only after a step. Resume a stream in the pass that it
        was in: Trainer takes `max_steps` for the length of a pass, and so resumes every one in the first.
        """
        has_ended = self.parts["end"].ended_by is not None
        if self.state.global_step >= self.state.max_steps or has_ended:
            self.control.should_training_stop = True
            return
        self._pass_others()
        if self._resume is not None and self._resume.place is not None:
            epochs_trained, steps = self._resume.place
            steps_trained_in_current_epoch = steps * self.args.gradient_accumulation_steps
            if epoch < epochs_trained:
                return
        places = {"epochs_trained": epochs_trained, "steps_trained_in_current_epoch": steps_trained_in_current_epoch}
        super()._run_epoch(*args, epoch=epoch, **places, **kwargs)

    # ------------------------------------------------------------------------------------------------ save

    def _get_output_dir(self, trial):
        """Return the temporary folder of the checkpoint being written."""
        return str(self._staged.folder) if self._staged is not None else super()._get_output_dir(trial)

    def _save_checkpoint(self, model, trial):
        """Write under a temporary name, with the state for a resume, then rename."""
        sharded = self.is_fsdp_enabled or self.is_deepspeed_enabled
        checkpoint = WholeCheckpoint(self.folder.path, self.state.global_step, not self.args.save_only_model, sharded)
        try:
            with checkpoint.write_staged(self.accelerator, self.args.should_save, self.recorder.files):
                self._staged = checkpoint
                with checkpoint.note_failure():
                    super()._save_checkpoint(model, trial)
                with checkpoint.note_failure():
                    self._save_beside(checkpoint)
        finally:
            self._staged = None
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(checkpoint.final))
        if self.args.should_save:
            self._remove_oldest()

    def _remove_oldest(self) -> None:
        state = self.state
        self.folder.remove_oldest(state.global_step, self.args.save_total_limit, state.best_model_checkpoint)

    def _note_failure(self):
        """Record a failed write and continue to Trainer's barrier in a save."""
        return self._staged.note_failure() if self._staged is not None else nullcontext()

    def _save_beside(self, checkpoint: WholeCheckpoint) -> None:
        folder = checkpoint.staging
        if self._step % self.args.generate_every != 0 and self._buffered_inputs is not None:
            save_buffer(folder / buffer_file(self.accelerator.process_index), self._buffered_inputs)
        for part in self.parts.values():
            part.save_shards(folder)
        is_best = self.state.best_model_checkpoint == str(folder)
        if is_best:  # every process reads it at the end of training
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
            "pass_is_over": self._pass_is_over,
            "parts": self.parts.state_dict(),
            "completions": completions_to_json(self._logs) if self.log_completions else {},
        }
        (folder / STATE_FILE).write_text(json.dumps(state, default=_as_json))
        (folder / IDENTITY_FILE).write_text(json.dumps(self._whole_identity(), indent=1))

    def save_model(self, output_dir=None, _internal_call=False):
        """Save the model with its card and the run's id, without secrets."""
        try:
            with self._note_failure():
                self._save_weights(output_dir)
            if output_dir is None or Path(output_dir) == Path(self.args.output_dir):
                self.create_model_card()  # PEFT has written its own
            if self.args.push_to_hub and not _internal_call:
                self.push_to_hub(commit_message="Model save", revision=self.args.hub_revision)
        except Exception as error:
            if self._staged is not None or isinstance(error, RunError) or not is_failed_write(error):
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
            write_run_id(folder, None)  # until the weights are complete
        try:
            super().save_model(output_dir, _internal_call=True)
        finally:
            self.args.hub_token = token
            self.args.model_init_kwargs = init
        if self.args.should_save and folder.is_dir():  # another process may come here before the folder exists
            write_run_id(folder, self._run_id, self.step_of_weights, self.state.global_step)

    # ------------------------------------------------------------------------------- push, see hub/uploads.py

    def init_hf_repo(self, token=None, *args, **kwargs):  # newer versions also pass `private`
        """Use the repository made before the model was loaded."""
        if self.is_world_process_zero():
            self.uploads.open(token, *args, **kwargs)

    def create_model_card(self, model_name=None, dataset_name=None, tags=None):
        """Write the run's card; a failure only warns."""
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
        """Push a checkpoint after it is renamed."""
        if self._staged is None:
            self.uploads.push_checkpoint(Path(checkpoint_folder))


@dataclass
class Resume:
    """
    A checkpoint to resume from, and the best one so far.

    Attributes:
        skipped (`dict[str, str]`): Newer unusable checkpoints, with the reason.
        changed (`dict[str, list]`): Keys that differ from the checkpoint's, `[then, now]`.
        began (`float`): Start of the search for the checkpoint, by `time.perf_counter`.
        place (`tuple[int, int]`, *optional*): Where the checkpoint is in a stream, see [`place_in_stream`].
        abandoned (`list[str]`): Newer checkpoints that were renamed.
    """

    checkpoint: Path
    step: int
    epochs: int
    best: Path | None
    skipped: dict[str, str]
    changed: dict[str, list[Any]]
    began: float
    place: tuple[int, int] | None = None
    abandoned: list[str] = field(default_factory=list)

    @property
    def event(self) -> Event:
        return {
            "event": RESUME,
            "step_requested": self.step,
            "step_applied": self.step,
            "checkpoint": self.checkpoint.name,
            "skipped": self.skipped,
            "changed": self.changed,
            "abandoned": self.abandoned,
        }


def draw_no_seed(loader: torch.utils.data.DataLoader) -> None:
    """
    Keep the training's random state while workers of a data loader start. Without an interruption those that stay
    would have drawn a seed only once, in the first pass; others do in every pass, also after a resume.
    """
    if loader.persistent_workers:
        getattr(loader, "base_dataloader", loader).generator = torch.Generator()  # accelerate wraps it


def place_in_stream(checkpoint: Path, state: Mapping[str, Any]) -> tuple[int, int]:
    """Return the complete passes over a stream at a checkpoint with this `TrainerState`, and the steps since then."""
    passes = max(math.ceil(state["epoch"]) - 1, 0)
    if read_state(checkpoint).get("pass_is_over"):  # saved after the last batch and what follows it
        return passes + 1, 0
    return passes, round((state["epoch"] - passes) * state["max_steps"])


def find_best(checkpoint: Path, state: Mapping[str, Any]) -> Path | None:
    """
    Find the best checkpoint of a run with this `TrainerState`: `checkpoint` itself (it may have another name now), one
    next to it (the folder may have moved), or the recorded one, in a folder from which an earlier resume went on.
    """
    recorded = state["best_model_checkpoint"]
    if recorded is None:
        return None
    name = Path(recorded).name
    if name == f"checkpoint-{state['global_step']}":
        return checkpoint
    for folder in (checkpoint.with_name(name), Path(recorded)):
        if begins_history(folder, state["log_history"]):
            return folder
    return None


def begins_history(checkpoint: Path, history: list[dict[str, Any]]) -> bool:
    """Return whether this `history` began with that of a checkpoint: another run may have taken its name."""
    if not (checkpoint / TRAINER_STATE).is_file():
        return False
    theirs = read_shaped(checkpoint / TRAINER_STATE)["log_history"]
    return json.dumps(theirs) == json.dumps(history[: len(theirs)])  # as text, because a NaN is unequal to itself


class RollbackRequest(RunError):
    """Leaves the training loop, so that `train` can continue from an earlier checkpoint."""

    def __init__(self, event: Event):
        super().__init__(f"step {event['step_requested']}: {event['reason']}")
        self.event = event


def checkpoint_after_rollback(newest: Path, run_dir: Path) -> Path:
    """
    Return the newest checkpoint, or the last roll-back's if the run was killed before the newer ones were renamed.
    """
    last = last_rollback(run_dir)
    if last is None:
        return newest
    with naming(run_dir / EVENTS_FILE):
        if step_of(newest) > last["step_applied"] and known_rollbacks(newest) < last["rollbacks"]:
            return newest.with_name(last["checkpoint"])
    return newest


def known_rollbacks(checkpoint: Path) -> int:
    """Return the number of roll-backs in a checkpoint's learning rate."""
    return read_state(checkpoint)["parts"].get("rollback", {}).get("known", 0)


def last_rollback(run_dir: Path, to: str | None = None) -> Event | None:
    """Return a run's last roll-back, or the last one `to` a checkpoint of this name; `None` without one."""
    for event in reversed(read_jsonl(run_dir / EVENTS_FILE)):
        if event["event"] == ROLLBACK and to in (None, event.get("checkpoint")):
            return event
    return None


def save_buffer(path: Path, batches: list[Mapping[str, Any]]) -> None:
    tensors = {}
    values = []
    for number, batch in enumerate(batches):
        others = {}
        for name, value in batch.items():
            if isinstance(value, torch.Tensor):
                # Micro-batches are slices of one tensor; safetensors rejects shared memory.
                tensors[f"{number}.{name}"] = value.detach().clone().contiguous()
            else:
                others[name] = value
        values.append(others)
    save_file(tensors, path, metadata={"values": json.dumps(values)})


def load_buffer(path: Path, device: torch.device) -> list[dict[str, Any]]:
    # Read on the CPU: safetensors rejects the device "cpu:0" of several processes.
    with safe_open(path, framework="pt") as file:
        batches = json.loads(file.metadata()["values"])
        for key in file.keys():
            number, name = key.split(".", 1)
            batches[int(number)][name] = file.get_tensor(key).to(device)
    return batches


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


def read_state(folder: Path) -> dict[str, Any]:
    path = folder / STATE_FILE
    with naming(path):
        state = json.loads(path.read_text(), object_hook=_from_json)
    check_shape(path, state)
    return state


def _as_json(value):
    """Convert a value of `log_extra`. NumPy's keep their type, so a table prints them as before."""
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
    Keep parameters (objects and dtypes) while PEFT loads adapters into them.

    PEFT 0.21 replaces an adapter's bf16 or fp16 parameters by new fp32 ones: a resume of a quantised model would train
    in another dtype, and parts would refer to the old parameters.
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
