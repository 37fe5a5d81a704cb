"""The study's pages say what its tables say: `study/figures.py` computes the numbers from study/tables."""

import math
import re
import runpy
from functools import cache

import pandas as pd
import pytest
from doc_pages import ROOT
from study_places import SENTENCES, TABLES


STUDY = ROOT / "study"
FIGURES = runpy.run_path(str(STUDY / "figures.py"))
CORE = ["core", "cost", "all"]
RIVALS = ["rivals", "rivals2"]
REUSE = ["reuse2", "reuse8", "reuse32"]
LONG = ["long", "long5"]
# The blocks of a section, by how its title begins.
SECTIONS = {
    "../docs/methods.md": {"Tools for long runs": ["guard_gap"]},
    "pages/details.md": {
        "Exact rewards": [*CORE, *LONG, "tuning"],
        "B against A": [*CORE, "stress", "mild"],
        "Optimizer state": CORE,
        "Length": [*LONG, "core"],
        "Other schedules": ["side", "core"],
        "Resets by events": ["events"],
        "What happens at a reset": ["all"],
        "Reward hacking": ["gamed", "gamed2", "all"],
        "The fall of accuracy": ["gamed", "gamed2"],
        "Forgetting": ["forget", "forget2"],
        "A batch used": REUSE,
        "A KL that is too strong": ["clamp", "clamp2", "clamp_screen", "all"],
        "Does long training": ["clamp2"],
        "Stability": ["stress", "mild", "core", "modes"],
        "Adam's state": ["modes"],
        "Threats": [*CORE, *LONG, "side", "mild"],
        "Related work": ["side", "core", *LONG, "modes", "reuse32"],
    },
    "pages/smollm2.md": {
        "SmolLM2": ["pretrained"],
        "Again, with": ["smollm2b", "smollm2b_seeds"],
        "Two more seeds": ["smollm2b", "smollm2b_seeds"],
    },
    "pages/qwen.md": {title: ["qwen"] for title in ("A Qwen", "At most", "Cost")},
    "pages/qwen_200.md": {title: ["qwen"] for title in ("The Qwen", "How much")},
}
# What needs every step or a simulation: the code at the frozen commit has it. Settings. Other works.
NOT_COMPUTED = {"0.038", "16.8", "98.7", "93.5", "95.2", "0.485", "0.733", "0.068", "0.25", "0.7", "0.03"}
NOT_COMPUTED |= {"0.1", "0.3", "0.001", "0.02", "0.01", "0.015", "0.05", "0.066", "0.011", "0.07", "0.09", "1.5"}
NOT_COMPUTED |= {"54.87", "53.08", "97.29", "99.71", "2602.07729", "2507.17512", "2602.18037", "2409.12186"}
MEASURED_ELSEWHERE = {"1.08 [0.97, 1.20]", "0.93 [0.90, 0.97]"}  # the update phase: docs/performance.md
UNITS = "drift|KL|kl_|entropy|beta|tokens|seconds|minutes|hours|distinct|compression|perplexity"
TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)
NUMBER = r"[+−-]?\d[\d,]*(?:\.\d+)?"
INTERVAL = rf"(?:{NUMBER} ?%? ?(?:points )?)?\[{NUMBER} ?%?, {NUMBER} ?%?\]"


def plain(text):
    """A number, or one with its interval, as Python would write it; a sign of 0 counts for nothing."""
    numbers = [one.replace("−", "-").replace("+", "").replace(",", "") for one in re.findall(NUMBER, text)]
    return tuple(one.lstrip("-") if float(one) == 0 else one for one in numbers)


def ways_to_write(name, less, *values):
    """Values as the pages write their kind: as shares, in points of 100, as counts, or with a unit."""
    ways = [(1, 3), (100, 1)]
    if not less:
        ways = [(1, 1), (1, 2), (1, 3), (1, 4)] if re.search(UNITS, name) else [*ways, (1, 2), (100, 0), (1, 4)]
    if all(value == round(value) for value in values):
        ways.append((1, 0))
    if re.search("share|size|above|tokens|seconds|pass@1|hours", name):
        ways.append((100, 0) if less or "pass" in name or "share" in name else (1, 0))
    for scale, digits in ways:
        yield plain(" ".join(f"{scale * value:.{digits}f}" for value in values))


@cache
def written(number):
    """All that a page may write of a number: its value, with its interval, and the other way round, and p."""
    found = set()
    for value, low, high in (number[4:7], (-number.value, -number.high, -number.low)):
        if math.isfinite(value):
            found.update(ways_to_write(number.name, number.less, value))
        if math.isfinite(low) and math.isfinite(high):
            found.update(ways_to_write(number.name, number.less, value, low, high))
            found.update(ways_to_write(number.name, number.less, low, high))
    return found if math.isnan(number.p) else {*found, plain(f"{number.p:.3f}"), plain(f"{number.p:.2f}")}


def stem(name):
    """The name of an arm, or of a block, without what differs between blocks that share a table."""
    return re.sub(r"_(mu\d+|lr10|lr7|noclip|target[\d.]+)|(?<=[a-z])\d+$", "", name)


def points(value, form=".1f"):
    return f"{100 * value:{form}}"


def interval(one):
    return f"[{points(one.low, '+.1f')}, {points(one.high, '+.1f')}]"


FORMATS = {
    "0": lambda one: points(one.value, ".0f"),
    "1": lambda one: points(one.value),
    "+1": lambda one: points(one.value, "+.1f"),
    "below": lambda one: points(-one.value),
    "low": lambda one: points(one.low, "+.1f"),
    "interval": lambda one: f"{points(one.value, '+.1f')} {interval(one)}",
    "range": interval,
    "percent": lambda one: f"{one.value:.0%} [{points(one.low, '.0f')}, {points(one.high, '.0f')}]".replace("%", " %"),
    "share": lambda one: f"{one.value:.0%} [{one.low:.0%}, {one.high:.0%}]".replace("%", " %"),
    "of 100": lambda one: f"{points(one.value)} [{points(one.low)}, {points(one.high)}]",
    "change": lambda one: f"{100 * one.value:+.0f}",
    "+3": lambda one: f"{one.value:+.3f}",
    "whole": lambda one: f"{one.value:.3f} [{one.low:.3f}, {one.high:.3f}]",
    "signed": lambda one: f"{one.value:+.3f} [{one.low:+.3f}, {one.high:+.3f}]",
    "n0": lambda one: f"{one.value:.0f}",
    "n1": lambda one: f"{one.value:.1f}",
    "n2": lambda one: f"{one.value:.2f}",
    "n3": lambda one: f"{one.value:.3f}",
    "ratio": lambda one: f"{one.value:.2f} [{one.low:.2f}, {one.high:.2f}]",
    "p": lambda one: "" if math.isnan(one.p) else f"{one.p:.3f}".replace("0.000", "< 0.001"),
}


@pytest.fixture(scope="module")
def numbers():
    return FIGURES["numbers"]()


@pytest.fixture(scope="module")
def by_key(numbers):
    """Numbers by key; of two with one key the first, which is the registered one."""
    found = {}
    for one in numbers:
        found.setdefault("/".join((*one[:4], *([one.less] if one.less else []))), one)
    return found


def filled(text, by_key):
    """Text with its numbers, as the pages write them; a number that there is not is left out."""

    def number(match):
        one = by_key.get(match[1])
        of_itself = match[1].count("/") == 4 and match[1].split("/")[2] == match[1].split("/")[4]
        return "" if one is None or of_itself else FORMATS[match[2]](one).replace("-", "−")

    return re.sub(r"{(.+?):([^:}]+)}", number, text)


def told(cell):
    """The numbers of a text, with their signs."""
    return re.findall(r"[+−]?\d+(?:[.,]\d+)*", cell)


PARTS = {  # of pages that have other numbers, too
    "../README.md": r"(?ms)^## Results$.*?(?=^## )",
    "../docs/preflight.md": r"(?ms)^- \*\*Correct completions.*?(?=^- \*\*Compare)",
    "../docs/methods.md": r"(?ms)^### How often `guard_gap` is wrong$.*?(?=^### )",
    "../docs/performance.md": r"(?ms)^\*\*What is saved.*?(?=^One CPU core)",
}


def text_of(page):
    """The page, or the part of it that has numbers of the study."""
    text = (STUDY / page).read_text()
    return re.search(PARTS[page], text)[0] if page in PARTS else text


def expected_rows(groups, by_key):
    """The cells of each row by its label."""
    for columns, rows in groups:
        for label, arms in rows.items():
            arm, less = arms if isinstance(arms, tuple) else (arms, "")
            cells = [column.replace("LESS", less).replace("ARM", arm) for column in columns]
            yield filled(label, by_key), [filled(cell, by_key) for cell in cells]


@pytest.mark.parametrize("page", TABLES)
def test_each_cell_of_a_table_has_the_numbers_of_its_row_and_column(page, by_key):
    tables = re.findall(TABLE, text_of(page))
    others = [table for table in tables if table.startswith(("| question", "| prompt", "| name"))]
    assert len(tables) == len(TABLES[page]) + len(others) or page == "pages/details.md"
    for header, groups in TABLES[page].items():
        table = next(table for table in tables if table.startswith(header))
        expected = dict(expected_rows(groups, by_key))
        rows = [[cell.strip() for cell in row[1:-1].split("|")] for row in table.splitlines()[2:]]
        assert len(rows) == len(expected)
        size = len(groups[0][0])
        for row in rows:
            label = " | ".join(row[:-size])
            for cell, whole in zip(row[-size:], expected.get(label) or expected[row[-size - 1]], strict=True):
                assert told(cell) == told(whole), (header, row, whole)


@pytest.mark.parametrize("page", SENTENCES)
def test_sentences_have_the_numbers_that_belong_there(page, by_key):
    """Every decimal outside of tables is of a sentence, a setting, or of another page; or the next test checks it."""
    rest = re.sub(TABLE, "", text_of(page))
    text = rest = " ".join(rest.split())
    for sentence in SENTENCES[page]:
        piece = filled(sentence, by_key)
        assert piece in text, piece
        rest = rest.replace(piece, " … ", 1)
    rest = re.sub(r"\]\(\S*\)|Qwen2\.5", "", rest)
    rest = "" if page in SECTIONS and page not in PARTS else rest
    assert [one for one in told(rest) if "." in one and one.lstrip("+−") not in NOT_COMPUTED] == []


def sections(page):
    """Each section of a page that has numbers of the study, with its blocks."""
    for section in re.split(r"(?m)^##? ", (STUDY / page).read_text()):
        for title, blocks in SECTIONS[page].items():
            if section.startswith(title):
                yield title, section, blocks


@pytest.mark.parametrize("page", [page for page in SECTIONS if page != "../docs/methods.md"])
def test_every_interval_and_every_decimal_is_of_the_section_s_blocks(page, numbers):
    unknown = []
    for title, section, blocks in sections(page):
        known = set().union(*(written(one) for one in numbers if one.block in blocks))
        text = " ".join(section.split())
        for interval in re.findall(INTERVAL, text):
            if plain(interval) not in known and interval not in MEASURED_ELSEWHERE:
                unknown.append((title, interval))
        prose = re.sub(rf"{INTERVAL}|\]\(\S*\)", "", text)
        for decimal in re.findall(r"(?<![\w.])[+−]?\d+\.\d+(?![\w.]\w)", prose):
            if plain(decimal) not in known and decimal.lstrip("+−") not in NOT_COMPUTED:
                unknown.append((title, decimal))
    assert unknown == []


@pytest.mark.parametrize("page", SECTIONS)
def test_every_row_of_a_table_is_of_one_arm_or_of_one_task(page, numbers):
    """A row without its label: all of its numbers are of an arm in the section's blocks, or of a task's."""
    unknown = []
    for title, section, blocks in sections(page):
        groups = {}
        for one in numbers:
            if one.block in blocks and ", part" not in one.name:
                is_of_arm = one.block not in ("dose", "dose_sorting", "guard_gap")
                key = (stem(one.block), stem(one.arm)) if is_of_arm else (one.block, one.family)
                groups.setdefault(key, set()).update(written(one))
        for row in re.findall(r"(?m)^\|(.*)\|$", section):
            _, *cells = row.split("|")
            text = " ".join(cell for cell in cells if not re.search("[^\\W\\d_]", re.sub(r"\b(of|to)\b", "", cell)))
            told = {plain(one) for one in re.findall(rf"{INTERVAL}|{NUMBER}", text.replace("–", " "))}
            if not any(told <= known for known in groups.values()):
                unknown.append((title, row, min((told - known for known in groups.values()), key=len)))
    assert unknown == []


def rows_of(page, names):
    """The cells of each row of a page's tables whose first cell is, in code or not, a name of this pattern."""
    rows = re.findall(rf"(?m)^\| `?({names})`? \|(.*)\|$", (STUDY / page).read_text())
    return {name: [cell.strip() for cell in cells.split("|")] for name, cells in rows}


def test_the_runs_of_the_fourth_protocol_are_counted(by_key):
    rows = rows_of("pages/fourth.md", "[a-z_0-9]+")
    blocks = {key.split("/")[2] for key in by_key if key.startswith("fourth/")}
    assert set(rows) - {"block", "prediction"} == blocks
    for block in blocks:
        cells = [f"{{fourth//{block}/{unit}:n0}}" for unit in ("runs", "pairs")]
        assert [told(cell) for cell in rows[block][1:]] == [told(filled(cell, by_key)) for cell in cells], block


def test_the_predictions_of_the_fourth_protocol_are_graded(numbers):
    rows = rows_of("pages/fourth.md", "[A-Z][0-9]")
    assert {name: cells[-1] for name, cells in rows.items()} == FIGURES["grades"](numbers)


def test_a_prediction_is_refuted_by_its_interval_alone():
    _, is_refuted = FIGURES["predictions"]()["R5"]

    def refuted(*intervals):
        return is_refuted([FIGURES["Number"]("", "", "", "", (low + high) / 2, low, high) for low, high in intervals])

    assert not refuted((0.05, 0.2), (0.1, 0.3))
    assert refuted((0.05, 0.2), (-0.1, 0.09))


def test_validation_chooses_the_first_best_checkpoint():
    """The last step keeps its evaluation, and a run without checkpoints its end."""
    rows = [(1, 20, 0.5, 0.30), (1, 10, 0.5, 0.40), (1, 30, 0.2, 0.90), (2, 10, 0.1, 0.6), (2, 30, 0.7, 0.5)]
    kept = pd.DataFrame(rows, columns=["base", "step", "validation_gold", "gold"]).assign(steps=30)
    ends = pd.Series([0.1, 0.2, 0.3], index=[1, 2, 3])
    chosen = FIGURES["chosen_by_validation"](kept.set_index("base").sort_values("step"), ends, "gold")
    assert chosen.to_list() == [0.40, 0.2, 0.3]


def test_the_stored_means_of_the_first_protocol_are_those_of_the_runs(numbers):
    """Its intervals were made at the frozen commit; the means can be made from the runs."""
    stored = {(*one[:4], one.less): one.value for one in FIGURES["first_protocol"]()}
    again = [one for one in numbers if (*one[:4], one.less) in stored]
    assert len(again) > 1.3 * len(stored) > 0
    for one in again:
        assert math.isclose(one.value, stored[*one[:4], one.less], abs_tol=1e-5), one


def test_the_pictures_of_the_pages_are_drawn(numbers):
    shown = {name for page in STUDY.rglob("*.md") for name in re.findall(r"pictures/(\w+)\.png", page.read_text())}
    assert shown == {path.stem for path in (STUDY / "pictures").glob("*.png")}
    assert shown == {name for name, figure in FIGURES["pictures"](numbers) if figure.axes}
