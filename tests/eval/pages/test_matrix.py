import pytest

from eval.analysis.frame import Frame
from eval.pages.matrix import result_matrix
from eval.run_folder.reading import load_run


@pytest.fixture
def cells():
    """The matrix as one dict per row, by column."""

    def make(runs):
        table = result_matrix(Frame(runs))
        assert all(len(row) == len(table.header) == sum(span for _, span in table.groups) for row in table.rows)
        return [dict(zip(table.header, row, strict=True)) for row in table.rows]

    return make


def test_what_was_not_measured_is_a_dash(cells, make_run, make_rows):
    (row,) = cells([load_run(make_run("plain", "plain", make_rows(5), events=None))])
    assert row == {"variant": "plain", "seeds": "1", **dict.fromkeys(list(row)[2:], "–")}


def test_by_hand_over_two_seeds(cells, make_run, make_rows, passk_result):
    runs = []
    for seed, solved, slow in ((0, 4, 2.0), (1, 6, 4.0)):
        env = {"seed": seed}
        control = make_rows(40, time_step=2.0, ref_forward_calls=1)
        runs.append(load_run(make_run(f"control{seed}", "control", control, env=env)))
        rows = make_rows(
            40,
            reward=lambda step: 0.8 if step < 35 or not seed else 0.1,  # noqa: B023
            time_step=slow,
            time_ref=slow / 4,
            tokens_per_second=lambda step: 100.0 if step <= 30 else 300.0,
            ref_forward_calls=2,
            peak_memory_gib=lambda step: 10.0 + seed if step == 2 else 5.0,  # noqa: B023
        )
        result = passk_result(base=[2] * 40, trained=[solved] * 40)
        runs.append(load_run(make_run(f"A{seed}", "A", rows, env=env, passk=result)))
    control, a = cells(runs)
    assert (control["variant"], control["seeds"], control["pass@1"], control["step time / control"]) == (
        "control",
        "2",
        "–",
        "1.00",
    )
    assert a["seeds"] == "2"
    # 0.5 and 0.75, no variation between prompts: Student's t over the seeds, 0.625 ± 12.706·0.125, cut at 0 and 1.
    assert a["pass@1"] == "0.625 [0.000, 1.000]"
    assert a["gain"] == "+0.375 [-1.000, +1.000]"
    assert a["collapsed"] == "1 of 2"
    assert a["largest drop"] == "0.420"  # windows of 10 steps: 0.8, at the end 4 steps of 0.8 and 6 of 0.1, 0.38
    assert a["step time / control"] == "1.50"  # 1 and 2, each over the control of its seed
    assert a["tokens / s"] == "150"
    assert a["reference calls"] == "80"
    assert a["reference share (%)"] == "25.0"
    assert a["peak memory (GiB)"] == "11.0"


def test_one_seed_keeps_its_interval_over_prompts(cells, make_run, make_rows, passk_result):
    result = passk_result(base=[0] * 40, trained=[0, 8] * 20)
    (row,) = cells([load_run(make_run("A", "A", make_rows(3), passk=result))])
    value, low, high = (float(part.strip("[],")) for part in row["pass@1"].split())
    assert value == 0.5
    # The mean of 40 coins has a standard error of 0.079.
    assert low == pytest.approx(0.5 - 1.96 * 0.079, abs=0.03)
    assert high == pytest.approx(0.5 + 1.96 * 0.079, abs=0.03)
    assert row["pass@k"].endswith("(k=8)")


def test_configurations_of_one_variant_are_told_apart(cells, make_run, make_rows):
    runs = [
        load_run(make_run(f"C{mode}{seed}", "C", make_rows(3), config={"optimizer_reset": mode, "seed": seed}))
        for mode in ("hard", "soft")
        for seed in (0, 1)
    ]
    assert [row["variant"] for row in cells(runs)] == ["C hard", "C soft"]
