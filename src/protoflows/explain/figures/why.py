"""This looks like that: an explanation as one figure."""

from __future__ import annotations

import textwrap

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.patheffects import withStroke
from torch import Tensor

from protoflows.explain.explanation import Explanation, PrototypeEvidence
from protoflows.explain.figures.style import (
    COLOURS,
    GREY,
    PART_COLOUR,
    as_picture,
    frame_box,
    limit_of,
    plain,
    quiet,
    show_heat,
    show_image,
)
from protoflows.explain.parts import crop

_BARS = 5
_WIDTH, _HEAD, _ROW = 12.4, 3.1, 1.5


def draw_explanation(e: Explanation) -> Figure:
    """The image, its class and likelihood, exact evidence, and a row for every top prototype."""
    rows = len(e.prototypes)
    height = _HEAD + _ROW * rows + 0.55
    figure = Figure(figsize=(_WIDTH, height))
    _draw_head(figure, e, height)
    spec = figure.add_gridspec(
        rows, 9, width_ratios=[1.35, 1, 1, 1, 0.2, 1, 0.2, 1, 1], wspace=0.12, hspace=0.18,
        left=0.015, right=0.985, top=1 - (_HEAD + 0.5) / height, bottom=0.06 / height,
    )  # fmt: skip
    maps = [p.heatmap for p in e.prototypes if p.heatmap is not None]
    contrasts = [p.contrast for p in e.prototypes if p.contrast is not None]
    limits = limit_of(*maps), limit_of(*contrasts)
    for row, p in enumerate(e.prototypes):
        _draw_prototype(figure, spec, row, e, p, limits)
    return figure


def _draw_head(figure: Figure, e: Explanation, height: float) -> None:
    top, bottom = 1 - 0.85 / height, 1 - (_HEAD - 0.35) / height
    spec = figure.add_gridspec(
        1, 6, width_ratios=[1.05, 0.62, 1.0, 0.35, 1.1, 1.75], wspace=0.2, left=0.03,
        right=0.97, top=top, bottom=bottom,
    )  # fmt: skip
    axes = figure.add_subplot(spec[0, 0])
    show_image(axes, e.image, e.levels, "the image", 9)
    axes = figure.add_subplot(spec[0, 2])
    _draw_posterior(axes, e)
    if e.evidence is not None:
        _draw_evidence(figure.add_subplot(spec[0, 4]), e)
    axes = figure.add_subplot(spec[0, 5])
    axes.axis("off")
    lines = [
        f"log p(x) = {e.log_prob:,.1f} nats",
        *textwrap.wrap(e.usual(), 44),
        "",
        *(line for note in e.notes for line in textwrap.wrap(note, 44)),
    ]
    axes.text(0.12, 1.0, "\n".join(lines[:13]), va="top", fontsize=7.5, linespacing=1.35)
    figure.suptitle(
        f"Class {plain(e.prediction)}, {100 * float(e.posterior[e.label]):.1f} %: "
        "this looks like that",
        fontsize=12, x=0.03, ha="left", y=1 - 0.08 / height, va="top",
    )  # fmt: skip


def _draw_posterior(axes: Axes, e: Explanation) -> None:
    values, order = e.posterior.sort(descending=True, stable=True)
    count = min(_BARS, len(values))
    names = [plain(e.class_names[i], 14) for i in order[:count].tolist()]
    shares = [100 * v for v in values[:count].tolist()]
    colours = [COLOURS[0], *["#a9c7dc"] * (count - 1)]
    axes.barh(range(count), shares, color=colours, height=0.7)
    for place, share in enumerate(shares):
        axes.text(
            min(share, 100) + 2, place, f"{share:.1f} %", va="center", fontsize=7.5, clip_on=False
        )
    axes.set_yticks(range(count), names, fontsize=8)
    axes.set(xlim=(0, 100))
    axes.set_xticks([])
    axes.invert_yaxis()
    quiet(axes)
    axes.grid(False)
    axes.spines["bottom"].set_visible(False)
    axes.set_title("p(class | image)", fontsize=9)


def _draw_evidence(axes: Axes, e: Explanation) -> None:
    assert e.evidence is not None
    found = e.evidence
    cells = found.cells[0]
    limit = limit_of(cells)
    height, width = e.image.shape[1:]
    h, w = cells.shape
    # The grid lies over the image; where the image was padded, cells reach past its edge.
    tall, wide = h * found.cell_size[0], w * found.cell_size[1]
    show_heat(axes, cells, limit, extent=(-0.5, wide - 0.5, tall - 0.5, -0.5))
    axes.imshow(
        as_picture(e.image.double().mean(0, keepdim=True), e.levels),
        cmap="gray", vmin=0, vmax=1, alpha=0.18, extent=(-0.5, width - 0.5, height - 0.5, -0.5),
    )  # fmt: skip
    axes.set_xlim(-0.5, wide - 0.5)
    axes.set_ylim(tall - 0.5, -0.5)
    if h * w <= 16:
        for i in range(h):
            for j in range(w):
                value = float(cells[i, j])
                dark = abs(value) > 0.6 * limit
                ink, halo = ("white", "black") if dark else ("black", "white")
                axes.text(
                    (j + 0.5) * found.cell_size[1] - 0.5, (i + 0.5) * found.cell_size[0] - 0.5,
                    f"{value:+.1f}" if abs(value) < 100 else f"{value:+.0f}", ha="center",
                    va="center", fontsize=8, color=ink,
                    path_effects=[withStroke(linewidth=1.6, foreground=halo)],
                )  # fmt: skip
    target, other = (plain(e.class_names[c], 10) for c in (found.target[0], found.against[0]))
    axes.set_title(f"exact evidence, nats: {target} (orange)\nagainst {other} (purple)", fontsize=8)
    axes.set_xlabel(
        f"cells {float(cells.sum()):+.1f}, rest {float(found.remainder[0]):+.1f}, "
        f"log-odds {float(found.log_odds[0]):+.1f}",
        fontsize=7.5,
    )


def _draw_prototype(
    figure: Figure,
    spec: GridSpec,
    row: int,
    e: Explanation,
    p: PrototypeEvidence,
    limits: tuple[float, float],
) -> None:
    axes = figure.add_subplot(spec[row, 0])
    axes.axis("off")
    text = [*textwrap.wrap(plain(p.title, 60), 26), f"{_share(p.share)} of the decision"]
    text.append(f"log p(z|prototype) = {p.log_likelihood:,.1f}")
    axes.text(0, 0.5, "\n".join(text), va="center", fontsize=8.5, linespacing=1.5)
    first = row == 0
    axes = figure.add_subplot(spec[row, 1])
    show_image(axes, p.mean_image, e.levels, "prototype's mean" if first else "", 8.5)
    if p.heatmap is None or p.top is None or p.part is None:
        return
    axes = figure.add_subplot(spec[row, 2])
    _draw_query(axes, e, p)
    if first:
        axes.set_title("this: part and\ntop 5 % of pixels", fontsize=8.5)
    axes = figure.add_subplot(spec[row, 3])
    _draw_map(figure, axes, p.heatmap, limits[0])
    if first:
        by = "z" if e.by == "latent" else "x"
        axes.set_title(f"nats a patch adds\nto log p({by}|prototype)", fontsize=8.5)
    if p.contrast is not None:
        axes = figure.add_subplot(spec[row, 5])
        _draw_map(figure, axes, p.contrast, limits[1])
        if first:
            axes.set_title("nats it adds to the\nlead over other classes", fontsize=8.5)
    if p.retrieved is not None:
        axes = figure.add_subplot(spec[row, 7])
        show_image(axes, p.retrieved.image, e.levels)
        frame_box(axes, p.retrieved.box)
        if first:
            axes.set_title("that: likeliest part\nof training images", fontsize=8.5)
        _draw_pair(figure, spec, row, e, p, first)


def _draw_map(figure: Figure, axes: Axes, heat: Tensor, limit: float) -> None:
    """Signed values with their scale beside them."""
    shown = show_heat(axes, heat, limit)
    bar = axes.inset_axes((1.03, 0.0, 0.06, 1.0))
    figure.colorbar(shown, cax=bar)
    bar.tick_params(labelsize=6, length=2)


def _draw_query(axes: Axes, e: Explanation, p: PrototypeEvidence) -> None:
    show_image(axes, e.image, e.levels)
    assert p.top is not None
    assert p.part is not None
    overlay = np.zeros((*p.top.shape, 4))
    overlay[..., :3] = to_rgb(COLOURS[4])
    overlay[..., 3] = 0.75 * p.top.numpy()
    axes.imshow(overlay, interpolation="nearest")
    frame_box(axes, p.part)


def _draw_pair(
    figure: Figure, spec: GridSpec, row: int, e: Explanation, p: PrototypeEvidence, first: bool
) -> None:
    """Both parts side by side, large."""
    assert p.retrieved is not None
    assert p.part is not None
    outer = figure.add_subplot(spec[row, 8])
    outer.axis("off")
    if first:
        outer.set_title("the parts", fontsize=8.5, color=PART_COLOUR)
    pair = (("this", crop(e.image, p.part)), ("that", crop(p.retrieved.image, p.retrieved.box)))
    for place, (name, part) in enumerate(pair):
        axes = outer.inset_axes((0.04 + 0.52 * place, 0.2, 0.44, 0.6))
        show_image(axes, part, e.levels)
        axes.set_xlabel(name, fontsize=8, color=GREY)


def _share(share: float) -> str:
    return f"{100 * share:.1f} %" if share >= 0.0005 else "< 0.1 %"
