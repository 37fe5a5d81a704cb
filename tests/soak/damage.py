"""What a power loss leaves: the end of a record that never reached the disk, and checkpoints with a damaged file."""

import json
from pathlib import Path
from random import Random

from trl_prorl.run.folder import WRITING, step_of, steps_of, unusable_reason
from trl_prorl.run.log_files import AT_BOUNDARY, STARTS


def complete(out: Path) -> list[Path]:
    """The checkpoints of a run that can be resumed from, oldest first."""
    return sorted((path for path in steps_of(out) if unusable_reason(path) is None), key=step_of)


def synced_step(out: Path) -> int:
    """
    The step of the newest complete checkpoint, or 0: its rows are on disk. A kill may have left it without its name,
    which the next start gives it.
    """
    return max((step_of(path) for folder in [out, *out.glob(f"{WRITING}*")] for path in complete(folder)), default=0)


def synced(line: bytes, step: int) -> bool:
    """
    Whether a line of a record was on disk when a step's checkpoint got its name: that step's reset came later. What
    begins an attempt is synchronised by itself.
    """
    try:
        row = json.loads(line)
    except ValueError:  # an earlier power loss cut it off
        return False
    if "step" in row:
        return row["step"] <= step
    if row["event"] in STARTS:
        return True
    return row["step_applied"] < step or row["step_applied"] == step and row["event"] not in AT_BOUNDARY


def cut_record(path: Path, step: int, rng: Random) -> str:
    """
    Lose what was written to a record after the checkpoint of `step`, see `synced_step`, was saved, from some place on.
    Returns what was done.
    """
    kind = rng.choice(("cut", "zeros", "half a line more"))
    content = path.read_bytes()
    safe = 0  # the end of the last line that was synchronised
    end = 0
    for line in content.splitlines(keepends=True):
        end += len(line)
        if line.endswith(b"\n") and synced(line, step):
            safe = end
    if kind == "half a line more" or len(content) - safe < 2:
        line = f'{{"step": {step + 1}, "something": 0.{"123456789" * 9}'
        path.write_bytes(content + line.encode()[: rng.randrange(3, 63)])
        return f"{path.name}: half a line more"
    cut = rng.randrange(safe, len(content) - 1)
    path.write_bytes(content[:cut] + (bytes(len(content) - cut) if kind == "zeros" else b""))
    return f"{path.name}: {kind} from byte {cut} of {len(content)}"


def damage_checkpoint(checkpoint: Path, rng: Random) -> str:
    """Damage one file of a checkpoint, and return what was done."""
    path = rng.choice(sorted(path for path in checkpoint.rglob("*") if path.is_file() and path.stat().st_size))
    content = path.read_bytes()
    place = rng.choice([i for i, byte in enumerate(content) if byte])  # zeros from there on are a damage
    damaged = {
        "cut": content[:place],
        "empty": b"",
        "zeros": content[:place] + bytes(len(content) - place),
        "one byte": content[:place] + bytes([content[place] ^ 0x55]) + content[place + 1 :],
    }
    kind = rng.choice([*damaged, "missing"])
    if kind == "missing":
        path.unlink()
    else:
        path.write_bytes(damaged[kind])
    return f"{path.relative_to(checkpoint.parent)}: {kind}, byte {place}"
