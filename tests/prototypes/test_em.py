import math

import pytest
import torch
from sklearn.mixture import GaussianMixture

from protoflows.prototypes import (
    ClassMixtures,
    EMStatistics,
    PrototypeConfig,
    apply_statistics,
    em_statistics,
    em_step,
    fit_em,
    initialize_mixtures,
)


def problem(c=2, k=3, d=4, n=240, seed=0, dtype=torch.float64, **options):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(c, (n,), generator=g)
    z = 3.0 * torch.randn(c, k, d, generator=g)[y, torch.randint(k, (n,), generator=g)]
    z = (z + torch.randn(n, d, generator=g)).to(dtype)
    mixtures = ClassMixtures(c, d, PrototypeConfig(num_prototypes=k, **options), seed=1).to(dtype)
    return mixtures, z, y


def test_one_step_is_scikit_learns():
    mixtures, z, y = problem(c=1)
    reference = GaussianMixture(
        3,
        covariance_type="diag",
        max_iter=1,
        reg_covar=0.0,
        weights_init=mixtures.weights[0].detach().numpy(),
        means_init=mixtures.mean[0].detach().numpy(),
        precisions_init=1 / mixtures.variance[0].detach().numpy(),
    )
    with pytest.warns(UserWarning, match="converge"):
        reference.fit(z.numpy())
    em_step(mixtures, z, y, momentum=0.0)
    torch.testing.assert_close(mixtures.mean[0].detach(), torch.from_numpy(reference.means_))
    variance = torch.from_numpy(reference.covariances_)
    torch.testing.assert_close(mixtures.variance[0].detach(), variance)
    torch.testing.assert_close(mixtures.weights[0].detach(), torch.from_numpy(reference.weights_))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_full_batch_likelihood_never_falls(dtype):
    mixtures, z, y = problem(dtype=dtype)
    history = fit_em(mixtures, z, y, max_steps=40, tolerance=-1.0)
    steps = torch.tensor(history.log_likelihood).diff()
    assert len(steps) == 40
    assert steps.min() > (-1e-9 if dtype == torch.float64 else -1e-5)
    assert steps.sum() > 0.5
    expected = mixtures.class_log_prob(z).gather(1, y[:, None]).mean().item()
    assert history.log_likelihood[-1] == pytest.approx(expected, abs=1e-6)


def test_converges_and_says_so():
    mixtures, z, y = problem()
    initialize_mixtures(mixtures, z, y, seed=0)
    history = fit_em(mixtures, z, y, max_steps=500, tolerance=1e-6)
    assert history.converged
    assert not fit_em(problem()[0], z, y, max_steps=1, tolerance=1e-6).converged


def test_statistics_of_parts_add_up():
    mixtures, z, y = problem()
    y[:7] = -1
    whole = em_statistics(mixtures, z, y)
    parts = em_statistics(mixtures, z[:100], y[:100]) + em_statistics(mixtures, z[100:], y[100:])
    assert isinstance(parts, EMStatistics)
    for a, b in zip(whole.tensors(), parts.tensors(), strict=True):
        torch.testing.assert_close(a, b)
    assert whole.num_images.item() == pytest.approx(233)


def test_moments_hand_worked():
    mixtures = ClassMixtures(2, 1, PrototypeConfig(num_prototypes=1))
    mixtures.set_mixture(torch.tensor([[[1.0]], [[5.0]]]), torch.ones(2, 1, 1), torch.zeros(2, 1))
    stats = em_statistics(mixtures, torch.tensor([[0.0], [4.0], [9.0]]), torch.tensor([0, 0, -1]))
    assert stats.count.tolist() == [[2.0], [0.0]]
    assert stats.first.flatten().tolist() == [2.0, 0.0]  # -1 + 3
    assert stats.second.flatten().tolist() == [10.0, 0.0]  # 1 + 9
    assert stats.log_likelihood.item() == pytest.approx(-5 - math.log(2 * math.pi))
    apply_statistics(mixtures, stats, momentum=0.75)
    # Blend: first 0.25 * 2/2, second 0.75 * 1 + 0.25 * 10/2, about the old mean 1
    assert mixtures.mean[0].item() == pytest.approx(1.25)
    assert mixtures.variance[0].item() == pytest.approx(2.0 - 0.25**2, rel=1e-5)
    assert mixtures.mean[1].item() == 5.0  # no image of class 1


def test_stepwise_em_approaches_the_full_batch_optimum():
    mixtures, z, y = problem(em_momentum=0.8)
    initialize_mixtures(mixtures, z, y, seed=0)
    mixtures.set_mixture(mixtures.mean + 1.0, 2 * mixtures.std, torch.zeros(2, 3))
    start = mixtures.class_log_prob(z).gather(1, y[:, None]).mean().item()
    full, _, _ = problem()
    full.load_state_dict(mixtures.state_dict())
    best = fit_em(full, z, y).log_likelihood[-1]
    g = torch.Generator().manual_seed(0)
    for _ in range(10):
        for rows in torch.randperm(len(z), generator=g).split(60):
            em_step(mixtures, z[rows], y[rows])
    reached = mixtures.class_log_prob(z).gather(1, y[:, None]).mean().item()
    assert best > start + 0.5
    assert best - 0.05 < reached < best + 1e-3


def test_no_autograd():
    mixtures, z, y = problem()
    z.requires_grad_()
    stats = em_statistics(mixtures, z, y)
    assert not any(t.requires_grad for t in stats.tensors())
    em_step(mixtures, z, y)
    assert all(p.requires_grad and p.grad is None and p.is_leaf for p in mixtures.parameters())


def test_dead_and_masked_prototypes_keep_finite_parameters():
    mixtures, z, y = problem()
    mixtures.set_mask(torch.tensor([[True, True, True], [True, False, True]]))
    with torch.no_grad():
        mixtures.mean[0, 2] = 1e6  # explains nothing
    before = [p.detach().clone() for p in (mixtures.mean, mixtures.std, mixtures.logits)]
    for _ in range(3):
        em_step(mixtures, z, y, momentum=0.0)
    after = [p.detach() for p in (mixtures.mean, mixtures.std, mixtures.logits)]
    assert all(p.isfinite().all() for p in after)
    for old, new in zip(before, after, strict=True):
        torch.testing.assert_close(old[1, 1], new[1, 1])
    torch.testing.assert_close(before[0][0, 2], after[0][0, 2])
    torch.testing.assert_close(before[1][0, 2], after[1][0, 2])
    assert mixtures.weights[0, 2] < 1e-6
    assert mixtures.posterior(z).isfinite().all()


def test_a_single_image_meets_the_floor():
    mixtures, z, y = problem(k=1, min_std=0.05)
    em_step(mixtures, z[:1], y[:1], momentum=0.0)
    torch.testing.assert_close(mixtures.mean[y[0], 0].detach(), z[0])
    torch.testing.assert_close(mixtures.std[y[0], 0].detach(), torch.full((4,), 0.05).double())


def test_batches_without_labels_change_nothing():
    mixtures, z, _ = problem()
    before = {name: value.clone() for name, value in mixtures.state_dict().items()}
    assert math.isnan(em_step(mixtures, z, -torch.ones(len(z)).long()))
    for name, value in mixtures.state_dict().items():
        torch.testing.assert_close(value, before[name])


def test_user_errors_name_the_argument():
    mixtures, z, y = problem()
    with pytest.raises(ValueError, match="momentum"):
        em_step(mixtures, z, y, momentum=1.0)
    with pytest.raises(ValueError, match="labels"):
        em_step(mixtures, z, y + 2)
    with pytest.raises(ValueError, match="unlabelled"):
        fit_em(mixtures, z, -torch.ones(len(z)).long())
    with pytest.raises(ValueError, match="max_steps"):
        fit_em(mixtures, z, y, max_steps=0)
    with pytest.raises(ValueError, match="statistics"):
        apply_statistics(mixtures, em_statistics(*problem(k=2)))
