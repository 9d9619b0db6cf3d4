import pytest
import torch

from protoflows.explain.informativeness import measure_informativeness
from protoflows.explain.neighbours import find_neighbours
from protoflows.explain.pictures import living_prototypes, picture_prototype, prototype_title
from protoflows.explain.readout import read_out
from protoflows.model import image_seeds
from tests.model.helpers import small_model, some_images


def test_radius_zero_is_the_mean_and_samples_stay_inside():
    model = small_model()
    found = picture_prototype(model, (1, 0), radii=(0.0, 0.5, 3.0), samples=4, seed=1)
    assert found.grid.shape == (3, 4, 1, 4, 4)
    assert (found.grid[0] == found.mean).all()
    assert (found.grid[2] != found.mean).any()
    assert torch.equal(found.mean, model.prototype_mean_image(1, 0))
    again = picture_prototype(model, (1, 0), radii=(0.5,), samples=4, seed=1, batch_size=1)
    assert torch.equal(again.grid[0], found.grid[1])


def test_prototypes_that_are_off_are_not_shown():
    model = small_model().with_prototypes(disable=[(1, 0)], names={(0, 1): "with a bar"})
    assert living_prototypes(model) == [(0, 0), (0, 1), (1, 1), (2, 0), (2, 1)]
    assert living_prototypes(model, 1) == [(1, 1)]
    assert prototype_title(model, (0, 1)) == "with a bar (0 · prototype 1)"
    with pytest.raises(ValueError, match="prototype must be one that class 1 has"):
        picture_prototype(model, (1, 0))
    with pytest.raises(ValueError, match="radii must be numbers"):
        picture_prototype(model, (1, 1), radii=(-1.0,))


def test_neighbours_against_a_full_table():
    model = small_model().with_prototypes(disable=[(2, 0)])
    x = some_images(11)
    found = find_neighbours(model, x, num=3, batch_size=4)
    with torch.no_grad():
        enc = model.encode(x, seed=image_seeds(0, 11, 0, 0))
    z = model.mixtures.flatten(enc.latent)
    table = model.mixtures.log_prob(z).detach()
    distance = (z[:, None, None] - model.mixtures.mean).norm(dim=3).detach()
    for c, k in living_prototypes(model):
        assert found.likeliest[c, k].tolist() == table[:, c, k].topk(3).indices.tolist()
        nearest = distance[:, c, k].topk(3, largest=False)
        assert found.nearest[c, k].tolist() == nearest.indices.tolist()
        torch.testing.assert_close(
            found.distances[c, k].float(), nearest.values, rtol=1e-4, atol=1e-4
        )
    joint = table + model.mixtures.log_weights + model.mixtures.log_prior[:, None]
    counts = joint.flatten(1).argmax(1).bincount(minlength=6)
    assert found.explained.flatten().tolist() == counts.tolist()
    assert found.explained.sum() == 11
    assert found.nearest[2, 0].tolist() == [-1, -1, -1]
    assert find_neighbours(model, x[:2], num=5).nearest.shape == (3, 2, 2)


def test_readout_agrees_with_the_model():
    model, x = small_model(prior=(1.0, 2.0, 3.0)), some_images(5)
    found = read_out(model, x, samples=3, seed=4, batch_size=2)
    proba = model.predict_proba(x, samples=3, seed=4)
    torch.testing.assert_close(found.posterior, proba.double(), rtol=1e-5, atol=1e-7)
    log_prob = model.log_prob(x, samples=3, seed=4).detach()
    torch.testing.assert_close(found.log_prob, log_prob.double(), rtol=1e-5, atol=1e-3)
    shares = found.prototype_posterior
    torch.testing.assert_close(shares.sum((1, 2)), torch.ones(5).double())
    torch.testing.assert_close(shares.sum(2), found.posterior)
    assert (found.log_prob >= found.log_prob_mean).all()
    assert read_out(model, x[:0]).posterior.shape == (0, 3)


def test_informativeness_falls_with_the_radius(trained):
    found = measure_informativeness(trained, radii=(0.0, 8.0), samples=4)
    assert found.class_share.shape == (2, 20)
    assert float(found.class_share[0].mean()) > 0.8  # the means are their class's own
    assert (found.prototype_share.mean(1) <= found.class_share.mean(1) + 1e-9).all()
    assert found.log_prob[0].mean() > found.log_prob[1].mean()
    alone = measure_informativeness(trained, radii=(8.0,), samples=4, prototypes=[(3, 1)])
    assert alone.prototypes == ((3, 1),)
