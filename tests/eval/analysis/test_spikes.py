import numpy as np
import pytest

from eval.analysis.stability import ENTROPY_SPIKE, KL_SPIKE, SpikeRule, find_spikes, neighbour_medians


RULE = SpikeRule(factor=10.0, rise=0.01)


def flat(steps=60, value=0.01, **changes):
    values = np.full(steps, value)
    for place, other in changes.items():
        values[int(place[1:])] = other
    return values


def test_one_high_step_is_one_spike_and_its_height_is_a_multiple_of_its_neighbours():
    found = find_spikes(flat(_30=0.4), RULE)
    assert found.places.tolist() == [30]
    assert found.largest == pytest.approx(40)


@pytest.mark.parametrize(("height", "count"), [(0.0999, 0), (0.1, 1)])
def test_the_factor_is_ten(height, count):
    assert find_spikes(flat(_30=height), RULE).count == count


def test_a_multiple_of_next_to_nothing_is_none():
    assert find_spikes(flat(value=1e-6, _30=1e-3), RULE).count == 0
    assert find_spikes(flat(value=1e-6, _30=0.0101), RULE).count == 1


def test_high_steps_in_a_row_are_one_spike_told_by_the_highest():
    found = find_spikes(flat(_30=0.2, _31=0.7, _32=0.3, _50=0.5), RULE)
    assert found.places.tolist() == [31, 50]
    assert found.ratios == pytest.approx([70, 50])


def test_what_is_zero_by_construction_neither_parts_a_spike_nor_lowers_the_median():
    """The KL to the sampling policy: 0 in every first pass."""
    values = np.where(np.arange(60) % 2, 0.01, 0.0)
    values[[31, 33]] = 0.5
    found = find_spikes(values, RULE)
    assert found.places.tolist() == [31]
    assert found.ratios == pytest.approx([50])


def test_growth_and_resets_are_no_spikes():
    """Tenfold every ten steps; a sawtooth that starts again at 0 every 10 steps."""
    assert find_spikes(0.001 * 10 ** (np.arange(40) / 10), RULE).count == 0
    assert find_spikes(0.01 * (np.arange(100) % 10) ** 2, RULE).count == 0


def test_a_level_that_stays_is_no_spike():
    assert find_spikes(np.concatenate([np.full(30, 0.01), np.full(30, 5.0)]), RULE).count == 0


def test_medians_by_hand():
    # Two on each side would be too few neighbours; with three, of 1 … 8: around the fifth stand 2, 3, 4, 6, 7 and 8.
    medians = neighbour_medians(np.arange(1.0, 9.0), neighbours=3)
    assert medians[4] == 5.0
    # Around the third stand 1, 2, 4, 5 and 6; around the second only 1, 3, 4 and 5.
    assert medians[2] == 4.0
    assert np.isnan(medians[1])


def test_nothing_measured_and_too_short():
    for values in (np.array([]), np.full(30, np.nan), np.array([0.01, 5.0, 0.01])):
        found = find_spikes(values, RULE)
        assert (found.count, found.largest) == (0, None)


def test_infinity_is_a_spike():
    assert find_spikes(flat(_30=np.inf), RULE).largest == np.inf


def test_the_rules_of_the_report():
    assert (KL_SPIKE.factor, KL_SPIKE.rise) == (10.0, 0.01)
    assert find_spikes(flat(value=0.4, _30=0.61), ENTROPY_SPIKE).count == 1
    assert find_spikes(flat(value=0.4, _30=0.59), ENTROPY_SPIKE).count == 0
    assert find_spikes(flat(value=0.05, _30=0.14), ENTROPY_SPIKE).count == 0
