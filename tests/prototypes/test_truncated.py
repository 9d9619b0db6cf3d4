import math

import pytest
import torch
from scipy import stats

from protoflows.prototypes import sample_truncated_normal


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("radius", [1e-6, 0.5, 1.0, 2.0, 6.0, 12.0])
def test_distribution(radius):
    draw = sample_truncated_normal((40_000,), radius, generator(), dtype=torch.float64)
    assert draw.abs().max() <= radius
    exact = stats.truncnorm(-radius, radius)
    assert stats.kstest(draw.numpy(), exact.cdf).pvalue > 1e-3
    # Var = 1 - 2 r phi(r) / (2 Phi(r) - 1); below about 1e-3 it is r^2 / 3
    density = math.exp(-(radius**2) / 2) / math.sqrt(2 * math.pi)
    mass = math.erf(radius / math.sqrt(2))
    variance = 1 - 2 * radius * density / mass if radius > 1e-3 else radius**2 / 3
    assert draw.mean().item() == pytest.approx(0, abs=4 * math.sqrt(variance / 40_000))
    assert draw.var().item() == pytest.approx(variance, rel=0.03)


def test_no_mass_on_the_edge():
    draw = sample_truncated_normal((100_000,), 1.0, generator(), dtype=torch.float64)
    assert (draw.abs() == 1.0).sum() == 0
    assert len(draw.unique()) == len(draw)


@pytest.mark.parametrize("radius", [None, math.inf])
def test_no_truncation_is_the_plain_normal(radius):
    draw = sample_truncated_normal((3, 5), radius, generator(1))
    assert torch.equal(draw, torch.randn(3, 5, generator=generator(1)))


def test_zero_radius_shape_dtype_and_seed():
    assert torch.equal(sample_truncated_normal((2, 3), 0.0, generator()), torch.zeros(2, 3))
    a, b = (sample_truncated_normal((4, 2), 0.7, generator(3)) for _ in range(2))
    assert torch.equal(a, b)
    assert a.dtype == torch.float32
    assert sample_truncated_normal((0,), 0.7, generator()).shape == (0,)


def test_extreme_uniforms_stay_finite(monkeypatch):
    monkeypatch.setattr(
        torch, "rand", lambda *_, dtype, **__: torch.tensor([0.0, 1 - 2.0**-53], dtype=dtype)
    )
    draw = sample_truncated_normal((2,), 40.0, generator(), dtype=torch.float64)
    assert draw[0].item() == pytest.approx(-stats.norm.isf(2.0**-54), rel=1e-3)
    assert draw[1].item() == pytest.approx(stats.norm.isf(2.0**-53), rel=2e-2)


@pytest.mark.parametrize("radius", [-1.0, math.nan])
def test_bad_radius_is_named(radius):
    with pytest.raises(ValueError, match="radius"):
        sample_truncated_normal((1,), radius, generator())
