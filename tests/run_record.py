"""What a run has written, as the tests read it."""

import json
from pathlib import Path


def read_rows(trainer, file="metrics.jsonl"):
    """The objects of a JSON Lines file of a trainer's run, in their order."""
    return [json.loads(line) for line in Path(trainer.args.output_dir, file).read_text().splitlines()]
