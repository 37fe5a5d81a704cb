"""The name of a task in a recipe or on the command line."""

import re
from dataclasses import dataclass

from trl_prorl import tasks
from trl_prorl.errors import InputError
from trl_prorl.tasks import plugin


@dataclass(frozen=True)
class TaskName:
    """A task to evaluate on, as named in a recipe or on the command line."""

    task: str
    level: int | None = None
    options: dict | None = None
    path: str | None = None
    seed: int = 0
    is_own: bool = False  # the rows of a plugin
    is_file: bool = False  # the rows of a file, with the verifier that the options name

    @classmethod
    def of_run(cls, config: dict) -> "TaskName":
        """Return the task of a run with this configuration; for the run of a script, the rows of a plugin."""
        seed = config.get("task_seed") or 0
        if not config.get("task"):
            return cls(plugin.OWN, is_own=True)
        if config.get("reward"):
            options = {"verify": config.get("verify")}
            return cls(plugin.OWN, options=options, path=config.get("dataset_name"), seed=seed, is_file=True)
        return cls(
            task=config.get("task"),
            level=config.get("task_level"),
            options=config.get("task_options"),
            path=config.get("dataset_name"),
            seed=seed,
        )

    @classmethod
    def parse(cls, text: str) -> "TaskName":
        """Parse `NAME` or `NAME@LEVEL`, optionally followed by `=PATH`."""
        match = re.fullmatch(r"([^@=]+)(?:@(\d+))?(?:=(.+))?", text)
        if match is None:
            raise InputError(f"{text}: write NAME, NAME@LEVEL or NAME@LEVEL=PATH, as in parity@2")
        return cls(match[1], int(match[2]) if match[2] else None, path=match[3])

    def make(self):
        """
        Return the task.

        Raises:
            InputError: If there is no such task, or it does not accept the level or the options.
        """
        if self.is_own:
            from trl_prorl.eval.samples.own_rows import plugin_rows  # imports datasets, which parsing does not need

            return plugin_rows()
        try:
            if self.is_file:
                from trl_prorl.tasks.own import load_rows  # likewise

                return load_rows(self.path, self.options["verify"])
            return tasks.task_of_recipe(self.task, level=self.level, options=self.options, path=self.path)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"task '{self.task}': {error}") from error
