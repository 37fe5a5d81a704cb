import re

import pytest

from eval.analysis.pairing import pairs, same_prompts
from eval.pages import caveats, reproduce, statements
from eval.run_folder.reading import load_run
from trl_prorl.variants import DIFFERENT_OBJECTIVE


@pytest.fixture
def arm(make_run, make_rows, passk_result):
    """A run of a variant whose 40 prompts have the given numbers of correct samples out of 8."""

    def make(variant, trained=None, base=None, name=None, seed=0, steps=4, config=None, env=None, **passk):
        base = base or [1] * 40
        result = None if trained is None else passk_result(base=base, trained=trained, **passk)
        folder = make_run(
            name or variant,
            variant,
            make_rows(steps),
            passk=result,
            config={"seed": seed, **(config or {})},
            env={"seed": seed, **(env or {})},
        )
        return load_run(folder)

    return make


def test_gains(arm):
    runs = [arm("control", [0] * 40), arm("A", [5] * 40), arm("B", [1, 0, 2, 1] * 10), arm("C")]
    lines = statements.gain_statements(runs)
    assert len(lines) == 3  # nothing to say of an unevaluated run
    assert lines[0].endswith("a gain of -0.125 [-0.188, -0.044]: the interval excludes 0.")
    assert "`A` (A) went from 0.125 to 0.625" in lines[1]
    assert lines[1].endswith("a gain of +0.500 [+0.392, +0.536]: the interval excludes 0.")
    assert lines[2].endswith(": the interval covers 0.")


@pytest.mark.parametrize("trained, gain", [([3, 3] * 4, "+0.250"), ([1] * 8, "+0.000"), ([0] * 8, "-0.125")])
def test_where_there_is_no_interval_nothing_is_said_of_one(arm, trained, gain):
    """Eight prompts."""
    base = {"base": [1] * 8}
    (line,) = statements.gain_statements([arm("A", trained, **base)])
    assert line.endswith(f"a gain of {gain} (n/a): too few prompts for an interval.")
    runs = [arm("control", [1] * 8, name="c", **base), arm("B", [1] * 8, name="b", **base)]
    for line in statements.comparison_statements([*runs, arm("A", trained, name="a", **base)]):
        assert not re.search(r"excludes|covers|over prompts|no difference found|higher", line), line


def test_share_of_a(arm):
    (line,) = statements.share_statements([arm("A", [8] * 40), arm("B", [6] * 40)])
    assert "B reaches 75 % [70 %, 83 %] of A's, over prompts only." in line
    assert line.endswith(DIFFERENT_OBJECTIVE)


def test_share_of_nothing(arm):
    (line,) = statements.share_statements([arm("A", [0] * 40), arm("B", [6] * 40)])
    assert "no share to give" in line
    assert DIFFERENT_OBJECTIVE in line


def test_runs_that_answer_alike_claim_no_resolution(arm):
    (line,) = statements.control_statements([arm("control", [4, 5] * 20), arm("A", [4, 5] * 20)])
    assert line.endswith("no difference found; every prompt was solved equally often.")


def test_no_difference_says_what_would_be_found(arm):
    (line,) = statements.control_statements([arm("control", [4, 5] * 20), arm("A", [5, 4] * 20)])
    # Differences of +-1/8 at 40 prompts: (1.96 + 0.84) * 0.125 / sqrt(40) = 0.055.
    found = re.search(r"no difference found; detectable difference \(80 % power\): ([\d.]+)\.", line)
    assert float(found[1]) == pytest.approx(0.055, abs=0.003)


@pytest.mark.parametrize(("control", "a", "higher"), [(7, 4, "control"), (4, 7, "A")])
def test_a_difference_names_the_higher_run(arm, control, a, higher):
    (line,) = statements.control_statements([arm("control", [control] * 40), arm("A", [a] * 40)])
    assert f"the {higher} run is higher" in line
    assert "no difference" not in line


@pytest.mark.parametrize("change", [{"split": "train"}, {"temperature": 0.7}, {"level": 4}, {"max_new_tokens": 9}])
def test_only_the_same_prompts_are_paired(arm, change):
    runs = [arm("control", [4] * 40), arm("A", [4] * 40, **change), arm("B", [4] * 40)]
    lines = statements.control_statements(runs) + statements.share_statements(runs)
    assert len(lines) == 2
    assert all("not evaluated on the same prompts" in line for line in lines)


def test_other_task_seed_is_other_prompts(arm):
    assert not same_prompts(arm("A", [4] * 40), arm("B", [4] * 40, config={"task_seed": 1}))


def test_pairs_share_the_seed_where_they_can(arm):
    runs = [arm("A", name="A0"), arm("A", name="A1", seed=1), arm("B", name="B1", seed=1)]
    assert [(b.name, a.name) for b, a in pairs(runs, "B", "A")] == [("B1", "A1")]
    assert [(b.name, a.name) for b, a in pairs([runs[0], runs[2]], "B", "A")] == [("B1", "A0")]


def test_missing_evaluation_says_how_to_make_it(arm):
    run = arm("A")
    (line,) = statements.missing_statements([run, arm("B", [4] * 40)])
    assert f"python -m eval.passk --run {run.path}" in line
    assert "`B`" not in line


def test_no_command_for_runs_it_would_refuse(arm):
    """A run from plain Python: its configuration names neither model nor task."""
    plain = arm("A", name="plain", config={"model_name_or_path": None, "task": None})
    (line,) = statements.missing_statements([plain])
    assert line.startswith("Not evaluated on held-out prompts: `plain`. `evaluate(trainer, rows, verifier)`")
    other = arm("B")
    (line,) = statements.missing_statements([plain, other])
    assert "`plain`, `B`" in line and f"Run `python -m eval.passk --run {other.path}`, then" in line
    assert reproduce.evaluation_commands([plain, other]) == f"python -m eval.passk --run {other.path}"


def test_unevaluated_a_and_b_are_still_told_apart(arm):
    assert any(DIFFERENT_OBJECTIVE in line for line in statements.comparison_statements([arm("A"), arm("B")]))


def test_caveats(arm):
    one = caveats.caveats([arm("A", [4] * 40), arm("B", [4] * 40, temperature=0.5)])
    assert any("One training seed per arm" in line for line in one)
    assert any("test split, 40 prompts, 8 samples each, temperature 1" in line for line in one)
    assert any("not all evaluated in the same way" in line for line in one)
    assert any("overlaps with what the clipping" in line for line in one)

    two = [arm("C", name="C0"), arm("C", name="C1", seed=1)]
    assert any("Training seeds per arm: 2 (C)." in line for line in caveats.caveats(two))


def test_differences_beyond_the_variant_are_named(arm):
    runs = [
        arm("A", config={"beta": 0.1, "ref_reset_every": 5, "learning_rate": 1e-5}, env={"hardware": {"gpu": "x"}}),
        arm("B", config={"beta_old": 0.1}, env={"hardware": {"gpu": "y"}}, steps=7),
    ]
    text = " ".join(caveats.caveats(runs))
    assert "`learning_rate` (1e-05, default)" in text
    assert "beta" not in text
    assert "ref_reset_every" not in text
    assert "differ in length, 4 to 7 steps" in text
    assert "differ in `hardware`" in text


def test_ways_of_computing_are_named_where_the_arms_could_share_them(arm):
    a = {"old_logps": "first_pass", "ref_compute": "cached", "loss": "trl", "packing": "on"}
    b = {**a, "ref_compute": "none", "loss": "trl + added penalty"}

    def said(*executions):
        runs = [arm("A", name=f"{len(executions)}{i}", env={"execution": one}) for i, one in enumerate(executions)]
        return [line for line in caveats.caveats(runs) if "computing" in line]

    assert said(a, b) == []  # what sets B apart from A
    assert said(a, b, {**b, "packing": "off"}, {**b, "old_logps": "forward"}) == [
        "The runs differ in `packing` (on and off; `execution` in `env.json`): step times compare these ways of "
        "computing too.",
        "The runs differ in `old_logps` (first_pass and forward; `execution` in `env.json`): step times compare these "
        "ways of computing too.",
    ]
    (line,) = said(a, b, {**a, "ref_compute": "naive_epoch"})
    assert "`ref_compute` (cached and naive_epoch;" in line


def test_prompt_ids_decide_whether_prompts_are_the_same(arm):
    a = arm("A", trained=[4] * 40, prompt_ids=["x"] * 40)
    b = arm("B", trained=[4] * 40, prompt_ids=["x"] * 40, config={"task_seed": 5})
    other = arm("B", trained=[4] * 40, prompt_ids=["y"] * 40, name="other")
    older = arm("B", trained=[4] * 40, name="older")
    assert same_prompts(a, b)  # the same contents, wherever they came from
    assert not same_prompts(a, other)
    assert same_prompts(a, older)  # nothing says they differ
