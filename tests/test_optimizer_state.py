"""Resets of optimizer state: hand-computed numbers, and real optimizers."""

import re
from pathlib import Path

import bitsandbytes
import pytest
import torch
from transformers.optimization import Adafactor

from trl_prorl.errors import InputError
from trl_prorl.interchange import export_update
from trl_prorl.interchange.schemas import reset_factors
from trl_prorl.resets import treatments
from trl_prorl.resets.optimizer_state import changes, check_optimizer, reset_optimizer, reset_scaler
from trl_prorl.resets.treatments import TREATMENTS, Treatment


LR, B1, B2, EPS = 0.1, 0.9, 0.99, 1e-8


def adam(kind="loop", device="cpu", **kwargs):
    """An AdamW after two updates with gradients 1 and 3: m = 0.39, v = 0.0999, t = 2."""
    param = torch.nn.Parameter(torch.zeros(3, device=device))
    flags = {"loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}[kind]
    optimizer = torch.optim.AdamW([param], lr=LR, betas=(B1, B2), eps=EPS, weight_decay=0.0, **flags, **kwargs)
    for value in (1.0, 3.0):
        param.grad = torch.full_like(param, value)
        optimizer.step()
    return param, optimizer


def update_after(param, optimizer, gradient):
    before = param.detach().clone()
    param.grad = torch.full_like(param, gradient)
    optimizer.step()
    return (param.detach() - before).flatten()[0].item()


def by_hand(m, v, t, gradient):
    """Adam's next update from (m, v, t)."""
    m, v, t = B1 * m + (1 - B1) * gradient, B2 * v + (1 - B2) * gradient**2, t + 1
    return -LR * (m / (1 - B1**t)) / ((v / (1 - B2**t)) ** 0.5 + EPS)


M, V = 0.9 * 0.1 * 1 + 0.1 * 3, 0.99 * 0.01 * 1 + 0.01 * 9


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["loop", "foreach", "fused"])
@pytest.mark.parametrize(
    "mode, alpha, m, v, t",
    [
        ("keep", 1.0, M, V, 2),
        ("hard", 1.0, 0.0, 0.0, 0),
        ("soft", 0.1, 0.1 * M, 0.1 * V, 2),
        ("asym", 1.0, 0.0, V, 2),
        ("step", 1.0, M, V, 0),
    ],
)
def test_state_and_first_update_by_hand(device, kind, mode, alpha, m, v, t):
    param, optimizer = adam(kind, device)
    state = optimizer.state[param]
    pointer = state["exp_avg"].data_ptr()
    reset_optimizer(optimizer, mode, alpha)
    assert state["exp_avg"].data_ptr() == pointer
    assert state["exp_avg"].tolist() == pytest.approx([m] * 3, rel=1e-5)
    assert state["exp_avg_sq"].tolist() == pytest.approx([v] * 3, rel=1e-5)
    assert float(state["step"]) == t
    assert update_after(param, optimizer, 2.0) == pytest.approx(by_hand(m, v, t, 2.0), rel=1e-4)


ALL_MODES = [("keep", 1.0), ("hard", 1.0), ("soft", 0.25), ("asym", 1.0), ("step", 1.0)]
ALL_MODES += [("scale(0.2, 0.8)", 1.0), ("scale(0.5,0.25, step)", 1.0), ("scale(0, 1)", 1.0)]


def after(mode, alpha, m, v, t):
    """(m, v, t) after a reset, by the table."""
    cleared = {"keep": (m, v, t), "hard": (0.0, 0.0, 0), "asym": (0.0, v, t), "step": (m, v, 0)}
    cleared |= {"scale(0.2, 0.8)": (0.2 * m, 0.8 * v, t), "scale(0.5,0.25, step)": (0.5 * m, 0.25 * v, 0)}
    cleared |= {"scale(0, 1)": (0.0, v, t)}
    return (alpha * m, alpha * v, t) if mode == "soft" else cleared[mode]


@pytest.mark.parametrize("mode, alpha", ALL_MODES)
def test_first_update_of_amsgrad_by_hand(mode, alpha):
    param, optimizer = adam(amsgrad=True)
    reset_optimizer(optimizer, mode, alpha)
    m, v, t = after(mode, alpha, M, V, 2)
    largest = v  # the second moment has only grown
    gradient = 0.1
    m, v, t = B1 * m + (1 - B1) * gradient, B2 * v + (1 - B2) * gradient**2, t + 1
    expected = -LR * (m / (1 - B1**t)) / ((max(largest, v) / (1 - B2**t)) ** 0.5 + EPS)
    assert update_after(param, optimizer, gradient) == pytest.approx(expected, rel=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("make, values", [("AdamW8bit", 100), ("AdamW8bit", 8192), ("PagedAdamW8bit", 2**17)])
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


def torch_adafactor(param):
    return torch.optim.Adafactor([param], lr=LR)


def transformers_adafactor(param):
    return Adafactor([param], lr=LR, scale_parameter=False, relative_step=False, beta1=0.9)


def adam_8bit(param):
    return bitsandbytes.optim.AdamW8bit([param], lr=LR)


def paged_adam_8bit(param):
    return bitsandbytes.optim.PagedAdamW8bit([param], lr=LR)


FIRST = {"exp_avg", "state1", "absmax1"}
ADAFACTOR_SECOND = {"row_var", "col_var", "variance", "exp_avg_sq_row", "exp_avg_sq_col", "exp_avg_sq"}
SECOND = ADAFACTOR_SECOND | {"state2", "absmax2"}


@pytest.mark.parametrize(
    "make, shape",
    [(make, shape) for make in (torch_adafactor, transformers_adafactor) for shape in ((3,), (3, 4))]
    + [(make, shape) for make in (adam_8bit, paged_adam_8bit) for shape in ((100,), (8192,))],
)
@pytest.mark.parametrize("mode, alpha", [("soft", 0.25), ("asym", 1.0), ("hard", 1.0), ("step", 1.0)])
def test_factored_moments_and_the_maxima_of_8_bit_codes_are_scaled_and_never_the_codes(make, shape, mode, alpha):
    generator = torch.Generator().manual_seed(0)
    param = torch.nn.Parameter(torch.ones(shape))
    optimizer = make(param)
    for _ in range(3):
        param.grad = torch.randn(shape, generator=generator)
        optimizer.step()
    before = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in optimizer.state[param].items()}
    assert SECOND & set(before) and ("absmax1" in before) == (shape == (8192,))  # below 4,096 values: 32 bits
    reset_optimizer(optimizer, mode, alpha)
    after = optimizer.state[param]
    first = {"soft": alpha, "asym": 0.0, "hard": 0.0, "step": 1.0}[mode]
    second = {"soft": alpha, "asym": 1.0, "hard": 0.0, "step": 1.0}[mode]
    for key, value in before.items():
        if isinstance(value, torch.Tensor) and key != "step":
            codes = value.dtype == torch.uint8
            factor = 1.0 if codes else first if key in FIRST else second if key in SECOND else 1.0
            assert torch.equal(after[key], value * factor if factor != 1.0 else value), key
    assert float(after["step"]) == (0 if mode in ("hard", "step") else 3)


RATE = 1e-3
HISTORIES = 1024


def sizes(mode, alpha, updates, constant, t=10**8):
    """
    Root mean square of Adam's updates 1 to `updates` after a reset at t, by that of an update without one.

    The gradient is 1 throughout, or has signs that no two updates share: the rows of a Hadamard matrix are orthogonal,
    so that the mean over its columns, a history of signs each, is the expectation over random signs.
    """
    signs = torch.ones(1, 1, dtype=torch.float64)
    while len(signs) < HISTORIES:
        signs = torch.cat([torch.cat([signs, signs], dim=1), torch.cat([signs, -signs], dim=1)])
    usual = 1.0 if constant else (0.1 / 1.9) ** 0.5  # Var m of signs by chance: (1 − β1) / (1 + β1)
    param = torch.nn.Parameter(torch.zeros(HISTORIES, dtype=torch.float64))
    optimizer = torch.optim.AdamW([param], lr=RATE, betas=(0.9, 0.999), eps=0.0, weight_decay=0.0)
    m = torch.ones(HISTORIES, dtype=torch.float64) if constant else usual * signs[-1]
    optimizer.state[param] = {
        "step": torch.tensor(float(t)),
        "exp_avg": m * (1 - 0.9**t),
        "exp_avg_sq": torch.full_like(m, 1 - 0.999**t),
    }
    reset_optimizer(optimizer, mode, alpha)
    found = []
    for k in range(updates):
        before = param.detach().clone()
        param.grad = torch.ones_like(m) if constant else signs[k].clone()
        optimizer.step()
        found.append((param.detach() - before).square().mean().sqrt().item() / RATE / usual)
    return found


def table_of_updates():
    """The rows of the table in docs/concepts.md: mode, α, whether the gradient is constant, the cells."""
    page = (Path(__file__).parents[1] / "docs" / "concepts.md").read_text()
    rows = re.findall(r"^\| `(\w+)`(?:, α ([\d.]+))? \| (constant|± g by chance) \| (.*) \|$", page, re.MULTILINE)
    return [(mode, float(alpha or 1), kind == "constant", cells.split(" | ")) for mode, alpha, kind, cells in rows]


@pytest.mark.parametrize(
    "mode, alpha, constant, first, second",
    [
        # A new optimizer: m̂ = g and v̂ = g² after every update; of signs by chance ±1, then m̂ = (0.09 ± 0.1) / 0.19.
        ("hard", 1.0, True, 1.0, 1.0),
        ("hard", 1.0, False, 19**0.5, (19 * (0.09**2 + 0.1**2)) ** 0.5 / 0.19),
        # m = 0.1, then 0.9 m + 0.1, twice: 0.19, 0.271. v = 0.1, then 0.999 v + 0.001, twice: 0.1009, 0.1017991.
        ("soft", 0.1, True, 0.19 / 0.1009**0.5, 0.271 / 0.1017991**0.5),
        # Var m is 1/19 before, of which 0.01 · 0.81 remains, and 0.01 comes; then 0.81 of that, and 0.01 comes.
        (
            "soft",
            0.1,
            False,
            (19 * (0.0081 / 19 + 0.01) / 0.1009) ** 0.5,
            (0.006561 + 0.19 * 1.81) ** 0.5 / 0.1017991**0.5,
        ),
        ("asym", 1.0, True, 0.1, 0.19),
        ("asym", 1.0, False, (19 * 0.01) ** 0.5, (19 * (0.0081 + 0.01)) ** 0.5),
        # t is 1, then 2: m̂ = 1/0.1 and 1/0.19, v̂ = 1/0.001 and 1/0.001999, whatever the signs; 0.3162 and 0.2353.
        ("step", 1.0, True, 0.001**0.5 / 0.1, 0.001999**0.5 / 0.19),
        ("step", 1.0, False, 0.001**0.5 / 0.1, 0.001999**0.5 / 0.19),
        ("keep", 1.0, True, 1.0, 1.0),
        ("keep", 1.0, False, 1.0, 1.0),
    ],
)
def test_the_first_two_updates_after_a_reset_by_hand(mode, alpha, constant, first, second):
    assert sizes(mode, alpha, 2, constant) == pytest.approx([first, second], rel=1e-9)


def test_the_table_of_updates_after_a_reset():
    rows = table_of_updates()
    assert len(rows) == 10
    for mode, alpha, constant, (*cells, largest) in rows:
        found = sizes(mode, alpha, 1000, constant)
        assert [f"{found[k - 1]:.2f}" for k in (1, 2, 5, 10, 30, 100, 1000)] == cells, (mode, alpha, constant)
        size, _, place = largest.partition(", the ")
        assert f"{max(found):.2f}" == size, (mode, alpha, constant)
        if place:
            number = 1 if place == "first" else int(re.match(r"\d+", place)[0])
            assert found.index(max(found)) + 1 == number, (mode, alpha, constant)


def test_an_early_soft_reset_raises_less():
    # After 40 updates, 1 − β2^40 = 0.0392: v̂ = (0.1 · 0.999 · 0.039230 + 0.001) / (1 − 0.999^41) = 0.1224,
    # m̂ = (0.1 · 0.9 · 0.985219 + 0.1) / (1 − 0.9^41) = 0.1912.
    found = sizes("soft", 0.1, 100, constant=True, t=40)
    assert found[0] == pytest.approx(0.54656, abs=1e-5) and min(found) == found[0]
    assert max(found) == pytest.approx(1.39988, abs=1e-5) and found.index(max(found)) + 1 == 20


def test_a_cleared_step_count_lowers_late_updates_for_thousands_of_steps():
    # √(1 − 0.999^k) / (1 − 0.9^k): least at k = 12, √0.0119343 / 0.717570; half from 288 on; 0.95 from 2327 on.
    found = sizes("step", 1.0, 2327, constant=True)
    assert min(found) == pytest.approx(0.152241, abs=1e-6) and found.index(min(found)) + 1 == 12
    assert found[286] < 0.5 < found[287] and found[2325] < 0.95 < found[2326]


def test_a_cleared_step_count_early_in_a_run_raises_the_first_updates():
    # After 40 updates, k = 1: m̂ = (1 − 0.9^41) / 0.1 = 9.8670, v̂ = (1 − 0.999^41) / 0.001 = 40.1896: the rest of v's
    # correction is owed. k = 2: (1 − 0.9^42) / 0.19 = 5.2002 by √((1 − 0.999^42) / 0.001999) = 4.5370.
    found = sizes("step", 1.0, 40, constant=True, t=40)
    assert found[:2] == pytest.approx([9.8670 / 40.1896**0.5, 5.2002 / 4.5370], abs=1e-4)
    assert found[:2] == pytest.approx([1.56, 1.15], abs=5e-3) and min(found) == pytest.approx(0.66, abs=5e-3)
    # A reset every 40 updates; after each the first, and the mean of the 40 that follow.
    firsts, means = [], []
    for t in (40, 80, 120, 160, 200):
        found = sizes("step", 1.0, 40, constant=True, t=t)
        firsts.append(f"{found[0]:.2f}")
        means.append(f"{sum(found) / 40:.2f}")
    assert firsts == ["1.56", "1.13", "0.94", "0.82", "0.74"] and means == ["0.74", "0.57", "0.49", "0.44", "0.40"]
    page = " ".join((Path(__file__).parents[1] / "docs" / "concepts.md").read_text().split())
    assert f"the first one after each is {', '.join(firsts)}" in page
    assert f"have on average {', '.join(means)} of" in page


def test_a_cleared_step_count_bounds_updates_of_gradients_that_grow():
    """The reason for Adam-Rel: gradients 10⁶ times as large, beside which the old moments are nothing."""

    def updates(mode):
        param = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
        optimizer = torch.optim.AdamW([param], lr=LR, betas=(0.9, 0.999), eps=0.0, weight_decay=0.0)
        one = torch.ones(1, dtype=torch.float64)
        optimizer.state[param] = {"step": torch.tensor(1e8), "exp_avg": one.clone(), "exp_avg_sq": one.clone()}
        reset_optimizer(optimizer, mode)
        return [-update_after(param, optimizer, 1e6) / LR for _ in range(12)]

    kept, relative = updates("keep"), updates("step")
    # m = 10⁶ (1 − 0.9^12), v = 10¹² (1 − 0.999^12): 0.717570 / √0.0119343.
    assert kept[11] == pytest.approx(6.5685, abs=1e-3)
    assert relative == pytest.approx([1.0] * 12, rel=1e-4)


def test_a_state_that_is_not_understood_changes_nothing():
    first, second = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.AdamW([first, second])
    first.grad = second.grad = torch.ones(2)
    optimizer.step()
    optimizer.state[second]["momentum_of_the_future"] = torch.ones(2)
    before = optimizer.state[first]["exp_avg"].clone()
    with pytest.raises(ValueError, match="momentum_of_the_future"):
        reset_optimizer(optimizer, "hard")
    assert torch.equal(optimizer.state[first]["exp_avg"], before)


PARAM = torch.nn.Parameter(torch.ones(2, 3))
SGD, ADAM, ADAMW = torch.optim.SGD([PARAM], lr=LR, momentum=0.9), torch.optim.Adam([PARAM]), torch.optim.AdamW([PARAM])
WITHOUT_FIRST = (torch.optim.Adafactor([PARAM]), Adafactor([PARAM], lr=LR, relative_step=False))
REFUSED = [
    (torch.optim.RMSprop([PARAM]), "hard", "RMSprop.*optimizer_reset: keep"),
    (torch.optim.SGD([PARAM], lr=LR), "hard", "without momentum"),
    *((each, "asym", "optimizer_reset='asym'.*has none.*hard, soft or keep") for each in WITHOUT_FIRST),
    (SGD, "step", "optimizer_reset='step'.*SGD has none.*keep"),
    (torch_adafactor(PARAM), "step", "optimizer_reset='step'.*Adafactor forgets its second moment.*hard"),
    (transformers_adafactor(PARAM), "step", "optimizer_reset='step'.*Adafactor forgets its second moment.*hard"),
]
UNDERSTOOD = [(each, mode) for each in WITHOUT_FIRST for mode in ("soft", "hard")]
UNDERSTOOD += [(each, mode) for each in (ADAMW, paged_adam_8bit(PARAM)) for mode in ("hard", "step")]
UNDERSTOOD += [(ADAM, "step"), (SGD, "hard"), (SGD, "asym"), (transformers_adafactor(PARAM), "asym")]


@pytest.mark.parametrize("optimizer, mode, message", REFUSED)
def test_an_optimizer_that_is_not_understood_or_lacks_what_is_changed_is_refused(optimizer, mode, message):
    with pytest.raises(ValueError, match=message):
        check_optimizer(optimizer, mode)


@pytest.mark.parametrize("optimizer, mode", UNDERSTOOD)
def test_an_optimizer_that_is_understood_is_not_refused(optimizer, mode):
    check_optimizer(optimizer, mode)


@pytest.mark.parametrize("make", [torch_adafactor, transformers_adafactor])
def test_adafactor_replaces_a_second_moment_whose_step_count_is_cleared(make):
    """The reason for its refusal: the moments are those of a hard reset after the next update."""
    param, found = torch.nn.Parameter(torch.ones(2, 3)), []
    optimizer = make(param)
    for mode in ("step", "hard"):
        update_after(param, optimizer, 3.0)
        reset_optimizer(optimizer, mode)
        param.grad = torch.arange(1.0, 7.0).view(2, 3)
        optimizer.step()
        found.append({k: v.clone() for k, v in optimizer.state[param].items() if k in ADAFACTOR_SECOND})
    assert found[0] and all(torch.equal(found[0][key], found[1][key]) for key in found[0])


@pytest.mark.parametrize("alpha", [0.0, -0.1, 1.1, float("nan")])
def test_alpha_outside_its_range_is_refused(alpha):
    with pytest.raises(ValueError, match="optimizer_reset_alpha"):
        changes({}, "soft", alpha)


def test_scaler_goes_back_to_its_initial_scale():
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1)
    param = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([param], lr=0.1)
    for _ in range(2):
        scaler.scale(param.sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 4096.0
    reset_scaler(scaler, 1024.0)
    assert scaler.get_scale() == 1024.0
    assert scaler.state_dict()["_growth_tracker"] == 0


def test_the_changes_of_a_treatment_are_those_that_the_table_of_its_file_says():
    rows = re.findall(
        r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \| ([^|]+) \|", Path(treatments.__file__).read_text(), re.MULTILINE
    )
    told = {
        name: {
            part for part, cell in zip(("first", "second", "step"), cells, strict=True) if len(cell) > 1 or cell == "0"
        }
        for name, *cells in rows
    }
    assert told == {name: set(treatment.changes) for name, treatment in TREATMENTS.items()}


@pytest.fixture
def noise(monkeypatch):
    """A treatment that is no factor: it adds α to every second value of m."""

    def add(tensor, alpha):
        tensor.view(-1)[::2] += alpha

    monkeypatch.setitem(TREATMENTS, "noise", Treatment("noise", first=add))


def test_a_treatment_that_is_no_factor(noise):
    param, optimizer = adam()
    pointer = optimizer.state[param]["exp_avg"].data_ptr()
    check_optimizer(optimizer, "noise")
    reset_optimizer(optimizer, "noise", 0.5)
    state = optimizer.state[param]
    assert state["exp_avg"].tolist() == pytest.approx([M + 0.5, M, M + 0.5]) and state["exp_avg"].data_ptr() == pointer
    assert state["exp_avg_sq"].tolist() == pytest.approx([V] * 3) and float(state["step"]) == 2
    with pytest.raises(ValueError, match="optimizer_reset_alpha=2.0"):
        reset_optimizer(optimizer, "noise", 2.0)


def test_no_codes_take_it_and_no_export_calls_it_a_factor(noise, make_trainer, tmp_path):
    param = torch.nn.Parameter(torch.zeros(8192))
    optimizer = bitsandbytes.optim.AdamW8bit([param])
    with pytest.raises(ValueError, match="optimizer_reset='noise'.*codes.*adamw_torch"):
        check_optimizer(optimizer, "noise")
    update_after(param, optimizer, 1.0)
    before = {key: value.clone() for key, value in optimizer.state[param].items() if isinstance(value, torch.Tensor)}
    with pytest.raises(ValueError, match="codes"):
        reset_optimizer(optimizer, "noise", 0.5)
    assert all(torch.equal(optimizer.state[param][key], value) for key, value in before.items())
    with pytest.raises(InputError, match="'noise' is no factor"):
        reset_factors({"mode": "noise", "alpha": 0.5, "restarts_schedule": False, "rewarmup_steps": 0})
    trainer = make_trainer(beta=0.1, ref_reset_every=2)
    trainer.args.optimizer_reset = "noise"
    with pytest.raises(InputError, match="'noise' is no factor"):
        export_update(trainer, tmp_path / "update")
