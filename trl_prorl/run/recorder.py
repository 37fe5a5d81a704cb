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

from .log_files import (
    ATTEMPT,
    CONFIG_FILE,
    ENV_FILE,
    EVALUATIONS_FILE,
    EVENTS_FILE,
    LOG_FILES,
    METRICS_FILE,
    RESUME,
    JsonLines,
    next_attempt,
    recorded_run_id,
)
from .provenance import write_config, write_env
from .record import COLUMNS, evaluation_row


OF_TRAINER = ("epoch", "step_time", "total_flos")  # in the log, but not in a row


class RunRecorder(TrainerCallback):
    """
    Writes the log files, `env.json` and `config.yaml` of a run of TRL's `GRPOTrainer`, or of a subclass. `report`,
    `compare` and `why` can show it.

    A row has the values of one log: set `logging_steps=1`. A resume writes on in the same files.

    Raises:
        `ValueError`: A new training begins in a folder that has the log files of another run.

    Example:

    ```python
    trainer = GRPOTrainer(model, reward_funcs=reward, args=args, train_dataset=rows, callbacks=[RunRecorder()])
    ```
    """

    def __init__(self):
        self.metrics: JsonLines | None = None  # on the main process, during a training

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        if not state.is_world_process_zero:
            return
        folder = Path(args.output_dir)
        resumes = state.global_step > 0
        names = [name for name in (*LOG_FILES, ENV_FILE, CONFIG_FILE) if (folder / name).exists()]
        if names and not resumes:
            raise ValueError(
                f"output_dir={args.output_dir!r} has the {names[0]} of another run. Choose another output_dir, or "
                "resume that run with resume_from_checkpoint=True."
            )
        self.attempt = next_attempt(folder) if resumes else 0
        self.metrics = JsonLines(folder / METRICS_FILE, resumes)
        events = JsonLines(folder / EVENTS_FILE, resumes)
        self.evaluations = JsonLines(folder / EVALUATIONS_FILE, resumes)
        if resumes:
            step = state.global_step
            events.write({"event": RESUME, ATTEMPT: self.attempt, "step_requested": step, "step_applied": step})
        run_id = recorded_run_id(folder) or uuid.uuid4().hex
        base = getattr(getattr(model, "config", None), "_name_or_path", None)
        write_env(folder, args, model, None, base, run_id)
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
