"""Which runs the study consists of: from `study/recipes/matrix.yaml` to a list of runs, in the order of training."""

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from study.bases import is_base
from trl_prorl.errors import InputError
from trl_prorl.launch.recipe_yaml import read_recipe
from trl_prorl.record.run_files import parse_yaml, read_text
from trl_prorl.record.shapes import Shape, ShapeError, array, flag, integer, optional, refuse, table, text
from trl_prorl.text import nearest


MATRIX = Path("study", "recipes", "matrix.yaml")  # below the checkout
# Values that a block with the split `validation` chooses.
TUNED = "tuned"
OWN = "tuned_own"
MODEL = "model_name_or_path"
# What a run gets from its place in the matrix, so that no arm may set it.
KEYS_OF_THE_RUN = (MODEL, "seed", "max_steps", "output_dir", "run_dir")
OPTIMIZER_KEYS = ("optimizer_reset", "optimizer_reset_alpha")
# The key of an arm that the study alone knows: the module that trains it, from its recipe, in place of the product.
TRAINED_BY = "trained_by"
# By the modules that there are.
KEEPS_CHECKPOINTS = {
    "study.all_rewarded": False,
    "study.fine_tuning": False,
    "study.replayed_kl": True,
    "study.rounds": False,
    "study.sorting_ends": True,
}
BASE_ARM = "base"


def _matching(pattern: str, needed: str) -> Shape:
    def check(value: Any, at: str) -> None:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            refuse(value, at, needed)

    return check


def _check_keys(value: Any, at: str) -> None:
    if not isinstance(value, dict) or set(KEYS_OF_THE_RUN) & value.keys():
        refuse(value, at, f"a mapping of recipe keys, without {', '.join(KEYS_OF_THE_RUN)},")
    trained_by = value.get(TRAINED_BY)
    if trained_by is not None and trained_by not in KEEPS_CHECKPOINTS:
        refuse(trained_by, f"{at}.{TRAINED_BY}", f"one of {', '.join(KEEPS_CHECKPOINTS)}")


def _refuse_unknown(value: Any, at: str) -> None:
    place, _, key = at.rpartition(".")
    raise ShapeError(f"{place or 'the matrix'} has no key {key!r}{nearest(key, BLOCK)}")


NAMES = array(_matching(r"[A-Za-z][\w.\-]*", "a name of letters, digits, '_', '.' and '-'"), least=1)
NEEDED = {
    "families": NAMES,
    "pairs": array(array(integer(0), length=2), least=1),
    "steps": integer(1),
    "arms": table(rest=optional(_check_keys)),
}
OUTCOME = _matching("gold|fall|kept|kept at equal gold", "gold, fall, kept or kept at equal gold")
REGISTERED = {
    "outcomes": array(OUTCOME, least=1),  # study/registered.py has them
    "differences": array(array(text, length=2)),  # an arm, and the one that it is compared with
}
# Those that are fields of a `Block`.
BLOCK_FIELDS = {
    "protocol": _matching("first|second|third|fourth", "first, second, third or fourth"),
    "default": flag,
    "suffix": text,
    "tuned_on": text,
    "tuned_family": text,
    "split": _matching("test|validation", "test or validation"),
    "tuned_by": _matching("pass@1|proxy|gain|reward", "pass@1, proxy, gain or reward"),  # study/tuned.py has the rules
    "registered": table(REGISTERED, rest=_refuse_unknown),
}
PASSK = {"prompts": integer(1), "samples": integer(2), "arms": array(text, least=1)}
TEXTS = {"checkpoints": integer(1), "arms": array(text, least=1)}
BLOCK = {
    **NEEDED,
    **BLOCK_FIELDS,
    "references": array(text),
    "others": array(text),
    "evaluation": table(),
    "keys": _check_keys,
    "checkpoints": integer(1),
    "passk": table(PASSK, rest=_refuse_unknown),
    "texts": table(TEXTS, rest=_refuse_unknown),
}
CONTENT = table(
    {"evaluation": table(), "blocks": table(rest=table(NEEDED, BLOCK, _refuse_unknown))}, rest=_refuse_unknown
)
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
class PlannedRun:
    """
    A run of the study, finished or not.

    Attributes:
        key (`RunKey`): Its place in the tables.
        recipe (`dict`): Its keys, all but `output_dir`.
        block (`str`): The block that asks for it.
        evaluation (`dict`): `split`, `prompts`, `samples`, `drift_samples`, and `others`, tasks that are measured
            beside its own; where the block asks for it, `checkpoints`, how many of them are scored, `passk`, the
            `prompts` and `samples` from which pass@k of large k is counted, and `texts`, whose `checkpoints` are how
            many of them have their texts kept, beside those of the end.
    """

    key: RunKey
    recipe: dict[str, Any] = field(hash=False)
    block: str = ""
    evaluation: dict[str, Any] = field(default_factory=dict, hash=False)

    @property
    def open_keys(self) -> list[str]:
        """Keys of its recipe whose values have not been chosen yet; until then it cannot be trained."""
        return [key for key, value in self.recipe.items() if value in (TUNED, OWN)]

    @property
    def product_recipe(self) -> dict[str, Any]:
        """Its recipe without the key that the study alone knows."""
        return {name: value for name, value in self.recipe.items() if name != TRAINED_BY}

    @property
    def recipe_hash(self) -> str:
        """A hash of the keys that make the arm in its family; without seeds, steps and places."""
        keys = {name: value for name, value in self.recipe.items() if name not in KEYS_OF_THE_RUN}
        return hashlib.sha256(json.dumps(keys, sort_keys=True).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Block:
    """
    A block of the matrix: arms that are compared with each other.

    Attributes:
        name (`str`): As the matrix calls it.
        runs (`tuple[PlannedRun, ...]`): In the order of training: pair by pair, each through all families and arms.
        references (`tuple[str, ...]`): The arms with which all others are compared.
        steps (`int`): Steps of the optimizer, in each of its runs.
        protocol (`str`): `first`, `second`, `third` or `fourth`.
        suffix (`str`): What the names of its arms end with.
        split (`str`): `test`, or `validation` if the block chooses values.
        tuned_on (`str`): The block that chooses the values that are `tuned`.
        tuned_by (`str`): The score by which this block chooses.
        tuned_family (`str`): The family of that block whose choice is taken; each family's own if it is empty.
        default (`bool`): A block that is no default is selected by name alone.
        registered (`dict`): `outcomes` and `differences` of the later protocols.
    """

    name: str
    runs: tuple[PlannedRun, ...]
    references: tuple[str, ...]
    steps: int
    protocol: str = "first"
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

    @property
    def outcomes(self) -> list[str]:
        """The outcomes of its registered tests; none in a block of the first protocol."""
        return self.registered.get("outcomes", [])

    def kept_partner(self, arm: str) -> str | None:
        """The arm that differs only in that its resets keep the optimizer; `None` if there is none."""
        recipes: dict[str, dict] = {}  # in the first family, on the first base
        for run in self.runs:
            recipes.setdefault(run.key.arm, run.recipe)

        def other_keys(name: str) -> dict:
            return {key: value for key, value in recipes[name].items() if key not in OPTIMIZER_KEYS}

        keeping = [name for name in self.arms if recipes[name].get("optimizer_reset", "keep") == "keep"]
        if arm in keeping:
            return None
        for name in keeping:
            if other_keys(name) == other_keys(arm):
                return name
        return None


@dataclass(frozen=True)
class Matrix:
    """The study's blocks, in order."""

    blocks: tuple[Block, ...]

    @property
    def runs(self) -> list[PlannedRun]:
        """Every run once, in the order of training."""
        found: dict[RunKey, PlannedRun] = {}
        for block in self.blocks:
            for run in block.runs:
                found.setdefault(run.key, run)
        return list(found.values())

    def selected(self, blocks: Iterable[str] = (), families: Iterable[str] = (), arms: Iterable[str] = ()) -> "Matrix":
        """
        Return the part with these blocks, families and arms; of what is not given, all, but for blocks that are no
        default. Raises `InputError`: there is none of such a name.
        """
        names = _check_selection("BLOCKS", blocks, [block.name for block in self.blocks])
        families = _check_selection("FAMILIES", families, [name for block in self.blocks for name in block.families])
        arms = _check_selection("ARMS", arms, [name for block in self.blocks for name in block.arms])
        found = []
        for block in self.blocks:
            if block.name in names and (blocks or block.default):
                runs = tuple(run for run in block.runs if run.key.family in families and run.key.arm in arms)
                references = tuple(arm for arm in block.references if arm in arms)
                found.append(replace(block, runs=runs, references=references))
        return Matrix(tuple(found))


def _check_selection(option: str, selected: Iterable[str], there: list[str]) -> list[str]:
    """Return the selected names, or all without any; refuse one that is not there."""
    for name in selected:
        if name not in there:
            known = ", ".join(dict.fromkeys(there))
            raise InputError(f"{option}={name}: there is none{nearest(name, there)}; there is {known}")
    return list(selected) or there


def read_matrix(root: Path) -> Matrix:
    """
    Read the matrix of a checkout, beside which the families' base recipes lie. Raises `InputError`: a file is missing,
    or says what cannot be: named with the key, the value and the cure.
    """
    path = root / MATRIX
    try:
        content = parse_yaml(read_text(path), "the matrix")
        CONTENT(content, "")
        families = _read_families(path.parent, content["blocks"])
        arms = _keys_of_arms(content["blocks"])
        blocks = []
        for name, given in content["blocks"].items():
            blocks.append(_make_block(name, given, content["evaluation"], families, arms))
        matrix = Matrix(tuple(blocks))
        _check_tuning(matrix)
        _check_shared_runs(matrix)
        return matrix
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {' '.join(str(error).split()).replace('--config ', '', 1)}") from error


def _read_families(folder: Path, blocks: dict[str, dict]) -> dict[str, dict]:
    """Read the base recipes of all families, without the keys of a run."""
    families = {}
    for name in sorted({name for block in blocks.values() for name in block["families"]}):
        recipe = read_recipe(folder / f"{name}.yaml")
        table(dict.fromkeys(("task", MODEL), text))(recipe, f"{name}.yaml")
        families[name] = {key: value for key, value in recipe.items() if key == MODEL or key not in KEYS_OF_THE_RUN}
    return families


def _keys_of_arms(blocks: dict[str, dict]) -> dict[str, dict]:
    """Collect the keys of every arm, which stand in the first block that has it."""
    arms: dict[str, dict] = {}
    for name, block in blocks.items():
        NAMES(list(block["arms"]), f"blocks.{name}.arms")
        for arm, keys in block["arms"].items():
            if keys is None and arm not in arms:
                raise InputError(f"blocks.{name}.arms: {arm} has no keys, and no block before defines it: {arm}: {{}}")
            if keys is not None and arms.setdefault(arm, keys) != keys:
                raise InputError(f"blocks.{name}.arms.{arm}={keys} is {arms[arm]} in an earlier block; rename it")
    return arms


def _make_block(name: str, given: dict, evaluation: dict, families: dict, arms: dict) -> Block:
    """Make a block of the file; `families` and `arms` are keys of recipes by name."""
    references = given.get("references")
    if not references:
        references = [arm for arm in ("plain", "A") if arm in given["arms"]]
    registered = [arm for pair in given.get("registered", {}).get("differences", []) for arm in pair]
    passk = dict(given.get("passk", {}))
    with_passk = passk.pop("arms", [])
    texts = dict(given.get("texts", {}))
    with_texts = texts.pop("arms", [])
    named_in = {"references": references, "registered": registered, "passk": with_passk, "texts": with_texts}
    for key, named in named_in.items():
        if any(arm not in given["arms"] for arm in named):
            raise InputError(f"blocks.{name}.{key}={named!r} has to be a list of arms of the block")
    fields = {key: given[key] for key in BLOCK_FIELDS if key in given}
    block = Block(name, (), (), given["steps"], **fields)
    measured = _evaluation_of(block, given, evaluation)
    runs = []
    for pair, family, arm in product(given["pairs"], given["families"], given["arms"]):
        key = RunKey(family, arm + block.suffix, *pair, block.steps)
        keys = {**families[family], **given.get("keys", {}), **arms[arm]}
        recipe = {name: value for name, value in keys.items() if value is not None}  # null unsets
        if is_base(recipe[MODEL]):  # `study/bases/TASK`, to which the pair adds the seed
            recipe[MODEL] = f"{recipe[MODEL]}-{key.base_seed}"
        recipe["seed"] = key.seed
        recipe["max_steps"] = key.steps
        of_arm = dict(measured)
        if arm in with_passk:
            of_arm["passk"] = passk
        if texts:
            of_arm["texts"] = texts if arm in with_texts else {"checkpoints": 0}
        runs.append(PlannedRun(key, recipe, name, of_arm))
    return replace(block, runs=tuple(runs), references=tuple(arm + block.suffix for arm in references))


def _evaluation_of(block: Block, given: dict, evaluation: dict) -> dict[str, Any]:
    """Return the evaluation of a block's runs: that of the file, but for what the block says itself."""
    own = {**evaluation, **given.get("evaluation", {})}
    table(EVALUATION, rest=_refuse_unknown)(own, "evaluation")
    if own["drift_samples"] > own["samples"]:
        raise InputError(f"evaluation.drift_samples={own['drift_samples']} exceeds samples")
    own["split"] = block.split
    own["others"] = given.get("others", [])
    checkpoints = given.get("checkpoints")
    if checkpoints is not None:
        _check_divides(checkpoints, f"blocks.{block.name}.checkpoints", block.steps)
        own["checkpoints"] = checkpoints
    if "texts" in given:
        _check_divides(given["texts"]["checkpoints"], f"blocks.{block.name}.texts.checkpoints", block.steps)
    return own


def _check_divides(checkpoints: int, at: str, steps: int) -> None:
    if steps % checkpoints:
        raise InputError(f"{at}={checkpoints} has to divide steps={steps}")


def _check_tuning(matrix: Matrix) -> None:
    """Refuse values that no block chooses, for their families and on bases of its own."""
    tuning = {block.name: block for block in matrix.blocks if block.tunes}
    for block in matrix.blocks:
        keys = sorted({key for run in block.runs for key in run.open_keys})
        if not block.tuned_on:
            if keys:
                raise InputError(f"blocks.{block.name}: {keys[0]}: {TUNED} needs tuned_on, the block that chooses it")
            continue
        at = f"blocks.{block.name}.tuned_on={block.tuned_on!r}"
        if block.tuned_on not in tuning:
            raise InputError(f"{at} has to name a block with split: validation")
        families = {block.tuned_family} if block.tuned_family else set(block.families)
        missing = sorted(families - set(tuning[block.tuned_on].families))
        if missing:
            raise InputError(f"{at} does not choose for {', '.join(missing)}")
        for key in keys:
            if not any(run.recipe.get(key) for run in tuning[block.tuned_on].runs):
                raise InputError(f"{at}: {key}: {TUNED}: {block.tuned_on} tries no value of {key}")
    reported = {run.key.base for block in matrix.blocks if not block.tunes for run in block.runs}
    tuned = {run.key.base for block in tuning.values() for run in block.runs}
    for base in sorted(reported & tuned):
        raise InputError(
            f"base {base.base_seed} of {base.family} chooses values and is reported; give the tuning block other bases"
        )


def _check_shared_runs(matrix: Matrix) -> None:
    """Refuse a run to which two blocks give different keys."""
    first = {run.key: run for run in matrix.runs}
    for block in matrix.blocks:
        for run in block.runs:
            other = first[run.key]
            if (other.recipe, other.evaluation) != (run.recipe, run.evaluation):
                raise InputError(f"{run.key}: two blocks give this run different keys; give one of them a suffix")
