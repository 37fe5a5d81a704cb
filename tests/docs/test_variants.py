"""
docs/variants: a step's cost is the cost that runs count, every treatment has its row, measurements are in the log, and
B is said to be another objective.
"""

import re

import pytest
import yaml
from doc_pages import PAGES, ROOT, blocks
from run_record import read_rows

from trl_prorl import ProRLConfig
from trl_prorl.resets.treatments import ALPHA, TREATMENTS


VARIANTS = ROOT / "docs" / "variants"
LOG = (ROOT / "docs" / "log.md").read_text() + (ROOT / "study" / "log.md").read_text()
CALLS = {"0": 0, "m": 1, "2 m": 2}
KEYS = {
    "plain": {},
    "control": {"beta": 0.1},
    "A": {"beta": 0.1, "ref_reset_every": 4},
    "B": {"beta_old": 0.1},
    "C": {"beta": 0.1, "ref_reset_every": 4, "optimizer_reset": "hard"},
}


def stated_calls():
    """{arm: (policy, reference, π_old)} in multiples of m."""
    stated = {}
    for page in VARIANTS.glob("*.md"):
        for arm, *cells in re.findall(r"(?m)^\| (\w+) \| ([\w ]+) \| ([\w ]+) \| ([\w ]+) \|$", page.read_text()):
            if arm in KEYS:
                stated[arm] = tuple(CALLS[cell.strip()] for cell in cells)
    return stated


@pytest.mark.parametrize("arm", KEYS)
def test_what_a_step_costs_is_counted(arm, run):
    trainer = run(**KEYS[arm], reuse_old_logps=True, gradient_accumulation_steps=2, max_steps=2, num_iterations=2)
    rows = read_rows(trainer)
    assert trainer.args.variant == arm
    m = trainer.args.steps_per_generation
    counted = tuple(sum(row[f"{kind}_forward_calls"] for row in rows) for kind in ("policy", "ref", "old"))
    assert m == 2
    assert counted == tuple(m * times for times in stated_calls()[arm])


@pytest.mark.parametrize("arm", ["A", "B", "C"])
def test_the_keys_that_define_a_variant_make_it(arm):
    keys = yaml.safe_load(next(b.text for b in blocks((VARIANTS / f"{arm}.md").read_text()) if b.language == "yaml"))
    assert ProRLConfig(output_dir="run", use_cpu=True, bf16=False, **keys).variant == arm


def rows_of_treatments(page):
    """Read the table of `optimizer_reset`: {treatment: (m, v, t, learning-rate schedule)}."""
    table = re.search(r"(?m)^\| `optimizer_reset` \|.*\n\|[-|]+\n((?:\|.*\n)+)", (ROOT / page).read_text())[1]
    rows = {}
    for line in table.splitlines():
        first, *cells = [cell.strip().replace("α ", "α") for cell in line.strip("|").split("|")]
        name = re.match(r"`(\w+)`", first)[1]
        rows[name] = tuple(cells[:4])
    return rows


def row_of(treatment):
    """Write what a page says of a treatment that multiplies; `None` where it does something else to a moment."""
    row = []
    for letter, factor in (("m", treatment.first), ("v", treatment.second)):
        known = {0.0: "0", 1.0: letter, ALPHA: f"α{letter}"}
        row.append(known.get(factor))
    row.append("0" if treatment.clears_step else "t")
    row.append("starts again" if treatment.restarts_schedule else "goes on")
    return row


@pytest.mark.parametrize("page", ["docs/concepts.md", "docs/variants/C.md"])
def test_every_treatment_has_its_row(page):
    rows = rows_of_treatments(page)
    assert set(rows) == set(TREATMENTS), f"{page} has a row for {sorted(rows)}, TREATMENTS has {sorted(TREATMENTS)}"
    for name, treatment in TREATMENTS.items():
        for cell, expected in zip(rows[name], row_of(treatment), strict=True):
            if expected is not None:
                assert cell == expected, f"{page}: the row of {name}"


NUMBER = r"(?:[+−]?\d\.\d+|\d+%)"


def as_one_line(text):
    return " ".join(text.split()).replace(" %", "%")


def figures(page):
    """Every `value [low, high]` of a page, percentages too."""
    return re.findall(rf"{NUMBER} \[{NUMBER}, {NUMBER}\]", as_one_line(page.read_text()))


WITH_FIGURES = [ROOT / name for name in ("study/README.md", "study/pages/details.md")]


@pytest.mark.parametrize("page", [*WITH_FIGURES, *sorted(VARIANTS.glob("*.md"))], ids=lambda page: page.stem)
def test_figures_are_in_the_log_or_in_the_study_s_findings(page):
    known = as_one_line(LOG + (ROOT / "study/pages/findings.md").read_text())
    assert figures(page)
    assert [figure for figure in figures(page) if figure not in known] == []


COMPARING = ["README.md", "docs/concepts.md", "docs/performance.md", "docs/variants/A.md", "docs/variants/B.md"]


@pytest.mark.parametrize("page", [*COMPARING, "docs/troubleshooting.md", "recipes/tiny/README.md"])
def test_pages_that_compare_a_and_b_say_that_the_objectives_differ(page):
    assert re.search(r"(different|another) objective", " ".join((ROOT / page).read_text().split()))


@pytest.mark.parametrize(
    "page", ["study/README.md", "study/pages/details.md", "docs/variants/A.md", "docs/variants/B.md"]
)
def test_every_share_that_b_keeps_of_a_says_so_beside_it(page):
    """A reader of one paragraph, item or row has to see it."""
    parts = [as_one_line(part) for part in re.split(r"\n\s*\n|\n(?=- |\|)", (ROOT / page).read_text())]
    shares = [part for part in parts if re.search(r"\bB\b.*(keeps|takes|kept)\b.*%", part)]
    assert shares
    assert [part for part in shares if not re.search(r"(different|another) objective", part)] == []


def test_no_page_says_that_the_objective_is_the_same():
    pages = [page for page in PAGES if page.stem != "log"]  # which speaks of other things too
    assert [page for page in pages if "same objective" in " ".join(page.read_text().split())] == []
