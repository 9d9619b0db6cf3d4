"""One explorer for all pages, over a run made in seconds, and a page that looks at it."""

from dataclasses import replace

import pytest

from protoflows.app.server import serve
from protoflows.app.workspace import open_workspace
from protoflows.model import load
from tests.app.pages import PATIENCE
from tests.browser import open_page
from tests.evaluation.run_fixture import untrained_run


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory):
    """A run with its data: overconfident, well above chance, and not always right."""
    return untrained_run(tmp_path_factory.mktemp("app") / "digits-run")


@pytest.fixture(scope="session")
def workspace(run_folder):
    return open_workspace(str(run_folder), limit=200)


@pytest.fixture(scope="session")
def model(workspace):
    return workspace.model


@pytest.fixture(scope="session")
def saved_model(run_folder, tmp_path_factory):
    """The same model without its run, of a data set that nobody knows."""
    model = load(run_folder)
    model.extras = replace(model.extras, data_name="of somebody's", data_fingerprint="")
    folder = tmp_path_factory.mktemp("app") / "saved"
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def kept(tmp_path_factory):
    """Where visitors save edited models."""
    return tmp_path_factory.mktemp("app") / "edited-models"


@pytest.fixture(scope="session")
def served(workspace, kept):
    started = serve(workspace, max_upload_mb=2, keep=kept)
    yield started
    started.close()


@pytest.fixture
def visit(browser, served):
    """Open the explorer as a new visitor."""
    with open_page(browser) as (page, seen):
        page.set_default_timeout(PATIENCE)
        page.goto(served.url)
        page.wait_for_selector("#pf-examples button")
        yield page, seen
