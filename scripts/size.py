"""
Print the tokens of Python code per folder beside their budgets, without comments, docstrings and imports.

    python scripts/size.py

A number above its budget fails nothing: it is a reason to ask which promise of docs/promises.md the new code keeps.
"""

import ast
import io
import os
import tokenize
from pathlib import Path


ROOT = Path(__file__).resolve().parent.parent
TOOLS = "scripts, study, docs"
# Tokens of a folder today at most, and the aim. "trl_prorl/*.py" are the files at the top of the package.
BUDGETS = {
    "trl_prorl": (97_400, 90_000),
    "trl_prorl/*.py": (32_700, 29_000),
    "trl_prorl/cli": (8_800, 7_000),
    "trl_prorl/embedded": (1_300, 1_300),
    "trl_prorl/extras": (8_100, 8_000),
    "trl_prorl/fast": (21_200, 21_000),
    "trl_prorl/guards": (2_800, 2_400),
    "trl_prorl/hub": (3_100, 2_700),
    "trl_prorl/run": (18_100, 15_000),
    "trl_prorl/upstream": (1_800, 1_800),
    "eval": (43_600, 41_000),
    "tasks": (26_100, 25_000),
    "tests": (230_000, 230_000),
    TOOLS: (34_600, 20_000),
}
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def uncounted_lines(tree: ast.Module) -> set[int]:
    """Return the lines of imports and docstrings."""
    lines = set()
    for node in ast.walk(tree):
        statement = node if isinstance(node, ast.Import | ast.ImportFrom) else None
        if isinstance(node, WITH_DOCSTRING) and ast.get_docstring(node, clean=False) is not None:
            statement = node.body[0]
        if statement is not None:
            lines.update(range(statement.lineno, statement.end_lineno + 1))
    return lines


def count_tokens(source: str) -> int:
    """Return the number of tokens of a module."""
    uncounted = uncounted_lines(ast.parse(source))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return sum(token.type not in LAYOUT and token.start[0] not in uncounted for token in tokens)


def find_files(folder: Path) -> list[Path]:
    """Return the Python files of a folder, without those behind links."""
    paths = [Path(parent, name) for parent, _, names in os.walk(folder) for name in names if name.endswith(".py")]
    return [path for path in paths if not path.is_symlink()]


def files_of(entry: str) -> list[Path]:
    """Return the files of an entry of [`BUDGETS`]."""
    if entry.endswith("/*.py"):
        return list(ROOT.glob(entry))
    return [path for folder in entry.split(", ") for path in find_files(ROOT / folder)]


def main() -> None:
    print(f"{'tokens of Python':24}{'now':>10}{'budget':>10}{'aim':>10}")
    for entry, (budget, aim) in BUDGETS.items():
        tokens = sum(count_tokens(path.read_text()) for path in files_of(entry))
        above = f"  {tokens - budget:,} above its budget" if tokens > budget else ""
        print(f"{entry:24}{tokens:>10,}{budget:>10,}{aim:>10,}{above}")


if __name__ == "__main__":
    main()
