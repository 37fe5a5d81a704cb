"""
Kill, fill, cut and resume trainings for minutes or hours, and compare each with one that was left alone.

`make soak`, or `python tests/soak/soak.py --minutes 60 --seed 7`. Exit code 1 if anything was found; a finding is
printed with the command that repeats it. The trainings are in cases.py, the accidents in plan.py.
"""

import argparse
import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
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
MUST_BE_HIT = ("generation", "update", "save", "evaluation")
DISK = 64 << 20  # bytes of the file system that is filled
LARGEST_FILE = 200_000  # bytes: most files of a checkpoint are smaller


@dataclass
class Control:
    """An undisturbed run of a case: its folder, seconds, and counts of calls and file operations by stage and step."""

    folder: Path
    seconds: float
    counts: dict[tuple[str, int], dict[str, int]]


@dataclass
class Tally:
    """What was tried, and how many times."""

    kills: Counter = field(default_factory=Counter)  # (stage, kind)
    done: Counter = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)

    @property
    def number(self) -> int:
        return sum(self.kills.values())

    def of_stage(self, stage: str) -> int:
        return sum(count for (where, _), count in self.kills.items() if where == stage)


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


class Soak:
    """In a folder of scratch space; a mutant is a defect in every run but the undisturbed ones."""

    def __init__(self, folder: Path, mutant: str | None = None):
        self.folder, self.mutant = folder, mutant
        self.model = make_model(folder / "model")
        self.disk = small_disk(folder / "disk")
        self.controls: dict[tuple[str, int], Control] = {}
        self.tally = Tally()
        self._cwd: Path | None = None  # of the last start
        (folder / "some" / "where" / "else").mkdir(parents=True)

    def control(self, case: str, processes: int) -> Control:
        if (case, processes) not in self.controls:
            out = self.folder / "controls" / f"{case.replace(' ', '_').replace(',', '')}-{processes}"
            script, arguments = command(case, self.model, processes)
            job = Job(
                script,
                [*arguments, "--output_dir", str(out)],
                str(self.folder),
                f"{out}.processes",
                processes,
                count=True,
            )
            ended = run(job)
            if any(ended.statuses) or ended.hung:
                raise RuntimeError(f"{case}, {processes} processes: a run left alone failed:\n{ended.log[-3000:]}")
            counts = {}
            for key, value in ended.counts.items():
                stage, step = key.split()
                counts[stage, int(step)] = value
            self.controls[case, processes] = Control(out, ended.seconds, counts)
            self.tally.done["undisturbed runs"] += 1
        return self.controls[case, processes]

    def attempt(self, plan: Trial) -> list[str]:
        """Everything that is done to one run: what was found."""
        control = self.control(plan.case, plan.processes)
        disk = self.disk if plan.small_disk else None
        place = (disk or self.folder) / f"trial{plan.number}"
        out, rng, story = place / "run", Random(plan.seed), []
        place.mkdir()
        self._cwd = None
        try:
            found = self._lives(plan, control, out, disk, rng, story)
            self.tally.done["runs compared"] += 1
        finally:
            if disk is not None:
                empty(disk)
        if not found:
            shutil.rmtree(place)
            shutil.rmtree(self._logs(plan))
            return []
        kept = self.folder / "found" / f"trial{plan.number}"
        shutil.copytree(place, kept)
        if disk is not None:
            shutil.rmtree(place)
        return [*story, *found, f"Kept: {kept}, logs in {self._logs(plan)}; undisturbed: {control.folder}"]

    def _logs(self, plan: Trial) -> Path:
        return self.folder / "processes" / f"trial{plan.number}"

    def _lives(self, plan: Trial, control: Control, out: Path, disk: Path | None, rng: Random, story: list) -> list:
        for number, life in enumerate(plan.lives):
            checkpoint = self._resumed_from(life, out)
            accident = None if life.kind == "any time" else self._accident(life, control, checkpoint, disk)
            ended = self._start(plan, life, control, out, f"life{number}", checkpoint, accident)
            what = accident.kind if accident is not None else "SIGKILL at any time"
            where = "{stage} {step}, {where}".format(**ended.struck) if ended.struck else "it did not come"
            story.append(f"{number + 1}. {self._begin(checkpoint)}; {what}: {where}; exit {ended.statuses}")
            if found := self._bad_end(ended, accident, life):
                return found
            if ended.struck:
                self.tally.kills[ended.struck["stage"], what] += 1
                self.tally.done["accidents of two processes"] += plan.processes == 2
            if disk is not None:
                empty(disk)
            self._damage(life, out, rng, story)
        checkpoint = self._resumed_from(plan.last, out)
        ended = self._start(plan, plan.last, control, out, "last", checkpoint, None)
        story.append(f"{len(plan.lives) + 1}. {self._begin(checkpoint)}; left alone; exit {ended.statuses}")
        if any(ended.statuses) or ended.hung:
            return [f"the last resume {'hung' if ended.hung else 'failed'}:", *ended.log.strip().splitlines()[-12:]]
        found, files = differences(out, control.folder)
        self.tally.done["files compared"] += files
        if not found and plan.once_more:
            self.tally.done["resumes of a finished run"] += 1
            ended = self._start(plan, plan.last, control, out, "once_more", self._resumed_from(plan.last, out), None)
            story.append(f"{len(plan.lives) + 2}. the finished run resumed; exit {ended.statuses}")
            if any(ended.statuses) or ended.hung:
                return ["a finished run that is resumed fails:", *ended.log.strip().splitlines()[-12:]]
            found, _ = differences(out, control.folder)
        return found

    @staticmethod
    def _begin(checkpoint: Path | None) -> str:
        return f"from {checkpoint.name}" if checkpoint is not None else "from step 0"

    @staticmethod
    def _resumed_from(life: Life, out: Path) -> Path | None:
        there = complete(out) if out.exists() else []
        return there[-2] if life.resume == "older" and len(there) > 1 else there[-1] if there else None

    def _accident(self, life: Life, control: Control, checkpoint: Path | None, disk: Path | None) -> Accident:
        done = step_of(checkpoint) if checkpoint is not None else 0
        steps = sorted(step for stage, step in control.counts if stage == life.stage and (step > done or step == 0))
        stage = life.stage
        if not steps:  # the run is over, or an evaluation does not come again
            stage, steps = "end", [0]
        step = steps[int(life.at_step * len(steps))]
        count = control.counts[stage, step][life.counts]
        room = int(life.room * LARGEST_FILE)
        return Accident(stage, step, 1 + int(life.at_place * count), life.counts, life.kind, room, str(disk or ""))

    def _start(
        self,
        plan: Trial,
        life: Life,
        control: Control,
        out: Path,
        name: str,
        checkpoint: Path | None,
        accident: Accident | None,
    ) -> Ended:
        places = {"scratch": self.folder, "root": Path("/"), "repository": REPOSITORY, "run": out.parent}
        places |= {"deep": self.folder / "some" / "where" / "else"}
        cwd = places[life.place]
        moved, self._cwd = self._cwd not in (None, cwd), cwd
        script, arguments = command(plan.case, self.model, plan.processes)
        at = (lambda path: os.path.relpath(path, cwd)) if life.relative else str
        arguments += ["--output_dir", at(out)]
        if out.exists() and begun(out):
            older = life.resume == "older" and checkpoint is not None
            arguments += ["--resume_from_checkpoint", at(checkpoint) if older else "True"]
            self.tally.done["resumes by name of an older checkpoint" if older else "resumes from the newest"] += 1
            self.tally.done["resumes from another working directory"] += moved
            self.tally.done["resumes of two processes"] += plan.processes == 2
            self.tally.done["runs that began again"] += checkpoint is None
        self.tally.done["started by torchrun"] += life.torchrun
        kill_after = None
        if life.kind == "any time" and name.startswith("life"):
            kill_after = life.at_place * control.seconds
        return run(
            Job(
                script,
                arguments,
                str(cwd),
                str(self._logs(plan) / name),
                plan.processes,
                life.torchrun,
                accident,
                rank=int(life.rank * plan.processes),
                kill_after=kill_after,
                all_die=life.all_die,
                mutant=self.mutant,
            )
        )

    @staticmethod
    def _bad_end(ended: Ended, accident: Accident | None, life: Life) -> list[str]:
        """What is wrong with the way in which a process ended."""
        last = ended.log.strip().splitlines()[-12:]
        if ended.hung:
            return ["it hung:", *ended.log.strip().splitlines()[-40:]]
        if ended.struck is None and any(ended.statuses):
            return ["it failed before the accident:", *last]
        if accident is not None and ended.struck and accident.kind not in SIGNALS and any(ended.statuses):
            # Beside an error of the launcher, or of another process that waited for this one.
            if not any(line.startswith("error: ") for line in ended.log.splitlines()):
                return [f"{accident.kind}: no line that says what is wrong:", *last]
        return []

    def _damage(self, life: Life, out: Path, rng: Random, story: list) -> None:
        if not out.exists():
            return
        there = complete(out)
        done = step_of(there[-1]) if there else 0
        for name, (kind, place) in life.record.items():
            if (out / name).exists():
                story.append(f"   {cut_record(out / name, done, kind, place)}")
                self.tally.done[f"{name} cut"] += 1
        if life.checkpoint is not None and len(there) > 1:
            story.append(f"   {damage_checkpoint(there[-1], life.checkpoint, rng)}")
            self.tally.done["checkpoints damaged"] += 1


def table(soak: Soak, seed: int, minutes: float) -> str:
    """What was tried and how many times."""
    tally = soak.tally
    kinds = [*SIGNALS, "SIGKILL at any time", "full disk", "file size"]
    lines = [f"{'':14}" + "".join(f"{kind.replace(' at any time', '*'):>12}" for kind in kinds) + f"{'sum':>8}"]
    for stage in STAGES:
        counts = [tally.kills[stage, kind] for kind in kinds]
        lines.append(f"{stage:14}" + "".join(f"{count:>12}" for count in counts) + f"{sum(counts):>8}")
    sums = [sum(tally.kills[stage, kind] for stage in STAGES) for kind in kinds]
    lines.append(f"{'sum':14}" + "".join(f"{count:>12}" for count in sums) + f"{sum(sums):>8}")
    lines.append(
        "* at a time drawn from the whole run; the others at a call or a file operation of one stage of one step."
    )
    how = "a file system of 64 MiB is filled (full disk); elsewhere RLIMIT_FSIZE (file size)"
    lines.append(
        f"Full disks: {how if soak.disk else 'RLIMIT_FSIZE (file size); this user may not mount one to fill'}."
    )
    lines += [f"{name}: {count}" for name, count in sorted(tally.done.items()) if count]
    lines.append(f"seed {seed}, {minutes:.1f} minutes: {tally.number} accidents, {len(tally.findings)} found")
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0], formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="how long, at least (10)")
    parser.add_argument("--kills", type=int, default=30, help="how many accidents, at least (30)")
    parser.add_argument("--seed", type=int, help="what is drawn (from the clock)")
    parser.add_argument("--trial", type=int, help="this one trial only")
    parser.add_argument("--lives", type=int, default=5, help="accidents of one trial (5)")
    parser.add_argument("--case", action="append", choices=list(CASES), help="only this case, or these")
    parser.add_argument(
        "--processes", type=int, choices=(1, 2), help="only with so many (1, and 2 in every fourth trial)"
    )
    parser.add_argument("--first", action="store_true", help="stop when anything was found")
    parser.add_argument("--mutant", choices=list(MUTANTS), help="a defect on purpose, which should be found")
    parser.add_argument(
        "--folder", type=Path, help="scratch space, kept (a temporary one, kept if anything was found)"
    )
    return parser.parse_args()


def repeat(args: argparse.Namespace, seed: int, number: int) -> str:
    """The command that does one trial again."""
    words = [f"--seed {seed} --trial {number}"]
    words += [f"--lives {args.lives}"] if args.lives != 5 else []
    words += [f"--case '{case}'" for case in args.case or []]
    words += [f"--processes {args.processes}"] if args.processes else []
    words += [f"--mutant {args.mutant}"] if args.mutant else []
    return f"python tests/soak/soak.py {' '.join(words)}"


def enough(args: argparse.Namespace, tally: Tally, began: float) -> bool:
    hit = all(tally.of_stage(stage) for stage in MUST_BE_HIT)
    return tally.number >= args.kills and hit and time.monotonic() - began >= 60 * args.minutes


def main() -> int:
    args = arguments()
    seed = int(time.time()) % 100_000 if args.seed is None else args.seed
    folder = Path(args.folder or tempfile.mkdtemp(prefix="prorl-soak-")).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    disable_progress_bar()
    soak, began, number = Soak(folder, args.mutant), time.monotonic(), args.trial or 0
    tally = soak.tally
    print(f"seed {seed}, in {folder}", flush=True)
    while True:
        plan = trial(seed, number, args.case, args.processes, args.lives)
        found = soak.attempt(plan)
        processes = f", {plan.processes} processes" if plan.processes > 1 else ""
        state = "found" if found else "same run"
        print(f"trial {number}: {plan.case}{processes}: {state}; {tally.number} accidents so far", flush=True)
        if found:
            tally.findings.append(f"trial {number}")
            print("\n".join(f"    {line}" for line in found))
            print(f"    Again: {repeat(args, seed, number)}", flush=True)
        number += 1
        if args.trial is not None or enough(args, tally, began) or args.first and tally.findings:
            break
    print(table(soak, seed, (time.monotonic() - began) / 60))
    if not tally.findings and args.folder is None:
        shutil.rmtree(folder, ignore_errors=True)
    return int(bool(tally.findings))


if __name__ == "__main__":
    sys.exit(main())
