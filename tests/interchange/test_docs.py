"""docs/interchange.md has every field of the schemas and no other."""

import dataclasses
import re
from pathlib import Path

import pytest

from trl_prorl.interchange import Rollout, UpdateInputs, UpdateOutputs


PAGE = (Path(__file__).parent.parent.parent / "docs" / "interchange.md").read_text()


@pytest.mark.parametrize("cls", [Rollout, UpdateInputs, UpdateOutputs])
def test_the_table_of_a_schema_has_its_fields(cls):
    section = re.search(rf"^## `{cls.schema}`.*?(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)[0]
    names = [
        name for row in re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    ]
    assert sorted(names) == sorted(field.name for field in dataclasses.fields(cls))
    assert f"version {cls.version}" in section.split("\n")[0].lower()
