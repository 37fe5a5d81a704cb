import hashlib
import json
import math
import shlex
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from trl_prorl.cli.variants import DIFFERENT_OBJECTIVE
from trl_prorl.errors import InputError
from trl_prorl.eval import compare as command
from trl_prorl.eval.analysis.frame import Frame
from trl_prorl.eval.analysis.pairs import GREEDY, compare, pair_notes
from trl_prorl.eval.analysis.timing import trained_in_parallel
from trl_prorl.eval.compare import compare_runs
from trl_prorl.eval.pages.caveats import caveats
from trl_prorl.eval.pages.comparison import stale_notes


@pytest.fixture
def evaluated(read_run):
    """A run whose trained model got these counts of n = 8 right."""

    def make(name, trained, variant="A", config=None, steps=20, **passk):
        return read_run(variant, 0, name, steps, [0] * len(trained), list(trained), passk, config)

    return make


def of_two(a, b, k):
    """The comparison of two runs in one outcome."""
    found, *_ = compare_runs([a, b], None if k is GREEDY else [k])
    return next(row for row in found if row.k == k)


def test_by_hand(evaluated):
    result = of_two(evaluated("a", [8, 4, 0, 2, 1, 5] * 4), evaluated("b", [4, 4, 0, 0, 2, 1] * 4), k=1)
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


def test_the_detectable_difference_is_that_of_the_corrected_test(grid):
    """For p up to 0.05 / 3, z(1 - 0.025 / 3) = 2.39398, and (2.39398 + 0.84162) / 1.95996 = 1.65085."""
    rows, *_ = compare_runs([*grid.values()], [1])
    assert [row.detectable / (row.difference.high - row.difference.low) * 2 for row in rows] == pytest.approx(
        [1.65085] * 3, rel=1e-5
    )


def greedy(correct):
    """Greedy decoding in a `passk.json`: the verdicts of the trained model."""
    return {"greedy": {side: {"accuracy": np.mean(correct), "correct": correct} for side in ("base", "trained")}}


def test_a_k_that_is_given_twice_is_one_outcome(evaluated):
    rows, *_ = compare_runs([evaluated("a", [0] * 20, "A"), evaluated("b", [4] * 20, "B")], [2, 1, 2])
    assert [row.k for row in rows] == [2, 1]


def test_yes_or_no_at_each_prompt_is_an_exact_test(evaluated):
    """Greedy decoding: 6 for a, 1 for b: 2 (C(7,6) + C(7,7)) / 2^7, however few prompts there are."""
    a = evaluated("a", [4] * 8, **greedy([1] * 7 + [0]))
    b = evaluated("b", [4] * 8, **greedy([1, 0, 0, 0, 0, 0, 0, 1]))
    found = of_two(a, b, GREEDY)
    assert (found.outcome, found.difference.value, found.p_value) == ("greedy", 5 / 8, pytest.approx(1 / 8))
    assert math.isnan(of_two(a, b, 1).p_value)
    with pytest.raises(InputError, match="greedy"):
        compare(*Frame([a, evaluated("c", [4] * 8, "B")]).groups, k=GREEDY)
    # Of more runs, too: each outcome has its rows.
    rows, *_ = compare_runs([a, b, evaluated("f", [4] * 8, "B", **greedy([1] * 8))], [1])
    assert {row.outcome for row in rows} == {"pass@1", "greedy"}
    # All 8 samples: 9 prompts that only a solves, one that only b solves: 2 (C(10,9) + C(10,10)) / 2^10.
    found = of_two(evaluated("d", [1] * 9 + [0] * 11), evaluated("e", [0] * 9 + [8] + [0] * 10), 8)
    assert (found.difference.value, found.p_value) == pytest.approx((8 / 20, 22 / 1024))


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
        ({"split": "validation"}, {"n": 4, "k": [1, 4], "prompts": 1, **IDS}, "passk --run B --prompts 2 --n 8"),
        ({"split": "validation"}, {"n": 4, "k": [1, 4], "prompts": 1, **IDS}, "--split validation"),
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
        assert of_two(a, b, 1).difference.value < 0
        return
    with pytest.raises(InputError) as refusal:
        of_two(a, b, 1)
    said = str(refusal.value).replace(str(a.path), "A").replace(str(b.path), "B")
    assert named in said
    assert said.endswith("--replace`.") != ("cannot be compared" in said)


def test_a_cure_is_one_line_to_copy_and_has_the_exact_temperature(evaluated, written):
    third = 0.3333333333
    runs = [evaluated(name, [1, 2] * 10, name, temperature=third) for name in ("A", "B")]
    runs.append(evaluated("C", [1, 2] * 10, "C"))
    _, said = written(runs)
    cures = [line.split("`")[1] for line in said.splitlines() if line.startswith("- ") and "--replace`" in line]
    assert len(cures) == 2
    for cure in cures:
        words = shlex.split(cure)
        assert float(words[words.index("--temperature") + 1]) == third


def test_b_has_a_note_in_every_pair_with_another_variant(evaluated):
    a, control, b, other = (evaluated(f"{i}", [1, 2], variant) for i, variant in enumerate(("A", "control", "B", "B")))
    noted = [DIFFERENT_OBJECTIVE in pair_notes(*pair) for pair in ((a, b), (b, control), (b, other), (a, control))]
    assert noted == [True, True, False, False]
    notes = " ".join(pair_notes(a, evaluated("big", [1, 2], config={"model_name_or_path": "big"}, steps=40)))
    assert "tiny and big" in notes and "20 and 40 steps" in notes


@pytest.mark.parametrize(
    ("config", "steps", "named"),
    [
        ({"model_name_or_path": "big"}, 20, "model_name_or_path (tiny and big)"),
        ({"model_revision": "v2"}, 20, "model_revision (main and v2)"),
        ({"chat_template_kwargs": {"a": 1}}, 20, "chat_template_kwargs (not set and {'a'"),
        ({"learning_rate": 1e-5}, 20, "learning_rate (not set and 1e-05)"),
        ({"max_steps": 30}, 20, "max_steps (not set and 30)"),
        ({"max_steps": 30}, 30, "steps (20 and 30)"),
        ({"beta": 0.5}, 20, None),  # of the variant
    ],
)
def test_what_else_differs_in_a_pair_of_three_runs_is_named(evaluated, config, steps, named):
    runs = [evaluated(variant, [1, 2], variant) for variant in ("control", "A")]
    *_, notes = compare_runs([*runs, evaluated("C", [1, 2], "C", config, steps)], [1])
    found = [note.partition(": ")[0].replace(" (never reset)", "") for note in notes if " differ in " in note]
    assert found == ([f"{name} and C differ in {named}" for name in ("control", "A")] if named else [])


def test_what_a_report_says_of_two_runs_a_comparison_says(evaluated):
    """Prompts of the training set, another form of the prompts, another revision of the model."""
    a = evaluated("a", [1, 2], split="train", in_training=2)
    b = evaluated("b", [1, 2], config={"chat_template_kwargs": {"a": 1}, "model_revision": "v2"})
    *_, notes = compare_runs([a, b], [1])
    for said in ("a was not evaluated only on held-out", "not set and {'a': 1}", "tiny (main) and tiny (v2)"):
        assert sum(said in note for note in notes) == 1
    *_, notes = compare_runs([a, evaluated("c", [1, 2])], [1])
    assert not [note for note in notes if "chat_template" in note or "different models" in note]


def test_single_runs_with_other_seeds_have_no_seed_in_common(read_run):
    """Of three variants; a base of another seed is another model, and another seed of the training is named, too."""
    runs = [
        read_run(variant, seed, base=[1] * 4, trained=[2] * 4, config={"model_name_or_path": f"embedded:sorting:{i}"})
        for i, (variant, seed) in enumerate((("control", 0), ("A", 3), ("C", 5)))
    ]
    rows, _, _, notes = compare_runs(runs, [1])
    assert [row.seeds for row in rows] == [0, 0, 0]
    named = [note for note in notes if "embedded:sorting:0 and embedded:sorting:1" in note]
    assert len(named) == 1 and "seed (0 and 3)" in named[0]
    assert sum("One run each" in note for note in notes) == 1


@pytest.mark.parametrize(
    ("measured", "is_stale"),
    [
        ({"step": 20, "steps_on_record": 20}, False),
        ({"step": 5, "steps_on_record": 20}, False),  # of the best checkpoint
        ({"step": 10, "steps_on_record": 10}, True),
        ({"step": 10}, True),
        ({}, False),
    ],
)
def test_scores_of_a_run_that_went_on_afterwards_have_a_note(evaluated, measured, is_stale):
    others = [evaluated(variant, [1, 2], variant) for variant in ("B", "control")]
    run = evaluated("a", [1, 2], **measured)
    *_, of_three = compare_runs([run, *others], [1])
    *_, of_two_runs = compare_runs([run, others[0]], [1])
    for said in (of_three, of_two_runs, caveats([run])):
        assert ("`a` (evaluated at step 10, last step 20)" in " ".join(said)) == is_stale


@pytest.mark.parametrize(("weights", "is_stale"), [(b"evaluated", False), (b"others", True), (None, False)])
def test_scores_of_other_weights_have_a_note(evaluated, weights, is_stale):
    noted = {"adapter_model.safetensors": hashlib.sha256(b"evaluated").hexdigest()}
    run = evaluated("a", [1, 2], step=20, weights=noted)
    (run.path / "earlier.bin").mkdir()  # a folder has no weights
    if weights is not None:  # else only the logs are here
        (run.path / "adapter_model.safetensors").write_bytes(weights)
    assert ("its weights are no longer those that were evaluated" in " ".join(caveats([run]))) == is_stale


@pytest.mark.parametrize(
    ("of_b", "noted"),
    [
        ({"grader": "old"}, "version of the verifiers"),
        ({"grader": "of another task", "prompt_ids": ["x", "y"]}, None),
        ({"dtype": "float32"}, "precision: bfloat16, float32."),
        ({}, None),
    ],
)
def test_other_verifiers_and_precisions_have_a_note(evaluated, of_b, noted):
    versions = {"grader": "new", "dtype": "bfloat16"}
    runs = [evaluated("a", [1, 2], **versions), evaluated("b", [1, 2], **versions | of_b), evaluated("c", [1, 2])]
    found = [note for note in stale_notes(runs) if "version of the verifiers" in note or "precision" in note]
    assert [noted in note for note in found] == ([True] if noted else [])


def counts(mean, seed):
    """Correct samples of 8 at 40 prompts."""
    return [int(c) for c in np.random.default_rng(seed).binomial(8, mean, size=40)]


@pytest.fixture
def run_of(read_run):
    def make(variant, seed, counts):
        base = [0] * len(counts)
        return read_run(variant, seed, f"{variant}_{seed}", base=base, trained=counts, config={"beta": len(variant)})

    return make


@pytest.fixture
def grid(run_of):
    """Three variants, three seeds; B lacks seed 3."""
    means = {"control": 0.3, "A": 0.35, "B": 0.8}
    return {
        (variant, seed): run_of(variant, seed, counts(mean, 10 * seed + place))
        for place, (variant, mean) in enumerate(means.items())
        for seed in (1, 2, 3)
        if (variant, seed) != ("B", 3)
    }


def mean_of(run):
    return np.mean(run.passk["trained"]["correct"]) / 8


def test_the_difference_is_that_of_the_seeds_both_have(grid):
    rows, _, left, _ = compare_runs([*grid.values()], [1])
    named = [(row.first, row.second, row.seeds) for row in rows]
    assert named == [("control", "A", 3), ("control", "B", 2), ("A", "B", 2)]
    assert [line.partition(" ")[0] for line in left] == ["control_3", "A_3"]
    for row in rows:
        seeds = (1, 2, 3)[: row.seeds]
        first, second = ([mean_of(grid[variant, seed]) for seed in seeds] for variant in (row.first, row.second))
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


def test_seeds_that_are_nowhere_shared_and_runs_that_answer_alike(run_of):
    runs = [run_of(variant, seed, counts(0.5, 0)) for variant, seed in (("A", 1), ("A", 2), ("B", 3), ("B", 4))]
    with pytest.raises(InputError, match="no seed in common"):
        compare_runs(runs, [1])
    row = of_two(runs[0], runs[2], 1)
    assert (row.difference.value, row.p_value, row.adjusted) == (0, 1.0, 1.0)


def test_two_scores_are_no_further_from_each_other_than_1(run_of):
    """B's third run collapsed: differences 0, 0 and -1, ± t(0.975, 2) / 3 = 1.434."""
    runs = [run_of("A", seed, [8] * 40) for seed in (1, 2, 3)]
    runs += [run_of("B", seed, [8 * (seed < 3)] * 40) for seed in (1, 2, 3)]
    rows, *_ = compare_runs(runs, [1])
    assert rows[0].difference == pytest.approx((1 / 3, -1.0, 1.0))


@pytest.fixture
def written(capsys):
    """A function: what the command prints about some runs."""

    def run(runs, *options):
        code = command.main(["--runs", *(str(run.path) for run in runs), *options])
        output = capsys.readouterr()
        return code, output.out or output.err

    return run


def test_the_command(grid, run_of, tmp_path, written):
    other = run_of("C", 1, counts(0.5, 7)[:30])
    out = tmp_path / "found.json"
    code, said = written([*grid.values(), other], "--k", "1", "8", "--json", str(out))
    assert code == 0 and DIFFERENT_OBJECTIVE in " ".join(said.split())
    found = json.loads(out.read_text())
    assert sorted(row["k"] for row in found["comparisons"]) == [1, 1, 1, 8, 8, 8]
    assert "C_1 --prompts 40 --n 8" in found["notes"][0]
    expected, *_ = compare_runs([*grid.values()], [1])
    p_values = {(row["first"], row["second"]): row["p_value"] for row in found["comparisons"] if row["k"] == 1}
    assert p_values == pytest.approx({(row.first, row.second): row.p_value for row in expected})
    seeds = [grid["A", seed] for seed in (1, 2, 3)]
    pair = [grid["A", 1], grid["B", 1]]
    for named, runs, ks in (("--k 9", grid.values(), "9"), ("one variant", seeds, "1"), ("--k 9", pair, "1 9")):
        code, said = written(runs, "--k", *ks.split())
        assert code == 2 and named in " ".join(said.split())


def test_the_first_line_answers_whether_runs_differ(grid, written):
    """B is far above A and control, which are close; of three runs after Holm, of two by their own test."""
    a, b, control = (grid[variant, 1] for variant in ("A", "B", "control"))

    def first_line(*runs):
        code, said = written(runs, "--k", "1")
        assert code == 0
        return said.splitlines()[0]

    lower = of_two(a, b, 1)
    line = first_line(a, b)
    assert line.startswith(f"Yes: A_1 (moving reference) − B_1 (old policy) = {lower.difference.value:+.3f} [")
    assert f"p = {lower.p_value:.2g}" in line and "significantly lower pass@1" in line
    _, said = written([a, b], "--k", "1")
    below = said.splitlines()[1 + max(place for place, line in enumerate(said.splitlines()) if "│" in line) :]
    notes = [line for line in below if line.startswith("- ")]
    assert "One run each" in notes[-1] and len(notes) <= 4  # the rest is in the docs
    line = first_line(a, control)
    assert line.startswith("No significant difference in pass@1") and f"{of_two(a, control, 1).detectable:.3f}" in line
    line = first_line(a, b, control)
    assert line.startswith("Yes: 2 of 3 pairs") and line.count(" − B_1 (old policy) = ") == 2


def test_the_first_line_says_what_it_is_not_about(grid, run_of, evaluated, written):
    """A run without a partner, of two variants and of three; pairs that cannot be compared; too few prompts."""
    a, b, c = grid["A", 1], grid["B", 1], grid["B", 2]
    _, said = written([a, b, c])
    line = said.splitlines()[0]
    assert f"A_1 (moving reference) − B_1 (old policy) = {of_two(a, b, 1).difference.value:+.3f}" in line
    assert "B_2 is left out: A_1 has no run with seed 2." in line
    assert "One run each" in said
    line = written([a, b, c, grid["control", 1]])[1].splitlines()[0]
    assert "B_2 is left out" in line and "control_1" in line
    line = written([a, b, run_of("C", 1, counts(0.5, 7)[:30])])[1].splitlines()[0]
    assert "A_1 and C_1" in line and "B_1 and C_1" in line
    line = written([evaluated(name, [4] * 8) for name in ("x", "y")])[1].splitlines()[0]
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
    ("last", "pause", "parallel"),
    [
        (112.0, 0.0, False),  # begins in the moment in which the other one ends
        (111.75, 0.0, True),
        (100.25, 0.0, True),
        (100.0, 0.0, False),
        (108.0, 6.0, False),  # 90 to 92, 98 to 100, 106 to 108: the other one ran in its pause, as before a resume
        (107.0, 6.0, True),  # … 105 to 107
    ],
)
def test_runs_that_trained_in_parallel_have_no_step_time(timed, last, pause, parallel):
    """C trained alone, and always has a step time."""
    a, b, c = runs = [timed("A", 106.0), timed("B", last, pause), timed("C", 200.0)]
    assert trained_in_parallel([b, a]) == ([b, a] if parallel else [])
    assert [row.seconds for row in Frame(runs).rows] == ([None, None, 2.0] if parallel else [2.0, 2.0, 2.0])
    assert [row.seconds for row in Frame([a, c]).rows] == [2.0, 2.0]  # without the one that trained beside it


class Counted:
    """A run that counts how often its rows are read."""

    def __init__(self, run):
        self.run = run
        self.measured = run.measured
        self.reads = 0

    @property
    def metrics(self):
        self.reads += 1
        return self.run.metrics


def test_the_times_of_a_run_are_read_once_and_not_for_every_other_run(timed):
    runs = [Counted(timed(f"run{number}", 100.0 + 10 * number)) for number in range(6)]
    assert trained_in_parallel(runs) == []
    assert [run.reads for run in runs] == [1] * 6


def test_a_common_past_is_not_in_parallel(read_run):
    """Two trials of one run, whose first two steps are those of the run; the second one was trained afterwards."""
    first, second = ({1: 100.0, 2: 102.0, 3: last}.get for last in (104.0, 110.0))
    runs = [
        read_run("A", name=name, steps=3, time_step=2.0, time_ended=ended)
        for name, ended in (("a", first), ("b", second))
    ]
    assert trained_in_parallel(runs) == []
    late = read_run("A", name="c", steps=3, time_step=2.0, time_ended={1: 100.0, 2: 102.0, 3: 111.0}.get)
    assert trained_in_parallel([*runs, late]) == [runs[1], late]
