import json

import pytest
import torch

from protoflows.model import import_reference, load
from tests.flows import reference_fixture as fixture

LATENT_DIMS = fixture.values()["latent"][0].numel()


@pytest.fixture
def folder(tmp_path):
    return fixture.save_protoflow(tmp_path / "published")


def settings(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_numbers_are_the_published_codes(folder):
    model, expected = import_reference(folder), fixture.values()
    assert not model.training
    with torch.no_grad():
        enc = model.encode(expected["x"], temperature=0.0)
        likelihood, log_prob = model.class_log_likelihood(enc), model.class_log_prob(enc)
    wanted = expected["class_log_likelihood"]
    assert (likelihood - wanted).abs().max() <= 0.01
    assert (log_prob - (expected["log_det"][:, None] + wanted)).abs().max() <= 0.02


def test_variance_is_the_root_of_what_is_stored(folder):
    model = import_reference(folder)
    stored = fixture.weights()["gmms.0.var"][0]
    assert torch.allclose(model.mixtures.variance[0], stored.sqrt(), rtol=1e-5)


def test_tiny_variances_survive(tmp_path):
    small = torch.full_like(fixture.weights()["gmms.0.var"], 2.4e-38)
    model = import_reference(fixture.save_protoflow(tmp_path / "p", **{"gmms.0.var": small}))
    assert torch.allclose(model.mixtures.std[0], torch.tensor(2.4e-38**0.25), rtol=1e-2)


def test_becomes_a_model_like_any_other(folder, tmp_path):
    number = len({key.split(".")[1] for key in fixture.weights() if key.startswith("gmms.")})
    names = [f"class {c}" for c in range(number)]
    model = import_reference(folder, class_names=names)
    assert model.config.class_names == tuple(names)
    assert torch.allclose(model.mixtures.log_prior.exp(), torch.full((number,), 1 / number))
    model.save_pretrained(tmp_path / "run" / "model")
    x = fixture.values()["x"]
    again = load(tmp_path / "run")
    assert torch.equal(again.predict_proba(x, samples=1), model.predict_proba(x, samples=1))
    assert {n for n, p in again.named_parameters() if not p.requires_grad} == {
        "flow.loc",
        "flow.log_scale",
    }


def test_the_flows_own_normal_is_accepted_and_left_out(tmp_path):
    plain = import_reference(fixture.save_protoflow(tmp_path / "plain"))
    channels = len(plain.flow.loc)
    extra = {f"model.base_dist.{n}": torch.ones(1, channels, 1, 1) for n in ("loc", "log_scale")}
    model = import_reference(fixture.save_protoflow(tmp_path / "elbo", **extra))
    assert (model.flow.loc == 1).all()
    x = fixture.values()["x"]
    assert torch.equal(model.log_prob(x), plain.log_prob(x))


def test_best_component_scoring_is_refused(folder):
    settings(folder, likelihood_approach="max")
    with pytest.raises(ValueError, match="likelihood_approach 'max'.*best component"):
        import_reference(folder)


def test_wrong_image_size_is_named(folder):
    with pytest.raises(ValueError, match="give the right image_shape"):
        import_reference(folder, image_shape=(3, 32, 32))


def test_wrong_number_of_names(folder):
    with pytest.raises(ValueError, match="class_names must hold one string for each"):
        import_reference(folder, class_names=["one"])


def other_layouts():
    two, dims = torch.zeros(2), LATENT_DIMS
    return [
        ({"gmms.0.inv_cov_stds": two}, "SSLGaussMixture, which are not supported"),
        ({"gmms.0.gaussians.0.loc": two}, "GaussianMixtureConv2d, which are not supported"),
        ({"gmms.0.odd": two}, "class 0 must have the entries mu, var and pi"),
        ({"gmms.0.pi": two}, r"pi \(1, K, 1\)"),
        ({"gmms.0.var": torch.zeros(1, 2, dims)}, "gmms.0.var must be above 0 everywhere"),
        ({"gmms.9.mu": two}, "its classes must be 0…"),
        ({"gmms.odd": two}, "unknown key 'gmms.odd'"),
    ]


@pytest.mark.parametrize(("changes", "message"), other_layouts())
def test_other_layouts_are_refused(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        import_reference(fixture.save_protoflow(tmp_path / "p", **changes))


def test_a_bare_flow_is_named(tmp_path):
    gone = {key: None for key in fixture.weights() if key.startswith("gmms.")}
    with pytest.raises(ValueError, match="a bare DenseFlow"):
        import_reference(fixture.save_protoflow(tmp_path / "p", **gone))


def test_no_checkpoint(tmp_path):
    with pytest.raises(FileNotFoundError, match="no checkpoint at"):
        import_reference(tmp_path / "none")
