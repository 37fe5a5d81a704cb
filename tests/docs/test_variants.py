"""docs/methods.md: the keys of a variant make it."""

import re

import pytest
import yaml
from doc_pages import ROOT, blocks

from trl_prorl import ProRLConfig


METHODS = ROOT / "docs" / "methods.md"


@pytest.mark.parametrize("variant", ["control", "A", "B", "C"])
def test_the_keys_that_define_a_variant_make_it(variant):
    section = re.split(rf"\n## .+ \({variant}\)\n", METHODS.read_text())[1]
    keys = yaml.safe_load(next(block.text for block in blocks(section) if block.language == "yaml"))
    assert ProRLConfig(output_dir="run", use_cpu=True, bf16=False, **keys).variant == variant
