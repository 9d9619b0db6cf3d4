"""Bayes' rule, temperatures, and averages over draws."""

import math
from dataclasses import replace

import pytest
import torch

from protoflows.flows import DenseFlow, Encoding
from protoflows.model import ModelConfig, ProtoFlow, image_seeds
from protoflows.prototypes import PrototypeConfig
from tests.flows.helpers import TINY
from tests.model.helpers import small_model, some_images


def by_hand():
    """Two classes, two prototypes, unit variance at the first latent dimension's 0, 1, 2, 4."""
    model = small_model(2, 2, prior=(1.0, 3.0))
    dims = model.mixtures.num_dims
    mean = torch.zeros(2, 2, dims)
    mean[..., 0] = torch.tensor([[0.0, 1.0], [2.0, 4.0]])
    logits = torch.tensor([[0.25, 0.75], [0.5, 0.5]]).log()
    model.mixtures.set_mixture(mean, torch.ones(2, 2, dims), logits)
    latent = torch.zeros(1, *model.config.flow.latent_shape)
    latent[0, 0, 0, 0] = 1.0
    enc = Encoding(latent, torch.tensor([-7.0]), (), torch.zeros(1))
    return model, enc, dims


def normal(x, variance=1.0):
    return math.exp(-0.5 * x * x / variance) / math.sqrt(2 * math.pi * variance)


def test_bayes_rule_by_hand():
    model, enc, dims = by_hand()
    rest = normal(0.0) ** (dims - 1)
    first = rest * (0.25 * normal(1.0) + 0.75 * normal(0.0))
    second = rest * (0.5 * normal(1.0) + 0.5 * normal(3.0))
    expected = torch.tensor([[first, second]], dtype=torch.float64)
    assert torch.allclose(model.class_log_likelihood(enc).exp(), expected)
    assert torch.allclose(model.class_log_prob(enc), expected.log() - 7.0)
    joint = expected * torch.tensor([[0.25, 0.75]])
    assert torch.allclose(model.log_posterior(enc).exp(), joint / joint.sum(), atol=1e-6)
    table = model.prototype_log_likelihood(enc)[0, :, :]
    distances = torch.tensor([[1.0, 0.0], [1.0, 9.0]], dtype=torch.float64)
    assert torch.allclose(table, -0.5 * distances - 0.5 * dims * math.log(2 * math.pi))


def test_logit_temperature_by_hand():
    model, enc, _ = by_hand()
    plain = model.log_posterior(enc)
    model.config = replace(model.config, logit_temperature=2.0)
    assert torch.allclose(model.log_posterior(enc), (plain / 2).log_softmax(1), atol=1e-12)


def test_variance_temperature_is_that_of_wider_gaussians():
    model = small_model(3, 2)
    enc = model.encode(some_images(4), seed=1)
    densities = model.class_log_likelihood(enc)
    model.config = replace(model.config, variance_temperature=3.0)
    assert torch.equal(model.class_log_likelihood(enc), densities)  # densities are the trained ones
    tempered = model.log_posterior(enc)
    mixtures = model.mixtures
    mixtures.set_mixture(mixtures.mean, mixtures.std * math.sqrt(3.0), mixtures.logits)
    model.config = replace(model.config, variance_temperature=1.0)
    assert torch.allclose(tempered, model.log_posterior(enc), atol=1e-4)


def test_variance_temperature_with_latent_dropout():
    model = small_model(3, 2)
    enc = model.encode(some_images(4), seed=1)
    model.mixtures.config = replace(model.mixtures.config, latent_dropout=0.5)
    model.train()
    dropout = model.mixtures.draw_dropout(4, torch.Generator().manual_seed(0))
    model.config = replace(model.config, variance_temperature=3.0)
    table = model.prototype_log_likelihood(enc, dropout)
    tempered = model.tempered_log_likelihood(table, dropout)
    model.mixtures.set_mixture(
        model.mixtures.mean, model.mixtures.std * math.sqrt(3.0), model.mixtures.logits
    )
    wider = model.class_log_likelihood(enc, dropout)
    assert torch.allclose(tempered, wider, atol=1e-4)


def test_absent_prototypes_have_no_density():
    model = small_model(3, 2)
    mask = torch.tensor([[True, False], [True, True], [False, True]])
    model.mixtures.set_mask(mask)
    model.config = replace(model.config, variance_temperature=2.0)
    enc = model.encode(some_images(2), seed=1)
    table = model.prototype_log_likelihood(enc)
    assert torch.equal(table.isinf(), ~mask.expand(2, -1, -1))
    assert model.log_posterior(enc).isfinite().all()


def test_score_is_one_pass_that_agrees_with_all_else():
    model, x = small_model(), some_images(3)
    seeds = image_seeds(0, 3, 0, 7)
    enc = model.encode(x, seed=seeds)
    scores = model.score(x, seeds=seeds)
    assert torch.allclose(scores.log_prob_classes, model.class_log_prob(enc), atol=1e-4)
    assert torch.equal(scores.prototype_log_likelihood, model.prototype_log_likelihood(enc))
    assert torch.equal(scores.latent, enc.latent)
    assert torch.allclose(scores.log_det, enc.log_det, atol=1e-4)
    assert not scores.log_prob_classes.requires_grad


def test_log_prob_is_the_marginal_or_the_classes_own():
    model, x = small_model(prior=(1.0, 2.0, 3.0)), some_images(5)
    table = model.score(x, seeds=image_seeds(0, 5, 0, 3)).log_prob_classes
    prior = torch.tensor([1.0, 2.0, 3.0]).div(6).log()
    assert torch.allclose(model.log_prob(x, seed=3), (table + prior).logsumexp(1), atol=1e-5)
    y = torch.tensor([0, 2, 1, 1, 0])
    assert torch.allclose(model.log_prob(x, y, seed=3), table[torch.arange(5), y], atol=1e-5)
    assert torch.allclose(model.log_prob(x, 2, seed=3), table[:, 2], atol=1e-5)


def test_rules_average_as_they_say():
    model, x = small_model(), some_images(4)
    tables = torch.stack(
        [model.score(x, seeds=image_seeds(0, 4, s, 3)).log_prob_classes for s in range(3)]
    )
    prior = model.mixtures.log_prior
    draws = (tables + prior).logsumexp(2)
    mean = model.log_prob(x, samples=3, seed=3, rule="mean")
    tight = model.log_prob(x, samples=3, seed=3, rule="importance")
    assert torch.allclose(mean, draws.mean(0), atol=1e-5)
    assert torch.allclose(tight, draws.logsumexp(0) - math.log(3), atol=1e-5)
    assert (tight > mean).all()
    logits = model.predict_proba(x, samples=3, seed=3)
    assert torch.allclose(logits, (tables.mean(0) + prior).softmax(1), atol=1e-5)
    weighted = model.predict_proba(x, samples=3, seed=3, rule="importance")
    assert torch.allclose(weighted, (tables.logsumexp(0) + prior).softmax(1), atol=1e-5)
    assert torch.equal(model.predict(x, samples=3, seed=3), logits.argmax(1))


@pytest.mark.parametrize("rule", ["mean-logit", "importance"])
def test_results_do_not_depend_on_batches(rule):
    model, x = small_model(), some_images(7)
    whole = model.predict_proba(x, samples=4, seed=1, rule=rule)
    assert (
        whole.max(1).values < 1 - 1e-4
    ).any()  # not all saturated: the comparison means something
    for batch_size in (1, 3, 7, 14):
        part = model.predict_proba(x, samples=4, seed=1, rule=rule, batch_size=batch_size)
        assert torch.allclose(part, whole, atol=1e-5)
    density = model.log_prob(x, samples=4, seed=1)
    assert torch.allclose(model.log_prob(x, samples=4, seed=1, batch_size=2), density, atol=1e-4)


def test_seeds_of_images_follow_the_images():
    model, x = small_model(), some_images(5)
    seeds, order = torch.tensor([5, 9, -1, 2**62, 0]), torch.tensor([4, 2, 0, 1, 3])
    proba = model.predict_proba(x, samples=2, seed=seeds)
    moved = model.predict_proba(x[order], samples=2, seed=seeds[order])
    assert torch.allclose(moved, proba[order], atol=1e-5)
    assert not torch.allclose(proba, model.predict_proba(x, samples=2, seed=seeds + 1), atol=1e-5)


def test_mode_is_kept_and_evaluation_is_in_eval_mode():
    model, x = small_model(), some_images(4)
    expected = model.predict_proba(x)
    model.train()
    model.mixtures.eval()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    assert torch.equal(model.predict_proba(x), expected)
    assert model.training
    assert model.flow.blocks[0].training
    assert not model.mixtures.training
    model.log_prob(x)
    model.score(x, seeds=0)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_no_images_give_no_answers():
    model = small_model()
    assert model.predict_proba(some_images(0)).shape == (0, 3)
    assert model.log_prob(some_images(0)).shape == (0,)


def test_training_reaches_flow_and_prototypes_but_not_the_flows_own_normal():
    model = small_model().train()
    enc = model(some_images(4), noise=_noise(4))
    (-model.class_log_prob(enc).mean() - model.log_posterior(enc)[:, 0].mean()).backward()
    missing = {name for name, p in model.named_parameters() if p.requires_grad and p.grad is None}
    assert missing == set()
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    assert frozen == {"flow.loc", "flow.log_scale"}


def _noise(num):
    from protoflows.flows import Noise

    return Noise(num, 1.0, 0)


def test_a_given_flow_is_used_and_checked():
    flow = DenseFlow(TINY)
    assert ProtoFlow(ModelConfig(2, TINY), flow).flow is flow
    with pytest.raises(ValueError, match=r"flow must be built of config\.flow"):
        ProtoFlow(ModelConfig(2, replace(TINY, levels=16)), flow)
    with pytest.raises(ValueError, match="config must be a ModelConfig, got dict"):
        ProtoFlow({})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, x: m.predict_proba(x, rule="mean"), "rule must be 'mean-logit' or 'importance'"),
        (lambda m, x: m.log_prob(x, rule="mean-logit"), "rule must be 'mean' or 'importance'"),
        (lambda m, x: m.predict_proba(x, samples=0), "samples must be ≥ 1, got 0"),
        (lambda m, x: m.predict_proba(x, batch_size=0), "batch_size must be ≥ 1, got 0"),
        (lambda m, x: m.predict_proba(x, seed=torch.zeros(1)), "seed must be an int or hold one"),
        (lambda m, x: m.log_prob(x, 3), r"y must be in 0…2, got values from 3 to 3"),
        (lambda m, x: m.log_prob(x, torch.tensor([0])), "y must hold one class for each of the 2"),
        (lambda m, x: m.log_prob(x, torch.zeros(2)), "y must be a class or one class per image"),
        (lambda m, x: m.predict_proba(x.float()), "x must hold integers"),
        (lambda m, x: m.predict_proba(x[:, :, 1:]), "x must have shape"),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call(small_model(), some_images(2))


def test_repr_names_classes_and_temperatures():
    model = small_model(2, class_names=("cat", "dog"), logit_temperature=1.5)
    assert "classes=(cat, dog), logit_temperature=1.5" in repr(model)


def test_priors_come_from_the_configuration():
    model = ProtoFlow(ModelConfig(2, TINY, PrototypeConfig(num_prototypes=1, prior=(1.0, 3.0))))
    assert torch.allclose(model.mixtures.log_prior.exp(), torch.tensor([0.25, 0.75]))
