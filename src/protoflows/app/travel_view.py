"""A way as a page: a slider, the picture under it, and a cursor on the curves along the way."""

from __future__ import annotations

import torch
from torch import Tensor

from protoflows.app import markup as m
from protoflows.app.travel_work import Way

_CLASSES = 4


def render_way(way: Way, names: tuple[str, ...], levels: int) -> str:
    """All pictures of a way, one of them seen.

    Args:
        way: The pictures and what the model makes of them.
        names: Names of the classes.
        levels: Of the images.
    """
    count, middle = len(way.images), len(way.images) // 2
    shown = _classes_on(way.posterior)
    frames = []
    for i, image in enumerate(way.images):
        hidden = "" if i == middle else " hidden"
        best = int(way.posterior[i].argmax())
        usual = ""
        if way.percentile is not None:
            usual = f", likelier than {float(way.percentile[i]):.0f} % of the training images"
        bars = "".join(
            m.bar(p := float(way.posterior[i, c]), names[c], f"{100 * p:.0f} %", c == best)
            for c in shown
        )
        picture = m.img(m.image_url(image, levels), f"picture {i + 1} of {count}", "pf-large")
        frames.append(
            f'<div data-frame="{i}" class="pf-frame"{hidden}>{picture}<div>{bars}'
            f'<p class="pf-note">{m.text(_percent(i, count))} of the way: '
            f"log p(x) = {m.number(float(way.log_prob[i]))} nats{m.text(usual)}</p></div></div>"
        )
    ends = [
        m.img(m.image_url(way.images[i], levels), alt, "pf-end")
        for i, alt in ((0, "the first picture"), (-1, "the last picture"))
    ]
    at = 100 * middle / (count - 1)
    curves = [
        _chart([way.log_prob], at, "log p(x), nats: how likely every picture is", [""]),
        _chart([way.posterior[:, c] for c in shown[:2]], at, "probability of a class",
               [names[c] for c in shown[:2]], low=0.0, high=1.0),
    ]  # fmt: skip
    return m.page(
        '<div class="pf-way">'
        f'<div class="pf-ride">{ends[0]}<div>{m.slider(count, middle, "way", "start", "end")}</div>'
        f"{ends[1]}</div>{''.join(frames)}{''.join(curves)}</div>",
        *(m.note(words) for words in way.notes),
    )


def _percent(i: int, count: int) -> str:
    return f"{100 * i / (count - 1):.0f} %"


def _classes_on(posterior: Tensor) -> list[int]:
    """The classes that a way begins and ends with, then the likeliest of the others."""
    first, last = int(posterior[0].argmax()), int(posterior[-1].argmax())
    most = posterior.amax(0).argsort(descending=True).tolist()
    return list(dict.fromkeys([first, last, *most]))[:_CLASSES]


def _chart(
    series: list[Tensor], at: float, title: str, names: list[str],
    low: float | None = None, high: float | None = None,
) -> str:  # fmt: skip
    """Curves over the way with a cursor, as wide as the page gives."""
    values = torch.stack(series).double()
    bottom = float(values.min()) if low is None else low
    top = float(values.max()) if high is None else high
    span = (top - bottom) or 1.0
    lines = []
    for number, row in enumerate(values):
        points = " ".join(
            f"{100 * i / (len(row) - 1):.2f},{100 - 100 * (v - bottom) / span:.2f}"
            for i, v in enumerate(row.tolist())
        )
        lines.append(f'<polyline class="pf-line-{number}" points="{points}"/>')
    keys = "".join(
        f'<span class="pf-key pf-key-{i}">{m.text(name)}</span>' for i, name in enumerate(names)
        if name
    )  # fmt: skip
    digits = 0 if span > 5 or span == int(span) else 1  # noqa: PLR2004
    return (
        f'<figure class="pf-chart"><figcaption>{m.text(title)} {keys}</figcaption>'
        f'<div class="pf-axis"><span>{m.number(top, digits)}</span>'
        f"<span>{m.number(bottom, digits)}</span></div>"
        '<div class="pf-plot"><svg viewBox="0 -3 100 106" preserveAspectRatio="none" '
        f'aria-hidden="true">{"".join(lines)}</svg>'
        f'<i class="pf-cursor" style="left:{at:.2f}%"></i></div></figure>'
    )
