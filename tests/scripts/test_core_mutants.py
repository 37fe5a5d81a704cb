"""The list of `make mutants` fits the sources and the tests. Whether tests find the defects, that command shows."""

import sys
from pathlib import Path

import pytest


ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import core_mutants

    yield core_mutants
    sys.modules.pop("core_mutants")


def test_each_defect_changes_one_place_of_a_file_and_names_tests_that_exist(script):
    mutants = script.read_mutants()
    for mutant in mutants:
        compile(mutant.changed_source(), mutant.file, "exec")  # an error if the file does not have the text once
        assert mutant.tests, mutant.name
        for test in mutant.tests:
            file, _, name = test.partition("::")
            assert f"\ndef {name}(" in (ROOT / file).read_text(), mutant.name
    assert len({mutant.name for mutant in mutants}) == len(mutants) >= 20
    kinds = [mutant.by for mutant in mutants]
    assert set(kinds) <= {*script.BY_ANOTHER_WAY, "property", "resume"}
    assert sum(kind in script.BY_ANOTHER_WAY for kind in kinds) >= 15
