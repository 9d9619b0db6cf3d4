"""The report: one page that stands alone, in a real browser, with the run's data and without."""

import re
import shutil

import pytest
import torch

from protoflows.cli.main import main
from protoflows.model import load
from protoflows.report import Plan, Source, make_report
from protoflows.report.page import GROUPS
from tests.browser import broken_pictures, open_page
from tests.evaluation.run_fixture import untrained_run

QUICK = [
    "--images", "60", "--mc", "1", "--train-images", "80", "--relevance-images", "4",
    "--examples", "1", "--classes", "2",
]  # fmt: skip
SECTIONS = sum(len(makers) for _, makers in GROUPS)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return untrained_run(tmp_path_factory.mktemp("runs") / "digits")


@pytest.fixture(scope="module")
def report(run):
    assert main(["report", str(run), *QUICK]) == 0
    return run / "report.html"


def test_is_one_file_with_every_section(report):
    page = report.read_text()
    assert report.stat().st_size < 15e6
    assert page.count("<section id=") == SECTIONS
    anchors = re.findall(r'<section id="([^"]+)"', page)
    assert re.findall(r'<li><a href="#([^"]+)"', page) == anchors
    # Nothing is fetched: addresses are of the page itself or hold what they stand for.
    for address in re.findall(r'(?:src|href)="([^"]{0,40})', page):
        assert address.startswith(("data:", "#")), address
    assert "<script" not in page
    assert page.count("What you see.") == page.count("How it misleads.") == SECTIONS
    assert "Not shown: the other 8 classes" in page


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_opens_offline_in_a_browser(report, browser, width, scheme):
    with open_page(browser, width=width, offline=True, color_scheme=scheme) as (page, seen):
        page.goto(report.as_uri())
        assert page.locator("section").count() == SECTIONS
        assert page.locator("section img").count() > 12
        assert broken_pictures(page) == []
        # Broad figures scroll in their own box; the page itself never does.
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.click("nav a:has-text('Prototypes')")
        assert (
            page.evaluate("document.querySelector('#prototypes').getBoundingClientRect().top") < 9
        )
        assert page.evaluate("[...document.images].every(image => image.alt.length > 10)")
        assert seen.errors == []
        assert seen.requests == [report.as_uri()]


def test_without_the_data_the_rest_works(run, tmp_path, capsys):
    away = shutil.copytree(run, tmp_path / "away")
    config = (away / "config.yaml").read_text()
    changed = config.replace("name: digits", f"name: {tmp_path / 'gone'}", 1)
    assert changed != config
    (away / "config.yaml").write_text(changed)
    assert main(["report", str(away), *QUICK, "--out", str(tmp_path / "new" / "away.html")]) == 0
    assert "out of reach" in capsys.readouterr().err
    page = (tmp_path / "new" / "away.html").read_text()
    assert page.count("<section id=") == SECTIONS
    assert "data was out of reach" in page
    assert "training images that were saved with the model" in page


def test_a_model_alone(run):
    model = load(run)
    model.extras = None
    plan = Plan(images=20, samples=1, relevance_images=2, examples=1, classes=1)
    named = []
    page = make_report(Source(model, "a <b>name"), plan, progress=named.append)
    assert len(named) == SECTIONS
    assert "Report of a &lt;b&gt;name" in page
    assert page.count("Not shown: ") >= 5
    assert not torch.is_grad_enabled() or model.mixtures.mean.grad is None


@pytest.mark.parametrize(("words", "message"), [
    (["--out", "."], "is a folder"),
    (["--out", "report.pdf"], "must end in .html"),
    (["--images", "0"], "images"),
])  # fmt: skip
def test_errors(run, capsys, words, message):
    assert main(["report", str(run), *words]) == 1
    assert message in capsys.readouterr().err
