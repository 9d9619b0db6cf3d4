import pytest
import torch

from protoflows.explain.counterfactual import find_counterfactuals
from protoflows.explain.figures.paths import draw_counterfactuals, draw_interpolation, draw_way
from protoflows.explain.interpolation import interpolate
from protoflows.explain.readout import read_out
from tests.model.helpers import small_model, some_images


@pytest.mark.parametrize("seed", range(4))
def test_both_ends_are_the_given_images(seed):
    """A flow with two blocks: something leaves at the transition and must come back."""
    model, x = small_model(), some_images(2, seed)
    found = interpolate(model, x[0], x[1], steps=5, samples=1, seed=seed, batch_size=2)
    assert torch.equal(found.images[0], x[0])
    assert torch.equal(found.images[-1], x[1])
    assert found.weights.tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert found.log_prob.isfinite().all()


def test_trained_ends_and_a_path_of_its_own(trained, digits):
    x = digits.test.images[:40]
    for a, b in zip(x[:20], x[20:], strict=True):
        found = interpolate(trained, a, b, steps=3, samples=1)
        assert torch.equal(found.images[0], a)
        assert torch.equal(found.images[2], b)
        assert not torch.equal(found.images[1], a)


def test_kept_factored_changes_the_latent_alone():
    model, x = small_model(), some_images(2)
    found = interpolate(model, x[0], x[1], steps=(0.0, 1.0), factored="keep", samples=1)
    assert torch.equal(found.images[0], x[0])
    free = interpolate(model, x[0], x[1], steps=(0.0, 1.0), samples=1)
    assert not torch.equal(found.images[1], free.images[1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 1}, "steps must be at least 2"),
        ({"steps": (0.0, 2.0)}, "steps must be weights"),
        ({"factored": "drop"}, "factored must be"),
    ],
)
def test_interpolation_refuses(options, message):
    x = some_images(2)
    with pytest.raises(ValueError, match=message):
        interpolate(small_model(), x[0], x[1], **options)
    with pytest.raises(ValueError, match="a must be one image"):
        interpolate(small_model(), x, x[1])


def test_counterfactuals_reach_their_class(trained, digits):
    x = digits.test.images[:60]
    source = trained.predict(x, samples=4)
    shift = torch.randint(1, 10, (60,), generator=torch.Generator().manual_seed(1))
    target = (source + shift) % 10
    found = find_counterfactuals(trained, x, target)
    assert float(found.success.double().mean()) >= 0.95
    # Judged again by somebody else, with noise that nothing here has seen.
    again = trained.predict(found.images[found.success], samples=16, seed=991)
    assert float((again == target[found.success]).double().mean()) >= 0.9
    assert found.images.dtype == torch.uint8
    assert (found.step[found.source != found.target] > 0).all()
    share = (found.images.double() - x.double()).abs().flatten(1).mean(1) / 16
    torch.testing.assert_close(found.pixel_change, share)
    # Least change: on the way there is a point where the image is not yet of the class.
    before = torch.stack([found.way(trained, i, 3)[0][0] for i in range(5)])
    assert torch.equal(before, x[:5])
    half = torch.stack([found.way(trained, i, 3)[0][1] for i in range(20)])
    halfway = read_out(trained, half, samples=4, seed=5).labels
    assert float((halfway == target[:20]).double().mean()) < 0.5
    end = found.way(trained, 2, 3)[0][2]
    assert torch.equal(end, found.images[2])


def test_of_the_class_already_nothing_changes(trained, digits):
    x = digits.test.images[:6]
    found = find_counterfactuals(trained, x, trained.predict(x, samples=4), samples=4)
    same = found.source == found.target
    assert same.any()
    assert torch.equal(found.images[same], x[same])
    assert found.pixel_change[same].max() == 0
    assert found.distance[same].max() == 0


def test_counterfactual_refuses(trained, digits):
    x = digits.test.images[:2]
    with pytest.raises(ValueError, match="y must be in 0…9"):
        find_counterfactuals(trained, x, 10)
    with pytest.raises(ValueError, match="confidence must be"):
        find_counterfactuals(trained, x, 3, confidence=1.0)


def test_figures(trained, digits):
    names = trained.config.class_names
    x = digits.test.images[:2]
    found = interpolate(trained, x[0], x[1], steps=4, samples=1)
    figure = draw_interpolation(found, 17, names)
    assert sum(bool(axes.images) for sub in figure.subfigs for axes in sub.axes) == 4
    other = find_counterfactuals(trained, x, 3, samples=1)
    assert draw_counterfactuals(other, 17, names).axes
    images, steps = other.way(trained, 0, 4)
    log_prob = read_out(trained, images, samples=1).class_log_prob[:, :2]
    assert draw_way(images, log_prob, steps, 17, ("a", "b")).subfigs


def test_ways_lead_to_living_prototypes_alone():
    model = small_model(num_classes=2, num_prototypes=3).with_prototypes(disable=[(1, 0), (1, 2)])
    x = torch.randint(0, 17, (6, 1, 4, 4), generator=torch.Generator().manual_seed(0)).byte()
    for target in (0, 1):
        found = find_counterfactuals(model, x, target, samples=1)
        assert bool(model.mixtures.mask[target, found.prototype].all())
        assert found.images.dtype == torch.uint8
