"""
Kill, fill, cut and resume trainings for minutes or hours, and compare each with one that was left alone.

`make soak`, or `python tests/soak/soak.py --minutes 60 --seed 7`. Exit code 1 if anything was found; a finding is
printed with the command that repeats it. The trainings are in cases.py.
"""

import argparse
import ctypes
import functools
import itertools
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter
from pathlib import Path
from random import Random


os.environ |= dict.fromkeys(("HF_HUB_OFFLINE", "HF_HUB_DISABLE_TELEMETRY", "TRL_EXPERIMENTAL_SILENCE"), "1")
os.environ["TOKENIZERS_PARALLELISM"] = "false"
sys.path[:] = [str(Path(__file__).parent), *sys.path, str(Path(__file__).parents[1])]

import pandas  # noqa: E402
import torch  # noqa: E402
from cases import CASES, command, draw_case, make_model  # noqa: E402
from damage import complete, cut_record, damage_checkpoint, step_of, synced_step  # noqa: E402
from mutants import MUTANTS  # noqa: E402
from processes import Ended, Job, run  # noqa: E402
from same_run import differences  # noqa: E402
from stages import BALLAST, Accident  # noqa: E402
from transformers.utils.logging import disable_progress_bar  # noqa: E402

from trl_prorl.run.log_files import LOG_FILES  # noqa: E402


REPOSITORY = Path(__file__).parents[2]
# Where the accidents of a trial happen is drawn from these, each once.
DECK = ("generation", "update", "save", "evaluation") * 2 + ("start", "end")
LIVES = 5  # starts of one trial that end by accident
# A signal, no room for files, or "any time": every process is killed, at no stage in particular.
KINDS = ("SIGKILL",) * 7 + ("SIGTERM", "SIGINT") * 2 + ("no room", "any time") * 3
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


class Soak:
    """In a folder of scratch space; a mutant is a defect in every run but the undisturbed ones."""

    def __init__(self, folder: Path, mutant: str | None = None):
        self.folder = folder
        self.mutant = mutant
        self.deep = folder / "some" / "where" / "else"
        self.deep.mkdir(parents=True)
        self.model = make_model(folder / "model")
        self.disk = small_disk(folder / "disk")
        self.accidents: Counter = Counter()  # by stage and kind
        self.controls: dict[tuple[str, int], tuple[Path, Ended]] = {}

    def control(self, case: str, processes: int) -> tuple[Path, Ended]:
        """An undisturbed run of a case: its folder and its end."""
        if (case, processes) not in self.controls:
            out = self.folder / "controls" / f"{case.replace(' ', '_').replace(',', '')}-{processes}"
            script, arguments = command(case, self.model, processes)
            arguments += ["--output_dir", str(out)]
            ended = run(Job(script, arguments, self.folder, out.with_suffix(".logs"), processes, count=True))
            if ended.failed:
                raise RuntimeError(f"{case}, {processes} processes: a run left alone {ended.failed}")
            self.controls[case, processes] = out, ended
        return self.controls[case, processes]

    def table(self) -> str:
        """What was tried and how many times."""
        stages, kinds = zip(*self.accidents.elements(), strict=True) if self.accidents else ([], [])
        table = pandas.crosstab(pandas.Series(stages, name="stage"), pandas.Series(kinds, name="kind"), margins=True)
        return f"{table.to_string()}\nA disk of 64 MiB to fill: {self.disk or 'none, this user may not mount one'}"


class Attempt:
    """
    Everything that is done to one run, drawn from `seed`: of each start from a generator of its own, so that a moment
    that another machine meets later moves no other draw. `story` is told of a run that turns out to be another.
    """

    def __init__(self, soak: Soak, seed: str, case: str, processes: int):
        rng = Random(seed)
        self.soak = soak
        self.seed = seed
        self.case = case
        self.processes = processes
        self.control, self.undisturbed = soak.control(case, processes)
        self.disk = soak.disk if rng.random() < 0.6 else None
        self.stages = rng.sample(DECK, LIVES)
        self.once_more = rng.random() < 0.3  # the finished run is told to resume again
        name = f"trial{seed.split()[-1]}"
        self.place = (self.disk or soak.folder) / name
        self.out = self.place / "run"
        self.logs = soak.folder / "processes" / name
        self.story = []

    def found(self) -> list[str]:
        """What is wrong, and what had been done."""
        self.place.mkdir()
        found = self._lives()
        if found:
            kept = self.soak.folder / "found" / self.place.name
            shutil.copytree(self.place, kept)
            found = [*self.story, *found, f"Kept: {kept}, logs in {self.logs}; undisturbed: {self.control}"]
        shutil.rmtree(self.place)
        return found

    def _lives(self) -> list[str]:
        for number, stage in enumerate(self.stages):
            if found := self._life(f"life{number}", stage):
                return found
        for name in ("last", "once_more")[: 1 + self.once_more]:
            ended = self._start(name, Random(f"{self.seed} {name}"), self._newest())
            if found := [ended.failed] if ended.failed else differences(self.out, self.control):
                return found
        return []

    def _newest(self) -> Path | None:
        return next(reversed(complete(self.out)), None)

    def _life(self, name: str, stage: str) -> list[str]:
        """A start that ends by accident: what is wrong with its end."""
        rng = Random(f"{self.seed} {name}")
        kind = rng.choice(KINDS)
        there = complete(self.out)
        begin = rng.choice([*there[-1:] * 3, *there[-2:-1]] or [None])
        ended = self._start(name, rng, begin, **self._accident(rng, stage, kind, begin))
        if self.disk is not None:
            (self.disk / BALLAST).unlink(missing_ok=True)
        # The line may stand beside an error of another process that waited for this one.
        said = any(line.startswith("error: ") for line in ended.log.splitlines())
        explained = ended.struck and (said or kind != "no room")
        if ended.hung or any(ended.statuses) and not explained:
            return [f"{'after' if ended.struck else 'before'} the accident it {ended.failed}"]
        if ended.struck:
            self.soak.accidents[ended.struck.split()[0], kind] += 1
        self.story.append(f"   {kind}, {ended.struck}" if ended.struck else "   the accident did not come")
        there = complete(self.out)
        done = synced_step(self.out)
        may_have_lines = (self.out / "env.json").exists()  # a run writes it before the first line of its log files
        for record in LOG_FILES:
            if rng.random() < 0.3 and may_have_lines and (self.out / record).exists():
                self.story.append(f"   {cut_record(self.out / record, done, rng)}")
        # The newest: a start that goes on behind another one leaves it as it is.
        if rng.random() < 0.3 and len(there) > 1 and step_of(there[-1]) == done:
            self.story.append(f"   {damage_checkpoint(there[-1], rng)}")
        return []

    def _accident(self, rng: Random, stage: str, kind: str, begin: Path | None) -> dict:
        """What of a job is an accident, at a moment that the undisturbed run has."""
        if kind == "any time":
            # Half, because the undisturbed run was slowed by the counting.
            return {"kill_after": max(0.001, rng.random() * self.undisturbed.seconds / 2)}
        counts = self.undisturbed.counts
        done = step_of(begin) if begin is not None else 0
        steps = sorted(step for of, step in counts if of == stage and (step > done or not step))
        if not steps:  # the run is over, or an evaluation does not come again
            stage = "end"
            steps = [0]
        step = rng.choice(steps)
        unit = rng.choice(("calls", "files")) if stage in ("save", "start", "end") else "calls"
        place = rng.randint(1, counts[stage, step][unit] + 1)
        return {"accident": Accident(stage, step, place, unit, kind, int(rng.random() ** 3 * LARGEST_FILE), self.disk)}

    def _start(self, name: str, rng: Random, begin: Path | None, **accident) -> Ended:
        """Start the run from a checkpoint, in some working directory, and wait for its end."""
        cwd = rng.choice((self.soak.folder, Path("/"), REPOSITORY, self.place, self.soak.deep))
        at = rng.choice((str, functools.partial(os.path.relpath, start=cwd)))
        script, arguments = command(self.case, self.soak.model, self.processes)
        arguments += ["--output_dir", at(self.out)]
        if begin != self._newest():
            arguments += ["--resume_from_checkpoint", at(begin)]
        elif self.out.exists():
            arguments += ["--resume_from_checkpoint", "auto"]  # an accident may come before the first checkpoint
        job = Job(script, arguments, cwd, self.logs / name, self.processes, mutant=self.soak.mutant, **accident)
        job.rank = rng.randrange(self.processes)
        job.all_die = rng.random() < 0.5
        ended = run(job)
        self.story.append(f"{name}: from {begin.name if begin is not None else 'step 0'}; exit {ended.statuses}")
        return ended


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="how long, at least (10)")
    parser.add_argument("--kills", type=int, default=30, help="how many accidents, at least (30)")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000, help="what is drawn (from the clock)")
    parser.add_argument("--trial", type=int, help="this one trial only")
    parser.add_argument("--case", action="append", choices=list(CASES), help="only this case, or these")
    parser.add_argument(
        "--processes", type=int, choices=(1, 2), help="only so many (1, and 2 in a fourth of the trials)"
    )
    parser.add_argument("--mutant", choices=list(MUTANTS), help="a defect on purpose; the first finding ends the soak")
    parser.add_argument("--folder", type=Path, help="scratch space, kept (a temporary one, kept for what was found)")
    return parser.parse_args()


def repeat(args: argparse.Namespace, number: int) -> str:
    """The command that does one trial again."""
    given = {"seed": args.seed, "trial": number, "processes": args.processes, "mutant": args.mutant}
    words = [f"--{name}={value}" for name, value in given.items() if value is not None]
    words += [f"--case={case}" for case in args.case or []]
    return f"python tests/soak/soak.py {shlex.join(words)}"


def main() -> int:
    args = arguments()
    began = time.monotonic()
    findings = 0
    folder = Path(args.folder or tempfile.mkdtemp(prefix="prorl-soak-")).resolve()
    torch.set_num_threads(1)
    disable_progress_bar()
    soak = Soak(folder, args.mutant)
    print(f"seed {args.seed}, in {folder}", flush=True)
    for number in itertools.count(args.trial or 0):
        case, processes = draw_case(args.seed, number, args.case or list(CASES), args.processes)
        found = Attempt(soak, f"{args.seed} {number}", case, processes).found()
        accidents = soak.accidents.total()
        state = "found" if found else "same run"
        print(f"trial {number}: {case}, processes: {processes}: {state}; {accidents} accidents so far", flush=True)
        if found:
            findings += 1
            print(textwrap.indent("\n".join([*found, f"Again: {repeat(args, number)}"]), "    "), flush=True)
        late = time.monotonic() - began >= 60 * args.minutes
        enough = late and accidents >= args.kills and MUST_BE_HIT <= {stage for stage, _ in soak.accidents}
        if enough or args.trial is not None or args.mutant and findings:
            break
    print(soak.table())
    minutes = (time.monotonic() - began) / 60
    print(f"seed {args.seed}, {minutes:.1f} minutes: {accidents} accidents, {findings} found")
    if not findings and args.folder is None:
        shutil.rmtree(folder, ignore_errors=True)
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main())
