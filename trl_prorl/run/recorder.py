"""
`RunRecorder`: the log files of another trainer's run.

A callback sees a trainer's log. Metrics with the same meaning have our names; columns that only `ProRLTrainer`
measures are missing.
"""

import math
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from .log_files import (
    ATTEMPT,
    CONFIG_FILE,
    ENV_FILE,
    EVALUATIONS_FILE,
    EVENTS_FILE,
    LOG_FILES,
    METRICS_FILE,
    RESUME,
    RUN_ID,
    JsonLines,
    next_attempt,
    recorded_run_id,
)
from .provenance import write_config, write_env
from .record import COLUMNS, evaluation_row
from .starting import Start, note_start


OF_TRAINER = ("epoch", "step_time", "total_flos")  # in the log, but not in a row


class RunRecorder(TrainerCallback, ExportableState):
    """
    Writes the log files, `env.json` and `config.yaml` of a run of TRL's `GRPOTrainer`, or of a subclass. `report`,
    `compare` and `why` can show it.

    A row has the values of one log: set `logging_steps=1`. A resume writes on in the same files.

    Raises:
        `ValueError`: `output_dir` has the log files of another run than that of the checkpoint, if any.

    Example:

    ```python
    trainer = GRPOTrainer(model, reward_funcs=reward, args=args, train_dataset=rows, callbacks=[RunRecorder()])
    ```
    """

    def __init__(self):
        self.metrics: JsonLines | None = None  # on the main process, during a training
        self.run_id: str | None = None
        self.start: Start | None = None

    def state(self) -> dict:
        """Return the run's id, which a checkpoint keeps with the trainer's state."""
        return {"args": {}, "attributes": {RUN_ID: self.run_id}}

    def on_init_end(self, args, state, control, model=None, **kwargs):
        if state.is_world_process_zero:  # now: a resume loads a checkpoint before the training begins
            self.start = note_start(model, args.model_init_kwargs)

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        if not state.is_world_process_zero:
            return
        folder = Path(args.output_dir)
        resumes = state.global_step > 0
        names = [name for name in (*LOG_FILES, ENV_FILE, CONFIG_FILE) if (folder / name).exists()]
        noted = state.stateful_callbacks.get(type(self).__name__, {}).get("attributes", {})
        earlier_id = recorded_run_id(folder)
        is_same = resumes and earlier_id is not None and earlier_id == noted.get(RUN_ID)
        if names and not is_same:
            which = ", not of the checkpoint's" if resumes else ""
            raise ValueError(
                f"output_dir={args.output_dir!r} has the {names[0]} of another run{which}. Choose another output_dir, "
                "or resume that run with resume_from_checkpoint=True."
            )
        if self.start is None and not resumes:  # the trainer was there before this callback
            self.start = note_start(model, args.model_init_kwargs)
        self.run_id = earlier_id or uuid.uuid4().hex
        state.stateful_callbacks[type(self).__name__] = self.state()  # a checkpoint without it has no place for it
        self.attempt = next_attempt(folder) if resumes else 0
        self.metrics = JsonLines(folder / METRICS_FILE, resumes)
        events = JsonLines(folder / EVENTS_FILE, resumes)
        self.evaluations = JsonLines(folder / EVALUATIONS_FILE, resumes)
        if resumes:
            step = state.global_step
            events.write({"event": RESUME, ATTEMPT: self.attempt, "step_requested": step, "step_applied": step})
        base = getattr(getattr(model, "config", None), "_name_or_path", None)
        write_env(folder, args, model, None, base, self.run_id, self.start)
        write_config(folder, args)
        self._seconds: list[float] = []  # of the steps since the last log

    def on_step_begin(self, args, state, control, **kwargs):
        self._began = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        if self.metrics is not None:
            self._seconds.append(time.perf_counter() - self._began)

    def on_log(self, args, state, control, logs: Mapping[str, float] | None = None, **kwargs):
        if self.metrics is None or "loss" not in logs:  # a summary, or an evaluation
            return
        row = {"step": state.global_step, ATTEMPT: self.attempt}
        for name, value in logs.items():
            if isinstance(value, int | float) and math.isfinite(value) and name not in OF_TRAINER:
                row[COLUMNS.get(name, name)] = value
        if self._seconds:
            row["time_step"] = sum(self._seconds) / len(self._seconds)
        row["time_ended"] = time.time()
        self._seconds = []
        self.metrics.write(row)

    def on_evaluate(self, args, state, control, metrics: Mapping[str, float] | None = None, **kwargs):
        if self.metrics is None:  # by a script, before the training
            return
        row = evaluation_row(state.global_step, self.attempt, metrics, metrics.get("eval_runtime"))
        self.evaluations.write(row)

    def on_train_end(self, args, state, control, **kwargs):
        self.metrics = None
