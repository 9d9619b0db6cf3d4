import hashlib
import json
import math
import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protoflows.cli.main import main
from protoflows.data import Split
from protoflows.evaluation.calibrate import (
    Candidate,
    _candidate,
    apply,
    calibrate,
    calibration_table,
    quadratic_terms,
)
from protoflows.evaluation.held_out import held_out, read_held_out, store_calibration, stored_dtype
from protoflows.model import Extras, image_seeds, load
from tests.evaluation.run_fixture import untrained_run
from tests.model.helpers import small_model, some_images


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return untrained_run(tmp_path_factory.mktemp("runs") / "digits")


@pytest.fixture
def own_run(run, tmp_path):
    return shutil.copytree(run, tmp_path / "run")


def _set(model, method, temperature):
    apply(model, Candidate(method, temperature, None, None, None, None))


def _labels(model, x):
    """Labels that the model finds hard: drawn from its own, flattened, probabilities."""
    proba = model.predict_proba(x, samples=4).pow(0.3)
    generator = torch.Generator().manual_seed(0)
    return torch.multinomial(proba.float(), 1, generator=generator)[:, 0]


@pytest.mark.parametrize(("method", "temperature"), [("logits", 3.7), ("variances", 2.5)])
def test_one_pass_knows_the_probabilities_at_every_temperature(method, temperature):
    """Against the model itself, which tempers log-densities and not quadratic terms."""
    model = small_model(prior=(0.5, 0.3, 0.2))
    model = model.keep_prototypes(torch.tensor([[True, True], [True, False], [True, True]]))
    x = some_images(7)
    terms = quadratic_terms(model, x, samples=3, seed=5, batch_size=4)
    _set(model, method, temperature)
    expected = model.predict_proba(x, samples=3, seed=5, batch_size=4)
    logits = terms.logits(temperature) if method == "variances" else terms.logits() / temperature
    torch.testing.assert_close(logits.softmax(1), expected, rtol=1e-5, atol=1e-6)


def test_hand_worked_quadratic_terms():
    """One dimension less the common least: q = (z − μ)²/σ², offset = log π − log σ."""
    model = small_model(num_classes=2, num_prototypes=1)
    mixtures = model.mixtures
    x = some_images(3)
    terms = quadratic_terms(model, x, samples=1, seed=0, batch_size=8)
    z = model.encode(x, seed=image_seeds(0, 3, 0, 0)).latent.flatten(1).double()
    q = (((z[:, None] - mixtures.mean[:, 0]) / mixtures.std[:, 0]) ** 2).sum(2)
    expected = q - q.amin(1, keepdim=True)
    assert torch.allclose(terms.distance[:, 0, :, 0].double(), expected, rtol=1e-4, atol=1e-3)
    assert torch.allclose(terms.offset[:, 0], -mixtures.std[:, 0].double().log().sum(1))


class _Known:
    """Terms of which the logits are given, to calibrate without a model."""

    def __init__(self, logits):
        self.values = logits

    def logits(self, variance_temperature=1.0):
        return self.values


@settings(max_examples=10)
@given(st.floats(0.3, 30.0))
def test_a_known_logit_temperature_is_found(true):
    generator = torch.Generator().manual_seed(1)
    honest = 2 * torch.randn(3000, 4, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(honest.softmax(1), 1, generator=generator)[:, 0]
    found = _candidate("logits", _Known(true * honest), labels, torch.arange(3000) % 5)
    assert found.temperature == pytest.approx(true, rel=0.1)


def test_without_errors_certainty_stays_finite():
    logits = 100.0 * torch.eye(2, dtype=torch.float64).repeat(20, 1)
    labels = torch.arange(40) % 2
    found = _candidate("logits", _Known(logits), labels, torch.arange(40) % 5)
    # Laplace: p(wrong) = half of 1/42, so the gap 100/τ is log(83/1).
    assert found.temperature == pytest.approx(100 / math.log(83), rel=1e-2)


def test_calibration_lowers_the_loss_and_changes_nothing_itself():
    model = small_model()
    x = some_images(150)
    labels = _labels(model, x)
    found = calibrate(model, Split(x, labels), samples=2)
    assert model.config.logit_temperature == model.config.variance_temperature == 1
    assert [c.nll.value for c in found.candidates] == sorted(c.nll.value for c in found.candidates)
    assert found.best.method != "none"
    assert found.best.nll.value < found.of("none").nll.value
    trained = model.predict_proba(x, samples=2)
    own = trained.gather(1, labels[:, None]).log().mean()
    assert found.of("none").nll.value == pytest.approx(-float(own), rel=1e-4)
    apply(model, found.best)
    torch.testing.assert_close(model.predict_proba(x, samples=2), found.proba, rtol=1e-4, atol=1e-6)
    assert calibration_table(found).count("<- best") == 1


def test_a_second_calibration_gives_the_same():
    model = small_model()
    x = some_images(60)
    split = Split(x, _labels(model, x))
    first = calibrate(model, split, samples=1)
    apply(model, first.best)
    second = calibrate(model, split, samples=1)
    assert [(c.method, c.temperature) for c in first.candidates] == [
        (c.method, c.temperature) for c in second.candidates
    ]


def test_an_honest_model_is_left_alone():
    """Labels drawn from the model's own probabilities: nothing to gain but noise."""
    model = small_model()
    x = some_images(400)
    proba = model.predict_proba(x, samples=1)
    labels = torch.multinomial(proba.float(), 1, generator=torch.Generator().manual_seed(0))[:, 0]
    found = calibrate(model, Split(x, labels), samples=1)
    assert found.of("logits").temperature == pytest.approx(1, abs=0.35)
    assert found.of("none").nll.value - found.best.nll.value < 0.02


def test_too_few_images_are_refused():
    model = small_model()
    labels = torch.cat([torch.zeros(29, dtype=torch.int64), torch.full((9,), -1)])
    with pytest.raises(
        ValueError, match=r"at least 30 labelled held-out images, got 29.*validation"
    ):
        calibrate(model, Split(some_images(38), labels))
    with pytest.raises(ValueError, match="labels must be below 3"):
        calibrate(model, Split(some_images(40), torch.full((40,), 3)))


def test_stale_figures_are_dropped_and_likelihoods_kept():
    model = small_model()
    metrics = {"accuracy": 0.9, "cross_entropy": 1.0, "bits_per_dim": 3.0, "dims": 16}
    model.extras = Extras(metrics=metrics)
    _set(model, "logits", 2.0)
    assert dict(model.extras.metrics) == {"bits_per_dim": 3.0, "dims": 16}


def test_what_is_stored_belongs_to_one_model(tmp_path):
    model = small_model()
    x = some_images(50)
    split = Split(x, _labels(model, x))
    model.save_pretrained(tmp_path / "model", weights_dtype="float16")
    model = load(tmp_path)
    before = (tmp_path / "model" / "model.safetensors").read_bytes()
    store_calibration(model, calibrate(model, split, samples=2), tmp_path / "model", tmp_path)
    again = load(tmp_path)
    assert again.config == model.config
    assert stored_dtype(tmp_path / "model") == "float16"
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == before

    noted = read_held_out(again, tmp_path / "model", tmp_path)
    measured = held_out(again, split, samples=2)
    assert noted.samples == 2
    assert torch.equal(noted.correct, measured.correct)
    torch.testing.assert_close(noted.confidence, measured.confidence, rtol=1e-4, atol=1e-5)

    _set(again, "logits", 9.0)
    assert read_held_out(again, tmp_path / "model", tmp_path) is None
    assert read_held_out(model, tmp_path / "model", tmp_path / "elsewhere") is None


def test_the_command_calibrates_a_run_once_and_for_all(own_run, capsys):
    assert main(["calibrate", str(own_run), "--mc", "2"]) == 0
    assert "<- best" in capsys.readouterr().out
    content = json.loads((own_run / "calibration.json").read_text())
    model = load(own_run)
    assert content["logit_temperature"] == model.config.logit_temperature
    assert content["variance_temperature"] == model.config.variance_temperature
    best = content["method"]
    assert content[f"{best}_nll"] <= min(
        content[f"{m}_nll"] for m in ("none", "logits", "variances")
    )
    assert content["images"] == read_held_out(model, own_run / "model", own_run).correct.numel()

    def digest():
        files = sorted(f for f in own_run.rglob("*") if f.is_file())
        return [(f.name, hashlib.sha256(f.read_bytes()).hexdigest()) for f in files]

    first = digest()
    assert main(["calibrate", str(own_run), "--mc", "2"]) == 0
    assert digest() == first


def test_the_command_names_what_is_missing(tmp_path, capsys):
    assert main(["calibrate", str(tmp_path / "nothing")]) == 1
    assert "there is no folder" in capsys.readouterr().err
