import json
import re
from dataclasses import replace

import pytest
import torch
from PIL import Image

import protoflows as pf
from protoflows.explain.explanation import explain
from protoflows.explain.reading import prepare_images
from protoflows.explain.retrieved import retrieve_parts


@pytest.fixture(scope="module")
def explanation(trained, digits):
    return explain(trained, digits.test.images[0], samples=2)


def test_says_what_the_model_says(trained, digits, explanation):
    x = digits.test.images[:1]
    assert explanation.label == int(trained.predict(x, samples=2))
    assert explanation.prediction == trained.config.class_names[explanation.label]
    assert len(explanation.prototypes) == 3
    shares = [p.share for p in explanation.prototypes]
    assert shares == sorted(shares, reverse=True)
    assert explanation.prototypes[0].prototype[0] == explanation.label
    assert 0 <= explanation.percentile <= 100
    first = explanation.prototypes[0]
    assert first.heatmap.shape == first.contrast.shape == (8, 8)
    assert int(first.top.sum()) == 4  # 5 % of 64, rounded up
    assert first.retrieved.label == first.prototype[0]
    assert explanation.evidence.target == (explanation.label, None)
    assert explanation.evidence.against[0] == int(explanation.posterior.argsort()[-2])
    assert pf.explain.explain is explain


def test_is_repeatable(trained, digits, explanation):
    again = explain(trained, digits.test.images[0], samples=2)
    assert again.to_json() == explanation.to_json()
    other = explain(trained, digits.test.images[0], samples=2, seed=5)
    assert other.to_json() != explanation.to_json()


def test_json_and_figure(explanation):
    content = json.loads(explanation.to_json())
    assert sum(content["posterior"].values()) == pytest.approx(1)
    terms = content["evidence"]
    total = sum(map(sum, terms["cells"])) + terms["weights"] + terms["entropy"] + terms["prior"]
    assert total == pytest.approx(terms["log_odds"], abs=1e-6)
    texts = [t.get_text() for a in explanation.figure().axes for t in a.texts]
    assert any("log p(x)" in text for text in texts)


def test_html_stands_alone_and_is_escaped(explanation, tmp_path):
    names = tuple(f"<script>alert({i})</script>" for i in range(10))
    page = replace(explanation, class_names=names, notes=("<b>&note",)).to_html()
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "&lt;b&gt;&amp;note" in page
    sources = re.findall(r'(?:src|href)="([^"]{1,30})', page)
    assert sources
    assert all(source.startswith("data:") for source in sources)
    assert "http" not in re.sub(r'"data:[^"]*"', "", page)
    for name in ("why.html", "why.json", "why.png"):
        explanation.save(tmp_path / name)
        assert (tmp_path / name).stat().st_size > 500
    with pytest.raises(ValueError, match=r"path must end in \.html"):
        explanation.save(tmp_path / "why.doc")
    with pytest.raises(FileNotFoundError, match="no folder"):
        explanation.save(tmp_path / "none" / "why.html")


def test_other_sizes_and_channels_are_brought_to_the_models_and_said(trained, tmp_path):
    file = tmp_path / "wide.png"
    Image.new("RGB", (40, 20), (255, 0, 0)).save(file)
    found = prepare_images(trained, file)
    assert found.images.shape == (1, 1, 8, 8)
    assert int(found.images.max()) <= 16
    # A red picture is grey 76 of 255 by ITU-R 601: 4.8 of 16.
    assert (found.images == 5).all()
    text = " ".join(found.notes)
    assert "40 pixels wide and 20 high" in text
    assert "was made grey" in text
    assert "brought to the model's 17" in text
    same = prepare_images(trained, torch.full((1, 8, 8), 16, dtype=torch.uint8))
    assert same.notes == ()
    assert any("wide" in note for note in explain(trained, file, samples=1).notes)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(1, 8, 8), "x must hold integers"),
        (torch.zeros(8, 8, dtype=torch.uint8), "x must be images"),
        (torch.zeros(2, 1, 8, 8, dtype=torch.uint8), "x must be one image, got 2"),
        (torch.zeros(2, 8, 8, dtype=torch.uint8), "x must have 1 channels, got 2"),
        (torch.full((1, 8, 8), 300), "x must hold values in 0…255"),
        (torch.zeros(0, 1, 8, 8, dtype=torch.uint8), "x must hold at least one image"),
    ],
)
def test_refuses_what_is_no_image(trained, x, message):
    with pytest.raises(ValueError, match=message):
        explain(trained, x)


def test_files_that_are_no_pictures(trained, tmp_path):
    (tmp_path / "a.png").write_text("no picture")
    with pytest.raises(ValueError, match="not a picture"):
        explain(trained, tmp_path / "a.png")
    with pytest.raises(FileNotFoundError, match="no such picture"):
        explain(trained, tmp_path / "b.png")


def test_without_training_data_the_rest_works(trained, digits):
    bare = trained.with_prototypes()
    bare.extras = None
    found = explain(bare, digits.test.images[0], samples=1)
    assert found.prototypes[0].heatmap is None
    assert found.percentile is None
    assert any("No heatmaps and parts" in note for note in found.notes)
    assert found.evidence is not None
    assert "not known" in found.usual()
    found.figure()
    found.to_html()
    json.loads(found.to_json())
    given = explain(bare, digits.test.images[0], samples=1, baselines=torch.zeros(1, 8, 8))
    assert given.prototypes[0].heatmap is not None
    assert given.prototypes[0].retrieved is None


def test_stored_parts_are_shown(trained, digits):
    train = digits.train.select(torch.arange(60))
    parts = retrieve_parts(trained, train.images, train.labels, candidates=1, patch=2)
    found = explain(trained, digits.test.images[0], samples=1, parts=parts)
    c, k = found.prototypes[0].prototype
    assert torch.equal(found.prototypes[0].retrieved.image, parts.of((c, k))[0])
    assert not any("few training images" in note for note in found.notes)
