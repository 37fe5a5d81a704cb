"""docs/methods.md: what a step costs is what runs count, and the keys of a variant make it."""

import re

import pytest
import yaml
from doc_pages import ROOT, blocks
from run_record import read_rows

from trl_prorl import ProRLConfig


METHODS = ROOT / "docs" / "methods.md"
KEYS = {
    "plain": {},
    "control": {"beta": 0.1},
    "A": {"beta": 0.1, "ref_reset_every": 4},
    "B": {"beta_old": 0.1},
    "C": {"beta": 0.1, "ref_reset_every": 4, "optimizer_reset": "hard"},
}
# Forwards of policy, reference and π_old of two batches' steps, in multiples of the micro-batches: as on the page.
CALLS = {
    "plain": (2, 0, 0),
    "control": (2, 1, 0),
    "A": (2, 1, 0),
    "B": (2, 0, 0),
    "C": (2, 1, 0),
    "TRL": (2, 1, 1),
}


@pytest.mark.parametrize("row", CALLS)
def test_what_a_step_costs_is_counted(row, run):
    variant = "control" if row == "TRL" else row
    cheap = {"reuse_old_logps": row != "TRL"}
    trainer = run(**KEYS[variant], **cheap, gradient_accumulation_steps=2, max_steps=2, num_iterations=2)
    rows = read_rows(trainer)
    assert trainer.args.variant == variant
    counted = tuple(sum(row[f"{kind}_forward_calls"] for row in rows) for kind in ("policy", "ref", "old"))
    assert counted == tuple(2 * times for times in CALLS[row])


@pytest.mark.parametrize("variant", ["control", "A", "B", "C"])
def test_the_keys_that_define_a_variant_make_it(variant):
    section = re.split(rf"\n## .+ \({variant}\)\n", METHODS.read_text())[1]
    keys = yaml.safe_load(next(block.text for block in blocks(section) if block.language == "yaml"))
    assert ProRLConfig(output_dir="run", use_cpu=True, bf16=False, **keys).variant == variant
