import hashlib
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from trl_prorl.cli.variants import DIFFERENT_OBJECTIVE
from trl_prorl.errors import InputError
from trl_prorl.eval import compare as command
from trl_prorl.eval.analysis.pairs import GREEDY
from trl_prorl.eval.compare import compare_runs
from trl_prorl.eval.pages.comparison import limits


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


def test_yes_or_no_at_each_prompt_is_an_exact_test(evaluated):
    """Greedy decoding: 6 for a, 1 for b: 2 (C(7,6) + C(7,7)) / 2^7, however few prompts there are."""
    a = evaluated("a", [4] * 8, **greedy([1] * 7 + [0]))
    b = evaluated("b", [4] * 8, **greedy([1, 0, 0, 0, 0, 0, 0, 1]))
    found = of_two(a, b, GREEDY)
    assert (found.outcome, found.difference.value, found.p_value) == ("greedy", 5 / 8, pytest.approx(1 / 8))
    assert math.isnan(of_two(a, b, 1).p_value)
    rows, *_ = compare_runs([a, evaluated("c", [4] * 8, "B")], None)  # c lacks greedy decoding
    assert GREEDY not in {row.k for row in rows}
    # Of more runs, too: each outcome has its rows.
    rows, *_ = compare_runs([a, b, evaluated("f", [4] * 8, "B", **greedy([1] * 8))], [1])
    assert {row.outcome for row in rows} == {"pass@1", "greedy"}
    # All 8 samples: 9 prompts that only a solves, one that only b solves: 2 (C(10,9) + C(10,10)) / 2^10.
    found = of_two(evaluated("d", [1] * 9 + [0] * 11), evaluated("e", [0] * 9 + [8] + [0] * 10), 8)
    assert (found.difference.value, found.p_value) == pytest.approx((8 / 20, 22 / 1024))


IDS = {"prompt_ids": ["x", "y"]}


@pytest.mark.parametrize(
    ("of_a", "of_b", "named"),
    [
        ({}, {"n": 16}, "n 8 and 16"),
        ({}, {"temperature": 0.5}, "temperature 1.0 and 0.5"),
        ({"max_new_tokens": 16}, {"max_new_tokens": 32}, "max_new_tokens 16 and 32"),
        (IDS, {"prompt_ids": ["x", "z"]}, "other prompts"),
        (IDS, {"prompt_ids": ["y", "x"]}, "other prompts"),
    ],
)
def test_what_cannot_be_paired_is_refused(evaluated, of_a, of_b, named):
    with pytest.raises(InputError) as refusal:
        of_two(evaluated("a", [1, 2], **of_a), evaluated("b", [2, 2], **of_b), 1)
    assert named in str(refusal.value)


def test_equal_prompts_are_paired_whatever_they_were_drawn_with(evaluated):
    """Ids decide, which are hashes of the rows."""
    assert of_two(evaluated("a", [1, 2], **IDS), evaluated("b", [2, 2], **IDS, config={"task_seed": 7}), 1)


def noted(runs, *named):
    """Whether each of some texts is in the lines about what a comparison does not show."""
    lines = " ".join(limits(runs))
    return [text in lines for text in named]


def test_b_has_a_note_beside_a(evaluated):
    a, control, b = (evaluated(variant, [1, 2], variant) for variant in ("A", "control", "B"))
    assert [noted(pair, DIFFERENT_OBJECTIVE) for pair in ((a, b), (a, control))] == [[True], [False]]


def test_what_a_comparison_does_not_show_is_named(evaluated):
    """Prompts of the training set; runs of other lengths; a run without an evaluation, or without its resets."""
    trained_on = evaluated("a", [1, 2], split="train", in_training=2)
    longer = evaluated("b", [1, 2], "plain", steps=40)
    assert noted([trained_on, longer], "a was not evaluated only on held-out", "20 to 40 steps") == [True, True]
    assert noted([longer], "held-out", "steps") == [False, False]


def test_prompts_that_were_given_in_another_form_are_named(evaluated):
    thinks, plain = (evaluated(name, [1, 2], chat_template_kwargs={"thinks": name == "a"}) for name in "ab")
    assert noted([thinks, plain], "chat_template_kwargs") == [True]
    assert noted([plain, plain], "chat_template_kwargs") == [False]


@pytest.mark.parametrize(("weights", "is_old"), [(b"evaluated", False), (b"others", True), (None, False)])
def test_scores_of_other_weights_have_a_note(evaluated, weights, is_old):
    hashes = {"adapter_model.safetensors": hashlib.sha256(b"evaluated").hexdigest()}
    run = evaluated("a", [1, 2], step=20, weights=hashes)
    (run.path / "earlier.bin").mkdir()  # a folder has no weights
    if weights is not None:  # else only the logs are here
        (run.path / "adapter_model.safetensors").write_bytes(weights)
    assert run.has_old_scores == is_old


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
    rows, _ = compare_runs([*grid.values()], [1])
    named = [(row.first, row.second, row.seeds) for row in rows]
    assert named == [("control", "A", 3), ("control", "B", 2), ("A", "B", 2)]
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
    """A run that was evaluated on other prompts is in no pair, and is named."""
    other = run_of("C", 1, counts(0.5, 7)[:30])
    out = tmp_path / "found.json"
    code, said = written([*grid.values(), other], "--k", "1", "8", "--json", str(out))
    assert code == 0 and DIFFERENT_OBJECTIVE in " ".join(said.split())
    found = json.loads(out.read_text())
    assert sorted(row["k"] for row in found["comparisons"]) == [1, 1, 1, 8, 8, 8]
    assert "C_1" in found["notes"][0]
    expected, *_ = compare_runs([*grid.values()], [1])
    p_values = {(row["first"], row["second"]): row["p_value"] for row in found["comparisons"] if row["k"] == 1}
    assert p_values == pytest.approx({(row.first, row.second): row.p_value for row in expected})
    for runs, k in ((grid.values(), "9"), ([grid["A", seed] for seed in (1, 2, 3)], "1")):
        code, _ = written(runs, "--k", k)
        assert code == 2


def test_the_first_line_answers_whether_runs_differ(grid, written):
    """B is far above A and control, which are close. Of single runs it names prompts, one seed, and no variant."""
    a, b, control = (grid[variant, 1] for variant in ("A", "B", "control"))

    def first_line(*runs):
        code, said = written(runs, "--k", "1")
        assert code == 0
        return said.splitlines()[0]

    lower = of_two(a, b, 1)
    line = first_line(a, b)
    assert line.startswith("Yes") and f"A_1 − B_1 = {lower.difference.value:+.3f} [" in line
    assert f"p = {lower.p_value:.2g}" in line
    assert "over prompts" in line and "one seed each" in line and "variant" not in line
    line = first_line(a, control)
    assert line.startswith("No significant difference in pass@1") and f"{of_two(a, control, 1).detectable:.3f}" in line
    assert "one seed each" in line
    line = first_line(a, b, control)
    assert line.startswith("Yes: 2 of 3 pairs") and line.count(" − B_1") == 2
    line = first_line(*grid.values())
    assert "prompts and seeds" in line and "one seed" not in line


def test_few_prompts_have_no_answer(evaluated, written):
    line = written([evaluated(name, [4] * 8) for name in ("x", "y")])[1].splitlines()[0]
    assert "20 prompts" in line and "--prompts" in line
