"""The tab Explain: pick, upload or draw an image, and see why it got its class."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import gradio as gr

from protoflows.app import markup as m
from protoflows.app.drawing import is_dark, read_drawing
from protoflows.app.edits import Edits
from protoflows.app.explain_view import render, render_first
from protoflows.app.uploads import UploadError, read_data_url, read_upload
from protoflows.app.visitor import (
    Query,
    Visitor,
    example_picker,
    example_query,
    html,
    reveal,
    script,
)
from protoflows.app.workspace import Workspace
from protoflows.explain.explanation import Explanation, explain
from protoflows.explain.readout import read_out

_EMPTY = "Choose an image, upload one or draw one: what the model makes of it appears here."
_PRIVATE: dict[str, Any] = {"api_visibility": "private"}


def stages(
    workspace: Workspace, edits: Edits, query: Query | None
) -> Iterator[tuple[Explanation | None, str]]:
    """The class at once, then the explanation; a message where there is none."""
    if query is None:
        yield None, m.page(m.message(_EMPTY))
        return
    model = workspace.edited(edits)
    config = model.config
    first = read_out(model, query.image, samples=4)
    yield None, render_first(query.image[0], first, config.class_names, config.flow.levels)
    e = explain(model, query.image, parts=workspace.parts(edits))
    e = replace(e, notes=(*query.notes, *e.notes))
    yield e, render(e, query.label, edited=bool(edits))


def download(e: Explanation | None, kind: str) -> dict[str, str] | None:
    """An explanation as a file, "html" or "json", for the page's script."""
    if e is None:
        return None
    name = re.sub(r"[^\w-]+", "-", e.prediction).strip("-")[:40] or "class"
    if kind == "html":
        return {"name": f"why-{name}.html", "type": "text/html", "content": e.to_html()}
    return {"name": f"why-{name}.json", "type": "application/json", "content": e.to_json()}


class ExplainTab:
    """The tab's components and what happens in them.

    Args:
        workspace: The model and its data.
        visitor: The visitor's state.
        limit: Largest upload in bytes.
    """

    def __init__(self, workspace: Workspace, visitor: Visitor, limit: int) -> None:
        self.workspace, self.visitor, self.limit = workspace, visitor, limit
        with gr.Row(elem_classes="pf-columns"):
            with gr.Column(scale=2, min_width=300), gr.Tabs():
                with gr.Tab("Choose"):
                    self.examples = example_picker(workspace, "pf-examples")
                with gr.Tab("Upload"):
                    self.file = html(_drop_zone(limit), "pf-upload", "upload.js")
                with gr.Tab("Draw"):
                    self.canvas = html(_canvas(is_dark(workspace.model)), "pf-draw", "draw.js")
            with gr.Column(scale=3, min_width=300):
                self.result = html(m.page(m.message(_EMPTY)), "pf-explanation")
                with gr.Row(elem_classes="pf-tight"):
                    save_html = gr.Button("Download as page (HTML)", size="sm", min_width=140)
                    save_json = gr.Button("Download as data (JSON)", size="sm", min_width=140)
                file = gr.JSON(visible=False)
        self.edits = gr.State(())  # of the model that the explanation shown is by
        for event, read in (
            (self.examples.pick, self._chosen),
            (self.file.upload, self._uploaded),
            (self.canvas.draw, self._drawn),
        ):
            asked = event(
                read, None, [visitor.query, self.result], show_progress="hidden", **_PRIVATE
            )
            self.explain_after(asked)
        for pressed, kind in ((save_html, "html"), (save_json, "json")):
            made = pressed.click(
                lambda e, kind=kind: self._file(e, kind), visitor.explained, file, **_PRIVATE
            )
            made.then(None, file, None, js=script("download.js"), **_PRIVATE)

    def explain_after(self, event: Any) -> Any:
        """Explain the visitor's query when an event has set it."""
        visitor = self.visitor
        event.then(None, None, None, js=reveal("#pf-explanation"), **_PRIVATE)
        return event.then(
            self._explain, [visitor.edits, visitor.query],
            [visitor.explained, self.result, self.edits], show_progress="minimal",
            show_progress_on=[self.result], **_PRIVATE,
        )  # fmt: skip

    def refresh(self, event: Any) -> None:
        """Explain anew when an event finds that the prototypes were edited since."""
        visitor = self.visitor
        event(
            self._again, [visitor.edits, self.edits, visitor.query, visitor.explained],
            [visitor.explained, self.result, self.edits], show_progress="minimal",
            show_progress_on=[self.result], **_PRIVATE,
        )  # fmt: skip

    def _chosen(self, event: gr.EventData) -> tuple[Any, Any]:
        return self._query(lambda: example_query(self.workspace, event))

    def _uploaded(self, event: gr.EventData) -> tuple[Any, Any]:
        def read() -> Query:
            content = read_data_url(getattr(event, "data", None), self.limit)
            found = read_upload(self.workspace.model, content, self.limit)
            return Query(found.images, notes=found.notes)

        return self._query(read)

    def _drawn(self, event: gr.EventData) -> tuple[Any, Any]:
        def read() -> Query:
            content = read_data_url(getattr(event, "data", None), 2**22)
            found = read_drawing(self.workspace.model, content)
            return Query(found.images, notes=found.notes)

        return self._query(read)

    def _query(self, read: Any) -> tuple[Any, Any]:
        """What was asked about; where that cannot be read, a message and nothing to explain."""
        try:
            return read(), gr.skip()
        except UploadError as error:
            return None, m.page(m.message(str(error), "error"))

    def _explain(self, edits: Edits, query: Query | None) -> Iterator[tuple[Any, Any, Edits]]:
        if query is None:  # the message that says why is there already
            yield None, gr.skip(), edits
            return
        for explained, shown in stages(self.workspace, edits, query):
            yield explained, shown, edits

    def _again(
        self, edits: Edits, by: Edits, query: Query | None, explained: Explanation | None
    ) -> Iterator[tuple[Any, Any, Any]]:
        if edits == by or query is None or explained is None:
            yield gr.skip(), gr.skip(), gr.skip()
            return
        yield from self._explain(edits, query)

    def _file(self, e: Explanation | None, kind: str) -> dict[str, str] | None:
        if e is None:
            gr.Info("There is no explanation to download yet.")
        return download(e, kind)


def _drop_zone(limit: int) -> str:
    return m.page(
        f'<label class="pf-drop" data-limit="{limit}"><strong>Choose a picture</strong>'
        "<span>or drop one here</span>"
        f"<small>at most {limit / 2**20:g} MB; it stays on the machine that runs this page and is "
        "not kept</small>"
        '<input type="file" accept="image/*" aria-label="picture to explain"></label>'
        '<p class="pf-said pf-message pf-error" role="alert" hidden></p>'
    )


def _canvas(dark: bool) -> str:
    ink, kind = ("#ffffff", "pf-dark") if dark else ("#000000", "pf-light")
    return m.page(
        f'<canvas class="pf-canvas {kind}" width="280" height="280" data-ink="{ink}" '
        'aria-label="draw here"></canvas>'
        '<div class="pf-buttons"><button type="button" class="pf-send">Explain the drawing</button>'
        '<button type="button" class="pf-wipe">Clear</button></div>'
    )
