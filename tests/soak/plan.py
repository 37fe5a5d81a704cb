"""What is done to a run, as a pure function of a seed and a number, so that it can be done again."""

from dataclasses import dataclass
from random import Random

from cases import ALONE, CASES
from damage import CHECKPOINT_DAMAGE, RECORD_DAMAGE, RECORDS
from stages import SIGNALS


# A deck, so that every stage has its turn; what lies between two kills is drawn from it.
DECK = ("generation", "update", "save", "evaluation") * 2 + ("start", "end")
PLACES = ("scratch", "root", "repository", "run", "deep")  # working directories


@dataclass(frozen=True)
class Life:
    """One start of a run and its end. Numbers from 0 to 1 choose among what there is when the time has come."""

    stage: str  # where the accident happens, see stages.py
    at_step: float
    at_place: float
    counts: str
    kind: str  # a signal, "full disk", "file size", or "any time": every process is killed, at no stage in particular
    room: float  # what a full disk still holds
    rank: float  # with several processes: which one, whether the others die with it, how they are started
    all_die: bool
    torchrun: bool
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


def life(rng: Random, stage: str, torchrun: bool, small_disk: bool) -> Life:
    # A launcher of its own would outlive a kill at any time.
    kinds = {**dict(zip(SIGNALS, (14, 4, 4), strict=True)), "full disk" if small_disk else "file size": 6}
    kinds |= {} if torchrun else {"any time": 6}
    return Life(
        stage=stage,
        at_step=rng.random(),
        at_place=rng.random(),
        counts=rng.choice(("calls", "files")) if stage in ("save", "start", "end") else "calls",
        kind=rng.choices(list(kinds), list(kinds.values()))[0],
        room=rng.random() ** 3,
        rank=rng.random(),
        all_die=rng.random() < 0.5,
        torchrun=torchrun,
        place=rng.choice(PLACES),
        relative=rng.random() < 0.5,
        resume="older" if rng.random() < 0.25 else "newest",
        record={name: (rng.choice(RECORD_DAMAGE), rng.random()) for name in RECORDS if rng.random() < 0.3},
        checkpoint=rng.choice(CHECKPOINT_DAMAGE) if rng.random() < 0.3 else None,
    )


def trial(
    seed: int, number: int, cases: list[str] | None = None, processes: int | None = None, kills: int = 5
) -> Trial:
    """The trial of a number from 0, fixed by it and the seed, of these cases and with so many processes only."""
    order = Random(f"{seed} cases").sample(cases or list(CASES), len(cases or CASES))
    rng = Random(f"{seed} {number}")
    # An even number of cases would meet the same pairs in every round, and an odd one meets others by itself.
    shift = number // len(order) if len(order) % 2 == 0 else 0
    case = order[(number + shift) % len(order)]
    # Every fourth with two processes; over the rounds every case has its turn.
    pair = (number % 4 == 3 if processes is None else processes == 2) and case not in ALONE
    small_disk = rng.random() < 0.6
    deck = rng.sample(DECK, len(DECK))
    torchrun = rng.randrange(kills)
    return Trial(
        number=number,
        case=case,
        processes=2 if pair else 1,
        small_disk=small_disk,
        lives=[life(rng, deck[i % len(deck)], pair and i == torchrun, small_disk) for i in range(kills)],
        last=life(rng, "end", False, small_disk),
        once_more=rng.random() < 0.3,
        seed=f"{seed} {number} on the way",
    )
