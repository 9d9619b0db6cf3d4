import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protoflows.prototypes import (
    ClassMixtures,
    PrototypeConfig,
    diversity_loss,
    hellinger,
    modified_hellinger,
    pairwise_modified_hellinger,
)


def draw(p, d, seed=0, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    mean = torch.randn(p, d, generator=g, dtype=dtype)
    return mean, 0.2 + torch.rand(p, d, generator=g, dtype=dtype)


def literal(m1, s1, m2, s2):
    """The paper's formula as it stands, determinants and all (few dimensions, float64)."""
    d = len(m1)
    c1, c2 = torch.diag(s1**2), torch.diag(s2**2)
    middle = (c1 + c2) / 2
    ratio = torch.det(c1 @ c2) ** (1 / (4 * d)) / torch.det(middle) ** (1 / (2 * d))
    shift = (m1 - m2) @ torch.linalg.inv(middle) @ (m1 - m2)
    return 1 - ratio * torch.exp(-shift / (8 * d))


def test_hand_worked():
    one, two = torch.ones(1), torch.full((1,), 2.0)
    # Same mean, stds 1 and 2: 1 - (1*4)^(1/4) / (5/2)^(1/2)
    got = modified_hellinger(one, one, one, two).item()
    assert got == pytest.approx(1 - math.sqrt(2 / 2.5), abs=1e-7)


@settings(max_examples=30, deadline=None)
@given(d=st.integers(1, 8), seed=st.integers(0, 10**6))
def test_equals_the_formula_as_printed(d, seed):
    mean, std = draw(2, d, seed)
    expected = literal(mean[0], std[0], mean[1], std[1])
    torch.testing.assert_close(modified_hellinger(mean[0], std[0], mean[1], std[1]), expected)


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_thousands_of_dimensions_stay_finite(scale):
    mean, std = draw(2, 5000, dtype=torch.float32)
    got = modified_hellinger(mean[0] * scale, std[0] * scale, mean[1] * scale, std[1] * scale)
    expected = modified_hellinger(mean[0].double(), std[0].double(), mean[1].double(), std[1])
    assert got.item() == pytest.approx(expected.item(), abs=1e-6)  # scaling both changes nothing
    far = modified_hellinger(mean[0], std[0], mean[1] + 1e6, std[1])
    assert far.item() == 1.0


def test_gradients():
    mean, std = (t.requires_grad_() for t in draw(2, 4))
    args = (mean[0], std[0], mean[1], std[1])
    assert torch.autograd.gradcheck(modified_hellinger, [a.detach().requires_grad_() for a in args])
    equal = modified_hellinger(mean[0], std[0], mean[0] + 0.0, std[0] * 1.0)
    equal.backward()
    assert equal.item() == 0
    assert mean.grad.abs().max() == 0
    assert std.grad.abs().max() == 0


@pytest.mark.parametrize("block", [1, 1 << 22])
def test_pairwise(block, monkeypatch):
    monkeypatch.setattr(hellinger, "BLOCK_NUMBERS", block)
    mean, std = draw(7, 5)
    mean[3], std[3] = mean[1], std[1]
    table = pairwise_modified_hellinger(mean, std)
    expected = torch.stack(
        [
            torch.stack([literal(mean[i], std[i], mean[j], std[j]) for j in range(7)])
            for i in range(7)
        ]
    )
    torch.testing.assert_close(table, expected)
    assert torch.equal(table, table.T)
    assert table.diagonal().abs().max() == 0
    assert table[1, 3] == 0
    assert ((table >= 0) & (table <= 1)).all()
    assert pairwise_modified_hellinger(mean[:1], std[:1]).tolist() == [[0.0]]


def make(mask=None, c=3, k=4, d=5):
    mixtures = ClassMixtures(c, d, PrototypeConfig(num_prototypes=k)).double()
    mean, std = draw(c * k, d)
    mixtures.set_mixture(mean.view(c, k, d), std.view(c, k, d), torch.zeros(c, k), mask)
    return mixtures


def test_diversity_is_the_papers_sum():
    mixtures = make()
    total = 0.0
    for c in range(3):
        for i in range(4):
            for j in range(i, 4):
                pair = (mixtures.mean[c, i], mixtures.std[c, i], mixtures.mean[c, j])
                total += literal(*pair, mixtures.std[c, j]).item()
    assert diversity_loss(mixtures).item() == pytest.approx(-2 / (3 * 4 * 3) * total, abs=1e-12)


def test_diversity_of_living_pairs_only():
    mask = torch.tensor([[True, False, True, True], [False, True, False, False], [True] * 4])
    mixtures = make(mask)
    averages = []
    for c in (0, 2):  # class 1 has no pair
        alive = mask[c]
        table = pairwise_modified_hellinger(mixtures.mean[c, alive], mixtures.std[c, alive])
        k = int(alive.sum())
        averages.append((table.sum() / (k * (k - 1))).item())
    loss = diversity_loss(mixtures)
    assert loss.item() == pytest.approx(-sum(averages) / 2, abs=1e-12)
    loss.backward()
    assert mixtures.mean.grad[~mask].abs().max() == 0
    assert mixtures.mean.grad[mask][0].abs().sum() > 0


def test_diversity_in_blocks_is_the_same(monkeypatch):
    results = []
    for block in (1 << 22, 20):
        monkeypatch.setattr(hellinger, "BLOCK_NUMBERS", block)
        mixtures = make()
        loss = diversity_loss(mixtures)
        loss.backward()
        results.append((loss.detach(), mixtures.mean.grad, mixtures.log_std.grad))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)


def test_diversity_of_copies_and_of_single_prototypes_is_zero():
    mixtures = make()
    with torch.no_grad():
        mixtures.mean[:] = mixtures.mean[:, :1].clone()
        mixtures.log_std[:] = mixtures.log_std[:, :1].clone()
    loss = diversity_loss(mixtures)
    loss.backward()
    assert loss.item() == 0
    assert mixtures.mean.grad.isfinite().all()
    single = make(k=1)
    loss = diversity_loss(single)
    loss.backward()
    assert loss.item() == 0
    assert single.mean.grad.abs().max() == 0


def test_wrong_shapes_are_named():
    with pytest.raises(ValueError, match="last dimension"):
        modified_hellinger(torch.zeros(3), torch.ones(3), torch.zeros(1), torch.ones(1))
    with pytest.raises(ValueError, match="mean and std"):
        pairwise_modified_hellinger(torch.zeros(3), torch.ones(3))
