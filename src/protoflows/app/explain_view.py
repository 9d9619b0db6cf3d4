"""An explanation as a page that fits any width: class, likelihood, prototypes, exact evidence."""

from __future__ import annotations

import numpy as np
from matplotlib.colors import to_rgb
from torch import Tensor

from protoflows.app import markup as m
from protoflows.explain.attribution import CELL_NOTE
from protoflows.explain.explanation import Explanation, PrototypeEvidence
from protoflows.explain.figures.style import COLOURS, limit_of
from protoflows.explain.parts import crop
from protoflows.explain.readout import Readout

_BARS = 5
_ON_DARK = ' class="pf-inverse"'
_NUMBERED = 36  # cells of a grid that still has room for numbers


def render_first(image: Tensor, found: Readout, names: tuple[str, ...], levels: int) -> str:
    """The class at once, while the rest is computed."""
    best = int(found.labels[0])
    head = _headline(image, levels, names[best], float(found.posterior[0, best]), "")
    return m.page(
        f'<div class="pf-head">{head}{_bars(found.posterior[0], names)}</div>',
        m.note("Looking at the image's parts …"),
    )


def render(e: Explanation, label: int = -1, edited: bool = False) -> str:
    """All of an explanation.

    Args:
        e: The explanation.
        label: The class that the image is labelled with, −1 where nobody knows.
        edited: Whether the visitor changed the prototypes.
    """
    truth = ""
    if 0 <= label < len(e.class_names):
        right = label == e.label
        truth = f"labelled {e.class_names[label]}: {'right' if right else 'wrong'}"
    head = _headline(e.image, e.levels, e.prediction, float(e.posterior[e.label]), truth)
    notes = list(e.notes)
    if edited:
        notes.insert(0, "By the model as you edited it in the tab Prototypes.")
    parts = [
        f'<div class="pf-head">{head}{_bars(e.posterior, e.class_names)}{_usual(e)}</div>',
        m.heading("This looks like that", "the prototypes with the largest shares"),
    ]
    maps = [p.heatmap for p in e.prototypes if p.heatmap is not None]
    leads = [p.contrast for p in e.prototypes if p.contrast is not None]
    limits = limit_of(*maps), limit_of(*leads)
    parts += [_prototype(e, p, limits) for p in e.prototypes]
    by = "z" if e.by == "latent" else "x"
    if leads:
        parts.append(_legend("to the prototype's lead over other classes", limits[1]))
    if maps:
        parts.append(_legend(f"to log p({by} | prototype)", limits[0]))
    parts.append(_evidence(e))
    parts += [m.note(words) for words in notes]
    return m.page(*parts)


def _legend(what: str, limit: float) -> str:
    words = m.note(f"Colours: what a patch adds {what}")
    return f'<div class="pf-legend">{words}{m.heat_scale(limit)}</div>'


def _headline(image: Tensor, levels: int, name: str, share: float, truth: str) -> str:
    picture = m.img(m.image_url(image, levels), "the image as the model sees it", "pf-large")
    said = f'<small class="pf-truth">{m.text(truth)}</small>' if truth else ""
    return (
        f'<div class="pf-verdict">{picture}<div><span>class</span>'
        f"<strong>{m.text(name)}</strong><em>{100 * share:.1f} %</em>{said}</div></div>"
    )


def _bars(posterior: Tensor, names: tuple[str, ...]) -> str:
    values, order = posterior.sort(descending=True, stable=True)
    rows = [
        m.bar(v, names[i], f"{100 * v:.1f} %", place == 0)
        for place, (i, v) in enumerate(
            zip(order[:_BARS].tolist(), values[:_BARS].tolist(), strict=True)
        )
    ]
    return f'<div class="pf-bars"><h4>Probability of the class</h4>{"".join(rows)}</div>'


def _usual(e: Explanation) -> str:
    scale = ""
    if e.percentile is not None:
        scale = (
            '<div class="pf-percentile" role="img" '
            f'aria-label="percentile {e.percentile:.0f} of the training images">'
            f'<i style="left:{min(max(e.percentile, 0), 100):.2f}%"></i></div>'
            '<div class="pf-ends"><span>least usual</span><span>most usual</span></div>'
        )
    return (
        f'<div class="pf-usual"><h4>How usual is the image?</h4>{scale}'
        f"<p>{m.text(e.usual())}</p>"
        f"<p class='pf-note'>log p(x) = {m.number(e.log_prob)} nats</p></div>"
    )


def _prototype(e: Explanation, p: PrototypeEvidence, limits: tuple[float, float]) -> str:
    height, width = e.image.shape[1:]
    share = f"{100 * p.share:.1f} %" if p.share >= 0.0005 else "< 0.1 %"
    tiles = [m.tile(m.img(m.image_url(p.mean_image, e.levels), "the mean"), "prototype's mean")]
    if p.heatmap is not None and p.top is not None and p.part is not None:
        query = m.img(m.image_url(e.image, e.levels), "the image")
        top = m.img(_overlay(p.top), "its most influential pixels", "pf-over")
        this = f'<div class="pf-stack">{query}{top}{m.box_over(p.part, height, width)}</div>'
        tiles.append(m.tile(this, "this: best part, top 5 % of pixels"))
        if p.contrast is not None:
            lead = m.img(m.heat_url(p.contrast, limits[1]), "nats added to the lead")
            tiles.append(m.tile(lead, "what patches add to its lead"))
        heat = m.img(m.heat_url(p.heatmap, limits[0]), "nats that each patch adds")
        tiles.append(m.tile(heat, "what they add to its likelihood"))
    if p.retrieved is not None and p.part is not None:
        source = m.img(m.image_url(p.retrieved.image, e.levels), "a training image")
        that = f'<div class="pf-stack">{source}{m.box_over(p.retrieved.box, height, width)}</div>'
        tiles.append(m.tile(that, "that: likeliest part of training images"))
        pair = "".join(
            m.img(m.image_url(crop(image, box), e.levels), name)
            for name, image, box in (
                ("this", e.image, p.part),
                ("that", p.retrieved.image, p.retrieved.box),
            )
        )
        tiles.append(m.tile(f'<div class="pf-pair">{pair}</div>', "the two parts"))
    return (
        f'<section class="pf-card"><header><strong>{m.text(p.title)}</strong>'
        f"{m.bar(p.share, 'share of the decision', share)}"
        f'<span class="pf-note">log p(z | prototype) = {m.number(p.log_likelihood)}</span></header>'
        f'<div class="pf-tiles">{"".join(tiles)}</div></section>'
    )


def _overlay(top: Tensor) -> str:
    pixels = np.zeros((*top.shape, 4), dtype=np.uint8)
    pixels[..., :3] = [round(255 * v) for v in to_rgb(COLOURS[4])]
    pixels[..., 3] = 190 * top.numpy()
    return m.png_url(pixels)


def _evidence(e: Explanation) -> str:
    found = e.evidence
    if found is None:
        return ""
    target, other = (e.class_names[c] for c in (found.target[0], found.against[0]))
    cells = found.cells[0]
    h, w = cells.shape
    limit = limit_of(cells)
    numbers = ""
    if h * w <= _NUMBERED:
        shown = "".join(
            f"<b{_ON_DARK if abs(v) > 0.6 * limit else ''}>{v:+.1f}</b>"
            for v in cells.flatten().tolist()
        )
        numbers = f'<div class="pf-cells" style="--columns:{w}">{shown}</div>'
    heat = m.img(m.heat_url(cells, limit), "evidence of each position")
    rows = [
        ("positions of the latent", float(cells.sum())),
        ("weights of the prototypes", float(found.weights[0])),
        ("entropy of the responsibilities", float(found.entropy[0])),
        ("class priors", float(found.prior[0])),
        ("sum", float(found.total[0])),
        ("log-odds by the model", float(found.log_odds[0])),
    ]
    return (
        m.heading(f"Why {target} and not {other}", "exact, for one draw of the noise")
        + '<div class="pf-evidence">'
        + m.tile(
            f'<div class="pf-stack">{heat}{numbers}</div>{m.heat_scale(limit)}',
            f"orange speaks for {target}, purple for {other}",
            "pf-grid",
        )
        + m.table(((name, f"{value:+,.3f}") for name, value in rows), ("term", "nats"))
        + "</div>"
        + m.note(CELL_NOTE)
    )
