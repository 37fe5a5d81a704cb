"""What becomes of an optimizer's state when a factor grows: by hand, and with real optimizers."""

import bitsandbytes
import pytest
import torch
from transformers.optimization import Adafactor

from trl_prorl.extras.growth import check_growing_optimizer, migrate_state, resize
from trl_prorl.optimizer import reset_optimizer


LR = 0.1
B1 = 0.9
B2 = 0.99
AXES = {"A": 0, "B": 1}


def grow(param, optimizer, axis, rank, new=None):
    """A factor and its state, as a run grows them."""
    state = optimizer.state[param]
    changed = migrate_state(state, param.shape, axis, rank)
    param.data = resize(param.detach(), axis, rank, new)
    param.grad = None
    state.update(changed)


def update(param, optimizer, gradient):
    """What one update adds to a parameter."""
    before = param.detach().clone()
    param.grad = torch.full_like(param, gradient) if isinstance(gradient, float) else gradient
    optimizer.step()
    return param.detach() - before


FOUR = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
# What the first update of a value with gradient 1 is, in learning rates, late in a run, for old and new ranks. Of an
# old one m = v = 1 before: m̂ = f1 · 0.9 + 0.1, v̂ = f2 · 0.999 + 0.001, corrected where t was cleared.
FIRST = {
    ("keep", 1.0): (1.0, 0.1 / 0.001**0.5),
    ("hard", 1.0): (1.0, 1.0),
    ("soft", 0.1): (0.19 / 0.1009**0.5, 0.1 / 0.001**0.5),
    ("asym", 1.0): (0.1, 0.1 / 0.001**0.5),
    ("step", 1.0): (10.0 / 1000**0.5, 1.0),
}


def late(side, t):
    """A factor of ones' state after t updates with gradient 1, in float64."""
    param = torch.nn.Parameter(torch.zeros(2, 2, dtype=torch.float64))
    optimizer = torch.optim.AdamW([param], lr=LR, betas=(0.9, 0.999), eps=0.0, weight_decay=0.0)
    moments = {"exp_avg": 1 - 0.9**t, "exp_avg_sq": 1 - 0.999**t}
    moments = {name: torch.full_like(param.detach(), value) for name, value in moments.items()}
    optimizer.state[param] = {"step": torch.tensor(float(t)), **moments}
    grow(param, optimizer, AXES[side], 3)
    return param, optimizer


@pytest.mark.parametrize("side", AXES)
@pytest.mark.parametrize("mode, alpha", FIRST)
def test_the_first_update_of_new_ranks_under_each_reset(side, mode, alpha):
    """Growth goes first, so the reset finds the grown state."""
    param, optimizer = late(side, 10**8)
    reset_optimizer(optimizer, mode, alpha)
    moved = update(param, optimizer, 1.0) / -LR
    old, new = moved.split([2, 1], dim=AXES[side])
    of_old, of_new = FIRST[mode, alpha]
    assert torch.allclose(old, torch.full_like(old, of_old), rtol=1e-5)
    assert torch.allclose(new, torch.full_like(new, of_new), rtol=1e-5)


@pytest.mark.parametrize("t, first, largest", [(1, 0.744, 1.012), (60, 0.771, 1.750), (10**8, 3.162, 6.569)])
def test_the_updates_of_new_ranks_while_the_gradient_stays(t, first, largest):
    """By hand: m̂ and v̂ are corrected for moments that were 0 at step 0, and not at t."""
    param, optimizer = late("B", t)
    sizes = [(update(param, optimizer, 1.0) / -LR)[0, 2].item() for _ in range(100)]
    shares = [[(1 - beta**k) / (1 - beta ** (t + k)) for k in range(1, 101)] for beta in (0.9, 0.999)]
    assert sizes == pytest.approx([m / v**0.5 for m, v in zip(*shares, strict=True)], rel=1e-6)
    assert (sizes[0], max(sizes)) == pytest.approx((first, largest), abs=6e-4)


@pytest.mark.parametrize("kind", ["loop", "foreach", "fused", "amsgrad", "sgd"])
@pytest.mark.parametrize("side", AXES)
def test_a_factor_that_had_the_rank_from_the_start_with_zero_gradients(kind, side):
    """The control: as many ranks from the beginning, of which the last have no gradient until the growth."""
    axis = AXES[side]
    generator = torch.Generator().manual_seed(0)

    def drawn(ranks):
        return torch.randn((ranks, 5) if side == "A" else (5, ranks), generator=generator)

    def make(param):
        if kind == "sgd":
            return torch.optim.SGD([param], lr=LR, momentum=0.9)
        flags = {"foreach": kind == "foreach"} if kind != "fused" else {"fused": True}
        return torch.optim.AdamW([param], lr=LR, betas=(B1, B2), amsgrad=kind == "amsgrad", **flags)

    begun = drawn(2)
    new = drawn(2)
    small = torch.nn.Parameter(begun.clone())
    large = torch.nn.Parameter(resize(begun, axis, 4))
    of_small = make(small)
    of_large = make(large)
    for _ in range(3):
        gradient = drawn(2)
        update(small, of_small, gradient), update(large, of_large, resize(gradient, axis, 4))
    grow(small, of_small, axis, 4, new)
    large.data.narrow(axis, 2, 2).copy_(new)
    assert torch.equal(small, large)
    for _ in range(3):
        gradient = drawn(4)
        update(small, of_small, gradient.clone()), update(large, of_large, gradient)
        assert torch.equal(small, large)


@pytest.mark.parametrize("named, value", [("momentum_of_next_year", FOUR), ("exp_avg", FOUR[:1])])
def test_a_state_that_is_not_understood_is_refused(named, value):
    with pytest.raises(ValueError, match=named):
        migrate_state({"exp_avg_sq": FOUR, named: value}, FOUR.shape, 0, 3)


def test_optimizers_that_are_not_understood_are_refused():
    for cls in (torch.optim.Adafactor, Adafactor, torch.optim.RMSprop, bitsandbytes.optim.AdamW8bit):
        with pytest.raises(ValueError, match=f"{cls.__name__}"):
            check_growing_optimizer(cls)
    for cls in (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD):
        check_growing_optimizer(cls)
