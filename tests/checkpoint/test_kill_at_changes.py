"""
Runs that are killed at one of their changes of files, and go on: each ends as the run that was left alone.

A change is a file that is opened to write, or a name that is given or taken, in the run's folder or beside it, see
`Changes` in forks/training.py; or a request to the Hub. Each start is a real process.
"""

import itertools
import json
import os
import re
import shutil
import signal
import sys
from pathlib import Path

import pytest
from run_record import hash_files
from slow import slow_but


sys.path.append(str(Path(__file__).parents[1] / "soak"))

from same_run import differences  # noqa: E402

from trl_prorl.run.folder import incomplete_reason, steps_of, unusable_reason  # noqa: E402


KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)  # of one process, and of several
A = {"beta": 0.3, "ref_reset_every": 2, "num_iterations": 2, "max_steps": 4, "save_steps": 2}
EVALUATED = {"eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 4}
BEST = {"load_best_model_at_end": True, "metric_for_best_model": "eval_reward"} | EVALUATED
SPREAD = {"steps_per_generation": 4, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 2}
REPO = "someone/killed"
PUSHED = {"push_to_hub": True, "hub_always_push": True, "hub_model_id": REPO, "hub_strategy": "checkpoint"}
# `saves_again`: at the end of an epoch, which is a second save of a step.
RUNS = {
    "best, pool, limit 1": {
        "keys": A
        | BEST
        | {"prompt_pool": True, "save_total_limit": 1, "log_completions": True, "eval_on_start": True},
        "saves_again": True,
    },
    "full, a buffer, limit 2": {
        "keys": A | SPREAD | {"save_steps": 1, "save_total_limit": 2, "ref_reset_every": 1},
        "lora": False,
        "saves_again": True,
    },
    "weights alone, limit 1": {
        "keys": A | {"save_only_model": True, "save_steps": 1, "save_total_limit": 1},
        "saves_again": True,
    },
    "an end by a stall": {
        "keys": A | EVALUATED | {"stop_stall": 1, "ref_reset_min_delta": 9, "eval_steps": 1, "save_steps": 1}
    },
    "overwritten": {"keys": A | {"overwrite": True}},
    "pushed": {"keys": A | PUSHED | {"save_total_limit": 1}},
    "pushed, all": {"keys": A | PUSHED | {"hub_strategy": "all_checkpoints", "save_steps": 1, "save_total_limit": 1}},
    "two processes": {
        "keys": A | BEST | {"per_device_train_batch_size": 2, "ddp_find_unused_parameters": False},
        "ranks": 2,
        "prompts": 6,
        "saves_again": True,
    },
}
KILLS = 12  # of a case, and as many at requests
# The change at which a run of the fast tests is killed: while a checkpoint, or the folder, has no name.
FAST = {
    "best, pool, limit 1": "os.rename _writing-4/checkpoint-4",
    "weights alone, limit 1": "open _writing-4/checkpoint-4/manifest.json",
    "an end by a stall": "os.mkdir _writing-2",  # its event is written
    "overwritten": "os.rename .",
    "pushed": "os.rename _writing-4/checkpoint-4",
}


class Trials:
    """The trials of a case, in folders below one."""

    def __init__(self, forks, hub, model, folder, case):
        self.forks = forks
        self.hub = hub
        self.folder = folder
        self.case = case
        given = {"model": model, "log": str(folder / "log"), "changes": str(folder / "changes")}
        self.spec = {"run": "training", "lora": True, "prompts": 2, "killed_at": None, **given, **RUNS[case]}
        self.killed = 0
        if case == "overwritten":
            self.train("earlier", keys=A | {"max_steps": 2})
        self.control = self.folder / "control"
        self.begin("control")
        self.train("control")
        self.changes = Path(folder, "changes").read_text().splitlines()
        self.requests = len(hub.requests)

    def begin(self, name):
        """Put what is there before a run begins."""
        if self.case == "overwritten":
            shutil.copytree(self.folder / "earlier", self.folder / name)
        self.hub.reset()

    def train(self, name, killed_at=None, killed_at_request=None, **more):
        """Train in a folder; the exit status is that of a kill, if there may be one, or 0. Return whether it is 0."""
        Path(self.spec["log"]).write_text("")
        may_end = [0]
        if killed_at or killed_at_request:
            may_end += KILLED
        process = []
        count = itertools.count(1)

        def on_request():
            if next(count) == killed_at_request:
                os.kill(process[0], signal.SIGKILL)

        self.hub.on_request = on_request
        order = self.spec | {"killed_at": killed_at} | more
        process.append(self.forks.start(**order, out=str(self.folder / name)))
        status = self.forks.status()
        self.hub.on_request = None
        assert status in may_end, f"exit {status}: {Path(self.spec['log']).read_text()[-3000:]}"
        return status == 0

    def kill_and_go_on(self, way, **kill):
        """
        Kill a run and go on to its end.

        Args:
            way (`int`): 0: it is killed again as it goes on, 1: not.

        Returns:
            `list[str]`: What differs from the run that was left alone.
        """
        self.begin("run")
        out = self.folder / "run"
        self.killed += not self.train("run", **kill)
        had = complete(self.folder)
        lost = self.newest_named() - had if "killed_at" in kill else set()
        if way == 0:
            self.train("run", killed_at=1 + sum(kill.values()) * 7 % 40, resume=self.way_on(way))
        self.train("run", resume=self.way_on(way))
        found = differences(out, self.control)
        if "alone" in self.case:  # no resume can take them
            lost |= had - complete(self.folder)
        if lost:
            found.append(f"complete checkpoints were lost: {lost}")
        if self.case == "overwritten":
            theirs = hash_files(self.folder / "earlier", without=["run.lock"])
            if theirs not in [
                hash_files(path, without=["set_aside", "run.lock"]) for path in self.folder.glob("run.*")
            ]:
                found.append("the earlier run was lost")
        for path in self.folder.glob("run*"):
            shutil.rmtree(path)
        return found

    def newest_named(self):
        """The step of the newest checkpoint that had its name when the run was killed, at its last change."""
        changes = Path(self.spec["changes"]).read_text().splitlines()[:-1]
        named = [re.fullmatch(r"os.rename _writing-(\d+)/checkpoint-\d+", change) for change in changes]
        steps = [int(match[1]) for match in named if match]
        return set(steps[-1:])

    def way_on(self, way):
        """Return `resume_from_checkpoint` of a start after a kill."""
        if self.case == "overwritten":
            return None
        has_checkpoint = any(unusable_reason(path) is None for path in steps_of(self.folder / "run"))
        return True if way == 1 and has_checkpoint else "auto"


def complete(folder):
    """The steps of the complete checkpoints of a run and of what was set aside, named or not."""
    manifests = [path for run in folder.glob("run*") for path in run.rglob("checkpoint-*/manifest.json")]
    return {json.loads(path.read_text())["step"] for path in manifests if incomplete_reason(path.parent) is None}


def spread(count, kills):
    """Return so many numbers from 1 on, evenly, or all of them."""
    kills = min(count, kills)
    return [1 + (2 * place + 1) * count // (2 * kills) for place in range(kills)]


def choose(changes, kills):
    """Return numbers of changes: half of names of checkpoints and of what is in the folder itself, half of any."""
    names = [number for number, change in enumerate(changes, 1) if re.match(NAMES, change)]
    chosen = {names[number - 1] for number in spread(len(names), kills // 2)}
    return sorted(chosen.union(spread(len(changes), kills - len(chosen))))


NAMES = r"os\.\w+ ([^/]+|_writing-\d+/checkpoint-\d+)$"


@pytest.fixture
def trials(hub_forks, hub, tiny_model, tmp_path):
    """Return a function that makes the `Trials` of a case."""
    return lambda case: Trials(hub_forks, hub, tiny_model, tmp_path, case)


@pytest.mark.slow
@pytest.mark.parametrize("case", RUNS)
def test_a_run_that_is_killed_anywhere_ends_as_the_one_that_was_left_alone(trials, case):
    tried = trials(case)
    kills = [{"killed_at": number} for number in choose(tried.changes, KILLS)]
    kills += [{"killed_at_request": number} for number in spread(tried.requests, KILLS)]
    found = {}
    for place, kill in enumerate(kills):
        lines = tried.kill_and_go_on(place % 2, **kill)
        if lines:
            found[str(kill), place % 2] = lines
    assert found == {}
    # A file that the Hub's client has is not requested again, so some runs end before so many requests.
    assert tried.killed >= len(kills) - KILLS // 2


@pytest.mark.parametrize("case", slow_but(FAST, "best, pool, limit 1", "overwritten", "pushed"))
def test_a_run_that_is_killed_before_a_folder_has_its_name_ends_as_the_one_that_was_left_alone(trials, case):
    tried = trials(case)
    places = [place for place, change in enumerate(tried.changes, 1) if change == FAST[case]]
    assert tried.kill_and_go_on(1, killed_at=places[-1]) == []
    assert tried.killed == 1
