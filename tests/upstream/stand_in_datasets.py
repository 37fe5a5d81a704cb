"""Stand-ins for TRL's test data sets: the beginnings of the lines of the Zen of Python, from the standard library.

Saved as local data sets with one folder per configuration, so that the real `load_dataset` splits and streams them.
"""

import codecs
import contextlib
import importlib
import io
from pathlib import Path

from datasets import Dataset, Features, Image, List, Value
from PIL import Image as Pixels


OWNER = "trl-internal-testing"
# How many words of each line make its prompt; a test compares the first twelve with the words themselves.
WORDS = {"train": (4, 2, 3, 1, 4, 3, 1, 4, 3, 3, 2, 6, 4, 5, 4, 5, 6), "test": (5, 4)}

MESSAGES = List({"role": Value("string"), "content": Value("string")})


def prompts() -> dict[str, list[str]]:
    """The prompts of each split."""
    with contextlib.redirect_stdout(io.StringIO()):
        this = importlib.import_module("this")
    lines = iter(codecs.decode(this.s, "rot13").splitlines()[2:])
    return {split: [" ".join(next(lines).split()[:count]) for count in counts] for split, counts in WORDS.items()}


def tables(texts: list[str]) -> dict[str, Dataset]:
    """What each configuration of each data set is made of."""
    messages = [[{"role": "user", "content": text}] for text in texts]
    seen = [Pixels.new("RGB", (32, 32), (10 * number, 100, 200)) for number in range(len(texts))]  # of one colour each
    return {
        "zen/standard_prompt_only": Dataset.from_dict({"prompt": texts}),
        "zen/conversational_prompt_only": Dataset.from_dict({"prompt": messages}),
        "zen-image/conversational_prompt_only": Dataset.from_dict(
            {"prompt": messages, "image": seen}, Features({"prompt": MESSAGES, "image": Image()})
        ),
        "zen-multi-image/conversational_prompt_only": Dataset.from_dict(
            {"prompt": messages, "images": [[picture] * 2 for picture in seen]},
            Features({"prompt": MESSAGES, "images": List(Image())}),
        ),
    }


def make_all(folder: Path) -> None:
    """Save every configuration below `folder`."""
    for split, texts in prompts().items():
        for name, table in tables(texts).items():
            path = folder / OWNER / name
            path.mkdir(parents=True, exist_ok=True)
            table.to_parquet(path / f"{split}.parquet")
