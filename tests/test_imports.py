"""Who imports whom: a folder only what lies below it, and a command that only reads no model library."""

import ast
import inspect
import pkgutil
import subprocess
import sys
from graphlib import TopologicalSorter
from importlib import import_module
from importlib.util import find_spec, resolve_name
from pathlib import Path

import pytest

import trl_prorl
from trl_prorl.commands import COMMANDS


HEAVY = "{'torch', 'transformers', 'trl', 'peft', 'datasets', 'evaluate'}"


@pytest.mark.parametrize(
    "modules, libraries",
    [
        ("eval.report, eval.compare, eval.trajectory, eval.boundary", HEAVY),
        ("trl_prorl", "{'torch', 'transformers', 'trl', 'datasets', 'pandas'}"),
        ("trl_prorl.keys", "{'torch', 'transformers', 'trl', 'numpy'}"),
    ],
)
def test_what_only_reads_waits_for_no_model_library(modules, libraries):
    code = f"import sys, {modules}; assert not {libraries} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


ROOT = Path(__file__).parent.parent
# What a folder of `eval` may import of the others, from the ground up; the commands at the top may import everything.
LAYERS = {
    "metrics": (),
    "stepcost": ("command",),
    "run_folder": (),
    "analysis": ("metrics", "run_folder"),
    "samples": ("run_folder",),
    "pages": ("analysis", "run_folder", "samples"),
    "gpucheck": ("readiness", "stepcost"),
    "readiness": ("analysis", "pages", "run_folder", "samples"),
}
DRAWS_READS_OR_ASKS = ("matplotlib", "rich", "jinja2", "argparse", "json", "eval.run_folder.reading")


def imports_of(file: Path) -> set[str]:
    """
    Full names of the modules that a file imports when it runs, wherever in it; of `from a import b` both `a` and
    `a.b`. `trl_prorl` and `tasks` import themselves relatively, the other packages nothing so.
    """
    module = module_of(file)
    tree = ast.parse(file.read_text())
    found = set()
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    hints = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)]
    passed = {id(inner) for hint in hints for inner in ast.walk(hint)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and id(node) not in passed:
            relative = package.split(".")[0] in ("trl_prorl", "tasks")
            assert not node.level or relative, f"{file} imports relatively, line {node.lineno}"
            base = resolve_name("." * node.level + (node.module or ""), package)
            found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    beside = ("trl_prorl.eval", "trl_prorl.tasks")  # as they are called within a wheel
    return {name.removeprefix("trl_prorl.") if name.startswith(beside) else name for name in found}


def module_of(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def modules_of(folder: str) -> dict[str, set[str]]:
    files = [file for file in (ROOT / folder).rglob("*.py") if "tests" not in file.relative_to(ROOT).parts]
    return {module_of(file): imports_of(file) for file in files}


EVAL = modules_of("eval")
STUDY = modules_of("study")
CORE = modules_of("trl_prorl") | modules_of("tasks")
CORE = {module: {name for name in found if name in CORE} - {"trl_prorl", module} for module, found in CORE.items()}


def test_at_the_top_of_eval_are_the_commands_and_nothing_else():
    top = {file.stem for file in (ROOT / "eval").glob("*.py")} - {"__init__", "command", "command_lines"}
    commands = {module for module, _ in COMMANDS.values() if module.startswith("eval.")}
    assert {f"eval.{name}" for name in top} == commands


@pytest.mark.parametrize("folder", LAYERS)
def test_a_folder_of_eval_imports_what_lies_below_it(folder):
    """So the pages import no command, and there is no circle between folders."""
    allowed = {folder, *LAYERS[folder]}
    for module, imported in EVAL.items():
        if module.startswith(f"eval.{folder}"):
            wrong = {name for name in imported if name.startswith("eval.") and name.split(".")[1] not in allowed}
            assert not wrong, f"{module} imports {wrong}"


ANALYSIS = [module for module in EVAL if module.startswith("eval.analysis")]
ANALYSIS += ["study.hierarchical", "study.scores", "study.differences", "study.tuned"]


@pytest.mark.parametrize("module", ANALYSIS)
def test_the_analysis_is_arrays_records_and_tables_in_numbers_out(module):
    assert not {name for name in (EVAL | STUDY)[module] if name.startswith(DRAWS_READS_OR_ASKS)}
    text = inspect.getsource(import_module(module))
    assert "read_text" not in text
    assert "open(" not in text


# The floors of `trl_prorl` and of `tasks` beside it: a folder imports itself and what lies on lower floors; files at
# the top of the package may import files on their own floor.
FLOORS = (
    "announce errors files text interrupt pipes quiet pass_at_k short_names parts descriptor variants environment "
    "length_rewards choice weights weighted_mean",
    "objective resets tasks",
    "embedded scoring keys config refusals upstream_keys upstream_values",
    "guards record",
    "adapters rollout checkpoint interchange",
    "hub launch",
    "assembly trainer train commands demo __main__",
)
FLOOR_OF = {name: floor for floor, names in enumerate(FLOORS) for name in names.split()}
# The command line is read before anything that trains is imported.
DOOR = ("trl_prorl.launch.command_line", "trl_prorl.train")


def room_of(module: str) -> str:
    """The folder of a module, or its own name if it is a file at the top of `trl_prorl`."""
    return module.removeprefix("trl_prorl.").partition(".")[0]


@pytest.mark.parametrize("floor", range(len(FLOORS)))
def test_a_folder_of_the_core_imports_lower_floors_only(floor):
    files = {path.stem for path in (ROOT / "trl_prorl").glob("*.py")}
    folders = {path.parent.name for path in (ROOT / "trl_prorl").glob("*/__init__.py")} | {"tasks"}
    assert (files | folders) - {"__init__"} == set(FLOOR_OF)
    assert len(FLOORS) <= 7
    for module, imported in CORE.items():
        mine = room_of(module)
        if FLOOR_OF.get(mine) != floor:
            continue
        for name in imported:
            theirs = room_of(name)
            beside = {mine, theirs} <= files and FLOOR_OF[theirs] == floor
            below = FLOOR_OF[theirs] < floor or theirs == mine or beside
            assert below or (module, name) == DOOR, f"{module} imports {name}, which lies no lower"


def test_the_floors_hold_what_is_imported_under_either_name():
    """A recipe's file names `tasks` relatively, a task names `trl_prorl`; nothing of the core names `eval`."""
    assert "tasks" in CORE["trl_prorl.embedded.making"] and "trl_prorl.text" in CORE["tasks.loaded"]
    for module, imported in modules_of("trl_prorl").items():
        named = {name for name in imported if room_of(name) == "eval"}
        assert module == "trl_prorl" or not named, f"{module} imports {named}"


def test_no_finder_of_ours_is_asked_for_what_others_look_for_in_vain():
    """Libraries do so several times in each step."""
    code = (
        "import sys, trl_prorl, eval, tasks.sums, trl_prorl.tasks.parity\n"
        "from importlib.util import find_spec\n"
        "asked = []\n"
        "sys.setprofile(lambda frame, event, arg: asked.append(frame.f_code.co_filename))\n"
        "find_spec('no_such_package')\n"
        "sys.setprofile(None)\n"
        "assert len(asked) > 5 and not [file for file in asked if 'trl_prorl' in file and '__editable__' not in file]"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_trainer_is_one_class_in_two_files():
    from trl_prorl import ProRLTrainer

    bases = [base.__module__ for base in ProRLTrainer.__bases__]
    assert bases == ["trl_prorl.checkpoint.mixin", "trl.trainer.grpo_trainer"]


def test_nothing_needs_the_study_which_is_not_installed():
    for folder in ("trl_prorl", "tasks", "eval", "recipes"):
        for module, imported in modules_of(folder).items():
            assert not any(name.split(".")[0] == "study" for name in imported), module


@pytest.mark.parametrize("modules", [EVAL | STUDY, CORE | {DOOR[0]: CORE[DOOR[0]] - {DOOR[1]}}], ids=["eval", "core"])
def test_there_are_no_circles(modules):
    graph = {module: imported & modules.keys() for module, imported in modules.items()}
    tuple(TopologicalSorter(graph).static_order())  # a `CycleError` names the circle


@pytest.mark.parametrize("name", ["tasks", "eval", "tasks.registry", "eval.run_folder", "eval.run_folder.reading"])
def test_a_module_is_one_object_under_both_names(name):
    assert import_module(name) is import_module(f"trl_prorl.{name}")


def test_nothing_else_of_the_checkout_is_found_within_the_package():
    assert [name for name in ("trl_prorl", "tests", "study", "docs") if find_spec(f"trl_prorl.{name}")] == []


def test_the_packages_can_be_walked():
    names = [module.name for module in pkgutil.walk_packages(trl_prorl.__path__, "trl_prorl.")]
    assert "trl_prorl.record.meter" in names
    assert len(names) == len(set(names)) < 300
    assert not any(name.startswith("trl_prorl.trl_prorl") for name in names)


@pytest.mark.parametrize("name", ["tasks", "trl_prorl.tasks"])
def test_either_name_starts_a_command(name):
    done = subprocess.run([sys.executable, "-m", name, "list"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "reverse_digits" in done.stdout, done.stderr[-2000:]
