import math

import pytest
import torch

from protoflows.evaluation.estimate import bootstrap_stderr, mean_estimate, wilson_interval


def test_mean_and_its_error():
    found = mean_estimate(torch.tensor([1.0, 2.0, 6.0]))
    assert found.value == 3
    assert found.stderr == pytest.approx(math.sqrt(7 / 3))  # variance (4 + 1 + 9)/2 = 7
    assert found.scaled(-2) == (-6, pytest.approx(2 * math.sqrt(7 / 3)))


def test_a_single_value_has_no_error():
    assert math.isnan(mean_estimate(torch.ones(1)).stderr)


def test_nothing_has_no_mean():
    with pytest.raises(ValueError, match="values"):
        mean_estimate(torch.zeros(0))


def test_bootstrap_agrees_with_the_formula_and_repeats():
    values = torch.randn(500, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def mean(counts):
        return counts @ values / counts.sum(1)

    found = float(bootstrap_stderr(mean, 500, seed=3, resamples=2000))
    assert found == pytest.approx(mean_estimate(values).stderr, rel=0.1)
    assert float(bootstrap_stderr(mean, 500, seed=3, resamples=2000)) == found
    assert float(bootstrap_stderr(mean, 500, seed=4, resamples=2000)) != found


def test_bootstrap_draws_sets_of_the_same_size(monkeypatch):
    monkeypatch.setattr("protoflows.evaluation.estimate._COUNTS_AT_ONCE", 30)
    seen = []

    def size(counts):
        seen.append(counts)
        return counts.sum(1)

    assert float(bootstrap_stderr(size, 10, seed=0, resamples=7)) == 0
    assert [len(c) for c in seen] == [3, 3, 1]
    assert torch.cat(seen).sum() == 70


def test_wilson():
    # Wilson's interval of 8 in 10 at 95 %: (0.8 + 0.19207) / 1.38415 ± ….
    low, high = wilson_interval(8, 10)
    assert low == pytest.approx(0.49016, abs=1e-5)
    assert high == pytest.approx(0.94332, abs=1e-5)
    assert wilson_interval(0, 5)[0] == 0
    assert wilson_interval(5, 5)[1] == 1
    for wrong in ((3, 2, 0.95), (0, 0, 0.95), (1, 2, 1.0)):
        with pytest.raises(ValueError, match="must be"):
            wilson_interval(*wrong)
