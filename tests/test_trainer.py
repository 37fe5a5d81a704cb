"""The trainer stays thin: it assembles parts, and one mixin is enough."""

from trl_prorl import ProRLTrainer


def test_the_trainer_has_one_mixin():
    mixins = [base for base in ProRLTrainer.__bases__ if base.__module__.startswith("trl_prorl.")]
    assert len(mixins) == 1
