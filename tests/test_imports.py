"""Who imports whom: a folder only what lies below it, and a command that only reads no model library."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from trl_prorl.commands import COMMANDS


def test_the_commands_that_only_read_wait_for_no_model_library():
    libraries = "{'torch', 'transformers', 'trl', 'peft', 'datasets', 'evaluate'}"
    code = "import sys, eval.report, eval.compare, eval.trajectory, eval.boundary; "
    code += f"assert not {libraries} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


ROOT = Path(__file__).parent.parent
# What a folder of `eval` may import of the others, from the ground up; the commands at the top may import everything.
LAYERS = {"metrics": (), "stepcost": ("command",), "run_folder": (), "analysis": ("metrics", "run_folder")}
LAYERS |= {"samples": ("run_folder",), "pages": ("analysis", "run_folder", "samples"), "gpucheck": ("stepcost",)}
LAYERS |= {"readiness": ("analysis", "pages", "run_folder", "samples")}
DRAWS_READS_OR_ASKS = ("matplotlib", "rich", "jinja2", "argparse", "json", "eval.run_folder.reading")


def imports_of(file: Path) -> set[str]:
    """Names of the modules that a file imports, wherever in it; of `from a import b` both `a` and `a.b`."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} imports relatively, line {node.lineno}"
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {name.removeprefix("trl_prorl.") if name.startswith("trl_prorl.eval") else name for name in found}


def module_of(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


EVAL = {module_of(file): imports_of(file) for file in (ROOT / "eval").rglob("*.py")}


def test_at_the_top_of_eval_are_the_commands_and_nothing_else():
    top = {file.stem for file in (ROOT / "eval").glob("*.py")} - {"__init__", "command", "command_lines"}
    assert {f"eval.{name}" for name in top} == {
        module for module, _ in COMMANDS.values() if module.startswith("eval.")
    }


@pytest.mark.parametrize("folder", LAYERS)
def test_a_folder_of_eval_imports_what_lies_below_it(folder):
    """So the pages import no command, and there is no circle between folders."""
    allowed = {folder, *LAYERS[folder]}
    for module, imported in EVAL.items():
        if module.startswith(f"eval.{folder}"):
            wrong = {name for name in imported if name.startswith("eval.") and name.split(".")[1] not in allowed}
            assert not wrong, f"{module} imports {wrong}"


def test_the_analysis_is_arrays_and_records_in_numbers_out():
    for module, imported in EVAL.items():
        if module.startswith("eval.analysis"):
            wrong = {name for name in imported if name.startswith(DRAWS_READS_OR_ASKS)}
            assert not wrong, f"{module} imports {wrong}"
            assert "read_text" not in (text := source_of(module)) and "open(" not in text


def source_of(module: str) -> str:
    path = ROOT.joinpath(*module.split("."))
    return (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()


# The floors of `trl_prorl`: a folder imports itself and what lies on lower floors; files at the top of the package may
# import files on their own floor.
FLOORS = (
    "errors files text quiet pass_at_k short_names parts descriptor variants environment",
    "objective resets embedded",
    "scoring guards record keys",
    "adapters rollout checkpoint interchange",
    "config refusals",
    "hub launch",
    "assembly trainer train commands demo __main__",
)
FLOOR_OF = {name: floor for floor, names in enumerate(FLOORS) for name in names.split()}
# The command line is read before anything that trains is imported.
DOOR = ("trl_prorl.launch.command_line", "trl_prorl.train")


def core_imports(file: Path) -> set[str]:
    """Modules of `trl_prorl` that a file of it imports when it runs, with full names."""
    package = module_of(file).split(".") if file.name == "__init__.py" else module_of(file).split(".")[:-1]
    tree = ast.parse(file.read_text())
    hints = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)]
    passed = {id(inner) for hint in hints for inner in ast.walk(hint)}
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level and id(node) not in passed:
            base = ".".join([*package[: len(package) - node.level + 1], *filter(None, [node.module])])
            found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return found


CORE = {module_of(file): core_imports(file) for file in (ROOT / "trl_prorl").rglob("*.py")}
CORE = {
    module: {name for name in imported if name in CORE} - {"trl_prorl", module} for module, imported in CORE.items()
}


@pytest.mark.parametrize("floor", range(len(FLOORS)))
def test_a_folder_of_the_core_imports_lower_floors_only(floor):
    top = {
        path.stem for path in (ROOT / "trl_prorl").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert top - {"__init__"} == set(FLOOR_OF) and len(FLOORS) <= 7
    files = {path.stem for path in (ROOT / "trl_prorl").glob("*.py")}
    for module, imported in CORE.items():
        mine = module.partition(".")[2].split(".")[0]
        if FLOOR_OF.get(mine) != floor:
            continue
        for name in imported:
            theirs = name.split(".")[1]
            beside = {mine, theirs} <= files and FLOOR_OF[theirs] == floor
            below = FLOOR_OF[theirs] < floor or theirs == mine or beside
            assert below or (module, name) == DOOR, f"{module} imports {name}, which lies no lower"


def test_no_module_of_the_core_imports_in_a_circle():
    graph = {module: imported - {DOOR[1]} if module == DOOR[0] else imported for module, imported in CORE.items()}
    tuple(TopologicalSorter(graph).static_order())


def test_the_trainer_is_one_class_in_two_files():
    from trl_prorl import ProRLTrainer

    assert [base.__module__ for base in ProRLTrainer.__bases__] == [
        "trl_prorl.checkpoint.mixin",
        "trl.trainer.grpo_trainer",
    ]


STUDY = {module_of(file): imports_of(file) for file in (ROOT / "study").rglob("*.py")}


def test_nothing_needs_the_study_which_is_not_installed():
    for folder in ("trl_prorl", "tasks", "eval", "recipes"):
        for file in (ROOT / folder).rglob("*.py"):
            tree = ast.parse(file.read_text())
            found = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level}
            found |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
            assert not any((name or "").split(".")[0] == "study" for name in found), file


def test_the_study_s_analysis_is_tables_in_numbers_out():
    for module in ("study.hierarchical", "study.scores", "study.differences", "study.tuned"):
        wrong = {name for name in STUDY[module] if name.startswith(DRAWS_READS_OR_ASKS)}
        assert not wrong and "open(" not in source_of(module) and "read_text" not in source_of(module), module


def test_there_are_no_circles():
    modules = EVAL | STUDY
    graph = {module: imported & modules.keys() for module, imported in modules.items()}
    tuple(TopologicalSorter(graph).static_order())  # a `CycleError` names the circle
