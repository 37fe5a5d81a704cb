"""What an arm did to its training, from curves whose answer is known; and all families in one number."""

import numpy as np
import pytest

from study.matrix import RunKey, read_matrix
from study.scores import aggregates, training
from study.tables import Tables
from trl_prorl.eval.analysis.resets import reset_responses


MATRIX = """
evaluation: {prompts: 4, samples: 8, drift_samples: 2}
blocks:
  core:
    families: [reverse_digits, sorting]
    pairs: [[1, 1], [2, 2]]
    steps: 100
    suffix: _x
    arms:
      plain: {}
      control: {beta: 1.0}
      A: {beta: 1.0, ref_reset_every: 40}
      C_step: {beta: 1.0, ref_reset_every: 40, optimizer_reset: step}
      B: {beta_old: 1.0}
"""
ARMS = {"plain": 1.0, "control": 1.0, "A": 2.0, "C_step": 1.2}  # norm of updates; B has no run


@pytest.fixture
def made(study, add):
    (block,) = read_matrix(study(MATRIX, ("reverse_digits", "sorting"))).blocks
    tables = Tables()
    steps = np.arange(1, 101)
    for arm, norm in ARMS.items():
        for seed in (1, 2):
            even = steps % 2 == 0  # the second pass over a batch
            curve = {"update_norm": norm, "entropy": 0.1, "kl_ref": np.full(100, 0.02)}
            curve["kl_old"] = np.where(steps == 50, 1000.0, 0.001 * even)
            curve["clip_region_mean"] = 0.01 * seed * even
            curve["reward"] = 0.5 if arm == "control" else 0.5 + 0.004 * steps
            if arm in ("A", "C_step"):
                curve["event"] = np.where(np.isin(steps, (41, 81)), "periodic", "")
            if (arm, seed) == ("A", 1):
                curve["kl_ref"][60] = 3.0  # a spike of its own anchor's KL, in one run of two
            row = {"variant": arm[0] if arm[0] in "AC" else arm, "tokens_generated": 100 * seed, "pass@1": 0.1 * seed}
            key = RunKey("reverse_digits", f"{arm}_x", seed, seed, 100)
            add(tables, key, seconds=10.0 * seed**2, curve=curve, **row)
    return block, tables


def test_what_an_arm_did_to_its_training(made):
    found = training(*made).set_index("arm")
    assert list(found.index) == ["plain_x", "control_x", "A_x", "C_step_x"]
    # Of the later passes alone; a median, which one value of 1000 does not move. Means over two runs.
    assert found["kl_old"].tolist() == [0.001] * 4
    assert found["clipped"].tolist() == pytest.approx([0.015] * 4)
    assert found["of"].tolist() == ["plain_x", "plain_x", "plain_x", "A_x"]  # C is held against the arm that keeps
    assert found["size of updates"].tolist() == pytest.approx([0, 0, 1.0, -0.4])
    # The control stalls at once, at step 20: its last 20 steps less steps 1 to 20 are 80 steps, of 0.004 each.
    assert found["gain after clamp"].tolist() == pytest.approx([0.32, 0.0, 0.32, 0.32])
    assert found["KL spikes"].tolist() == [0, 0, 0.5, 0]
    assert found["entropy spikes"].tolist() == [0] * 4
    assert found["tokens/s"].tolist() == pytest.approx([300 / 50] * 4)  # tokens of both runs by seconds of both
    # A reward that rises all the time is back at once; `event` stands at the step after the reset.
    assert np.isnan(found["reconvergence"]["plain_x"])
    assert found["reconvergence"]["A_x"] == 0


def test_resets_are_counted_from_the_steps_done_before_them(made, add):
    """The reward falls with the step that `event` stands at, and is back 20 steps later."""
    block, tables = made
    steps = np.arange(1, 101)
    reward = np.where((steps >= 41) & (steps <= 60), 0.2, 0.5)
    for seed in (1, 2):
        curve = {"reward": reward, "event": np.where(steps == 41, "x", ""), "kl_ref": 0.02, "entropy": 0.1}
        add(tables, RunKey("reverse_digits", "A_x", seed, seed, 100), curve=curve)
    (expected,) = reset_responses(steps, reward, [40])
    assert training(block, tables).set_index("arm")["reconvergence"]["A_x"] == expected.reconvergence == 20


def test_all_families_in_one_row(made, add):
    """By hand: of four values, a quarter at each end is one."""
    block, tables = made
    values = {"plain": (0.30, 0.10), "A": (0.40, 0.10), "control": (0.20, 0.05), "C_step": (0.31, 0.12)}
    for arm, scores in values.items():
        for seed, score in enumerate(scores, start=1):
            add(tables, RunKey("sorting", f"{arm}_x", seed, seed, 100), **{"pass@1": score})
    found = aggregates(block, tables)
    # reverse_digits has 0.1 and 0.2 in every arm: ties. Four cells: plain 0.1, 0.1, 0.2, 0.3.
    assert list(found.index) == ["plain_x", "control_x", "A_x", "C_step_x"]
    assert set(found["cells"]) == {4}
    assert found["IQM"].tolist() == pytest.approx([0.15, 0.15, 0.15, 0.16])
    assert found["above"].tolist() == [2, 1, 2.5, 3]
    assert found["mean"]["A_x"] == pytest.approx(0.2)
