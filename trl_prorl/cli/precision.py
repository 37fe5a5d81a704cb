"""
bf16 on a CPU: three times faster than fp32 on some, slower on others, and instruction sets do not show which. `bf16:
auto` in a recipe measures it.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from accelerate.utils import get_int_from_env
from torch.utils.benchmark import Timer

from ..errors import InputError
from ..keys import read_resume_word
from ..run.folder import RunFolder
from ..run.identity import IDENTITY_FILE
from ..run.log_files import ENV_FILE, read_json


AUTO = "auto"  # a value of bf16 in a recipe
# Variables from which Accelerate, too, reads how many processes a launcher has started.
PROCESS_COUNTS = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")

# An MLP of a small language model, for a micro-batch of a few completions.
ROWS = 64
WIDTH = 1536
OUTPUTS = 8960
NAMES = {True: "bfloat16", False: "float32"}


@dataclass(frozen=True)
class Precision:
    """
    The precision of a run whose recipe sets `bf16: auto`.

    Attributes:
        keys (`dict[str, Any]`): `bf16` and `dtype`.
        line (`str`, *optional*): The choice and its reason, for the terminal; `None` if the command line sets it.
        recorded (`str`, *optional*): The same for `env.json`, from the run's start.
    """

    keys: dict[str, Any]
    line: str | None = None
    recorded: str | None = None


@functools.cache
def measure_products() -> dict[bool, float]:
    """
    Time a matrix product with the threads of training.

    Returns:
        `dict[bool, float]`: GFLOP/s in fp32 (`False`) and in bf16 (`True`), the median of many runs.
    """
    speeds = {}
    for is_bf16, name in NAMES.items():
        dtype = getattr(torch, name)
        operands = {"rows": torch.ones(ROWS, WIDTH, dtype=dtype), "weight": torch.ones(OUTPUTS, WIDTH, dtype=dtype)}
        timer = Timer("rows @ weight.T", globals=operands, num_threads=torch.get_num_threads())
        speeds[is_bf16] = 2 * ROWS * WIDTH * OUTPUTS / timer.blocked_autorange().median / 1e9
    return speeds


def choose_precision(recipe: Mapping[str, Any], given: Mapping[str, Any]) -> Precision | None:
    """
    Choose the precision of `bf16: auto`: the command line's, else that of the resumed checkpoint, else the faster one
    here.

    Args:
        recipe (`Mapping[str, Any]`): The keys of the recipe.
        given (`Mapping[str, Any]`): Those of the command line, which win.

    Returns:
        `Precision` or `None`: `None` without `bf16: auto`.

    Raises:
        `ValueError`: The recipe also sets `dtype`, or is not for a CPU; or there are several processes.
    """
    if recipe.get("bf16") != AUTO:
        return None
    if "dtype" in recipe:
        dtype = recipe["dtype"]
        raise InputError(f"dtype={dtype!r} conflicts with bf16: auto, which also chooses dtype. Remove dtype.")
    if recipe.get("use_cpu") is not True:
        raise InputError("bf16: auto needs use_cpu: true. On a GPU remove bf16; its default there is true.")
    if "bf16" in given:
        return Precision({"bf16": given["bf16"], "dtype": NAMES[given["bf16"]]})
    recorded = read_recorded_precision({**recipe, **given})
    if recorded is not None:
        return recorded
    if get_int_from_env(PROCESS_COUNTS, 1) > 1:
        raise InputError(
            "bf16: auto supports only one process, because several might choose differently. Set bf16 and dtype: "
            "--bf16 false --dtype float32, or --bf16 true --dtype bfloat16."
        )
    speeds = measure_products()
    is_bf16 = speeds[True] > speeds[False]
    line = (
        f"bf16: auto chose {NAMES[is_bf16]}: matrix products run at {speeds[False]:.0f} GFLOP/s in float32 and "
        f"{speeds[True]:.0f} in bfloat16 on this CPU"
    )
    return Precision({"bf16": is_bf16, "dtype": NAMES[is_bf16]}, line, line)


def read_recorded_precision(keys: Mapping[str, Any]) -> Precision | None:
    resume = read_resume_word(keys.get("resume_from_checkpoint"))
    if resume is None:
        return None
    try:
        checkpoint = RunFolder(keys.get("output_dir") or "trainer_output").find(resume, content=False)
    except ValueError:
        return None  # the run starts at step 0, or `check_folder` raises an error
    then = read_json(checkpoint / IDENTITY_FILE)
    if not isinstance(then.get("bf16"), bool):
        return None
    chosen = {key: then[key] for key in ("bf16", "dtype") if then.get(key) is not None}
    line = f"bf16: auto chose {NAMES[then['bf16']]}, as in {checkpoint}"
    env_file = checkpoint.parent / ENV_FILE
    earlier = read_json(env_file).get("precision") if env_file.is_file() else None
    return Precision(chosen, line, earlier or line)
