"""The shipped recipes by name (`tiny/variantA`)."""

from collections.abc import Iterable
from pathlib import Path

from ..errors import InputError
from ..text import nearest


RECIPES = (Path(__file__).parents[1] / "recipes").resolve()  # in a checkout it is a link


def shipped_recipes() -> dict[str, Path]:
    """Return the recipes that can be trained (no `base.yaml`), sorted by name."""
    files = {file.relative_to(RECIPES).with_suffix("").as_posix(): file for file in RECIPES.rglob("*.yaml")}
    return {name: files[name] for name in sorted(files) if files[name].stem != "base"}


def recipe_file(name_or_path: str) -> Path:
    """Return the file of a path or of a shipped recipe's name; an existing file wins."""
    shipped = shipped_recipes()
    if not Path(name_or_path).is_file() and name_or_path not in shipped:
        raise InputError(f"{name_or_path!r} is neither a file nor a shipped recipe{nearest(name_or_path, shipped)}.")
    return Path(name_or_path) if Path(name_or_path).is_file() else shipped[name_or_path]


def with_recipe(arguments: Iterable[str]) -> list[str]:
    """Return a command line with `--config PATH`. The recipe may also be the first argument."""
    words = list(arguments)
    if words and not words[0].startswith("-"):
        words.insert(0, "--config")
    if "--config" in words:
        place = words.index("--config") + 1
        words[place] = str(recipe_file(words[place]))
    return words


def recipe_list() -> str:
    lines = [f"  {name:<28}{file.read_text().splitlines()[0].lstrip('# ')}" for name, file in shipped_recipes().items()]
    return "\n".join(["usage: trl-prorl train RECIPE [--KEY VALUE ...]", "", *lines])
