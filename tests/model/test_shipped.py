"""The models that ship: they load, know their own images, explain, and say what was measured."""

import csv
import json
import warnings
from pathlib import Path

import pytest
import torch
from PIL import Image

import protoflows as pf
from benchmarks import ship
from protoflows.cli.main import main
from protoflows.explain.retrieved import load_parts
from protoflows.model.shipped import shipped_folder, shipped_models

ROOT = Path(__file__).parents[2]
NAMES = shipped_models()


@pytest.fixture(scope="module", params=NAMES)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def model(name, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("elsewhere"))
        return pf.load(name)


@pytest.fixture
def picture(model, tmp_path):
    """The model's first saved image as a PNG of full range."""
    levels = model.config.flow.levels
    x = model.extras.images[0].float().mul(255 / (levels - 1)).round().to(torch.uint8)
    path = tmp_path / "picture.png"
    Image.fromarray(x[0].numpy() if len(x) == 1 else x.permute(1, 2, 0).numpy()).save(path)
    return path


def test_digits_ships():
    assert "digits" in NAMES


def test_is_small_and_complete(name):
    with shipped_folder(name) as folder:
        sizes = {file.name: file.stat().st_size for file in folder.iterdir()}
    assert sum(sizes.values()) <= 5_000_000
    assert set(sizes) == {
        "README.md", "config.json", "extras.safetensors", "model.safetensors", "parts.safetensors",
    }  # fmt: skip


def test_knows_its_own_images(model):
    extras = model.extras
    assert len(extras.images) >= 5 * model.config.num_classes
    found = model.predict(extras.images, samples=2, seed=0)
    assert float((found == extras.labels).double().mean()) >= 0.97


def test_decodes_exactly(model):
    x = model.extras.images[:8]
    assert torch.equal(model.flow.decode(model.flow.encode(x, seed=0)), x)


def test_licence_and_card(name, model):
    assert model.extras.licence == "Apache-2.0"
    with shipped_folder(name) as folder:
        card = (folder / "README.md").read_text()
    assert "| Licence of the weights | Apache-2.0 |" in card
    assert f"| accuracy | {model.extras.metrics['accuracy']:.6g} |" in card


def test_the_cards_figures_are_measured_ones(name, model):
    """A row of results/NAME.csv, which a program wrote, has the same accuracy and bits."""
    table = ROOT / "results" / f"{name}.csv"
    metrics = model.extras.metrics
    with table.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row.get("seed", "").isdigit()]
    assert any(
        float(row["accuracy"]) == pytest.approx(metrics["accuracy"], abs=2e-3)
        and float(row["bits_per_dim"]) == pytest.approx(metrics["bits_per_dim"], abs=2e-3)
        for row in rows
    ), f"{table.name} has no run with the figures of the card: {metrics}"


def test_predict_and_explain_by_name(name, picture, tmp_path, monkeypatch, capsys, model):
    monkeypatch.chdir(tmp_path)
    assert main(["predict", name, str(picture), "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    label = model.config.class_names[int(model.extras.labels[0])]
    assert row["label"] == label
    assert main(["explain", name, str(picture), "--out", "why", "--mc", "2"]) == 0
    assert f"class      {label} " in capsys.readouterr().out
    assert (tmp_path / "why" / "why.html").stat().st_size > 10_000
    assert json.loads((tmp_path / "why" / "why.json").read_text())["prediction"] == label


def test_parts_belong_to_the_model(name, model):
    with shipped_folder(name) as folder:
        parts = load_parts(folder, model)
    assert parts is not None
    assert len(parts.images) == model.mixtures.mask.numel()


def test_a_run_of_that_name_goes_first_and_says_so(name, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model.save_pretrained(tmp_path / name)
    with pytest.warns(UserWarning, match=f"not the model '{name}' that ships"):
        pf.load(name)


def test_the_tool_ships_what_the_run_is(tmp_path, monkeypatch, capsys):
    """A run of two epochs becomes a shipped model with the licence, parts and few images."""
    run = tmp_path / "run"
    train = ["train", "--out", str(run), "--optim.epochs", "1", "--data.limit", "100"]
    small = ["--flow.units", "[1,1]", "--flow.couplings", "[1,1]", "--flow.mid_channels", "[8,8]"]
    rest = ["--flow.net_growth", "4", "--trainer.tensorboard", "false"]
    assert main([*train, *small, *rest, "--trainer.test_samples", "1"]) == 0
    words = ["ship.py", str(run), "mine", "--models", str(tmp_path), "--images-per-class", "2"]
    monkeypatch.setattr("sys.argv", words)
    ship.main()
    assert "100.00 % of decisions as the run's" in capsys.readouterr().out
    shipped = pf.load(tmp_path / "mine")
    assert shipped.extras.licence == "Apache-2.0"
    assert torch.bincount(shipped.extras.labels).tolist() == [2] * 10
    noted = json.loads((run / "metrics.json").read_text())
    assert shipped.extras.metrics == pytest.approx(noted)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_parts(tmp_path / "mine", shipped) is not None
    monkeypatch.setattr(ship, "MAX_BYTES", 1000)
    monkeypatch.setattr("sys.argv", [*words[:2], "large", *words[3:]])
    with pytest.raises(SystemExit, match="too large to ship"):
        ship.main()
    assert not (tmp_path / "large").exists()
