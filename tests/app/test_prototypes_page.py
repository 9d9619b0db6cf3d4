"""The tab Prototypes in a real browser."""

import pytest

from protoflows.model import load
from tests.app.pages import PATIENCE, open_tab, problems
from tests.browser import open_page

pytestmark = pytest.mark.browser

LIVING = "#pf-score .pf-chip:last-child strong"


def visit_prototypes(page, served):
    page.set_default_timeout(PATIENCE)
    page.goto(served.url)
    open_tab(page, "Prototypes")
    page.wait_for_selector("#pf-score .pf-chip")


def test_edits_are_measured_undone_and_saved_and_no_business_of_others(browser, served, kept):
    with open_page(browser) as (page, seen), open_page(browser) as (other, other_seen):
        visit_prototypes(page, served)
        visit_prototypes(other, served)
        assert page.inner_text(LIVING) == "20"
        page.click("#pf-prototypes [data-pick='3-1']")
        page.wait_for_selector("#pf-open:has-text('Nearest images')")
        assert page.locator("#pf-open .pf-samples").count() > 2

        page.click("text=Switch off")
        page.wait_for_selector(f"{LIVING}:text-is('19')")
        assert "switched off" in page.inner_text("#pf-head")
        assert "changed:" in page.inner_text("#pf-score")
        # A class keeps one.
        page.click("#pf-prototypes [data-pick='3-0']")
        page.wait_for_selector("#pf-head:has-text('3 · prototype 0')")
        page.click("text=Switch off")
        page.wait_for_selector("#pf-said .pf-error:has-text('without a prototype')")

        page.get_by_label("Name", exact=True).fill("the <b>only</b> three")
        page.click("text=Set name")
        page.wait_for_selector("#pf-head:has-text('the <b>only</b> three')")
        page.click("#pf-prototypes [data-pick='5-1']")
        page.wait_for_selector("#pf-head:has-text('5 · prototype 1')")
        page.get_by_label("Take in another").click()
        page.get_by_role("option", name="5 · prototype 0").click()
        page.click("text=Merge")
        page.wait_for_selector(f"{LIVING}:text-is('18')")

        page.click("text=Your edits: 3")
        page.wait_for_selector("#pf-history li:nth-child(3)")  # drawn after the count above
        assert page.locator("#pf-history li").count() == 3
        page.get_by_label("Save the edited model as").fill("../outside")
        page.get_by_role("button", name="Save", exact=True).click()
        page.wait_for_selector("#pf-said .pf-error:has-text('letters, digits')")
        page.get_by_label("Save the edited model as").fill("fewer")
        page.get_by_role("button", name="Save", exact=True).click()
        page.wait_for_selector("#pf-said .pf-done:has-text('Saved to')")
        saved = load(kept / "fewer")
        assert int(saved.mixtures.mask.sum()) == 18
        assert saved.config.prototype_names == {(3, 0): "the <b>only</b> three"}
        assert [p.name for p in kept.iterdir()] == ["fewer"]

        page.click("text=Undo the last")
        page.wait_for_selector(f"{LIVING}:text-is('19')")
        page.click("text=Undo all")
        page.wait_for_selector(f"{LIVING}:text-is('20')")
        assert other.inner_text(LIVING) == "20"
        assert "Nothing" not in other.inner_text("#pf-score")
        assert problems(seen) + problems(other_seen) == []


def test_a_new_draw_keeps_the_radius(browser, served):
    with open_page(browser) as (page, seen):
        visit_prototypes(page, served)
        page.click("#pf-prototypes [data-pick='0-0']")
        page.wait_for_selector("#pf-open:has-text('Nearest images')")
        slider, samples = "#pf-open input[type=range]", "#pf-open [data-frame='7']"
        page.locator(slider).fill("7")
        assert page.is_visible(samples)
        before = page.get_attribute(f"{samples} img >> nth=0", "src")
        page.click("text=New draw")
        page.wait_for_function(
            "([at, was]) => { const i = document.querySelector(at); return i && i.src !== was; }",
            arg=[f"{samples} img", before],
        )
        assert page.input_value(slider) == "7"
        assert page.is_visible(samples)
        assert page.locator("#pf-open [data-frame]:visible").count() == 1
        assert problems(seen) == []
