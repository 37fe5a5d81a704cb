"""Numbers in the tables of runs, variants and held-out evaluations, by hand."""

import re

import pytest

from trl_prorl.eval.analysis.frame import Frame
from trl_prorl.eval.pages import drift_curves as drift
from trl_prorl.eval.pages import runs as run_pages
from trl_prorl.eval.pages import score_sections as page
from trl_prorl.eval.pages.matrix import result_matrix
from trl_prorl.eval.pages.runs import overview_table


def learned(frame):
    """The table of the runs one by one."""
    (table,) = run_pages.section(frame).tables
    return table


def cells(table):
    """The rows of a table, each as its cells by column."""
    return [dict(zip(table.header, row, strict=True)) for row in table.rows]


def matrix(runs):
    return cells(result_matrix(Frame(runs)))


def column(table, name):
    return [row[name] for row in cells(table)]


def test_what_was_learned_by_hand(read_run):
    # 40 steps: the first 5 % are 2 steps with reward 1 and 2, the last 10 % are 4 steps with 37 to 40.
    keys = {"reward": float, "kl_ref": lambda step: step / 100, "base": [0, 2, 0, 2], "trained": [8, 4, 8, 4]}
    keys["events"] = [{"event": "reset", "step_applied": step} for step in (10, 20)]
    greedy = {"greedy": {side: {"accuracy": value} for side, value in (("base", 0.25), ("trained", 0.5))}}
    (row,) = cells(learned(Frame([read_run("A", steps=40, passk=greedy, **keys)])))
    expected = {
        "resets": "2",
        "steps": "40",
        "training reward, first 5 % → last 10 %": "1.500 → 38.500",
        "held-out pass@1, base → trained [95 %]": "0.125 → 0.750 [0.700, 0.800]",
        "greedy accuracy": "0.250 → 0.500",
        "final kl_ref": "0.39",
        "final kl_old": "–",
    }
    assert expected.items() <= row.items()


def test_what_was_not_measured_is_a_dash_and_a_zero_is_a_zero(read_run):
    frame = Frame([read_run("plain", name="plain", events=None)])
    (row,) = cells(learned(frame))
    known = {"run", "variant", "steps"}
    assert {value for name, value in row.items() if name not in known} == {"–"}
    assert set(result_matrix(frame).rows[0][2:]) == {"–"}
    frame = Frame([read_run("B", reward=0.0, kl_old=0.0, ref_forward_calls=0, time_step=1.0)])
    assert column(learned(frame), "final kl_old") == ["0"]
    assert column(learned(frame), "reference calls") == ["0"]


def test_overview_table_by_hand(read_run):
    """A validates for 12 s after two of its four steps of 2 s, so that its steps cost 8 s."""
    held_out = {"base": [0, 2, 0, 2], "trained": [8, 4, 8, 4]}
    control = read_run("control", time_step=2.0, **held_out)
    validated = [{"step": step, "time_eval": 12.0} for step in (2, 4)]
    a = read_run("A", time_step=2.0, evaluations=validated, events=[])
    b = read_run("B", time_step=1.0, events=None)
    assert [[row[0], *row[2:]] for row in overview_table(Frame([control, a, b])).rows] == [
        ["control0", "0.125 → 0.750 [0.700, 0.800]", "0", "2.00", "1.00"],
        ["A0", "–", "0", "8.00", "4.00"],
        ["B0", "–", "–", "1.00", "0.50"],
    ]


def test_the_matrix_by_hand_over_two_seeds(read_run):
    runs = []
    for seed, solved, slow in ((0, 4, 2.0), (1, 6, 4.0)):
        runs.append(read_run("control", seed, steps=40, time_step=2.0, ref_forward_calls=1))
        row = {"time_step": slow, "time_ref": slow / 4, "ref_forward_calls": 2}
        row["reward"] = lambda step, seed=seed: 0.8 if step < 35 or not seed else 0.1
        row["tokens_per_second"] = lambda step: 100.0 if step <= 30 else 300.0
        row["peak_memory_gib"] = lambda step, seed=seed: 10.0 + seed if step == 2 else 5.0
        runs.append(read_run("A", seed, steps=40, base=[2] * 40, trained=[solved] * 40, **row))
    control, a = matrix(runs)
    of_control = {"variant": "control", "seeds": "2", "pass@1": "–", "step time / control": "1.00"}
    assert of_control.items() <= control.items()
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
    assert of_a.items() <= a.items()


def test_one_seed_keeps_its_interval_over_prompts(read_run):
    (row,) = matrix([read_run("A", base=[0] * 40, trained=[0, 8] * 20)])
    # The mean of 40 coins has a standard error of 0.079.
    numbers = [float(part.strip("[],")) for part in row["pass@1"].split()]
    assert numbers == pytest.approx([0.5, 0.5 - 1.96 * 0.079, 0.5 + 1.96 * 0.079], abs=0.03)


def point(step, value, **more):
    sides = {f"pass@{k}": value for k in (1, 8)} | {f"interval@{k}": [value - 0.1, value + 0.1] for k in (1, 8)}
    return {"step": step, **sides, "correct": [4] * 40, **more}


@pytest.fixture
def evaluated(read_run):
    """A run whose prompts have these numbers of 8 samples right."""

    def make(variant="A", seed=0, drift=None, trained=None, name=None, beta=0.0, **passk):
        name = f"{name or variant}{seed}"
        return read_run(variant, seed, name, 3, [2] * 40, trained or [4] * 40, passk, {"beta": beta}, drift=drift)

    return make


def test_checkpoints_have_the_rate_that_fits(evaluated):
    """A quarter at the start; of all 8 samples one is always right: no fit."""
    points = [point(10, 0.4), point(20, 0.7), point(30, 0.6)]
    (rates,) = page.checkpoints(Frame([evaluated(checkpoints=points)])).tables
    assert [row[:3] for row in rates.rows] == [["A0", "1", "0.250 → 0.500"]]


@pytest.mark.parametrize(("trained", "interval"), [(2, "[-0.357, -0.098]"), (4, "[-0.126, +0.126]")])
def test_forgetting_is_paired(evaluated, passk_result, trained, interval):
    # Prompts differ a great deal, the change from prompt to prompt not at all: only pairing shows it.
    # With a prompt at -1 and one at 1 the mean is -5/22 or 0, the variance 3.25/22 - (5/22)^2 or 2/22.
    base = [2, 6] * 10
    other = passk_result(base, [count + trained - 4 for count in base])
    change = (trained - 4) / 8
    ((row,),) = [table.rows for table in page.by_task(Frame([evaluated(others={"parity@2": other})])).tables]
    assert [row[1][:5], row[2][:5], row[3]] == ["0.500", f"{0.5 + change:.3f}", f"{change:+.3f} {interval}"]


def test_tasks_and_drift_by_hand(evaluated):
    part = {"task": "add", "level": 1, "prompts": 5, "base": point(0, 0.2), "trained": point(0, 0.6)}
    drifted = {"step": 20, "kl_to_base": 0.2, "interval": [0.1, 0.4], "token_agreement": 0.9}
    drifted |= {"base_entropy": 0.7, "entropy": 0.6, "mean_tokens": 5.0}
    unknown = {"points": [{**drifted, "step": None}]}
    frame = Frame([evaluated(by=[part], drift={"points": [{**drifted, "kl_to_base": 0.1}, drifted]}), evaluated("B")])
    (row,) = page.by_task(frame).tables[0].rows
    assert row[:3] == ["A0: add@1", "0.200 [0.100, 0.300]", "0.600 [0.500, 0.700]"]
    (row,) = drift.section(frame).tables[0].rows
    assert row[:-2] == ["A0", "20", "0.2000 [0.1000, 0.4000]", "90.0 %", "0.600", "0.700", "5.0"]
    assert drift.section(Frame([evaluated(drift=unknown)])).tables[0].rows[0][1] == "end"


def test_the_control_of_a_run_is_that_of_its_seed(read_run):
    runs = [read_run(variant, seed) for variant, seed in (("control", 0), ("control", 1), ("A", 1), ("A", 2))]
    control, of_seed, *_ = runs
    *_, first, second = Frame(runs).rows
    assert (first.control, first.own_control) == (of_seed, of_seed)
    assert (second.control, second.own_control) == (control, None)
    assert Frame(runs[2:]).rows[0].control is None
    for elsewhere in ({"task": "sorting"}, {"model_name_or_path": "big"}):
        assert Frame([runs[0], read_run("A", config=elsewhere)]).rows[1].control is None


def test_the_notes_tell_the_bound_of_pass_at_k_for_both_sides_and_newly_solved_prompts(passk_result):
    # By hand: two samples both fail in 1/4 and 1/12 of the pairs; at k = 4 the bounds are 15/16 and 143/144.
    _, line = page.result_notes(passk_result(base=[1, 3] * 10, trained=[2, 3] * 10, n=4, k=[1, 4]))
    assert "pass@4" in line
    assert re.findall(r"0\.\d+", line) == ["0.938", "0.993"]
    (newly_solved,) = page.result_notes(passk_result(base=[0] * 6 + [1] * 7, trained=[2] * 12 + [0], n=2, k=[1, 2]))
    assert re.findall(r"(\d+) (?:prompts|lost)", newly_solved) == ["6", "1"]
