import pytest
import torch

from protoflows.explain.faithfulness import RelevanceOrdering, relevance_ordering
from protoflows.explain.figures.trust import draw_relevance, draw_sanity
from protoflows.explain.matching import match_prototypes
from protoflows.explain.neighbours import find_neighbours
from protoflows.explain.sanity import (
    check_randomisation,
    check_stability,
    randomise_flow,
    rank_correlation,
    shift_prototypes,
    summary,
)
from tests.model.helpers import small_model


def ordering(heatmap, *random):
    count = len(heatmap)
    return RelevanceOrdering(
        torch.tensor([0.0, 0.5, 1.0]).double(), torch.tensor(heatmap).double(),
        torch.tensor(random).double().transpose(0, 1), torch.zeros(count, 2), "pixels", "latent",
    )  # fmt: skip


def test_areas_by_hand():
    found = ordering([[0.0, 4.0, 4.0], [0.0, 2.0, 4.0]], [[0.0, 0.0, 4.0], [0.0, 1.0, 4.0]])
    assert found.area.tolist() == [3.0, 2.0]
    assert found.random_areas.tolist() == [[1.0], [1.5]]
    assert found.gap.tolist() == [2.0, 0.5]
    assert found.gap_interval() == (1.25, 0.5, 2.0)
    # Both of two coins fall as hoped.
    assert found.p_value() == pytest.approx(0.25)


def test_ranks_by_hand():
    low, high = [[0.0, 0.0, 0.0]] * 2, [[9.0, 9.0, 9.0]] * 2
    found = ordering([[0.0, 1.0, 2.0], [0.0, 5.0, 2.0]], low, low, high)
    assert found.wins.tolist() == pytest.approx([2 / 3, 2 / 3])
    # Places 2 and 2 of 0…3: of 16 pairs of places, 6 add up to 4 or more.
    assert found.p_value() == pytest.approx(6 / 16)


def test_one_wild_image_decides_nothing():
    heat, random = [[0.0, 4.0, 4.0]] * 20, [[0.0, 2.0, 4.0]] * 19 + [[0.0, -1e9, 4.0]]
    for first, second, better in ((heat, random, True), (random, heat, False)):
        found = ordering(first, second)
        assert (found.p_value() < 0.01) is better
        assert abs(found.gap_interval()[0]) == 1.0
    assert draw_relevance(ordering(heat, random)).axes[1].get_xscale() == "symlog"


def test_test_says_no_where_there_is_nothing():
    same = ordering([[0.0, 1.0, 2.0]] * 3, [[0.0, 1.0, 2.0]] * 3)
    assert same.p_value() >= 0.5
    assert same.wins.tolist() == [0.5] * 3
    assert ordering([[0.0, 1.0, 2.0]], [[0.0, 0.0, 2.0]]).to_dict()["p_value"] == 0.5


def test_a_heatmap_of_noise_passes_as_often_as_chance_has_it():
    generator = torch.Generator().manual_seed(0)
    # Cauchy: means of such values never settle.
    draw = torch.randn(400, 30, 4, 3, generator=generator).double()
    draw = draw / torch.rand(400, 30, 4, 3, generator=generator)
    shares = torch.tensor([0.0, 0.5, 1.0]).double()
    found = [
        RelevanceOrdering(shares, d[:, 0], d[:, 1:], torch.zeros(30, 2), "pixels", "latent")
        for d in draw
    ]
    passed = sum(f.p_value() < 0.05 for f in found)
    assert 5 <= passed <= 35  # 20 expected


@pytest.mark.parametrize("control", ["pixels", "patches"])
def test_heatmaps_beat_random_orders(trained, digits, control):
    x = digits.test.images[:60]
    found = relevance_ordering(trained, x, patch=2, stride=1, step=8, orderings=2, control=control)
    assert found.heatmap.shape == (60, 9)
    torch.testing.assert_close(
        found.heatmap[:, :1], found.random[:, 0, :1]
    )  # the same random image
    torch.testing.assert_close(found.heatmap[:, -1:], found.random[:, 1, -1:])  # the query
    assert found.p_value() < 0.01
    assert found.gap_interval()[1] > 0
    assert draw_relevance(found).axes


def test_steps_and_batches(trained, digits):
    x = digits.test.images[:2]
    whole = relevance_ordering(trained, x, patch=2, step=30)
    assert whole.shares.tolist() == [0, 30 / 64, 60 / 64, 1]
    parts = relevance_ordering(trained, x, patch=2, step=30, batch_size=3)
    torch.testing.assert_close(whole.heatmap, parts.heatmap, rtol=1e-4, atol=1e-2)
    for options, message in (
        ({"step": 0}, "step must be from 1"),
        ({"control": "rows"}, "control must be"),
        ({"orderings": 0}, "orderings and x must not be empty"),
    ):
        with pytest.raises(ValueError, match=message):
            relevance_ordering(trained, x, **options)


def test_rank_correlation_by_hand():
    a = torch.tensor([[[1.0, 2.0, 3.0, 4.0]], [[1.0, 2.0, 3.0, 4.0]], [[1.0, 1.0, 1.0, 1.0]]])
    b = torch.tensor([[[8.0, 6.0, 4.0, 2.0]], [[2.0, 1.0, 4.0, 3.0]], [[1.0, 2.0, 3.0, 4.0]]])
    found = rank_correlation(a, b)
    assert found[0] == pytest.approx(-1)
    assert found[1] == pytest.approx(1 - 6 * 4 / (4 * 15))  # 1 − 6 Σd² / (n (n² − 1))
    assert found[2].isnan()
    assert summary(found)["images"] == 2


def test_sanity_checks(trained, digits):
    x = digits.test.images[:10]
    lost = check_randomisation(trained, x, patch=2)
    stable = check_stability(trained, x, draws=3, patch=2)
    assert summary(stable.heatmap)["mean"] > summary(lost.flow)["mean"] + 0.2
    assert float(stable.top_prototype.mean()) > 0.7
    # A lead over other classes is another one for the next class's prototype.
    assert summary(lost.lead)["mean"] < 0.5
    assert draw_sanity(lost, stable).axes


def test_randomising_leaves_the_model_alone(trained, digits):
    x = digits.test.images[:5]
    before = trained.log_prob(x)
    other = randomise_flow(trained, seed=1)
    assert torch.equal(trained.log_prob(x), before)
    assert other.log_prob(x).isfinite().all()
    assert not torch.allclose(other.log_prob(x), before)
    shifted = shift_prototypes(trained)
    assert torch.equal(shifted.mixtures.mean[1], trained.mixtures.mean[0])


def test_prototypes_are_matched_to_themselves_in_another_order(digits):
    model = small_model(num_classes=2, num_prototypes=3)
    other = model.with_prototypes()
    order = torch.tensor([2, 0, 1])
    m = model.mixtures
    other.mixtures.set_mixture(
        m.mean.detach()[:, order], m.std.detach()[:, order], m.logits.detach()[:, order]
    )
    x = torch.randint(0, 17, (40, 1, 4, 4), generator=torch.Generator().manual_seed(0)).byte()
    found = match_prototypes(model, other, images=x)
    counts = find_neighbours(model, x).explained
    assert (counts > 0).sum() > 2
    assert found.cost.max() == 0
    for c, i, j in found.pairs.tolist():  # those that explain nothing cannot be told apart
        assert counts[c, i] == 0 or int(order[j]) == i
    by_image = match_prototypes(model, other, samples=64)
    assert by_image.by == "image"
    assert (by_image.cost <= by_image.chance + 1e-9).all()
    with pytest.raises(ValueError, match="second must have the classes"):
        match_prototypes(model, small_model(num_classes=3))


def test_matching_leaves_out_what_is_off():
    model = small_model(num_classes=2, num_prototypes=3)
    edited = model.with_prototypes(disable=[(0, 1)])
    found = match_prototypes(model, edited, samples=8)
    assert found.pairs[:, 0].tolist() == [0, 0, 1, 1, 1]
    assert 1 not in found.pairs[:2, 2].tolist()
