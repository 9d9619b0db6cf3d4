"""The tab Explain in a real browser."""

import json

import pytest

from tests.app.pages import problems

pytestmark = pytest.mark.browser


def test_a_chosen_image_is_explained_and_downloads(visit):
    page, seen = visit
    page.click("#pf-examples button >> nth=2")
    page.wait_for_selector("#pf-explanation .pf-evidence")
    shown = page.inner_text("#pf-explanation")
    assert "This looks like that" in shown
    assert "labelled 2" in shown
    assert page.locator("#pf-explanation .pf-card").count() == 3
    with page.expect_download() as started:
        page.click("text=Download as data (JSON)")
    content = json.loads(started.value.path().read_text())
    assert page.inner_text("#pf-explanation .pf-verdict strong") == content["prediction"]
    assert sum(content["posterior"].values()) == pytest.approx(1)
    with page.expect_download() as started:
        page.click("text=Download as page (HTML)")
    assert started.value.suggested_filename == f"why-{content['prediction']}.html"
    assert "<h1>Why" in started.value.path().read_text()
    assert problems(seen) == []
