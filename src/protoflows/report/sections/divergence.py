"""How unlike prototypes are."""

from __future__ import annotations

import torch

from protoflows.explain.figures.maps import draw_divergence
from protoflows.explain.html import picture, table
from protoflows.explain.pictures import prototype_title
from protoflows.report.material import Material
from protoflows.report.section import Section, missing

_PAIRS = 5


def divergence(material: Material) -> Section:
    """Modified Hellinger divergences between all prototypes, and the pairs most alike."""
    found = material.map
    count = len(found.prototypes)
    if count < 2:  # noqa: PLR2004
        body = [missing("a map of a single prototype.")]
    else:
        body = [
            picture(
                draw_divergence(found, material.class_names),
                f"Modified Hellinger divergence between all {count} prototypes.",
            )
        ]
        rows = []
        pairs = torch.triu_indices(count, count, 1)
        values = found.divergence[pairs[0], pairs[1]]
        for place in values.argsort(stable=True)[:_PAIRS].tolist():
            names = [prototype_title(material.model, found.prototypes[int(pairs[side, place])])
                     for side in (0, 1)]  # fmt: skip
            rows.append([" and ".join(names), f"{float(values[place]):.4g}"])
        body.append(table(["most alike", "divergence"], rows))
    return Section(
        "divergence", "How unlike its prototypes are",
        "Every cell compares two prototypes: dark ones are alike, bright ones far apart, grey is a "
        "prototype with itself. White lines part the classes. Classes that are easily taken for "
        "one another show as dark blocks off the diagonal.",
        "It compares distributions in the latent space, with their widths: two prototypes can be "
        "far apart and their pictures look the same, where they differ in what the eye overlooks.",
        tuple(body), short="Hellinger map",
    )  # fmt: skip
