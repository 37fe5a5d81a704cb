"""
The study's tables: read with checks, merged, and written as bytes that depend on the rows alone.

Every run is a gzip member of its own in the packed tables, in the order of the runs. So a run that is added leaves the
bytes of all others as they were, and git stores little more than the new ones; any reader of gzip sees one file.
"""

import gzip
import io
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pandas as pd

from study.matrix import BASE_ARM, RunKey
from trl_prorl.errors import InputError
from trl_prorl.files import replaced


FOLDER = Path("study", "tables")  # below the checkout
NUMBER = "%.6g"  # of what is not whole
CURE = "restore it with git checkout"

RUNS = "runs.csv"
BASES = "bases.csv"
CURVES = "curves.csv.gz"
CURVES4 = "curves4.csv.gz"
PROMPTS = "prompts.csv.gz"
POINTS = "points.csv.gz"
STOPS = "stops.csv"
PASSK = "passk.csv.gz"
TEXTS = "texts.csv.gz"

KEY = {"family": str, "arm": str, "base_seed": int, "seed": int, "steps": int}
# `gold` is pass@1 by the verifier, `proxy` the mean reward of the same samples: what training paid for.
RUN_COLUMNS = {
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
BASE_COLUMNS = {
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
CURVE_COLUMNS = {**KEY, "step": int, **dict.fromkeys(CURVE_VALUES, float), "event": str}
# Of the runs that were made with `--tables`: they are small, and stand without the curves of all runs before them.
CURVE4_VALUES = "reward gold kl_ref entropy completion_length beta drift".split()
CURVE4_COLUMNS = {**KEY, "step": int, **dict.fromkeys(CURVE4_VALUES, float), "event": str}
# Per held-out prompt, by its place in the split. The base has rows of its own: arm `base`, seed 0, 0 steps.
PROMPT_COLUMNS = {**KEY, "prompt": int, "n": int, "correct": int, "greedy": int}
# Of the blocks with `others`: every task at every checkpoint, at the base (step 0) and at the end.
POINT_VALUES = (
    "gold reward kl_to_base base_logp mean_tokens distinct_1 distinct_2 distinct_3 compression_ratio "
    "text_perplexity".split()
)
POINT_COLUMNS = {**KEY, "step": int, "task": str, **dict.fromkeys(POINT_VALUES, float)}
# Of the blocks with `checkpoints`: what a stop at a checkpoint gives; the base has a row of step 0 in its arm `base`.
# `gold` and `greedy` are of the run's split, `validation_gold` is of validation; `guard_gap` is the step at which the
# guard of that name first fired in the run; `best_of_8` is of the base and of the end.
STOP_VALUES = "gold greedy reward kl_to_base validation_gold guard_gap best_of_8".split()
STOP_COLUMNS = {**KEY, "step": int, **dict.fromkeys(STOP_VALUES, float)}
# Of the arms of which a block asks for `passk`, and of their bases: right ones of n samples, per held-out prompt.
PASSK_COLUMNS = {**KEY, "prompt": int, "n": int, "correct": int}
# Of the blocks with `texts`: held-out texts of each arm's end, and of the checkpoints of some arms; the base has rows
# of step 0. `asked` and `text` are JSON strings, so that each row is a line.
TEXT_VALUES = {"step": int, "split": str, "greedy": int, "prompt": int, "asked": str, "text": str, "right": int}
TEXT_COLUMNS = {**KEY, **TEXT_VALUES}
# May be missing where a run stopped at numbers that are not finite, or was not asked to measure it.
OPTIONAL = {
    *("drift", "drift_tokens", "proxy", "event", "block", "validation_gold", "guard_gap", "best_of_8"),
    *CURVE_VALUES,
    *POINT_VALUES,
}
# In the order of writing: `runs.csv` is last, because a run is finished once it is there.
COLUMNS = {
    CURVES: CURVE_COLUMNS,
    CURVES4: CURVE4_COLUMNS,
    PROMPTS: PROMPT_COLUMNS,
    POINTS: POINT_COLUMNS,
    STOPS: STOP_COLUMNS,
    PASSK: PASSK_COLUMNS,
    TEXTS: TEXT_COLUMNS,
    BASES: BASE_COLUMNS,
    RUNS: RUN_COLUMNS,
}


def make_frame(rows: pd.DataFrame | Iterable[dict] = (), file: str = RUNS, key: RunKey | None = None) -> pd.DataFrame:
    """
    Make a table, indexed by run, of rows; they need not say which run where `key` does. A base's row is indexed by
    [`~study.matrix.RunKey.base`].
    """
    table = rows if isinstance(rows, pd.DataFrame) else pd.DataFrame(list(rows))
    if key is not None:
        table = table.assign(**key._asdict())
    table = table.reindex(columns=list(COLUMNS[file])).astype(COLUMNS[file])
    if file == BASES:
        table = table.assign(arm=BASE_ARM, seed=0, steps=0)
    return table.set_index(list(KEY))


@dataclass
class Tables:
    """
    All rows, as frames whose index is a run's key.

    Attributes:
        runs, bases (`pd.DataFrame`): A row for each.
        curves, curves4 (`pd.DataFrame`): A row for each step of a run, in one of them.
        prompts (`pd.DataFrame`): A row for each held-out prompt, of the bases, too.
        points (`pd.DataFrame`): A row for each task at each checkpoint.
        stops (`pd.DataFrame`): A row for each checkpoint, and for the base.
        passk (`pd.DataFrame`): A row for each held-out prompt of which many samples were drawn, of the bases, too.
        texts (`pd.DataFrame`): A row for each held-out text that is kept, of the bases, too.
    """

    runs: pd.DataFrame = field(default_factory=make_frame)
    bases: pd.DataFrame = field(default_factory=partial(make_frame, file=BASES))
    curves: pd.DataFrame = field(default_factory=partial(make_frame, file=CURVES))
    prompts: pd.DataFrame = field(default_factory=partial(make_frame, file=PROMPTS))
    points: pd.DataFrame = field(default_factory=partial(make_frame, file=POINTS))
    stops: pd.DataFrame = field(default_factory=partial(make_frame, file=STOPS))
    passk: pd.DataFrame = field(default_factory=partial(make_frame, file=PASSK))
    texts: pd.DataFrame = field(default_factory=partial(make_frame, file=TEXTS))
    curves4: pd.DataFrame = field(default_factory=partial(make_frame, file=CURVES4))

    def add(self, key: RunKey, rows: dict[str, list[dict]], curves: str = CURVES) -> bool:
        """
        Add a run and, if it is the first on its base, the base.

        Args:
            key (`RunKey`): The run.
            rows (`dict`): What `python -m study.evaluate` writes: `run`, `curve`, `prompts`, and, where there are any,
                `base`, `base_prompts`, `points`, `stops`, `base_stops`, `passk`, `base_passk`, `texts` and
                `base_texts`.
            curves (`str`, *optional*): The file for its curve: `CURVES` or `CURVES4`.

        Returns:
            `bool`: Whether it was added. A run that stopped at numbers that are not finite has not measured its base,
            and waits for one that has.
        """
        base = key.base
        run = rows["run"]
        measured = rows.get("base", {}).get("prompts_hash")
        check_base(self.bases, base, run["base_hash"], measured)
        if base not in self.bases.index:
            if measured is None:
                return False
            self._put(BASES, base, [rows["base"]])
            self._put(PROMPTS, base, rows["base_prompts"])
        self._put(RUNS, key, [{**run, "base_pass@1": self.bases.loc[base, "base_pass@1"]}])
        if "base_stops" in rows and base not in self.stops.index:
            self._put(STOPS, base, rows["base_stops"])
        if "base_passk" in rows and base not in self.passk.index:
            self._put(PASSK, base, rows["base_passk"])
        if "base_texts" in rows and base not in self.texts.index:
            self._put(TEXTS, base, rows["base_texts"])
        self._put(curves, key, rows["curve"])
        self._put(PROMPTS, key, rows["prompts"])
        self._put(POINTS, key, rows.get("points", []))
        self._put(STOPS, key, rows.get("stops", []))
        self._put(PASSK, key, rows.get("passk", []))
        self._put(TEXTS, key, rows.get("texts", []))
        return True

    def earlier(self) -> "Tables":
        """Return the tables without the runs that were made with `--tables`, as the pages of earlier protocols are."""
        if self.curves4.empty:
            return self
        return self.without(RunKey(*key) for key in self.curves4.index.unique())

    def _put(self, file: str, key: RunKey, rows: list[dict]) -> None:
        """Put rows in the place of those that a run has in a table."""
        name = table_name(file)
        table = getattr(self, name)
        others = table[~table.index.isin([key])]
        setattr(self, name, join_rows(others, make_frame(rows, file, key)))

    def without(self, keys: Iterable[RunKey]) -> "Tables":
        """Return the tables without some runs, and without the bases that then have no run."""
        runs = {RunKey(*key) for key in self.runs.index} - set(keys)
        kept = list(runs | {key.base for key in runs})
        return Tables(**{name: table[table.index.isin(kept)] for name, table in vars(self).items()})


def table_name(file: str) -> str:
    """Return the attribute of [`Tables`] that a file holds: `curves` of `curves.csv.gz`."""
    return file.partition(".")[0]


def join_rows(table: pd.DataFrame, more: pd.DataFrame) -> pd.DataFrame:
    """Join two tables of the same columns, sorted by run."""
    if more.empty and not table.empty:  # the types of an empty one would win
        joined = table
    elif table.empty:
        joined = more
    else:
        joined = pd.concat([table, more])
    return joined.sort_index(kind="stable")


def check_base(bases: pd.DataFrame, base: RunKey, base_hash: str, prompts_hash: str | None = None) -> None:
    """Refuse, as an `InputError`, a base other than the table's of that name, if it has one."""
    if base not in bases.index:
        return
    there = bases.loc[base]
    name = f"{base.family}, base seed {base.base_seed}"
    drop = f"`python -m study drop --families {base.family}` to begin anew"
    if there["base_hash"] != base_hash:
        raise InputError(
            f"{name}: the weights here have SHA-256 {base_hash[:12]}…, in {FOLDER / BASES} {there['base_hash'][:12]}…"
            ", and runs on different bases do not compare. Restore the base (git checkout its folder below "
            f"study/bases), or {drop}"
        )
    if prompts_hash is not None and prompts_hash != there["prompts_hash"]:
        raise InputError(
            f"{name}: the held-out prompts are others than in {FOLDER / BASES} (evaluation in matrix.yaml, or the "
            f"task, has changed). Restore them, or {drop}"
        )


def read_tables(root: Path) -> Tables:
    """Read the tables of a checkout, see [`read_folder`]."""
    return read_folder(root / FOLDER)


def read_folder(folder: Path, curves: pd.DataFrame | None = None) -> Tables:
    """
    Read the tables of a folder; those that are missing are empty.

    Args:
        folder (`Path`): The folder.
        curves (`pd.DataFrame`, *optional*): The curves of earlier runs, where they come from elsewhere.

    Raises:
        InputError: A file cannot be read, is not of its shape, or has not the rows of its runs.
    """
    files = [file for file in COLUMNS if curves is None or file != CURVES]
    tables = Tables(**{table_name(file): read_table(folder / file) for file in files})
    _check_unique(folder / RUNS, tables.runs)
    _check_unique(folder / BASES, tables.bases)
    _check_bases_of_runs(folder / RUNS, tables)
    steps = tables.runs["steps_done"]
    is_thin = tables.runs.index.isin(tables.curves4.index.unique())
    _check_row_counts(folder / CURVES4, tables.curves4, steps[is_thin])
    if curves is None:
        _check_row_counts(folder / CURVES, tables.curves, steps[~is_thin])
    else:
        tables.curves = curves
    prompts = pd.concat([tables.runs["prompts"], tables.bases["prompts"]])
    _check_row_counts(folder / PROMPTS, tables.prompts, prompts)
    return tables


def _check_unique(path: Path, table: pd.DataFrame) -> None:
    for key in table.index[table.index.duplicated()]:
        raise InputError(f"{path}: {RunKey(*key)} is there twice; remove one")


def _check_bases_of_runs(path: Path, tables: Tables) -> None:
    hashes = tables.bases["base_hash"]
    for key, base_hash in tables.runs["base_hash"].items():
        if hashes.get(RunKey(*key).base) != base_hash:
            raise InputError(f"{path}: {RunKey(*key)} has no base of its hash in {BASES}; {CURE}")


def _check_row_counts(path: Path, table: pd.DataFrame, wanted: pd.Series) -> None:
    """Refuse a table that has not, of every run, as many rows as its run says."""
    counts = pd.DataFrame({"there": table.groupby(level=list(KEY)).size(), "wanted": wanted}).fillna(0).astype(int)
    for key, there, needed in counts[counts["there"] != counts["wanted"]].itertuples():
        raise InputError(f"{path}: {RunKey(*key)} has {there} of {needed} rows; {CURE}")


def read_table(path: Path) -> pd.DataFrame:
    """Read one of the tables; empty if it is missing. Raises `InputError`: it cannot be read, or not its columns."""
    if not path.exists():
        return make_frame(file=path.name)
    columns = COLUMNS[path.name]
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
        text = content.decode()
        header = text.partition("\n")[0].split(",")
        if header != list(columns):
            raise ValueError(f"its columns are not those of this version: {', '.join(set(header) ^ set(columns))}")
        table = pd.read_csv(
            io.StringIO(text),
            index_col=False,
            dtype=columns,
            float_precision="round_trip",
            keep_default_na=False,
            na_values=[""],
        )
    except (OSError, EOFError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}); {CURE}") from error
    for name in table.columns[table.isna().any()]:
        if name not in OPTIONAL:
            raise InputError(f"{path}: {name} is empty in line {table[name].isna().argmax() + 2}; {CURE}")
    words = [name for name, kind in columns.items() if kind is str]
    return make_frame(table.fillna(dict.fromkeys(words, "")), path.name)


def write_tables(root: Path, tables: Tables) -> None:
    """Write the tables of a checkout, see [`write_folder`]."""
    write_folder(root / FOLDER, tables)


def write_folder(folder: Path, tables: Tables, with_curves: bool = True) -> None:
    """
    Write the tables that have rows into a folder, `runs.csv` last: a run is finished once it is there. `CURVES` is
    left alone unless `with_curves`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for file in COLUMNS:
        if file == CURVES and not with_curves:
            continue
        path = folder / file
        table = getattr(tables, table_name(file)).sort_index(kind="stable")
        if file in (CURVES4, POINTS, STOPS, PASSK, TEXTS) and table.empty and not path.exists():
            continue
        content = _table_bytes(table, file)
        if not path.is_file() or path.read_bytes() != content:
            with replaced(path) as aside:
                aside.write_bytes(content)


def _table_bytes(table: pd.DataFrame, file: str) -> bytes:
    columns = list(COLUMNS[file])
    text = table.reset_index()[columns].to_csv(index=False, float_format=NUMBER, lineterminator="\n")
    if not file.endswith(".gz"):
        return text.encode()
    header, *lines = text.splitlines(keepends=True)
    members = [header]
    start = 0
    for rows in table.groupby(level=list(KEY)).size():
        members.append("".join(lines[start : start + rows]))
        start += rows
    return b"".join(gzip.compress(member.encode(), compresslevel=9, mtime=0) for member in members)
