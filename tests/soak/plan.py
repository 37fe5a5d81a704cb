"""What is done to a run, as a pure function of a seed and a number, so that it can be done again."""

from dataclasses import dataclass
from random import Random

from cases import ALONE, CASES
from damage import CHECKPOINT_DAMAGE, RECORD_DAMAGE, RECORDS


# Where the accidents of a trial happen is drawn from these, each once.
DECK = ("generation", "update", "save", "evaluation") * 2 + ("start", "end")
LIVES = 5  # of one trial
KINDS = ("SIGKILL",) * 7 + ("SIGTERM", "SIGINT") * 2 + ("no room", "any time") * 3
PLACES = ("scratch", "root", "repository", "run", "deep")  # working directories


@dataclass(frozen=True)
class Life:
    """One start of a run and its end. Numbers from 0 to 1 choose among what there is when the time has come."""

    stage: str  # where the accident happens, see stages.py
    at_step: float
    at_place: float
    counts: str
    kind: str  # a signal, "no room", or "any time": every process is killed, at no stage in particular
    room: float  # what a full disk still holds
    rank: float  # with several processes: which one, and whether the others die with it
    all_die: bool
    place: str  # working directory, and whether `output_dir` is relative to it
    relative: bool
    resume: str  # "newest", or "older": by name, the one before
    record: dict[str, tuple[str, float]]  # damage after the end to the record: its kind and place, by file
    checkpoint: str | None  # and to the newest checkpoint


@dataclass(frozen=True)
class Trial:
    """What is done to one run."""

    number: int
    case: str
    processes: int
    small_disk: bool  # whether the run folder lies on a file system that can be filled
    lives: list[Life]  # starts that end by accident
    last: Life  # the one after them, which is left alone
    once_more: bool  # whether the finished run is told to resume again
    seed: str  # for what is drawn on the way


def life(rng: Random, stage: str) -> Life:
    return Life(
        stage=stage,
        at_step=rng.random(),
        at_place=rng.random(),
        counts=rng.choice(("calls", "files")) if stage in ("save", "start", "end") else "calls",
        kind=rng.choice(KINDS),
        room=rng.random() ** 3,
        rank=rng.random(),
        all_die=rng.random() < 0.5,
        place=rng.choice(PLACES),
        relative=rng.random() < 0.5,
        resume="older" if rng.random() < 0.25 else "newest",
        record={name: (rng.choice(RECORD_DAMAGE), rng.random()) for name in RECORDS if rng.random() < 0.3},
        checkpoint=rng.choice(CHECKPOINT_DAMAGE) if rng.random() < 0.3 else None,
    )


def trial(seed: int, number: int, cases: list[str] | None, processes: int | None) -> Trial:
    """The trial of a number from 0, fixed by it and the seed, of these cases and with so many processes only."""
    order = Random(f"{seed} cases").sample(cases or list(CASES), len(cases or CASES))
    case = order[number % len(order)]
    rng = Random(f"{seed} {number}")
    processes = processes or (2 if rng.random() < 0.25 else 1)
    return Trial(
        number=number,
        case=case,
        processes=1 if case in ALONE else processes,
        small_disk=rng.random() < 0.6,
        lives=[life(rng, stage) for stage in rng.sample(DECK, LIVES)],
        last=life(rng, "end"),
        once_more=rng.random() < 0.3,
        seed=f"{seed} {number} on the way",
    )
