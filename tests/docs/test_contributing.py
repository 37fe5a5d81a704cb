"""CONTRIBUTING.md: its files are there, and the names of a row stand in the files of the row."""

import re

import pytest
from doc_pages import ROOT


ROWS = [line for line in (ROOT / "CONTRIBUTING.md").read_text().splitlines() if line.startswith("| ")]
FOLDERS = (ROOT, ROOT / "trl_prorl", ROOT / "eval")
FILE = re.compile(r"[\w/]+\.(py|yaml|md)")
NAME = re.compile(r"[A-Za-z]\w*(\.[A-Za-z]\w*)?")


def find(name):
    return next((folder / name for folder in FOLDERS if (folder / name).is_file()), None)


@pytest.mark.parametrize("row", ROWS)
def test_files_are_there_and_names_stand_in_them(row):
    quoted = re.findall(r"`([^`]+)`", row)
    files = {name: find(name) for name in quoted if FILE.fullmatch(name) and name != "base.yaml"}
    assert [name for name, path in files.items() if path is None] == []
    linked = re.findall(r"\]\(([\w/.-]+)", row)
    texts = [path.read_text() for path in (*files.values(), *(ROOT / name for name in linked), find("parts.py"))]
    names = [name for name in quoted if NAME.fullmatch(name) and not name.endswith((".py", ".yaml", ".md", ".json"))]
    words = {word for text in texts for word in re.findall(r"\w+", text)}
    assert [name for name in names if not words.issuperset(name.split("."))] == []
