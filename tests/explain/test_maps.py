import pytest
import torch

from protoflows.explain.figures.gallery import (
    draw_class_gallery,
    draw_informativeness,
    draw_sheet,
    draw_truncation_grid,
)
from protoflows.explain.figures.maps import draw_divergence, draw_tsne, draw_weights
from protoflows.explain.figures.style import limit_of, plain, png_bytes
from protoflows.explain.informativeness import Informativeness
from protoflows.explain.maps import map_prototypes
from protoflows.explain.neighbours import find_neighbours
from protoflows.explain.pictures import picture_prototype
from protoflows.prototypes import modified_hellinger
from protoflows.prototypes.otsu import otsu_threshold
from tests.model.helpers import small_model, some_images


def test_divergences_with_a_masked_diagonal():
    model = small_model().with_prototypes(disable=[(1, 1)])
    found = map_prototypes(model)
    assert found.prototypes == ((0, 0), (0, 1), (1, 0), (2, 0), (2, 1))
    assert found.divergence.diagonal().isnan().all()
    m = model.mixtures
    expected = modified_hellinger(m.mean[0, 1], m.std[0, 1], m.mean[2, 0], m.std[2, 0])
    assert float(found.divergence[1, 3]) == pytest.approx(float(expected.detach()), rel=1e-4)
    assert found.positions.shape == (5, 2)
    assert torch.equal(map_prototypes(model).positions, found.positions)
    assert float(found.weights[2]) == 1  # the only one left in its class
    with pytest.raises(ValueError, match="perplexity must be above 0"):
        map_prototypes(model, perplexity=9)


def test_few_prototypes_have_no_tsne():
    found = map_prototypes(small_model(num_classes=3, num_prototypes=1))
    assert found.positions is None
    assert found.threshold is None  # one weight of 1 in each class: nothing to split
    with pytest.raises(ValueError, match="t-SNE needs at least four"):
        draw_tsne(found, ("a", "b", "c"))
    draw_weights(found)


def test_otsu_splits_two_heaps():
    weights = torch.tensor([0.01, 0.02, 0.03, 0.5, 0.52]).double()
    threshold = otsu_threshold(weights)
    assert 0.03 <= threshold < 0.5


def test_every_figure_is_drawn_and_the_same_twice():
    model, names = small_model(), ("a $x$ b", "c", "d")
    found = map_prototypes(model)
    x = some_images(8)
    near = find_neighbours(model, x, num=3)
    pictures = [picture_prototype(model, (0, k), samples=3) for k in range(2)]
    table = torch.rand(3, 6).double()
    informative = Informativeness((0.0, 1.0, 2.0), found.prototypes, table, table, -table, 4)
    makers = (
        lambda: draw_divergence(found, names),
        lambda: draw_tsne(found, names),
        lambda: draw_weights(found),
        lambda: draw_class_gallery(model, pictures, near, x),
        lambda: draw_class_gallery(model, pictures),
        lambda: draw_truncation_grid(model, pictures[0]),
        lambda: draw_informativeness(informative),
        lambda: draw_sheet(model, x, [str(i) for i in range(8)], columns=5),
    )
    for make in makers:
        first = png_bytes(make(), dpi=40)
        assert first.startswith(b"\x89PNG")
        assert first == png_bytes(make(), dpi=40)


def test_words_and_scales():
    assert plain("a$b") == r"a\$b"
    assert limit_of(torch.zeros(3), torch.tensor([-2.0])) == 2
    assert limit_of(torch.zeros(3)) == 1
