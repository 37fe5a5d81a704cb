"""The trainer stays thin: it assembles parts from few places, and one mixin is enough."""

import ast
from pathlib import Path

from trl_prorl import ProRLTrainer


TRAINER_IMPORTS, MIXINS = 22, 1

TRAINER = Path(__file__).parent.parent / "trl_prorl" / "trainer.py"


def test_the_trainer():
    tree = ast.parse(TRAINER.read_text())
    own = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level]
    assert len(own) <= TRAINER_IMPORTS
    mixins = [base for base in ProRLTrainer.__bases__ if base.__module__.startswith("trl_prorl.")]
    assert len(mixins) <= MIXINS
