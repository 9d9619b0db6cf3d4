"""What belongs to one visitor, and the component that galleries are made of."""

from __future__ import annotations

import importlib.resources
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gradio as gr
import torch
from torch import Tensor

from protoflows.app import markup as m
from protoflows.app.uploads import UploadError
from protoflows.app.workspace import Workspace
from protoflows.data import Split

SHOWN = 40


@dataclass(frozen=True, eq=False)
class Query:
    """The image that a visitor asks about.

    Attributes:
        image: As the model takes it, uint8 (1, C, H, W).
        label: Its class where known, −1 else.
        notes: What was done to it.
    """

    image: Tensor
    label: int = -1
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Visitor:
    """One visitor's state: every page that is open has its own.

    Attributes:
        edits: What was done to the prototypes, `edits.Edits`.
        query: The image of the tab Explain, a `Query`.
        explained: Its `Explanation`.
        prototype: The prototype that is open in the tab Prototypes.
    """

    edits: gr.State = field(default_factory=lambda: gr.State(()))
    query: gr.State = field(default_factory=lambda: gr.State(None))
    explained: gr.State = field(default_factory=lambda: gr.State(None))
    prototype: gr.State = field(default_factory=lambda: gr.State(None))


def script(name: str) -> str:
    """A file of the page, by name."""
    home = importlib.resources.files("protoflows.app").joinpath("web", name)
    return home.read_text(encoding="utf-8")


def reveal(where: str) -> str:
    """A script for where everything stands in one column: on to what a press changed."""
    return script("reveal.js").replace("WHERE", where)


def html(value: str = "", elem_id: str | None = None, *js: str, **more: Any) -> gr.HTML:
    """A piece of the page; `js` names the scripts that listen in it."""
    # Braces: what one script declares is no other's business.
    scripts = "\n".join(f"{{ {script(name)} }}" for name in js)
    return gr.HTML(
        value, elem_id=elem_id, js_on_load=scripts or None, apply_default_css=False, **more
    )


def gallery(value: str = "", elem_id: str | None = None) -> gr.HTML:
    """Pictures to press: its event "pick" brings the `value` of `markup.button`."""
    return html(value, elem_id, "pick.js")


def picked_index(event: gr.EventData, count: int) -> int:
    """The number that a press reported."""
    value = str(getattr(event, "value", ""))
    if not value.isdecimal() or int(value) >= count:
        raise UploadError("There is no such image.")
    return int(value)


def choose(split: Split, label: int | None, page: int, shown: int = SHOWN) -> list[int]:
    """Indices of a page of images, of one class or of all in turn; pages repeat at the end."""
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(split), generator=generator)
    labels = split.labels[order]
    if label is None:
        # Round after round one image of each class, so that every page has all classes.
        turn = torch.zeros(len(order), dtype=torch.int64)
        for c in labels.unique().tolist():
            members = (labels == c).nonzero().flatten()
            turn[members] = torch.arange(len(members))
        order = order[(turn * (int(labels.max()) + 2) + labels).argsort(stable=True)]
    else:
        order = order[labels == label]
    if not len(order):
        return []
    start = page * shown % len(order)
    return order[start : start + shown].tolist()


def render_examples(
    workspace: Workspace, label: int | None = None, page: int = 0, shown: int = SHOWN
) -> str:
    """A page of images to choose from."""
    examples = workspace.examples()
    if examples is None:
        return m.page(m.message("There are no images to choose from: upload or draw one."))
    split, kind = examples
    names, levels = workspace.model.config.class_names, workspace.model.config.flow.levels
    buttons = []
    for i in choose(split, label, page, shown):
        c = int(split.labels[i])
        name = names[c] if c >= 0 else "no label"
        picture = m.img(m.image_url(split.images[i], levels), "")
        buttons.append(m.button(picture, i, f"image {i}, labelled {name}"))
    found = m.note(f"{len(split):,} {kind}" + ("" if label is None else f"; of {names[label]}"))
    if not buttons:
        return m.page(m.note(f"No {kind} of that class."))
    return m.page(found, f'<div class="pf-grid-small">{"".join(buttons)}</div>')


def example_picker(workspace: Workspace, elem_id: str, num: int = SHOWN) -> gr.HTML:
    """Images to choose from, with a choice of class and more of them."""
    names = workspace.model.config.class_names
    page = gr.State(0)
    with gr.Row(elem_classes="pf-tight"):
        wanted = gr.Dropdown(
            [("all classes", -1), *[(name, c) for c, name in enumerate(names)]], value=-1,
            label="Class", min_width=120, scale=2,
        )  # fmt: skip
        more = gr.Button("Other images", size="sm", min_width=100, scale=1)
    shown = gallery(render_examples(workspace, shown=num), elem_id)

    def show(label: int, number: int) -> str:
        return render_examples(workspace, None if label < 0 else label, number, num)

    quick: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
    wanted.input(lambda label: (0, show(label, 0)), wanted, [page, shown], **quick)
    more.click(lambda label, n: (n + 1, show(label, n + 1)), [wanted, page], [page, shown], **quick)
    return shown


def example_query(workspace: Workspace, event: gr.EventData) -> Query:
    """The image of a picker that was pressed."""
    examples = workspace.examples()
    if examples is None:
        raise UploadError("There are no images to choose from.")
    split, _ = examples
    i = picked_index(event, len(split))
    return Query(split.images[i : i + 1], int(split.labels[i]))


def reporter(progress: gr.Progress, what: str) -> Callable[[int, int], None]:
    """Progress as the page shows it."""
    return lambda done, total: progress((done, total), desc=what, unit="steps")
