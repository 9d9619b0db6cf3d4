"""Where prototypes lie."""

from __future__ import annotations

from protoflows.explain.figures.maps import draw_tsne
from protoflows.explain.html import picture
from protoflows.report.material import Material
from protoflows.report.section import Section, missing


def tsne(material: Material) -> Section:
    """t-SNE of the means."""
    found = material.map
    if found.positions is None:
        body = [missing(f"{len(found.prototypes)} prototypes; t-SNE needs at least four.")]
    else:
        body = [
            picture(draw_tsne(found, material.class_names), "t-SNE of the prototypes' means."),
        ]
    return Section(
        "tsne", "Where its prototypes lie",
        "Each mark is a prototype's mean, brought from the latent space to two dimensions so that "
        "neighbours stay neighbours. Colour, shape and label say the class, size the weight.",
        "Only who is near whom means anything: distances between groups, the size of groups and "
        "the empty space are the method's own, and another seed gives another picture. It sees "
        "means only, not how wide prototypes are.",
        tuple(body), short="t-SNE",
    )  # fmt: skip
