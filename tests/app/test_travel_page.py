"""The tab Travel in a real browser: a slider that follows the hand."""

import statistics

import pytest

from tests.app.pages import open_tab, problems

pytestmark = pytest.mark.browser

SLIDER = "#pf-travel input[type=range]"
ALLOWED_MS = 300

# From the moment of the key's event to a frame that has the new picture on it.
WATCH = """(where) => {
    window.moves = [];
    document.querySelector(where).addEventListener("input", (event) => {
        requestAnimationFrame(() => setTimeout(() => {
            const seen = document.querySelector("#pf-travel [data-frame]:not([hidden]) img");
            window.moves.push([performance.now() - event.timeStamp, seen.alt]);
        }));
    });
}"""


def test_the_slider_follows_the_hand(visit, record_property):
    page, seen = visit
    open_tab(page, "Travel")
    page.wait_for_selector(SLIDER)
    assert "Both ends are exact" in page.inner_text("#pf-travel")
    ends = page.locator("#pf-travel .pf-end")
    frames = page.locator("#pf-travel [data-frame] img")
    assert frames.first.get_attribute("src") == ends.first.get_attribute("src")
    assert frames.last.get_attribute("src") == ends.last.get_attribute("src")

    page.locator(SLIDER).fill("0")
    page.evaluate(WATCH, SLIDER)
    page.locator(SLIDER).focus()
    for step in range(1, 11):
        page.keyboard.press("ArrowRight")
        page.wait_for_function("(n) => window.moves.length === n", arg=step)
    moves = page.evaluate("window.moves")
    assert [alt for _, alt in moves] == [f"picture {n} of 41" for n in range(2, 12)]
    took = sorted(ms for ms, _ in moves)
    median = statistics.median(took)
    record_property("slider_to_picture_ms", median)
    print(f"slider to picture: median {median:.0f} ms, most {took[-1]:.0f} ms")
    # The bar is for an idle machine: of ten moves, three must not be disturbed by others.
    assert took[2] <= ALLOWED_MS
    left = page.locator("#pf-travel .pf-cursor").first.evaluate("e => e.style.left")
    assert left == "25%"
    assert problems(seen) == []


def test_towards_a_class(visit):
    page, seen = visit
    open_tab(page, "Travel")
    page.wait_for_selector(SLIDER)
    page.locator(SLIDER).fill("3")
    assert page.locator("#pf-travel [data-frame]:visible").get_attribute("data-frame") == "3"
    open_tab(page, "To a class")
    page.get_by_label("The class").click()
    page.get_by_role("option", name="8", exact=True).click()
    page.wait_for_selector("#pf-travel:has-text('makes it 8')")
    assert "Both ends are exact" in page.inner_text("#pf-travel")
    # The slider stands at the picture that is seen.
    shown = page.locator("#pf-travel [data-frame]:visible").get_attribute("data-frame")
    assert page.input_value(SLIDER) == shown == "20"
    assert problems(seen) == []
