"""A file of problems, the task `math`, and a file of code."""

import json
import sys

import pytest

from trl_prorl.tasks import get_task, plugin, registry


@pytest.fixture(scope="session")
def write_jsonl():
    """A function that writes rows as JSON Lines, and returns the path as text."""

    def write(file, rows):
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return str(file)

    return write


@pytest.fixture(scope="session")
def math_task(tmp_path_factory, write_jsonl):
    """The task `math` with a hundred sums."""
    problems = [{"problem": f"What is {n} plus {n}?", "answer": str(2 * n)} for n in range(100)]
    return get_task("math", path=write_jsonl(tmp_path_factory.mktemp("math") / "problems.jsonl", problems))


@pytest.fixture
def load(tmp_path, monkeypatch):
    """A function that writes a plugin and loads it; nothing of it stays in this process."""
    monkeypatch.setattr(registry, "TASKS", registry.TASKS | {})
    monkeypatch.setattr(registry, "PLUGINS", {})
    monkeypatch.setattr(plugin, "MODULES", {})
    monkeypatch.setattr(sys, "path", [*sys.path])

    def load(content, file="own.py"):
        (tmp_path / file).write_text(content)
        plugin.load_plugin(str(tmp_path / file))

    yield load
    sys.modules.pop("own", None)
