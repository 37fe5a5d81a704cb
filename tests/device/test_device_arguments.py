"""
No tensor is made, and no device named, without its device being thought of: read from the source of `trl_prorl/`.

`torch.arange(n)` lies with the host, and fails on a GPU beside a tensor of the model. Each place that does without a
device is listed below with its reason, and each place that names one.
"""

import ast
from pathlib import Path

import pytest


PACKAGE = Path(__file__).parents[2] / "trl_prorl"
MAKERS = {
    "arange",
    "as_tensor",
    "empty",
    "empty_strided",
    "eye",
    "from_numpy",
    "full",
    "linspace",
    "logspace",
    "normal",
    "ones",
    "rand",
    "randint",
    "randn",
    "randperm",
    "scalar_tensor",
    "tensor",
    "tril_indices",
    "triu_indices",
    "zeros",
}
# The folders whose code handles tensors of a step.
OF_A_STEP = ("adapters/", "guards/", "objective/", "record/", "resets/", "rollout/", "scoring/")

DRAWN_BY_HOST = "drawn by the host, so that it is the same on every device"
PLANNED_BY_HOST = "planned by the host, and copied to the device in one piece"
LIST_OF_HOST = "made of a list of the host; who calls it copies it"
REHEARSED = "a rehearsal of a setting before there is a model"
WITHOUT_DEVICE = {
    ("adapters/growth.py", "draw_rows"): DRAWN_BY_HOST,
    ("checkpoint/mixin.py", "_get_train_sampler"): DRAWN_BY_HOST,
    ("interchange/adam_state.py", "live_state"): "the optimizer's step, from where it lies",
    ("launch/precision.py", "measure_products"): "measures this CPU",
    ("launch/rehearsal.py", "_schedule"): REHEARSED,
    ("launch/rehearsal.py", "rehearse_checkpointing"): REHEARSED,
    ("launch/rehearsal.py", "rehearse_optimizer"): REHEARSED,
    ("rollout/cache_rows.py", "of"): PLANNED_BY_HOST,
    ("rollout/compact.py", "compact_sample"): PLANNED_BY_HOST,
    ("rollout/dynamic_sampling.py", "rows"): "indices of groups that the host has chosen",
    ("rollout/dynamic_sampling.py", "shuffle_pass"): DRAWN_BY_HOST,
    ("rollout/merged_copy.py", "disturb"): DRAWN_BY_HOST,
    ("rollout/outcome.py", "keep_groups_together"): LIST_OF_HOST,
    ("rollout/prompts.py", "pad_left"): LIST_OF_HOST,
    ("scoring/packing.py", "copy_tables"): PLANNED_BY_HOST,
    ("scoring/packing_probe.py", "tokens"): DRAWN_BY_HOST,
    ("scoring/packing_probe.py", "unequal_rows"): DRAWN_BY_HOST,
    ("scoring/prefix_attention.py", "layout"): "where no table lies on a device yet, that of a CPU",
    ("trainer.py", "_prepare_inputs"): DRAWN_BY_HOST,
}

ASKS = "asks first whether the device is one"
KEPT = "kept in the host's memory on purpose"
NAMED = {
    ("adapters/begun.py", "__init__"): KEPT,
    ("adapters/restart.py", "_merge"): KEPT,
    ("adapters/restart.py", "apply"): KEPT,
    ("adapters/restart.py", "load"): KEPT,
    ("record/gpu_usage.py", "__init__"): ASKS,
    ("record/gpu_usage.py", "_read"): "a thread that `__init__` starts for a GPU alone",
    ("record/gpu_usage.py", "measure_gpu"): ASKS,
    ("record/meter.py", "begin_step"): ASKS,
    ("record/stage_timer.py", "__init__"): "the type of a moment",
    ("record/stage_timer.py", "_moment"): ASKS,
    ("record/stage_timer.py", "settle"): ASKS,
    ("rollout/compact.py", "tokens_between_checks"): ASKS,
    ("rollout/draw.py", "_running_sums"): ASKS,
    ("rollout/merged_copy.py", "can_be_packed"): ASKS,
    ("scoring/dropout.py", "drew_numbers"): ASKS,
    ("scoring/dropout.py", "generator_states"): "every generator there is",
    ("scoring/head.py", "can_attend"): ASKS,
    ("scoring/head.py", "contiguous_states"): ASKS,
    ("scoring/head.py", "forward"): "a head that `can_attend` has found on a CPU",
    ("scoring/packing_probe.py", "coarsest_unit"): ASKS,
    ("scoring/packing_probe.py", "on_gpu"): ASKS,
    ("scoring/prefix_attention.py", "keeps_keys_shared"): ASKS,
    ("scoring/prefix_attention.py", "prefix_attention"): ASKS,
}


class Finder(ast.NodeVisitor):
    """Collects places `(file, function)` with their lines."""

    def __init__(self, file: str):
        self.file = file
        self.functions: list[str] = []
        self.without_device: dict[tuple[str, str], list[int]] = {}
        self.named: dict[tuple[str, str], list[int]] = {}

    def visit_FunctionDef(self, node):  # noqa: N802
        self.functions.append(node.name)
        self.generic_visit(node)
        self.functions.pop()

    def visit_Call(self, node):  # noqa: N802
        makes = isinstance(node.func, ast.Attribute) and node.func.attr in MAKERS
        if makes and ast.unparse(node.func.value) == "torch":
            if not any(keyword.arg in ("device", None) for keyword in node.keywords):
                self._note(self.without_device, node)
        self.generic_visit(node)

    def visit_Constant(self, node):  # noqa: N802
        if node.value in ("cpu", "cuda"):
            self._note(self.named, node)

    def visit_Attribute(self, node):  # noqa: N802
        if node.attr == "is_cuda" or ast.unparse(node) == "torch.cuda":
            self._note(self.named, node)
        self.generic_visit(node)

    def _note(self, places, node):
        place = (self.file, self.functions[-1] if self.functions else "")
        places.setdefault(place, []).append(node.lineno)


def find_places(kind: str) -> dict[tuple[str, str], list[int]]:
    """Find the places of a kind in all of the package, with their lines."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        finder = Finder(path.relative_to(PACKAGE).as_posix())
        finder.visit(ast.parse(path.read_text()))
        found.update(getattr(finder, kind))
    return found


def compare(found: dict, reasons: dict) -> list[str]:
    """Say which places have no reason, and which reasons have no place."""
    said = [f"{file}:{lines}, in {name!r}" for (file, name), lines in found.items() if (file, name) not in reasons]
    return said + [f"{file}, {name!r}: nothing there" for file, name in reasons if (file, name) not in found]


def test_every_tensor_is_made_on_a_device_or_has_a_reason():
    assert compare(find_places("without_device"), WITHOUT_DEVICE) == []


def test_every_device_that_is_named_in_a_step_has_a_reason():
    found = {place: lines for place, lines in find_places("named").items() if place[0].startswith(OF_A_STEP)}
    assert compare(found, NAMED) == []


@pytest.mark.parametrize("made", ["torch.arange(3)", "torch.zeros(2, dtype=torch.long)", "torch.tensor([1])"])
def test_a_tensor_without_a_device_is_found(made):
    finder = Finder("file.py")
    finder.visit(ast.parse(f"def make():\n    return {made}\n"))
    assert finder.without_device == {("file.py", "make"): [2]}
    finder.visit(ast.parse(made.replace(")", ", device=states.device)")))
    assert finder.without_device == {("file.py", "make"): [2]}
