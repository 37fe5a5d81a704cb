"""What the fourth protocol registers, from tables that are made by hand."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from study import fourth
from study.matrix import RunKey, read_matrix
from study.tables import CURVES4, STOPS, Tables, join_rows, make_frame


ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def blocks():
    return {block.name: block for block in read_matrix(ROOT).blocks}


def stops(tables, key, golds, best_of_8=None):
    """Rows of checkpoints every ten steps, whose validation gold is their gold, and greedy gold twice that."""
    steps = range(10, 10 * len(golds) + 1, 10) if key.steps else [0]
    rows = [
        {"step": step, "gold": gold, "greedy": 2 * gold, "reward": 0.5, "kl_to_base": 0.1, "validation_gold": gold}
        for step, gold in zip(steps, golds, strict=True)
    ]
    rows[-1]["best_of_8"] = best_of_8
    tables.stops = join_rows(tables.stops, make_frame(rows, STOPS, key))


def test_a_target_s_multiples_are_held_against_the_target(blocks, add):
    tables = Tables()
    for base in (1, 2, 3):
        for arm, gold in (("control_target0.6", 0.5), ("control_target0.3", 0.4), ("control_target1.2", 0.1 * base)):
            row = {"gold": gold, "greedy": 0.9 if arm == "control_target0.6" else 0.7}
            add(tables, RunKey("gamed_reverse", arm, base, 80 + base, 600), steps=1, **row)
    found = {(test.name, test.outcome): test for test in fourth.target(blocks["target2"], tables)}
    assert set(found) == {(f"gamed_reverse, {n} times the target", o) for n in (2, 4) for o in ("gold", "greedy")}
    twice = found["gamed_reverse, 2 times the target", "gold"]
    assert twice.contrast.value == pytest.approx(0.1)
    assert twice.contrast.freedom == 2
    assert twice.adjusted is not None
    four = found["gamed_reverse, 4 times the target", "gold"].contrast
    half = 0.1 / np.sqrt(3) * 4.302653  # t of two degrees of freedom
    assert tuple(four.estimate) == pytest.approx((-0.2, -0.2 - half, -0.2 + half))
    assert found["gamed_reverse, 2 times the target", "greedy"].contrast.value == pytest.approx(0.2)
    assert found["gamed_reverse, 2 times the target", "greedy"].adjusted is None


def test_plain_is_stopped_by_validation_at_ten_steps(blocks, add):
    tables = Tables()
    for base in (1, 2):
        plain = RunKey("gamed_sorting", "plain", base, 90 + base, 600)
        control = RunKey("gamed_sorting", "control_target0.14", base, 90 + base, 600)
        add(tables, plain, steps=1, gold=0.1)
        add(tables, control, steps=1, gold=0.7, greedy=0.8)
        stops(tables, plain, [0.2, 0.3 + base / 100, 0.25])
        stops(tables, control, [0.6, 0.7], best_of_8=0.9)
        stops(tables, plain.base, [0.2], best_of_8=0.4 + base / 10)
    tests = fourth.tuned_rivals(blocks["tuned_rivals"], blocks["tuned_stops"], tables)
    found = {(test.name, test.outcome): test.contrast.value for test in tests}
    stop = "gamed_sorting, control less plain, stopped"
    best = "gamed_sorting, best of 8, control less base"
    assert found == {
        (stop, "gold"): pytest.approx(0.7 - 0.315),
        (stop, "greedy"): pytest.approx(0.8 - 0.63),
        (best, "gold"): pytest.approx(0.9 - 0.55),
    }


def test_the_guard_is_replayed_and_judged_by_held_out_gold(blocks, add):
    """Of the damaged runs one of two is missed, on base 1; of the others one of one raises an alarm on base 2."""
    tables = Tables()
    steps = np.arange(1, 201)
    falls = np.where(steps <= 100, 0.5, 0.3)
    stays = np.full(200, 0.5)
    for arm, base, gold, end in (
        ("control_target0.6", 1, falls, 0.2),  # damaged, seen
        ("control_target1.2", 1, stays, 0.2),  # damaged, missed
        ("control_target0.3", 1, stays, 0.5),
        ("control_target0.3", 2, falls, 0.5),  # a false alarm
    ):
        key = RunKey("gamed_reverse", arm, base, 80 + base, 600)
        add(tables, key, steps=200, gold=end, file=CURVES4, curve={"gold": gold, "reward": 0.9})
        stops(tables, key, [0.5, end])
        if key.base not in tables.stops.index:
            stops(tables, key.base, [0.2])
    runs = fourth.guarded([blocks["target2"]], tables)
    # 40 steps, of which n have .3: .5 - .2 n / 40 is more than .1 below .5 from n = 21 on.
    assert sorted(runs["fired"].dropna()) == [121, 121]
    rates = {name: contrast.value for name, contrast in fourth.guard_rates(runs).items()}
    assert rates == {"miss rate": 0.5, "false-alarm rate": 0.5}
    rising = pd.DataFrame({"step": steps, "gold": falls, "reward": np.where(steps <= 100, 0.9, 0.8)})
    assert fourth.first_firing(rising) is None  # the reward fell, too


def test_the_qwen_s_differences_are_over_questions():
    rows = []
    for arm, rights in (("A", (1, 1, 0)), ("control", (0, 1, 0))):
        for question, right in enumerate(rights):
            for number in (0, 1):
                of_text = {"model": f"{arm}_512", "decoding": "sampled", "prompt": question, "sample": number}
                rows.append({**of_text, "correct": right, "correct_200": 0})
    long, short = fourth.qwen(pd.DataFrame(rows))
    assert long.contrast.value == pytest.approx(1 / 3)
    assert (long.contrast.freedom, long.adjusted is None) == (2, False)
    assert (short.contrast.value, short.adjusted) == (0, None)


def test_every_block_of_the_protocol_is_read(blocks):
    assert fourth.tests_of(read_matrix(ROOT), Tables()) == []
