"""The model card of a run: its starting model, its variant, its recipe and its held-out scores."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from ..cli.variants import DIFFERENT_OBJECTIVE, VARIANTS, optimises_another_objective
from ..errors import naming
from ..run.files import replace_text
from ..run.log_files import (
    CONFIG_FILE,
    ENV_FILE,
    PASSK_FILE,
    SIDES,
    has_weights_of,
    read_content,
    saved_step,
    training_note,
    weight_files,
)
from ..run.provenance import plugin_options, remove_secrets
from ..text import LICENSE, code_block, code_span, plain_markdown, visible, visible_lines


CARD_FILE = "README.md"
ARGUMENTS = "These are the arguments of `ProRLTrainer`. Data and rewards come from a script that is not included."
NOT_EVALUATED = (
    "Not evaluated. `trl-prorl passk --run RUN` measures pass@k, and `trl-prorl push --run RUN` shows it here."
)


class Score(NamedTuple):
    """A score in `passk.json`: values of the starting and of the trained model, with their intervals."""

    name: str
    base: list[float | None]
    trained: list[float | None]
    gain: list[float | None]


def model_card(
    run_dir: str | os.PathLike,
    model_dir: str | os.PathLike | None = None,
    *,
    repo: str | None = None,
    adapter: bool | None = None,
    tags: Iterable[str] = (),
    datasets: Iterable[str] = (),
    license: str | None = None,
) -> ModelCard:
    """
    Make the model card of a run. Texts of its files are shown literally.

    Args:
        run_dir (`str` or `os.PathLike`): Folder of the log files. Any of them may be missing.
        model_dir (`str` or `os.PathLike`, *optional*): Folder of the trained model; defaults to `run_dir`.
        repo (`str`, *optional*): Hub repository; defaults to the folder's name.
        adapter (`bool`, *optional*): Whether the model is a PEFT adapter; by default as in the folder.
        tags, datasets (iterable of `str`): Further metadata.
        license (`str`, *optional*): The Hub's name of a licence; defaults to that of an existing card.

    Raises:
        [`InputError`]: A file cannot be read.
    """
    folder = Path(model_dir or run_dir)
    config = remove_secrets(read_if_there(Path(run_dir, CONFIG_FILE)))
    env = read_if_there(Path(run_dir, ENV_FILE))
    passk = read_if_there(Path(run_dir, PASSK_FILE))
    if adapter is None:
        adapter = (folder / "adapter_config.json").is_file()
    with naming(run_dir):
        base = env.get("base_model") or {}
        hub_id = base.get("hub_id")
        variant = visible(str(env.get("variant", "unknown")))
        scores = list_scores(passk) if passk and has_evaluated(passk, folder) else []
        repeat = f"trl-prorl train config.yaml{plugin_options(env, config)} --output_dir runs/again"
        name = visible((repo or folder.resolve().name).split("/")[-1])
        data = ModelCardData(
            base_model=None if hub_id is None else visible(hub_id),
            datasets=sorted(datasets) or None,
            eval_results=[describe_result(passk, score) for score in scores] or None,
            library_name="peft" if adapter else "transformers",
            license=license or read_license(Path(run_dir, CARD_FILE)),
            model_name=name,
            pipeline_tag="text-generation",
            tags=sorted({"trl-prorl", "trl", "grpo", f"variant-{variant}", *tags, *(["lora"] if adapter else [])}),
        )
        parts = [
            f"# {plain_markdown(name)}",
            describe_training(base, variant, saved_step(folder)),
            "## Scores",
            describe_scores(passk, scores),
            "## Recipe",
            f"Train it again with {code_span(repeat)}." if "task" in config else ARGUMENTS,
            code_block(yaml.safe_dump(config, sort_keys=True).strip(), "yaml"),
        ]
    text = "\n\n".join([f"---\n{data.to_yaml()}\n---", *parts]) + "\n"
    return ModelCard(visible_lines(text))


def read_if_there(path: Path) -> dict[str, Any]:
    return read_content(path) if path.is_file() else {}


def read_license(path: Path) -> str | None:
    try:
        license = ModelCard.load(path, ignore_metadata_errors=True).data.license
    except (OSError, ValueError, yaml.YAMLError):
        return None
    return license if isinstance(license, str) and LICENSE.fullmatch(license) else None


def has_evaluated(passk: dict[str, Any], folder: Path) -> bool:
    """Return whether `passk.json` measured a folder's weights. Without their hashes their step decides, if known."""
    if not weight_files(folder):  # a checkpoint that is being saved
        return False
    has_weights = has_weights_of(passk, folder)
    if has_weights is None:
        return saved_step(folder) in (None, passk.get("step"))
    return has_weights


def list_scores(passk: dict[str, Any]) -> list[Score]:
    """Return the held-out scores in `passk.json`: pass@k, then greedy decoding."""
    scores = []
    for k in passk["k"]:
        name = f"pass@{k:d}"
        base, trained = ([passk[side][name], *passk[side][f"interval@{k}"]] for side in SIDES)
        scores.append(Score(name, base, trained, passk["gain"][name]))
    if "greedy" in passk:
        greedy = passk["greedy"]
        base, trained = ([greedy[side]["accuracy"], *greedy[side]["interval"]] for side in SIDES)
        scores.append(Score("accuracy", base, trained, greedy["gain"]))
    return scores


def describe_result(passk: dict[str, Any], score: Score) -> EvalResult:
    """Return a score for the card's `model-index`."""
    return EvalResult(
        task_type="text-generation",
        dataset_type=visible(passk["task"]),
        dataset_name=visible(passk["task"]),
        dataset_split=visible(passk["split"] + training_note(passk)),
        metric_type=score.name,
        metric_name=score.name,
        metric_value=score.trained[0],
    )


def describe_training(base: dict[str, Any], variant: str, step: int | None) -> str:
    name = base.get("hub_id") or Path(base.get("name", "unknown")).name
    meaning = VARIANTS[variant].description if variant in VARIANTS else "unknown"
    weights = "" if step is None else f" The weights are those of step {step}."
    objective = f" {DIFFERENT_OBJECTIVE}" if optimises_another_objective(variant) else ""
    return (
        f"Trained with trl-prorl (prolonged GRPO on top of TRL) from {code_span(name)}. Variant "
        f"{plain_markdown(variant)}: {meaning}.{objective}{weights}"
    )


def describe_scores(passk: dict[str, Any], scores: list[Score]) -> str:
    """Return the table of scores with their settings and 95 % intervals over prompts."""
    if not scores:
        return NOT_EVALUATED
    level = "" if passk.get("level") is None else f", level {plain_markdown(str(passk['level']))}"
    rows = ["| | starting model | this model | gain |", "| --- | --- | --- | --- |"]
    for score in scores:
        values = [format_value(score.base), format_value(score.trained), format_value(score.gain, "+.3f")]
        rows.append(f"| {score.name} | {' | '.join(values)} |")
    note = plain_markdown(training_note(passk))
    settings = (
        f"Task {code_span(passk['task'])}{level}, split {code_span(passk['split'])}{note}: "
        f"{passk['prompts']:d} prompts, {passk['n']:d} samples each at temperature {passk['temperature']:g}, at most "
        f"{passk['max_new_tokens']:d} tokens. Brackets are 95 % confidence intervals."
    )
    return "\n".join([settings, "", *rows])


def format_value(values: list[float | None], spec: str = ".3f") -> str:
    """Return `value [low, high]`; without the brackets if there are too few prompts for an interval."""
    value, low, high = values
    return f"{value:{spec}}" if low is None else f"{value:{spec}} [{low:{spec}}, {high:{spec}}]"


def write_card(card: ModelCard, folder: str | os.PathLike) -> Path:
    path = Path(folder) / CARD_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, str(card))
    return path
