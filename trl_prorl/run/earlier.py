"""An earlier run in the folders of a script's run: set aside as the new run begins, so that none of it is lost."""

import logging
import os
from pathlib import Path

from .base_model import WEIGHTS
from .meter import METRICS_FILE


EARLIER = "earlier-"
CHECKPOINTS = ("checkpoint-*", "abandoned-checkpoint-*")
RECORD = (
    "metrics*.jsonl",
    "events*.jsonl",
    "evaluations*.jsonl",
    "config.yaml",
    "env.json",
    "passk.json",
    "drift.json",
)
# What saves write beside the weights.
MODEL = ("*.safetensors.index.json", "adapter_config.json", "config.json", "generation_config.json", "prorl_run.json")
MODEL += ("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "chat_template.jinja")
OTHERS = ("completions", "trainer_state.json", "README.md")

logger = logging.getLogger(__name__)


def set_earlier_run_aside(output_dir: str | os.PathLike, run_dir: str | os.PathLike, base: str | None) -> None:
    """
    Move what an earlier run has left into `earlier-1` of the same folder, or the next number that is free, and say so.
    Other files stay.

    Args:
        output_dir (`str` or `os.PathLike`), run_dir (`str` or `os.PathLike`):
            Of the run that begins.
        base (`str`, *optional*):
            Hub name or folder of its model.

    Raises:
        `ValueError`: the model is a part of the earlier run, and would move with it.
    """
    output_dir, run_dir = Path(output_dir), Path(run_dir)
    record = run_dir / METRICS_FILE
    begun = record.exists() and record.stat().st_size > 0
    if not (begun or any(next(output_dir.glob(pattern), None) for pattern in ("checkpoint-*", *WEIGHTS))):
        return
    found = {path for pattern in RECORD for path in run_dir.glob(pattern)}
    found |= {path for pattern in (*CHECKPOINTS, *WEIGHTS, *MODEL, *OTHERS) for path in output_dir.glob(pattern)}
    model = Path(base or "").resolve()
    if (
        base
        and model.is_dir()
        and (model == output_dir.resolve() or {model, *model.parents} & {*map(Path.resolve, found)})
    ):
        raise ValueError(
            f"output_dir={str(output_dir)!r} holds an earlier run, and the model {base!r} is a part of it. Choose "
            "another output_dir."
        )
    number = 1
    while any((folder / f"{EARLIER}{number}").exists() for folder in (output_dir, run_dir)):
        number += 1
    for path in sorted(found):
        aside = path.parent / f"{EARLIER}{number}"
        aside.mkdir(exist_ok=True)
        path.rename(aside / path.name)
    logger.warning(
        "output_dir=%r held an earlier run, which is now in %s. Remove it if you like, or give each run a folder.",
        *(str(output_dir), output_dir / f"{EARLIER}{number}"),
    )
