"""
A run folder as a model card: its metadata here, its sentences in `model_card.md.jinja`. The card names what the record
lacks.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from trl import GRPOTrainer

from ..files import replaced
from ..record.base_model import is_hub_name
from ..record.provenance import evaluation_of, plugin_options
from ..variants import DIFFERENT_OBJECTIVE, without_reset
from .record import ADAPTER, Measure, Record, base_of, measures, read_if_there, read_record


CARD_FILE = "README.md"
TEMPLATE = Path(__file__).with_name("model_card.md.jinja")


def model_card(
    run_dir: str | os.PathLike,
    model_dir: str | os.PathLike | None = None,
    *,
    repo: str | None = None,
    weights_dir: str | os.PathLike | None = None,
    adapter: bool | None = None,
    tags: Iterable[str] = (),
    datasets: Iterable[str] = (),
) -> ModelCard:
    """
    The model card of a run.

    Args:
        run_dir (`str` or `os.PathLike`): Where the record is.
        model_dir (`str` or `os.PathLike`, *optional*): Where the trained model is; defaults to `run_dir`.
        repo (`str`, *optional*): Its repository on the Hub; defaults to the folder's name.
        weights_dir (`str` or `os.PathLike`, *optional*):
            Where the lines that load the model find it without a repository; defaults to `model_dir`.
        adapter (`bool`, *optional*): Whether the model is a PEFT adapter; `None` looks into the folder.
        tags (iterable of `str`), datasets (iterable of `str`): Further metadata.

    Raises:
        `ValueError`: a file of the record cannot be read.
    """
    folder = Path(model_dir or run_dir)
    record = read_record(run_dir)
    adapter_config = read_if_there(folder / "adapter_config.json", ADAPTER) or {}
    adapter = bool(adapter_config) if adapter is None else adapter
    base = base_of(record, adapter_config)
    name = (repo or folder.resolve().name).split("/")[-1]
    data = ModelCardData(
        base_model=base.hub_id if base else None,
        datasets=sorted({*datasets, *_datasets(record.config)}) or None,
        eval_results=eval_results(record) or None,
        library_name="peft" if adapter else "transformers",
        model_name=name,
        pipeline_tag="text-generation",
        tags=sorted({"trl-prorl", "trl", "grpo", f"variant-{record.variant}", *(["lora"] * adapter), *tags}),
    )
    return ModelCard.from_template(
        data,
        template_path=str(TEMPLATE),
        name=name,
        record=record,
        base=base,
        adapter=adapter,
        source=repo or str(weights_dir or folder),
        variant_meaning=_variant_meaning(record),
        evaluation=evaluation_of(record.config, record.env, run_dir),
        plugins=plugin_options(record.env),
        passk_rows=_passk_rows,
        recipe=yaml.safe_dump(record.config, sort_keys=True).strip(),
        grpo_citation=GRPOTrainer._paper["citation"],
    )


def _variant_meaning(record: Record) -> str:
    known = record.known_variant
    if known is None:
        return "the record does not say which."
    applied = None if record.events is None else len(record.resets)
    told = without_reset(known.name, record.config, applied, record.steps)
    more = [f"{known.name} {told}."] * bool(told) + [DIFFERENT_OBJECTIVE] * known.different_objective
    return " ".join([f"{known.description}.", *more])


def _passk_rows(part: dict[str, Any]) -> list[list[str]]:
    """The cells of a part of `passk.json`, a row for each size of the draw and one for greedy decoding."""
    return [
        [name, _with_interval(base, ".3f"), _with_interval(trained, ".3f"), _with_interval(gain, "+.3f")]
        for name, base, trained, gain in measures(part)
    ]


def _with_interval(values: list[float] | None, spec: str) -> str:
    """`value [low, high]`, `(n/a)` where there were too few prompts for an interval, or a dash."""
    return "–" if values is None else f"{values[0]:{spec}} {_interval(values[1:], spec)}"


def _interval(ends: list[float | None], spec: str = ".3f") -> str:
    return "(n/a)" if None in ends else "[{}, {}]".format(*(format(end, spec) for end in ends))


def write_card(card: ModelCard, folder: str | os.PathLike) -> Path:
    """Write `README.md`, and return its path."""
    path = Path(folder) / CARD_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced(path) as aside:
        aside.write_text(str(card), encoding="utf-8")
    return path


def eval_results(record: Record) -> list[EvalResult]:
    """
    The `model-index`: held-out pass@k of the trained model. A value there is one number, so the interval and the
    settings are in the metric's name and arguments.
    """
    if not record.evaluated:
        return []
    passk = record.passk
    others = [{"task": name, **other} for name, other in (passk.get("others") or {}).items()]
    found = [(part, one) for part in (passk, *others) for one in measures(part) if one.name != "greedy"]
    found += [(passk, one) for one in measures(passk) if one.name == "greedy"]
    dataset = next(iter(_datasets(record.config)), None)
    return [_eval_result(passk, part, one, dataset if part is passk else None) for part, one in found]


def _eval_result(passk: dict[str, Any], part: dict[str, Any], one: Measure, dataset: str | None) -> EvalResult:
    metric, name = (one.name, one.name) if one.name != "greedy" else ("accuracy", "greedy accuracy")
    value, *interval = one.trained
    if None not in interval:
        name = f"{name}, 95 % interval {_interval(interval)}"
    arguments = {"interval_95": interval, "base": one.base[0]}
    if one.name == "greedy":
        arguments |= {"prompts": part["prompts"], "decoding": "greedy"}
    else:
        arguments |= {"base_interval_95": one.base[1:], "prompts": part["prompts"], "n": part["n"]}
        arguments |= {"temperature": passk["temperature"], "seed": passk["seed"]}
    level = part.get("level")
    return EvalResult(
        task_type="text-generation",
        dataset_type=dataset or part["task"],
        dataset_name=part["task"],
        dataset_config=None if level is None else f"level {level}",
        dataset_split=passk["split"],
        metric_type=metric,
        metric_name=name,
        metric_value=value,
        # An interval has no ends where there were too few prompts for one.
        metric_args={key: value for key, value in arguments.items() if value != [None, None]},
    )


def _datasets(config: dict[str, Any]) -> list[str]:
    name = config.get("dataset_name")
    known = isinstance(name, str) and is_hub_name(name) and not Path(name).exists()
    return [name] if known else []
