"""A headless Chromium for tests marked `browser`, and what a page did that it should not.

A missing Chromium fails those tests: a skipped one would say that a page works which nobody saw.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@dataclass
class Seen:
    """What happened while a page was open.

    Attributes:
        errors: Errors and warnings of the console, uncaught exceptions, requests that failed.
        requests: Addresses of all requests, those of data: and blob: left out.
    """

    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


def find_chromium() -> str:
    """Path of the system's Chromium, or a test failure that says what would do."""
    for name in _NAMES:
        path = shutil.which(name)
        if path:
            return path
    pytest.fail(f"no Chromium found (looked for {', '.join(_NAMES)}): apt install chromium")


# One per module and not per session: while it is open, an event loop runs in this thread, which
# tests of other modules could stumble over.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A running Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=find_chromium(), headless=True,
            args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"],
        )  # fmt: skip
        yield started
        started.close()


@contextmanager
def open_page(
    browser: Browser, *, width: int = 1280, height: int = 900, **options: Any
) -> Iterator[tuple[Page, Seen]]:
    """An empty page and the record of what happens on it; `goto` is the caller's.

    Args:
        browser: The fixture.
        width: Of the window, in CSS pixels.
        height: Of the window.
        options: More of playwright's for the context, such as color_scheme="dark" or offline=True.
    """
    context = browser.new_context(viewport={"width": width, "height": height}, **options)
    page, seen = context.new_page(), Seen()

    def note_request(request: Any) -> None:
        if not request.url.startswith(("data:", "blob:")):
            seen.requests.append(request.url)

    def note_console(message: Any) -> None:
        if message.type in ("error", "warning"):
            seen.errors.append(message.text)

    page.on("request", note_request)
    page.on("console", note_console)
    page.on("pageerror", lambda error: seen.errors.append(str(error)))
    page.on("requestfailed", lambda r: seen.errors.append(f"failed: {r.url[:120]} {r.failure}"))
    try:
        yield page, seen
    finally:
        context.close()


def broken_pictures(page: Page) -> list[str]:
    """Alternative texts of the pictures that did not load, lazy ones included."""
    return page.evaluate(
        """async () => {
            const all = [...document.images];
            all.forEach(image => { image.loading = "eager"; });
            await Promise.all(all.map(image => image.decode().catch(() => {})));
            return all.filter(i => !i.complete || i.naturalWidth === 0).map(i => i.alt || i.src);
        }"""
    )
