"""Resets of optimizer state: hand-computed numbers, and real optimizers."""

import copy
from contextlib import nullcontext
from functools import partial

import bitsandbytes
import pytest
import torch
import transformers
from run_record import read_events
from transformers.optimization import Adafactor

from trl_prorl.optimizer import check_optimizer, find_factors, reset_optimizer, reset_scaler
from trl_prorl.supported import BITSANDBYTES, OPTIMIZERS
from trl_prorl.treatments import TREATMENTS, Treatment


LR = 0.1
B1 = 0.9
B2 = 0.99
EPS = 1e-8
# An AdamW after two updates with gradients 1 and 3.
M = 0.9 * 0.1 * 1 + 0.1 * 3
V = 0.99 * 0.01 * 1 + 0.01 * 9
FLAGS = {"loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
FLAGS["amsgrad"] = {"foreach": False, "amsgrad": True}


def adam(kind="loop", device="cpu"):
    param = torch.nn.Parameter(torch.zeros(3, device=device))
    optimizer = torch.optim.AdamW([param], lr=LR, betas=(B1, B2), eps=EPS, weight_decay=0.0, **FLAGS[kind])
    for value in (1.0, 3.0):
        update_after(param, optimizer, value)
    return param, optimizer


def update_after(param, optimizer, gradient):
    before = param.detach().clone()
    param.grad = torch.full_like(param, gradient)
    optimizer.step()
    return (param.detach() - before).flatten()[0].item()


def by_hand(m, v, t, gradient, largest=0.0):
    """Adam's next update from (m, v, t), with amsgrad from the largest v."""
    m = B1 * m + (1 - B1) * gradient
    v = B2 * v + (1 - B2) * gradient**2
    t = t + 1
    return -LR * (m / (1 - B1**t)) / ((max(v, largest) / (1 - B2**t)) ** 0.5 + EPS)


# What is left of m, of v and of the step count, by mode and α.
ALL_MODES = {
    ("keep", 1.0): (1.0, 1.0, 1),
    ("hard", 1.0): (0.0, 0.0, 0),
    ("soft", 0.25): (0.25, 0.25, 1),
    ("asym", 1.0): (0.0, 1.0, 1),
    ("step", 1.0): (1.0, 1.0, 0),
    ("scale(0.2, 0.8)", 1.0): (0.2, 0.8, 1),
    ("scale(0.5,0.25, step)", 1.0): (0.5, 0.25, 0),
    ("scale(0, 1)", 1.0): (0.0, 1.0, 1),
}


def after(mode, alpha, m, v, t):
    of_m, of_v, of_t = ALL_MODES[mode, alpha]
    return of_m * m, of_v * v, of_t * t


@pytest.mark.gpu
@pytest.mark.parametrize("kind", FLAGS)
@pytest.mark.parametrize("mode, alpha", ALL_MODES)
def test_state_and_first_update_by_hand(device, kind, mode, alpha):
    param, optimizer = adam(kind, device)
    state = optimizer.state[param]
    pointer = state["exp_avg"].data_ptr()
    reset_optimizer(optimizer, mode, alpha)
    m, v, t = after(mode, alpha, M, V, 2)
    assert state["exp_avg"].data_ptr() == pointer
    assert state["exp_avg"].tolist() == pytest.approx([m] * 3, rel=1e-5)
    assert state["exp_avg_sq"].tolist() == pytest.approx([v] * 3, rel=1e-5)
    assert float(state["step"]) == t
    gradient, largest = (0.1, v) if kind == "amsgrad" else (2.0, 0.0)  # v falls after the smaller one
    expected = by_hand(m, v, t, gradient, largest)
    assert update_after(param, optimizer, gradient) == pytest.approx(expected, rel=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "make, values", [*((name, 8192) for name in BITSANDBYTES), ("AdamW8bit", 100), ("PagedAdamW8bit", 2**17)]
)
@pytest.mark.parametrize("mode, alpha", ALL_MODES)
def test_first_update_of_bitsandbytes_by_hand(device, mode, alpha, make, values):
    # One gradient for all values: every block holds its own maximum, which the 8-bit codes represent exactly. States
    # of fewer than 4,096 values are in 32 bits, and on a GPU those of 100,000 and more are paged.
    param = torch.nn.Parameter(torch.zeros(values, device=device))
    make = getattr(bitsandbytes.optim, make)
    optimizer = make([param], lr=LR, betas=(B1, B2), eps=EPS, weight_decay=0.0)
    for gradient in (1.0, 3.0):
        update_after(param, optimizer, gradient)
    paged = getattr(optimizer.state[param]["state1"], "is_paged", False)
    assert paged == (device == "cuda" and values >= 100_000)
    reset_optimizer(optimizer, mode, alpha)
    expected = by_hand(*after(mode, alpha, M, V, 2), 2.0)
    assert update_after(param, optimizer, 2.0) == pytest.approx(expected, rel=1e-3)


SGD_BUFFER = 0.9 * 1 + 0.5 * 3  # momentum 0.9, dampening 0.5, gradients 1 and 3


@pytest.mark.parametrize(
    "mode, alpha, moved",
    [("keep", 1.0, 0.9 * SGD_BUFFER + 1), ("soft", 0.1, 0.09 * SGD_BUFFER + 1), ("hard", 1.0, 2), ("asym", 1.0, 2)],
)
def test_sgd_momentum_is_a_first_moment_and_cleared_a_new_sgd_dampening_included(mode, alpha, moved):
    param = torch.nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([param], lr=LR, momentum=0.9, dampening=0.5)
    update_after(param, optimizer, 1.0), update_after(param, optimizer, 3.0)
    reset_optimizer(optimizer, mode, alpha)
    assert update_after(param, optimizer, 2.0) == pytest.approx(-LR * moved)


TORCH_ADAFACTOR = partial(torch.optim.Adafactor, lr=LR)
WITH_FIRST = partial(Adafactor, lr=LR, scale_parameter=False, relative_step=False, beta1=0.9)
IN_BITS = (bitsandbytes.optim.AdamW8bit, bitsandbytes.optim.PagedAdamW8bit)


FIRST = {"exp_avg", "state1", "absmax1"}
SECOND = {"row_var", "col_var", "variance", "exp_avg_sq_row", "exp_avg_sq_col", "exp_avg_sq", "state2", "absmax2"}


@pytest.mark.parametrize(
    "make, shape",
    [(make, shape) for make in (TORCH_ADAFACTOR, WITH_FIRST) for shape in ((3,), (3, 4))]
    + [(make, shape) for make in IN_BITS for shape in ((100,), (8192,))],
)
@pytest.mark.parametrize("mode, alpha", [("soft", 0.25), ("asym", 1.0), ("hard", 1.0), ("step", 1.0)])
def test_factored_moments_and_the_maxima_of_8_bit_codes_are_scaled_and_never_the_codes(make, shape, mode, alpha):
    generator = torch.Generator().manual_seed(0)
    param = torch.nn.Parameter(torch.ones(shape))
    optimizer = make([param])
    for _ in range(3):
        param.grad = torch.randn(shape, generator=generator)
        optimizer.step()
    before = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in optimizer.state[param].items()}
    assert SECOND & set(before)
    assert ("absmax1" in before) == (shape == (8192,))  # below 4,096 values: 32 bits
    reset_optimizer(optimizer, mode, alpha)
    found = optimizer.state[param]
    first, second, steps = after(mode, alpha, 1.0, 1.0, 3)
    factors = dict.fromkeys(FIRST, first) | dict.fromkeys(SECOND, second)
    for key, value in before.items():
        if isinstance(value, torch.Tensor) and key != "step":
            factor = 1 if value.dtype == torch.uint8 else factors.get(key, 1)
            assert torch.equal(found[key], value * factor), key
    assert float(found["step"]) == steps


def test_a_factor_of_0_clears_what_overflowed():
    param, optimizer = adam()
    state = optimizer.state[param]
    state["exp_avg"][0] = state["exp_avg_sq"][0] = torch.inf
    reset_optimizer(optimizer, "hard")
    assert state["exp_avg"].tolist() == state["exp_avg_sq"].tolist() == [0.0] * 3


def test_a_state_that_is_not_understood_changes_nothing():
    first = torch.nn.Parameter(torch.zeros(2))
    second = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.AdamW([first, second])
    first.grad = second.grad = torch.ones(2)
    optimizer.step()
    optimizer.state[second]["momentum_of_the_future"] = torch.ones(2)
    before = optimizer.state[first]["exp_avg"].clone()
    with pytest.raises(ValueError, match="momentum_of_the_future"):
        reset_optimizer(optimizer, "hard")
    assert torch.equal(optimizer.state[first]["exp_avg"], before)


PARAM = torch.nn.Parameter(torch.ones(2, 3))
SGD = torch.optim.SGD([PARAM], lr=LR, momentum=0.9)
OF_ONE_GROUP = torch.optim.SGD([{"params": [PARAM], "momentum": 0.9}, {"params": [torch.nn.Parameter(torch.ones(1))]}])
ADAM = torch.optim.Adam([PARAM])
ADAMW = torch.optim.AdamW([PARAM])
WITHOUT_FIRST = (torch.optim.Adafactor([PARAM]), Adafactor([PARAM], lr=LR, relative_step=False))
REFUSED = [
    (torch.optim.RMSprop([PARAM]), "hard", "RMSprop.*optimizer_reset: keep"),
    (torch.optim.SGD([PARAM], lr=LR), "hard", "without momentum"),
    *((each, "asym", "optimizer_reset='asym'.*has none.*hard") for each in WITHOUT_FIRST),
    (SGD, "step", "optimizer_reset='step'.*SGD has none.*keep"),
    (TORCH_ADAFACTOR([PARAM]), "step", "optimizer_reset='step'.*Adafactor forgets its second moment.*hard"),
    (WITH_FIRST([PARAM]), "step", "optimizer_reset='step'.*Adafactor forgets its second moment.*hard"),
]
UNDERSTOOD = [(each, mode) for each in WITHOUT_FIRST for mode in ("soft", "hard")]
UNDERSTOOD += [(each, mode) for each in (ADAMW, IN_BITS[1]([PARAM])) for mode in ("hard", "step")]
UNDERSTOOD += [(ADAM, "step"), (SGD, "hard"), (SGD, "asym"), (OF_ONE_GROUP, "hard"), (WITH_FIRST([PARAM]), "asym")]


@pytest.mark.parametrize("optimizer, mode, message", [*REFUSED, *((*each, None) for each in UNDERSTOOD)])
def test_an_optimizer_that_is_not_understood_or_lacks_what_is_changed_is_refused(optimizer, mode, message):
    with pytest.raises(ValueError, match=message) if message else nullcontext():
        check_optimizer(optimizer, mode)


def optimizer_named(name):
    """One that has all that the list says of it."""
    package, _, name = name.partition(".")
    modules = {"torch": torch.optim, "transformers": transformers.optimization, "bitsandbytes": bitsandbytes.optim}
    keys = {"SGD": {"lr": LR, "momentum": 0.9}}
    if package == "transformers":
        keys["Adafactor"] = {"lr": LR, "relative_step": False, "beta1": 0.9}
    param = torch.nn.Parameter(torch.ones(2, 3))
    optimizer = getattr(modules[package], name)([param], **keys.get(name, {}))
    param.grad = torch.ones_like(param)
    optimizer.step()
    return optimizer, param


@pytest.mark.parametrize("mode", [mode for mode in TREATMENTS if mode != "keep"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_optimizer_of_the_list_is_treated_or_refused_by_what_it_remembers(name, mode):
    optimizer, param = optimizer_named(name)
    treated = TREATMENTS[mode].changes & OPTIMIZERS[name].memory
    with nullcontext() if treated else pytest.raises(ValueError, match=f"optimizer_reset='{mode}'"):
        check_optimizer(optimizer, mode)
    if treated:
        before = copy.deepcopy(optimizer.state[param])
        reset_optimizer(optimizer, mode, 0.5)
        after = optimizer.state[param]
        assert any(
            not torch.equal(torch.as_tensor(value), torch.as_tensor(after.get(key, 0)))
            for key, value in before.items()
        )


@pytest.mark.parametrize("first", [1, 0.5, 0])
@pytest.mark.parametrize("name", [name for name, optimizer in OPTIMIZERS.items() if "second" in optimizer.memory])
def test_a_factor_on_the_second_moment_with_the_step_count_cleared_is_refused_or_counts(name, first):
    """Adafactor's first update forgets the second moment, whatever it was."""
    updates = []
    for second in (0.5, 0):
        optimizer, param = optimizer_named(name)
        mode = f"scale({first}, {second}, step)"
        is_lost = name.endswith("Adafactor") and second
        with pytest.raises(ValueError, match="forgets its second moment") if is_lost else nullcontext():
            check_optimizer(optimizer, mode)
        reset_optimizer(optimizer, mode)
        updates.append(update_after(param, optimizer, 3.0))
    assert (updates[0] == updates[1]) == name.endswith("Adafactor")


@pytest.mark.parametrize("alpha", [0.0, -0.1, 1.1, float("nan")])
def test_alpha_outside_its_range_is_refused(alpha):
    with pytest.raises(ValueError, match="optimizer_reset_alpha"):
        find_factors({}, "soft", alpha)


def test_scaler_goes_back_to_its_initial_scale():
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    param = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([param], lr=0.1)
    for _ in range(3):
        scaler.scale(param.sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert (scaler.get_scale(), scaler.state_dict()["_growth_tracker"]) == (2048.0, 1)
    reset_scaler(scaler, 1024.0)
    assert (scaler.get_scale(), scaler.state_dict()["_growth_tracker"]) == (1024.0, 0)


def test_treatments_of_one_s_own_and_alpha_is_refused_and_recorded_by_what_they_declare(monkeypatch, run):
    monkeypatch.setitem(TREATMENTS, "halved", Treatment("halved", first=0.5))
    monkeypatch.setitem(TREATMENTS, "damped", Treatment("damped", first="alpha"))
    param, optimizer = adam()
    check_optimizer(optimizer, "damped")
    reset_optimizer(optimizer, "damped", 0.2)
    assert optimizer.state[param]["exp_avg"].tolist() == pytest.approx([0.2 * M] * 3)
    assert optimizer.state[param]["exp_avg_sq"].tolist() == pytest.approx([V] * 3)
    with pytest.raises(ValueError, match="optimizer_reset_alpha=2.0"):
        reset_optimizer(optimizer, "damped", 2.0)
    keys = {"beta": 0.1, "ref_reset_every": 2, "max_steps": 3}
    for name, recorded in (("halved", None), ("damped", 0.1)):
        (event,) = read_events(run(optimizer_reset=name, **keys), "reset")
        assert event.get("alpha") == recorded


@pytest.mark.parametrize("mode, alpha", ALL_MODES)
def test_first_update_of_adafactor_by_hand(mode, alpha):
    # Equal gradients g: the factored second moment is g² exactly, and the update 1 as long as it is kept. The step t
    # is the third: ω = t^-0.8 of the new square enters; clipping of updates (d) is out of the way.
    param = torch.nn.Parameter(torch.ones(3, 4))
    optimizer = torch.optim.Adafactor([param], lr=LR, d=1e9)
    for _ in range(2):
        update_after(param, optimizer, 2.0)
    reset_optimizer(optimizer, mode, alpha)
    _, v, t = after(mode, alpha, 0.0, 2.0**2, 2)
    share = (t + 1) ** -0.8
    second = (1 - share) * v + share * 2.0**2
    rate = min(LR, 1 / (t + 1) ** 0.5) * param.detach().square().mean().sqrt().item()
    assert -update_after(param, optimizer, 2.0) == pytest.approx(rate * 2.0 / second**0.5, rel=1e-4)
