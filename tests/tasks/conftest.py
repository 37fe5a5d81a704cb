"""A file of problems."""

import json

import pytest


@pytest.fixture(scope="session")
def write_jsonl():
    """A function that writes rows as JSON Lines, and returns the path as text."""

    def write(file, rows):
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return str(file)

    return write
