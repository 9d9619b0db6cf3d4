"""The tab Trust: figures, diagrams, foreign images and wrong decisions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gradio as gr

from protoflows.app import markup as m
from protoflows.app import trust_view as view
from protoflows.app.edits import Edits
from protoflows.app.explain_tab import ExplainTab
from protoflows.app.trust_work import errors, tell_apart
from protoflows.app.uploads import UploadError
from protoflows.app.visitor import Query, Visitor, gallery, html, picked_index, reporter
from protoflows.app.workspace import Workspace

_PRIVATE: dict[str, Any] = {"api_visibility": "private"}
_NOTHING = (
    "No labelled test images are within reach, so that nothing can be measured: say where the "
    "model's data set is with --data-root."
)
_WAIT = "The test images are being encoded …"


class TrustTab:
    """The tab's components and what happens in them.

    Args:
        workspace: The model and its data.
        visitor: The visitor's state.
        explain: The tab that a wrong decision opens.
        tabs: All tabs.
    """

    def __init__(
        self, workspace: Workspace, visitor: Visitor, explain: ExplainTab, tabs: gr.Tabs
    ) -> None:
        self.workspace, self.visitor = workspace, visitor
        kinds = workspace.other_kinds()
        some = workspace.measured() is not None
        first = m.page(m.note(_WAIT) if some else m.message(_NOTHING))
        self.summary = html(first, "pf-trust")
        self.errors = gallery("", "pf-errors")
        self.diagrams = html("", "pf-diagrams")
        with gr.Column(visible=bool(kinds)):
            html(m.page(m.heading("Does it notice images that are not of its kind?")))
            self.kind = gr.Dropdown(
                list(kinds), value=kinds[0] if kinds else None, label="Compared with"
            )
            self.apart = html("", "pf-apart")
        self.kind.input(
            self._apart, [visitor.edits, self.kind], self.apart, show_progress="minimal",
            show_progress_on=[self.apart], **_PRIVATE,
        )  # fmt: skip
        asked = self.errors.pick(
            self._wrong, None, [visitor.query, explain.result, tabs], show_progress="hidden",
            **_PRIVATE,
        )  # fmt: skip
        explain.explain_after(asked)

    def show(self, event: Any) -> None:
        """Measure after an event; the first time takes the encoding of all images."""
        event(
            self._measure, [self.visitor.edits, self.kind],
            [self.summary, self.errors, self.diagrams, self.apart], show_progress="minimal",
            show_progress_on=[self.summary, self.apart], **_PRIVATE,
        )  # fmt: skip

    def _measure(
        self,
        edits: Edits,
        kind: str | None,
        progress: gr.Progress = gr.Progress(),  # noqa: B008
    ) -> Iterator[tuple[Any, ...]]:
        workspace = self.workspace
        found = workspace.measured()
        if found is None:
            return
        split, where = found
        config = workspace.model.config
        report = reporter(progress, "Encoding test images")
        score = workspace.score(edits, split, report)
        answers = workspace.answers(edits, split)
        names, levels = config.class_names, config.flow.levels
        wrong = errors(answers, split.labels)
        summary = view.render_summary(score, where, len(edits))
        gallery_of = view.render_errors(split, answers, wrong, names, levels)
        yield summary, gallery_of, gr.skip(), gr.skip()
        diagrams = workspace.cached(
            ("diagrams", edits), lambda: view.render_diagrams(answers, split.labels, names)
        )
        yield gr.skip(), gr.skip(), diagrams, gr.skip()
        if kind is not None:
            yield gr.skip(), gr.skip(), gr.skip(), self._apart(edits, kind, progress)

    def _apart(
        self,
        edits: Edits,
        kind: str,
        progress: gr.Progress = gr.Progress(),  # noqa: B008
    ) -> str:
        found = tell_apart(self.workspace, edits, kind, reporter(progress, "Encoding images"))
        return m.page(m.message(_NOTHING)) if found is None else view.render_apart(found, kind)

    def _wrong(self, event: gr.EventData) -> tuple[Any, Any, Any]:
        found = self.workspace.measured()
        if found is None:
            return gr.skip(), gr.skip(), gr.skip()
        split, _ = found
        try:
            i = picked_index(event, len(split))
        except UploadError as error:
            return None, m.page(m.message(str(error), "error")), gr.skip()
        query = Query(split.images[i : i + 1], int(split.labels[i]))
        return query, gr.skip(), gr.Tabs(selected="explain")
