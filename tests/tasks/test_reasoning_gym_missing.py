"""Without the optional library; these run whether it is installed or not."""

import pytest

import tasks.reasoning_gym
from tasks import get_task


def test_the_error_names_the_cure(monkeypatch):
    monkeypatch.setattr(tasks.reasoning_gym, "find_spec", lambda name: None)
    message = "rg:chain_sum needs reasoning-gym, .* `pip install 'trl-prorl.rg.'`"
    with pytest.raises(ValueError, match=message) as error:
        get_task("rg:chain_sum")
    assert "\n" not in str(error.value)
