"""Pages that stand alone: pictures inside, no script, nothing fetched."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from protoflows.explain.attribution import CELL_NOTE
from protoflows.explain.figures.style import png_bytes

if TYPE_CHECKING:
    from protoflows.explain.explanation import Explanation

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1b; --paper: #ffffff; --quiet: #565656;
        --line: #d9d9d9; --card: #f6f7f8; --accent: #0072b2; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e8; --paper: #16181b; --quiet: #b0b4b9; --line: #3b4046;
          --card: #1f2226; --accent: #6cb8e6; }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
       max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
a { color: var(--accent); }
img { max-width: 100%; height: auto; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; }
th, td { padding: .25rem .8rem; text-align: left; vertical-align: top; }
th { border-bottom: 1px solid var(--quiet); } td { border-bottom: 1px solid var(--line); }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
p.note, figcaption { color: var(--quiet); } figcaption { font-size: .9rem; }
figure { margin: 1rem 0; }
/* Figures are drawn on white: in the dark they are framed, not inverted, so colours keep sense. */
figure .wide > img { background: #fff; border-radius: 6px; display: block; }
@media (max-width: 40rem) { figure .wide > img.broad { max-width: none; width: 44rem; } }
"""
_BROAD = 640  # pixels: a figure wider than that is scrolled on a phone, not shrunk


def page(title: str, body: Iterable[str], style: str = "") -> str:
    """A whole document, light or dark as the reader's system is.

    Args:
        title: Plain text.
        body: HTML.
        style: CSS of this page's own.
    """
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'  # browsers ask for a favicon otherwise
        f"<title>{escape(title)}</title>\n<style>{_STYLE}{style}</style>\n</head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n" + "\n".join(body) + "\n</body>\n</html>\n"
    )


def picture(figure: Figure, caption: str, dpi: int = 110) -> str:
    """A figure as an inline PNG with a caption, plain text, that is its alternative text too."""
    width, height = (round(dpi * side) for side in figure.get_size_inches())
    kind = ' class="broad"' if 96 / dpi * width > _BROAD else ""
    return (
        f'<figure><div class="wide"><img{kind} width="{width}" height="{height}" '
        f'alt="{escape(caption, quote=True)}" src="{png_source(png_bytes(figure, dpi))}"></div>'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def png_source(png: bytes) -> str:
    """A PNG as an address that holds it."""
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


def paragraph(text: str, kind: str = "") -> str:
    """Plain text as a paragraph."""
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def heading(text: str) -> str:
    """Plain text as a heading."""
    return f"<h2>{escape(text)}</h2>"


def subheading(text: str) -> str:
    """Plain text as a heading within a section."""
    return f"<h3>{escape(text)}</h3>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Plain cells; all columns but the first hold numbers."""
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "\n".join(
        "<tr>"
        + "".join(
            f"<td{' class=' + chr(34) + 'number' + chr(34) if i else ''}>{escape(cell)}</td>"
            for i, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table>\n<tr>{top}</tr>\n{body}\n</table></div>'


def explanation_page(e: Explanation) -> str:
    """Everything that an `Explanation` holds, for people."""
    by = "z" if e.by == "latent" else "x"
    values, order = e.posterior.sort(descending=True, stable=True)
    body = [
        paragraph(
            f"Probability {100 * float(e.posterior[e.label]):.1f} %. log p(x) = {e.log_prob:,.1f} "
            f"nats. {e.usual()}"
        ),
        *(paragraph(note, "note") for note in e.notes),
        picture(
            e.figure(),
            f"The image, the probabilities of classes, the exact evidence, and the {by}-likelihood "
            "of the image's parts under its top prototypes, alone and against other classes'.",
            dpi=120,
        ),
        heading("Classes"),
        table(
            ["class", "probability"],
            [
                [e.class_names[i], f"{100 * v:.2f} %"]
                for i, v in zip(order[:10].tolist(), values[:10].tolist(), strict=True)
            ],
        ),
        heading("Prototypes"),
        table(
            ["prototype", "share of the decision", "log p(z|prototype), nats"],
            [[p.title, f"{100 * p.share:.2f} %", f"{p.log_likelihood:,.2f}"] for p in e.prototypes],
        ),
    ]
    if e.evidence is not None:
        found = e.evidence
        body += [
            heading("Exact evidence"),
            paragraph(
                f"Log-odds of {e.class_names[found.target[0]]} against "
                f"{e.class_names[found.against[0]]}, for one draw of the noise: a sum, nothing "
                "approximated."
            ),
            table(
                ["term", "nats"],
                [
                    ["positions of the latent", f"{float(found.cells.sum()):+,.3f}"],
                    ["weights of the prototypes", f"{float(found.weights[0]):+,.3f}"],
                    ["entropy of the responsibilities", f"{float(found.entropy[0]):+,.3f}"],
                    ["class priors", f"{float(found.prior[0]):+,.3f}"],
                    ["sum", f"{float(found.total[0]):+,.3f}"],
                    ["log-odds by the model", f"{float(found.log_odds[0]):+,.3f}"],
                ],
            ),
            paragraph(CELL_NOTE, "note"),
        ]
    return page(f"Why {e.prediction}?", body)
