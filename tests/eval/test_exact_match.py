from pathlib import Path

import evaluate
import pytest

import eval.metrics.exact_match


METRIC = str(Path(eval.metrics.exact_match.__file__).parent)


@pytest.fixture
def metric(offline, tmp_path):
    return evaluate.load(METRIC, cache_dir=str(tmp_path))


PREDICTIONS = ["The cat!", "theatre 12", "YELLING", "agent007"]
REFERENCES = ["the cat", "theatre", "yelling", "agent"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 0.0),
        ({"ignore_case": True}, 1 / 4),  # YELLING
        ({"ignore_punctuation": True}, 0.0),  # "The cat" still differs in case
        ({"ignore_case": True, "ignore_punctuation": True}, 2 / 4),
        ({"ignore_numbers": True}, 1 / 4),  # agent; "theatre " keeps its space
        ({"ignore_numbers": True, "regexes_to_ignore": [" "]}, 2 / 4),
        ({"ignore_case": True, "ignore_punctuation": True, "ignore_numbers": True, "regexes_to_ignore": [r"\s"]}, 1.0),
    ],
)
def test_what_is_ignored(metric, options, expected):
    assert metric.compute(predictions=PREDICTIONS, references=REFERENCES, **options) == {"exact_match": expected}


def test_the_reference_is_treated_too(metric):
    assert metric.compute(predictions=["a"], references=["A-1"], ignore_case=True) == {"exact_match": 0.0}
    options = {"ignore_case": True, "ignore_punctuation": True, "ignore_numbers": True}
    assert metric.compute(predictions=["a"], references=["A-1"], **options) == {"exact_match": 1.0}


def test_patterns_come_first_and_in_order(metric):
    # Before lower case: "A" is gone, "a" stays. The second pattern sees what the first left ("yxz" without "x" is
    # "yz").
    assert metric.compute(predictions=["Aa"], references=["a"], regexes_to_ignore=["A"], ignore_case=True) == {
        "exact_match": 1.0
    }
    assert metric.compute(predictions=["yxz"], references=[""], regexes_to_ignore=["x", "yz"]) == {"exact_match": 1.0}
    assert metric.compute(predictions=["yxz"], references=[""], regexes_to_ignore=["yz", "x"]) == {"exact_match": 0.0}


def test_add_batch(metric):
    metric.add_batch(predictions=["1", "2"], references=["1", "1"])
    metric.add_batch(predictions=["3"], references=["3"])
    assert metric.compute() == {"exact_match": pytest.approx(2 / 3)}


def test_no_regular_expression_is_refused(metric):
    with pytest.raises(ValueError, match=r"'\(' is no regular expression"):
        metric.compute(predictions=["a"], references=["a"], regexes_to_ignore=["("])


def test_nothing_to_judge_is_refused(metric):
    with pytest.raises(ValueError, match="predictions is empty"):
        metric.compute(predictions=[], references=[])
