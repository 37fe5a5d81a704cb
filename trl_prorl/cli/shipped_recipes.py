"""The shipped recipes by name (`tiny/variantA`). Imports nothing slow."""

from collections.abc import Iterable
from pathlib import Path

from ..errors import InputError
from ..text import nearest


RECIPES = (Path(__file__).parents[1] / "recipes").resolve()  # in a checkout it is a link
USAGE = """usage: trl-prorl train RECIPE [--KEY VALUE ...] [--plugin FILE.py] [--debug]
       trl-prorl train RECIPE --dataset_name ROWS.jsonl --reward FILE.py:FUNCTION --verify FILE.py:FUNCTION"""


def shipped_recipes() -> dict[str, Path]:
    """Return the recipes that can be trained (no `base.yaml`), sorted by name."""
    files = {file.relative_to(RECIPES).with_suffix("").as_posix(): file for file in RECIPES.rglob("*.yaml")}
    return {name: files[name] for name in sorted(files) if files[name].stem != "base"}


def recipe_file(name_or_path: str) -> Path:
    """Return the file of a path or of a shipped recipe's name; an existing file wins."""
    shipped = shipped_recipes()
    if Path(name_or_path).is_file():
        return Path(name_or_path)
    if name_or_path in shipped:
        return shipped[name_or_path]
    raise InputError(
        f"{name_or_path!r} is neither a file nor a shipped recipe{nearest(name_or_path, shipped)}. `trl-prorl train` "
        "lists the shipped recipes."
    )


def with_recipe(arguments: Iterable[str]) -> list[str]:
    """Return a command line with `--config PATH`. The recipe may also be the first argument."""
    words: list[str] = []
    for word in arguments:
        words += word.split("=", 1) if word.startswith("--config=") else [word]
    if words and not words[0].startswith("-"):
        words.insert(0, "--config")
    if words.count("--config") > 1:  # TRL would read the second one unchecked
        raise InputError("the recipe is given twice: give one.")
    if "--config" not in words:
        return words
    place = words.index("--config") + 1
    if place == len(words):
        raise InputError("--config needs a recipe: --config PATH.")
    words[place] = str(recipe_file(words[place]))
    return words


def recipe_list() -> str:
    """Return the usage of `train`, with a line for each shipped recipe."""
    lines = [USAGE, ""]
    for name, file in shipped_recipes().items():
        first_line = file.read_text(encoding="utf-8").splitlines()[0]
        lines.append(f"  {name:<28}{first_line.lstrip('# ')}")
    lines += ["", "docs/reference.md describes our keys; all keys of TRL's GRPOConfig and ModelConfig work as well."]
    return "\n".join(lines)
