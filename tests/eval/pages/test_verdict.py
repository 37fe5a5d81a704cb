import pytest

from trl_prorl.eval.analysis.frame import Frame
from trl_prorl.eval.pages import comparison, matrix


@pytest.fixture
def run_of(read_run):
    """A run of a variant whose 40 prompts have the given numbers of correct samples out of 8."""

    def make(variant, trained=None, base=None, name=None, seed=0, steps=4, config=None, env=None, **passk):
        base = base or [1] * 40
        config = {"seed": seed, **(config or {})}
        return read_run(variant, seed, name or variant, steps, base, trained, passk, config, env)

    return make


@pytest.fixture
def verdict(run_of):
    """
    A function: the sentences of the verdict as one text, and the labels with a star, of a run for each variant or of
    the given ones. A number stands for that of every prompt.
    """

    def make(*runs, base=None, **counts):
        for variant, trained in counts.items():
            runs += (run_of(variant, [trained] * 40 if isinstance(trained, int) else trained, base),)
        frame = Frame(list(runs))
        labels = [row[0] for row in matrix.result_matrix(frame).rows]
        return " ".join(comparison.statements(frame)).replace("**", ""), [label for label in labels if "★" in label]

    return make


def test_the_best_is_named_with_its_lead_by_hand(verdict):
    """40 prompts, a difference of 5/8 at each: and pseudo-prompts at -1 and 1: mean 25/42."""
    text, starred = verdict(control=4, plain=2, A=6)
    assert text.startswith("A has the highest held-out pass@1 of 0.750 (base 0.125), significantly higher than base")
    assert starred == ["A ★"]
    # Variance (40 * .625^2 + 2) / 42 - (25 / 42)^2 = .06533, and 1.96 sqrt(.06533 / 42) = .0773.
    assert "A − base: +0.625 [+0.518, +0.673]" in text


SPREAD = [8, 0, 7, 1] * 10
FIVE_SOLVED = [8] * 5 + [0] * 35


@pytest.mark.parametrize(
    "counts",
    [
        {"control": 2, "C": SPREAD, "A": [5, 4] * 20},  # the second best takes the star away
        {"control": SPREAD, "A": [5, 4] * 20},  # the control
        {"control": 0, "A": [2, 1, 0, 2] * 10, "base": [0, 2, 2, 1] * 10},  # base
        {"control": 0, "A": 2, "base": [4] * 40},  # below base
        {"A": 6},  # alone
        # Each of two pairs with C has p = .023 by a t-test: enough for one pair, too much for three.
        {"control": 0, "C": FIVE_SOLVED, "plain": 0, "base": [0] * 40},
    ],
)
def test_a_star_needs_significance_over_every_other_variant_and_base(verdict, counts):
    text, starred = verdict(**counts)
    assert not starred
    assert "significantly higher" not in text


def test_p_is_corrected_for_all_pairs(verdict):
    assert verdict(control=0, C=FIVE_SOLVED, base=[0] * 40)[1] == ["C ★"]  # the only pair


def test_what_was_not_tested_is_no_result(verdict):
    """Of 8 prompts there is no interval."""
    text, starred = verdict(control=[1] * 8, A=[8] * 8, base=[1] * 8)
    assert "fewer than 20 prompts" in text and not starred
    assert "significant" not in text and "95 %" not in text and "n/a" not in text


def of_seeds(run_of, scores):
    return [
        run_of(variant, counts if isinstance(counts, list) else [counts] * 40, name=f"{variant}{seed}", seed=seed)
        for variant, seeds in scores.items()
        for seed, counts in enumerate(seeds)
    ]


def test_at_an_exact_tie_nobody_has_the_star(run_of, verdict):
    """A and C solve as many samples at other prompts, in means over seeds that round differently."""
    tied = {"control": (1, 1), "A": ([7, 1] * 20, [0, 3] * 20), "C": ([3, 1] * 20, [4, 3] * 20)}
    text, starred = verdict(*of_seeds(run_of, tied))
    assert "0.344 (base 0.125), with no significant lead over" in text
    assert not starred


def test_seeds_widen_the_verdict(run_of, verdict):
    """A is ahead by 1/8 and 3/8 at two seeds: t(0.975, 1) = 12.7 times 1/8 says nothing."""
    text, _ = verdict(*of_seeds(run_of, {"control": (2, 2), "A": (3, 5)}))
    assert "no significant lead over base, control" in text


def test_what_cannot_be_paired_is_not_compared_and_every_ground_has_its_verdict(run_of, verdict):
    other = run_of("control", [4] * 40, name="other", prompt_ids=["other"] * 40)
    _, starred = verdict(other, A=6)
    assert not starred
    (line,) = comparison.section(Frame([other, run_of("A", [6] * 40)])).lines
    assert "A" in line and "other (fixed reference)" in line and "not compared" in line
    of = (("sums", "B", 4), ("sorting", "C", 6), ("sorting", "control", 2))
    text, _ = verdict(*(run_of(variant, [solved] * 40, config={"task": task}) for task, variant, solved in of))
    assert "sums: B" in text and "pass@1 of 0.500" in text
    assert "sorting: C" in text and "highest held-out pass@1 of 0.750" in text


def test_a_missing_evaluation_has_the_command_that_makes_it(run_of):
    """A run from plain Python: its configuration names neither model nor task."""
    plain = run_of("A", name="plain", config={"model_name_or_path": None, "task": None})
    other = run_of("B")
    lines = comparison.limits([plain, other, run_of("C", [4] * 40)])
    named = [line for line in lines if "not evaluated" in line]
    assert [line.split()[0] for line in named] == ["plain", "B"]
    assert f"trl-prorl passk --run {other.path}" in named[1]
