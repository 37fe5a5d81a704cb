"""The model card of a run: what it is, how it was trained, and its held-out scores."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from ..cli.variants import VARIANTS
from ..run.files import replace_text
from ..run.log_files import CONFIG_FILE, ENV_FILE, PASSK_FILE, has_weights_of, read_content
from ..run.provenance import is_hub_name, remove_secrets


CARD_FILE = "README.md"


def read_if_there(path: Path) -> dict[str, Any]:
    return read_content(path) if path.is_file() else {}


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
    """Make the model card of a run. Raises `ValueError`: a file cannot be read."""
    folder = Path(model_dir or run_dir)
    config = remove_secrets(read_if_there(Path(run_dir, CONFIG_FILE)))
    env = read_if_there(Path(run_dir, ENV_FILE))
    passk = read_if_there(Path(run_dir, PASSK_FILE))
    if passk and has_weights_of(passk, folder) is False:
        passk = {}
    is_adapter = (folder / "adapter_config.json").is_file() if adapter is None else adapter
    base = (env.get("base_model") or {}).get("hub_id") or config.get("model_name_or_path")
    name = (repo or folder.resolve().name).split("/")[-1]
    variant = env.get("variant", "unknown")
    dataset = config.get("dataset_name")
    data = ModelCardData(
        base_model=base if base and is_hub_name(base) else None,
        datasets=sorted({*datasets, *([dataset] if dataset and is_hub_name(dataset) else [])}) or None,
        eval_results=_results(passk) or None,
        library_name="peft" if is_adapter else "transformers",
        license=license,
        model_name=name,
        pipeline_tag="text-generation",
        tags=sorted({"trl-prorl", "trl", "grpo", f"variant-{variant}", *tags, *(["lora"] if is_adapter else [])}),
    )
    meaning = VARIANTS[variant].description if variant in VARIANTS else "unknown"
    rows = [f"| {one.metric_name} | {one.metric_args['base']:.3f} | {one.metric_value:.3f} |" for one in _results(passk)]
    scores = "\n".join(["| held-out | starting model | this model |", "|---|---|---|", *rows]) if rows else "None yet."
    recipe = yaml.safe_dump(config, sort_keys=True).strip()
    return ModelCard(
        f"---\n{data.to_yaml()}\n---\n\n# {name}\n\nTrained with trl-prorl from `{base}`, variant {variant}: {meaning}.\n\n"
        f"## Scores\n\n{scores}\n\n## Recipe\n\n```yaml\n{recipe}\n```\n"
    )


def _results(passk: dict[str, Any]) -> list[EvalResult]:
    """Return held-out pass@k for the `model-index`."""
    results = []
    for name in [f"pass@{k}" for k in passk.get("k", [])]:
        interval = passk["trained"].get(f"interval@{name.removeprefix('pass@')}")
        results.append(
            EvalResult(
                task_type="text-generation",
                dataset_type=passk["task"],
                dataset_name=passk["task"],
                metric_type=name,
                metric_name=name,
                metric_value=passk["trained"][name],
                metric_args={"base": passk["base"][name], "interval_95": interval, "prompts": passk["prompts"]},
            )
        )
    return results


def write_card(card: ModelCard, folder: str | os.PathLike) -> Path:
    path = Path(folder) / CARD_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, str(card))
    return path
