"""Who imports whom: no circle, and nothing needs the trainer but the package itself."""

import ast
from graphlib import TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path


ROOT = Path(__file__).parent.parent
# The command line is read before anything that trains is imported.
DOOR = ("trl_prorl.cli.command_line", "trl_prorl.train")


def one_name(module: str) -> str:
    """The name of a module whichever way it is imported."""
    short = module.removeprefix("trl_prorl.")
    return short if short.split(".")[0] in ("eval", "tasks") else module


def module_of(file: Path) -> str:
    return one_name(".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))


def imports_of(file: Path) -> set[str]:
    """The modules that a file imports when it runs, wherever in it; of `from a import b` both `a` and `a.b`."""
    module = module_of(file)
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    tree = ast.parse(file.read_text())
    hints = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)]
    passed = {id(inner) for hint in hints for inner in ast.walk(hint)}
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and id(node) not in passed:
            base = resolve_name("." * node.level + (node.module or ""), package)
            found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return {one_name(name) for name in found}


FILES = {file for folder in ("trl_prorl", "tasks", "eval") for file in (ROOT / folder).rglob("*.py")}
IMPORTS = {module_of(file): imports_of(file) for file in FILES if not file.is_symlink()}


def test_there_are_no_circles():
    graph = {module: (found & IMPORTS.keys()) - {"trl_prorl", module} for module, found in IMPORTS.items()}
    graph[DOOR[0]].discard(DOOR[1])
    tuple(TopologicalSorter(graph).static_order())  # a `CycleError` names the circle


def test_nothing_imports_the_trainer_but_what_begins_a_training():
    above = {module for module, found in IMPORTS.items() if "trl_prorl.trainer" in found}
    assert not {module for module in above if module.startswith("trl_prorl.") and module.count(".") > 1}


def test_nothing_of_the_core_imports_the_evaluation_or_the_study():
    for module, found in IMPORTS.items():
        tops = {name.split(".")[0] for name in found}
        assert "study" not in tops, module
        is_command = module == "trl_prorl.cli.demo"  # with a report
        is_core = module.startswith(("trl_prorl.", "tasks")) and not is_command
        assert "eval" not in tops or not is_core, module
