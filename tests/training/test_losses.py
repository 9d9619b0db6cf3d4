import math

import pytest
import torch

from protoflows.prototypes import ClassMixtures, PrototypeConfig, diversity_loss
from protoflows.training import LossConfig, classifier_losses
from protoflows.training.losses import bits_per_dim, mean_over_labelled, ramp

OFF = {"cross_entropy": 1.0, "elbo": 0.0, "consistency": 0.0, "diversity": 0.0}
# log p(x|c) of two images and two classes; the priors are 1/4 and 3/4.
TABLE = torch.tensor([[-10.0, -12.0], [-20.0, -19.0]], dtype=torch.float64)
PRIOR = torch.tensor([0.25, 0.75], dtype=torch.float64).log()
DIMS = 4


def losses(labels, config, **more):
    return classifier_losses(TABLE, PRIOR, torch.tensor(labels), DIMS, config, **more)


def test_cross_entropy_with_priors():
    found = losses([0, 1], LossConfig(**OFF))
    p0 = 0.25 * math.exp(-10) / (0.25 * math.exp(-10) + 0.75 * math.exp(-12))
    p1 = 0.75 * math.exp(-19) / (0.25 * math.exp(-20) + 0.75 * math.exp(-19))
    expected = -(math.log(p0) + math.log(p1)) / 2
    assert float(found.cross_entropy) == pytest.approx(expected, rel=1e-12)
    assert float(found.total) == pytest.approx(expected, rel=1e-12)
    assert (found.elbo, found.consistency, found.diversity) == (None, None, None)


def test_temperature_asks_for_margins_at_the_same_scale():
    found = losses([0, 1], LossConfig(**OFF, temperature=10.0))
    tempered = ((TABLE + PRIOR) / 10).log_softmax(1)
    expected = -10 * (tempered[0, 0] + tempered[1, 1]) / 2
    assert float(found.cross_entropy) == pytest.approx(float(expected), rel=1e-12)
    # An image that is wrong by far pulls as hard at every temperature.
    table = torch.tensor([[-900.0, 0.0]], dtype=torch.float64, requires_grad=True)
    for temperature in (1.0, 10.0):
        config = LossConfig(**OFF, temperature=temperature)
        total = classifier_losses(table, PRIOR, torch.tensor([0]), DIMS, config).total
        (slope,) = torch.autograd.grad(total, table)
        assert slope[0].tolist() == pytest.approx([-1.0, 1.0])


def test_elbo_is_class_conditional_in_bits_per_dim():
    config = LossConfig(**(OFF | {"cross_entropy": 0.0, "elbo": 2.0}))
    found = losses([0, 1], config)
    expected = (10 + 19) / 2 / (4 * math.log(2))
    assert float(found.elbo) == pytest.approx(expected)
    assert float(found.total) == pytest.approx(2 * expected)
    assert found.cross_entropy is None


@pytest.mark.parametrize(("share", "weight"), [(0.0, 2.0), (0.3, 2.0), (0.5, 1.0), (0.9, 0.5)])
def test_elbo_weight_falls_in_the_second_third(share, weight):
    config = LossConfig(**(OFF | {"cross_entropy": 0.0, "elbo": 2.0, "elbo_final": 0.5}))
    found = losses([0, 1], config, share=share)
    assert float(found.total) == pytest.approx(weight * float(found.elbo))


@pytest.mark.parametrize(("start", "final"), [(1.0, 0.0), (1.0, -1.0), (0.0, 0.5)])
def test_elbo_weights_that_cannot_fall_are_refused(start, final):
    with pytest.raises(ValueError, match=r"loss\.elbo_final"):
        LossConfig(elbo=start, elbo_final=final)


def test_unlabelled_images_enter_through_the_marginal():
    config = LossConfig(**(OFF | {"elbo": 1.0}))
    found = losses([0, -1], config)
    marginal = math.log(0.25 * math.exp(-20) + 0.75 * math.exp(-19))
    assert float(found.elbo) == pytest.approx((10 - marginal) / 2 / (4 * math.log(2)))
    p0 = 0.25 * math.exp(-10) / (0.25 * math.exp(-10) + 0.75 * math.exp(-12))
    assert float(found.cross_entropy) == pytest.approx(-math.log(p0))


def test_nothing_labelled_has_no_cross_entropy():
    found = losses([-1, -1], LossConfig(**(OFF | {"elbo": 1.0})))
    assert float(found.cross_entropy) == 0
    assert bool(found.total.isfinite())


def test_consistency_takes_the_second_views_class_and_ramps():
    config = LossConfig(**(OFF | {"consistency": 3.0, "consistency_ramp_epochs": 10.0}))
    second = torch.tensor([1, 1])
    found = losses([0, 1], config, second_view_class=second, epoch=2.5)
    expected = (12 + 19) / 2 / (4 * math.log(2))
    assert float(found.consistency) == pytest.approx(expected)
    assert float(found.total - found.cross_entropy) == pytest.approx(3 * 0.25 * expected)


@pytest.mark.parametrize(("epoch", "factor"), [(0.0, 0.0), (5.0, 0.5), (10.0, 1.0), (70.0, 1.0)])
def test_ramp(epoch, factor):
    assert ramp(epoch, LossConfig(consistency_ramp_epochs=10.0)) == factor


def test_no_ramp_is_full_weight_at_once():
    assert ramp(0.0, LossConfig(consistency_ramp_epochs=0.0)) == 1.0


def test_diversity_pushes_prototypes_apart():
    mixtures = ClassMixtures(2, 3, PrototypeConfig(num_prototypes=2))
    config = LossConfig(**(OFF | {"diversity": 0.5}))
    found = losses([0, 1], config, mixtures=mixtures)
    assert float(found.diversity.detach()) == pytest.approx(
        float(diversity_loss(mixtures).detach())
    )
    assert float(found.diversity.detach()) < 0
    found.total.backward()
    step = -1e-2 * mixtures.mean.grad
    before = (mixtures.mean[0, 0] - mixtures.mean[0, 1]).norm()
    moved = mixtures.mean + step
    assert (moved[0, 0] - moved[0, 1]).norm() > before


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.inf, math.nan])
def test_temperature_is_positive(temperature):
    with pytest.raises(ValueError, match=r"loss\.temperature"):
        LossConfig(temperature=temperature)


def test_label_smoothing():
    found = losses([0, 1], LossConfig(**OFF, label_smoothing=0.5))
    log_posterior = (TABLE + PRIOR).log_softmax(1)
    own = -(log_posterior[0, 0] + log_posterior[1, 1]) / 2
    expected = 0.5 * own - 0.5 * log_posterior.mean()
    assert float(found.cross_entropy) == pytest.approx(float(expected))


def test_terms_that_are_not_finite_are_named():
    table = TABLE.clone()
    table[0, 0] = math.nan
    found = classifier_losses(
        table, PRIOR, torch.tensor([1, 1]), DIMS, LossConfig(**(OFF | {"elbo": 1.0}))
    )
    assert found.not_finite() == ["cross_entropy"]  # class 1 alone enters the elbo


def test_mean_over_labelled_ignores_what_unlabelled_images_hold():
    values = torch.tensor([1.0, math.nan, 3.0])
    assert float(mean_over_labelled(values, torch.tensor([True, False, True]))) == 2.0


def test_bits_per_dim_of_uniform_noise():
    # 5 values of 8 equally likely levels are 3 bits each.
    assert float(bits_per_dim(torch.tensor(-5 * math.log(8)), 5)) == pytest.approx(3.0)
