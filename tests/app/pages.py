"""What tests of the explorer's page share."""

# Machines that run tests are slow and shared; conditions are waited for, never a time.
PATIENCE = 120_000


def problems(seen):
    """What a page must not do; that the framework closes its own streams is no problem."""
    closed = ("queue/data", "heartbeat")
    errors = [e for e in seen.errors if not ("ERR_ABORTED" in e and any(c in e for c in closed))]
    return errors + [url for url in seen.requests if not url.startswith("http://127.0.0.1:")]


def open_tab(page, name):
    page.get_by_role("tab", name=name, exact=True).click()


def too_wide(page):
    """How many pixels the page is wider than its window."""
    return page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
