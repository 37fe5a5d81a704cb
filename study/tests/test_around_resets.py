"""The picture of a reset, on curves whose answers are known."""

import numpy as np
import pandas as pd
import pytest

from study.around_resets import aligned_metric, around_resets
from study.matrix import RunKey, read_matrix
from study.tables import Tables


MATRIX = """
evaluation: {prompts: 4, samples: 8, drift_samples: 2}
blocks:
  core:
    families: [reverse_digits]
    pairs: [[1, 1], [2, 2]]
    steps: 90
    suffix: _x
    arms:
      plain: {}
      control: {beta: 1.0}
      A: {beta: 1.0, ref_reset_every: 40}
"""
STEPS = np.arange(1, 91)
RESETS = {1: (41, 61), 2: (41,)}  # by base seed: the steps before whose batch a reset came


@pytest.fixture(scope="module")
def tables(add):
    """Rewards rise by a tenth a step, and by a fifth on base 2; the KL is the step."""
    made = Tables()
    for arm in ("plain", "control", "A"):
        for seed in (1, 2):
            events = ["periodic" if arm == "A" and step in RESETS[seed] else "" for step in STEPS]
            curve = {"reward": list(0.1 * seed * STEPS), "kl_ref": list(STEPS + 0.0), "event": events}
            if arm == "A":
                curve["grad_norm"] = list(2.0 * STEPS)
            add(made, RunKey("reverse_digits", f"{arm}_x", seed, seed, 90), variant=arm, curve=curve)
    return made


@pytest.fixture
def block(study):
    (block,) = read_matrix(study(MATRIX)).blocks
    return block


def test_mean_and_band_over_the_resets_of_all_runs(block, tables):
    reward, kl, norm, updates = around_resets(block, tables).axes
    lines = {line.get_label(): line for line in kl.lines}
    assert set(lines) >= {"control_x, at the same steps", "A_x: 3 resets"}
    mean = dict(zip(*lines["A_x: 3 resets"].get_data(), strict=True))
    assert list(mean) == list(range(-9, 21))
    # The last steps before the resets are 40, 60 and 40; beyond the next reset, that of step 61, nothing counts.
    assert mean[0] == pytest.approx(140 / 3)
    assert mean[1] == pytest.approx(143 / 3)
    assert mean[-9] == pytest.approx((31 + 51 + 31) / 3)
    corners = kl.collections[0].get_paths()[0].vertices
    at_reset = corners[corners[:, 0] == 0.0][:, 1]
    assert (at_reset.min(), at_reset.max()) == pytest.approx((40.0, 56.0))  # 40, 40 + 0.8 · 20
    # A reward less its mean of ten steps: 4.5 of its own steps at step 0, one more at step 1.
    gains = dict(zip(*reward.lines[1].get_data(), strict=True))
    assert gains[0] == pytest.approx((0.1 * 4.5 * 2 + 0.2 * 4.5) / 3)
    assert gains[1] == pytest.approx((0.1 * 5.5 * 2 + 0.2 * 5.5) / 3)
    assert norm.lines[0].get_ydata()[9] == pytest.approx(2 * 140 / 3)  # the control's was not measured
    assert not updates.collections


def test_the_control_is_drawn_at_the_resets_of_the_same_pair(block, tables):
    kl = around_resets(block, tables).axes[1]
    control, arm = kl.lines[:2]
    assert control.get_ydata() == pytest.approx(arm.get_ydata())
    assert "plain_x" not in " ".join(line.get_label() for line in kl.lines)


def test_an_arm_with_resets_of_its_own_is_drawn_at_these(tables):
    """Whichever arm is drawn bold: the others may reset at other steps."""
    keys = pd.Series([RunKey("reverse_digits", "A_x", seed, seed, 90) for seed in (1, 2)])
    assert aligned_metric(tables, keys, "kl_ref", resetting="control_x")[:, 9].tolist() == [40.0, 60.0, 40.0]


def test_without_a_reset_there_is_no_picture(block, tables):
    names = [key for key in tables.runs.index if key[1] == "A_x"]
    assert around_resets(block, tables.without(RunKey(*key) for key in names)) is None
    assert around_resets(block, Tables()) is None
