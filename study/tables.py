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

KEY = dict(zip(RunKey._fields, (str, str, int, int, int), strict=True))
# May be missing where a run stopped at numbers that are not finite, or was not asked to measure it.
OPTIONAL = {"drift", "drift_tokens", "proxy"}
# `gold` is pass@1 by the verifier, `proxy` the mean reward of the same samples: what training paid for.
RUN_COLUMNS = {**KEY, "block": str, "variant": str, "base_hash": str}
RUN_COLUMNS |= dict.fromkeys("base_pass@1 pass@1 pass@8 greedy gold proxy drift drift_tokens".split(), float)
RUN_COLUMNS |= dict.fromkeys("collapsed steps_done resets ref_forward_calls tokens_generated".split(), int)
RUN_COLUMNS |= {"recipe": str, "split": str, "prompts": int, "samples": int, "seconds": float, "commit": str}
BASE_COLUMNS = {"family": str, "base_seed": int, "base_hash": str, "prompts_hash": str, "split": str, "prompts": int}
BASE_COLUMNS |= {"samples": int, "base_pass@1": float, "base_pass@8": float, "base_greedy": float, "commit": str}
# Per step; empty where it was not measured (`drift`: at checkpoints and the end). `event` holds the reasons of a reset
# that came before the step's batch.
CURVE_VALUES = (
    "reward gold frac_reward_zero_std kl_ref kl_old kl_base entropy mean_abs_dlogp update_norm grad_norm "
    "clip_region_mean completion_length beta eval_reward eval_pass@1 drift".split()
)
CURVE_COLUMNS = {**KEY, "step": int, **dict.fromkeys(CURVE_VALUES, float), "event": str}
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
# guard of that name first fired in the run; `best_of_8` is the base's alone.
STOP_VALUES = "gold greedy reward kl_to_base validation_gold guard_gap best_of_8".split()
STOP_COLUMNS = {**KEY, "step": int, **dict.fromkeys(STOP_VALUES, float)}
OPTIONAL |= {*CURVE_VALUES, *POINT_VALUES, "event", "block", "validation_gold", "guard_gap", "best_of_8"}

RUNS, BASES, CURVES, PROMPTS, POINTS = "runs.csv", "bases.csv", "curves.csv.gz", "prompts.csv.gz", "points.csv.gz"
STOPS = "stops.csv"
COLUMNS = {CURVES: CURVE_COLUMNS, PROMPTS: PROMPT_COLUMNS, POINTS: POINT_COLUMNS, STOPS: STOP_COLUMNS}
COLUMNS |= {BASES: BASE_COLUMNS, RUNS: RUN_COLUMNS}  # last: a run is finished once it is there


def frame(rows: pd.DataFrame | Iterable[dict] = (), file: str = RUNS, key: RunKey | None = None) -> pd.DataFrame:
    """
    Rows of a table, by run; they need not say which run where `key` does. A base's row goes by
    [`~study.matrix.RunKey.base`].
    """
    made = pd.DataFrame(rows if isinstance(rows, pd.DataFrame) else list(rows)).assign(**key._asdict() if key else {})
    made = made.reindex(columns=list(COLUMNS[file])).astype(COLUMNS[file])
    return (made.assign(arm=BASE_ARM, seed=0, steps=0) if file == BASES else made).set_index(list(KEY))


@dataclass
class Tables:
    """
    All rows, as frames whose index is a run's key: a row of `runs` and `bases` each, of `curves` for each step, of
    `prompts` for each prompt, of the bases, too, of `points` for each task at each checkpoint, and of `stops` for each
    checkpoint, and for the base.
    """

    runs: pd.DataFrame = field(default_factory=frame)
    bases: pd.DataFrame = field(default_factory=partial(frame, file=BASES))
    curves: pd.DataFrame = field(default_factory=partial(frame, file=CURVES))
    prompts: pd.DataFrame = field(default_factory=partial(frame, file=PROMPTS))
    points: pd.DataFrame = field(default_factory=partial(frame, file=POINTS))
    stops: pd.DataFrame = field(default_factory=partial(frame, file=STOPS))

    def add(self, key: RunKey, rows: dict[str, list[dict]]) -> bool:
        """
        Add a run and, if it is the first on its base, the base, from the rows that `python -m study.evaluate` writes:
        `run`, `curve`, `prompts`, and, where there are any, `base`, `base_prompts`, `points`, `stops` and
        `base_stops`. Returns whether it was added: one that stopped at numbers that are not finite has not measured
        its base, and waits for one that has.
        """
        base, run = key.base, rows["run"]
        measured = rows.get("base", {}).get("prompts_hash")
        check_base(self.bases, base, run["base_hash"], measured)
        if base not in self.bases.index:
            if measured is None:
                return False
            self._put(BASES, base, [rows["base"]])
            self._put(PROMPTS, base, rows["base_prompts"])
        self._put(RUNS, key, [run | {"base_pass@1": self.bases.loc[base, "base_pass@1"]}])
        if "base_stops" in rows and base not in self.stops.index:
            self._put(STOPS, base, rows["base_stops"])
        for file, name in ((CURVES, "curve"), (PROMPTS, "prompts"), (POINTS, "points"), (STOPS, "stops")):
            self._put(file, key, rows.get(name, []))
        return True

    def _put(self, file: str, key: RunKey, rows: list[dict]) -> None:
        name, more = file.partition(".")[0], frame(rows, file, key)
        before = getattr(self, name)[lambda rows: ~rows.index.isin([key])]
        parts = [one for one in (before, more) if len(one)] or [more]  # the types of an empty one would win
        setattr(self, name, pd.concat(parts).sort_index(kind="stable"))

    def without(self, keys: Iterable[RunKey]) -> "Tables":
        """The tables without some runs, and without the bases that then have no run."""
        runs = {RunKey(*key) for key in self.runs.index} - set(keys)
        kept = list(runs | {key.base for key in runs})
        return Tables(*(one[one.index.isin(kept)] for one in vars(self).values()))


def check_base(bases: pd.DataFrame, base: RunKey, base_hash: str, prompts_hash: str | None = None) -> None:
    """Refuse, as an `InputError`, a base other than the table's of that name, if it has one."""
    if base not in bases.index:
        return
    there, name = bases.loc[base], f"{base.family}, base seed {base.base_seed}"
    anew = f"`python -m study drop --families {base.family}` to begin anew"
    if there["base_hash"] != base_hash:
        raise InputError(
            f"{name}: the weights here have SHA-256 {base_hash[:12]}…, in {FOLDER / BASES} {there['base_hash'][:12]}…"
            ", and runs on different bases do not compare. Restore the base (git checkout its folder below "
            f"study/bases), or {anew}"
        )
    if prompts_hash not in (None, there["prompts_hash"]):
        raise InputError(
            f"{name}: the held-out prompts are others than in {FOLDER / BASES} (evaluation in matrix.yaml, or the "
            f"task, has changed). Restore them, or {anew}"
        )


def read_tables(root: Path) -> Tables:
    """Read the tables of a checkout, see [`read_folder`]."""
    return read_folder(root / FOLDER)


def read_folder(folder: Path) -> Tables:
    """
    The tables of a folder; those that are missing are empty. Raises `InputError`: a file cannot be read, is not of
    its shape, or has not the rows of its runs.
    """
    tables = Tables(*(_read(folder / file) for file in (RUNS, BASES, CURVES, PROMPTS, POINTS, STOPS)))
    for file, one in ((RUNS, tables.runs), (BASES, tables.bases)):
        for key in one.index[one.index.duplicated()]:
            raise InputError(f"{folder / file}: {RunKey(*key)} is there twice; remove one")
    bases = tables.bases["base_hash"].reindex([RunKey(*key).base for key in tables.runs.index])
    for key in tables.runs.index[bases.to_numpy() != tables.runs["base_hash"].to_numpy()]:
        raise InputError(f"{folder / RUNS}: {RunKey(*key)} has no base of its hash in {BASES}; {CURE}")
    prompts = pd.concat([tables.runs["prompts"], tables.bases["prompts"]])
    for file, one, rows in ((CURVES, tables.curves, tables.runs["steps_done"]), (PROMPTS, tables.prompts, prompts)):
        count = pd.DataFrame({"there": one.groupby(level=list(KEY)).size(), "rows": rows}).fillna(0).astype(int)
        for key, (there, wanted) in count[count["there"] != count["rows"]].iterrows():
            raise InputError(f"{folder / file}: {RunKey(*key)} has {there} of {wanted} rows; {CURE}")
    return tables


def _read(path: Path) -> pd.DataFrame:
    if not path.exists():
        return frame(file=path.name)
    columns = COLUMNS[path.name]
    try:
        content = path.read_bytes()
        text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
        header = text.partition("\n")[0].split(",")
        if header != list(columns):
            raise ValueError(f"its columns are not those of this version: {', '.join(set(header) ^ set(columns))}")
        cells = {"dtype": columns, "float_precision": "round_trip", "keep_default_na": False, "na_values": [""]}
        made = pd.read_csv(io.StringIO(text), index_col=False, **cells)
    except (OSError, EOFError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}); {CURE}") from error
    for name in made.columns[made.isna().any()]:
        if name not in OPTIONAL:
            raise InputError(f"{path}: {name} is empty in line {made[name].isna().argmax() + 2}; {CURE}")
    words = [name for name, kind in columns.items() if kind is str]
    return frame(made.fillna(dict.fromkeys(words, "")), path.name)


def write_tables(root: Path, tables: Tables) -> None:
    """Write the tables of a checkout that have rows, `runs.csv` last: a run is finished once it is there."""
    folder = root / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for file, columns in COLUMNS.items():
        one = getattr(tables, file.partition(".")[0]).sort_index(kind="stable")
        if file in (POINTS, STOPS) and one.empty and not (folder / file).exists():
            continue
        text = one.reset_index()[list(columns)].to_csv(index=False, float_format=NUMBER, lineterminator="\n")
        if file.endswith(".gz"):
            header, *lines = text.splitlines(keepends=True)
            ends = one.groupby(level=list(KEY)).size().cumsum().tolist()
            parts = [header, *("".join(lines[start:end]) for start, end in zip([0, *ends], ends, strict=False))]
            content = b"".join(gzip.compress(part.encode(), compresslevel=9, mtime=0) for part in parts)
        else:
            content = text.encode()
        if not (folder / file).is_file() or (folder / file).read_bytes() != content:
            with replaced(folder / file) as aside:
                aside.write_bytes(content)
