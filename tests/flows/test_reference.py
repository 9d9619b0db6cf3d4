"""Published checkpoints: the same numbers, every key accounted for, nothing executed."""

from __future__ import annotations

import json
import os
import pickle
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch

from protoflows.flows.reference import load_reference, read_reference, translate_key
from protoflows.flows.safe_pickle import UnsafePickleError
from tests.flows import reference_fixture as fixture


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return fixture.save_protoflow(tmp_path / "published")


def test_parity_with_the_published_code(folder: Path) -> None:
    flow = load_reference(folder)
    assert not flow.training
    expected = fixture.values()
    with torch.no_grad():
        encoding = flow.encode(expected["x"], temperature=0.0)
    latent = expected["latent"].view_as(encoding.latent)
    assert (encoding.latent - latent).abs().max() / latent.abs().max() <= 1e-5
    assert (encoding.log_det - expected["log_det"]).abs().max() <= 0.01
    assert torch.equal(flow.decode(encoding), expected["x"])
    back = flow.decode_latent(latent, temperature=0.0)
    off = (back.int() - expected["inverse_of_latent"].int()).abs()
    assert off.max() <= 1
    assert (off > 0).float().mean() < 0.005


def test_configuration_is_read_off_the_weights(folder: Path) -> None:
    (folder / "config.json").unlink()
    config = load_reference(folder / "checkpoint.pt", image_shape=(3, 16, 16)).config
    assert (config.units, config.couplings, config.mid_channels, config.noise_growth) == (
        (3, 2),
        (1, 2),
        (12, 16),
        4,
    )
    assert (config.net_depth, config.net_growth, config.net_dtype) == (7, 64, "float32")
    assert load_reference(folder).config.image_shape == (3, 32, 32)  # nothing says otherwise


def test_mixtures_are_kept_for_those_who_know_classes(folder: Path) -> None:
    checkpoint = read_reference(folder)
    assert sorted(checkpoint.mixtures) == [
        f"gmms.{c}.{n}" for c in range(3) for n in ("mu", "pi", "var")
    ]
    assert checkpoint.settings["protos_per_class"] == 2
    assert checkpoint.settings["growth_rate"] == 4


def test_bare_densenet_folder_with_its_base_distribution(tmp_path: Path) -> None:
    state = {
        k.removeprefix("model."): v for k, v in fixture.weights().items() if k.startswith("model.")
    }
    state["base_dist.loc"] = torch.full((1, 44, 1, 1), 0.5)
    state["base_dist.log_scale"] = torch.full((1, 44, 1, 1), 0.1)
    (tmp_path / "check").mkdir()
    torch.save({"model": state}, tmp_path / "check" / "checkpoint.pt")
    described = fixture.layout()
    names = ("block_conf", "layers_conf", "layer_mid_chnls", "growth_rate")
    (tmp_path / "args.pickle").write_bytes(
        pickle.dumps(Namespace(**{n: described[n] for n in names}, dataset="x"))
    )
    flow = load_reference(tmp_path, image_shape=(3, 16, 16))
    assert flow.loc.unique().tolist() == [0.5]
    with torch.no_grad():
        encoding = flow.encode(fixture.values()["x"], temperature=0.0)
    z = encoding.latent
    expected = (
        torch.distributions.Normal(0.5, torch.tensor(0.1).exp()).log_prob(z).flatten(1).sum(1)
    )
    torch.testing.assert_close(flow.base_log_prob(z), expected)


def test_is_reached_from_the_package(folder: Path) -> None:
    import protoflows as pf

    assert pf.flows.load_reference(folder).config.image_shape == (3, 16, 16)


def test_a_transposed_weight_is_not_reshaped_into_place(tmp_path: Path) -> None:
    net = "model.transforms.3.blocks.0.transforms.0.transforms.2.coupling_net.0.dn.transform"
    key = f"{net}.1.mix_conv.2.weight"
    weight = fixture.weights()[key]
    assert weight.shape[0] != weight.shape[1]
    folder = fixture.save_protoflow(tmp_path, **{key: weight.transpose(0, 1).contiguous()})
    with pytest.raises(ValueError, match=r"wrong \(1\): .*mix_conv\.2\.weight: shape"):
        load_reference(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"config\.json is not readable as JSON"),
        ("[]", r"config\.json must hold an object, got list"),
        ('{"flow_args": [1]}', "flow_args must be an object, got list"),
        ('{"img_size": "small"}', "img_size='small', which is no size"),
    ],
)
def test_damaged_settings_are_named(folder: Path, text: str, message: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        load_reference(folder)


def test_settings_that_contradict_the_weights_are_refused(folder: Path) -> None:
    settings = json.loads((folder / "config.json").read_text())
    settings["flow_args"]["growth_rate"] = 5
    (folder / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match="its settings say growth_rate=5, its weights 4"):
        load_reference(folder)


def test_report_names_what_is_missing_left_over_and_wrong(tmp_path: Path) -> None:
    shift = "model.transforms.3.blocks.0.transforms.0.transforms.0.shift"
    scale = "model.transforms.3.blocks.1.transforms.0.transforms.0.log_scale"
    folder = fixture.save_protoflow(
        tmp_path, **{shift: None, scale: torch.zeros(1, 5, 1, 1), "model.extra": torch.zeros(1)}
    )
    with pytest.raises(ValueError, match="does not fill the flow") as error:
        load_reference(folder)
    text = str(error.value)
    assert (
        "missing (2): blocks.0.units.0.layers.0.shift, blocks.0.units.1.layers.0.log_scale" in text
    )
    assert "left over (1): extra" in text
    assert "expected (16,)" in text


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("transforms.1._shift", -0.4),
        ("transforms.1._scale", 2.0),
        ("transforms.0.encoder.transforms.10.temperature", 0.5),
    ],
)
def test_other_constants_are_refused(tmp_path: Path, key: str, value: float) -> None:
    folder = fixture.save_protoflow(tmp_path, **{f"model.{key}": torch.tensor(value)})
    with pytest.raises(ValueError, match="only .* is supported"):
        load_reference(folder)


def test_averaged_weights_come_with_a_warning(tmp_path: Path) -> None:
    folder = fixture.save_protoflow(tmp_path)
    content = torch.load(folder / "checkpoint.pt", weights_only=True)
    content["model_ema"] = {f"module.{k}": v for k, v in content["model"].items()} | {
        "n_averaged": torch.tensor(3)
    }
    torch.save(content, folder / "checkpoint.pt")
    with pytest.warns(UserWarning, match="batch-norm statistics of the plain ones"):
        load_reference(folder, ema=True)
    with pytest.raises(ValueError, match="no entry 'model_ema'"):
        load_reference(fixture.save_protoflow(tmp_path / "plain"), ema=True)


class _Attack:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)


def test_malicious_pickles_are_refused_and_do_nothing(tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    bad = tmp_path / "weights"
    bad.mkdir()
    torch.save({"model": {"a": _Attack(marker)}}, bad / "checkpoint.pt")
    with pytest.raises(UnsafePickleError, match=r"checkpoint\.pt"):
        load_reference(bad)
    flow = tmp_path / "args"
    (flow / "check").mkdir(parents=True)
    torch.save({"model": {}}, flow / "check" / "checkpoint.pt")
    (flow / "args.pickle").write_bytes(pickle.dumps(_Attack(marker)))
    with pytest.raises(UnsafePickleError, match=r"args\.pickle"):
        load_reference(flow)
    assert not marker.exists()


def test_clear_errors(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no checkpoint at"):
        load_reference(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"holds neither check/checkpoint\.pt"):
        load_reference(tmp_path / "empty")
    torch.save({"model": {"weight": torch.zeros(2)}}, tmp_path / "other.pt")
    with pytest.raises(ValueError, match="not in the layout of the published checkpoints"):
        load_reference(tmp_path / "other.pt")
    for shape in ((1, 16, 16), (3, 16), ()):
        with pytest.raises(ValueError, match="image_shape must be .* the checkpoint's 3 channels"):
            load_reference(folder, image_shape=shape)  # type: ignore[arg-type]
    assert translate_key("transforms.3.blocks.0.unknown") is None
