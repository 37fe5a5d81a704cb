from eval.analysis.frame import Frame
from eval.pages.matrix import result_matrix
from eval.pages.runs import learning_table, overview_table
from eval.run_folder.reading import load_run


def column(table, name):
    return {row[0]: row[table.header.index(name)] for row in table.rows}


def test_learning_table_by_hand(make_run, make_rows, passk_result):
    # 40 steps: the first 5 % are 2 steps with reward 1 and 2, the last 10 % are 4 steps with 37 to 40.
    rows = make_rows(40, reward=float, kl_ref=lambda step: step / 100)
    result = passk_result(base=[0, 2, 0, 2], trained=[8, 4, 8, 4])
    events = [{"event": "reset", "step_applied": step} for step in (10, 20)]
    table = learning_table(Frame([load_run(make_run("arm", "A", rows, events=events, passk=result))]))
    assert table.rows == [
        [
            "arm",
            "A",
            "KL to moving reference",
            "2",
            "40",
            "1.500 → 38.500",
            "0.125 → 0.750 [0.700, 0.800]",
            table.rows[0][7],
            "1.000",
            "1.000",
            "3.85e-01",
            "–",
        ]
    ]
    assert table.rows[0][7] == "+0.625 (n/a)"


def test_what_was_not_measured_is_a_dash(make_run, make_rows):
    runs = [load_run(make_run("plain", "plain", make_rows(5), events=None))]
    assert learning_table(Frame(runs)).rows == [["plain", "plain", "none", "–", "5", *["–"] * 7]]
    assert overview_table(Frame(runs)).rows == [["plain", *["–"] * 6]]


def test_measured_zeros_stay_zeros(make_run, make_rows):
    rows = make_rows(5, reward=0.0, kl_old=0.0, ref_forward_calls=0, time_step=1.0)
    runs = [load_run(make_run("B", "B", rows))]
    assert column(learning_table(Frame(runs)), "final kl_old") == {"B": "0.00e+00"}
    assert column(learning_table(Frame(runs)), "resets") == {"B": "0"}
    assert column(overview_table(Frame(runs)), "ref calls") == {"B": "0"}


def test_clip_ratio_appears_when_measured(make_run, make_rows):
    runs = [
        load_run(make_run("A", "A", make_rows(5, clip_region_mean=0.02))),
        load_run(make_run("B", "B", make_rows(5))),
    ]
    assert column(learning_table(Frame(runs)), "final clip ratio") == {"A": "0.0200", "B": "–"}
    assert "final clip ratio" not in learning_table(Frame(runs[1:])).header


def test_overview_table_by_hand(make_run, make_rows, passk_result):
    result = passk_result(base=[0, 2, 0, 2], trained=[8, 4, 8, 4])
    control = make_rows(4, time_step=2.0, time_ref=0.5, ref_forward_calls=10)
    b = make_rows(4, time_step=1.0, time_ref=0.0, ref_forward_calls=0)
    runs = [
        load_run(make_run("control", "control", control, passk=result)),
        load_run(make_run("B", "B", b, events=None)),
    ]
    assert overview_table(Frame(runs)).rows == [
        ["control", "0.12 → 0.75 [0.70, 0.80]", "0", "40", "25", "2.00", "1.00"],
        ["B", "–", "–", "0", "0", "1.00", "0.50"],
    ]


def test_an_arm_is_charged_for_its_validation(make_run, make_rows):
    """Steps of 2 s; one arm validates for 12 s after two of four steps, and its steps cost 8 s."""
    control = load_run(make_run("control", "control", make_rows(4, time_step=2.0, time_eval=0.0)))
    event = load_run(make_run("A", "A", make_rows(4, time_step=2.0, time_eval=lambda step: 12.0 * (step % 2 == 0))))
    older = load_run(make_run("old", "B", make_rows(4, time_step=2.0)))  # a record from before it was measured
    runs = [control, event, older]
    overview = overview_table(Frame(runs))
    assert [row[-2:] for row in overview.rows] == [["2.00", "1.00"], ["8.00", "4.00"], ["2.00", "1.00"]]
    table = result_matrix(Frame(runs))
    (matrix,) = [row for row in table.rows if row[0] == "A"]
    assert "4.00" in matrix
