"""Which runs the study consists of: from `study/recipes/matrix.yaml` to a list of runs, in the order of training."""

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from study.bases import is_base
from trl_prorl.errors import InputError
from trl_prorl.launch.recipe_check import UniqueKeys, nearest, read_recipe
from trl_prorl.record.shapes import Shape, ShapeError, array, flag, integer, optional, refuse, table, text


MATRIX = Path("study", "recipes", "matrix.yaml")  # below the checkout
TUNED, OWN = "tuned", "tuned_own"  # values that a block with the split `validation` chooses
MODEL = "model_name_or_path"
# What a run is told by its place in the matrix, so that no arm may say it.
OF_THE_RUN = (MODEL, "seed", "max_steps", "output_dir", "run_dir")
OPTIMIZER_KEYS = ("optimizer_reset", "optimizer_reset_alpha")
# The key of an arm that the study alone knows: the module that trains it, from its recipe, in place of the product.
TRAINED_BY = "trained_by"
TRAINERS = ("study.fine_tuning",)
BASE_ARM = "base"


def _spelt(pattern: str, needed: str) -> Shape:
    def check(value: Any, at: str) -> None:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            refuse(value, at, needed)

    return check


def _keys(value: Any, at: str) -> None:
    if not isinstance(value, dict) or set(OF_THE_RUN) & value.keys():
        refuse(value, at, f"a mapping of recipe keys, without {', '.join(OF_THE_RUN)},")
    trained_by = value.get(TRAINED_BY)
    if trained_by is not None and trained_by not in TRAINERS:
        refuse(trained_by, f"{at}.{TRAINED_BY}", f"one of {', '.join(TRAINERS)}")


def _unknown(value: Any, at: str) -> None:
    place, _, key = at.rpartition(".")
    raise ShapeError(f"{place or 'the matrix'} has no key {key!r}{nearest(key, BLOCK)}")


NAMES = array(_spelt(r"[A-Za-z][\w.\-]*", "a name of letters, digits, '_', '.' and '-'"), least=1)
NEEDED = {"families": NAMES, "pairs": array(array(integer(0), length=2), least=1), "steps": integer(1)}
NEEDED |= {"arms": table(rest=optional(_keys))}
OPTIONS = {"default": flag, **dict.fromkeys(("suffix", "tuned_on", "tuned_family"), text)}  # fields of a `Block`
OPTIONS |= {"split": _spelt("test|validation", "test or validation")}
OPTIONS |= {"tuned_by": _spelt("pass@1|proxy|gain", "pass@1, proxy or gain")}  # study/tuned.py has the rules
OUTCOME = _spelt("gold|fall|kept|kept at equal gold", "gold, fall, kept or kept at equal gold")
TESTS = {"outcomes": array(OUTCOME, least=1)}  # study/registered.py has them
TESTS |= {"differences": array(array(text, length=2))}  # an arm, and the one that it is held against
OPTIONS |= {"registered": table(TESTS, rest=_unknown)}
BLOCK = NEEDED | OPTIONS | {"references": array(text), "others": array(text), "evaluation": table(), "keys": _keys}
BLOCK |= {"checkpoints": integer(1)}
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
    `split`, `prompts`, `samples`, `drift_samples`, and `others`, tasks that are measured beside its own; where the
    block asks for it, `checkpoints`, how many of them are scored.
    """

    key: RunKey
    recipe: dict[str, Any] = field(hash=False)
    block: str = ""
    evaluation: dict[str, Any] = field(default_factory=dict, hash=False)

    @property
    def waits(self) -> list[str]:
        """Keys of its recipe whose values have not been chosen yet."""
        return [key for key, value in self.recipe.items() if value in (TUNED, OWN)]

    @property
    def product_recipe(self) -> dict[str, Any]:
        """Its recipe without the key that the study alone knows."""
        return {name: value for name, value in self.recipe.items() if name != TRAINED_BY}

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
    no default is selected by name alone. `registered` has the `outcomes` and `differences` of the second protocol.
    """

    name: str
    runs: tuple[Run, ...]
    references: tuple[str, ...]
    steps: int  # of the optimizer, in each of its runs
    suffix: str = ""
    split: str = "test"
    tuned_on: str = ""
    tuned_by: str = "pass@1"
    tuned_family: str = ""
    default: bool = True
    registered: dict[str, list] = field(default_factory=dict, hash=False)

    @property
    def families(self) -> list[str]:
        """Those of its runs, in order."""
        return list(dict.fromkeys(run.key.family for run in self.runs))

    @property
    def arms(self) -> list[str]:
        """Those of its runs, in order."""
        return list(dict.fromkeys(run.key.arm for run in self.runs))

    @property
    def tunes(self) -> bool:
        """Whether it chooses values for other blocks, and is no part of the results."""
        return self.split == "validation"

    def kept_partner(self, arm: str) -> str | None:
        """The arm that differs only in that its resets keep the optimizer; `None` if there is none."""
        recipes = {run.key.arm: run.recipe for run in reversed(self.runs)}  # in the first family, on the first base
        kept = [name for name in self.arms if recipes[name].get("optimizer_reset", "keep") == "keep"]

        def others(name: str) -> dict:
            return {key: value for key, value in recipes[name].items() if key not in OPTIMIZER_KEYS}

        return None if arm in kept else next((name for name in kept if others(name) == others(arm)), None)


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
        Raises `InputError`: there is none of such a name.
        """
        names = _chosen("BLOCKS", blocks, [block.name for block in self.blocks])
        families = _chosen("FAMILIES", families, [name for block in self.blocks for name in block.families])
        arms = _chosen("ARMS", arms, [name for block in self.blocks for name in block.arms])
        found = []
        for block in self.blocks:
            if block.name in names and (blocks or block.default):
                runs = tuple(run for run in block.runs if run.key.family in families and run.key.arm in arms)
                references = tuple(arm for arm in block.references if arm in arms)
                found.append(replace(block, runs=runs, references=references))
        return Matrix(tuple(found))


def _chosen(option: str, asked: Iterable[str], there: list[str]) -> list[str]:
    for name in asked:
        if name not in there:
            known = ", ".join(dict.fromkeys(there))
            raise InputError(f"{option}={name}: there is none{nearest(name, there)}; there is {known}")
    return list(asked) or there


def read_matrix(root: Path) -> Matrix:
    """
    The matrix of a checkout, beside which the families' base recipes lie. Raises `InputError`: a file is missing, or
    says what cannot be: named with the key, the value and the cure.
    """
    path = root / MATRIX
    try:
        content = yaml.load(path.read_text(), UniqueKeys)
        CONTENT(content, "")
        asked = content["blocks"]
        arms, families = _arms(asked), {}
        for name in sorted({name for block in asked.values() for name in block["families"]}):
            recipe = read_recipe(path.with_name(f"{name}.yaml"))
            table(dict.fromkeys(("task", MODEL), text))(recipe, f"{name}.yaml")
            families[name] = {key: value for key, value in recipe.items() if key not in OF_THE_RUN[1:]}
        blocks = [_block(name, block, content["evaluation"], families, arms) for name, block in asked.items()]
        matrix = Matrix(tuple(blocks))
        _check_tuning(matrix)
        first = {run.key: run for run in matrix.runs}
        for run in (run for block in blocks for run in block.runs):
            if (first[run.key].recipe, first[run.key].evaluation) != (run.recipe, run.evaluation):
                raise InputError(f"{run.key}: two blocks give this run different keys; give one of them a suffix")
        return matrix
    except (OSError, yaml.YAMLError, ValueError) as error:
        raise InputError(f"{path}: {' '.join(str(error).split()).replace('--config ', '', 1)}") from error


def _arms(blocks: dict[str, dict]) -> dict[str, dict]:
    """The keys of every arm, which stand in the first block that has it."""
    arms: dict[str, dict] = {}
    for name, block in blocks.items():
        NAMES(list(block["arms"]), f"blocks.{name}.arms")
        for arm, keys in block["arms"].items():
            if keys is None and arm not in arms:
                raise InputError(f"blocks.{name}.arms: {arm} has no keys, and no block before defines it: {arm}: {{}}")
            if keys is not None and arms.setdefault(arm, keys) != keys:
                raise InputError(f"blocks.{name}.arms.{arm}={keys} is {arms[arm]} in an earlier block; rename it")
    return arms


def _block(name: str, asked: dict, evaluation: dict, families: dict, arms: dict) -> Block:
    """A block of the file; `families` and `arms` are keys of recipes by name."""
    own = evaluation | asked.get("evaluation", {})
    table(EVALUATION, rest=_unknown)(own, "evaluation")
    if own["drift_samples"] > own["samples"]:
        raise InputError(f"evaluation.drift_samples={own['drift_samples']} exceeds samples")
    references = asked.get("references") or [arm for arm in ("plain", "A") if arm in asked["arms"]]
    named = {"references": references, "registered": sum(asked.get("registered", {}).get("differences", []), [])}
    for key, arms_named in named.items():
        if any(arm not in asked["arms"] for arm in arms_named):
            raise InputError(f"blocks.{name}.{key}={arms_named!r} has to be a list of arms of the block")
    block = Block(name, (), (), asked["steps"], **{key: asked[key] for key in OPTIONS if key in asked})
    own, runs = own | {"split": block.split, "others": asked.get("others", [])}, []
    checkpoints = asked.get("checkpoints")
    if checkpoints is not None and block.steps % checkpoints:
        raise InputError(f"blocks.{name}.checkpoints={checkpoints} has to divide steps={block.steps}")
    if checkpoints is not None:
        own["checkpoints"] = checkpoints
    for pair, family, arm in product(asked["pairs"], asked["families"], asked["arms"]):
        key = RunKey(family, arm + block.suffix, *pair, block.steps)
        keys = families[family] | asked.get("keys", {}) | arms[arm]
        recipe = {name: value for name, value in keys.items() if value is not None}  # null unsets
        if is_base(recipe[MODEL]):  # `study/bases/TASK`, without the seed, which the pair has
            recipe[MODEL] = f"{recipe[MODEL]}-{key.base_seed}"
        runs.append(Run(key, recipe | {"seed": key.seed, "max_steps": key.steps}, name, own))
    return replace(block, runs=tuple(runs), references=tuple(arm + block.suffix for arm in references))


def _check_tuning(matrix: Matrix) -> None:
    """Values that are chosen have a block that chooses them, for their families and on bases of its own."""
    tuning = {block.name: block for block in matrix.blocks if block.tunes}
    for block in matrix.blocks:
        keys = sorted({key for run in block.runs for key in run.waits})
        if not block.tuned_on and keys:
            raise InputError(f"blocks.{block.name}: {keys[0]}: {TUNED} needs tuned_on, the block that chooses it")
        if not block.tuned_on:
            continue
        at = f"blocks.{block.name}.tuned_on={block.tuned_on!r}"
        if block.tuned_on not in tuning:
            raise InputError(f"{at} has to name a block with split: validation")
        families = {block.tuned_family} if block.tuned_family else set(block.families)
        if missing := sorted(families - set(tuning[block.tuned_on].families)):
            raise InputError(f"{at} does not choose for {', '.join(missing)}")
        for key in keys:
            if not any(run.recipe.get(key) for run in tuning[block.tuned_on].runs):
                raise InputError(f"{at}: {key}: {TUNED}: {block.tuned_on} tries no value of {key}")
    reported = {run.key.base for block in matrix.blocks if not block.tunes for run in block.runs}
    for base in sorted(reported & {run.key.base for block in tuning.values() for run in block.runs}):
        said = f"base {base.base_seed} of {base.family} chooses values and is reported"
        raise InputError(f"{said}; give the tuning block other bases")
