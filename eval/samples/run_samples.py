"""Held-out prompts of a run's task, and samples of the run's models: kept on disk, drawn only if missing."""

import functools
import json
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from transformers import set_seed

from trl_prorl import tasks
from trl_prorl.cli.environment import installed
from trl_prorl.cli.training_prompts import TrainingPrompts, text_of
from trl_prorl.errors import InputError, RunError
from trl_prorl.eval.run_folder.reading import load_config, read_env, read_evaluation
from trl_prorl.eval.samples.local_paths import with_local_paths
from trl_prorl.eval.samples.models import (
    Point,
    base_point,
    check_computes,
    check_trained_model,
    checkpoint_points,
    evaluation_dtype,
    identity,
    init_of_base,
    kind_of_model,
    load_point,
    load_processor,
    load_tokenizer,
    trained_point,
)
from trl_prorl.eval.samples.own_rows import OwnRows
from trl_prorl.eval.samples.sampling import (
    SamplingSettings,
    judge_completions,
    prepare_for_sampling,
    progress,
    sample,
)
from trl_prorl.eval.samples.store import (
    COLUMNS,
    ENDS,
    MODEL_CONFIG,
    SAMPLES_FOLDER,
    TOKENIZATION,
    SampleStore,
    content_ids,
    distinct,
    in_line,
)
from trl_prorl.eval.samples.task_name import TaskName
from trl_prorl.run.files import check_contents, json_sha256
from trl_prorl.run.log_files import PASSK_FILE, read_json, weight_hashes
from trl_prorl.run.provenance import describe_evaluation, plugin_options
from trl_prorl.tasks import plugin
from trl_prorl.tasks.base import check_dataset
from trl_prorl.text import visible
from trl_prorl.upstream.weights import settings_of


PROMPTS = 128  # default number of prompts of a task


def split_of(in_training: int | None, prompts: int) -> str:
    """Name the split of a user's rows, from the number that occur in the training set (`None`: not known)."""
    return "train" if in_training == prompts else "test"


class HeldOut:
    """
    A run's models on P held-out prompts of its task, or of another task (`name`). They are sampled with the settings
    of the run; a given temperature and length override these. A call of `generate` has `batch_size` sequences. By
    default, there are [`PROMPTS`] prompts of a task, or all of a user's own rows.

    Raises:
        InputError: If the run cannot be evaluated with these settings.
    """

    in_training: int | None = None  # how many prompts occur in the training set; `None`: not known
    processor = None  # makes tokens of prompts in the tokenizer's place
    asked: int | None = None  # rows of a task that were asked for, if some of them equal an earlier one

    def __init__(
        self,
        run_dir: Path,
        split: str,
        prompts: int | None,
        *,
        seed: int = 0,
        batch_size: int = 512,
        name: TaskName | None = None,
        temperature: float | None = None,
        max_new_tokens: int | None = None,
    ):
        self.run_dir = run_dir
        self.config = check_run(run_dir)
        self.seed = seed
        self.batch_size = batch_size
        self._load_rows(name or TaskName.of_run(self.config), split, prompts)
        if self.name.is_own:
            self.in_training = count_of_script(run_dir, self.prompt_ids)
            self.split = split_of(self.in_training, len(self.rows))
        elif name is None:
            self.in_training = self._count_of_task()
        self.sampling = SamplingSettings.of_run(self.config, temperature, max_new_tokens)
        self.trained = trained_point(run_dir, self.config)
        self.tokenizer = load_tokenizer(self.trained.folder)
        self.processor = load_processor(self.trained.folder, self.tokenizer)
        self.base = base_point(run_dir)

    def _load_rows(self, name: TaskName, split: str, prompts: int | None) -> None:
        self.name = name
        self.task = name.make()
        self.split = split
        self.rows = held_out_rows(name, self.task, split, prompts)
        asked = prompts or PROMPTS
        if not name.is_own and asked != len(self.rows):
            self.asked = asked
        self.prompt_ids = content_ids(self.rows)
        self.grader = grader_version() if judges(self.task) else None

    def _count_of_task(self) -> int | None:
        """
        Return how many prompts occur in the training set: of the split `train` its first rows, as many as the run
        had. The other splits of our tasks share none with it; those of a user may.
        """
        if self.split == "train":
            return min(len(self.rows), self.config.get("train_rows") or len(self.rows))
        members = getattr(self.task, "members", {"": self.task}).values()  # of a mixture
        if all(type(task).__module__.partition(".")[0] == "trl_prorl" for task in members):
            return None
        try:
            rows = self.task.rows("train", self.config.get("train_rows"), seed=self.name.seed)
        except (ValueError, TypeError, KeyError, OSError, NotImplementedError):  # whatever a user's task raises
            return None
        return TrainingPrompts(rows).count(row["prompt"] for row in self.rows)

    def store(self, point: Point, sampling: SamplingSettings) -> SampleStore:
        """Return the store of a model's samples."""
        templates = [each.chat_template for each in (self.tokenizer, self.processor) if each is not None]
        settings = {
            "model": self._identity(point),
            "dtype": self._dtype(point),
            "tokenizer": json_sha256([self.tokenizer.get_vocab(), *templates]),
            **asdict(sampling),
            "task": [self.name.task, self.name.level, self.name.options],
            "seed": self.seed,
            ENDS: [self.tokenizer.eos_token_id, self._declared_end(point)],
            MODEL_CONFIG: json_sha256(self._model_config(point)),
            TOKENIZATION: self._tokenization,
        }
        return SampleStore(self.run_dir / SAMPLES_FOLDER, point.label, settings)

    @cached_property
    def _tokenization(self) -> str | None:
        """A hash of how texts become tokens: normalizer, pre-tokenizer, merges and so on; `None`: not known."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is None:
            return None
        # A call may set these two.
        return json_sha256(json.loads(backend.to_str()) | {"padding": None, "truncation": None})

    @cached_property
    def places(self) -> dict[str, int]:
        """The place of each prompt in `rows`, by its id."""
        return {name: place for place, name in enumerate(self.prompt_ids)}

    def samples(self, point: Point, n: int, *, temperature: float | None = None) -> pd.DataFrame:
        """
        Return `n` samples of every prompt by one model, P·n rows with the columns of
        [`~trl_prorl.eval.samples.store.COLUMNS`], prompt by prompt in the order of `rows`. Missing samples are drawn
        (at the given temperature, if any) and kept. Samples of the base may come from another run in the same folder,
        see [`HeldOut._adopt`].
        """
        sampling = self.sampling
        if temperature is not None:
            sampling = replace(sampling, temperature=temperature)
        store = self.store(point, sampling)
        with store.exclusive():
            store.drop_outdated()
            frame = store.frame()  # a second for 80,000 samples
            if point is self.base and self._adopt(store, frame):
                frame = store.frame()
            # Samples after the gap of a damaged file do not count, and are drawn again.
            sizes = in_line(frame).groupby("prompt_id").size()
            have = [int(sizes.get(name, 0)) for name in self.prompt_ids]
            batches = plan({place: n - count for place, count in enumerate(have) if count < n}, self.batch_size)
            if batches:
                self._draw(point, batches, have, sampling, store)
            if store.merge() or batches:
                frame = store.frame()
            frame = self._regraded(store, frame)
        frame = frame[frame["sample"] < n].set_index("prompt_id", drop=False)
        frame = frame.loc[self.prompt_ids].reset_index(drop=True)
        return frame if self.grader is None else frame.astype({"correct": bool})

    def _adopt(self, store: SampleStore, here: pd.DataFrame) -> bool:
        """
        Copy samples of the base, which variants share, from other runs in the same folder, for prompts without samples
        `here`; return whether there are any. Anyone may have written them, so a line names their folder, and
        the verdicts are computed again.
        """
        missing = set(self.prompt_ids) - set(here["prompt_id"])
        wanted = set(missing)
        for theirs in store.stores_beside(self.run_dir):
            if not wanted:
                break
            frame = self._graded(self._samples_beside(theirs, wanted))
            if not frame.empty:
                store.add(frame)
                wanted -= set(frame["prompt_id"])
                ours = visible(str(store.folder))
                graded = ", with new verdicts" if self.grader else ""
                print(f"{ours}: reused {len(frame)} samples of {visible(str(theirs.folder))}{graded}.")
        return wanted != missing

    def _samples_beside(self, theirs: SampleStore, wanted: set[str]) -> pd.DataFrame:
        """Return the valid samples of another run on these prompts; none if a file cannot be read."""
        run_dir = theirs.folder.parent.parent
        try:
            check_contents(run_dir)
            frame = in_line(theirs.frame())
        except InputError as error:
            print(visible(f"{run_dir}: its samples of the base are not used: {error}."))
            return pd.DataFrame(columns=COLUMNS)
        prompts = {name: shown_prompt(self.rows[self.places[name]]) for name in wanted}
        is_usable = []
        for name, prompt, text, ids in frame[["prompt_id", "prompt", "completion", "ids"]].itertuples(index=False):
            has_tokens = isinstance(ids, np.ndarray) and ids.dtype.kind == "i"
            is_usable.append(prompts.get(name) == prompt and isinstance(text, str) and has_tokens)
        return frame[np.array(is_usable, dtype=bool)]

    def _graded(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return samples of these prompts with new verdicts and answers."""
        rows = [self.rows[self.places[name]] for name in frame["prompt_id"]]
        graded = list(judge_completions(self.task, list(frame["completion"]), rows))
        return frame.assign(
            task=[row.get("task") for row in rows],
            level=[row.get("level") for row in rows],
            correct=[correct for correct, _ in graded],
            answer=[answer for _, answer in graded],
            grader=self.grader,
        )

    def _regraded(self, store: SampleStore, frame: pd.DataFrame) -> pd.DataFrame:
        """
        Return all samples of a store (`frame`). Samples of these prompts without a verdict of the current graders are
        graded again.
        """
        stale = frame["prompt_id"].isin(self.places) & (frame["grader"] != self.grader)
        if self.grader is None or not stale.any():
            return frame
        old = frame[stale]
        new = self._graded(old)
        store.replace(pd.concat([frame[~stale], new]))
        changed = (old["correct"].notna() & (old["correct"] != new["correct"])).sum()
        if changed:
            folder = visible(str(store.folder))
            what = "verifier has" if self.name.is_own else "graders have"
            print(f"{folder}: the {what} changed, and so have {changed} of {len(old)} verdicts.")
        return store.frame()

    def settings(self, **samples: int) -> dict:
        """Return the settings of an evaluation, with its number of samples per prompt under the name that it has."""
        return {
            "split": self.split,
            "prompts": len(self.rows),
            **({"prompts_asked": self.asked} if self.asked else {}),
            **samples,
            **self.sampling.to_json(),
            "seed": self.seed,
            "task": self.name.task,
            "level": self.name.level,
            "prompt_ids": self.prompt_ids,
        }

    def versions(self) -> dict:
        """Return what an evaluation notes about trained model and verifier: hashes of both, and the precision."""
        versions = {"weights": weight_hashes(self.trained.folder), "dtype": self._dtype(self.trained)}
        if self.grader is not None:
            versions["grader"] = self.grader
        return versions

    def check_unchanged(self, versions: dict) -> None:
        """Raise `RunError` if a run has saved other weights since the [`versions`] were read: some were sampled."""
        if self.versions() != versions:
            raise RunError(
                f"'{self.trained.folder}': the run saved other weights while they were evaluated, so the result would "
                "mix both. Run the same command again."
            )

    def _identity(self, point: Point) -> dict:
        return identity(point.folder, self.config)

    def _declared_end(self, point: Point) -> int | list[int] | None:
        """Return the end tokens in a model's files; its commit identifies those of a model on the Hub."""
        file = self._source(point) / "generation_config.json"
        return read_json(file).get("eos_token_id") if file.is_file() else None

    def _model_config(self, point: Point) -> dict:
        """Return what a model's configuration computes with; its commit identifies that of a model on the Hub."""
        source = self._source(point)
        if source != point.folder:
            source = source / (init_of_base(self.config).get("subfolder") or "")
        file = source / "config.json"
        return settings_of(read_json(file)) if file.is_file() else {}

    def _source(self, point: Point) -> Path:
        """Return the folder of a full model's files; of an adapter, its base's. A name on the Hub is no folder."""
        has_own = point.folder is not None and kind_of_model(point.folder) == "full"
        return Path(point.folder if has_own else self.config["model_name_or_path"])

    def _dtype(self, point: Point) -> str:
        """Return the name of the precision in which a model is sampled."""
        return str(evaluation_dtype(self.config)).removeprefix("torch.")

    def _loaded(self, point: Point):
        model = load_point(point, self.config)
        check_computes(model, point.folder or self.config["model_name_or_path"])
        return model

    @contextmanager
    def _model(self, point: Point) -> Iterator[tuple]:
        """Yield a model as it is sampled, and the settings of compact generation, if it is compact."""
        yield prepare_for_sampling(self._loaded(point))

    @contextmanager
    def scored(self, point: Point) -> Iterator[Callable]:
        """Yield a model to compute logits with, called as the model is."""
        yield self._loaded(point).eval()

    def _draw(self, point: Point, batches, have: list[int], sampling: SamplingSettings, store: SampleStore) -> None:
        description = f"{self.run_dir.name}: {point.label}"
        if sampling.temperature == 0:
            description += ", greedy"
        total = sum(len(places) * count for places, count in batches)
        with self._model(point) as (model, compact), progress(total, visible(description)) as bar:
            for places, count in batches:
                names = [self.prompt_ids[place] for place in places]
                # A seed per batch: the samples do not depend on an earlier stop.
                set_seed(int(json_sha256([self.seed, names, have[places[0]]])[:8], 16))
                try:
                    rows = [self.rows[place] for place in places]
                    drawn = sample(
                        model,
                        self.processor or self.tokenizer,
                        self.task,
                        rows,
                        count,
                        sampling=sampling,
                        compact=compact,
                        bar=bar,
                    )
                except torch.OutOfMemoryError as error:
                    raise RunError(
                        f"--batch-size {self.batch_size} with up to {sampling.max_new_tokens} tokens does not fit "
                        "into GPU memory: lower it. Finished samples are kept."
                    ) from error
                records = []
                for place, samples in zip(places, drawn, strict=True):
                    for number, one in enumerate(samples, start=have[place]):
                        records.append(self._record(place, number, one))
                    have[place] += count
                store.add(records)
                bar.update(len(places) * count)

    def _record(self, place: int, number: int, one) -> dict:
        row = self.rows[place]
        return {
            "prompt_id": self.prompt_ids[place],
            "sample": number,
            "prompt": shown_prompt(row),
            "task": row.get("task"),
            "level": row.get("level"),
            "completion": one.text,
            "ids": one.ids,
            "truncated": one.truncated,
            "correct": one.correct,
            "answer": one.answer,
            "grader": self.grader,
        }


def held_out_rows(name: TaskName, task, split: str, prompts: int | None) -> list[dict]:
    """
    Return the prompts of a split: as many as are wanted, by default [`PROMPTS`], or all of a user's own. Each row is
    there once.

    Raises:
        InputError: There is no such split, or it has not so many.
    """
    if prompts is None and not name.is_own:
        prompts = PROMPTS
    try:
        rows = check_dataset(task, task.rows(split, prompts, seed=name.seed))
        rows = list(rows)
        return [rows[place] for place in distinct(rows, f"{name.task}, {split}")]
    except ValueError as error:
        number = "" if prompts is None else f" --prompts {prompts}"
        raise InputError(f"--split {split}{number}: {error}") from error


def shown_prompt(row: dict) -> str:
    """Return a row's prompt as text; of messages, the last one."""
    prompt = row["prompt"]
    return prompt if isinstance(prompt, str) else text_of(prompt[-1])


def count_of_script(run_dir: Path, prompt_ids: list[str]) -> int | None:
    """
    Return how many of a user's prompts occur in the training set, from an evaluation of the same prompts in the
    script, which has the training set. `None` without such an evaluation that can be read.
    """
    earlier = None
    with suppress(InputError):  # `passk` says so, and replaces it
        earlier = read_evaluation(run_dir, PASSK_FILE)
    if earlier is None or earlier["prompt_ids"] != prompt_ids:
        return None
    return earlier.get("in_training")


def judges(task) -> bool:
    """Return whether a task has a verifier: a user's own rows may have none."""
    return not isinstance(task, OwnRows) or task.verifier is not None


def plan(missing: dict[int, int], batch_size: int) -> list[tuple[list[int], int]]:
    """
    Return batches of at most `batch_size` sequences: places of prompts with the same number of missing samples, and
    how many samples of each to draw. `missing` has the number of missing samples, at least 1, by place. A prompt that
    misses more than `batch_size` is in several batches.
    """
    batches = []
    by_count: dict[int, list[int]] = {}
    for place, count in missing.items():
        by_count.setdefault(count, []).append(place)
    for count, places in by_count.items():
        together = max(1, batch_size // count)
        for start in range(0, len(places), together):
            group = places[start : start + together]
            batches += [(group, min(batch_size, count - first)) for first in range(0, count, batch_size)]
    return batches


@functools.cache
def grader_version() -> str:
    """
    Return a hash of the code that grades completions: it changes with any file of `tasks`, with the libraries that
    these use, and with the files next to a plugin and those that are imported from folders below.
    """
    libraries = (Path(tasks.__file__).parents[1], Path(sysconfig.get_path("stdlib")))
    modules = [getattr(module, "__file__", None) for name, module in [*sys.modules.items()] if name != "__main__"]
    imported = {Path(file) for file in modules if file and file.endswith(".py") and "site-packages" not in file}
    imported = {file for file in imported if not any(map(file.is_relative_to, libraries)) and file.is_file()}
    files = sorted(Path(tasks.__file__).parent.rglob("*.py"))
    beside = set()
    for folder in {file.parent for file in tasks.registry.PLUGINS}:
        beside |= {*folder.glob("*.py"), *(file for file in imported if file.is_relative_to(folder))}
    texts = [path.read_text(errors="replace") for path in [*files, *sorted(beside)]]
    return json_sha256([installed("sympy"), installed("reasoning-gym"), *texts])[:12]


def check_run(run_dir: Path) -> dict:
    """
    Return the configuration of a run that can be evaluated, with local paths resolved.

    Raises:
        InputError: It cannot be evaluated.
    """
    config = load_config(run_dir)
    env = read_env(run_dir)
    if not config.get("task") and not plugin.HELD_OUT:
        raise InputError(
            f"'{run_dir}' is the run of a script, whose rows and verifier are not saved: give --plugin FILE.py, a "
            f"file with {plugin.ROWS}() and {plugin.VERIFY}(completion, row), or call evaluate(trainer, rows, "
            "verifier) and drift(trainer, rows) in the script"
        )
    if not config.get("model_name_or_path"):
        noted = (env.get("base_model") or {}).get("name")
        if noted is None:
            raise InputError(
                f"'{run_dir}' has no record of the starting model; add it to its config.yaml: model_name_or_path: …"
            )
        config["model_name_or_path"] = noted
    config = with_local_paths(run_dir, config)
    check_trained_model(run_dir, config)
    return config


def held_out_tasks(run_dir: Path, args) -> list[HeldOut]:
    """Return the run on its own task, then on the other tasks of the command line."""
    names = [None, *map(TaskName.parse, args.others)]
    return [
        HeldOut(
            run_dir,
            args.split,
            args.prompts,
            seed=args.seed,
            batch_size=args.batch_size,
            name=name,
            temperature=args.temperature,
            max_new_tokens=args.max_new_tokens,
        )
        for name in names
    ]


def check_run_settings(
    run_dir: Path, checkpoints: list[str], others: list[str] = (), needs_verdicts: bool = True
) -> None:
    """
    Check an evaluation before anything is loaded: checkpoints (steps, or `all`), other tasks, and whether there is a
    verifier.

    Raises:
        InputError: A setting is wrong.
    """
    config = check_run(run_dir)
    env = read_env(run_dir)
    how = f"; load the run's own task with {describe_evaluation(config, env, run_dir)}" if plugin_options(env) else ""
    for name in (TaskName.of_run(config), *map(TaskName.parse, others)):
        try:
            task = name.make()
        except InputError as error:
            raise InputError(f"{error}{how}") from error
        if needs_verdicts and not judges(task):
            raise InputError(f"{task.rows_name}: pass@k also needs {plugin.VERIFY}(completion, row) in that file")
    checkpoint_points(run_dir, config, checkpoints)
