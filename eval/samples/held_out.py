"""Held-out prompts of a run's task, and samples of the run's models: kept on disk, drawn only if missing."""

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import pandas as pd
import torch
from huggingface_hub import snapshot_download
from transformers import set_seed

from trl_prorl import tasks
from trl_prorl.cli.environment import installed
from trl_prorl.cli.training_prompts import TrainingPrompts, text_of
from trl_prorl.errors import InputError, RunError
from trl_prorl.eval.run_folder.reading import load_config, read_env
from trl_prorl.eval.samples.models import (
    Point,
    base_point,
    evaluation_dtype,
    identity,
    kind_of_model,
    load_point,
    load_processor,
    load_tokenizer,
    trained_point,
    with_base_model,
)
from trl_prorl.eval.samples.sampling import (
    SamplingSettings,
    judge_completions,
    prepare_for_sampling,
    progress,
    sample,
)
from trl_prorl.eval.samples.store import COLUMNS, SampleStore, content_ids, distinct
from trl_prorl.eval.samples.task_name import TaskName
from trl_prorl.run.files import check_contents, json_sha256
from trl_prorl.run.log_files import PASSK_FILE, read_json, weight_hashes
from trl_prorl.tasks import plugin
from trl_prorl.tasks.base import check_dataset
from trl_prorl.tasks.own import OwnTask
from trl_prorl.text import visible


PROMPTS = 128  # default number of prompts of a task
MODEL_FILES = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model")  # of a repository on the Hub


class HeldOut:
    """
    A run's models on P held-out prompts of its task, or of another task (`name`). They are sampled with the settings
    of the run; a given temperature and length override these. A call of `generate` has `batch_size` sequences. By
    default, there are [`PROMPTS`] prompts of a task, or all of a user's own rows. A model that belongs to no run is
    given with its `config`, which names the model that it was trained from.

    Raises:
        InputError: If the run cannot be evaluated with these settings.
    """

    processor = None  # makes tokens of prompts in the tokenizer's place

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
        config: dict | None = None,
        trained: Point | None = None,
    ):
        self.run_dir = run_dir
        self.config = config or with_base_model(run_dir, load_config(run_dir))
        self.seed = seed
        self.batch_size = batch_size
        self.name = name or TaskName.of_run(self.config)
        self.task = self.name.make()
        self.split = split
        self.rows = held_out_rows(self.name, self.task, split, prompts)
        self.prompt_ids = content_ids(self.rows)
        self.grader = grader_version() if judges(self.task) else None
        self.in_training = self._count_in_training() if name is None else None
        self.sampling = SamplingSettings.of_run(self.config, temperature, max_new_tokens)
        self.trained = trained or trained_point(run_dir)
        self.base = base_point(run_dir) if trained is None else Point("base", 0, None)
        source = self.trained.folder
        revision = None
        if not (source / "tokenizer_config.json").is_file():
            source = self.config["model_name_or_path"]
            revision = self.config["revision"]
        self.tokenizer = load_tokenizer(source, revision)
        self.processor = load_processor(source, self.tokenizer, revision)
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        template = (self.processor or self.tokenizer).chat_template
        # As loaded: a call switches padding and truncation off.
        self.tokenization = [backend and backend.to_str(), template, self.tokenizer.eos_token_id]

    def _count_in_training(self) -> int | None:
        """
        Return how many prompts occur in the training set; `None` if that is not known, or if the task is one of ours,
        whose other splits share none with it.
        """
        if self.split == "train":
            return min(len(self.rows), self.config.get("train_rows") or len(self.rows))
        members = getattr(self.task, "members", {"": self.task}).values()  # of a mixture
        if all(type(task).__module__.startswith("trl_prorl.") for task in members):
            return None
        try:
            rows = self.task.rows("train", self.config.get("train_rows"), seed=self.name.seed)
        except (ValueError, TypeError, KeyError, OSError, NotImplementedError):  # whatever a user's task raises
            return None
        return TrainingPrompts(rows).count(row["prompt"] for row in self.rows)

    def store(self, point: Point, sampling: SamplingSettings) -> SampleStore:
        """Return the store of a model's samples."""
        settings = {
            "model": identity(point.folder, self.config),
            "dtype": self._dtype(),
            "tokenizer": self.tokenization,
            **asdict(sampling),
            "task": [self.name.task, self.name.level, self.name.options],
            "seed": self.seed,
        }
        return SampleStore(self.run_dir, point.label, settings)

    def samples(self, point: Point, n: int, *, temperature: float | None = None) -> pd.DataFrame:
        """
        Return `n` samples of every prompt by one model, P·n rows with the columns of
        [`~trl_prorl.eval.samples.store.COLUMNS`], prompt by prompt in the order of `rows`. Missing samples are drawn
        (at the given temperature, if any) and kept. Samples of the base may come from another run in the same folder.
        """
        sampling = self.sampling
        if temperature is not None:
            sampling = replace(sampling, temperature=temperature)
        store = self.store(point, sampling)
        frame = store.read()
        if frame.empty and point is self.base:
            frame = store.read_beside()
        frame = self._regraded(store, frame)
        sizes = frame.groupby("prompt_id").size()
        have = [int(sizes.get(name, 0)) for name in self.prompt_ids]
        batches = plan({place: n - count for place, count in enumerate(have) if count < n}, self.batch_size)
        if batches:
            for drawn in self._draw(point, batches, have, sampling):
                new = pd.DataFrame(drawn, columns=list(COLUMNS))
                frame = new if frame.empty else pd.concat([frame, new], ignore_index=True)
                store.write(frame)
        frame = frame[frame["sample"] < n].sort_values("sample").set_index("prompt_id", drop=False)
        frame = frame.loc[self.prompt_ids].reset_index(drop=True)
        return frame if self.grader is None else frame.astype({"correct": bool})

    def _regraded(self, store: SampleStore, frame: pd.DataFrame) -> pd.DataFrame:
        """Return samples, those of these prompts with verdicts of the current graders."""
        row_of = dict(zip(self.prompt_ids, self.rows, strict=True))
        stale = frame["prompt_id"].isin(row_of) & (frame["grader"] != self.grader)
        if self.grader is None or not stale.any():
            return frame
        old = frame[stale]
        rows = [row_of[name] for name in old["prompt_id"]]
        correct, answers = zip(*judge_completions(self.task, list(old["completion"]), rows), strict=True)
        new = old.assign(correct=correct, answer=answers, grader=self.grader)
        print(visible(f"{store.file}: graded again; {(old['correct'] != new['correct']).sum()} verdicts changed."))
        frame = pd.concat([frame[~stale], new], ignore_index=True)
        store.write(frame)
        return frame

    def _draw(self, point: Point, batches, have: list[int], sampling: SamplingSettings) -> Iterator[list[dict]]:
        """Draw batches of samples, and yield the records of each. A prompt has `have` earlier ones."""
        have = list(have)
        total = sum(len(places) * count for places, count in batches)
        description = f"{self.run_dir.name}: {point.label}{'' if sampling.temperature else ', greedy'}"
        with self._model(point) as (model, compact), progress(total, description) as bar:
            for places, count in batches:
                names = [self.prompt_ids[place] for place in places]
                # A seed per batch: the samples do not depend on an earlier stop.
                set_seed(int(json_sha256([self.seed, names, have[places[0]]])[:8], 16))
                rows = [self.rows[place] for place in places]
                try:
                    drawn = sample(
                        model, self.processor or self.tokenizer, self.task, rows, count, sampling, compact=compact
                    )
                except torch.OutOfMemoryError as error:
                    raise RunError(
                        f"--batch-size {self.batch_size} with up to {sampling.max_new_tokens} tokens does not fit "
                        "into GPU memory: lower it. Finished samples are kept."
                    ) from error
                records = []
                for place, samples in zip(places, drawn, strict=True):
                    records += [self._record(place, number, item) for number, item in enumerate(samples, have[place])]
                    have[place] += count
                yield records
                bar.update(len(records))

    def _record(self, place: int, number: int, drawn: dict) -> dict:
        row = self.rows[place]
        prompt = row["prompt"]
        return {
            "prompt_id": self.prompt_ids[place],
            "sample": number,
            "prompt": prompt if isinstance(prompt, str) else text_of(prompt[-1]),
            "task": row.get("task"),
            "level": row.get("level"),
            **drawn,
            "grader": self.grader,
        }

    def settings(self, **samples: int) -> dict:
        """Return the settings of an evaluation, with its number of samples per prompt under the name that it has."""
        return {
            "split": self.split,
            "prompts": len(self.rows),
            **samples,
            **self.sampling.to_json(),
            "seed": self.seed,
            "task": self.name.task,
            "level": self.name.level,
            "prompt_ids": self.prompt_ids,
        }

    def versions(self) -> dict:
        """Return what an evaluation notes about trained model and verifier: hashes of both, and the precision."""
        versions = {"weights": weight_hashes(self.trained.folder), "dtype": self._dtype()}
        return versions if self.grader is None else versions | {"grader": self.grader}

    def check_unchanged(self, versions: dict) -> None:
        """Raise `RunError` if the run has saved other weights since it had these versions."""
        if self.versions() != versions:
            raise RunError(f"'{self.run_dir}' saved other weights while they were evaluated; run the command again")

    def _dtype(self) -> str:
        """Return the name of the precision in which models are sampled."""
        return str(evaluation_dtype(self.config)).removeprefix("torch.")

    @contextmanager
    def _model(self, point: Point) -> Iterator[tuple]:
        """Yield a model as it is sampled, and the settings of compact generation, if it is compact."""
        yield prepare_for_sampling(load_point(point, self.config))

    @contextmanager
    def scored(self, point: Point) -> Iterator[Callable]:
        """Yield a model to compute logits with, called as the model is."""
        yield load_point(point, self.config).eval()


def held_out_rows(name: TaskName, task, split: str, prompts: int | None) -> list[dict]:
    """
    Return the prompts of a split: as many as are wanted, by default [`PROMPTS`], or all if there are fewer or if they
    are a user's own. Each row is there once.

    Raises:
        InputError: There is no such split, or it has not so many.
    """
    wanted = PROMPTS if prompts is None and not name.is_own else prompts
    try:
        rows = list(check_dataset(task, task.rows(split, wanted, seed=name.seed)))
    except ValueError as error:
        rows = all_rows(name, task, split) if prompts is None and wanted is not None else []
        if not rows:
            raise InputError(f"--split {split} --prompts {wanted}: {error}") from error
        print(f"{visible(name.task)}, {split}: all {len(rows)} rows are used; there are no {wanted}.", flush=True)
    return [rows[place] for place in distinct(rows, f"{name.task}, {split}")]


def all_rows(name: TaskName, task, split: str) -> list[dict]:
    """Return all rows of a finite split, else none."""
    try:
        return list(check_dataset(task, task.rows(split, None, seed=name.seed)))
    except (ValueError, TypeError):  # a user's task may know no `None`
        return []


def judges(task) -> bool:
    """Return whether a task has a verifier: a user's own rows may have none."""
    return not isinstance(task, OwnTask) or task.verifier is not None


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
    these use, and with the files next to a plugin.
    """
    files = sorted(Path(tasks.__file__).parent.rglob("*.py"))
    for folder in sorted({file.parent for file in tasks.registry.PLUGINS.values()}):
        files += sorted(folder.glob("*.py"))
    texts = [path.read_text(errors="replace") for path in files]
    return json_sha256([installed("sympy"), installed("reasoning-gym"), *texts])[:12]


def held_out_tasks(run_dir: Path, args) -> list[HeldOut]:
    """Return the run on its own task, then on the other tasks of the command line."""
    names = [None, *map(TaskName.parse, args.others)]
    return [HeldOut(run_dir, args.split, args.prompts, name=name, **sampling_options(args)) for name in names]


def held_out_model(args) -> HeldOut:
    """
    Return a model that belongs to no run, on the task of `--task` or on a plugin's rows.

    Raises:
        InputError: There is no model, or a full one has no base.
    """
    folder = Path(args.model)
    if not folder.is_dir():
        folder = Path(snapshot_download(args.model, allow_patterns=list(MODEL_FILES)))
    check_contents(folder)
    if kind_of_model(folder) is None:
        raise InputError(f"--model {args.model} has no model: config.json and adapter_config.json are missing")
    adapter = read_json(folder / "adapter_config.json") if kind_of_model(folder) == "adapter" else {}
    adapter_base = adapter.get("base_model_name_or_path")
    base = args.base or adapter_base
    if base is None:
        raise InputError(f"--model {args.model} does not name the model that it was trained from: add --base NAME")
    config = {"model_name_or_path": base}
    if base == adapter_base:
        config["model_revision"] = adapter.get("revision")
    elif adapter_base is not None:
        print(visible(f"--base {base}: the adapter was trained from {adapter_base}, by its adapter_config.json."))
    noted = read_env(folder).get("base_model") or {}  # of the run that left the model
    is_noted = base == adapter_base or base in (noted.get("name"), noted.get("hub_id"))
    config = with_base_model(folder if is_noted else None, config)
    out = args.out or default_folder(args.model)
    out.mkdir(parents=True, exist_ok=True)
    check_contents(out)
    held_out = HeldOut(
        out,
        args.split,
        args.prompts,
        name=TaskName(plugin.OWN, is_own=True) if args.task is None else TaskName.parse(args.task),
        config=config,
        trained=Point("trained", None, folder),
        **sampling_options(args),
    )
    if args.out is None:
        check_default_folder(held_out, "weights", "--out DIR")
    return held_out


def default_folder(model: str) -> Path:
    """
    Return the folder of a model's result, `passk/NAME`.

    Raises:
        InputError: A model lies there.
    """
    folder = Path("passk") / Path(os.path.abspath(model)).name
    if kind_of_model(folder) is not None:
        raise InputError(f"'{folder}', the default folder of the result, contains a model: give another one")
    return folder


def check_default_folder(held_out: HeldOut, key: str, option: str) -> None:
    """Raise `InputError`: the default folder has the result of another model of the same name."""
    path = held_out.run_dir / PASSK_FILE
    if path.is_file() and read_json(path).get(key) != held_out.versions()[key]:
        raise InputError(f"'{path}' is of other weights than this model; give another folder with {option}")


def sampling_options(args) -> dict:
    return {name: getattr(args, name) for name in ("seed", "batch_size", "temperature", "max_new_tokens")}
