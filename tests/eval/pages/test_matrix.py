import pytest

from eval.analysis.frame import Frame
from eval.pages.matrix import result_matrix


@pytest.fixture
def cells():
    """The matrix as one dict per row, by column."""

    def make(runs):
        table = result_matrix(Frame(runs))
        assert all(len(row) == len(table.header) == sum(span for _, span in table.groups) for row in table.rows)
        return [dict(zip(table.header, row, strict=True)) for row in table.rows]

    return make


def test_what_was_not_measured_is_a_dash(cells, read_run):
    (row,) = cells([read_run("plain", events=None)])
    assert row == {"variant": "plain", "seeds": "1", **dict.fromkeys(list(row)[2:], "–")}


def test_by_hand_over_two_seeds(cells, read_run):
    runs = []
    for seed, solved, slow in ((0, 4, 2.0), (1, 6, 4.0)):
        runs.append(read_run("control", seed, steps=40, time_step=2.0, ref_forward_calls=1))
        row = {"time_step": slow, "time_ref": slow / 4, "ref_forward_calls": 2}
        row["reward"] = lambda step, seed=seed: 0.8 if step < 35 or not seed else 0.1
        row["tokens_per_second"] = lambda step: 100.0 if step <= 30 else 300.0
        row["peak_memory_gib"] = lambda step, seed=seed: 10.0 + seed if step == 2 else 5.0
        runs.append(read_run("A", seed, steps=40, base=[2] * 40, trained=[solved] * 40, **row))
    control, a = cells(runs)
    of_control = {"variant": "control", "seeds": "2", "pass@1": "–", "step time / control": "1.00"}
    of_a = {
        "seeds": "2",
        # 0.5 and 0.75, no variation between prompts: Student's t over the seeds, 0.625 ± 12.706·0.125, cut at 0 and 1.
        "pass@1": "0.625 [0.000, 1.000]",
        "gain": "+0.375 [-1.000, +1.000]",
        "collapsed": "1 of 2",
        "largest drop": "0.420",  # windows of 10 steps: 0.8, at the end 4 steps of 0.8 and 6 of 0.1, 0.38
        "step time / control": "1.50",  # 1 and 2, each over the control of its seed
        "tokens / s": "150",
        "reference calls": "80",
        "reference share (%)": "25.0",
        "peak memory (GiB)": "11.0",
    }
    assert of_control.items() <= control.items() and of_a.items() <= a.items()


def test_one_seed_keeps_its_interval_over_prompts(cells, read_run):
    (row,) = cells([read_run("A", base=[0] * 40, trained=[0, 8] * 20)])
    value, low, high = (float(part.strip("[],")) for part in row["pass@1"].split())
    assert value == 0.5
    # The mean of 40 coins has a standard error of 0.079.
    assert low == pytest.approx(0.5 - 1.96 * 0.079, abs=0.03)
    assert high == pytest.approx(0.5 + 1.96 * 0.079, abs=0.03)
    assert row["pass@k"].endswith("(k=8)")


def test_configurations_of_one_variant_are_told_apart(cells, read_run):
    modes = ["hard", "hard", "soft", "soft"]
    runs = [read_run("C", i % 2, f"C{i}", config={"optimizer_reset": mode}) for i, mode in enumerate(modes)]
    assert [row["variant"] for row in cells(runs)] == ["C hard", "C soft"]
