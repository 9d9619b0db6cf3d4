import json
import re

import pytest
import torch
from PIL import Image

import protoflows as pf
from protoflows.cli.explain_inputs import class_index, write_picture
from protoflows.cli.main import main
from protoflows.data import DataConfig, load_data
from tests.evaluation.run_fixture import untrained_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return untrained_run(tmp_path_factory.mktemp("runs") / "digits")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    images = load_data(DataConfig(name="digits")).test.images[:2]
    for name, image in zip("ab", images, strict=True):
        write_picture(folder / f"{name}.png", image, 17)
    return folder


def stands_alone(file):
    page = file.read_text(encoding="utf-8")
    sources = re.findall(r'(?:src|href)="([^"]{1,10})', page)
    return len(sources) > 1 and all(source.startswith("data:") for source in sources)


def test_explain(run, pictures, tmp_path, capsys):
    out = tmp_path / "why"
    assert main(["explain", str(run), str(pictures / "a.png"), "--out", str(out)]) == 0
    content = json.loads((out / "why.json").read_text())
    x = load_data(DataConfig(name="digits")).test.images[:1]
    model = pf.load(run)
    assert content["label"] == int(model.predict(x))
    assert stands_alone(out / "why.html")
    assert Image.open(out / "why.png").width > 800
    said = capsys.readouterr().out
    assert f"class      {content['prediction']}" in said
    assert "few training images saved with the model" in said


def test_prototypes_then_explain_with_stored_parts(run, pictures, tmp_path, capsys):
    out = tmp_path / "gallery"
    command = ["prototypes", str(run), "--out", str(out), "--samples", "2", "--candidates", "1"]
    assert main([*command, "--radii", "0", "1", "--class", "3", "--class", "7"]) == 0
    content = json.loads((out / "prototypes.json").read_text())
    assert [(p["label"], p["prototype"]) for p in content["prototypes"]] == [
        (3, 0), (3, 1), (7, 0), (7, 1)
    ]  # fmt: skip
    assert all(p["explained"] >= 0 for p in content["prototypes"])
    assert stands_alone(out / "index.html")
    assert {"class-003.png", "radii-007-001.png", "divergence.png", "weights.png"} <= {
        file.name for file in out.iterdir()
    }
    assert (run / "model" / "parts.safetensors").is_file()
    capsys.readouterr()
    why = tmp_path / "why"
    assert main(["explain", str(run), str(pictures / "a.png"), "--out", str(why)]) == 0
    assert "few training images" not in capsys.readouterr().out
    pf.load(run)  # the parts beside it do not disturb


def test_model_without_its_run(run, tmp_path, capsys):
    """No data: what needs it is left out and said, the rest is there."""
    model = pf.load(run)
    model.save_pretrained(tmp_path / "saved")
    out = tmp_path / "out"
    command = ["prototypes", str(tmp_path / "saved"), "--samples", "1", "--radii", "0"]
    assert main([*command, "--class", "1", "--out", str(out)]) == 0
    assert "training data is out of reach" in capsys.readouterr().err
    content = json.loads((out / "prototypes.json").read_text())
    assert content["training_images"] is None
    assert content["prototypes"][0]["explained"] is None
    assert not (tmp_path / "saved" / "parts.safetensors").exists()
    model.extras = None
    model.save_pretrained(tmp_path / "bare")
    command[1] = str(tmp_path / "bare")
    assert main([*command, "--class", "1", "--out", str(out)]) == 0
    assert "nearest and likeliest ones are left out" in capsys.readouterr().err
    assert main(["faithfulness", str(tmp_path / "bare"), "--out", str(out)]) == 1
    assert "neither its data nor saved training images" in capsys.readouterr().err


def test_interpolate(run, pictures, tmp_path):
    out = tmp_path / "path"
    a, b = str(pictures / "a.png"), str(pictures / "b.png")
    assert main(["interpolate", str(run), a, b, "--out", str(out), "--steps", "3"]) == 0
    content = json.loads((out / "interpolation.json").read_text())
    assert content["weights"] == [0, 0.5, 1]
    for name, file in (("000.png", a), ("002.png", b)):
        assert Image.open(out / name).tobytes() == Image.open(file).tobytes()
    assert stands_alone(out / "interpolation.html")


def test_counterfactual(run, pictures, tmp_path):
    out = tmp_path / "cf"
    model = pf.load(run)
    x = load_data(DataConfig(name="digits")).test.images[:1]
    target = (int(model.predict(x)) + 1) % 10
    code = main(
        ["counterfactual", str(run), str(pictures / "a.png"), "--to", str(target),
         "--out", str(out)]
    )  # fmt: skip
    content = json.loads((out / "counterfactual.json").read_text())
    assert code == (0 if content["reached"] else 1)
    assert content["to"] == model.config.class_names[target]
    way = content["log_likelihoods_on_the_way"]
    assert way[content["to"]][-1] > way[content["to"]][0]
    pixels = torch.frombuffer(bytearray(Image.open(out / "image.png").tobytes()), dtype=torch.uint8)
    assert pixels.shape == (64,)
    assert stands_alone(out / "counterfactual.html")


def test_faithfulness(run, tmp_path, capsys):
    options = ["--images", "8", "--sanity-images", "3", "--step", "16", "--orderings", "1"]
    options += ["--draws", "2", "--out", str(tmp_path), "--other", str(run)]
    assert main(["faithfulness", str(run), *options]) == 0
    content = json.loads((tmp_path / "faithfulness.json").read_text())
    pixels, patches = content["relevance_ordering"]
    assert (pixels["control"], patches["control"]) == ("pixels", "patches")
    assert pixels["images"] == 8
    assert content["other_training"]["image_divergence"] == 0
    assert stands_alone(tmp_path / "index.html")
    assert "heatmap − random patches" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["explain", "RUN", "text.png"], "not a picture in a known format"),
        (["explain", "RUN", "none.png"], "no such picture"),
        (["explain", "RUN", "a.png", "--top", "0"], "top must be ≥ 1"),
        (["explain", "no-run", "a.png"], "there is no model 'no-run'"),
        (["explain", "RUN", "a.png", "--out", "text.png"], "is a file, not a folder"),
        (["counterfactual", "RUN", "a.png", "--to", "17"], "there is no class '17'"),
        (["prototypes", "RUN", "--class", "x"], "class: there is no class 'x'"),
        (["interpolate", "RUN", "a.png", "a.png", "--steps", "1"], "steps must be at least 2"),
        (["faithfulness", "RUN", "--images", "0"], "images must be at least 1"),
    ],
)
def test_wrong_input_is_one_line(run, pictures, tmp_path, monkeypatch, capsys, argv, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.png").write_text("text")
    (tmp_path / "a.png").write_bytes((pictures / "a.png").read_bytes())
    assert main([str(run) if word == "RUN" else word for word in argv]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert any(message in line for line in lines)
    assert lines[-1].startswith(f"protoflows {argv[0]}: error: ")


def test_classes_by_name_first(run):
    model = pf.load(run)
    from dataclasses import replace

    model.config = replace(model.config, class_names=("1", "0", *"23456789"))
    assert class_index(model, "1", "to") == 0
    assert class_index(model, "0", "to") == 1
    with pytest.raises(ValueError, match="to: there is no class"):
        class_index(model, "-1", "to")
