"""What the report says of each arm."""

from types import SimpleNamespace

from eval.pages.arms import arm_list
from trl_prorl.resets.triggers import KEYS


def test_an_arm_is_told_by_every_key_that_can_request_a_reset():
    off = {"beta": 0.1, "optimizer_reset": "keep"}
    for key in KEYS:
        runs = [
            SimpleNamespace(name=name, variant="A", seed=1, config=off | {key: value}, without_reset=None)
            for name, value in (("rare", 0.5), ("never", None))
        ]
        rare, never, shared = arm_list(runs)
        assert f"`{key}: 0.5`" in rare and key not in never and "`beta: 0.1`" in shared
