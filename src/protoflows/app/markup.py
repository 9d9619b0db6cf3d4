"""HTML and pictures that the tabs are made of: inline, escaped, nothing fetched."""

from __future__ import annotations

import base64
import io
import threading
from collections.abc import Iterable, Sequence
from html import escape

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from protoflows.explain.figures.style import DIVERGING, as_picture, png_bytes

_DRAWING = threading.Lock()  # matplotlib shares font caches between figures
_HEAT = colormaps[f"{DIVERGING}_r"]


def text(value: object) -> str:
    """Plain text in HTML, as the page's templates leave it alone.

    >>> text("<b>{{x}} ${y}")
    '&lt;b&gt;&#123;&#123;x&#125;&#125; &#36;&#123;y&#125;'
    """
    plain = escape(str(value), quote=True)
    return plain.replace("$", "&#36;").replace("{", "&#123;").replace("}", "&#125;")


def number(value: float, digits: int = 1) -> str:
    """A number with a proper minus.

    >>> number(-1234.56)
    '−1,234.6'
    """
    return f"{value:,.{digits}f}".replace("-", "−")


def png_url(pixels: np.ndarray) -> str:
    """Bytes (H, W), (H, W, 3) or (H, W, 4) as an address that holds them."""
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, format="PNG", compress_level=1)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def image_url(image: Tensor, levels: int) -> str:
    """An image (C, H, W) in levels."""
    return png_url(np.rint(255 * as_picture(image, levels)).astype(np.uint8))


def heat_url(heat: Tensor, limit: float) -> str:
    """Signed values (H, W) about 0, purple below and orange above."""
    scaled = 0.5 + heat.detach().cpu().double().numpy() / (2 * limit)
    return png_url(_HEAT(scaled, bytes=True)[..., :3])


def heat_scale(limit: float) -> str:
    """What the colours of `heat_url` mean."""
    stops = ", ".join("rgb({:d} {:d} {:d})".format(*_HEAT(i / 8, bytes=True)[:3]) for i in range(9))
    return (
        f'<div class="pf-scale"><span>{text(f"−{limit:.3g}")}</span>'
        f'<i style="background: linear-gradient(to right, {stops})"></i>'
        f"<span>{text(f'+{limit:.3g}')} nats</span></div>"
    )


def img(url: str, alt: str, kind: str = "") -> str:
    """A picture, its pixels as squares."""
    return f'<img class="pf-px {kind}" src="{url}" alt="{text(alt)}">'


def tile(inner: str, caption: str = "", kind: str = "") -> str:
    """A picture, given as HTML, with a caption below, plain text."""
    below = f"<figcaption>{text(caption)}</figcaption>" if caption else ""
    return f'<figure class="pf-tile {kind}">{inner}{below}</figure>'


def button(
    inner: str, value: object, label: str, caption: str = "", kind: str = "", pressed: bool = False
) -> str:
    """A picture to press; the page's script reports `value`.

    Args:
        inner: HTML.
        value: What is reported.
        label: What it does, for those who do not see it.
        caption: Below the picture.
        kind: CSS classes.
        pressed: Whether it is the chosen one.
    """
    below = f"<span>{text(caption)}</span>" if caption else ""
    return (
        f'<button type="button" class="pf-pick {kind}" data-pick="{text(value)}" '
        f'aria-label="{text(label)}" title="{text(label)}" aria-pressed="{str(pressed).lower()}">'
        f"{inner}{below}</button>"
    )


def bar(share: float, label: str, value: str, strong: bool = False) -> str:
    """A row with a bar; share from 0 to 1."""
    width = 100 * min(max(share, 0.0), 1.0)
    return (
        f'<div class="pf-bar{" pf-strong" if strong else ""}"><span>{text(label)}</span>'
        f'<i><b style="width:{width:.2f}%"></b></i><em>{text(value)}</em></div>'
    )


def chip(name: str, value: str, remark: str = "", kind: str = "") -> str:
    """A figure with its name above and a remark below."""
    return (
        f'<div class="pf-chip {kind}"><span>{text(name)}</span><strong>{text(value)}</strong>'
        f"<em>{text(remark)}</em></div>"
    )


def slider(count: int, at: int, label: str, low: str, high: str) -> str:
    """A slider that `way.js` connects with the parts that carry data-frame.

    Args:
        count: How many frames.
        at: The one that is shown.
        label: What it changes.
        low: What the left end is.
        high: What the right end is.
    """
    return (
        f'<label class="pf-slide"><span>{text(label)}</span>'
        f'<input type="range" min="0" max="{count - 1}" step="1" value="{at}" '
        f'aria-label="{text(label)}"></label>'
        f'<div class="pf-ends"><span>{text(low)}</span><span>{text(high)}</span></div>'
    )


def box_over(box: Tensor, height: int, width: int) -> str:
    """The outline of a box (row, column, height, width) of pixels over an image."""
    row, column, tall, wide = (float(v) for v in box)
    return (
        f'<u class="pf-box" style="left:{100 * column / width:.3f}%;top:{100 * row / height:.3f}%;'
        f'width:{100 * wide / width:.3f}%;height:{100 * tall / height:.3f}%"></u>'
    )


def heading(words: str, note: str = "") -> str:
    """A heading with a quiet remark."""
    remark = f"<small>{text(note)}</small>" if note else ""
    return f'<h3 class="pf-h">{text(words)} {remark}</h3>'


def note(words: str) -> str:
    """A quiet remark."""
    return f'<p class="pf-note">{text(words)}</p>'


def message(words: str, kind: str = "info") -> str:
    """What a visitor must read: "info", "done" or "error"."""
    role = "alert" if kind == "error" else "status"
    return f'<div class="pf-message pf-{kind}" role="{role}">{text(words)}</div>'


def table(rows: Iterable[Sequence[str]], head: Sequence[str] = ()) -> str:
    """Plain cells; all columns but the first hold numbers."""
    top = "".join(f"<th>{text(cell)}</th>" for cell in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{text(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f'<table class="pf-table">{f"<tr>{top}</tr>" if head else ""}{body}</table>'


def figure(drawn: Figure, alt: str) -> str:
    """A matplotlib figure on white."""
    with _DRAWING:
        png = png_bytes(drawn, dpi=110)
    url = "data:image/png;base64," + base64.b64encode(png).decode("ascii")
    return f'<figure class="pf-figure"><img src="{url}" alt="{text(alt)}"></figure>'


def page(*parts: str) -> str:
    """Parts as one block of a tab."""
    return '<div class="pf">' + "".join(parts) + "</div>"
