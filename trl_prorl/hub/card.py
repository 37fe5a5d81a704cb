"""The model card of a run: metadata here, text in `model_card.md.jinja`."""

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup
from peft.utils import SAFETENSORS_WEIGHTS_NAME
from safetensors import SafetensorError, safe_open

from ..cli.variants import DIFFERENT_OBJECTIVE, VARIANTS, describe_missing_reset
from ..run.files import replace_text
from ..run.log_files import (
    CONFIG_FILE,
    ENV_FILE,
    EVENTS_FILE,
    METRICS_FILE,
    PASSK_FILE,
    RESETS,
    read_content,
    read_log,
    SIDES,
    has_weights_of,
    saved_step,
    step_of_evaluation,
    training_note,
)
from ..run.provenance import (
    BaseModel,
    describe_evaluation,
    evaluation_options,
    identify,
    is_hub_name,
    plugin_options,
    remove_secrets,
)
from ..text import LICENSE, code_block, code_span, plain_markdown, shell_quote, spell_again, visible


CARD_FILE = "README.md"
TEMPLATE = Path(__file__).with_name("model_card.md.jinja")
# Tensors of an adapter that changes embeddings or LM head. (Rows of embeddings alone are those of a tied head, too.)
OF_EMBEDDINGS = re.compile(
    r"lora_embedding_|\b(embed_tokens|wte|embed_in|lm_head|embed_out)\..*lora_|\b(lm_head|embed_out)\.token_adapter\."
)

# Arguments of `from_pretrained` that do not belong to the model; `revision` is the commit.
OF_MACHINE = frozenset(
    "revision attn_implementation cache_dir device_map force_download local_files_only low_cpu_mem_usage max_memory "
    "offload_folder proxies quantization_config token tp_plan trust_remote_code use_cache use_kernels".split()
)


@dataclass(frozen=True)
class Record:
    """A run folder's content without secrets; missing parts are empty."""

    config: dict[str, Any]
    env: dict[str, Any]
    events: list[dict[str, Any]] | None
    passk: dict[str, Any] | None
    steps: int | None  # of the run so far
    saved_step: int | None  # of the weights in the folder
    has_evaluated_weights: bool | None  # whether `passk.json` measured them; `None`: unknown

    @property
    def variant(self) -> str:
        return visible(str(self.env.get("variant", "unknown")))

    @property
    def resets(self) -> list[dict[str, Any]]:
        return self.events_of(*RESETS)

    def events_of(self, *names: str) -> list[dict[str, Any]]:
        return [event for event in self.events or [] if event.get("event") in names]

    @property
    def evaluated(self) -> bool:
        """Whether `passk.json` measured these weights; if it does not say which, those of the run's last step."""
        if self.passk is None:
            return False
        if self.has_evaluated_weights is not None:
            return self.has_evaluated_weights
        measured_at = step_of_evaluation(self.passk)
        return measured_at is None or self.steps is None or measured_at == self.steps

    @property
    def step(self) -> int | None:
        """Step of the weights: an evaluation also knows that of a checkpoint that was copied here."""
        if self.evaluated and self.passk.get("step") is not None:
            return self.passk["step"]
        return self.saved_step


def read_record(
    run_dir: str | os.PathLike,
    model_dir: str | os.PathLike | None = None,
    step: int | None = None,
    steps: int | None = None,
) -> Record:
    """
    Any file may be missing. `step` is that of weights that are not in `model_dir` yet. A run that trains knows its
    `steps`; otherwise `metrics.jsonl` is read. Raises `ValueError`: a file cannot be read.
    """
    folder = Path(run_dir)
    model_dir = model_dir or folder
    if steps is None:
        rows = read_log(folder, METRICS_FILE)
        steps = rows[-1]["step"] if rows else None
    events = folder / EVENTS_FILE
    passk = read_if_there(folder / PASSK_FILE)
    is_known = passk is not None and step is None
    return Record(
        config=remove_secrets(read_if_there(folder / CONFIG_FILE) or {}),
        env=read_if_there(folder / ENV_FILE) or {},
        events=read_log(folder, EVENTS_FILE) if events.is_file() else None,
        passk=passk,
        steps=steps,
        saved_step=saved_step(model_dir) if step is None else step,
        has_evaluated_weights=has_weights_of(passk, model_dir) if is_known else None,
    )


def read_if_there(path: Path) -> dict[str, Any] | None:
    return read_content(path) if path.is_file() else None


def changes_embeddings(folder: Path) -> bool:
    """Return whether an adapter changes embeddings or LM head; a merge cannot keep tied ones separate."""
    file = folder / SAFETENSORS_WEIGHTS_NAME
    if not file.is_file():
        return False
    try:
        with safe_open(file, framework="pt") as tensors:
            names = list(tensors.keys())
    except SafetensorError:  # a push reports it
        return False
    return any(map(OF_EMBEDDINGS.search, names))


def loading_arguments(config: dict[str, Any], base: BaseModel | None) -> dict[str, Any]:
    """Return the arguments with which a run loaded its base model, but for those of its machine."""
    given = config.get("model_init_kwargs")
    init = given if isinstance(given, dict) else {}
    kept = {name: value for name, value in init.items() if name not in OF_MACHINE and value is not None}
    revision = base.commit or init.get("revision") if base is not None and base.hub_id else None
    place = {"revision": revision} if revision not in (None, "main") else {}
    return place | {name: value for name, value in kept.items() if str(name).isidentifier() and value != "auto"}


def base_of(record: Record, adapter_config: dict[str, Any]) -> BaseModel | None:
    noted = record.env.get("base_model") or {}
    if noted.get("name"):
        known = {field.name for field in fields(BaseModel)}
        return BaseModel(**{name: value for name, value in noted.items() if name in known})
    name = record.config.get("model_name_or_path") or adapter_config.get("base_model_name_or_path")
    return identify(name) if name else None


class Measure(NamedTuple):
    """A pass@k, or greedy decoding; each side is value, low and high."""

    name: str
    base: list[float | None]
    trained: list[float | None]
    gain: list[float | None] | None


def measures(part: dict[str, Any]) -> list[Measure]:
    """Return a part's numbers: pass@k by k, then greedy decoding."""
    found = []
    for k in part.get("k", []):
        name = f"pass@{k}"
        if all(name in part[side] for side in SIDES):
            base, trained = ([part[side][name], *part[side][f"interval@{k}"]] for side in SIDES)
            found.append(Measure(name, base, trained, part.get("gain", {}).get(name)))
    greedy = part.get("greedy", {})
    if all({"accuracy", "interval"} <= greedy.get(side, {}).keys() for side in SIDES):
        base, trained = ([greedy[side]["accuracy"], *greedy[side]["interval"]] for side in SIDES)
        found.append(Measure("greedy", base, trained, greedy.get("gain")))
    return found


def model_card(
    run_dir: str | os.PathLike,
    model_dir: str | os.PathLike | None = None,
    *,
    repo: str | None = None,
    weights_dir: str | os.PathLike | None = None,
    adapter: bool | None = None,
    tags: Iterable[str] = (),
    datasets: Iterable[str] = (),
    license: str | None = None,
    step: int | None = None,
    steps: int | None = None,
) -> ModelCard:
    """
    Make the model card of a run. Raises `ValueError`: a log file cannot be read.

    Args:
        run_dir (`str` or `os.PathLike`): Folder of the log files.
        model_dir (`str` or `os.PathLike`, *optional*): Folder of the trained model; defaults to `run_dir`.
        repo (`str`, *optional*): Hub repository; defaults to the folder's name.
        weights_dir (`str` or `os.PathLike`, *optional*): Folder in the card's loading code; defaults to `model_dir`.
        adapter (`bool`, *optional*): Whether the model is a PEFT adapter; by default as in the folder.
        tags, datasets (iterable of `str`): Further metadata.
        license (`str`, *optional*): The Hub's name of a licence; defaults to that of an existing card.
        step (`int`, *optional*): Step of weights that are not in `model_dir` yet; defaults to the one saved there.
        steps (`int`, *optional*): Steps of the run so far; by default those in `metrics.jsonl`.
    """
    folder = Path(model_dir or run_dir)
    record = read_record(run_dir, folder, step, steps)
    adapter_config = read_if_there(folder / "adapter_config.json") or {}
    if adapter is None:
        adapter = bool(adapter_config)
    base = base_of(record, adapter_config)
    name = visible((repo or folder.resolve().name).split("/")[-1])
    tags = {"trl-prorl", "trl", "grpo", f"variant-{record.variant}", *tags}
    if adapter:
        tags.add("lora")
    data = ModelCardData(
        base_model=base.hub_id if base else None,
        datasets=sorted({*datasets, _dataset(record.config)} - {None}) or None,
        eval_results=eval_results(record) or None,
        library_name="peft" if adapter else "transformers",
        license=license or read_license(folder / CARD_FILE),
        model_name=name,
        pipeline_tag="text-generation",
        tags=sorted(tags),
    )
    text = (
        card_environment()
        .get_template(TEMPLATE.name)
        .render(
            card_data=data.to_yaml(),
            name=name,
            record=record,
            base=base,
            adapter=adapter,
            merges=not changes_embeddings(folder),
            init=loading_arguments(record.config, base),
            source=repo or str(weights_dir or folder),
            variant_meaning=_variant_meaning(record),
            evaluation=describe_evaluation(record.config, record.env, run_dir),
            evaluation_options=evaluation_options,
            plugins=plugin_options(record.env),
            passk_rows=_passk_rows,
            training_note=training_note,
            recipe=yaml.safe_dump(record.config, sort_keys=True).strip(),
        )
    )
    return ModelCard("\n".join(map(visible, text.split("\n"))))


def read_license(path: Path) -> str | None:
    try:
        found = ModelCard.load(path, ignore_metadata_errors=True).data.license
    except (OSError, ValueError, yaml.YAMLError):
        return None
    return found if isinstance(found, str) and LICENSE.fullmatch(found) else None


@cache  # with the compiled template, which every save of a run fills
def card_environment() -> Environment:
    """A run's texts are untrusted: they are shown literally by default, other places use a filter."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATE.parent),
        autoescape=False,
        keep_trailing_newline=True,
        finalize=lambda value: plain_markdown(value) if type(value) is str else value,
    )
    environment.filters["code"] = lambda value: Markup(code_span(str(value)))
    environment.filters["code_block"] = lambda value, language: Markup(code_block(value, language))
    environment.filters["python"] = lambda value: Markup(json.dumps(value, ensure_ascii=False))
    environment.filters["literal"] = lambda value: Markup(repr(value))
    environment.filters["code_of_command"] = lambda value: Markup(code_span(spell_again(value)))
    environment.filters["word"] = lambda value: Markup(shell_quote(value))
    environment.tests["hub_name"] = is_hub_name
    environment.tests["identifier"] = str.isidentifier
    return environment


def _variant_meaning(record: Record) -> str:
    variant = VARIANTS.get(record.variant)
    if variant is None:
        return "the run's files do not name it."
    sentences = [f"{variant.description}."]
    resets = None if record.events is None else len(record.resets)
    missing_reset = describe_missing_reset(variant.name, record.config, resets, record.steps)
    if missing_reset is not None:
        sentences.append(f"{variant.name} {missing_reset}.")
    if variant.different_objective:
        sentences.append(DIFFERENT_OBJECTIVE)
    return " ".join(sentences)


def _passk_rows(part: dict[str, Any]) -> list[list[str]]:
    return [
        [name, _with_interval(base, ".3f"), _with_interval(trained, ".3f"), _with_interval(gain, "+.3f")]
        for name, base, trained, gain in measures(part)
    ]


def _with_interval(values: list[float | None] | None, spec: str) -> str:
    """Return `value [low, high]`, `value (n/a)` with too few prompts, or a dash."""
    if values is None or values[0] is None:
        return "–"
    value, *ends = values
    return f"{value:{spec}} {'(n/a)' if None in ends else _interval(ends, spec)}"


def _interval(ends: list[float], spec: str = ".3f") -> str:
    low, high = ends
    return f"[{low:{spec}}, {high:{spec}}]"


def write_card(card: ModelCard, folder: str | os.PathLike) -> Path:
    path = Path(folder) / CARD_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, str(card))
    return path


def eval_results(record: Record) -> list[EvalResult]:
    """Return held-out pass@k for the `model-index`, with intervals and settings."""
    if not record.evaluated:
        return []
    passk = record.passk
    results = [_eval_result(passk, measure, _dataset(record.config)) for measure in measures(passk)]
    for other in passk.get("others", {}).values():
        results += [_eval_result(other, measure, None) for measure in measures(other) if measure.name != "greedy"]
    return results


def _eval_result(part: dict[str, Any], measure: Measure, dataset: str | None) -> EvalResult:
    value, *interval = measure.trained
    base, *base_interval = measure.base
    arguments = {"interval_95": interval, "base": base}
    arguments |= {key: part[key] for key in ("prompts", "max_new_tokens")}
    metric = name = measure.name
    if measure.name == "greedy":
        metric = "accuracy"
        name = "greedy accuracy"
        arguments["decoding"] = "greedy"
    else:
        arguments["base_interval_95"] = base_interval
        arguments["n"] = part["n"]
        arguments["temperature"] = part["temperature"]
        arguments["seed"] = part["seed"]
    if None not in interval:
        name += f", 95 % interval {_interval(interval)}"
    # With too few prompts an interval has no ends.
    arguments = {key: argument for key, argument in arguments.items() if argument != [None, None]}
    return EvalResult(
        task_type="text-generation",
        dataset_type=dataset or visible(part["task"]),
        dataset_name=visible(part["task"]),
        dataset_config=None if part.get("level") is None else f"level {part['level']}",
        dataset_split=visible(part.get("split", "")) + training_note(part),
        metric_type=metric,
        metric_name=name,
        metric_value=value,
        metric_args=arguments,
    )


def _dataset(config: dict[str, Any]) -> str | None:
    name = config.get("dataset_name")
    is_on_hub = isinstance(name, str) and is_hub_name(name) and not Path(name).exists()
    return name if is_on_hub else None
