"""
The study's tables: read with checks, merged, and written as bytes that depend on the rows alone.

Every run is a gzip member of its own in `curves.csv.gz` and `prompts.csv.gz`, in the order of the runs. So a run that
is added leaves the bytes of all others as they were, and git stores little more than the new ones; any reader of gzip
sees one file.
"""

import csv
import gzip
import io
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from study.matrix import RunKey
from trl_prorl.errors import InputError
from trl_prorl.files import replaced


FOLDER = Path("docs", "study")  # below the checkout
RUNS, BASES, CURVES, PROMPTS = "runs.csv", "bases.csv", "curves.csv.gz", "prompts.csv.gz"
FILES = (RUNS, BASES, CURVES, PROMPTS)
DIGITS = 6  # significant, of a number that is not whole

KEY = {"family": str, "arm": str, "base_seed": int, "seed": int, "steps": int}
# May be missing where a run stopped at numbers that are not finite, or was not asked to measure it.
OPTIONAL = {"drift", "drift_tokens", "proxy"}
# `gold` is pass@1 by the verifier, `proxy` the mean reward of the same samples: what training paid for.
RUN_COLUMNS: dict[str, Callable] = {
    **KEY,
    "block": str,
    "variant": str,
    "base_hash": str,
    "base_pass@1": float,
    "pass@1": float,
    "pass@8": float,
    "greedy": float,
    "gold": float,
    "proxy": float,
    "drift": float,
    "drift_tokens": float,
    "collapsed": int,
    "steps_done": int,
    "resets": int,
    "ref_forward_calls": int,
    "tokens_generated": int,
    "recipe": str,
    "split": str,
    "prompts": int,
    "samples": int,
    "seconds": float,
    "commit": str,
}
BASE_COLUMNS: dict[str, Callable] = {
    "family": str,
    "base_seed": int,
    "base_hash": str,
    "prompts_hash": str,
    "split": str,
    "prompts": int,
    "samples": int,
    "base_pass@1": float,
    "base_pass@8": float,
    "base_greedy": float,
    "commit": str,
}
# Per step; empty where it was not measured (`drift`: at checkpoints and the end). `event` holds the reasons of a reset
# that came before the step's batch.
CURVE_VALUES = (
    "reward gold frac_reward_zero_std kl_ref kl_old kl_base entropy mean_abs_dlogp update_norm grad_norm "
    "clip_region_mean completion_length beta eval_reward eval_pass@1 drift".split()
)
CURVE_COLUMNS: dict[str, Callable] = {
    **KEY,
    "step": int,
    **dict.fromkeys(CURVE_VALUES, float),
    "event": str,
}
# Per held-out prompt, by its place in the split. The base has rows of its own: arm `base`, seed 0, 0 steps.
PROMPT_COLUMNS: dict[str, Callable] = {**KEY, "prompt": int, "n": int, "correct": int, "greedy": int}
BASE_ARM = "base"


class BaseKey(NamedTuple):
    """What tells a base from every other."""

    family: str
    base_seed: int

    @classmethod
    def of(cls, run: RunKey) -> "BaseKey":
        """The base of a run."""
        return cls(run.family, run.base_seed)

    @property
    def run(self) -> RunKey:
        """The key of its rows among the prompts."""
        return RunKey(self.family, BASE_ARM, self.base_seed, 0, 0)


@dataclass
class Tables:
    """
    All rows, by run. Numbers are as the files have them, so that reading and writing changes nothing.

    Attributes:
        runs (`dict[RunKey, dict]`): A row of `runs.csv`.
        bases (`dict[BaseKey, dict]`): A row of `bases.csv`.
        curves (`dict[RunKey, list[dict]]`): A row of `curves.csv.gz` for each step.
        prompts (`dict[RunKey, list[dict]]`): A row of `prompts.csv.gz` for each prompt; of the bases, too.
    """

    runs: dict[RunKey, dict] = field(default_factory=dict)
    bases: dict[BaseKey, dict] = field(default_factory=dict)
    curves: dict[RunKey, list[dict]] = field(default_factory=dict)
    prompts: dict[RunKey, list[dict]] = field(default_factory=dict)

    def add_base(self, row: dict, prompts: list[dict]) -> None:
        """
        Add a base, which no other row may contradict.

        Raises:
            InputError: The tables have another base of that name.
        """
        key = BaseKey(row["family"], row["base_seed"])
        if key in self.bases:
            check_base(self.bases[key], row["base_hash"], row["prompts_hash"])
            return
        self.bases[key] = row
        self.prompts[key.run] = prompts

    def add_run(self, row: dict, curve: list[dict], prompts: list[dict]) -> None:
        """
        Add a run. Its base has to be there.

        Raises:
            InputError: Its base is not, or it is another base.
        """
        key = RunKey(*(row[name] for name in KEY))
        base = self.bases.get(BaseKey.of(key))
        if base is None:
            raise InputError(f"{key}: {BASES} has no row for its base; run the study again")
        check_base(base, row["base_hash"])
        self.runs[key] = {**row, "base_pass@1": base["base_pass@1"]}
        self.curves[key], self.prompts[key] = curve, prompts

    def without(self, drop: Callable[[RunKey], bool]) -> "Tables":
        """The tables without some runs, and without the bases that then have no run."""
        runs = {key: row for key, row in self.runs.items() if not drop(key)}
        needed = {BaseKey.of(key) for key in runs}
        kept = {*runs, *(base.run for base in needed)}
        return Tables(
            runs,
            {key: row for key, row in self.bases.items() if key in needed},
            {key: rows for key, rows in self.curves.items() if key in kept},
            {key: rows for key, rows in self.prompts.items() if key in kept},
        )


def check_base(row: dict, base_hash: str, prompts_hash: str | None = None) -> None:
    """
    Refuse a base that is another one than the table's.

    Raises:
        InputError: With the cure.
    """
    name = f"{row['family']}, base seed {row['base_seed']}"
    if row["base_hash"] != base_hash:
        raise InputError(
            f"{name}: the weights here have SHA-256 {base_hash[:12]}…, in {FOLDER / BASES} {row['base_hash'][:12]}…, "
            "and runs on different bases do not compare. Restore the base (git checkout its folder below "
            f"trl_prorl/embedded/models), or `python -m study drop --families {row['family']}` to begin anew"
        )
    if prompts_hash not in (None, row["prompts_hash"]):
        raise InputError(
            f"{name}: the held-out prompts are others than in {FOLDER / BASES} (evaluation in matrix.yaml, or the "
            f"task, has changed). Restore them, or `python -m study drop --families {row['family']}` to begin anew"
        )


def read_tables(root: Path) -> Tables:
    """
    The tables of a checkout; those that are missing are empty.

    Raises:
        InputError: A file cannot be read, or is not of its shape: named with the line, the column and the value.
    """
    folder = root / FOLDER
    runs, bases = Tables().runs, Tables().bases
    for line, row in _read(folder / RUNS, RUN_COLUMNS):
        key = RunKey(*(row[name] for name in KEY))
        if key in runs:
            raise InputError(f"{folder / RUNS} line {line}: {key} is there twice; remove one")
        runs[key] = row
    for line, row in _read(folder / BASES, BASE_COLUMNS):
        key = BaseKey(row["family"], row["base_seed"])
        if key in bases:
            raise InputError(f"{folder / BASES} line {line}: {key.family} {key.base_seed} is there twice; remove one")
        bases[key] = row
    tables = Tables(
        runs, bases, _by_run(_read(folder / CURVES, CURVE_COLUMNS)), _by_run(_read(folder / PROMPTS, PROMPT_COLUMNS))
    )
    _check_whole(folder, tables)
    return tables


def _check_whole(folder: Path, tables: Tables) -> None:
    """Every run has its base, its steps and its prompts, and nothing is of a run that is not there."""
    cure = "restore the folder with git checkout"
    for key, row in tables.runs.items():
        base = tables.bases.get(BaseKey.of(key))
        if base is None or base["base_hash"] != row["base_hash"]:
            raise InputError(f"{folder / RUNS}: {key} has no base of its hash in {BASES}; {cure}")
        if len(tables.curves.get(key, [])) != row["steps_done"]:
            raise InputError(
                f"{folder / CURVES}: {key} has {len(tables.curves.get(key, []))} of {row['steps_done']} steps; {cure}"
            )
        if len(tables.prompts.get(key, [])) != row["prompts"]:
            raise InputError(
                f"{folder / PROMPTS}: {key} has {len(tables.prompts.get(key, []))} of {row['prompts']} prompts; {cure}"
            )
    for key, row in tables.bases.items():
        if len(tables.prompts.get(key.run, [])) != row["prompts"]:
            raise InputError(f"{folder / PROMPTS}: {key.run} has not {row['prompts']} prompts; {cure}")
    for file, there, rows in (
        (CURVES, tables.runs.keys(), tables.curves),
        (PROMPTS, {*tables.runs, *(key.run for key in tables.bases)}, tables.prompts),
    ):
        for key in rows.keys() - there:
            raise InputError(f"{folder / file}: {key} is not in {RUNS}; {cure}")


def write_tables(root: Path, tables: Tables) -> None:
    """Write all tables of a checkout, `runs.csv` last: a run is finished once it is there."""
    folder = root / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for file, columns, by_run in ((CURVES, CURVE_COLUMNS, tables.curves), (PROMPTS, PROMPT_COLUMNS, tables.prompts)):
        members = [_member(_csv(list(columns)))]
        members += [_member(_csv(*([row[name] for name in columns] for row in rows))) for _, rows in _sorted(by_run)]
        _write(folder / file, b"".join(members))
    for file, columns, rows in ((BASES, BASE_COLUMNS, tables.bases), (RUNS, RUN_COLUMNS, tables.runs)):
        lines = ([row[name] for name in columns] for _, row in sorted(rows.items()))
        _write(folder / file, _csv(list(columns), *lines))


def shown(value: Any) -> str:
    """A cell: nothing for what was not measured, numbers with `DIGITS` significant digits."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return f"{value:.{DIGITS}g}" if isinstance(value, float) else str(value)


def as_written(row: dict, columns: dict[str, Callable]) -> dict:
    """A row with its numbers rounded as the file has them, complete."""
    return {name: _parsed(shown(row.get(name)), kind) for name, kind in columns.items()}


def _sorted(by_run: dict[RunKey, list[dict]]) -> Iterable[tuple[RunKey, list[dict]]]:
    return sorted(by_run.items())


def _member(content: bytes) -> bytes:
    return gzip.compress(content, compresslevel=9, mtime=0)


def _csv(*rows: list) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([shown(value) for value in row] for row in rows)
    return text.getvalue().encode()


def _write(path: Path, content: bytes) -> None:
    if path.is_file() and path.read_bytes() == content:
        return
    with replaced(path) as aside:
        aside.write_bytes(content)


def _by_run(rows: Iterable[tuple[int, dict]]) -> dict[RunKey, list[dict]]:
    found: dict[RunKey, list[dict]] = {}
    for _, row in rows:
        found.setdefault(RunKey(*(row[name] for name in KEY)), []).append(row)
    return found


def _read(path: Path, columns: dict[str, Callable]) -> Iterable[tuple[int, dict]]:
    """The rows of a table with the numbers of their lines."""
    if not path.exists():
        return
    try:
        content = path.read_bytes()
        text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    except (OSError, EOFError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}); restore it with git checkout") from error
    lines = csv.reader(io.StringIO(text))
    header = next(lines, [])
    if header != list(columns):
        odd = sorted(set(header) ^ set(columns)) or header
        raise InputError(f"{path}: the columns are not those of this version ({', '.join(odd)}); restore it")
    for line, cells in enumerate(lines, start=2):
        if len(cells) != len(columns):
            raise InputError(f"{path} line {line}: {len(cells)} cells of {len(columns)}; restore it with git checkout")
        row = {}
        for (name, kind), cell in zip(columns.items(), cells, strict=True):
            try:
                row[name] = _parsed(cell, kind)
            except ValueError:
                raise InputError(
                    f"{path} line {line}: {name}={cell!r} is no {kind.__name__}; restore it with git checkout"
                ) from None
            if cell == "" and kind is not str and name not in (*OPTIONAL, *CURVE_VALUES):
                raise InputError(f"{path} line {line}: {name} is empty; restore it with git checkout")
        yield line, row


def _parsed(cell: str, kind: Callable) -> Any:
    return cell if kind is str else None if cell == "" else kind(cell)
