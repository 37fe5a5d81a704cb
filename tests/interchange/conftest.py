"""A small export by hand, a trainer that exports every update, and the engine of docs/examples."""

import sys
from pathlib import Path

import pytest
import torch

from trl_prorl.interchange import Rollout, UpdateInputs


sys.path.append(str(Path(__file__).parent))

from exchange import EXAMPLES, A, B, EveryUpdate, norm_of, script  # noqa: E402


@pytest.fixture(scope="session")
def engine():
    return script(EXAMPLES / "numpy_engine" / "engine.py")


@pytest.fixture
def hand_made():
    """Inputs of an update of one layer with rank 2, drawn from a seed; keyword arguments replace fields."""

    def make(seed=0, **fields):
        draw = torch.Generator().manual_seed(seed)
        shapes = {A: (2, 3), B: (4, 2)}
        kinds = {
            kind: {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}
            for kind in ("parameters", "gradients", "exp_avg", "exp_avg_sq")
        }
        kinds["exp_avg_sq"] = {name: value.square() for name, value in kinds["exp_avg_sq"].items()}
        kinds["steps"] = {name: torch.tensor([7.0]) for name in shapes}
        group = {"lr": 0.01, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.1, "decoupled": True}
        values = {"names": [A, B], "groups": [group | {"parameters": [A, B]}], "clip_norm": 1.0, "update": 8}
        given = {**kinds, **values, "new_rows": {}, **fields}
        if "grad_norm" not in given:
            given["grad_norm"] = norm_of(given["gradients"]) if given["gradients"] else 0.0
        return UpdateInputs(**given)

    return make


@pytest.fixture
def rows():
    """A rollout of two groups of two."""
    mask = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1]])
    return Rollout(
        prompt_ids=torch.arange(8).view(4, 2),
        prompt_mask=torch.ones(4, 2, dtype=torch.int64),
        completion_ids=torch.arange(12).view(4, 3) * mask,
        completion_mask=mask,
        advantages=torch.tensor([0.5, -0.5, 1.0, -1.0]),
        rewards=torch.tensor([[1.0, float("nan")], [0.0, 2.0], [1.0, 1.0], [0.0, 0.0]]),
        group=torch.tensor([0, 0, 1, 1]),
        update=8,
        reward_functions=["first", "second"],
        logp_old=-torch.rand(4, 3),
    )


@pytest.fixture
def exporting(make_trainer, tmp_path):
    """A function that trains with every update exported: the trainer, and the callback."""

    def train(trainer_kwargs=None, callbacks=(), prepare=lambda trainer: None, **keys):
        callback = EveryUpdate(tmp_path / "exchange")
        kwargs = {"callbacks": [callback, *callbacks], **(trainer_kwargs or {})}
        trainer = callback.trainer = make_trainer(trainer_kwargs=kwargs, **keys)
        prepare(trainer)
        trainer.train()
        return trainer, callback

    return train


@pytest.fixture
def grown_and_reset(hand_made):
    """A function: inputs by hand with a growth, and a reset of a mode, before the update."""

    def make(mode="soft", **fields):
        gradients = {A: torch.linspace(-1, 1, 9).view(3, 3), B: torch.linspace(-2, 1, 12).view(4, 3)}
        reset = {"mode": mode, "alpha": 0.25, "restarts_schedule": False, "rewarmup_steps": 0}
        growth = {"growth": {"old_rank": 2, "new_rank": 3}, "new_rows": {A: torch.tensor([[0.3, -0.2, 0.1]])}}
        return hand_made(**{**growth, "gradients": gradients, "reset": reset, **fields})

    return make
