"""What the figures have in common: colours that colour-blind readers tell apart, quiet axes."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

# Okabe and Ito's palette without yellow, which is too pale on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
GREY = "#777777"
PART_COLOUR = "#D55E00"
DIVERGING = "PuOr"
SEQUENTIAL = "viridis"


def quiet(axes: Axes) -> None:
    """Leave out what frames nothing, and put a light grid behind the data."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)


def as_picture(image: Tensor, levels: int) -> np.ndarray:
    """An image (C, H, W) in levels as matplotlib has it: (H, W) grey or (H, W, 3), from 0 to 1."""
    values = image.detach().cpu().double().numpy() / (levels - 1)
    if len(values) == 3:
        return np.moveaxis(values, 0, 2)
    if len(values) == 1:
        return np.asarray(values[0])
    return np.asarray(values.mean(0))  # no colours known for other numbers of channels


def show_image(axes: Axes, image: Tensor, levels: int, title: str = "", size: float = 8) -> None:
    """Draw an image without ticks; grey ones from black to white, whatever their range."""
    axes.imshow(as_picture(image, levels), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    bare(axes)
    if title:
        axes.set_title(title, fontsize=size)


def bare(axes: Axes) -> None:
    """No ticks, a thin frame."""
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set(color="#999999", linewidth=0.6)


def frame_box(axes: Axes, box: Tensor, colour: str = PART_COLOUR) -> None:
    """Outline a box (row, column, height, width) of pixels."""
    row, column, height, width = (float(v) for v in box)
    for line, paint in ((3.2, "white"), (1.8, colour)):  # seen on dark and light pixels alike
        axes.add_patch(
            Rectangle(
                (column - 0.5, row - 0.5), width, height, fill=False, edgecolor=paint,
                linewidth=line, clip_on=False,
            )
        )  # fmt: skip


def show_heat(axes: Axes, heat: Tensor, limit: float, **options: Any) -> Any:
    """Draw signed values about 0, purple below and orange above; returns the mappable."""
    shown = axes.imshow(
        heat.detach().cpu().numpy(), cmap=f"{DIVERGING}_r", vmin=-limit, vmax=limit,
        interpolation="nearest", **options,
    )  # fmt: skip
    bare(axes)
    return shown


def limit_of(*values: Tensor) -> float:
    """The largest magnitude of all, never 0: a symmetric scale's end."""
    largest = max((float(v.abs().max()) for v in values if v.numel()), default=0.0)
    return largest if largest > 0 else 1.0


def plain(name: str, width: int = 30) -> str:
    """A name cut to fit, that no dollar sign turns into a formula.

    >>> plain("five letters", 5)
    'five…'
    """
    short = name if len(name) <= width else name[: width - 1] + "…"
    return short.replace("$", r"\$")


def png_bytes(figure: Figure, dpi: int = 110) -> bytes:
    """A figure as a PNG."""
    buffer = io.BytesIO()
    # No creation date or version: the same figure gives the same bytes.
    figure.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
    return buffer.getvalue()
