"""What a power loss leaves: the end of a record that never reached the disk, and checkpoints with a damaged file."""

import json
from pathlib import Path
from random import Random

from trl_prorl.checkpoint_files import why_unusable
from trl_prorl.run_folder import CHECKPOINT


RECORDS = ("metrics.jsonl", "events.jsonl", "evaluations.jsonl")
RECORD_DAMAGE = ("cut", "zeros", "half a line more")
CHECKPOINT_DAMAGE = ("cut", "empty", "missing", "zeros", "one byte")


def step_of(checkpoint: Path) -> int:
    return int(CHECKPOINT.fullmatch(checkpoint.name)[1])


def complete(out: Path) -> list[Path]:
    """The checkpoints of a run that can be resumed from, oldest first."""
    named = [path for path in out.glob("checkpoint-*") if path.is_dir() and CHECKPOINT.fullmatch(path.name)]
    return sorted((path for path in named if why_unusable(path) is None), key=step_of)


def synced(row: dict, step: int) -> bool:
    """Whether a line of a record was on disk when a step's checkpoint got its name: that step's reset came later."""
    if "step" in row:
        return row["step"] <= step
    return row["step_applied"] < step or row["step_applied"] == step and row["event"] not in ("resume", "reset")


def cut_record(path: Path, step: int, kind: str, place: float) -> str:
    """
    Lose what was written to a record after the checkpoint of `step`, the newest complete one's or 0, was saved: from a
    place on, 0 to 1 in the part that can be lost. Returns what was done.
    """
    content = path.read_bytes()
    safe = 0
    for line in content.splitlines(keepends=True):
        if not line.endswith(b"\n") or not synced(json.loads(line), step):
            break
        safe += len(line)
    tail = len(content) - safe
    if kind == "half a line more" or tail < 2:
        begin = '{"step": ' if "events" not in path.name else '{"event": "reset", "step_requested": '
        content += f'{begin}{step + 1}, "something": 0.{"123456789" * 9}'.encode()[: 3 + int(place * 60)]
        path.write_bytes(content)
        return f"{path.name}: half a line more"
    cut = safe + int(place * (tail - 1))
    path.write_bytes(content[:cut] + (b"\0" * (len(content) - cut) if kind == "zeros" else b""))
    return f"{path.name}: {'zeros' if kind == 'zeros' else 'cut'} from byte {cut} of {len(content)}"


def damage_checkpoint(checkpoint: Path, kind: str, rng: Random) -> str:
    """Damage one file of a checkpoint; `kind` is one of `CHECKPOINT_DAMAGE`."""
    path = rng.choice(sorted(path for path in checkpoint.rglob("*") if path.is_file() and path.stat().st_size))
    content = bytearray(path.read_bytes())
    place = rng.randrange(len(content))
    if kind == "missing":
        path.unlink()
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "cut":
        path.write_bytes(content[:place])
    else:
        end = len(content) if kind == "zeros" else place + 1
        # A byte that was 0 would not be damaged by zeros.
        content[place:end] = (b"\0" if content[place] and kind == "zeros" else b"\x01") * (end - place)
        if kind == "one byte":
            content[place] ^= 0x55
        path.write_bytes(content)
    return f"{path.relative_to(checkpoint.parent)}: {kind}, byte {place}"
