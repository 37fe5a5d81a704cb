import numpy as np
import pytest
from matplotlib.figure import Figure

from eval.analysis import closeups
from eval.pages import closeups as page
from eval.run_folder.reading import load_run


@pytest.fixture
def arm(make_run, make_rows):
    def make(resets, name="A", variant="A", steps=60, seed=0, **values):
        events = [{"event": "reset", "step_applied": step} for step in resets]
        folder = make_run(name, variant, make_rows(steps, **values), events=events, env={"seed": seed})
        return load_run(folder)

    return make


@pytest.mark.parametrize(
    ("resets", "width"), [([30], 20), ([10, 20, 40], 5), ([10, 21], 5), ([5, 100], 20), ([10, 11], 1), ([7, 7], 20)]
)
def test_window_is_half_of_the_smallest_gap(arm, resets, width):
    assert closeups.window([arm(resets)]) == width


def test_the_reset_lies_between_two_steps(arm):
    """The reset of step 10 is the first thing the policy of step 11 sees: 0 before, KL 0 at offset 1."""
    run = arm([10, 20], kl_ref=lambda step: 0.0 if step in (11, 21) else step / 100)
    cut = closeups.closeup([run], "kl_ref", 2)
    assert list(cut.offsets) == [-1, 0, 1, 2]
    np.testing.assert_allclose(cut.values, [[0.09, 0.10, 0.0, 0.12], [0.19, 0.20, 0.0, 0.22]])
    np.testing.assert_allclose(cut.median(), [0.14, 0.15, 0.0, 0.17])
    assert cut.before() == pytest.approx(np.median([0.09, 0.10, 0.19, 0.20]))
    assert cut.after() == pytest.approx(np.median([0.0, 0.12, 0.0, 0.22]))


def test_beyond_the_record_nothing_is_measured(arm):
    cut = closeups.closeup([arm([2, 59], reward=1.0)], "reward", 4)
    assert np.isnan(cut.values).sum(axis=1).tolist() == [2, 3]  # steps -1 and 0; 61, 62 and 63
    assert not np.isnan(cut.median()).any()


def test_seeds_of_an_arm_are_laid_over_one_another(arm):
    runs = [arm([10, 30], f"s{seed}", seed=seed, reward=float(seed)) for seed in (1, 2)]
    cut = closeups.closeup(runs, "reward", 3)
    assert cut.values.shape == (4, 6)
    assert cut.before() == 1.5
    (curve,) = page.arms_with_resets(runs)
    assert len(curve.runs) == 2


def test_table_by_hand(arm):
    run = arm(
        [10, 20],
        reward=lambda step: 0.2 if step <= 10 else 0.6,
        kl_ref=0.01,
        # 0 in every first pass; before: steps 6, 8, 10, 16, 18 and 20; after: 12, 14, 22 and 24.
        mean_abs_dlogp=lambda step: 0.0 if step % 2 else 0.03 if step in (12, 14, 22, 24) else 0.01,
    )
    table = page.closeup_table([run])
    # Before: five steps at 0.2, five at 0.6; after: all at 0.6. No gradient norm was recorded.
    assert table.rows == [
        ["A", "2", "±5", "0.400 → 0.600", "1.00e-02 → 1.00e-02", "– → –", "1.00e-02 → 3.00e-02", "– → –"]
    ]


def test_a_panel_per_metric_and_arm_with_resets(arm):
    rest = {"entropy": 0.4, "mean_abs_dlogp": 0.01}
    runs = [
        arm([20, 40], reward=lambda step: step / 60, kl_ref=lambda step: step / 1e3, grad_norm=1.0, **rest),
        arm([15, 30, 45], "C", "C", reward=0.5, kl_ref=0.02, grad_norm=2.0, **rest),
        arm([], "B", "B", reward=0.5),
    ]
    panels = page.closeup_panels(runs)
    titles, limits = [], []
    for panel in panels:
        axes = Figure().subplots()
        panel.draw(axes)
        titles.append(axes.get_title())
        limits.append(axes.get_ylim())
        strong = max(axes.lines, key=lambda line: line.get_linewidth())
        assert strong.get_label() == f"median of {2 if titles[-1].startswith('A') else 3} resets"
    assert [title[:2] for title in titles] == ["A:", "C:"] * 5
    assert all(limits[place] == limits[place + 1] for place in range(0, 10, 2))  # arms compare
    first = Figure().subplots()
    panels[0].draw(first)
    strong = max(first.lines, key=lambda line: line.get_linewidth())
    np.testing.assert_allclose(
        strong.get_ydata()[:3], np.array([21, 22, 23]) / 60
    )  # medians of steps 11, 31; 12, 32 …
    assert page.arms_with_resets(runs[2:]) == []


def test_many_resets_and_nothing_measured(arm):
    run = arm(range(2, 2000, 2), steps=2000)
    for panel in page.closeup_panels([run]):
        axes = Figure().subplots()
        panel.draw(axes)
        assert [text.get_text() for text in axes.texts] == ["not measured"]


def test_many_arms_stand_in_rows(arm):
    def titles(runs):
        panels = page.closeup_panels(runs)
        return [panel.alt.split()[-1] for panel in panels], page.closeup_columns(runs)

    runs = [arm([20], f"A{place}", steps=40, reward=0.5) for place in range(5)]
    assert titles(runs[:2]) == (["A0", "A1"] * 5, 2)
    names, columns = titles(runs)
    assert columns == 5
    assert names == [name for place in range(5) for name in [f"A{place}"] * 5]
