"""The shipped recipes by name (`tiny/variantA`), and their list. Imports nothing slow."""

import itertools
import textwrap
from collections.abc import Iterable
from pathlib import Path

from ..errors import InputError
from ..text import nearest
from .variants import VARIANTS


RECIPES = (Path(__file__).parents[1] / "recipes").resolve()  # in a checkout it is a link
SUFFIXES = (".yaml", ".yml")
WIDTH = 79
USAGE = "usage: trl-prorl train RECIPE [--KEY VALUE ...]"
# In the order in which a newcomer would try them.
FAMILIES = {
    "tiny": "0.7 M parameters, CPU, minutes",
    "smollm2": "SmolLM2-135M, CPU; first run `trl-prorl smollm2`",
    "prorl_mix": "SmolLM2-135M on ProRL's five kinds of tasks, CPU",
    "gsm8k": "Qwen2.5-0.5B on GSM8K, one GPU; gsm8k/cpu: Coder-1.5B on a CPU",
}
SHOWN = {"plain": "plain", "control": "control", "variantA": "A", "variantB": "B", "variantC": "C"}


def shipped_recipes() -> dict[str, Path]:
    """Return the recipes that can be trained (no `base.yaml`), sorted by name."""
    files = {file.relative_to(RECIPES).with_suffix("").as_posix(): file for file in RECIPES.rglob("*.yaml")}
    return {name: files[name] for name in sorted(files) if files[name].stem != "base"}


def recipe_file(name_or_path: str) -> Path:
    """
    Return the file of a path or of a shipped recipe's name; an existing file wins. Raises `ValueError`: there is
    neither.
    """
    file = Path(name_or_path)
    shipped = shipped_recipes()
    if file.suffix == ".py":
        raise InputError(
            f"{name_or_path!r} is a Python script, not a recipe: run it with `python`, and to check it, call "
            "`preflight(trainer)` in it."
        )
    if file.is_file():
        return file
    if name_or_path in shipped:
        return shipped[name_or_path]
    name = name_or_path.removeprefix("./").removeprefix("recipes/").rstrip("/")
    if file.suffix in SUFFIXES:
        name = name.removesuffix(file.suffix)
    within = [other for other in shipped if other.startswith(f"{name}/")]
    if within:
        first = f"{name}/plain" if f"{name}/plain" in within else within[0]
        raise InputError(
            f"{name_or_path!r} is a folder of recipes. Start with `trl-prorl train {first}`, or list all recipes with "
            "`trl-prorl train --all`."
        )
    cure = f" (did you mean {name!r}?)" if name in shipped else nearest(name, shipped)
    raise InputError(
        f"{name_or_path!r} is neither a file nor a shipped recipe{cure}. List all recipes with "
        "`trl-prorl train --all`."
    )


def with_recipe(arguments: Iterable[str]) -> list[str]:
    """
    Return a command line with `--config PATH`. The recipe, or a shipped one's name, may also be the first argument.

    Raises:
        `ValueError`: There is no such recipe, it is not the first argument, or there are two.
    """
    words: list[str] = []
    for word in arguments:
        words += word.split("=", 1) if word.startswith("--config=") else [word]
    if words and not words[0].startswith("-"):
        words.insert(0, "--config")
    if words.count("--config") > 1:
        raise InputError("the recipe is given twice: give one.")
    if "--config" not in words:
        # After the options, a recipe would be read as the value of one, or ignored.
        for before, word in itertools.pairwise(words):
            if not before.startswith("-") and (word.endswith(SUFFIXES) or word in shipped_recipes()):
                raise InputError(f"{word!r} comes after an option: write the recipe first, before all options.")
        return words
    place = words.index("--config") + 1
    if place == len(words):
        raise InputError("--config needs a recipe: --config PATH.")
    words[place] = str(recipe_file(words[place]))
    return words


def short_list() -> str:
    families = [f"  {family:<11}{text}" for family, text in FAMILIES.items()]
    variants = [f"  {name:<11}{VARIANTS[variant].recipe}" for name, variant in SHOWN.items()]
    lines = [
        USAGE,
        "",
        "RECIPE is a YAML file, or a shipped recipe FAMILY/VARIANT:",
        "",
        "  trl-prorl train tiny/plain --max_steps 20",
        "",
        "Families:",
        *families,
        "",
        "Variants:",
        *variants,
        "",
        f"All {len(shipped_recipes())} recipes (optimizer resets, published schemes, event-triggered",
        "resets, LoRA growth):  trl-prorl train --all",
        "All keys:  trl-prorl train --help",
    ]
    return "\n".join(lines)


def whole_list() -> str:
    lines = [USAGE, "", "RECIPE is a YAML file, or a shipped recipe FOLDER/NAME, for example tiny/variantA:"]
    recipes = shipped_recipes()
    by_folder = sorted(recipes, key=lambda name: name.rpartition("/"))
    for folder, names in itertools.groupby(by_folder, key=lambda name: name.rpartition("/")[0]):
        lines += ["", f"  {folder}/"]
        for name in names:
            text = f"    {recipes[name].stem:<18} {first_words(recipes[name])}"
            lines += textwrap.wrap(text, WIDTH, subsequent_indent=" " * 23, break_on_hyphens=False)
    return "\n".join(lines)


def first_words(file: Path) -> str:
    """Return the first sentences of a recipe's leading comment, as complete lines."""
    words = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        words.append(line.lstrip("# "))
        if line.endswith((".", "?")):
            break
    return " ".join(words)
