"""Types of YAML values against the fields they are for."""

import pytest

from trl_prorl.launch.recipe_check import fits, nearest, spelt


@pytest.mark.parametrize(
    "value, hint, right",
    [
        (1, int, True),
        (1.0, int, False),
        (True, int, False),
        (1, float, True),
        (True, float, False),
        (None, float, False),
        (None, float | None, True),
        ("1e-4", float, True),  # YAML reads it as text; the parser converts it
        ("many", int, True),  # the parser complains
        ([1], int, False),
        (["a"], list[str], True),
        ("all-linear", list[str], True),
        (["a"], list[str] | None, True),
        ({"a": 1}, dict | str | None, True),
        ([1], dict | str | None, False),
        (False, str, False),  # a bare `off` in YAML
        (1, bool, False),
    ],
)
def test_fits(value, hint, right):
    assert fits(value, hint) is right


def test_words():
    assert nearest("beta_odl", ["beta", "beta_old"]) == " (did you mean 'beta_old'?)"
    assert nearest("xyz", ["beta"]) == ""
    assert spelt(float | None) == "a number or null" and spelt(list[str]) == "a list"
