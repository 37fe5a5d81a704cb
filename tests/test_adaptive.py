"""The adaptive coefficient: by hand, and in training."""

import pytest
from run_record import read_rows

from trl_prorl.objective.anchors import next_coefficient


@pytest.mark.parametrize(
    "kl, expected",
    [
        (0.1, 1.0),  # on target
        (0.11, 1.0 + 0.1 * 2 / 100),
        (0.5, 1.0 + 0.2 * 2 / 100),  # clipped
        (0.0, 1.0 - 0.2 * 2 / 100),
    ],
)
def test_by_hand(kl, expected):
    assert next_coefficient(1.0, kl, target=0.1, steps=2, horizon=100) == pytest.approx(expected)


def test_it_stays_positive():
    assert next_coefficient(1.0, 0.0, target=0.1, steps=1000, horizon=10) == 0.5


@pytest.mark.parametrize(
    "keys, name, measure",
    [
        ({"beta": 0.5, "ref_reset_every": 4}, "beta", "kl_ref"),
        ({"beta_old": 0.5}, "beta_old", "kl_old"),
        ({"beta_base": 0.5}, "beta_base", "kl_base"),
    ],
)
def test_the_active_anchor_follows_its_own_kl(run, keys, name, measure):
    trainer = run(kl_target=1e-3, kl_horizon=5, max_steps=8, **keys)
    rows = read_rows(trainer)
    expected = 0.5
    for first, second in zip(rows[::2], rows[1::2], strict=True):  # two steps of each generation
        assert first["beta"] == second["beta"] == pytest.approx(expected)
        mean = (first[measure] + second[measure]) / 2
        expected = next_coefficient(expected, mean, 1e-3, steps=2, horizon=5)
    assert rows[-1]["beta"] != rows[0]["beta"]
    assert getattr(trainer.args, name) == 0.5
