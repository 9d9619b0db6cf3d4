import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchmetrics.functional.classification import multiclass_calibration_error

from protoflows.evaluation.calibration_error import bin_of, calibration_error, reliability
from tests.evaluation.helpers import random_labels, random_proba


def two_classes(*confidence: float) -> torch.Tensor:
    top = torch.tensor(confidence, dtype=torch.float64)
    return torch.stack([top, 1 - top], dim=1)


def test_by_hand():
    # Two bins: {0.6, 0.7} in [0.5, 0.75) right once, {0.9, 0.8} in [0.75, 1] right twice.
    proba, labels = two_classes(0.6, 0.7, 0.9, 0.8), torch.tensor([0, 1, 0, 0])
    found = calibration_error(proba, labels, num_bins=4)
    assert found.ece.value == pytest.approx(0.5 * 0.15 + 0.5 * 0.15)
    assert found.mce.value == pytest.approx(0.15)
    bins = reliability(proba, labels, num_bins=4)
    assert bins.counts.tolist() == [0, 0, 2, 2]
    assert bins.confidence[2:].tolist() == pytest.approx([0.65, 0.85])
    assert bins.accuracy[2:].tolist() == pytest.approx([0.5, 1.0])
    assert bins.accuracy[:2].isnan().all()


def test_the_last_bin_is_closed():
    """Confidences of 1 share a bin with those just below: their errors can cancel there."""
    proba, labels = two_classes(1.0, 1.0, 0.96, 0.96), torch.tensor([0, 1, 0, 0])
    found = calibration_error(proba, labels)
    gap = abs(3 / 4 - (1 + 1 + 0.96 + 0.96) / 4)
    assert found.ece.value == pytest.approx(gap)
    assert found.mce.value == pytest.approx(gap)
    assert reliability(proba, labels).counts.tolist() == [0] * 14 + [4]
    # A bin of its own for 1.0 would have made it |1/2 − 1| there.
    assert found.mce.value != pytest.approx(0.5)


def test_all_certain_and_half_wrong():
    found = calibration_error(two_classes(1.0, 1.0), torch.tensor([0, 1]))
    assert (found.ece.value, found.mce.value) == (0.5, 0.5)


def test_edges_belong_to_the_bin_above():
    assert bin_of(torch.tensor([0.0, 0.2, 0.4, 0.999, 1.0]), 5).tolist() == [0, 1, 2, 4, 4]
    edges = torch.linspace(0, 1, 16, dtype=torch.float64)
    assert bin_of(edges, 15).tolist() == [*range(15), 14]


@given(st.integers(1, 60), st.integers(2, 8), st.integers(0, 99), st.sampled_from([5, 10, 15]))
def test_against_torchmetrics_where_it_is_right(num, classes, seed, bins):
    """Without confidences of exactly 1, which it counts into an extra bin."""
    proba, labels = random_proba(num, classes, seed), random_labels(num, classes, seed + 1)
    assert proba.max() < 1
    found = calibration_error(proba, labels, bins)
    for norm, value in (("l1", found.ece.value), ("max", found.mce.value)):
        expected = multiclass_calibration_error(proba, labels, classes, bins, norm)
        assert value == pytest.approx(float(expected), abs=1e-6)


def test_errors_are_bootstrapped_from_the_seed():
    proba, labels = random_proba(300, 4), random_labels(300, 4)
    found = calibration_error(proba, labels, seed=1)
    assert found == calibration_error(proba, labels, seed=1)
    assert found.ece.stderr != calibration_error(proba, labels, seed=2).ece.stderr
    assert 0 < found.ece.stderr < 0.1
    assert math.isfinite(found.mce.stderr)


def test_rounding_above_one_is_forgiven_and_nonsense_is_not():
    above = torch.tensor([[1 + 2e-16, 0.0]], dtype=torch.float64)
    assert calibration_error(above, torch.tensor([0])).ece.value == 0
    with pytest.raises(ValueError, match="confidence must be in"):
        calibration_error(torch.tensor([[1.2, -0.2]]), torch.tensor([0]))
    with pytest.raises(ValueError, match="num_bins"):
        reliability(above, torch.tensor([0]), 0)
