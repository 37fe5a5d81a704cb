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
from trl_prorl.record.shapes import Shape, ShapeError, array, flag, integer, optional, refuse, table, text


MATRIX = Path("recipes", "study", "matrix.yaml")  # below the checkout
TUNED, OWN = "tuned", "tuned_own"  # values that a block with the split `validation` chooses
DEFAULTS = {"suffix": "", "split": "test", "default": True, "others": [], "evaluation": {}, "keys": {}}
DEFAULTS |= {"tuned_on": "", "tuned_by": "pass@1", "tuned_family": ""}
MODEL = "model_name_or_path"
# What a run is told by its place in the matrix, so that no arm may say it.
OF_THE_RUN = (MODEL, "seed", "max_steps", "output_dir", "run_dir")
BASE_ARM = "base"


def _spelt(pattern: str, needed: str) -> Shape:
    def check(value: Any, at: str) -> None:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            refuse(value, at, needed)

    return check


def _keys(value: Any, at: str) -> None:
    if not isinstance(value, dict) or set(OF_THE_RUN) & value.keys():
        refuse(value, at, f"a mapping of recipe keys, without {', '.join(OF_THE_RUN)},")


def _unknown(value: Any, at: str) -> None:
    place, _, key = at.rpartition(".")
    raise ShapeError(f"{place or 'the matrix'} has no key {key!r}{nearest(key, BLOCK)}")


NAMES = array(_spelt(r"[A-Za-z][\w.\-]*", "a name of letters, digits, '_', '.' and '-'"), least=1)
NEEDED = {"families": NAMES, "pairs": array(array(integer(0), length=2), least=1), "steps": integer(1)}
NEEDED |= {"arms": table(rest=optional(_keys))}
BLOCK = {**NEEDED, "references": array(text), "others": array(text), "evaluation": table(), "keys": _keys}
BLOCK |= {"default": flag, **dict.fromkeys(("suffix", "tuned_on", "tuned_family"), text)}
BLOCK |= {"split": _spelt("test|validation", "test or validation")}
BLOCK |= {"tuned_by": _spelt("pass@1|proxy|gain", "pass@1, proxy or gain")}  # study/tuned.py has the rules
CONTENT = table({"evaluation": table(), "blocks": table(rest=table(NEEDED, BLOCK, _unknown))}, rest=_unknown)
EVALUATION = {"prompts": integer(2), "samples": integer(8), "drift_samples": integer(1)}  # pass@8 needs 8 samples


class RunKey(NamedTuple):
    """What tells a run from every other."""

    family: str
    arm: str
    base_seed: int
    seed: int
    steps: int

    def __str__(self) -> str:
        return f"{self.family}, {self.arm}, base seed {self.base_seed}, seed {self.seed}, {self.steps} steps"

    @property
    def base(self) -> "RunKey":
        """The key of its base."""
        return RunKey(self.family, BASE_ARM, self.base_seed, 0, 0)


@dataclass(frozen=True)
class Run:
    """
    A run of the study: its recipe, whole but for `output_dir`, the block that asks for it, and its evaluation:
    `split`, `prompts`, `samples`, `drift_samples`, and `others`, tasks that are measured beside its own.
    """

    key: RunKey
    recipe: dict[str, Any] = field(hash=False)
    block: str = ""
    evaluation: dict[str, Any] = field(default_factory=dict, hash=False)

    @property
    def waits(self) -> bool:
        """Whether a value of its recipe has not been chosen yet."""
        return any(value in (TUNED, OWN) for value in self.recipe.values())

    @property
    def recipe_hash(self) -> str:
        """Of the keys that make the arm in its family; without seeds, steps and places."""
        keys = {name: value for name, value in self.recipe.items() if name not in OF_THE_RUN}
        return hashlib.sha256(json.dumps(keys, sort_keys=True).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Block:
    """
    A block of the matrix. Its arms have the block's suffix; all others are held against its references. Its runs are
    in the order of training: pair by pair, each through all families and arms. Values that are `tuned` come from the
    block `tuned_on`, and there from `tuned_family`, or from each family's own choice if that is empty. A block that is
    no default is selected by name alone.
    """

    name: str
    runs: tuple[Run, ...]
    references: tuple[str, ...]
    suffix: str
    split: str
    tuned_on: str
    tuned_by: str
    tuned_family: str
    default: bool

    @property
    def families(self) -> list[str]:
        """Those of its runs, in order."""
        return list(dict.fromkeys(run.key.family for run in self.runs))

    @property
    def arms(self) -> list[str]:
        """Those of its runs, in order."""
        return list(dict.fromkeys(run.key.arm for run in self.runs))

    @property
    def steps(self) -> int:
        """Optimizer steps of its runs."""
        return max((run.key.steps for run in self.runs), default=0)

    @property
    def rate(self) -> float:
        """The learning rate of its first arm."""
        return float(self.runs[0].recipe["learning_rate"]) if self.runs else 0.0

    @property
    def tunes(self) -> bool:
        """Whether it chooses values for other blocks, and is no part of the results."""
        return self.split == "validation"

    def recipe(self, arm: str) -> dict[str, Any]:
        """The keys of an arm, in the first family."""
        return next(run.recipe for run in self.runs if run.key.arm == arm)


@dataclass(frozen=True)
class Matrix:
    """The study's blocks, in order."""

    blocks: tuple[Block, ...]

    @property
    def runs(self) -> list[Run]:
        """Every run once, in the order of training."""
        found: dict[RunKey, Run] = {}
        for run in (run for block in self.blocks for run in block.runs):
            found.setdefault(run.key, run)
        return list(found.values())

    def selected(self, blocks: Iterable[str] = (), families: Iterable[str] = (), arms: Iterable[str] = ()) -> "Matrix":
        """
        The part with these blocks, families and arms; of what is not given, all, but for blocks that are no default.

        Raises:
            InputError: There is none of such a name.
        """
        default = [block.name for block in self.blocks if block.default]
        chosen = _chosen("BLOCKS", blocks, [block.name for block in self.blocks]) if blocks else default
        families = _chosen("FAMILIES", families, [name for block in self.blocks for name in block.families])
        arms = _chosen("ARMS", arms, [name for block in self.blocks for name in block.arms])

        def part(block: Block) -> Block:
            runs = tuple(run for run in block.runs if run.key.family in families and run.key.arm in arms)
            return replace(block, runs=runs, references=tuple(arm for arm in block.references if arm in arms))

        return Matrix(tuple(part(block) for block in self.blocks if block.name in chosen))


def _chosen(option: str, asked: Iterable[str], there: list[str]) -> list[str]:
    there = list(dict.fromkeys(there))
    for name in asked:
        if name not in there:
            raise InputError(f"{option}={name}: there is none{nearest(name, there)}; there is {', '.join(there)}")
    return list(asked) or there


def read_matrix(root: Path) -> Matrix:
    """
    The matrix of a checkout, beside which the families' base recipes lie.

    Raises:
        InputError: A file is missing, or says what cannot be: named with the key, the value and the cure.
    """
    path = root / MATRIX
    try:
        content = yaml.load(path.read_text(), UniqueKeys)
        CONTENT(content, "")
        families, arms, first = {}, {}, {}
        blocks = tuple(
            _block(path.parent, name, {**DEFAULTS, **block}, content["evaluation"], families, arms)
            for name, block in content["blocks"].items()
        )
        _check_tuning(blocks)
        for run in (run for block in blocks for run in block.runs):
            same = first.setdefault(run.key, run)
            if (same.recipe, same.evaluation) != (run.recipe, run.evaluation):
                raise InputError(
                    f"{run.key}: two blocks give this run different keys; give one of the blocks a suffix"
                )
        return Matrix(blocks)
    except (OSError, yaml.YAMLError, ValueError) as error:
        raise InputError(f"{path}: {' '.join(str(error).split())}") from error


def _block(folder: Path, name: str, block: dict, evaluation: dict, families: dict, arms: dict) -> Block:
    """A block of the file; `families` and `arms`, keys by name, grow with it."""
    where = f"blocks.{name}"
    NAMES(list(block["arms"]), f"{where}.arms")
    for arm, own in block["arms"].items():
        if own is None and arm not in arms:
            raise InputError(f"{where}.arms: {arm} has no keys, and no block before defines it: {arm}: {{}}")
        if own is not None and arms.setdefault(arm, own) != own:
            raise InputError(f"{where}.arms.{arm}={own} is {arms[arm]} in an earlier block; rename it")
    for family in block["families"]:
        families[family] = families.get(family) or _family(folder / f"{family}.yaml")
    own = {**evaluation, **block["evaluation"]}
    table(EVALUATION, rest=_unknown)(own, "evaluation")
    if own["drift_samples"] > own["samples"]:
        raise InputError(f"evaluation.drift_samples={own['drift_samples']} exceeds samples")
    own |= {key: block[key] for key in ("split", "others")}
    suffix, steps = block["suffix"], block["steps"]
    runs = tuple(
        _run(RunKey(family, arm + suffix, *pair, steps), {**families[family], **block["keys"], **arms[arm]}, name, own)
        for pair in block["pairs"]
        for family in block["families"]
        for arm in block["arms"]
    )
    references = block.get("references") or [arm for arm in ("plain", "A") if arm in block["arms"]]
    if any(arm not in block["arms"] for arm in references):
        raise InputError(f"{where}.references={references!r} has to be a list of arms of the block")
    rest = {key: block[key] for key in ("suffix", "split", "tuned_on", "tuned_by", "tuned_family", "default")}
    return Block(name, runs, tuple(arm + suffix for arm in references), **rest)


def _run(key: RunKey, keys: dict, block: str, evaluation: dict) -> Run:
    recipe = {name: value for name, value in keys.items() if value is not None}  # null unsets
    kind, _, taught = recipe[MODEL].partition(":")  # `embedded` and `embedded:TAUGHT` have bases by seed
    model = f"embedded:{taught or recipe['task']}:{key.base_seed}" if kind == "embedded" else recipe[MODEL]
    return Run(key, {**recipe, MODEL: model, "seed": key.seed, "max_steps": key.steps}, block, evaluation)


def _family(path: Path) -> dict[str, Any]:
    try:
        recipe = read_recipe(path)
    except ValueError as error:
        raise InputError(str(error).replace("--config ", "", 1)) from error
    table(dict.fromkeys(("task", MODEL), text))(recipe, path.name)
    return {key: value for key, value in recipe.items() if key not in OF_THE_RUN[1:]}


def _check_tuning(blocks: tuple[Block, ...]) -> None:
    """Values that are chosen have a block that chooses them, for their families and on bases of its own."""
    by_name = {block.name: block for block in blocks if block.tunes}
    for block in blocks:
        where, tuning = f"blocks.{block.name}", by_name.get(block.tuned_on)
        keys = sorted({key for run in block.runs for key, value in run.recipe.items() if value in (TUNED, OWN)})
        if keys and not block.tuned_on:
            raise InputError(f"{where}: {keys[0]}: {TUNED} needs tuned_on, the block that chooses it")
        where += f".tuned_on={block.tuned_on!r}"
        if block.tuned_on and tuning is None:
            raise InputError(f"{where} has to name a block with split: validation")
        families = [block.tuned_family] if block.tuned_family else block.families
        if tuning and (missing := sorted(set(families) - set(tuning.families))):
            raise InputError(f"{where} does not choose for {', '.join(missing)}")
        for key in keys:
            if not any(run.recipe.get(key) for run in tuning.runs):
                raise InputError(f"{where}: {key}: {TUNED}: {block.tuned_on} tries no value of {key}")
    chooses, reported = (
        {run.key.base for block in blocks if block.tunes is tunes for run in block.runs} for tunes in (True, False)
    )
    for base in sorted(chooses & reported):
        said = f"base {base.base_seed} of {base.family} chooses values and is reported"
        raise InputError(f"{said}; give the tuning block other bases")
