import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protoflows.prototypes import ClassMixtures, PrototypeConfig


def make(c=3, k=4, d=6, seed=0, mask=None, **options):
    mixtures = ClassMixtures(c, d, PrototypeConfig(num_prototypes=k, **options), seed=seed)
    g = torch.Generator().manual_seed(seed + 1)
    mixtures.set_mixture(
        torch.randn(c, k, d, generator=g),
        0.5 + torch.rand(c, k, d, generator=g),
        torch.randn(c, k, generator=g),
        mask,
    )
    return mixtures


def some_mask():
    return torch.tensor([[True, False, True, True], [False, False, True, False], [True] * 4])


def latents(n=5, d=6, seed=3):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


def test_hand_worked_mixture_and_bayes_rule():
    mixtures = ClassMixtures(2, 1, PrototypeConfig(num_prototypes=2, prior=(0.25, 0.75)))
    mixtures.set_mixture(
        torch.tensor([[[0.0], [2.0]], [[0.0], [0.0]]]),
        torch.ones(2, 2, 1),
        torch.tensor([[math.log(3.0), 0.0], [0.0, 0.0]]),
    )
    n0, n2 = (math.exp(-x * x / 2) / math.sqrt(2 * math.pi) for x in (0.0, 2.0))
    p0, p1 = 0.75 * n0 + 0.25 * n2, n0
    z = torch.zeros(1, 1)
    assert mixtures.class_log_prob(z)[0].tolist() == pytest.approx([math.log(p0), math.log(p1)])
    total = 0.25 * p0 + 0.75 * p1
    expected = [math.log(0.25 * p0 / total), math.log(0.75 * p1 / total)]
    assert mixtures.posterior(z)[0].tolist() == pytest.approx(expected)
    assert mixtures.marginal_log_prob(z).item() == pytest.approx(math.log(total))
    expected = [0.75 * n0 / p0, 0.25 * n2 / p0]
    assert mixtures.responsibilities(z)[0, 0].tolist() == pytest.approx(expected)


@settings(max_examples=25, deadline=None)
@given(c=st.integers(1, 4), k=st.integers(1, 4), d=st.integers(1, 9), n=st.integers(0, 4))
def test_shapes_and_normalisation(c, k, d, n):
    mixtures = make(c, k, d)
    z = latents(n, d)
    assert mixtures.log_prob(z).shape == (n, c, k)
    assert mixtures.class_log_prob(z).shape == (n, c)
    ones = torch.ones(n, dtype=torch.float64)
    torch.testing.assert_close(mixtures.posterior(z).exp().sum(1), ones)
    torch.testing.assert_close(mixtures.responsibilities(z).sum(2), ones[:, None].expand(n, c))
    torch.testing.assert_close(mixtures.weights.sum(1), torch.ones(c))


def test_matches_torch_distributions():
    mixtures = make(mask=some_mask())
    z = latents()
    for c in range(3):
        alive = mixtures.mask[c]
        expected = torch.distributions.MixtureSameFamily(
            torch.distributions.Categorical(logits=mixtures.logits[c, alive].double()),
            torch.distributions.Independent(
                torch.distributions.Normal(
                    mixtures.mean[c, alive].double(), mixtures.std[c, alive].double()
                ),
                1,
            ),
        ).log_prob(z.double())
        torch.testing.assert_close(mixtures.class_log_prob(z)[:, c], expected, rtol=0, atol=1e-5)


def test_image_shaped_latents_are_flattened_in_order():
    mixtures = make(d=24)
    z = latents(5, 24)
    image = z.view(5, 6, 2, 2).contiguous(memory_format=torch.channels_last)
    assert torch.equal(mixtures.log_prob(image), mixtures.log_prob(z))


def test_masked_prototypes_count_for_nothing():
    mixtures = make(mask=some_mask())
    before = mixtures.class_log_prob(latents())
    dead = ~mixtures.mask
    assert torch.equal(mixtures.log_prob(latents()) == -math.inf, dead.expand(5, 3, 4))
    assert torch.equal(mixtures.weights == 0, dead)
    with torch.no_grad():
        mixtures.mean[dead] += 100.0
        mixtures.logits[dead] += 100.0
    torch.testing.assert_close(mixtures.class_log_prob(latents()), before)


@pytest.mark.parametrize("dropout", [0.0, 0.6])
def test_no_nan_gradient_from_masks(dropout):
    mixtures = make(mask=some_mask(), prototype_dropout=dropout, latent_dropout=dropout)
    z = latents().requires_grad_()
    draw = mixtures.draw_dropout(5, torch.Generator().manual_seed(0))
    assert (draw is None) == (dropout == 0)
    loss = -mixtures.posterior(z, draw)[:, 1].sum() - mixtures.class_log_prob(z, draw).sum()
    finite_part = mixtures.log_prob(z, draw)[:, mixtures.mask].sum()
    (loss + finite_part + mixtures.responsibilities(z).square().sum()).backward()
    for tensor in (z, *mixtures.parameters()):
        assert tensor.grad.isfinite().all()
        assert tensor.grad.abs().sum() > 0
    dead = ~mixtures.mask
    for parameter in mixtures.parameters():
        assert parameter.grad[dead].abs().sum() == 0


def test_gradcheck_through_masks():
    mixtures = make(c=2, k=3, d=2).double()
    mixtures.set_mask(torch.tensor([[True, False, True], [True, True, True]]))
    names = ["mean", "log_std", "logits"]

    def posterior(z, *values):
        return torch.func.functional_call(mixtures, dict(zip(names, values, strict=True)), z)

    mixtures.forward = mixtures.posterior
    values = [getattr(mixtures, name).detach().clone().requires_grad_() for name in names]
    z = latents(3, 2).double().requires_grad_()
    assert torch.autograd.gradcheck(posterior, (z, *values))


def test_std_floor_round_trip_and_gradient():
    mixtures = ClassMixtures(1, 4, PrototypeConfig(num_prototypes=1, min_std=1e-3))
    std = torch.tensor([[[1e-3, 2e-3, 1.0, 1e4]]])
    mixtures.set_mixture(torch.zeros(1, 1, 4), std, torch.zeros(1, 1))
    torch.testing.assert_close(mixtures.std, std, rtol=2e-6, atol=0)
    torch.testing.assert_close(mixtures.variance, std**2, rtol=4e-6, atol=0)
    with torch.no_grad():
        mixtures.log_std.fill_(-200.0)
    assert mixtures.std.min() >= 1e-3
    mixtures.class_log_prob(torch.ones(1, 4)).sum().backward()
    assert mixtures.log_std.grad.isfinite().all()


def test_tiny_published_variances_can_be_stored():
    mixtures = ClassMixtures(1, 2, PrototypeConfig(num_prototypes=1, min_std=1e-12))
    std = torch.tensor([[[1.3e-10, 0.7]]])
    mixtures.set_mixture(torch.zeros(1, 1, 2), std, torch.zeros(1, 1))
    torch.testing.assert_close(mixtures.std, std, rtol=5e-6, atol=0)


def test_prototype_dropout_never_empties_a_class_and_renormalises():
    mixtures = make(mask=some_mask(), prototype_dropout=0.7)
    draw = mixtures.draw_dropout(2000, torch.Generator().manual_seed(0))
    assert draw.dims is None
    assert draw.components.any(dim=2).all()
    assert not draw.components[:, ~mixtures.mask].any()
    # Class 2 has 4 living: 0.3 of draws visible, and the largest of 4 hidden ones when all hide.
    expected = 0.3 + 0.7**4 / 4
    assert draw.components[:, 2].double().mean().item() == pytest.approx(expected, abs=0.02)
    z = latents(2000)
    table = mixtures.log_prob(z)
    weights = mixtures.weights.expand_as(table) * draw.components
    weights = weights / weights.sum(2, keepdim=True)
    expected = (weights * table.exp()).sum(2).log()
    torch.testing.assert_close(mixtures.class_log_prob(z, draw), expected, rtol=0, atol=1e-5)


def test_latent_dropout_is_shared_by_prototypes_and_unbiased():
    mixtures = make(latent_dropout=0.5)
    z = latents(1).expand(4000, -1)
    draw = mixtures.draw_dropout(4000, torch.Generator().manual_seed(0))
    assert set(draw.dims.unique().tolist()) == {0.0, 2.0}
    mean = mixtures.log_prob(z, draw).mean(0)
    exact = mixtures.log_prob(z[:1])[0]
    spread = mixtures.log_prob(z, draw).std(0) / math.sqrt(4000)
    assert ((mean - exact).abs() < 4 * spread).all()
    same = mixtures.log_prob(z, draw._replace(dims=torch.zeros_like(draw.dims)))
    assert same.abs().max() == 0


def test_dropout_is_off_in_eval_and_reproducible():
    mixtures = make(prototype_dropout=0.5, latent_dropout=0.5)
    a, b = (mixtures.draw_dropout(8, torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(a.components, b.components)
    assert torch.equal(a.dims, b.dims)
    assert mixtures.eval().draw_dropout(8, torch.Generator()) is None


def test_save_load_and_repr():
    mixtures = make(mask=some_mask(), prior=(1.0, 2.0, 5.0))
    other = ClassMixtures(3, 6, mixtures.config, seed=9)
    other.load_state_dict(copy.deepcopy(mixtures.state_dict()))
    assert torch.equal(other.posterior(latents()), mixtures.posterior(latents()))
    assert "alive=8/12" in repr(mixtures)
    assert "num_dims=6" in repr(mixtures)
    assert other.num_alive.tolist() == [3, 1, 4]


def test_loading_a_class_without_prototypes_is_refused():
    mixtures = make()
    state = mixtures.state_dict()
    state["mask"] = torch.zeros_like(state["mask"])
    with pytest.raises(ValueError, match="mask"):
        make().load_state_dict(state)


def test_sixteen_bit_casts_leave_the_parameters_wide():
    mixtures = make()
    expected = mixtures.posterior(latents())
    mixtures.to(torch.bfloat16)
    assert mixtures.mean.dtype == mixtures.log_prior.dtype == torch.float32
    assert torch.equal(mixtures.posterior(latents()), expected)
    assert mixtures.double().mean.dtype == torch.float64


def test_same_seed_same_start():
    config = PrototypeConfig(num_prototypes=2)
    first, same, other = (ClassMixtures(2, 3, config, seed=s) for s in (1, 1, 2))
    assert torch.equal(first.mean, same.mean)
    assert not torch.equal(first.mean, other.mean)


def test_user_errors_name_the_argument():
    mixtures = make()
    good = {
        "mean": torch.zeros(3, 4, 6),
        "std": torch.ones(3, 4, 6),
        "logits": torch.zeros(3, 4),
        "mask": torch.ones(3, 4, dtype=torch.bool),
    }
    bad = {
        "mean": [torch.zeros(3, 4, 5), torch.full((3, 4, 6), math.nan)],
        "std": [torch.zeros(3, 4, 6), torch.ones(1)],
        "logits": [torch.full((3, 4), -math.inf)],
        "mask": [torch.ones(3, 4), torch.zeros(3, 4, dtype=torch.bool)],
    }
    before = mixtures.state_dict()
    before = {name: value.clone() for name, value in before.items()}
    for name, values in bad.items():
        for value in values:
            with pytest.raises(ValueError, match=name):
                mixtures.set_mixture(**{**good, name: value})
    assert all(torch.equal(before[name], v) for name, v in mixtures.state_dict().items())
    with pytest.raises(ValueError, match=r"classes \[1\]"):
        mixtures.set_mask(torch.tensor([[True] * 4, [False] * 4, [True] * 4]))
    for prior in (torch.ones(2), torch.tensor([1.0, 0.0, 1.0])):
        with pytest.raises(ValueError, match="prior"):
            mixtures.set_prior(prior)
    for z in (torch.zeros(5), torch.zeros(5, 7), torch.zeros(5, 6, dtype=torch.long)):
        with pytest.raises(ValueError, match="z must be"):
            mixtures.log_prob(z)
    with pytest.raises(ValueError, match="num_dims"):
        ClassMixtures(2, 0)
    with pytest.raises(ValueError, match="prior"):
        ClassMixtures(2, 3, PrototypeConfig(prior=(1.0, 1.0, 1.0)))
