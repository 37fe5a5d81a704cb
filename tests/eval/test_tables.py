import pytest

from eval import tables
from eval.matrix import result_matrix
from eval.runs import load_run


def column(table, name):
    return {row[0]: row[table.header.index(name)] for row in table.rows}


def test_learning_table_by_hand(make_run, make_rows, passk_result):
    # 40 steps: the first 5 % are 2 steps with reward 1 and 2, the last 10 % are 4 steps with 37 to 40.
    rows = make_rows(40, reward=float, kl_ref=lambda step: step / 100)
    result = passk_result(base=[0, 2, 0, 2], trained=[8, 4, 8, 4])
    events = [{"event": "reset", "step_applied": step} for step in (10, 20)]
    table = tables.learning_table([load_run(make_run("arm", "A", rows, events=events, passk=result))])
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


def test_cost_table_by_hand(make_run, make_rows):
    control = make_rows(4, time_step=2.0, time_ref=0.5, ref_forward_calls=500, old_forward_calls=1)
    b = make_rows(4, time_step=lambda step: [1.0, 1.0, 1.0, 9.0][step - 1], ref_forward_calls=0)
    runs = [load_run(make_run("control", "control", control)), load_run(make_run("B", "B", b))]
    table = tables.cost_table(runs)
    assert table.rows == [
        ["control", "control", "2,000", "4", "25.0", "2", "2", "1.00"],
        ["B", "B", "0", "–", "0.0", "1", "3", "1.50"],
    ]


def test_what_was_not_measured_is_a_dash(make_run, make_rows):
    runs = [load_run(make_run("plain", "plain", make_rows(5), events=None))]
    assert tables.learning_table(runs).rows == [["plain", "plain", "none", "–", "5", *["–"] * 7]]
    assert tables.cost_table(runs).rows == [["plain", "plain", *["–"] * 6]]


def test_measured_zeros_stay_zeros(make_run, make_rows):
    rows = make_rows(5, reward=0.0, kl_old=0.0, ref_forward_calls=0, time_step=1.0)
    runs = [load_run(make_run("B", "B", rows))]
    assert column(tables.learning_table(runs), "final kl_old") == {"B": "0.00e+00"}
    assert column(tables.learning_table(runs), "resets") == {"B": "0"}
    assert column(tables.cost_table(runs), "reference forward calls") == {"B": "0"}


def test_clip_ratio_appears_when_measured(make_run, make_rows):
    runs = [
        load_run(make_run("A", "A", make_rows(5, clip_region_mean=0.02))),
        load_run(make_run("B", "B", make_rows(5))),
    ]
    assert column(tables.learning_table(runs), "final clip ratio") == {"A": "0.0200", "B": "–"}
    assert "final clip ratio" not in tables.learning_table(runs[1:]).header


@pytest.mark.parametrize(("variants", "noted"), [(["A", "B"], True), (["control", "B"], False), (["A", "C"], False)])
def test_a_and_b_side_by_side_are_told_apart(make_run, make_rows, variants, noted):
    runs = [load_run(make_run(variant, variant, make_rows(2))) for variant in variants]
    for table in (tables.learning_table(runs), tables.cost_table(runs)):
        assert (tables.DIFFERENT_OBJECTIVE in table.notes) is noted


def test_control_of_the_same_seed(make_run, make_rows):
    runs = [
        load_run(make_run(f"{variant}{seed}", variant, make_rows(2), env={"seed": seed}))
        for variant, seed in (("control", 0), ("control", 1), ("A", 1), ("A", 2))
    ]
    assert tables.control_of(runs[2], runs).name == "control1"
    assert tables.control_of(runs[3], runs).name == "control0"
    assert tables.control_of(runs[3], runs[2:]) is None


def test_seeds_table(make_run, make_rows):
    def run(name, seed, reward, **config):
        rows = make_rows(4, reward=reward)
        return load_run(make_run(name, "C", rows, env={"seed": seed}, config={"seed": seed, **config}))

    runs = [
        run("s0", 0, 0.4, optimizer_reset="hard"),
        run("s1", 1, 0.6, optimizer_reset="hard"),
        run("soft", 1, 0.9, optimizer_reset="soft"),  # another configuration, no repetition
    ]
    table = tables.seeds_table(runs)
    # Mean 0.5, standard error 0.1, t(0.975, 1) = 12.706.
    assert [row[:4] for row in table.rows] == [
        ["C", "s0, s1", "2", "0.500 [-0.771, 1.771]"],
        ["C", "soft", "1", "0.900"],
    ]
    assert tables.seeds_table(runs[1:]) is None


def test_what_changes_no_number_makes_no_other_configuration(make_run, make_rows):
    def run(seed, **config):
        return load_run(make_run(f"s{seed}", "A", make_rows(2), env={"seed": seed}, config={"seed": seed, **config}))

    harmless = {"hub_model_id": "me/a", "resume_from_checkpoint": True, "logging_steps": 5, "output_dir": "elsewhere"}
    runs = [run(0), run(1, **harmless), run(2, model_name_or_path="big"), run(3, dataset_name="other"), run(4, beta=1)]
    groups = tables.repetitions(runs)
    assert [[one.name for one in group] for group in groups] == [["s0", "s1"], ["s2"], ["s3"], ["s4"]]
    labels = tables.configuration_labels([[runs[1]], *groups])
    assert not any(key in label for label in labels for key in harmless)
    assert "model_name_or_path: big" in labels[2] and "dataset_name: other" in labels[3]


def test_labels_name_what_differs_and_has_an_effect(make_run, make_rows):
    configs = [
        {"optimizer_reset": "hard", "optimizer_reset_alpha": 0.1, "beta": 1.0},
        {"optimizer_reset": "soft", "optimizer_reset_alpha": 0.1, "beta": 1.0},
        {"optimizer_reset": "soft", "optimizer_reset_alpha": 0.25, "beta": 1.0},
        # The same as the first: what does nothing there, and what no number depends on.
        {"optimizer_reset": "hard", "optimizer_reset_alpha": 0.25, "beta": 1.0, "eval_steps": 7, "run_name": "x"},
        # An evaluation that a trigger watches does change numbers.
        {"optimizer_reset": "hard", "beta": 1.0, "ref_reset_stall": 2, "eval_steps": 5},
        {"optimizer_reset": "hard", "beta": 1.0, "ref_reset_stall": 2, "eval_steps": 7},
    ]
    runs = [
        load_run(make_run(f"c{i}", "C", make_rows(2), config={"ref_reset_stall": 0, **config}, env={"seed": i}))
        for i, config in enumerate(configs)
    ]
    groups = tables.repetitions(runs)
    assert [[run.name for run in group] for group in groups] == [["c0", "c3"], ["c1"], ["c2"], ["c4"], ["c5"]]
    assert tables.configuration_labels(groups[:3]) == [
        "C (optimizer_reset: hard)",
        "C (optimizer_reset: soft, optimizer_reset_alpha: 0.1)",
        "C (optimizer_reset: soft, optimizer_reset_alpha: 0.25)",
    ]
    assert tables.configuration_labels([groups[0], *groups[3:]]) == [
        "C (ref_reset_stall: 0)",
        "C (eval_steps: 5, ref_reset_stall: 2)",
        "C (eval_steps: 7, ref_reset_stall: 2)",
    ]
    assert tables.configuration_labels(groups[:1]) == ["C"]


def test_markdown():
    table = tables.Table("title", ["a", "b"], [["1", "–"]], ["a note"])
    assert table.to_markdown() == "| a | b |\n| --- | --- |\n| 1 | – |\n\na note"


def test_overview_table_by_hand(make_run, make_rows, passk_result):
    result = passk_result(base=[0, 2, 0, 2], trained=[8, 4, 8, 4])
    control = make_rows(4, time_step=2.0, time_ref=0.5, ref_forward_calls=10)
    b = make_rows(4, time_step=1.0, time_ref=0.0, ref_forward_calls=0)
    runs = [
        load_run(make_run("control", "control", control, passk=result)),
        load_run(make_run("B", "B", b, events=None)),
    ]
    assert tables.overview_table(runs).rows == [
        ["control", "0.12 → 0.75 [0.70, 0.80]", "0", "40", "25", "2.00", "1.00"],
        ["B", "–", "–", "0", "0", "1.00", "0.50"],
    ]


def test_an_arm_is_charged_for_its_validation(make_run, make_rows):
    """Steps of 2 s; one arm validates for 12 s after two of four steps, and its steps cost 8 s."""
    control = load_run(make_run("control", "control", make_rows(4, time_step=2.0, time_eval=0.0)))
    event = load_run(make_run("A", "A", make_rows(4, time_step=2.0, time_eval=lambda step: 12.0 * (step % 2 == 0))))
    older = load_run(make_run("old", "B", make_rows(4, time_step=2.0)))  # a record from before it was measured
    runs = [control, event, older]
    overview, cost = tables.overview_table(runs), tables.cost_table(runs)
    assert [row[-2:] for row in overview.rows] == [["2.00", "1.00"], ["8.00", "4.00"], ["2.00", "1.00"]]
    shown = [dict(zip(cost.header, row, strict=True)) for row in cost.rows]
    names = ["median seconds a step", "validation, mean seconds a step", "mean seconds a step"]
    assert [[row[name] for name in names] for row in shown] == [["2", "0", "2"], ["2", "6", "8"], ["2", "–", "2"]]
    (matrix,) = [row for row in result_matrix(runs).rows if row[0] == "A"]
    assert matrix[-4] == "4.00"
