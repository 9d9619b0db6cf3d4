import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protoflows.prototypes import densities
from protoflows.prototypes.densities import gaussian_log_prob


def reference(z, mean, std, weight=None):
    terms = torch.distributions.Normal(mean.double(), std.double()).log_prob(z.double()[:, None])
    return terms.sum(-1) if weight is None else (weight.double()[:, None] * terms).sum(-1)


def draw(n, p, d, dtype=torch.float32, seed=0):
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(n, d, generator=g, dtype=dtype)
    mean = torch.randn(p, d, generator=g, dtype=dtype)
    std = 0.3 + torch.rand(p, d, generator=g, dtype=dtype)
    weight = torch.bernoulli(torch.full((n, d), 0.7, dtype=dtype), generator=g) / 0.7
    return z, mean, std, weight


def test_hand_worked():
    # N(1; 0, 2^2) N(3; 3, 1): -1/8 - log 2 - log 2 pi
    got = gaussian_log_prob(
        torch.tensor([[1.0, 3.0]]), torch.tensor([[0.0, 3.0]]), torch.tensor([[2.0, 1.0]])
    )
    assert got.item() == pytest.approx(-0.125 - math.log(2) - math.log(2 * math.pi), abs=1e-12)


@settings(max_examples=30, deadline=None)
@given(n=st.integers(0, 7), p=st.integers(1, 6), d=st.integers(1, 200), weighted=st.booleans())
def test_equals_broadcast_reference(n, p, d, weighted):
    z, mean, std, weight = draw(n, p, d)
    weight = weight if weighted else None
    got = gaussian_log_prob(z, mean, std, weight)
    assert got.dtype == torch.float64
    torch.testing.assert_close(got, reference(z, mean, std, weight), rtol=0, atol=1e-8)


@pytest.mark.parametrize("spread", [1.0, 30.0])
def test_within_a_hundredth_of_a_nat_with_far_means_and_unequal_stds(spread):
    g = torch.Generator().manual_seed(1)
    p, d = 24, 4928
    # One std per prototype, over three orders of magnitude: means are up to 10^4 stds apart.
    std = 10 ** (3 * torch.rand(p, 1, generator=g) - 2) * (1 + torch.rand(p, d, generator=g))
    mean = 100.0 + spread * torch.randn(p, d, generator=g) * std.mean()
    z = mean + std * torch.randn(p, d, generator=g)
    expected = reference(z, mean, std)
    assert expected.min() < -1e6  # the expansion does have something to cancel
    assert (gaussian_log_prob(z, mean, std) - expected).abs().max() < 0.01


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("one_block", [True, False])
def test_gradients_exact(weighted, one_block, monkeypatch):
    if not one_block:
        monkeypatch.setattr(densities, "BLOCK_NUMBERS", 1)
        monkeypatch.setattr(densities, "MIN_BLOCK_DIMS", 2)
    z, mean, std, weight = draw(4, 3, 5, torch.float64)
    inputs = [t.requires_grad_() for t in (z, mean, std)]
    assert torch.autograd.gradcheck(
        lambda *args: gaussian_log_prob(*args, weight if weighted else None), inputs
    )


def test_float32_gradients_with_far_means_match_float64():
    g = torch.Generator().manual_seed(2)
    mean = 30.0 * torch.randn(6, 500, generator=g)
    std = 0.5 + torch.rand(6, 500, generator=g)
    z = mean[:4] + torch.randn(4, 500, generator=g)
    single = [t.clone().requires_grad_() for t in (z, mean, std)]
    double = [t.double().requires_grad_() for t in (z, mean, std)]
    gaussian_log_prob(*single).diagonal().sum().backward()
    reference(*double).diagonal().sum().backward()
    for a, b in zip(single, double, strict=True):
        assert a.grad.dtype == torch.float32
        torch.testing.assert_close(a.grad.double(), b.grad, rtol=1e-6, atol=1e-6)


def test_gradient_of_z_alone():
    z, mean, std, _ = draw(3, 2, 4)
    z.requires_grad_()
    (grad,) = torch.autograd.grad(gaussian_log_prob(z, mean, std).sum(), z)
    expected = -((z[:, None] - mean) / std.square()).sum(1)
    torch.testing.assert_close(grad, expected.detach())


@pytest.mark.parametrize("weighted", [False, True])
def test_second_derivatives(weighted):
    z, mean, std, weight = draw(3, 2, 3, torch.float64)
    mean.requires_grad_()
    std.requires_grad_()

    def table(shift, mean, std):  # z depends on the means, as it may where they are trained jointly
        points = z + shift * mean.sum(0)
        return gaussian_log_prob(points, mean, std, weight if weighted else None)

    shift = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(table, (shift, mean, std))
    grad, _ = torch.autograd.grad(table(shift, mean, std).sum(), (mean, std), create_graph=True)
    (plain,) = torch.autograd.grad(table(shift, mean, std).sum(), mean)
    torch.testing.assert_close(grad.detach(), plain)


def test_autocast_does_not_lower_the_precision():
    z, mean, std, _ = draw(3, 2, 300)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = gaussian_log_prob(z, mean, std)
    torch.testing.assert_close(got, reference(z, mean, std), rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    ("z", "mean", "std", "message"),
    [
        ((2, 3), (4, 5), (4, 5), r"\(2, 3\)"),
        ((2, 3), (4, 3), (3, 3), r"\(3, 3\)"),
        ((3,), (4, 3), (4, 3), r"\(3,\)"),
    ],
)
def test_wrong_shapes_are_named(z, mean, std, message):
    with pytest.raises(ValueError, match=message):
        gaussian_log_prob(torch.zeros(z), torch.zeros(mean), torch.ones(std))


def test_wrong_weight_shape_is_named():
    with pytest.raises(ValueError, match="weight"):
        gaussian_log_prob(torch.zeros(2, 3), torch.zeros(1, 3), torch.ones(1, 3), torch.ones(3))
