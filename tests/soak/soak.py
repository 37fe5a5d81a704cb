"""
Kill, fill, cut and resume trainings for minutes or hours, and compare each with one that was left alone.

`make soak`, or `python tests/soak/soak.py --minutes 60 --seed 7`. Exit code 1 if anything was found; a finding is
printed with the command that repeats it. The trainings are in cases.py, the accidents in plan.py.
"""

import argparse
import ctypes
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random


os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
sys.path[:] = [str(Path(__file__).parent), *sys.path, str(Path(__file__).parents[1])]

import torch  # noqa: E402
from cases import CASES, command, make_model  # noqa: E402
from damage import begun, complete, cut_record, damage_checkpoint, step_of  # noqa: E402
from mutants import MUTANTS  # noqa: E402
from plan import Life, Trial, trial  # noqa: E402
from processes import Ended, Job, run  # noqa: E402
from same_run import differences  # noqa: E402
from stages import SIGNALS, STAGES, Accident, empty  # noqa: E402
from transformers.utils.logging import disable_progress_bar  # noqa: E402


REPOSITORY = Path(__file__).parents[2]
ELSEWHERE = Path("some", "where", "else")  # below the scratch space
MUST_BE_HIT = {"generation", "update", "save", "evaluation"}
DISK = 64 << 20  # bytes of the file system that is filled
LARGEST_FILE = 200_000  # bytes: most files of a checkpoint are smaller


def small_disk(folder: Path) -> Path | None:
    """
    Mount a file system of 64 MiB that only this process and its children see and that goes with them; `None` where a
    mount is not allowed, as for most users but root.
    """
    folder.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "unshare") or libc.unshare(0x00020000):  # CLONE_NEWNS
        return None
    for mount in (["--make-rprivate", "/"], ["-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)]):
        if subprocess.run(["mount", *mount], capture_output=True, check=False).returncode:
            return None
    return folder


@dataclass
class Control:
    """An undisturbed run of a case: its folder, seconds, and counts of calls and file operations by stage and step."""

    folder: Path
    seconds: float
    counts: dict[tuple[str, int], dict[str, int]]


class Soak:
    """
    In a folder of scratch space; a mutant is a defect in every run but the undisturbed ones. `accidents`, by stage and
    kind, and `done` count what was tried.
    """

    def __init__(self, folder: Path, mutant: str | None = None):
        self.folder, self.mutant = folder, mutant
        (folder / ELSEWHERE).mkdir(parents=True)
        self.model = make_model(folder / "model")
        self.disk = small_disk(folder / "disk")
        self.controls: dict[tuple[str, int], Control] = {}
        self.accidents: Counter = Counter()
        self.done: Counter = Counter()

    def control(self, case: str, processes: int) -> Control:
        if (case, processes) not in self.controls:
            out = self.folder / "controls" / f"{case.replace(' ', '_').replace(',', '')}-{processes}"
            script, arguments = command(case, self.model, processes)
            arguments += ["--output_dir", str(out)]
            ended = run(Job(script, arguments, str(self.folder), f"{out}.processes", processes, count=True))
            if ended.failed:
                raise RuntimeError(f"{case}, {processes} processes: a run left alone {ended.failed}")
            counts = {(stage, int(step)): of for key, of in ended.counts.items() for stage, step in [key.split()]}
            self.controls[case, processes] = Control(out, ended.seconds, counts)
            self.done["undisturbed runs"] += 1
        return self.controls[case, processes]

    def table(self) -> str:
        """What was tried and how many times."""
        kinds = [*SIGNALS, "SIGKILL at any time", "full disk", "file size"]
        lines = [f"{'':14}" + "".join(f"{kind.replace(' at any time', '*'):>12}" for kind in kinds) + f"{'sum':>8}"]
        rows = {stage: [self.accidents[stage, kind] for kind in kinds] for stage in STAGES}
        rows["sum"] = [sum(column) for column in zip(*rows.values(), strict=True)]
        for name, counts in rows.items():
            lines.append(f"{name:14}" + "".join(f"{count:>12}" for count in counts) + f"{sum(counts):>8}")
        lines += ["* at a time drawn from the whole run; the others at a call or a file operation of one stage."]
        filled = "a file system of 64 MiB (full disk)" if self.disk else "none, because this user may not mount one"
        lines += [f"Full disks: {filled}; elsewhere RLIMIT_FSIZE (file size)."]
        return "\n".join(lines + [f"{name}: {count}" for name, count in sorted(self.done.items()) if count])


class Attempt:
    """Everything that is done to one run; `story` is told of a run that turns out to be another."""

    def __init__(self, soak: Soak, plan: Trial):
        self.soak, self.plan = soak, plan
        self.control = soak.control(plan.case, plan.processes)
        self.disk = soak.disk if plan.small_disk else None
        self.place = (self.disk or soak.folder) / f"trial{plan.number}"
        self.out, self.logs = self.place / "run", soak.folder / "processes" / f"trial{plan.number}"
        self.rng, self.story = Random(plan.seed), []
        self.cwd: Path | None = None  # of the last start

    def found(self) -> list[str]:
        """What is wrong, and what had been done."""
        self.place.mkdir()
        try:
            found = self._lives()
        finally:
            self._empty_disk()
        self.soak.done["runs compared"] += 1
        if found:
            kept = self.soak.folder / "found" / self.place.name
            shutil.copytree(self.place, kept)
            found = [*self.story, *found, f"Kept: {kept}, logs in {self.logs}; undisturbed: {self.control.folder}"]
        else:
            shutil.rmtree(self.logs)
        if self.disk is not None or not found:
            shutil.rmtree(self.place)
        return found

    def _lives(self) -> list[str]:
        for number, life in enumerate(self.plan.lives):
            if found := self._life(life, f"life{number}"):
                return found
        found = self._left_alone("last", "the last resume")
        if not found and self.plan.once_more:
            self.soak.done["resumes of a finished run"] += 1
            found = self._left_alone("once_more", "the resume of the finished run")
        return found

    def _life(self, life: Life, name: str) -> list[str]:
        """A start that ends by accident: what is wrong with its end."""
        accident = None if life.kind == "any time" else self._accident(life)
        what = accident.kind if accident is not None else "SIGKILL at any time"
        kill_after = life.at_place * self.control.seconds if accident is None else None
        ended = self._start(life, name, what, accident=accident, kill_after=kill_after)
        # The line may stand beside an error of the launcher, or of another process that waited for this one.
        said = any(line.startswith("error: ") for line in ended.log.splitlines())
        explained = ended.struck and (accident is None or accident.kind in SIGNALS or said)
        if ended.hung or any(ended.statuses) and not explained:
            return [f"{'after' if ended.struck else 'before'} the accident it {ended.failed}"]
        if ended.struck:
            self.soak.accidents[ended.struck["stage"], what] += 1
            self.soak.done["accidents of two processes"] += self.plan.processes == 2
        self._empty_disk()
        if self.out.exists():
            self._damage(life)
        return []

    def _left_alone(self, name: str, what: str) -> list[str]:
        """A start without an accident: how the run then differs from the undisturbed one."""
        ended = self._start(self.plan.last, name, "left alone")
        if ended.failed:
            return [f"{what} {ended.failed}"]
        found, files = differences(self.out, self.control.folder)
        self.soak.done["files compared"] += files
        return found

    def _resumed_from(self, life: Life) -> Path | None:
        there = complete(self.out) if self.out.exists() else []
        return there[-2] if life.resume == "older" and len(there) > 1 else there[-1] if there else None

    def _accident(self, life: Life) -> Accident:
        checkpoint, counts = self._resumed_from(life), self.control.counts
        done = step_of(checkpoint) if checkpoint is not None else 0
        stage, steps = (
            life.stage,
            sorted(step for of, step in counts if of == life.stage and (step > done or not step)),
        )
        if not steps:  # the run is over, or an evaluation does not come again
            stage, steps = "end", [0]
        step = steps[int(life.at_step * len(steps))]
        place = 1 + int(life.at_place * counts[stage, step][life.counts])
        return Accident(
            stage, step, place, life.counts, life.kind, int(life.room * LARGEST_FILE), str(self.disk or "")
        )

    def _start(self, life: Life, name: str, what: str, **keys) -> Ended:
        places = {"scratch": self.soak.folder, "root": Path("/"), "repository": REPOSITORY, "run": self.out.parent}
        cwd = (places | {"deep": self.soak.folder / ELSEWHERE})[life.place]
        script, arguments = command(self.plan.case, self.soak.model, self.plan.processes)
        at = (lambda path: os.path.relpath(path, cwd)) if life.relative else str
        arguments += ["--output_dir", at(self.out)]
        checkpoint, done = self._resumed_from(life), self.soak.done
        if self.out.exists() and begun(self.out):
            older = life.resume == "older" and checkpoint is not None
            arguments += ["--resume_from_checkpoint", at(checkpoint) if older else "True"]
            done["resumes by name of an older checkpoint" if older else "resumes from the newest"] += 1
            done["resumes from another working directory"] += self.cwd not in (None, cwd)
            done["resumes of two processes"] += self.plan.processes == 2
            done["runs that began again"] += checkpoint is None
        done["started by torchrun"] += life.torchrun
        self.cwd = cwd
        keys |= {"rank": int(life.rank * self.plan.processes), "all_die": life.all_die, "mutant": self.soak.mutant}
        logs = str(self.logs / name)
        ended = run(Job(script, arguments, str(cwd), logs, self.plan.processes, life.torchrun, **keys))
        where = ": {stage} {step}, {where}".format(**ended.struck) if ended.struck else ""
        begin = checkpoint.name if checkpoint is not None else "step 0"
        self.story.append(f"{name}: from {begin}; {what}{where}; exit {ended.statuses}")
        return ended

    def _damage(self, life: Life) -> None:
        there = complete(self.out)
        done = step_of(there[-1]) if there else 0
        for name, (kind, place) in life.record.items():
            if (self.out / name).exists():
                self.story.append(f"   {cut_record(self.out / name, done, kind, place)}")
                self.soak.done[f"{name} cut"] += 1
        if life.checkpoint is not None and len(there) > 1:
            self.story.append(f"   {damage_checkpoint(there[-1], life.checkpoint, self.rng)}")
            self.soak.done["checkpoints damaged"] += 1

    def _empty_disk(self) -> None:
        if self.disk is not None:
            empty(self.disk)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="how long, at least (10)")
    parser.add_argument("--kills", type=int, default=30, help="how many accidents, at least (30)")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000, help="what is drawn (from the clock)")
    parser.add_argument("--trial", type=int, help="this one trial only")
    parser.add_argument("--lives", type=int, default=5, help="accidents of one trial (5)")
    parser.add_argument("--case", action="append", choices=list(CASES), help="only this case, or these")
    parser.add_argument("--processes", type=int, choices=(1, 2), help="only so many (1, and 2 in every fourth trial)")
    parser.add_argument("--first", action="store_true", help="stop when anything was found")
    parser.add_argument("--mutant", choices=list(MUTANTS), help="a defect on purpose, which should be found")
    parser.add_argument("--folder", type=Path, help="scratch space, kept (a temporary one, kept for what was found)")
    return parser.parse_args()


def repeat(args: argparse.Namespace, number: int) -> str:
    """The command that does one trial again."""
    told = {"seed": args.seed, "trial": number, "lives": args.lives, "processes": args.processes}
    words = [
        (f"--{name}", str(value)) for name, value in (told | {"mutant": args.mutant}).items() if value is not None
    ]
    words += [("--case", case) for case in args.case or []]
    return f"python tests/soak/soak.py {shlex.join(word for pair in words for word in pair)}"


def main() -> int:
    args, began, findings = arguments(), time.monotonic(), 0
    folder = Path(args.folder or tempfile.mkdtemp(prefix="prorl-soak-")).resolve()
    torch.set_num_threads(1)
    disable_progress_bar()
    soak, number, over = Soak(folder, args.mutant), args.trial or 0, False
    print(f"seed {args.seed}, in {folder}", flush=True)
    while not over:
        plan = trial(args.seed, number, args.case, args.processes, args.lives)
        found, accidents = Attempt(soak, plan).found(), soak.accidents.total()
        processes = f", {plan.processes} processes" if plan.processes > 1 else ""
        state = "found" if found else "same run"
        print(f"trial {number}: {plan.case}{processes}: {state}; {accidents} accidents so far", flush=True)
        if found:
            findings += 1
            print(textwrap.indent("\n".join([*found, f"Again: {repeat(args, number)}"]), "    "), flush=True)
        number += 1
        enough = accidents >= args.kills and MUST_BE_HIT <= {stage for stage, _ in soak.accidents}
        over = args.trial is not None or bool(args.first and findings)
        over = over or enough and time.monotonic() - began >= 60 * args.minutes
    print(soak.table())
    minutes = (time.monotonic() - began) / 60
    print(f"seed {args.seed}, {minutes:.1f} minutes: {accidents} accidents, {findings} found")
    if not findings and args.folder is None:
        shutil.rmtree(folder, ignore_errors=True)
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main())
