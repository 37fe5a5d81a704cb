"""One run of the study as processes of its own: training by the recipe launcher, then evaluation."""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import yaml

from study.matrix import Matrix, Run
from trl_prorl.files import replaced
from trl_prorl.record.run_files import read_jsonl


LONG = 500  # steps from which a run keeps checkpoints, to go on from and to measure its way from the base
CHECKPOINTS = 6
NICE = 10  # the study leaves the machine to whoever works on it
# None but the runner's own keys may end up in a run.
SETTINGS = {"save_strategy": "no", "disable_tqdm": True, "report_to": "none"}

_prctl = getattr(ctypes.CDLL(None), "prctl", None)
PR_SET_PDEATHSIG = 1


def _in_child() -> None:
    """Before the program of a new process: it yields to other work, and ends if the runner is killed."""
    os.nice(NICE)
    if _prctl is not None:
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Job:
    """
    A run on its way into the tables.

    Args:
        run (`Run`): Which run.
        matrix (`Matrix`): How it is evaluated.
        code (`Path`): The worktree whose code makes it.
        place (`Path`): Where the study's runs are; those on one base lie side by side, and share its samples.
    """

    def __init__(self, run: Run, matrix: Matrix, code: Path, place: Path):
        key = run.key
        self.run, self.matrix, self.code = run, matrix, code
        self.folder = place / f"{key.family}-base{key.base_seed}" / f"{key.arm}-seed{key.seed}-{key.steps}"
        self.recipe, self.plan, self.rows, self.log = (
            self.folder.with_name(f"{self.folder.name}.{suffix}")
            for suffix in ("yaml", "plan.json", "rows.json", "log")
        )
        self.process: subprocess.Popen | None = None
        self.phase = ""
        self._began = 0.0

    @property
    def finished(self) -> bool:
        """Whether its rows are written, and are of this recipe."""
        return self.rows.is_file() and self._recipe_on_disk() == self._recipe_text()

    @property
    def trained(self) -> bool:
        """Whether training has come to its end: a model is there, or numbers that are not finite have ended it."""
        return (self.folder / "adapter_model.safetensors").exists() or self.stopped

    @property
    def stopped(self) -> bool:
        """Whether numbers that are not finite ended the training."""
        events = read_jsonl(self.folder / "events.jsonl", growing=True)
        return any(event["event"] == "nonfinite" and event.get("action") == "stop" for event in events)

    def steps_done(self) -> int:
        """Optimizer steps on record."""
        path = self.folder / "metrics.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def start(self) -> None:
        """Begin, or go on from where an earlier runner was stopped."""
        if self._recipe_on_disk() != self._recipe_text():  # another commit has another place
            self.remove()
            self.recipe.parent.mkdir(parents=True, exist_ok=True)
            with replaced(self.recipe) as aside:
                aside.write_text(self._recipe_text())
        if self.trained:
            self._evaluate(0.0)
            return
        command = [str(self.code / "recipes" / "grpo_variantA.py"), "--config", str(self.recipe)]
        if any(self.folder.glob("checkpoint-*")):
            command += ["--resume_from_checkpoint", "True"]
        elif self.folder.exists():
            shutil.rmtree(self.folder)
        self._begin("training", command)

    def check(self) -> int | None:
        """
        Look after the process, and begin the evaluation where the training has ended.

        Returns:
            `int` or `None`: `None` while the job runs; then 0, or the exit code of what failed.
        """
        code = self.process.poll()
        if code is None:
            return None
        if self.phase == "training" and self.trained:
            self._evaluate(time.time() - self._began)
            return None
        if self.phase == "training":
            return code or 1
        return code if code or not self.rows.is_file() else 0

    def end(self) -> None:
        """Stop the process, if it runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def remove(self) -> None:
        """Remove everything of it from the disk."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for path in (self.recipe, self.plan, self.rows, self.log):
            path.unlink(missing_ok=True)

    def last_line(self) -> str:
        """The last line that the process wrote."""
        lines = self.log.read_text(errors="replace").split("\n") if self.log.exists() else []
        return next((line.strip() for line in reversed(lines) if line.strip()), "it wrote nothing")

    def _evaluate(self, seconds: float) -> None:
        plan = {
            "folder": str(self.folder),
            "rows": str(self.rows),
            "key": list(self.run.key),
            "recipe_hash": self.run.recipe_hash,
            "split": self.run.split,
            "block": self.run.block,
            "prompts": self.matrix.prompts,
            "samples": self.matrix.samples,
            "drift_samples": self.matrix.drift_samples,
            "began": time.time() - seconds,
        }
        self.plan.write_text(json.dumps(plan))
        self._begin("evaluation", ["-m", "study.evaluate", str(self.plan)])

    def _begin(self, phase: str, command: list[str]) -> None:
        self.phase, self._began = phase, time.time()
        env = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": str(self.code),  # before the installation's own checkout
        }
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.code,
                env=env,
                start_new_session=True,  # Ctrl-C is the runner's to tell
                preexec_fn=_in_child,
            )

    def _recipe_text(self) -> str:
        steps, checkpoints = self.run.key.steps, {}
        if steps >= LONG:
            checkpoints = {"save_strategy": "steps", "save_steps": steps // CHECKPOINTS}
        return yaml.safe_dump({**self.run.recipe, **SETTINGS, **checkpoints, "output_dir": str(self.folder)})

    def _recipe_on_disk(self) -> str | None:
        return self.recipe.read_text() if self.recipe.is_file() else None
