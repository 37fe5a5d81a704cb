from eval.analysis.frame import Frame
from eval.pages.matrix import result_matrix
from eval.pages.runs import learning_table, overview_table


def column(table, name):
    return {row[0]: row[table.header.index(name)] for row in table.rows}


def test_learning_table_by_hand(read_run):
    # 40 steps: the first 5 % are 2 steps with reward 1 and 2, the last 10 % are 4 steps with 37 to 40.
    keys = {"reward": float, "kl_ref": lambda step: step / 100, "base": [0, 2, 0, 2], "trained": [8, 4, 8, 4]}
    keys["events"] = [{"event": "reset", "step_applied": step} for step in (10, 20)]
    (row,) = learning_table(Frame([read_run("A", name="arm", steps=40, **keys)])).rows
    assert row[:6] == ["arm", "A", "KL to moving reference", "2", "40", "1.500 → 38.500"]
    assert row[6:] == ["0.125 → 0.750 [0.700, 0.800]", "+0.625 (n/a)", "1.000", "1.000", "3.85e-01", "–"]


def test_what_was_not_measured_is_a_dash(read_run):
    frame = Frame([read_run("plain", name="plain", events=None)])
    assert learning_table(frame).rows == [["plain", "plain", "none", "–", "4", *["–"] * 7]]
    assert overview_table(frame).rows == [["plain", *["–"] * 6]]


def test_measured_zeros_stay_zeros(read_run):
    frame = Frame([read_run("B", reward=0.0, kl_old=0.0, ref_forward_calls=0, time_step=1.0)])
    assert column(learning_table(frame), "final kl_old") == {"B0": "0.00e+00"}
    assert column(learning_table(frame), "resets") == {"B0": "0"}
    assert column(overview_table(frame), "ref calls") == {"B0": "0"}


def test_clip_ratio_appears_when_measured(read_run):
    runs = [read_run("A", clip_region_mean=0.02), read_run("B")]
    assert column(learning_table(Frame(runs)), "final clip ratio") == {"A0": "0.0200", "B0": "–"}
    assert "final clip ratio" not in learning_table(Frame(runs[1:])).header


def test_overview_table_by_hand(read_run):
    held_out = {"base": [0, 2, 0, 2], "trained": [8, 4, 8, 4]}
    control = read_run("control", time_step=2.0, time_ref=0.5, ref_forward_calls=10, **held_out)
    b = read_run("B", time_step=1.0, time_ref=0.0, ref_forward_calls=0, events=None)
    assert overview_table(Frame([control, b])).rows == [
        ["control0", "0.12 → 0.75 [0.70, 0.80]", "0", "40", "25", "2.00", "1.00"],
        ["B0", "–", "–", "0", "0", "1.00", "0.50"],
    ]


def test_an_arm_is_charged_for_its_validation(read_run):
    """Steps of 2 s; one arm validates for 12 s after two of four steps, and its steps cost 8 s."""
    control = read_run("control", time_step=2.0, time_eval=0.0)
    event = read_run("A", time_step=2.0, time_eval=lambda step: 12.0 * (step % 2 == 0))
    frame = Frame([control, event, read_run("B", time_step=2.0)])  # B: from before it was measured
    assert [row[-2:] for row in overview_table(frame).rows] == [["2.00", "1.00"], ["8.00", "4.00"], ["2.00", "1.00"]]
    assert column(result_matrix(frame), "step time / control")["A"] == "4.00"
