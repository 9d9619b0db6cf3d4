import math
import warnings

import pytest
import torch

from protoflows.prototypes import ClassMixtures, PrototypeConfig, initialize_mixtures


def clusters(sizes, d=3, spread=0.1, seed=0):
    """Well-separated clusters: class c's k-th lies around 10 (K c + k) in every dimension."""
    g = torch.Generator().manual_seed(seed)
    points, labels = [], []
    width = max(len(s) for s in sizes)
    for c, members in enumerate(sizes):
        for k, n in enumerate(members):
            points.append(10.0 * (width * c + k) + spread * torch.randn(n, d, generator=g))
            labels += [c] * n
    return torch.cat(points), torch.tensor(labels)


def make(c=2, k=2, d=3, **options):
    return ClassMixtures(c, d, PrototypeConfig(num_prototypes=k, **options))


def test_kmeans_finds_clusters_spreads_and_weights():
    z, y = clusters([(60, 20), (30, 50)])
    mixtures = make()
    initialize_mixtures(mixtures, z, y, seed=0)
    for c, members in enumerate([(60, 20), (30, 50)]):
        order = mixtures.mean[c, :, 0].argsort()
        centres = mixtures.mean[c, order]
        start = 0 if c == 0 else 80
        own = torch.split(z[start : start + 80], list(members))
        expected = torch.stack([part.mean(0) for part in own])
        torch.testing.assert_close(centres, expected, rtol=0, atol=1e-4)
        shares = torch.tensor(members) / 80
        torch.testing.assert_close(mixtures.weights[c, order], shares)
    # Shrinkage borrows 10 members that count the total spread: 0.1 grows, but not to 10.
    assert mixtures.std.min() > 0.08
    assert mixtures.std.max() < 3
    assert mixtures.mask.all()
    assert (mixtures.posterior(z).argmax(1) == y).all()


def test_cluster_variance_is_shrunk_as_documented():
    # One dimension, one class, one cluster of four points: 0, 0, 2, 2. Within square: 4.
    mixtures = make(c=1, k=1, d=1)
    z = torch.tensor([[0.0], [0.0], [2.0], [2.0]])
    initialize_mixtures(mixtures, z, torch.zeros(4).long(), 0)
    pooled = (4 + 10 * 1.0) / (3 + 10)  # spread^2 is 1
    own = (4 + 10 * pooled) / (3 + 10)
    assert mixtures.variance.item() == pytest.approx((4 + 10 * own) / (4 + 10), rel=1e-5)
    assert mixtures.mean.item() == pytest.approx(1.0)


def test_seed_decides():
    z, y = clusters([(9, 9), (9, 9)], spread=4.0)
    means = []
    for seed in (1, 1, 2):
        mixtures = make(k=4)
        initialize_mixtures(mixtures, z, y, seed)
        means.append(mixtures.mean.detach().clone())
    assert torch.equal(means[0], means[1])
    assert not torch.equal(means[0], means[2])


def test_unlabelled_images_do_not_move_the_centres():
    z, y = clusters([(20, 20), (20, 20)])
    far = torch.full((5, 3), 500.0)
    mixtures = make()
    initialize_mixtures(mixtures, torch.cat([z, far]), torch.cat([y, -torch.ones(5).long()]), 0)
    assert mixtures.mean.max() < 50


def test_fewer_images_than_prototypes_repeats_them_jittered():
    z = torch.tensor([[0.0, 0.0, 0.0], [9.0, 9.0, 9.0], [1.0, 1.0, 1.0]])
    mixtures = make(c=3, k=5)
    with pytest.warns(UserWarning, match=r"num_prototypes=5.*\{0: 2, 1: 1, 2: 0\}"):
        initialize_mixtures(mixtures, z, torch.tensor([0, 0, 1]), 0)
    assert mixtures.mask.all()
    assert len(mixtures.mean.flatten(0, 1).unique(dim=0)) == 15  # no exact copies
    assert all(p.isfinite().all() for p in mixtures.parameters())
    # Points 0 and 9 have 3 and 2 prototypes; each point keeps half the class's weight.
    near_zero = mixtures.mean[0].mean(dim=1) < 4.5
    assert near_zero.sum() in (2, 3)
    assert mixtures.weights[0, near_zero].sum().item() == pytest.approx(0.5, abs=1e-5)


def test_identical_embeddings_do_not_collapse():
    mixtures = make(c=2, k=3)
    with pytest.warns(UserWarning, match="jittered"):
        initialize_mixtures(mixtures, torch.ones(40, 3), torch.arange(40) % 2, 0)
    # initial_std = 1 stands in for the spread that does not exist, and is shrunk three times.
    variance = 10 * (10 * (10 / 48) / 29) / 30
    torch.testing.assert_close(mixtures.variance, torch.full((2, 3, 3), variance))
    assert mixtures.posterior(torch.ones(2, 3)).isfinite().all()


def test_constant_dimensions_start_above_the_floor():
    z, y = clusters([(30,), (30,)])
    z[:, 1] = 4.0
    mixtures = make(k=1, min_std=1e-3)
    initialize_mixtures(mixtures, z, y, 0)
    torch.testing.assert_close(mixtures.std[..., 1], torch.full((2, 1), 2e-3))


def test_random_start_has_the_spread_of_the_data():
    g = torch.Generator().manual_seed(0)
    z = 5.0 + torch.tensor([1.0, 3.0]) * torch.randn(500, 2, generator=g)
    mixtures = make(c=4, k=200, d=2, init="random", initial_std=0.5)
    initialize_mixtures(mixtures, z, torch.arange(500) % 4, 0)
    spread = z.std(0, correction=0)
    torch.testing.assert_close(mixtures.std, (0.5 * spread).expand(4, 200, 2))
    drawn = mixtures.mean.flatten(0, 1)
    torch.testing.assert_close(drawn.mean(0), z.mean(0), rtol=0.05, atol=0.1)
    torch.testing.assert_close(drawn.std(0), spread, rtol=0.1, atol=0)
    torch.testing.assert_close(mixtures.weights, torch.full((4, 200), 1 / 200))


def test_priors():
    z, y = clusters([(30,), (10,)])
    uniform, empirical, given = (make(k=1, prior=p) for p in ("uniform", "empirical", (0.9, 0.1)))
    for mixtures in (uniform, empirical, given):
        initialize_mixtures(mixtures, z, y, 0)
    assert uniform.log_prior.exp().tolist() == pytest.approx([0.5, 0.5])
    assert empirical.log_prior.exp().tolist() == pytest.approx([0.75, 0.25])
    assert given.log_prior.exp().tolist() == pytest.approx([0.9, 0.1])
    absent = make(c=3, k=1, prior="empirical")
    with pytest.warns(UserWarning, match="jittered"):
        initialize_mixtures(absent, z, y, 0)
    assert absent.log_prior.exp().tolist() == pytest.approx([30 / 41, 10 / 41, 1 / 41])


def test_image_shaped_latents_and_no_needless_warning():
    z, y = clusters([(20, 20), (20, 20)], d=12)
    flat, shaped = make(d=12), make(d=12)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        initialize_mixtures(flat, z, y, 0)
        initialize_mixtures(shaped, z.view(-1, 3, 2, 2), y, 0)
    assert torch.equal(flat.mean, shaped.mean)


@pytest.mark.parametrize(
    ("z", "y", "message"),
    [
        (torch.zeros(4, 2), torch.zeros(4).long(), "z must be"),
        (torch.zeros(4, 3), torch.zeros(3).long(), "labels must have shape"),
        (torch.zeros(4, 3), torch.zeros(4), "labels must be integers"),
        (torch.zeros(4, 3), torch.tensor([0, 1, 2, 0]), r"labels must lie in -1\.\.1"),
        (torch.zeros(4, 3), torch.tensor([0, 1, -2, 0]), r"labels must lie in -1\.\.1"),
        (torch.zeros(4, 3), -torch.ones(4).long(), "unlabelled"),
        (torch.full((4, 3), math.nan), torch.zeros(4).long(), "embeddings must be finite"),
    ],
)
def test_user_errors_name_the_argument(z, y, message):
    with pytest.raises(ValueError, match=message):
        initialize_mixtures(make(), z, y, 0)
