"""
docs/methods.md: a step's cost is the cost that runs count, every treatment has its row, and
B is said to be another objective.
"""

import re

import pytest
import yaml
from doc_pages import PAGES, ROOT, blocks
from run_record import read_rows

from trl_prorl import ProRLConfig
from trl_prorl.resets.treatments import ALPHA, TREATMENTS


METHODS = ROOT / "docs" / "methods.md"
CALLS = {"0": 0, "m": 1, "2 m": 2}
KEYS = {
    "plain": {},
    "control": {"beta": 0.1},
    "A": {"beta": 0.1, "ref_reset_every": 4},
    "B": {"beta_old": 0.1},
    "C": {"beta": 0.1, "ref_reset_every": 4, "optimizer_reset": "hard"},
}
TRL = "TRL"  # the row of the control without `fast`


def stated_calls():
    """{arm: (policy, reference, π_old)} in multiples of m."""
    row = r"(?m)^\| (\w+) \|.*\| ([\w ]+) \| ([\w ]+) \| ([\w ]+) \|$"
    stated = {}
    for arm, *cells in re.findall(row, METHODS.read_text()):
        if arm in (*KEYS, TRL):
            stated[arm] = tuple(CALLS[cell.strip()] for cell in cells)
    return stated


@pytest.mark.parametrize("arm", [*KEYS, TRL])
def test_what_a_step_costs_is_counted(arm, run):
    variant = "control" if arm == TRL else arm
    cheap = {"reuse_old_logps": arm != TRL}
    trainer = run(**KEYS[variant], **cheap, gradient_accumulation_steps=2, max_steps=2, num_iterations=2)
    rows = read_rows(trainer)
    assert trainer.args.variant == variant
    m = trainer.args.steps_per_generation
    counted = tuple(sum(row[f"{kind}_forward_calls"] for row in rows) for kind in ("policy", "ref", "old"))
    assert m == 2
    assert counted == tuple(m * times for times in stated_calls()[arm])


@pytest.mark.parametrize("arm", ["control", "A", "B", "C"])
def test_the_keys_that_define_a_variant_make_it(arm):
    _, section = METHODS.read_text().split(f"\n## {arm[0].upper()}{arm[1:]}\n")
    keys = yaml.safe_load(next(block.text for block in blocks(section) if block.language == "yaml"))
    assert ProRLConfig(output_dir="run", use_cpu=True, bf16=False, **keys).variant == arm


def rows_of_treatments():
    """Read the table of `optimizer_reset`: {treatment: (m, v, t, learning-rate schedule)}."""
    table = re.search(r"(?m)^\| `optimizer_reset` \|.*\n\|[-|]+\n((?:\|.*\n)+)", METHODS.read_text())[1]
    rows = {}
    for line in table.splitlines():
        first, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        name = re.match(r"`(\w+)`", first)[1]
        rows[name] = tuple(cells)
    return rows


def row_of(treatment):
    """Write what a page says of a treatment that multiplies; `None` where it does something else to a moment."""
    row = []
    for letter, factor in (("m", treatment.first), ("v", treatment.second)):
        known = {0.0: "0", 1.0: letter, ALPHA: f"α{letter}"}
        row.append(known.get(factor))
    row.append("0" if treatment.clears_step else "t")
    row.append("starts again" if treatment.restarts_schedule else "goes on")
    row.append("initial scale" if treatment.resets_scaler else "kept")
    return row


def test_every_treatment_has_its_row():
    rows = rows_of_treatments()
    assert set(rows) == set(TREATMENTS), f"the page has a row for {sorted(rows)}, TREATMENTS has {sorted(TREATMENTS)}"
    for name, treatment in TREATMENTS.items():
        for cell, expected in zip(rows[name], row_of(treatment), strict=True):
            if expected is not None:
                assert cell == expected, f"the row of {name}"


# Written by a program, one section or one arm at a time; or what was registered, word for word.
MADE_OR_REGISTERED = ("log", "protocol", "protocol2", "protocol3", "protocol4")
COMPARE = [
    "README.md",
    "docs/performance.md",
    "recipes/tiny/README.md",
    "study/README.md",
    "study/pages/details.md",
    "study/pages/smollm2.md",
    "docs/examples/sort_toy/README.md",
]


def mentions(page):
    """How often a page says that B's objective is another one."""
    return len(re.findall(r"a different objective", " ".join(page.read_text().split()), re.IGNORECASE))


@pytest.mark.parametrize("page", COMPARE)
def test_a_page_that_compares_a_and_b_says_once_that_the_objectives_differ(page):
    assert mentions(ROOT / page) == 1


def test_no_page_says_it_at_each_mention():
    pages = [page for page in PAGES if page.stem not in MADE_OR_REGISTERED]
    assert [page for page in pages if mentions(page) > 1] == []


def test_the_methods_say_once_that_b_is_another_objective():
    """Where B is introduced: right below the table of arms, before anything compares it."""
    page = " ".join(METHODS.read_text().split())
    assert len(re.findall(r"(different|another|other) objective", page)) == 1
    assert "B is a different objective." in page.split("### ")[0]


def test_no_page_says_that_the_objective_is_the_same():
    pages = [page for page in PAGES if page.stem != "log"]  # which speaks of other things too
    assert [page for page in pages if "same objective" in " ".join(page.read_text().split())] == []
