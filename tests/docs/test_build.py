"""The site builds without a warning, and its pages fetch nothing from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.docs.examples import ROOT

pytest.importorskip("sphinx", reason="the extra `docs` is not installed")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site."""
    out = tmp_path_factory.mktemp("site")
    words = ["-q", "-W", "--keep-going", "-b", "html", "-d", str(out / "trees"), "docs", str(out)]
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *words], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return out


pytestmark = pytest.mark.slow


def test_every_page_is_there(site):
    built = {file.relative_to(site).with_suffix("").as_posix() for file in site.rglob("*.html")}
    pages = {
        file.relative_to(ROOT / "docs").with_suffix("").as_posix()
        for file in (ROOT / "docs").rglob("*.md")
        if "_build" not in file.parts
    }
    assert pages <= built


def test_nothing_is_fetched(site):
    loaded = re.compile(r"<(?:script|link|img|iframe|source)[^>]+(?:src|href)=\"(https?:|//)")
    for file in site.rglob("*.html"):
        assert not loaded.search(file.read_text(encoding="utf-8")), file.name
    for file in site.rglob("*.css"):
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"(url\(|@import)\s*['\"]?(https?:|//)", text), file.name


def test_formulas_are_drawn(site):
    text = (site / "mathematics.html").read_text(encoding="utf-8")
    source = (ROOT / "docs/mathematics.md").read_text(encoding="utf-8")
    assert text.count("<math") == source.count("$$") // 2 > 0
    assert "$$" not in text
    assert "\\frac" not in text


def test_the_api_is_listed(site):
    for module, names in {
        "model": ["protoflows.model.ProtoFlow.predict_proba", "protoflows.model.load"],
        "explain": ["protoflows.explain.explain"],
        "flows": ["protoflows.flows.DenseFlow.encode"],
        "prototypes": ["protoflows.prototypes.modified_hellinger"],
    }.items():
        text = (site / "api" / f"{module}.html").read_text(encoding="utf-8")
        for name in names:
            assert f'id="{name}"' in text


def test_equations_link_to_their_functions(site):
    """A reference that leads nowhere is drawn as plain code, without a warning."""
    text = (site / "mathematics.html").read_text(encoding="utf-8")
    source = (ROOT / "docs" / "mathematics.md").read_text(encoding="utf-8")
    for name in re.findall(r"\{py:obj\}`([\w.]+)`", source):
        assert f'.html#{name}"' in text, name
