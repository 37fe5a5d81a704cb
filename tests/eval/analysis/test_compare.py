import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from trl_prorl.errors import InputError
from trl_prorl.eval import compare as command
from trl_prorl.eval.analysis.compare import GREEDY, compare, compare_all_pairs, compare_arms, pair_notes
from trl_prorl.eval.analysis.frame import Frame
from trl_prorl.eval.analysis.timing import Timing
from trl_prorl.variants import DIFFERENT_OBJECTIVE


@pytest.fixture
def evaluated(read_run):
    """A run whose trained model got these counts of n = 8 right."""

    def make(name, trained, variant="A", config=None, steps=20, **passk):
        return read_run(variant, 0, name, steps, [0] * len(trained), list(trained), passk, config)

    return make


def test_by_hand(evaluated):
    result = compare(evaluated("a", [8, 4, 0, 2, 1, 5] * 4), evaluated("b", [4, 4, 0, 0, 2, 1] * 4), k=1)
    assert (result.first_value, result.second_value) == (pytest.approx(20 / 48), pytest.approx(11 / 48))
    assert result.difference.value == pytest.approx(9 / 48)
    assert result.seeds == 1
    # In eighths 4, 0, 0, 2, -1, 4, four times: mean 3/2, variance (148 - 24 · 9/4) / 23 = 94/23.
    t = 1.5 / math.sqrt(94 / 23 / 24)
    assert result.p_value == result.adjusted == pytest.approx(2 * stats.t.sf(t, 23))
    assert result.differs
    assert not replace(result, adjusted=0.06).differs
    # (1.95996 + 0.84162) / 1.95996
    assert result.detectable == pytest.approx(1.42941 * (result.difference.high - result.difference.low) / 2, rel=1e-5)


def greedy(correct):
    """Greedy decoding in a `passk.json`: the verdicts of the trained model."""
    return {"greedy": {side: {"accuracy": np.mean(correct), "correct": correct} for side in ("base", "trained")}}


def test_greedy_decoding_of_one_pair_by_hand(evaluated):
    a = evaluated("a", [4] * 8, **greedy([1] * 7 + [0]))
    b = evaluated("b", [4] * 8, **greedy([1, 0, 0, 0, 0, 0, 0, 1]))
    # 6 for a, 1 for b: 2 (C(7,6) + C(7,7)) / 2^7, however few prompts there are.
    found = compare(a, b, k=GREEDY)
    assert found.outcome == "greedy"
    assert found.p_value == pytest.approx(1 / 8)
    assert found.difference.value == 5 / 8
    assert math.isnan(compare(a, b, k=1).p_value)
    with pytest.raises(InputError, match="greedy"):
        compare(a, evaluated("c", [4] * 8), k=GREEDY)


def test_greedy_decoding_over_seeds_is_a_test_over_prompts_where_seeds_agree(read_run):
    right = {"A": ([1] * 30 + [0] * 10, [1] * 20 + [0] * 20), "B": ([1] * 10 + [0] * 30, [0] * 40)}
    runs = [
        read_run(variant, seed, trained=[4] * 40, passk=greedy(correct))
        for variant, seeds in right.items()
        for seed, correct in enumerate(seeds)
    ]
    rows, left = compare_all_pairs(runs, [1])
    assert [row.outcome for row in rows] == ["pass@1", "greedy"]
    assert not left
    averaged = np.mean([np.subtract(a, b) for a, b in zip(*right.values(), strict=True)], axis=0)
    assert rows[1].difference.value == 0.5
    assert rows[1].p_value == pytest.approx(stats.ttest_1samp(averaged, 0.0).pvalue)


def test_of_k_samples_pass_at_k_is_right_or_wrong(evaluated):
    """9 prompts that only a solves, one that only b solves: 2 (C(10,9) + C(10,10)) / 2^10."""
    found = compare(evaluated("a", [1] * 9 + [0] * 11), evaluated("b", [0] * 9 + [8] + [0] * 10), k=8)
    assert found.p_value == pytest.approx(22 / 1024)
    assert found.difference.value == pytest.approx(8 / 20)


IDS = {"prompt_ids": ["x", "y"]}
CUT = {"max_new_tokens": 16}


@pytest.mark.parametrize(
    ("of_a", "of_b", "named"),
    [
        ({}, {"n": 16}, "passk --run A --prompts 2 --n 16"),
        ({}, {"temperature": 0.5}, "passk --run B "),
        ({"temperature": 0.5}, {}, "--temperature 0.5"),
        (CUT, {"max_new_tokens": 32}, "--max-new-tokens 16"),
        # The option for every difference, in the command for the smaller evaluation.
        ({"split": "validation"}, {"n": 4, "prompts": 1, **IDS}, "passk --run B --split validation --prompts 2 --n 8"),
        (IDS, {"prompt_ids": ["x", "z"]}, "(1 in common)"),
        (IDS, {"prompt_ids": ["y", "x"]}, "order"),
        # What no command can cure.
        (IDS, {"task": "sorting"}, "tasks"),
        (IDS, {"prompt_ids": ["x", "z"], "level": 2}, "levels"),
        (IDS, {"config": {"task_seed": 1}}, "task_seed"),
        # Ids decide.
        (IDS, {**IDS, "config": {"task_seed": 7}}, None),
    ],
)
def test_what_cannot_be_paired_is_refused_with_the_cure(evaluated, of_a, of_b, named):
    a = evaluated("a", [1, 2], **of_a)
    b = evaluated("b", [2, 2], **of_b)
    if named is None:
        assert compare(a, b, k=1).difference.value < 0
        return
    with pytest.raises(InputError) as refusal:
        compare(a, b, k=1)
    said = str(refusal.value).replace(str(a.path), "A").replace(str(b.path), "B")
    assert named in said
    assert said.endswith("--replace`") != ("cannot be compared" in said)


def test_b_has_a_note_in_every_pair_with_another_variant(evaluated):
    a, control, b, other = (evaluated(f"{i}", [1, 2], variant) for i, variant in enumerate(("A", "control", "B", "B")))
    noted = [DIFFERENT_OBJECTIVE in pair_notes(*pair) for pair in ((a, b), (b, control), (b, other), (a, control))]
    assert noted == [True, True, False, False]
    notes = " ".join(pair_notes(a, evaluated("big", [1, 2], config={"model_name_or_path": "big"}, steps=40)))
    assert "tiny and big" in notes and "20 and 40 steps" in notes


@pytest.fixture
def found(read_run):
    """B against A, of runs given by variant, seed, correct samples of 8 at every of 400 prompts, and step time."""

    def make(*runs, prompts=400):
        a, b = Frame([read_run(*arm, trained=[solved] * prompts, time_step=time) for *arm, solved, time in runs]).arms
        return compare_arms(b, a)

    return make


def test_ratios_of_one_pair_are_over_prompts_and_steps(found):
    """Every prompt has 7/8: of 400 that agree, 1 - 0.05^(1/400) = .75 % of others are not excluded."""
    row = found(("A", 0, 8, 2.0), ("B", 0, 7, 1.0))
    unseen = 1 - 0.05 ** (1 / 400)
    seen = (1 - unseen) * np.array([7 / 8, 1.0])
    assert row.share == pytest.approx((0.875, seen[0] / (seen[1] + unseen), (seen[0] + unseen) / seen[1]))
    assert row.step_time == (0.5, 0.5, 0.5)  # all steps alike


def test_no_ratio_to_what_may_be_0(found, read_run):
    """Base score 0, too few prompts, one step: no ratio."""
    nothing = found(("A", 0, 0, 2.0), ("B", 0, 7, 1.0))
    few = found(("A", 0, 8, 2.0), ("B", 0, 8, 1.0), prompts=8)
    # Seeds at 1/8, 1/8 and 6/8: mean 1/3, t(0.975, 2) times the standard error is .9.
    noisy = found(*(("A", seed, 1 + 5 * (seed == 2), 2.0) for seed in range(3)), *(("B", s, 4, 1.0) for s in range(3)))
    assert nothing.share is few.share is noisy.share is None
    short = [read_run(variant, steps=1, trained=[8] * 40, time_step=1.0) for variant in "AB"]
    assert compare(*short).step_time is None


def test_a_step_time_over_steps_by_hand(read_run):
    """B's steps take 1 and 3 s in turns, A's 1 s: 2 times as long, ± t(0.975, 3) times the standard error."""
    b, a = (
        read_run(name, trained=[8] * 40, time_step=seconds)
        for name, seconds in (("B", lambda step: 1 + 2.0 * (step % 2)), ("A", 1.0))
    )
    half = 3.182446 * np.std([1, 3, 1, 3], ddof=1) / 2
    assert compare(b, a).step_time == pytest.approx((2.0, 2 - half, 2 + half), rel=1e-4)


def test_step_times_over_seeds_are_a_ratio_of_means_by_hand(found):
    """The means are 2.5 and 2; log ratios ±ln 2: mean 0, standard error ln 2, t(0.975, 1) = 12.706."""
    row = found(("A", 0, 8, 2.0), ("A", 1, 8, 2.0), ("B", 0, 8, 1.0), ("B", 1, 8, 4.0))
    assert row.step_time.value == pytest.approx(2.5 / 2)
    assert math.log(row.step_time.high) == pytest.approx(12.706 * math.log(2), rel=1e-4)
    assert row.step_time.low * row.step_time.high == pytest.approx(1.0)


def test_a_seed_that_scored_nothing_counts(found):
    # B's third run collapsed: s = 1/sqrt(3), standard error 1/3, t(0.975, 2) = 4.3027: 2/3 +- 1.4342.
    a = [("A", seed, 8, 2.0) for seed in range(3)]
    row = found(*a, *(("B", seed, 8 * (seed < 2), 1.0) for seed in range(3)))
    assert row.share == pytest.approx((2 / 3, 0.0, 2 / 3 + 4.3027 / 3), rel=1e-4)
    assert row.difference == pytest.approx((-1 / 3, -1.0, 1.0))  # two shares are no further from each other


@pytest.fixture
def of_arm(read_run):
    def make(variant, seed, counts):
        base = [0] * len(counts)
        beta = {"beta": len(variant)}
        return read_run(variant, seed, f"{variant}_{seed}", base=base, trained=counts, config=beta)

    return make


def counts(mean, seed):
    """Correct samples of 8 at 40 prompts."""
    return [int(c) for c in np.random.default_rng(seed).binomial(8, mean, size=40)]


@pytest.fixture
def grid(of_arm):
    """Three arms, three seeds; B lacks seed 3."""
    means = {"control": 0.3, "A": 0.35, "B": 0.8}
    return {
        (arm, seed): of_arm(arm, seed, counts(mean, 10 * seed + place))
        for place, (arm, mean) in enumerate(means.items())
        for seed in (1, 2, 3)
        if (arm, seed) != ("B", 3)
    }


def mean_of(run):
    return np.mean(run.passk["trained"]["correct"]) / 8


def test_the_difference_is_that_of_the_seeds_both_have(grid):
    rows, left = compare_all_pairs([*grid.values()], [1])
    named = [(row.first, row.second, row.seeds) for row in rows]
    assert named == [("control", "A", 3), ("control", "B", 2), ("A", "B", 2)]
    assert [line.partition(" ")[0] for line in left] == ["control_3", "A_3"]
    for row in rows:
        seeds = (1, 2, 3)[: row.seeds]
        first, second = ([mean_of(grid[arm, seed]) for seed in seeds] for arm in (row.first, row.second))
        assert row.first_value == pytest.approx(np.mean(first))
        assert row.difference.value == pytest.approx(np.mean(np.subtract(first, second)))
        low, high = stats.ttest_rel(first, second).confidence_interval()
        assert row.difference.low <= low + 1e-12
        assert row.difference.high >= high - 1e-12
        assert row.p_value >= stats.ttest_rel(first, second).pvalue - 1e-12
    # Holm by hand: the least of three p-values three times, the next twice, and none below one before it.
    ordered = sorted(rows, key=lambda row: row.p_value)
    worst = 0.0
    for factor, row in zip((3, 2, 1), ordered, strict=True):
        worst = max(worst, factor * row.p_value)
        assert row.adjusted == pytest.approx(min(1.0, worst))


def test_seeds_that_are_nowhere_shared_and_runs_that_answer_alike(of_arm):
    runs = [of_arm(arm, seed, counts(0.5, 0)) for arm, seed in (("A", 1), ("A", 2), ("B", 3), ("B", 4), ("B", 1))]
    with pytest.raises(InputError, match="no seed in common"):
        compare_all_pairs(runs[:4], [1])
    (row,), _ = compare_all_pairs([runs[0], runs[4]], [1])
    assert (row.difference.value, row.p_value, row.adjusted) == (0, 1.0, 1.0)


def test_the_command(grid, of_arm, tmp_path, capsys):
    folder = grid["A", 1].path.parent
    of_arm("C", 1, counts(0.5, 7)[:30])
    out = tmp_path / "found.json"
    assert command.main(["--runs", f"{folder}/*", "--k", "1", "8", "--json", str(out)]) == 0
    assert DIFFERENT_OBJECTIVE in " ".join(capsys.readouterr().out.split())
    found = json.loads(out.read_text())
    assert sorted(row["k"] for row in found["comparisons"]) == [1, 1, 1, 8, 8, 8]
    assert "C_1 --prompts 40 --n 8" in found["notes"][0]
    expected, _ = compare_all_pairs([*grid.values()], [1])
    assert [row["p_value"] for row in found["comparisons"][:3]] == pytest.approx([row.p_value for row in expected])
    for said, runs in {"--k 9": [f"{folder}/*", "--k", "9"], "one variant": [f"{folder}/A_*"]}.items():
        assert command.main(["--runs", *runs]) == 2
        assert said in " ".join(capsys.readouterr().err.split())


def test_the_first_line_answers_whether_runs_differ(grid, capsys):
    """B is far above A and control, which are close; of three runs after Holm, of two by their own test."""
    a, b, control = (str(grid[arm, 1].path) for arm in ("A", "B", "control"))

    def first_line(*runs):
        assert command.main(["--runs", *runs, "--k", "1"]) == 0
        return capsys.readouterr().out.splitlines()[0]

    lower = compare(grid["A", 1], grid["B", 1])
    line = first_line(a, b)
    assert line.startswith(f"Yes: A_1 (moving reference) − B_1 (old policy) = {lower.difference.value:+.3f} [")
    assert f"p = {lower.p_value:.2g}" in line and "significantly lower pass@1" in line
    line = first_line(a, control)
    close = compare(grid["A", 1], grid["control", 1])
    assert line.startswith("No significant difference in pass@1") and f"{close.detectable:.3f}" in line
    line = first_line(a, b, control)
    assert line.startswith("Yes: 2 of 3 pairs") and line.count(" − B_1 (old policy) = ") == 2


def test_the_first_line_says_what_it_is_not_about(grid, of_arm, capsys):
    """A run without a partner, of two variants and of three; pairs that cannot be compared."""

    def written(*runs):
        assert command.main(["--runs", *(str(run.path) for run in runs), "--k", "1"]) == 0
        return capsys.readouterr().out

    a, b, c = grid["A", 1], grid["B", 1], grid["B", 2]
    said = written(a, b, c)
    line = said.splitlines()[0]
    pair = compare(a, b)
    assert f"A_1 (moving reference) − B_1 (old policy) = {pair.difference.value:+.3f}" in line
    assert "B_2 is left out: A_1 has no run with seed 2." in line
    assert "One run each" in said
    line = written(a, b, c, grid["control", 1]).splitlines()[0]
    assert "B_2 is left out" in line and "control_1" in line
    line = written(a, b, of_arm("C", 1, counts(0.5, 7)[:30])).splitlines()[0]
    assert "A_1 and C_1" in line and "B_1 and C_1" in line


def test_without_an_interval_there_is_no_answer(evaluated, capsys):
    runs = [str(evaluated(name, [4] * 8).path) for name in ("a", "b")]
    assert command.main(["--runs", *runs]) == 0
    line = capsys.readouterr().out.splitlines()[0]
    assert "20 prompts" in line and "--prompts" in line


@pytest.fixture
def timed(read_run):
    """A function: a run of 3 steps of 2 s each, a pause after each; the last one ends at the given second."""

    def make(name, last, pause=0.0):
        def ended(step):
            return last - (3 - step) * (2.0 + pause)

        return read_run(name, name=name, steps=3, trained=[8] * 40, time_step=2.0, time_ended=ended)

    return make


@pytest.mark.parametrize(
    ("last", "pause", "beside"),
    [
        (112.0, 0.0, False),  # begins in the moment in which the other one ends
        (111.75, 0.0, True),
        (100.25, 0.0, True),
        (100.0, 0.0, False),
        (108.0, 6.0, False),  # 90 to 92, 98 to 100, 106 to 108: the other one ran in its pause, as before a resume
        (107.0, 6.0, True),  # … 105 to 107
    ],
)
def test_a_step_beside_a_step_of_another_run(timed, last, pause, beside):
    pair = [timed("A", 106.0), timed("B", last, pause)]
    for runs in (pair, pair[::-1]):
        timing = Timing(runs)
        assert timing.beside == (runs if beside else [])
        assert [timing.alone(each) for each in runs] == [not beside] * 2


def test_runs_beside_each_other_decide_nothing_of_the_cost(timed):
    """C trained alone, and is the only one with a step time."""
    runs = [timed("A", 106.0), timed("B", 105.0), timed("C", 200.0)]
    a, b, c = Frame(runs).arms
    assert compare_arms(b, a).step_time is None
    assert compare_arms(c, a).step_time is None
    # Without the one that trained beside it, as a user would compare two runs.
    assert compare(runs[0], runs[2]).step_time.value == 1.0
