"""
The recipes that come with the package, by name: `tiny/variantA`. They lie beside the packages in a checkout, and
within `trl_prorl` once installed (setup.py). Nothing that takes long is imported.
"""

import itertools
from collections.abc import Iterable
from pathlib import Path

from ..text import nearest


PACKAGE = Path(__file__).parent.parent
SUFFIXES = (".yaml", ".yml")
NOT_ARMS = ("study",)  # bases, and the list of the study's arms


def recipes_folder() -> Path:
    """The folder of the recipes."""
    installed = PACKAGE / "recipes"
    return installed if installed.is_dir() else PACKAGE.parent / "recipes"


def shipped_recipes() -> dict[str, Path]:
    """The recipes that can be trained, by name and sorted: all but the bases of others."""
    folder = recipes_folder()
    files = {file.relative_to(folder).with_suffix("").as_posix(): file for file in folder.rglob("*.yaml")}
    return {
        name: files[name]
        for name in sorted(files)
        if files[name].stem != "base" and name.partition("/")[0] not in NOT_ARMS
    }


def recipe_file(asked: str) -> Path:
    """
    The file of a recipe: a file, which wins if it is there, or the name of a shipped recipe. Raises `ValueError`: it
    is neither.
    """
    file, shipped = Path(asked), shipped_recipes()
    if file.is_file():
        return file
    if asked in shipped:
        return shipped[asked]
    name = asked.removeprefix("./").removeprefix("recipes/").rstrip("/")
    name = name.removesuffix(file.suffix) if file.suffix in SUFFIXES else name
    beside = [other for other in shipped if other.rpartition("/")[0] == name]
    within = beside or [other for other in shipped if other.startswith(f"{name}/")]
    if within:
        raise ValueError(f"{asked!r} is a folder of recipes: name one of {', '.join(within)}.")
    cure = f" (did you mean {name!r}?)" if name in shipped else nearest(name, shipped)
    raise ValueError(
        f"{asked!r} is neither a file nor the name of a shipped recipe{cure}. `trl-prorl train` lists those."
    )


def with_recipe(arguments: Iterable[str]) -> list[str]:
    """
    A command line that names its recipe by `--config PATH`: the recipe may come first, without an option, and be the
    name of a shipped one. Raises `ValueError`: as [`recipe_file`].
    """
    words = [part for word in arguments for part in (word.split("=", 1) if word.startswith("--config=") else [word])]
    if words and not words[0].startswith("-"):
        words.insert(0, "--config")
    # Behind the options a recipe would be taken for the value of one, or for nothing.
    for before, word in itertools.pairwise(words if "--config" not in words else ()):
        if not before.startswith("-") and (word.endswith(SUFFIXES) or word in shipped_recipes()):
            raise ValueError(f"{word!r} follows no option: the recipe comes first, before every option.")
    return [
        str(recipe_file(word)) if place and words[place - 1] == "--config" else word
        for place, word in enumerate(words)
    ]
