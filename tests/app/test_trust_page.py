"""The tab Trust in a real browser."""

import pytest

from tests.app.pages import open_tab, problems
from tests.browser import broken_pictures

pytestmark = pytest.mark.browser


def test_a_wrong_decision_is_explained(visit):
    page, seen = visit
    open_tab(page, "Trust")
    page.wait_for_selector("#pf-apart .pf-chip")
    assert page.locator("#pf-diagrams .pf-figure img").count() == 3
    assert "as it was loaded" in page.inner_text("#pf-trust")
    assert broken_pictures(page) == []

    page.get_by_label("Compared with").click()
    page.get_by_role("option", name="uniform noise").click()
    page.wait_for_selector("#pf-apart img[alt*='uniform noise']")

    wrong = page.locator("#pf-errors button").first
    label, said = wrong.inner_text().splitlines()[0].split(" → ")
    wrong.click()
    page.wait_for_selector("#pf-explanation .pf-evidence", state="visible")
    assert f"labelled {label}: wrong" in page.inner_text("#pf-explanation")
    assert page.inner_text("#pf-explanation .pf-verdict strong") == said
    assert problems(seen) == []
