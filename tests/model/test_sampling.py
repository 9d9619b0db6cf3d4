import pytest
import torch

from protoflows.model import ProtoFlow
from tests.model.helpers import small_model


@pytest.fixture(scope="module")
def model() -> ProtoFlow:
    return small_model(3, 2, prior=(1.0, 1.0, 8.0))


def test_images_are_those_of_the_drawn_latents(model):
    generator = torch.Generator().manual_seed(4)
    drawn = model.draw_latents(5, label=1, truncation=0.7, seed=generator)
    expected = model.decode_latent(drawn.latent, seed=generator)
    x = model.sample(5, label=1, truncation=0.7, seed=4)
    assert x.dtype == torch.uint8
    assert x.shape == (5, 1, 4, 4)
    assert torch.equal(x, expected)


@pytest.mark.parametrize("truncation", [0.0, 0.3, 1.5])
def test_latents_stay_inside_the_radius(model, truncation):
    drawn = model.draw_latents(400, label=2, prototype=1, truncation=truncation, seed=0)
    e = (drawn.latent - model.mixtures.mean[2, 1]) / model.mixtures.std[2, 1]
    assert e.abs().max() <= truncation * (1 + 1e-5) + 1e-6
    if truncation:
        assert e.abs().max() > 0.95 * truncation  # it fills the radius
        assert ((e.abs() > 0.999 * truncation).float().mean()) < 0.01  # and is not clipped to it
    assert (drawn.labels == 2).all()
    assert (drawn.prototypes == 1).all()


def test_latents_have_the_prototypes_moments(model):
    z = model.draw_latents(20_000, label=0, prototype=0, seed=0).latent
    std = model.mixtures.std[0, 0]
    assert ((z.mean(0) - model.mixtures.mean[0, 0]) / std).abs().max() < 0.04
    assert (z.std(0) / std - 1).abs().max() < 0.04


def test_classes_follow_the_prior_and_prototypes_the_weights(model):
    drawn = model.draw_latents(20_000, seed=0)
    shares = torch.bincount(drawn.labels, minlength=3) / 20_000
    assert torch.allclose(shares, torch.tensor([0.1, 0.1, 0.8]), atol=0.015)
    inside = drawn.prototypes[drawn.labels == 2]
    assert torch.allclose(
        torch.bincount(inside, minlength=2) / len(inside), model.mixtures.weights[2], atol=0.015
    )


def test_one_seed_one_result(model):
    assert torch.equal(model.sample(4, seed=3), model.sample(4, seed=3))
    assert not torch.equal(model.sample(4, seed=3), model.sample(4, seed=4))
    torch.manual_seed(0)
    first = model.sample(4)
    torch.manual_seed(0)
    assert torch.equal(first, model.sample(4))


def test_temperature_shrinks_what_transitions_put_out(model):
    still = model.sample(6, label=0, prototype=1, truncation=0.0, temperature=0.0, seed=1)
    assert (still == still[:1]).all()
    assert torch.equal(still[0], model.prototype_mean_image(0, 1))
    moving = model.sample(6, label=0, prototype=1, truncation=0.0, seed=1)
    assert not (moving == moving[:1]).all()


def test_switched_off_prototypes_are_never_drawn():
    model = small_model(2, 3).with_prototypes(disable=[(0, 0), (0, 2)])
    assert (model.draw_latents(200, label=0, seed=0).prototypes == 1).all()


def test_none_and_many(model):
    assert model.sample(0, seed=0).shape == (0, 1, 4, 4)
    assert model.sample(300, seed=0).shape == (300, 1, 4, 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"label": 3}, "label must be a class in 0…2, got 3"),
        ({"label": -1}, "label must be a class in 0…2, got -1"),
        ({"label": 1.0}, "label must be a class in 0…2, got 1.0"),
        ({"label": 1, "prototype": 2}, r"prototype must be one that class 1 has \(0, 1\), got 2"),
        ({"prototype": 0}, "prototype=0 needs a label"),
        ({"truncation": -1.0}, "truncation must be a number ≥ 0 or None, got -1.0"),
        ({"truncation": float("nan")}, "truncation must be a number ≥ 0 or None, got nan"),
        ({"temperature": -1.0}, "temperature must be a finite number ≥ 0"),
        ({"seed": "a"}, "seed must be an int, a torch.Generator or None, got str"),
    ],
)
def test_errors(model, arguments, message):
    with pytest.raises(ValueError, match=message):
        model.sample(2, **arguments)


def test_error_of_an_absent_prototype():
    model = small_model(2, 3).with_prototypes(disable=[(0, 1)])
    with pytest.raises(ValueError, match=r"class 0 has \(0, 2\), got 1"):
        model.prototype_mean_image(0, 1)
    with pytest.raises(ValueError, match="num must be ≥ 0"):
        model.sample(-1)
