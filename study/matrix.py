"""Which runs the study consists of: from `recipes/study/matrix.yaml` to a list of runs, in the order of training."""

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from trl_prorl.errors import InputError
from trl_prorl.launch.recipe_check import UniqueKeys, nearest, read_recipe


MATRIX = Path("recipes", "study", "matrix.yaml")  # below the checkout
BLOCK_KEYS = {"families", "pairs", "steps", "arms", "keys", "suffix", "references", "split", "tuned_on", "tuned_by"}
OUTCOMES = ("pass@1", "proxy")  # by which values are chosen; a reward that can be gamed is all that its users see
SPLITS = ("test", "validation")  # the second for blocks that choose values
TUNED = "tuned"  # a value that a block with the split `validation` chooses: study/tuned.py
REFERENCES = ["plain", "A"]  # the arms that all others of a block are held against
LEAST = {"prompts": 2, "samples": 8, "drift_samples": 1}  # of an evaluation; pass@8 needs 8 samples
NAME = re.compile(r"[A-Za-z][\w.\-]*")
# What a run is told by its place in the matrix, so that no family or arm may say it.
OF_THE_RUN = ("model_name_or_path", "seed", "max_steps", "output_dir", "run_dir")


class RunKey(NamedTuple):
    """What tells a run from every other."""

    family: str
    arm: str
    base_seed: int
    seed: int
    steps: int

    def __str__(self) -> str:
        return f"{self.family}, {self.arm}, base seed {self.base_seed}, seed {self.seed}, {self.steps} steps"


@dataclass(frozen=True)
class Run:
    """
    A run of the study.

    Attributes:
        key (`RunKey`): What tells it from others.
        recipe (`dict`): Its keys, whole but for `output_dir`.
        split (`str`): The questions that it is evaluated on.
        block (`str`): The block that asks for it.
    """

    key: RunKey
    recipe: dict[str, Any] = field(hash=False)
    split: str = "test"
    block: str = ""

    @property
    def waits(self) -> bool:
        """Whether a value of its recipe has not been chosen yet."""
        return TUNED in self.recipe.values()

    @property
    def recipe_hash(self) -> str:
        """Of the keys that make the arm in its family; without seeds, steps and places."""
        keys = {name: value for name, value in self.recipe.items() if name not in OF_THE_RUN}
        return hashlib.sha256(json.dumps(keys, sort_keys=True).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Block:
    """
    A block of the matrix.

    Attributes:
        name (`str`): Its name.
        families (`tuple[str, ...]`): Families.
        arms (`tuple[str, ...]`): Arms, the block's suffix included.
        references (`tuple[str, ...]`): Those of the arms that all others are held against.
        suffix (`str`): What the block adds to the names of its arms.
        runs (`tuple[Run, ...]`): Its runs in the order of training: pair by pair, each through all families and arms.
        split (`str`): The questions that its runs are evaluated on.
        tuned_on (`str` or `None`): The block that chooses its values `tuned`.
        tuned_by (`str`): Of a block that chooses values: the column of `runs.csv` by which it does.
    """

    name: str
    families: tuple[str, ...]
    arms: tuple[str, ...]
    references: tuple[str, ...]
    suffix: str
    runs: tuple[Run, ...]
    split: str = "test"
    tuned_on: str | None = None
    tuned_by: str = OUTCOMES[0]

    @property
    def tunes(self) -> bool:
        """Whether it chooses values for other blocks, and is no part of the results."""
        return self.split == "validation"

    def recipe(self, arm: str) -> dict[str, Any]:
        """The keys of an arm, in the first family."""
        return next(run.recipe for run in self.runs if run.key.arm == arm)


@dataclass(frozen=True)
class Matrix:
    """
    The study's runs.

    Attributes:
        blocks (`tuple[Block, ...]`): The blocks, in order.
        prompts, samples, drift_samples (`int`): Held-out prompts; samples of each; those of them on which drift is
            measured.
    """

    blocks: tuple[Block, ...]
    prompts: int
    samples: int
    drift_samples: int

    @property
    def runs(self) -> list[Run]:
        """Every run once, in the order of training."""
        found: dict[RunKey, Run] = {}
        for run in (run for block in self.blocks for run in block.runs):
            found.setdefault(run.key, run)
        return list(found.values())

    def selected(self, blocks: Iterable[str] = (), families: Iterable[str] = (), arms: Iterable[str] = ()) -> "Matrix":
        """
        The part with these blocks, families and arms; of what is not given, all.

        Raises:
            InputError: There is none of such a name.
        """
        chosen = tuple(_chosen("BLOCKS", blocks, [block.name for block in self.blocks]))
        families = _chosen("FAMILIES", families, [name for block in self.blocks for name in block.families])
        arms = _chosen("ARMS", arms, [name for block in self.blocks for name in block.arms])
        kept = []
        for block in self.blocks:
            if block.name in chosen:
                runs = (run for run in block.runs if run.key.family in families and run.key.arm in arms)
                kept.append(
                    replace(
                        block,
                        families=tuple(name for name in block.families if name in families),
                        arms=tuple(name for name in block.arms if name in arms),
                        references=tuple(name for name in block.references if name in arms),
                        runs=tuple(runs),
                    )
                )
        return Matrix(tuple(kept), self.prompts, self.samples, self.drift_samples)


def _chosen(option: str, asked: Iterable[str], there: list[str]) -> list[str]:
    there = list(dict.fromkeys(there))
    for name in asked:
        if name not in there:
            raise InputError(f"{option}={name}: there is none{nearest(name, there)}; there is {', '.join(there)}")
    return list(asked) or there


def base_model(task: str, base_seed: int) -> str:
    """The `model_name_or_path` of a base."""
    return f"embedded:{task}:{base_seed}"


def read_matrix(root: Path) -> Matrix:
    """
    The matrix of a checkout.

    Args:
        root (`Path`): The checkout's root; the families' base recipes lie beside the matrix.

    Raises:
        InputError: A file is missing, or says what cannot be: named with the key, the value and the cure.
    """
    path = root / MATRIX
    content = _read(path)
    _check_keys(path, "the matrix", content, {"evaluation", "blocks"})
    evaluation, blocks = content.get("evaluation"), content.get("blocks")
    if not isinstance(evaluation, dict) or set(evaluation) != set(LEAST):
        raise InputError(f"{path}: evaluation={evaluation!r} has to give {', '.join(LEAST)}")
    for key in LEAST:
        _whole(path, f"evaluation.{key}", evaluation[key], LEAST[key])
    if evaluation["drift_samples"] > evaluation["samples"]:
        raise InputError(f"{path}: evaluation.drift_samples={evaluation['drift_samples']} exceeds samples")
    if not isinstance(blocks, dict) or not blocks:
        raise InputError(f"{path}: blocks={blocks!r} has to be a mapping from names to blocks")
    families: dict[str, dict] = {}
    arms: dict[str, dict] = {}
    made = [_block(path, name, block, families, arms) for name, block in blocks.items()]
    _check_tuning(path, made)
    recipes: dict[RunKey, Run] = {}
    for run in (run for block in made for run in block.runs):
        if recipes.setdefault(run.key, run).recipe != run.recipe:
            raise InputError(
                f"{path}: {run.key}: two blocks give this run different keys; give one of the blocks a suffix"
            )
    return Matrix(tuple(made), **evaluation)


def _block(path: Path, name: str, block: Any, families: dict[str, dict], arms: dict[str, dict]) -> Block:
    where = f"blocks.{name}"
    if not isinstance(block, dict):
        raise InputError(f"{path}: {where}={block!r} has to be a mapping with families, pairs, steps and arms")
    _check_keys(path, where, block, BLOCK_KEYS)
    for key in ("families", "pairs", "steps", "arms"):
        if block.get(key) in (None, [], {}):
            raise InputError(f"{path}: {where}.{key} is missing; give it")
    steps, suffix, keys = block["steps"], block.get("suffix") or "", block.get("keys") or {}
    _whole(path, f"{where}.steps", steps, 1)
    for key in ("families", "pairs"):
        if not isinstance(block[key], list):
            raise InputError(f"{path}: {where}.{key}={block[key]!r} has to be a list")
    for pair in block["pairs"]:
        if not (isinstance(pair, list) and len(pair) == 2 and all(type(seed) is int and seed >= 0 for seed in pair)):
            raise InputError(f"{path}: {where}.pairs: {pair!r} has to be [base seed, training seed]")
    _check_own(path, f"{where}.keys", keys)
    if not isinstance(block["arms"], dict):
        raise InputError(f"{path}: {where}.arms={block['arms']!r} has to be a mapping from names to keys")
    for arm, own in block["arms"].items():
        _check_name(path, f"{where}.arms", arm)
        if own is None:
            if arm not in arms:
                raise InputError(
                    f"{path}: {where}.arms: {arm} has no keys, and no block before defines it: {arm}: {{}}"
                )
            continue
        _check_own(path, f"{where}.arms.{arm}", own)
        if arms.setdefault(arm, own) != own:
            raise InputError(f"{path}: {where}.arms.{arm}={own} is {arms[arm]} in an earlier block; rename it")
    for family in block["families"]:
        _check_name(path, f"{where}.families", family)
        if family not in families:
            families[family] = _family(path.parent / f"{family}.yaml")
    split, tuned_on = block.get("split", SPLITS[0]), block.get("tuned_on")
    tuned_by = block.get("tuned_by", OUTCOMES[0])
    for key, value, known in (("split", split, SPLITS), ("tuned_by", tuned_by, OUTCOMES)):
        if value not in known:
            raise InputError(f"{path}: {where}.{key}={value!r} has to be one of {', '.join(known)}")
    runs = (
        _run(RunKey(family, arm + suffix, *pair, steps), families[family], keys, arms[arm], split, name)
        for pair in block["pairs"]
        for family in block["families"]
        for arm in block["arms"]
    )
    references = block.get("references", [arm for arm in REFERENCES if arm in block["arms"]])
    if not isinstance(references, list) or any(arm not in block["arms"] for arm in references):
        raise InputError(f"{path}: {where}.references={references!r} has to be a list of arms of the block")
    names = (tuple(arm + suffix for arm in arms) for arms in (block["arms"], references))
    return Block(name, tuple(block["families"]), *names, suffix, tuple(runs), split, tuned_on, tuned_by)


def _check_tuning(path: Path, blocks: list[Block]) -> None:
    """Values that are chosen have a block that chooses them, for their families and on bases of its own."""
    by_name = {block.name: block for block in blocks}
    for block in blocks:
        where, keys = (
            f"{path}: blocks.{block.name}",
            {key for run in block.runs for key, value in run.recipe.items() if value == TUNED},
        )
        if block.tuned_on is None:
            if keys:
                raise InputError(f"{where}: {sorted(keys)[0]}: {TUNED} needs tuned_on, the block that chooses it")
            continue
        tuning = by_name.get(block.tuned_on)
        if tuning is None or not tuning.tunes:
            raise InputError(f"{where}.tuned_on={block.tuned_on!r} has to name a block with split: validation")
        if missing := set(block.families) - set(tuning.families):
            raise InputError(f"{where}.tuned_on={block.tuned_on!r} does not choose for {', '.join(sorted(missing))}")
        for key in sorted(keys):
            if not any(run.recipe.get(key) for run in tuning.runs):
                raise InputError(f"{where}: {key}: {TUNED}: {block.tuned_on} tries no value of {key}")
    of_split = {
        split: {(run.key.family, run.key.base_seed) for b in blocks if b.split == split for run in b.runs}
        for split in SPLITS
    }
    if both := of_split["test"] & of_split["validation"]:
        family, base = min(both)
        raise InputError(
            f"{path}: base {base} of {family} chooses values and is reported; give the tuning block other bases"
        )


def _run(key: RunKey, family: dict, keys: dict, arm: dict, split: str, block: str) -> Run:
    merged = {**family, **keys, **arm}
    recipe = {name: value for name, value in merged.items() if value is not None}  # null unsets
    model = base_model(recipe["task"], key.base_seed)
    return Run(key, {**recipe, "model_name_or_path": model, "seed": key.seed, "max_steps": key.steps}, split, block)


def _family(path: Path) -> dict[str, Any]:
    try:
        recipe = read_recipe(path)
    except ValueError as error:
        raise InputError(str(error).replace("--config ", "", 1)) from error
    if not isinstance(recipe.get("task"), str):
        raise InputError(f"{path}: task={recipe.get('task')!r}: a family's recipe has to name its task")
    return {key: value for key, value in recipe.items() if key not in OF_THE_RUN}


def _read(path: Path) -> dict[str, Any]:
    try:
        content = yaml.load(path.read_text(), UniqueKeys)
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {' '.join(str(error).split())}; mend it") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} has to be a mapping with evaluation and blocks")
    return content


def _check_keys(path: Path, where: str, content: dict, known: set[str]) -> None:
    for key in content:
        if key not in known:
            raise InputError(f"{path}: {where} has no key {key!r}{nearest(str(key), known)}")


def _check_own(path: Path, where: str, keys: Any) -> None:
    if not isinstance(keys, dict):
        raise InputError(f"{path}: {where}={keys!r} has to be a mapping of recipe keys")
    for key in OF_THE_RUN:
        if key in keys:
            raise InputError(f"{path}: {where}.{key}={keys[key]!r}: the matrix gives it to every run; leave it out")


def _check_name(path: Path, where: str, name: Any) -> None:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InputError(f"{path}: {where}: {name!r} is no name; write letters, digits, '_', '.' and '-'")


def _whole(path: Path, where: str, value: Any, least: int) -> None:
    if type(value) is not int or value < least:
        raise InputError(f"{path}: {where}={value!r} has to be a whole number of at least {least}")
