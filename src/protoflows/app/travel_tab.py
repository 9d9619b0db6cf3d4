"""The tab Travel: from one image to another, or to another class, under a slider."""

from __future__ import annotations

from typing import Any

import gradio as gr

from protoflows.app import markup as m
from protoflows.app.edits import Edits
from protoflows.app.travel_view import render_way
from protoflows.app.travel_work import way_to_class, way_to_image
from protoflows.app.uploads import UploadError
from protoflows.app.visitor import (
    Query,
    Visitor,
    choose,
    example_picker,
    example_query,
    html,
    reporter,
    reveal,
)
from protoflows.app.workspace import Workspace

_SHOWN = 20
_TO_CLASS = (
    "Towards the nearest picture that the model takes for another class: a counterfactual, which "
    "shows what it would have to see."
)
_PRIVATE: dict[str, Any] = {"api_visibility": "private"}
_QUICK: dict[str, Any] = {**_PRIVATE, "show_progress": "hidden"}


class TravelTab:
    """The tab's components and what happens in them.

    Args:
        workspace: The model and its data.
        visitor: The visitor's state.
    """

    def __init__(self, workspace: Workspace, visitor: Visitor) -> None:
        self.workspace, self.visitor = workspace, visitor
        names = workspace.model.config.class_names
        self.start, self.end = gr.State(None), gr.State(None)
        with gr.Row(elem_classes="pf-columns"):
            with gr.Column(scale=2, min_width=300), gr.Tabs():
                with gr.Tab("From"):
                    self.first = example_picker(workspace, "pf-from", _SHOWN)
                    self.mine = gr.Button("The image of the tab Explain", size="sm")
                with gr.Tab("To an image"):
                    self.last = example_picker(workspace, "pf-to", _SHOWN)
                with gr.Tab("To a class"):
                    html(m.page(m.note(_TO_CLASS)))
                    self.target = gr.Dropdown(
                        [(name, c) for c, name in enumerate(names)], value=None, label="The class"
                    )
            with gr.Column(scale=3, min_width=300):
                self.result = html(m.page(m.message(_hint(None))), "pf-travel", "way.js")
        self._listen()

    def _listen(self) -> None:
        for event, state in ((self.first.pick, self.start), (self.last.pick, self.end)):
            self._go(event(self._chosen, state, [state, self.result], **_QUICK))
        self._go(
            self.mine.click(
                self._explained, [self.visitor.query, self.start], [self.start, self.result],
                **_QUICK,
            )
        )  # fmt: skip
        self._go(self.target.input(lambda c: c, self.target, self.end, **_QUICK))

    def show_first(self, event: Any) -> None:
        """Something to see when the tab is opened for the first time."""
        begun = event(self._begin, [self.start, self.end], [self.start, self.end], **_QUICK)
        self._go(begun, moved=False)

    def _go(self, event: Any, moved: bool = True) -> None:
        if moved:
            event.then(None, None, None, js=reveal("#pf-travel"), **_PRIVATE)
        event.then(
            self._travel,
            [self.visitor.edits, self.start, self.end], self.result,
            show_progress="minimal", show_progress_on=[self.result], **_PRIVATE,
        )  # fmt: skip

    def _begin(self, start: Query | None, end: Query | int | None) -> tuple[Any, Any]:
        examples = self.workspace.examples()
        if start is not None or end is not None or examples is None:
            return gr.skip(), gr.skip()
        split, _ = examples
        order = choose(split, None, 0, _SHOWN)
        first = order[0]
        other = [i for i in order if int(split.labels[i]) != int(split.labels[first])] or order[-1:]
        one, two = (Query(split.images[i : i + 1], int(split.labels[i])) for i in (first, other[0]))
        return one, two

    def _chosen(self, had: Query | None, event: gr.EventData) -> tuple[Any, Any]:
        try:
            return example_query(self.workspace, event), gr.skip()
        except UploadError as error:
            return had, m.page(m.message(str(error), "error"))

    def _explained(self, query: Query | None, had: Query | None) -> tuple[Any, Any]:
        if query is None:
            gr.Info("No image is open in the tab Explain.")
            return had, gr.skip()
        return query, gr.skip()

    def _travel(
        self,
        edits: Edits,
        start: Query | None,
        end: Query | int | None,
        progress: gr.Progress = gr.Progress(),  # noqa: B008
    ) -> str:
        if start is None or end is None:
            return m.page(m.message(_hint(start)))
        model = self.workspace.edited(edits)
        config, report = model.config, reporter(progress, "Travelling")
        if isinstance(end, Query):
            way = way_to_image(model, start.image, end.image, report)
        else:
            found = way_to_class(model, start.image, end, report)
            if found is None:
                name = config.class_names[end]
                return m.page(m.message(f"The image is {name} already: choose another class."))
            way = found
        return render_way(way, config.class_names, config.flow.levels)


def _hint(start: Query | None) -> str:
    if start is None:
        return "Choose the image to start from."
    return "Choose the image or the class to travel to."
