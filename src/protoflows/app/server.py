"""The server: local unless told otherwise, and silent towards all other machines."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

# Before gradio is imported: it reads them then.
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

import gradio as gr  # noqa: E402
from starlette.middleware import Middleware  # noqa: E402

from protoflows.app.build import DEFAULT_UPLOAD, build_page, style, theme  # noqa: E402
from protoflows.app.guard import Guard  # noqa: E402
from protoflows.app.workspace import Workspace  # noqa: E402

_AT_ONCE = 4
_OVERHEAD = 2**20  # of an event around its file


@dataclass(frozen=True, eq=False)
class Served:
    """A running page.

    Attributes:
        url: Where it is.
        page: The page, to be closed.
        folder: Files on their way to visitors.
    """

    url: str
    page: gr.Blocks
    folder: Path

    def wait(self) -> None:
        """Until the process is interrupted."""
        threading.Event().wait()

    def close(self) -> None:
        """Stop, and leave nothing behind."""
        self.page.close(verbose=False)
        shutil.rmtree(self.folder, ignore_errors=True)


def serve(
    workspace: Workspace,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    max_upload_mb: float = DEFAULT_UPLOAD,
    open_browser: bool = False,
    keep: Path | None = None,
) -> Served:
    """Start the page in threads of its own.

    Args:
        workspace: The model and its data.
        host: Address to listen at; "0.0.0.0" for all that this machine has.
        port: Port; the first free one from 7860 on when None.
        max_upload_mb: Largest upload in MB (2^20 bytes).
        open_browser: Whether to open the page in this machine's browser.
        keep: Folder that edited models are saved in; None where nothing is saved.
    """
    if not 0 < max_upload_mb <= 1000:
        raise ValueError(f"max_upload_mb must be above 0 and at most 1000, got {max_upload_mb}")
    if port is not None and not 1 <= port <= 65535:
        raise ValueError(f"port must be from 1 to 65535, got {port}")
    limit = int(max_upload_mb * 2**20)
    folder = Path(tempfile.mkdtemp(prefix="protoflows-app-"))
    os.environ["GRADIO_TEMP_DIR"] = str(folder)
    page = build_page(workspace, upload_limit=limit, keep=keep)
    page.queue(default_concurrency_limit=_AT_ONCE, api_open=False)
    guard = Middleware(Guard, limit=max(4 * limit // 3, 2**22) + _OVERHEAD)
    try:
        _, url, _ = page.launch(
            server_name=host, server_port=port, inbrowser=open_browser, share=False, quiet=True,
            prevent_thread_lock=True, show_error=True, ssr_mode=False, footer_links=[],
            run_history=False, enable_monitoring=False, mcp_server=False, max_file_size=0,
            theme=theme(), css=style(), app_kwargs={"middleware": [guard]},
        )  # fmt: skip
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise ValueError(
            f"cannot listen at {host}, port {port or 'from 7860 on'}: choose another --port"
        ) from error
    return Served(url, page, folder)
