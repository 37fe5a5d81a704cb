"""A table from its columns, and the tables of runs and arms."""

import io

import pytest
from rich.console import Console

from trl_prorl.eval.analysis.frame import Frame
from trl_prorl.eval.pages.matrix import result_matrix
from trl_prorl.eval.pages.runs import learning_table, overview_table
from trl_prorl.eval.pages.table import Column, Table, table_of


COLUMNS = [
    Column("name", lambda row: row["name"], "**name**: of the row."),
    Column(lambda rows: f"of {len(rows)}", lambda row: str(row["value"]), group="Numbers"),
    Column("twice", lambda row: str(2 * row["value"]), "**twice**: the value, doubled.", "Numbers"),
    Column("note", lambda row: row["note"], "**note**: where there is one.", applies=lambda rows: "note" in rows[0]),
    Column("cost", lambda row: "0", group="Cost"),
]


def test_markdown():
    table = Table("title", ["a", "b"], [["1", "–"]], ["a note"])
    assert table.to_markdown() == "| a | b |\n| --- | --- |\n| 1 | – |\n\na note"


def test_columns_by_hand():
    rows = [{"name": "a", "value": 1}, {"name": "b", "value": 4}]
    table = table_of("t", COLUMNS, rows, ["below"], ["last"])
    assert table == Table(
        "t",
        ["name", "of 2", "twice", "cost"],
        [["a", "1", "2", "0"], ["b", "4", "8", "0"]],
        ["below"],
        ["**name**: of the row.", "**twice**: the value, doubled.", "last"],
        [("", 1), ("Numbers", 2), ("Cost", 1)],
    )


def test_a_column_is_shown_where_it_belongs():
    table = table_of("t", COLUMNS, [{"name": "a", "value": 1, "note": "!"}])
    assert table.header == ["name", "of 1", "twice", "note", "cost"]
    assert table.rows == [["a", "1", "2", "!", "0"]]
    # Its neighbours' group ends where it begins.
    assert table.groups == [("", 1), ("Numbers", 2), ("", 1), ("Cost", 1)]
    assert table_of("t", COLUMNS[:1], [{"name": "a"}]).groups == []


def test_narrow_is_for_80_columns():
    table = Table("t", ["what", "value"], [["a name,\nsecond line", "0.5"], ["x" * 100 + "Ω", "0.5"]])
    shown = []
    for narrow in (False, True):
        out = io.StringIO()
        Console(file=out, width=80).print(table.to_rich(narrow=narrow))
        shown.append(out.getvalue())
    assert "┃ what " in shown[0]
    assert "a name, second line" in shown[0]
    assert all("Ω" in one for one in shown)
    assert not any(line.startswith(("┃", "│", "┏")) for line in shown[1].splitlines())
    assert "    a name, │   0.5" in shown[1]
    assert "second line │" in shown[1]


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
    assert column(result_matrix(frame), "step time / control")["A0"] == "4.00"


@pytest.fixture
def cells():
    """The matrix as one dict per row, by column."""

    def make(runs):
        table = result_matrix(Frame(runs))
        assert all(len(row) == len(table.header) == sum(span for _, span in table.groups) for row in table.rows)
        return [dict(zip(table.header, row, strict=True)) for row in table.rows]

    return make


def test_what_was_not_measured_is_a_dash_in_the_matrix(cells, read_run):
    (row,) = cells([read_run("plain", events=None)])
    assert row == {"arm": "plain0", "seeds": "1", **dict.fromkeys(list(row)[2:], "–")}


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
    of_control = {"arm": "control", "seeds": "2", "pass@1": "–", "step time / control": "1.00"}
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
    assert of_control.items() <= control.items()
    assert of_a.items() <= a.items()


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
    assert [row["arm"] for row in cells(runs)] == ["C (hard)", "C (soft)"]
