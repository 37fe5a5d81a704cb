"""Arms over seeds: the mean of differences seed by seed, Holm over the pairs."""

import json

import numpy as np
import pytest
from scipy import stats

from eval import compare as command
from eval.analysis.compare import all_pairs
from trl_prorl.errors import InputError


@pytest.fixture
def evaluated(read_run):
    def make(variant, seed, counts):
        ids = {"prompt_ids": [f"p{i}" for i in range(len(counts))]}
        beta = {"beta": len(variant)}
        return read_run(
            variant, seed, f"{variant}_{seed}", base=[0] * len(counts), trained=counts, passk=ids, config=beta
        )

    return make


def counts(mean, seed):
    """Correct samples of 8 at 40 prompts."""
    return [int(c) for c in np.random.default_rng(seed).binomial(8, mean, size=40)]


@pytest.fixture
def grid(evaluated):
    """Three arms, three seeds; B lacks seed 3."""
    means = {"control": 0.3, "A": 0.35, "B": 0.8}
    return {
        (arm, seed): evaluated(arm, seed, counts(mean, 10 * seed + place))
        for place, (arm, mean) in enumerate(means.items())
        for seed in (1, 2, 3)
        if (arm, seed) != ("B", 3)
    }


def mean_of(run):
    return np.mean(run.passk["trained"]["correct"]) / 8


def test_the_difference_is_that_of_the_seeds_both_have(grid):
    rows, left = all_pairs([*grid.values()], [1])
    named = [(row.first, row.second, row.seeds) for row in rows]
    assert named == [("control", "A", 3), ("control", "B", 2), ("A", "B", 2)] and not left
    for row in rows:
        seeds = (1, 2, 3)[: row.seeds]
        first, second = ([mean_of(grid[arm, seed]) for seed in seeds] for arm in (row.first, row.second))
        assert row.first_value == pytest.approx(np.mean(first))
        assert row.difference.value == pytest.approx(np.mean(np.subtract(first, second)))
        low, high = stats.ttest_rel(first, second).confidence_interval()
        assert row.difference.low <= low + 1e-12 and row.difference.high >= high - 1e-12
        assert row.p_value >= stats.ttest_rel(first, second).pvalue - 1e-12
    # Holm by hand: the least of three p-values three times, the next twice, and none below one before it.
    ordered, worst = sorted(rows, key=lambda row: row.p_value), 0.0
    for factor, row in zip((3, 2, 1), ordered, strict=True):
        worst = max(worst, factor * row.p_value)
        assert row.adjusted == pytest.approx(min(1.0, worst))


def test_seeds_that_are_nowhere_shared(evaluated):
    runs = [evaluated(arm, seed, counts(0.5, seed)) for arm, seed in zip("AABB", (1, 2, 3, 4), strict=True)]
    with pytest.raises(InputError, match="no seed in common"):
        all_pairs(runs, [1])


def test_runs_that_answer_alike(evaluated):
    (row,), _ = all_pairs([evaluated(arm, seed, counts(0.5, 0)) for arm in "AB" for seed in (1, 2)], [1])
    assert row.difference.value == 0 and row.p_value == row.adjusted == 1.0


def test_command(grid, evaluated, tmp_path, capsys):
    folder = grid["A", 1].path.parent
    evaluated("C", 1, counts(0.5, 7)[:30])
    out = tmp_path / "found.json"
    assert command.main(["--runs", f"{folder}/*", "--k", "1", "8", "--json", str(out)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    found = json.loads(out.read_text())
    assert len(found["comparisons"]) == 6 and {row["k"] for row in found["comparisons"]} == {1, 8}
    assert all({"detectable", "adjusted", "difference"} <= set(row) for row in found["comparisons"])
    assert "were not evaluated on the same prompts" in found["notes"][0] and "Holm" in shown
    assert "B optimises a different objective" in shown

    pair = [str(grid[arm, 1].path) for arm in "AB"]
    assert command.main(["--runs", *pair, "--json", str(out)]) == 0
    two = json.loads(out.read_text())["comparisons"][0]
    assert (two["first"], two["second"], two["seeds"]) == ("A_1", "B_1", 1) and "detectable" in two
    assert "exact McNemar" in " ".join(capsys.readouterr().out.split())
    assert command.main(["--runs", f"{folder}/*", "--k", "9"]) == 2
    assert "--k 9 must lie between 1 and the 8 samples" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arms", "said"), [(["A_1"], "needs at least two runs, and was given 1"), (["A_*"], "all 3 runs are one arm")]
)
def test_refusals(grid, arms, said, capsys):
    assert command.main(["--runs", *(f"{grid['A', 1].path.parent}/{arm}" for arm in arms)]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
