"""A run folder as a card needs it: its record without secrets, and its base model."""

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from ..record import run_files
from ..record.base_model import BaseModel, identify
from ..record.provenance import without_secrets
from ..record.run_files import CONFIG_FILE, ENV_FILE, EVENTS_FILE, METRICS_FILE, RESETS
from ..record.run_id import RUN_ID, other_run
from ..record.shapes import Shape, optional, table, text
from ..variants import VARIANTS, Variant


PASSK_FILE, SIDES = "passk.json", ("base", "trained")
ADAPTER = table(known={"base_model_name_or_path": optional(text)})


@dataclass(frozen=True)
class Record:
    """
    The content of a run folder; parts that are missing are empty.

    Attributes:
        config (`dict`), env (`dict`): `config.yaml`, without secrets, and `env.json`.
        events (`list[dict]` or `None`): `events.jsonl`.
        passk (`dict` or `None`): `passk.json`.
        steps (`int` or `None`): Optimizer steps done, by `metrics.jsonl`.
    """

    config: dict[str, Any]
    env: dict[str, Any]
    events: list[dict[str, Any]] | None
    passk: dict[str, Any] | None
    steps: int | None

    @property
    def variant(self) -> str:
        return str(self.env.get("variant", "unknown"))

    @property
    def known_variant(self) -> Variant | None:
        """What is known of its variant."""
        return VARIANTS.get(self.variant)

    @property
    def resets(self) -> list[dict[str, Any]]:
        return self.events_of(*RESETS)

    def events_of(self, *kinds: str) -> list[dict[str, Any]]:
        """The events of some kinds."""
        return [event for event in self.events or [] if event.get("event") in kinds]

    @property
    def evaluated(self) -> bool:
        """Whether `passk.json` is there, and measured the weights that the run left behind after its last step."""
        measured_at = (self.passk or {}).get("steps_on_record", (self.passk or {}).get("step"))
        return self.passk is not None and (measured_at is None or self.steps is None or measured_at == self.steps)


def read_record(run_dir: str | os.PathLike) -> Record:
    """
    Read a run folder, however little it holds. The evaluation of another run that had the folder before is left out.

    Raises:
        `ValueError`: a file cannot be read.
    """
    folder = Path(run_dir)
    config, events = folder / CONFIG_FILE, folder / EVENTS_FILE
    rows = run_files.read_jsonl(folder / METRICS_FILE, run_files.METRICS)
    env = read_if_there(folder / ENV_FILE, run_files.ENV) or {}
    passk = read_if_there(folder / PASSK_FILE, run_files.passk)
    if passk is not None and other_run(passk, env.get(RUN_ID)):
        passk = None
    return Record(
        config=without_secrets(run_files.read_yaml(config)) if config.is_file() else {},
        env=env,
        events=run_files.read_jsonl(events, run_files.EVENTS) if events.is_file() else None,
        passk=passk,
        steps=rows[-1]["step"] if rows else None,
    )


def read_if_there(path: Path, shape: Shape) -> dict[str, Any] | None:
    return run_files.read_json(path, shape) if path.is_file() else None


def base_of(record: Record, adapter_config: dict[str, Any]) -> BaseModel | None:
    """The base model: as the run noted it, else as its recipe or its adapter names it; `None` if none of them does."""
    if record.env.get("base_model"):
        noted = record.env["base_model"]
        return BaseModel(**{field.name: noted[field.name] for field in fields(BaseModel) if field.name in noted})
    name = record.config.get("model_name_or_path") or adapter_config.get("base_model_name_or_path")
    return identify(name) if name else None


class Measure(NamedTuple):
    """A number of `passk.json`, each side as value, low and high: of pass@k, or of greedy decoding (`greedy`)."""

    name: str
    base: list[float | None]
    trained: list[float | None]
    gain: list[float | None] | None


def measures(part: dict[str, Any]) -> list[Measure]:
    """What a part of `passk.json` has for both sides: pass@k by the size of the draw, then greedy decoding."""
    found = []
    for k in part.get("k", []):
        if all(f"pass@{k}" in part[side] for side in SIDES):
            base, trained = ([part[side][f"pass@{k}"], *part[side][f"interval@{k}"]] for side in SIDES)
            found.append(Measure(f"pass@{k}", base, trained, part.get("gain", {}).get(f"pass@{k}")))
    greedy = part.get("greedy") or {}
    if all({"accuracy", "interval"} <= greedy.get(side, {}).keys() for side in SIDES):
        base, trained = ([greedy[side]["accuracy"], *greedy[side]["interval"]] for side in SIDES)
        found.append(Measure("greedy", base, trained, greedy.get("gain")))
    return found
