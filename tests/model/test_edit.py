import pytest
import torch

from protoflows.model import Extras, load
from tests.model.helpers import small_model, some_images


def test_switching_off_renormalises_and_keeps_indices():
    model = small_model(2, 3)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    edited = model.with_prototypes(disable=[(1, 0)])
    assert edited.mixtures.mask.tolist() == [[True] * 3, [False, True, True]]
    weights = model.mixtures.weights[1].tolist()
    expected = torch.tensor([0.0, weights[1], weights[2]]) / (weights[1] + weights[2])
    assert torch.allclose(edited.mixtures.weights[1], expected)
    enc = model.encode(some_images(3), seed=0)
    old, new = model.prototype_log_likelihood(enc), edited.prototype_log_likelihood(enc)
    assert torch.equal(new[:, 1, 1:], old[:, 1, 1:])
    assert torch.equal(new[:, 0], old[:, 0])
    assert (new[:, 1, 0] == -torch.inf).all()
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_merge_by_hand():
    model = small_model(2, 3)
    mixtures = model.mixtures
    mean, std = mixtures.mean.detach().clone(), mixtures.std.detach().clone()
    mean[0, 0], mean[0, 2] = 0.0, 4.0
    std[0, 0], std[0, 2] = 1.0, 2.0
    logits = torch.tensor([[0.3, 0.6, 0.1], [0.2, 0.3, 0.5]]).log()
    mixtures.set_mixture(mean, std, logits)
    merged = model.with_prototypes(merge=[((0, 0), (0, 2))]).mixtures
    # shares 3/4 and 1/4: mean 1, variance 3/4 (1 + 1) + 1/4 (4 + 9) = 4.75
    assert torch.allclose(merged.mean[0, 0], torch.tensor(1.0))
    assert torch.allclose(merged.variance[0, 0], torch.tensor(4.75))
    assert torch.allclose(merged.weights[0], torch.tensor([0.4, 0.6, 0.0]))
    assert merged.mask.tolist() == [[True, True, False], [True] * 3]
    for name in ("mean", "log_std"):
        old, new = getattr(mixtures, name), getattr(merged, name)
        assert torch.equal(new[0, 1:], old[0, 1:])
        assert torch.equal(new[1], old[1])
    assert torch.allclose(merged.weights[1], mixtures.weights[1])


def test_merge_keeps_a_mixtures_mean_and_variance():
    model = small_model(1, 4)

    def moments(mixtures):
        weights = mixtures.weights[0, :, None]
        mean = (weights * mixtures.mean[0]).sum(0)
        return mean, (weights * (mixtures.variance[0] + mixtures.mean[0].square())).sum(0)

    merged = model.with_prototypes(merge=[((0, 1), (0, 3)), ((0, 1), (0, 0))])
    for old, new in zip(moments(model.mixtures), moments(merged.mixtures), strict=True):
        assert torch.allclose(old, new, atol=1e-5)
    assert merged.mixtures.mask.tolist() == [[False, True, True, False]]


def test_names_are_given_taken_away_and_lost_with_their_prototype():
    model = small_model(2, 3).with_prototypes(names={(0, 1): "bar", (0, 2): "loop", (1, 0): "x"})
    assert model.config.prototype_names == {(0, 1): "bar", (0, 2): "loop", (1, 0): "x"}
    edited = model.with_prototypes(merge=[((0, 1), (0, 2))], names={(1, 0): ""})
    assert edited.config.prototype_names == {(0, 1): "bar"}


def test_edited_models_share_nothing():
    model = small_model(2, 3)
    model.extras = Extras(mean_image=torch.zeros(1, 4, 4), metrics={"accuracy": 1.0})
    edited = model.with_prototypes(names={(0, 0): "a"})
    shared = {p.data_ptr() for p in model.state_dict().values()} & {
        p.data_ptr() for p in edited.state_dict().values()
    }
    assert shared == set()
    edited.extras.mean_image.fill_(1)
    assert model.extras.mean_image.sum() == 0
    assert edited.extras.metrics == {}  # they were measured on another model
    assert model.extras.metrics == {"accuracy": 1.0}
    assert model.config.prototype_names == {}


def test_edited_models_evaluate_and_save_like_any_other(tmp_path):
    model = small_model(3, 3)
    model.predict_proba(some_images(2))  # fills caches, which must not travel into the copy
    edited = model.with_prototypes(
        disable=[(2, 1)], merge=[((1, 0), (1, 2))], names={(1, 0): "seven with a bar"}
    )
    x = some_images(4)
    proba = edited.predict_proba(x)
    assert torch.allclose(proba.sum(1), torch.ones(4, dtype=proba.dtype))
    assert edited.sample(3, label=1, seed=0).shape == (3, 1, 4, 4)
    edited.save_pretrained(tmp_path)
    again = load(tmp_path)
    assert torch.equal(again.predict_proba(x), proba)
    assert again.config == edited.config
    assert torch.equal(again.mixtures.mask, edited.mixtures.mask)


def test_keep_prototypes():
    model = small_model(2, 3).with_prototypes(disable=[(0, 0)], names={(0, 2): "a", (1, 1): "b"})
    mask = torch.tensor([[True, True, False], [False, True, True]])
    kept = model.keep_prototypes(mask)
    assert kept.mixtures.mask.tolist() == [[False, True, False], [False, True, True]]
    assert torch.allclose(kept.mixtures.weights.sum(1), torch.ones(2))
    assert kept.config.prototype_names == {(1, 1): "b"}


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda m: m.with_prototypes(disable=[(0, 0), (0, 1)]), "would leave class 0 .* without"),
        (lambda m: m.with_prototypes(disable=[(2, 0)]), "disable must name prototypes as"),
        (lambda m: m.with_prototypes(disable=[(0, 2)]), "disable must name prototypes as"),
        (lambda m: m.with_prototypes(disable=[3]), "disable must name prototypes as"),
        (lambda m: m.with_prototypes(disable=[(0, 0), (0, 0)]), "switched off; class 0 has"),
        (lambda m: m.with_prototypes(merge=[((0, 0), (1, 0))]), "two prototypes of one class"),
        (lambda m: m.with_prototypes(merge=[((0, 0), (0, 0))]), "two different prototypes"),
        (lambda m: m.with_prototypes(merge=[((0, 0),)]), "merge must hold pairs"),
        (lambda m: m.with_prototypes(disable=[(0, 1)], names={(0, 1): "a"}), "names names .* off"),
        (lambda m: m.keep_prototypes(torch.ones(2, 2)), "mask must be bool of shape"),
        (
            lambda m: m.keep_prototypes(torch.tensor([[True, True], [False, False]])),
            "mask must leave every class a prototype",
        ),
    ],
)
def test_errors(edit, message):
    with pytest.raises(ValueError, match=message):
        edit(small_model(2, 2))
