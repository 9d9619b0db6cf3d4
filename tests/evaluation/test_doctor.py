import math

import pytest
import torch

from protoflows.cli.main import main
from protoflows.evaluation.doctor import diagnose
from protoflows.evaluation.doctor_flow import check_log_det, check_units
from protoflows.flows import ActNorm, AffineCoupling, Chain, InvertibleConv
from protoflows.model import Extras, image_seeds
from tests.flows.helpers import log_abs_det
from tests.model.helpers import small_model, some_images


def _status(model, check, images=None):
    found = {f.check: f for f in diagnose(model, images).findings}
    return found[check].status, found[check].detail


def test_a_sound_model_passes_and_stays_as_it_was():
    model = small_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.train()
    found = diagnose(model, some_images(5))
    assert found.status == "OK", found.table()
    assert len(found.findings) == 11
    assert model.training
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert "5 images come back exactly" in found.table()


def test_saved_examples_are_used_where_there_are_no_images():
    model = small_model()
    assert "random images" in _status(model, "round trip")[1]
    model.extras = Extras(images=some_images(3), labels=torch.arange(3))
    assert "3 saved examples" in _status(model, "round trip")[1]


@pytest.mark.parametrize("name", ["mixtures.mean", "flow.blocks.0.units.0.layers.0.shift"])
def test_nan_fails_by_name(name):
    model = small_model()
    with torch.no_grad():
        model.get_parameter(name).view(-1)[0] = math.nan
    status, text = _status(model, "finite numbers")
    assert status == "FAIL"
    assert f"{name} (1)" in text
    assert diagnose(model).status == "FAIL"
    assert _status(model, "densities")[0] == "FAIL"


def test_exploding_scales_are_named():
    model = small_model()
    with torch.no_grad():
        layer = next(m for m in model.flow.modules() if isinstance(m, ActNorm))
        layer.log_scale[0] = -11.5
    status, text = _status(model, "actnorm scales")
    assert status == "WARN"
    assert "blocks.0.units.0.layers.0 (11.5)" in text


def test_an_actnorm_that_saw_no_data_is_named():
    model = small_model()
    layer = next(m for m in model.flow.modules() if isinstance(m, ActNorm))
    layer.initialized.fill_(False)
    status, text = _status(model, "actnorm scales")
    assert status == "WARN"
    assert "never set from data in 1 of" in text


@pytest.mark.parametrize(("smallest", "status"), [(1e-5, "WARN"), (1e-9, "FAIL"), (0.0, "FAIL")])
def test_ill_conditioned_convolutions_are_found(smallest, status):
    model = small_model()
    layer = [m for m in model.flow.modules() if isinstance(m, InvertibleConv)][-1]
    values = torch.ones(layer.channels)
    values[0] = smallest
    with torch.no_grad():
        layer.weight.copy_(torch.diag(values))
    found, text = _status(model, "1x1 convolutions")
    assert found == status
    assert ("inf" if smallest == 0 else f"{1 / smallest:.3g}") in text


def test_a_flow_that_does_not_undo_itself_fails(monkeypatch):
    model = small_model()
    inverse = AffineCoupling.inverse

    def off(self, z, context=None, **options):
        return inverse(self, z, context, **options) + 0.3

    monkeypatch.setattr(AffineCoupling, "inverse", off)
    assert _status(model, "unit inverses")[0] == "FAIL"
    status, text = _status(model, "round trip")
    assert status == "FAIL"
    assert "come back wrong" in text


def test_a_small_error_of_the_inverse_shows_in_the_margin(monkeypatch):
    """0.3 levels away, decoding is still exact, but not by much."""
    model = small_model()
    inverse = type(model.flow.dequantization).inverse

    def off(self, y, noise=None):
        return inverse(self, y + 0.3 / self.levels, noise)

    monkeypatch.setattr(type(model.flow.dequantization), "inverse", off)
    status, text = _status(model, "round trip")
    assert status == "WARN"
    assert "less than 0.5 levels" in text


def test_a_wrong_log_determinant_fails(monkeypatch):
    model = small_model()
    right = ActNorm.log_det_per_position
    monkeypatch.setattr(ActNorm, "log_det_per_position", lambda self: right(self) + 1e-3)
    assert _status(model, "log-determinant")[0] == "FAIL"


@pytest.mark.parametrize("seed", range(6))
def test_the_exact_log_determinant_is_autograds(seed):
    """Against a Jacobian that is taken row by row, of the same layers found by their name."""
    model = small_model()
    x, seeds = some_images(2), image_seeds(0, 2, 0, 0)
    found = check_log_det(model.flow, x, seeds, seed=seed)
    assert found.reported == pytest.approx(found.exact, abs=1e-9)
    name, layers = found.where.split(", layers ")
    first, last = map(int, layers.split("-"))
    unit = model.flow.get_submodule(name)
    entering = []
    handle = unit.register_forward_pre_hook(lambda _, args: entering.append(args[0]))
    with torch.no_grad():
        model.encode(x, seed=seeds)
        features = entering[0]
        for layer in unit.layers[:first]:
            features = layer(features)[0]
    handle.remove()
    chain = Chain(list(unit.layers[first : last + 1])).double().eval()
    crop = features[0, :, :2, :2].double()
    assert found.values == crop.numel()
    exact = log_abs_det(lambda v: chain(v[None])[0][0], crop)
    assert found.exact == pytest.approx(float(exact), abs=1e-6)


def test_units_are_all_looked_at():
    model = small_model()
    found = check_units(model.flow, some_images(2), image_seeds(0, 2, 0, 0))
    assert list(found) == ["blocks.0.units.0", "blocks.0.units.1", "blocks.1.units.0"]
    assert max(found.values()) < 1e-5


def test_dead_and_duplicate_prototypes_are_named():
    model = small_model(3, 3)
    mixtures = model.mixtures
    with torch.no_grad():
        mixtures.logits.zero_()
        mixtures.logits[1, 2] = -7.0  # weighs 0.0005, less than 1/300
        mixtures.mean[0, 2] = mixtures.mean[0, 0]
        mixtures.log_std[0, 2] = mixtures.log_std[0, 0]
        mixtures.mean[2, 0] = mixtures.mean[0, 0]  # copies in two classes are none
        mixtures.log_std[2, 0] = mixtures.log_std[0, 0]
    status, text = _status(model, "dead prototypes")
    assert status == "WARN"
    assert "1 of 9 weigh less than 0.0033: (1, 2)" in text
    status, text = _status(model, "duplicate prototypes")
    assert status == "WARN"
    assert text.endswith("0: 0 and 2")

    mask = torch.ones(3, 3, dtype=torch.bool)
    mask[1, 2] = mask[0, 2] = False
    pruned = model.keep_prototypes(mask)
    assert _status(pruned, "dead prototypes") == ("OK", "none of 7 (2 more are switched off)")
    assert _status(pruned, "duplicate prototypes")[0] == "OK"


def test_prototype_scales_at_the_floor_and_beyond_all_bounds():
    model = small_model()
    mixtures = model.mixtures
    with torch.no_grad():
        mixtures.log_std[0, 0] = -40.0
    status, text = _status(model, "prototype scales")
    assert status == "WARN"
    assert "16.7 % at the floor" in text
    with torch.no_grad():
        mixtures.log_std[0, 0] = 8.0
    assert _status(model, "prototype scales")[0] == "WARN"
    # Of a prototype that is switched off nobody wants to know.
    mask = torch.ones(3, 2, dtype=torch.bool)
    mask[0, 0] = False
    assert _status(model.keep_prototypes(mask), "prototype scales")[0] == "OK"


def test_the_command_prints_and_tells_by_its_exit_code(tmp_path, capsys):
    model = small_model()
    model.save_pretrained(tmp_path / "good")
    assert main(["doctor", str(tmp_path / "good")]) == 0
    assert capsys.readouterr().out.count("OK") == 11
    with torch.no_grad():
        model.mixtures.mean[0, 0, 0] = math.inf
    model.save_pretrained(tmp_path / "bad")
    assert main(["doctor", str(tmp_path / "bad")]) == 1
    printed = capsys.readouterr()
    assert "FAIL  finite numbers" in printed.out
    assert "do not trust" in printed.err
    assert main(["doctor", str(tmp_path / "none")]) == 1
