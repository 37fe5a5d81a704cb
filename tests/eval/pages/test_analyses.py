import pytest

from eval.analysis import compare
from eval.analysis.frame import Frame
from eval.pages import boundary, comparison
from eval.pages.document import Bullets


@pytest.fixture
def arm(read_run):
    def make(variant, seed=0, base=None, trained=None, name=None, beta=0.0, **passk):
        name, config = f"{name or variant}{seed}", {"beta": beta}
        return read_run(variant, seed, name, 3, base or [2] * 40, trained or [4] * 40, passk, config)

    return make


def test_solved_and_lost_by_hand(arm, read_run):
    # 8 samples, 40 prompts: 3 go from 0 to 8, 2 from 0 to 1, 1 from 8 to 0; 30 are solved by both, 4 by neither.
    base = [0] * 5 + [8] + [4] * 30 + [0] * 4
    trained = [8] * 3 + [1] * 2 + [0] + [4] * 30 + [0] * 4
    bare = read_run("plain")
    table = boundary.runs_table(Frame([arm("A", base=base, trained=trained), bare]))
    # 1.6e-4 is Fisher's p of 0 against 8 of 8, times at most 40 by Holm; of 0 against 1 it is 1.
    # McNemar: 5 against 1, 2·(1 + 6)/2⁶ = 0.22. 1 - 0.05^(1/8) = 0.312.
    assert table.rows == [["A0", "40 × 8", "5 (3)", "1 (1)", "30", "4", "0.22", "0.312"]]
    assert boundary.runs_table(Frame([bare])) is None


def test_arms_stand_against_plain_control_and_the_best_a(arm):
    """Each pair once; of two arms of A the one with the higher score."""
    scores = {"plain": 3, "control": 2, "A": 4, "B": 5}
    runs = [arm(variant, seed, trained=[score] * 40) for seed in (0, 1) for variant, score in scores.items()]
    runs += [arm("A", seed, trained=[1] * 40, name="worse", beta=0.5) for seed in (0, 1)]
    rows, left = compare.against_references(Frame(runs))
    assert not left and all(row.seeds == 2 for row in rows)
    assert [(row.first, row.second) for row in rows] == [
        *((first, "plain") for first in ("control", "A", "B", "A β=0.5")),
        *((first, "control") for first in ("A", "B", "A β=0.5")),
        ("B", "A"),
    ]


def test_paired_table_by_hand(arm):
    runs = [arm("A", trained=[0] * 20 + [8] * 20), arm("B", trained=[8] * 40)]
    table, _, said = comparison.sections(Frame(runs))[0].blocks
    (row,) = table.rows
    assert row[:5] == ["B − A", "1", "1", "1.000", "0.500"] and row[5].startswith("+0.500 [+0.3")
    assert float(row[7]) == pytest.approx(2 / 2**20, rel=0.1)  # McNemar of 20 against 0
    assert row[8:] == ["200 %", "–"]  # of one pair
    assert said.items[0].startswith("B has 200 % of A's held-out pass@1 (too few runs for an interval)")


def test_equal_arms_say_what_would_be_found(arm):
    noisy = [2, 6] * 20
    frame = Frame([arm("control", trained=noisy), arm("A", trained=noisy[::-1])])
    difference, found = comparison.sections(frame)[0].blocks[0].rows[0][5:7]
    assert difference.startswith(("+0.000", "-0.000"))
    # ±0.5 per prompt, 40 prompts: (1.96 + 0.84) · 0.5 / √40 = 0.221.
    assert float(found) == pytest.approx(0.221, abs=0.02)


def test_other_prompts_are_said_not_compared(arm):
    ((blocks,),) = [[section.blocks] for section in comparison.sections(Frame([arm("control"), arm("A", split="x")]))]
    assert [type(block) for block in blocks] == [Bullets]
    assert "not evaluated on the same prompts" in blocks[0].items[0]
    assert comparison.sections(Frame([arm("B", 5)])) == []


def test_control_of_the_same_seed(read_run):
    runs = [read_run(variant, seed) for variant, seed in (("control", 0), ("control", 1), ("A", 1), ("A", 2))]
    of_a, other = Frame(runs).rows[2:]
    assert (of_a.control.name, other.control.name) == ("control1", "control0")
    assert (of_a.own_control.name, other.own_control) == ("control1", None)
    assert Frame(runs[2:]).rows[0].control is None
