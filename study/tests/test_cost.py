"""The cost of a step, from rounds whose ratios are known."""

import json

import pandas as pd
import pytest

from study.cost import COST_FILE as FILE
from study.cost import relative, relatives, rounds
from study.tables import FOLDER
from trl_prorl.errors import InputError


def write(root, content):
    (root / FOLDER).mkdir(parents=True)
    (root / FOLDER / FILE).write_text(content)
    return root


def content(**arms):
    return json.dumps({"settings": {}, "results": {"μ=2": {arm: {"whole": values} for arm, values in arms.items()}}})


def test_rounds_of_the_file(tmp_path):
    """In the order of the table, without arms that are not in it."""
    assert rounds(tmp_path).empty
    arms = {"B packed": [1, 3], "A packed": [2, 4.0], "A": [9, 9]}
    assert rounds(write(tmp_path, content(**arms))).to_dict("list") == {"A packed": [2.0, 4.0], "B packed": [1.0, 3.0]}


@pytest.mark.parametrize(
    "text, said",
    [
        ("{}", "not the arms.json"),
        ("[", "not the arms.json"),
        ('{"results": {"one": {}, "two": {}}}', "one setting"),
        (content(A=[1.0, 2.0], B=[1.0]), "must be of the same length"),
    ],
)
def test_another_file_is_refused(tmp_path, text, said):
    with pytest.raises(InputError, match=said):
        rounds(write(tmp_path, text))


def test_paired_ratios_and_the_sign_test_s_interval():
    # Ratios 1 to 9, whatever the rounds' own lengths. Of 9 values, the second and the last but one bound the median
    # with a confidence of 1 - 2 · (1 + 9) / 2⁹ = 96.1 %; one further inwards it is 1 - 2 · (1 + 9 + 36) / 2⁹ = 82 %.
    other = [3.0, 1.0, 7.0, 2.0, 5.0, 4.0, 1.0, 9.0, 2.0]
    arm = [place * seconds for place, seconds in zip((5, 1, 9, 3, 2, 8, 4, 7, 6), other, strict=True)]
    seconds = pd.DataFrame({"arm": arm, "other": other})
    assert relative(seconds, "arm", "other") == (5.0, 2.0, 8.0)
    assert relative(seconds[:6], "arm", "other") == (4.0, 1.0, 9.0)  # 1 - 2 / 2⁶ = 96.9 %: nothing can be left out
    value, low, high = relative(seconds[:5], "arm", "other")
    assert value == 3.0
    assert low != low
    assert high != high  # 1 - 2 / 2⁵ = 93.75 %: too few


def test_the_table_is_relative_to_a_where_a_was_measured():
    seconds = pd.DataFrame({"A packed": 2.0, "B packed": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5]})
    assert relatives(seconds)["B packed"] == {"of A packed's": (0.625, 0.5, 0.75)}
    assert relatives(seconds[["B packed"]]) == relatives(pd.DataFrame()) == {}
