import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protoflows.explain.parts import (
    PartsAttribution,
    PrototypeParts,
    crop,
    paint,
    patch_grid,
    set_patches,
    top_pixels,
)
from protoflows.explain.retrieved import load_parts, retrieve_parts
from protoflows.model import Extras
from tests.model.helpers import small_model, some_images


@pytest.fixture(scope="module")
def model():
    return small_model()


MEAN = torch.full((1, 4, 4), 6.6)


def test_patch_by_hand():
    baseline = torch.zeros(1, 3, 3, dtype=torch.uint8)
    x = torch.arange(1, 10, dtype=torch.uint8).view(1, 1, 3, 3)
    changed = set_patches(baseline, x, torch.tensor([1]), torch.tensor([0]), (2, 2))
    assert changed[0, 0].tolist() == [[0, 0, 0], [4, 5, 0], [7, 8, 0]]


def test_overlapping_patches_are_averaged_by_hand():
    rows, columns, size = patch_grid((2, 3), 2, 1)
    assert (rows.tolist(), columns.tolist(), size) == ([0, 0], [0, 1], (2, 2))
    heat = paint(torch.tensor([[1.0, 5.0]]), rows, columns, size, (2, 3))
    assert heat[0].tolist() == [[1.0, 3.0, 5.0], [1.0, 3.0, 5.0]]


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 6), st.integers(1, 6))
def test_every_pixel_is_covered(height, width, patch, stride):
    stride = min(stride, patch)
    rows, columns, size = patch_grid((height, width), patch, stride)
    ones = paint(torch.ones(1, len(rows)), rows, columns, size, (height, width))
    torch.testing.assert_close(ones, torch.ones(1, height, width))
    assert int((rows + size[0]).max()) == height


def test_top_pixels_exactly_so_many():
    heat = torch.zeros(2, 10, 10)
    heat[1, 9, 9] = 1.0
    mask = top_pixels(heat)
    assert mask.flatten(1).sum(1).tolist() == [5, 5]
    assert mask[1, 9, 9]
    assert top_pixels(torch.zeros(1, 3, 3)).sum() == 1


def test_contrast_by_hand():
    """Two classes, the second with one prototype only: the rest of the table is −inf."""
    table = torch.tensor([[[[1.0, 2.0], [0.0, -torch.inf]], [[4.0, 2.0], [5.0, -torch.inf]]]])
    baseline = torch.tensor([[0.5, 0.0], [0.25, -torch.inf]])
    found = PartsAttribution(
        table.double(), baseline.double(), torch.tensor([0, 0]), torch.tensor([0, 1]), (1, 1),
        (1, 2), "latent", (0, 0),
    )  # fmt: skip
    # Against the second class's only one: (1 − 0) − (0.5 − 0.25) and (4 − 5) − 0.25.
    assert found.contrast()[0].tolist() == [[0.75, -1.25]]
    assert found.heatmap()[0].tolist() == [[0.5, 3.5]]
    other = found.contrast((1, 0))[0, 0]
    rest = [math.log(math.exp(a) + math.exp(b)) for a, b in ((1, 2), (4, 2), (0.5, 0))]
    expected = [0 - rest[0] - (0.25 - rest[2]), 5 - rest[1] - (0.25 - rest[2])]
    assert other.tolist() == pytest.approx(expected)
    alone = replace(found, log_likelihood=table[:, :, :1].double(), baseline=baseline[:1].double())
    with pytest.raises(ValueError, match="one class"):
        alone.contrast((0, 0))


def test_values_are_those_of_one_pass_per_patch(model):
    x = some_images(2)
    found = PrototypeParts(model).attribute(
        x, MEAN, (1, 0), patch=2, stride=1, perturbations_per_eval=5
    )
    assert found.log_likelihood.shape == (2, 9, 3, 2)
    baseline = MEAN.round().to(torch.uint8)
    for n, p in ((0, 0), (1, 4), (1, 8)):
        alone = baseline.clone()
        r, c = divmod(p, 3)
        alone[:, r : r + 2, c : c + 2] = x[n, :, r : r + 2, c : c + 2]
        with torch.no_grad():
            table = model.prototype_log_likelihood(model.encode(alone[None], temperature=0.0))
        torch.testing.assert_close(found.log_likelihood[n, p], table[0], rtol=1e-5, atol=1e-4)
    best = found.log_likelihood[1, :, 1, 0].argmax()
    assert found.part()[1].tolist() == [int(best) // 3, int(best) % 3, 2, 2]
    assert crop(x[1], found.part()[1]).shape == (1, 2, 2)


def test_patch_of_the_whole_image_and_patch_equal_to_the_baseline(model):
    x = some_images(1)
    whole = PrototypeParts(model).attribute(x, MEAN, (0, 1), patch=9)
    assert whole.log_likelihood.shape[1] == 1
    heat = whole.heatmap()
    assert (heat == heat[0, 0, 0]).all()
    same = PrototypeParts(model).attribute(MEAN.round().to(torch.uint8)[None], MEAN, (0, 1))
    torch.testing.assert_close(same.heatmap(), torch.zeros(1, 4, 4).double(), atol=1e-4, rtol=0)


def test_noise_is_fixed_and_batches_do_not_matter(model):
    parts, x = PrototypeParts(model), some_images(2)
    options = {"patch": 2, "by": "image", "draws": 2, "seed": 3}
    a = parts.attribute(x, MEAN, **options)
    b = parts.attribute(x, MEAN, perturbations_per_eval=3, **options)
    torch.testing.assert_close(a.log_likelihood, b.log_likelihood, rtol=1e-5, atol=1e-3)
    other = parts.attribute(x, MEAN, **{**options, "seed": 4})
    assert not torch.allclose(a.log_likelihood, other.log_likelihood, atol=1e-3)
    latent = parts.attribute(x, MEAN, patch=2)
    assert not torch.allclose(a.log_likelihood, latent.log_likelihood, atol=1e-1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"patch": 0}, "patch and stride must be ≥ 1"),
        ({"patch": 2, "stride": 3}, "stride must be at most patch"),
        ({"by": "pixels"}, "by must be 'latent' or 'image'"),
        ({"by": "image", "draws": 0}, "draws must be at least 1"),
        ({"perturbations_per_eval": 0}, "perturbations_per_eval must be ≥ 1"),
        ({"target": (0, 7)}, "prototype must be one that class 0 has"),
        ({"baselines": torch.zeros(3, 4, 4)}, "baselines must have shape"),
        ({"baselines": None}, "saved without the mean image"),
    ],
)
def test_refuses(model, options, message):
    with pytest.raises(ValueError, match=message):
        PrototypeParts(model).attribute(some_images(1), **{"baselines": MEAN, **options})


def test_retrieved_part_is_the_best_of_the_likeliest_images(tmp_path):
    model = small_model()
    model.extras = Extras(mean_image=MEAN)
    model = model.with_prototypes(disable=[(2, 1)])
    x, y = some_images(12), torch.arange(12) % 3
    found = retrieve_parts(model, x, y, candidates=2, patch=2)
    from protoflows.explain.neighbours import find_neighbours

    likely = find_neighbours(model, x, num=2).likeliest[1, 1]
    table = PrototypeParts(model).attribute(x[likely], patch=2).log_likelihood[:, :, 1, 1]
    torch.testing.assert_close(found.log_likelihood[3], table.max(), rtol=1e-5, atol=1e-4)
    image, box, label = found.of((1, 1))
    winner = likely[table.max(1).values.argmax()]
    assert torch.equal(image, x[winner])
    assert label == int(y[winner])
    assert box[2:].tolist() == [2, 2]
    assert found.of((2, 1))[2] == -1
    found.save(tmp_path)
    again = load_parts(tmp_path, model)
    assert again is not None
    assert torch.equal(again.boxes, found.boxes)
    assert load_parts(tmp_path, small_model()) is None  # another mask: not this model's
    (tmp_path / "parts.safetensors").write_bytes(b"damaged")
    assert load_parts(tmp_path, model) is None


@settings(max_examples=5)
@given(st.integers(1, 3))
def test_shapes(num):
    found = PrototypeParts(small_model()).attribute(some_images(num), MEAN, (0, 0), patch=3)
    assert found.heatmap().shape == (num, 4, 4)
    assert found.part().shape == (num, 4)
