"""The tab Explain in a real browser."""

import io
import json

import numpy as np
import pytest
from PIL import Image

from tests.app.pages import PATIENCE, open_tab, problems, too_wide
from tests.browser import broken_pictures, open_page

pytestmark = pytest.mark.browser


def encoded(image, kind, **options):
    buffer = io.BytesIO()
    image.save(buffer, format=kind, **options)
    return buffer.getvalue()


def upload(page, content, name="picture.png"):
    page.set_input_files(
        "#pf-upload input", {"name": name, "mimeType": "image/png", "buffer": content}
    )


def test_a_chosen_image_is_explained_and_downloads(visit):
    page, seen = visit
    page.click("#pf-examples button >> nth=2")
    page.wait_for_selector("#pf-explanation .pf-evidence")
    shown = page.inner_text("#pf-explanation")
    assert "This looks like that" in shown
    assert "labelled 2" in shown
    assert page.locator("#pf-explanation .pf-card").count() == 3
    assert broken_pictures(page) == []
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


def test_uploads_good_and_bad(visit, tmp_path):
    page, seen = visit
    noise = np.random.default_rng(0).integers(0, 256, (40, 30, 4), dtype=np.uint8)
    open_tab(page, "Upload")
    for content, words in (
        (b"no picture at all", "cannot be read as a picture"),
        (b"", "The file is empty"),
        (encoded(Image.new("L", (1, 1)), "PNG"), "needs at least 4"),
    ):
        upload(page, content)
        page.wait_for_selector(f"#pf-explanation .pf-error:has-text('{words}')")
    # Too large: never leaves the browser.
    with (tmp_path / "large.png").open("wb") as file:
        file.truncate(50 * 2**20)
    page.set_input_files("#pf-upload input", tmp_path / "large.png")
    page.wait_for_selector("#pf-upload .pf-said:has-text('50.0 MB; at most 2 MB')")
    # Printing colours and frames are read, and said.
    upload(page, encoded(Image.fromarray(noise, "CMYK"), "JPEG"))
    page.wait_for_selector("#pf-explanation:has(.pf-evidence):has-text('printing colours')")
    frames = [Image.fromarray(noise[:, :, c]) for c in (0, 1)]
    upload(page, encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]))
    page.wait_for_selector("#pf-explanation:has(.pf-evidence):has-text('2 frames')")
    assert "only the first" in page.inner_text("#pf-explanation")
    assert problems(seen) == []


def test_a_drawn_one_on_a_phone(browser, served):
    with open_page(browser, width=390, height=800, has_touch=True) as (page, seen):
        page.set_default_timeout(PATIENCE)
        page.goto(served.url)
        page.wait_for_selector("#pf-examples button")
        open_tab(page, "Draw")
        page.click("#pf-draw .pf-send")
        page.wait_for_selector("#pf-explanation .pf-error:has-text('Draw something first')")
        page.locator("#pf-draw canvas").scroll_into_view_if_needed()
        box = page.locator("#pf-draw canvas").bounding_box()
        middle = box["x"] + box["width"] / 2
        page.mouse.move(middle, box["y"] + 0.1 * box["height"])
        page.mouse.down()
        page.mouse.move(middle, box["y"] + 0.9 * box["height"], steps=5)
        page.mouse.up()
        page.click("#pf-draw .pf-send")
        page.wait_for_selector("#pf-explanation:has(.pf-evidence):has-text('drawing was cropped')")
        assert too_wide(page) <= 0
        for name in ("Prototypes", "Travel", "Trust"):
            open_tab(page, name)
            assert too_wide(page) <= 0
        assert problems(seen) == []
