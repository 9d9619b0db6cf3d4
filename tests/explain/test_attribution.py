import math
from dataclasses import replace

import pytest
import torch

from protoflows.explain.attribution import attribute_classes, attribute_prototypes
from protoflows.flows import Encoding
from tests.model.helpers import small_model, some_images


@pytest.fixture
def model():
    return small_model(num_classes=3, num_prototypes=3, prior=(1.0, 2.0, 5.0))


def encoding_of(model, values):
    """An encoding whose latent is given: what else it holds does not matter here."""
    shape = model.config.flow.latent_shape
    z = values.view(-1, *shape)
    return Encoding(z, torch.zeros(len(z)), (), torch.zeros(len(z)))


def test_cells_by_hand():
    """Unit variances, means 0 and 1 everywhere: a dimension adds z − ½ to the log-odds."""
    model = small_model(num_classes=2, num_prototypes=1)
    mean = torch.zeros_like(model.mixtures.mean)
    mean[0] = 1.0
    model.mixtures.set_mixture(mean, torch.ones_like(mean), torch.zeros(2, 1))
    channels, h, w = model.config.flow.latent_shape
    z = torch.arange(model.mixtures.num_dims, dtype=torch.float32)[None] / 10
    expected = (z - 0.5).view(1, channels, h, w).sum(1).double()
    found = attribute_prototypes(model, encoding_of(model, z), (0, 0), (1, 0))
    torch.testing.assert_close(found.cells, expected, rtol=1e-5, atol=1e-4)
    assert float(found.remainder) == 0
    classes = attribute_classes(model, encoding_of(model, z), 0, 1)
    torch.testing.assert_close(classes.cells, expected, rtol=1e-5, atol=1e-4)
    assert abs(float(classes.entropy)) < 1e-12  # one prototype: nothing to choose between


def test_prototypes_sum_to_log_odds(model):
    enc = model.encode(some_images(5), seed=0)
    found = attribute_prototypes(model, enc, (2, 1), (0, 2))
    table = model.mixtures.log_prob(enc.latent) + model.mixtures.log_weights
    table = table + model.mixtures.log_prior[:, None]
    expected = (table[:, 2, 1] - table[:, 0, 2]).detach()
    torch.testing.assert_close(found.log_odds, expected)
    assert ((found.total - found.log_odds).abs() <= 1e-4 * found.magnitude).all()
    torch.testing.assert_close(found.total, found.log_odds, rtol=1e-9, atol=1e-8)
    torch.testing.assert_close(found.prior, torch.full((5,), math.log(5.0), dtype=torch.float64))
    assert found.entropy.abs().max() == 0


@pytest.mark.parametrize(("variance", "logits"), [(1.0, 1.0), (4.0, 1.0), (1.0, 3.0), (2.5, 0.5)])
def test_classes_sum_to_the_models_own_log_odds(model, variance, logits):
    model.config = replace(model.config, variance_temperature=variance, logit_temperature=logits)
    enc = model.encode(some_images(6), seed=1)
    found = attribute_classes(model, enc, 1, 2)
    posterior = model.log_posterior(enc).detach()
    torch.testing.assert_close(found.total, posterior[:, 1] - posterior[:, 2])
    assert ((found.total - found.log_odds).abs() <= 1e-4 * found.magnitude).all()
    # Two classes of three prototypes: entropies lie between −log 3 and log 3.
    assert (found.entropy.abs() <= math.log(3) / logits + 1e-9).all()


def test_log_odds_are_antisymmetric_and_switched_off_prototypes_do_not_matter(model):
    edited = model.with_prototypes(disable=[(1, 0), (2, 2)])
    enc = edited.encode(some_images(4), seed=2)
    there, back = attribute_classes(edited, enc, 1, 2), attribute_classes(edited, enc, 2, 1)
    torch.testing.assert_close(there.cells, -back.cells)
    assert there.total.isfinite().all()
    torch.testing.assert_close(there.total, there.log_odds)


def test_refuses_what_is_not_there(model):
    enc = model.encode(some_images(1), seed=0)
    with pytest.raises(ValueError, match="target must be a class in 0…2, got 7"):
        attribute_classes(model, enc, 7, 0)
    with pytest.raises(ValueError, match="prototype must be one that class 1 has"):
        attribute_prototypes(model, enc, (0, 0), (1, 9))
