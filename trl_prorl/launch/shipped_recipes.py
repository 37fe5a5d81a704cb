"""
The recipes that come with the package, by name: `tiny/variantA`. Nothing that takes long is imported.
"""

import itertools
from collections.abc import Iterable
from pathlib import Path

from ..errors import InputError
from ..text import nearest


RECIPES = (Path(__file__).parents[1] / "recipes").resolve()  # in a checkout it is a link
SUFFIXES = (".yaml", ".yml")


def shipped_recipes() -> dict[str, Path]:
    """Return the recipes that can be trained, by name and sorted: all but the bases of others."""
    files = {file.relative_to(RECIPES).with_suffix("").as_posix(): file for file in RECIPES.rglob("*.yaml")}
    return {name: files[name] for name in sorted(files) if files[name].stem != "base"}


def recipe_file(name_or_path: str) -> Path:
    """
    Return the file of a recipe: a file, which wins if it is there, or the name of a shipped recipe.

    Raises:
        `ValueError`: It is neither.
    """
    file = Path(name_or_path)
    shipped = shipped_recipes()
    if file.is_file():
        return file
    if name_or_path in shipped:
        return shipped[name_or_path]
    name = name_or_path.removeprefix("./").removeprefix("recipes/").rstrip("/")
    if file.suffix in SUFFIXES:
        name = name.removesuffix(file.suffix)
    beside = [other for other in shipped if other.rpartition("/")[0] == name]
    within = beside or [other for other in shipped if other.startswith(f"{name}/")]
    if within:
        raise InputError(f"{name_or_path!r} is a folder of recipes: name one of {', '.join(within)}.")
    cure = f" (did you mean {name!r}?)" if name in shipped else nearest(name, shipped)
    raise InputError(
        f"{name_or_path!r} is neither a file nor the name of a shipped recipe{cure}. `trl-prorl train` lists those."
    )


def with_recipe(arguments: Iterable[str]) -> list[str]:
    """
    Return a command line that names its recipe by `--config PATH`: the recipe may come first, without an option, and
    be the name of a shipped one.

    Raises:
        `ValueError`: As [`recipe_file`]; or a recipe has the wrong place, or there are two.
    """
    words: list[str] = []
    for word in arguments:
        words += word.split("=", 1) if word.startswith("--config=") else [word]
    if words and not words[0].startswith("-"):
        words.insert(0, "--config")
    if words.count("--config") > 1:
        raise InputError("a recipe is given twice; a run has one.")
    if "--config" not in words:
        # Behind the options a recipe would be taken for the value of one, or for nothing.
        for before, word in itertools.pairwise(words):
            if not before.startswith("-") and (word.endswith(SUFFIXES) or word in shipped_recipes()):
                raise InputError(f"{word!r} follows no option: the recipe comes first, before every option.")
        return words
    place = words.index("--config") + 1
    if place == len(words):
        raise InputError("--config needs the path of a recipe after it.")
    words[place] = str(recipe_file(words[place]))
    return words
