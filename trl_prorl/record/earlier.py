"""An earlier run in the folders of a script's run: set aside as the new run begins, so that none of it is lost."""

import itertools
import logging
from pathlib import Path

from .base_model import WEIGHTS
from .meter import METRICS_FILE


RECORD = (
    "metrics*.jsonl",
    "events*.jsonl",
    "evaluations*.jsonl",
    "config.yaml",
    "env.json",
    "passk.json",
    "drift.json",
)
SAVED = (*WEIGHTS, "checkpoint-*", "abandoned-checkpoint-*", "completions", "trainer_state.json", "prorl_run.json")
SAVED += ("*.safetensors.index.json", "adapter_config.json", "config.json", "generation_config.json", "README.md")
SAVED += ("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "chat_template.jinja")

logger = logging.getLogger(__name__)


def set_earlier_run_aside(output_dir: Path, run_dir: Path, base: str | None) -> None:
    """
    Move what an earlier run has left into `earlier-1` of the same folder, or the next number that is free, and say so.
    Other files stay.

    Args:
        output_dir (`Path`), run_dir (`Path`): Of the run that begins.
        base (`str`, *optional*): Hub name or folder of its model.

    Raises:
        `ValueError`: the model is a part of the earlier run, and would move with it.
    """
    record = run_dir / METRICS_FILE
    begun = record.exists() and record.stat().st_size > 0
    if not (begun or any(next(output_dir.glob(pattern), None) for pattern in ("checkpoint-*", *WEIGHTS))):
        return
    found = {path for pattern in RECORD for path in run_dir.glob(pattern)}
    found |= {path for pattern in SAVED for path in output_dir.glob(pattern)}
    if base and Path(base).is_dir() and Path(base).resolve() in {path.resolve() for path in (output_dir, *found)}:
        raise ValueError(
            f"output_dir={str(output_dir)!r} holds an earlier run, and the model {base!r} is a part of it. Choose "
            "another output_dir."
        )
    names = (f"earlier-{number}" for number in itertools.count(1))
    name = next(name for name in names if not ((output_dir / name).exists() or (run_dir / name).exists()))
    for path in sorted(found):
        path.with_name(name).mkdir(exist_ok=True)
        path.rename(path.with_name(name) / path.name)
    logger.warning(
        "output_dir=%r held an earlier run, which is now in %s. Remove it if you like, or give each run a folder.",
        *(str(output_dir), output_dir / name),
    )
