import pytest

from eval import compare as command
from eval.analysis.compare import compare, pair_notes
from eval.pages.comparison import comparison_statements
from trl_prorl.errors import InputError
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
    assert result.difference.value == pytest.approx(9 / 48) and result.seeds == 1
    # Solved at all: of six a prompts 0, 1, 3, 4, 5, b 0, 1, 4, 5: one pair differs, 4 of 24, 2 / 2^4.
    assert result.p_value == result.adjusted == pytest.approx(1 / 8)
    # (1.95996 + 0.84162) / 1.95996
    assert result.detectable == pytest.approx(1.42941 * (result.difference.high - result.difference.low) / 2, rel=1e-5)


def test_pairing_sees_what_the_intervals_of_each_do_not(evaluated):
    # One more right at every prompt: certain, though prompts vary far more than the runs.
    counts = [0, 7, 1, 6, 2, 5, 3, 4] * 4
    result = compare(evaluated("a", [count + 1 for count in counts]), evaluated("b", counts), k=1)
    # Of 32 prompts that all agree up to 1 - 0.05^(1/32) = 8.94 % of others are not excluded, from -1 to 1.
    assert result.difference == pytest.approx((1 / 8, 1 / 8 - 0.0894 * 9 / 8, 1 / 8 + 0.0894 * 7 / 8), abs=1e-4)
    assert result.difference.apart
    back = compare(evaluated("c", counts), evaluated("d", [count + 1 for count in counts]), k=1)
    assert back.difference.value == pytest.approx(-1 / 8)


def test_pass_at_8_is_solved_at_all(evaluated):
    result = compare(evaluated("a", [1, 1, 1, 0]), evaluated("b", [8, 0, 0, 0]), k=8)
    assert result.difference.value == pytest.approx(2 / 4)


def test_greedy_decoding_is_preferred_where_both_have_it(evaluated):
    def greedy(correct):
        return {"greedy": {"base": {"correct": [0] * 8}, "trained": {"correct": correct}}}

    counts = [4] * 8
    a = evaluated("a", counts, **greedy([1] * 7 + [0]))
    b = evaluated("b", counts, **greedy([1, 0, 0, 0, 0, 0, 0, 1]))
    # 6 for a, 1 for b: 2 (C(7,6) + C(7,7)) / 2^7
    assert compare(a, b, k=1).p_value == pytest.approx(1 / 8)
    assert compare(a, evaluated("c", counts), k=1).p_value == 1.0  # any of 8 samples right, at all prompts of both


def test_prompt_ids_decide_where_both_have_them(evaluated):
    # Another seed of the tasks gave the same prompts, whatever the settings say.
    a, b = evaluated("a", [1, 2], **IDS), evaluated("b", [2, 2], **IDS, config={"task_seed": 7})
    assert compare(a, b, k=1).difference.value < 0


IDS = {"prompt_ids": ["x", "y"]}


@pytest.mark.parametrize(
    ("ids", "changes", "message"),
    [
        ({}, {"n": 16}, "'a' has n = 8 in passk.json, 'b' 16"),
        ({}, {"temperature": 0.5}, "temperature = 1.0 in passk.json, 'b' 0.5"),
        ({}, {"max_new_tokens": 32}, "max_new_tokens = None in passk.json, 'b' 32"),
        ({}, {"config": {"task_seed": 1}}, "task_seed decide"),
        ({}, {"split": "validation"}, "same prompts in the same way"),
        (IDS, {**IDS, "n": 4, "k": [4]}, "n = 8"),
        (IDS, {"prompt_ids": ["x", "z"]}, r"not evaluated on the same prompts \(1 in common\)"),
        (IDS, {"prompt_ids": ["y", "x"]}, r"in the same order \(2 in common\)"),
        (IDS, {}, "only 'a' has prompt_ids"),
    ],
)
def test_what_cannot_be_paired_is_refused_with_the_cure(evaluated, ids, changes, message):
    a, b = evaluated("a", [1, 2], **ids), evaluated("b", [1, 2], **changes)
    with pytest.raises(InputError, match=message) as refusal:
        compare(a, b, k=1)
    assert f"trl-prorl passk --run {a.path} --run {b.path}" in str(refusal.value)


def test_completions_cut_at_other_lengths_are_refused(evaluated):
    a = evaluated("a", [1, 2], max_new_tokens=16, config={"max_completion_length": 16})
    with pytest.raises(InputError, match=r"'b' 32; evaluate them alike: `trl-prorl passk .* --max-new-tokens 32`"):
        compare(a, evaluated("b", [1, 2], max_new_tokens=32), k=1)
    # An older result, which was cut at the run's own length.
    compare(a, evaluated("c", [1, 2], config={"max_completion_length": 16}), k=1)


def test_b_is_told_apart_from_all_others(evaluated):
    a, control, b, other = (evaluated(f"{i}", [1, 2], variant) for i, variant in enumerate(("A", "control", "B", "B")))
    noted = [DIFFERENT_OBJECTIVE in pair_notes(*pair) for pair in ((a, b), (b, control), (b, other), (a, control))]
    assert noted == [True, True, False, False]


def test_other_models_and_lengths_are_noted(evaluated):
    a = evaluated("a", [1, 2])
    notes = " ".join(pair_notes(a, evaluated("b", [1, 2], config={"model_name_or_path": "big"}, steps=40)))
    assert "different models: tiny and big" in notes
    assert "20 and 40 steps" in notes
    assert "different models" not in " ".join(pair_notes(a, evaluated("c", [1, 2])))


def test_statements(evaluated):
    a, b = evaluated("a", [8, 0] * 10), evaluated("b", [0, 8] * 10)
    even = compare(a, b, k=1)
    (line,) = comparison_statements([even])
    assert f"no difference found; detectable difference (80 % power): {even.detectable:.3f}." in line
    worse = compare(evaluated("c", [1, 2, 3] * 7), evaluated("d", [3, 4, 5] * 7), k=1)
    assert comparison_statements([worse])[0].endswith("`d` is higher.")
    few = compare(evaluated("e", [1, 2, 3]), evaluated("f", [3, 4, 5]), k=1)
    assert not few.difference.apart
    assert "-0.250 (n/a): n/a: fewer than 20 prompts give no interval" in comparison_statements([few])[0]


def test_command(evaluated, make_run, make_rows, capsys):
    a, b = evaluated("a", [1, 2, 3] * 10), evaluated("b", [3, 4, 5] * 10, variant="B", k=[1, 8])
    assert command.main(["--runs", str(a.path), str(b.path)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "pass@1: `a` less `b` -0.250 [-0.321, -0.131]: `b` is higher." in printed
    assert "pass@8" in printed
    assert "pass@4" not in printed
    assert DIFFERENT_OBJECTIVE in printed
    assert command.main(["--runs", str(a.path), str(b.path), "--k", "9"]) == 2
    assert "--k 9 must lie between 1 and the 8" in capsys.readouterr().err
    bare = make_run("bare", "A", make_rows(2))
    assert command.main(["--runs", str(a.path), str(bare)]) == 2
    assert f"run `trl-prorl passk --run {bare}`" in capsys.readouterr().err
