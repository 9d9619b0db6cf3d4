"""The tab Prototypes: look through them, switch them off, merge and name them, and see the cost."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gradio as gr

from protoflows.app import markup as m
from protoflows.app import prototypes_view as view
from protoflows.app.edits import (
    Edits,
    Merge,
    Pair,
    Rename,
    SwitchOff,
    apply_edit,
    describe,
    switch_on,
    switched_off,
)
from protoflows.app.keeping import SaveError, save_edited
from protoflows.app.prototypes_work import (
    FIRST_RADIUS,
    Opened,
    head_of,
    open_pages,
    score_page,
)
from protoflows.app.visitor import Visitor, gallery, html, reporter, reveal
from protoflows.app.workspace import Workspace
from protoflows.explain.pictures import prototype_title

_AT_ONCE = 200
"""Prototypes up to which all classes are shown together."""
_HINT = (
    "Press a prototype: its samples, its nearest images and what can be done with it appear here."
)
_PRIVATE: dict[str, Any] = {"api_visibility": "private"}
_QUICK: dict[str, Any] = {**_PRIVATE, "show_progress": "hidden"}


class PrototypesTab:
    """The tab's components and what happens in them.

    Args:
        workspace: The model and its data.
        visitor: The visitor's state.
        keep: Folder that edited models are saved in; None where nothing is saved.
    """

    def __init__(self, workspace: Workspace, visitor: Visitor, keep: Path | None) -> None:
        self.workspace, self.visitor, self.keep = workspace, visitor, keep
        self.names = workspace.model.config.class_names
        self.first = -1 if int(workspace.model.mixtures.mask.sum()) <= _AT_ONCE else 0
        with gr.Row(elem_classes="pf-columns"):
            with gr.Column(scale=2, min_width=300):
                choices = [(name, c) for c, name in enumerate(self.names)]
                everything = [("all classes", -1)] if self.first < 0 else []
                self.label = gr.Dropdown(
                    [*everything, *choices], value=self.first, label="Class", min_width=120
                )
                self.all = gallery(self._gallery((), self.first, None), "pf-prototypes")
            with gr.Column(scale=3, min_width=300):
                self.figures = html(m.page(m.note("Figures appear here.")), "pf-score")
                self.message = html("", "pf-said")
                self.head = html(m.page(m.message(_HINT)), "pf-head")
                self._controls()
                self.open = html("", "pf-open", "pick.js", "way.js")
        self._listen()

    def _controls(self) -> None:
        with gr.Column(visible=False, elem_classes="pf-controls") as self.controls:
            with gr.Row(elem_classes="pf-tight"):
                self.switch = gr.Button("Switch off", min_width=104, scale=1)
                self.partner = gr.Dropdown([], label="Take in another", min_width=130, scale=2)
                self.merge = gr.Button("Merge", min_width=80, scale=1)
            with gr.Row(elem_classes="pf-tight"):
                self.name = gr.Textbox(
                    label="Name", max_length=60, min_width=150, scale=3, max_lines=1
                )
                self.rename = gr.Button("Set name", min_width=90, scale=1)
                # What was last written into the field, by us: what a visitor is typing stays.
                self.written = gr.State(None)
        with gr.Accordion("Your edits", open=False, visible=False) as self.history:
            self.list = html(view.render_edits(self.workspace.model, ()), "pf-history")
            with gr.Row(elem_classes="pf-tight"):
                self.undo = gr.Button("Undo the last", size="sm", min_width=110)
                self.reset = gr.Button("Undo all", size="sm", min_width=90)
            if self.keep is not None:
                with gr.Row(elem_classes="pf-tight"):
                    self.folder = gr.Textbox(
                        label="Save the edited model as", placeholder="a new folder's name",
                        max_length=60, min_width=150, scale=3, max_lines=1,
                        info=f"in {self.keep} on the machine that runs this page",
                    )  # fmt: skip
                    self.save = gr.Button("Save", min_width=80, scale=1)

    # ---- events ---------------------------------------------------------------------------

    def _listen(self) -> None:
        visitor = self.visitor
        state = [visitor.edits, visitor.prototype]
        self.label.input(
            lambda c, edits, opened: self._gallery(edits, c, opened), [self.label, *state],
            self.all, **_QUICK,
        )  # fmt: skip
        for pressed in (self.all.pick, self.open.pick):
            asked = pressed(self._pressed, state, [visitor.prototype, self.message], **_QUICK)
            self._show_controls(asked)
            self._show_open(asked)
            if pressed is self.all.pick:
                asked.then(None, None, None, js=reveal("#pf-score"), **_PRIVATE)
        self._edits(self.switch.click, self._switch, state)
        self._edits(self.undo.click, lambda edits, _: (edits[:-1], ""), state)
        self._edits(self.reset.click, lambda *_: ((), ""), state)
        self._edits(self.merge.click, self._merge, [*state, self.partner])
        for event in (self.rename.click, self.name.submit):
            self._edits(event, self._rename, [*state, self.name])
        if self.keep is not None:
            for event in (self.save.click, self.folder.submit):
                event(self._save, [visitor.edits, self.folder], self.message, **_PRIVATE)

    def _edits(self, event: Any, edit: Callable[..., tuple[Edits, str]], inputs: list[Any]) -> None:
        """Let an event change the edits, and show all that depends on them."""
        visitor = self.visitor

        def change(edits: Edits, *more: Any) -> tuple[Edits, str]:
            try:
                made, words = edit(edits, *more)
                self.workspace.edited(made)
            except ValueError as error:
                return edits, m.page(m.message(_plain(error), "error"))
            return made, m.page(m.message(words, "done")) if words else ""

        made = event(change, inputs, [visitor.edits, self.message], **_QUICK)
        self._show_controls(made)
        self.show_score(made.then)
        self._show_open(made)

    def show_score(self, event: Any) -> None:
        """Measure after an event; the first time takes the encoding of all images."""
        event(
            self._score, self.visitor.edits, self.figures, show_progress="minimal",
            show_progress_on=[self.figures], **_PRIVATE,
        )  # fmt: skip

    def _show_controls(self, event: Any) -> None:
        event.then(
            self._all_controls,
            [self.visitor.edits, self.visitor.prototype, self.label, self.written],
            [self.all, self.controls, self.switch, self.partner, self.merge, self.name,
             self.written, self.history, self.list, self.head], **_QUICK,
        )  # fmt: skip

    def _show_open(self, event: Any) -> None:
        event.then(
            self._opened, [self.visitor.edits, self.visitor.prototype], self.open,
            show_progress="minimal", show_progress_on=[self.open], **_PRIVATE,
        )  # fmt: skip

    # ---- what events do -------------------------------------------------------------------

    def _pressed(
        self, edits: Edits, opened: Opened | None, event: gr.EventData
    ) -> tuple[Opened | None, str]:
        """A prototype, or a new draw of the one that is open: "c-k", or "draw-radius"."""
        first, _, second = str(getattr(event, "value", "")).partition("-")
        if first == "draw":
            if opened is None:
                return opened, ""
            at = int(second) if second.isdecimal() and len(second) < 3 else FIRST_RADIUS  # noqa: PLR2004
            return Opened(opened.prototype, random.randrange(2**31), at), ""
        shape = self.workspace.model.mixtures.mask.shape
        if not (first.isdecimal() and second.isdecimal()):
            return opened, m.page(m.message("There is no such prototype.", "error"))
        c, k = int(first), int(second)
        if c >= shape[0] or k >= shape[1] or not bool(self.workspace.model.mixtures.mask[c, k]):
            return opened, m.page(m.message("There is no such prototype.", "error"))
        return Opened((c, k)), ""

    def _switch(self, edits: Edits, opened: Opened | None) -> tuple[Edits, str]:
        pair = _chosen(opened)
        if pair in switched_off(edits):
            title = prototype_title(self.workspace.model, pair)
            return switch_on(edits, pair), f"{title} is on again."
        return self._made(edits, SwitchOff(pair))

    def _merge(self, edits: Edits, opened: Opened | None, partner: int | None) -> tuple[Edits, str]:
        c, k = _chosen(opened)
        if partner is None:
            raise ValueError("Choose the prototype that this one is to take in.")
        return self._made(edits, Merge((c, k), (c, int(partner))))

    def _rename(self, edits: Edits, opened: Opened | None, name: str) -> tuple[Edits, str]:
        pair = _chosen(opened)
        had = self.workspace.edited(edits).config.prototype_names.get(pair, "")
        if name.strip() == had:
            return edits, ""
        return self._made(edits, Rename(pair, name))

    def _made(self, edits: Edits, edit: Any) -> tuple[Edits, str]:
        model = self.workspace.edited(edits)
        apply_edit(model, edit)  # refuses what cannot be, before it is on the list
        return (*edits, edit), f"{describe(model, edit)}."

    def _save(self, edits: Edits, name: str) -> str:
        if self.keep is None or not edits:
            return m.page(m.message("There is nothing to save: no prototype was edited.", "error"))
        try:
            place = save_edited(self.workspace.edited(edits), edits, self.keep, name or "")
        except SaveError as error:
            return m.page(m.message(str(error), "error"))
        except OSError as error:
            why = error.strerror or "the disk refused"
            return m.page(m.message(f"It could not be saved: {why}.", "error"))
        return m.page(m.message(f"Saved to {place}. See it with: protoflows app {place}", "done"))

    # ---- what is shown --------------------------------------------------------------------

    def _gallery(self, edits: Edits, label: int, opened: Opened | None) -> str:
        model = self.workspace.edited(edits)
        labels = range(len(self.names)) if label < 0 else [label]
        images = {p: i for c in labels for p, i in self.workspace.mean_images(edits, c).items()}
        return view.render_gallery(model, edits, images, opened.prototype if opened else None)

    def _all_controls(
        self, edits: Edits, opened: Opened | None, label: int, written: tuple[Pair, str] | None
    ) -> tuple[Any, ...]:
        shown = self._gallery(edits, label, opened)
        about = (
            gr.update(visible=bool(edits), label=f"Your edits: {len(edits)}"),
            view.render_edits(self.workspace.model, edits),
        )
        if opened is None:
            return (shown, *[gr.skip()] * 6, *about, gr.skip())
        workspace, (c, k) = self.workspace, opened.prototype
        model = workspace.edited(edits)
        off, alive = (c, k) in switched_off(edits), bool(model.mixtures.mask[c, k])
        partners = [
            (prototype_title(model, (c, j)), j)
            for j in model.mixtures.mask[c].nonzero().flatten().tolist()
            if j != k
        ]
        name = model.config.prototype_names.get((c, k), "")
        value: dict[str, Any] = {} if written == ((c, k), name) else {"value": name}
        return (
            shown,
            gr.update(visible=True),
            gr.update(value="Switch on" if off else "Switch off", interactive=off or alive),
            gr.update(choices=partners, value=None, interactive=alive and bool(partners)),
            gr.update(interactive=alive and bool(partners)),
            gr.update(interactive=alive, **value),
            ((c, k), name),
            *about,
            m.page(head_of(workspace, edits, (c, k))),
        )

    def _score(self, edits: Edits, progress: gr.Progress = gr.Progress()) -> str:  # noqa: B008
        return score_page(self.workspace, edits, reporter(progress, "Measuring"))

    def _opened(
        self,
        edits: Edits,
        opened: Opened | None,
        progress: gr.Progress = gr.Progress(),  # noqa: B008
    ) -> Iterator[Any]:
        if opened is None:
            yield gr.skip()
            return
        yield from open_pages(self.workspace, edits, opened, lambda what: reporter(progress, what))


def _chosen(opened: Opened | None) -> Pair:
    if opened is None:
        raise ValueError("Press a prototype first.")
    return opened.prototype


def _plain(error: ValueError) -> str:
    """A message for visitors: begins with a capital, ends with a full stop."""
    words = str(error)
    return words[:1].upper() + words[1:] + ("" if words.endswith(".") else ".")
