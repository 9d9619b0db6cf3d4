"""Which prototypes carry weight."""

from __future__ import annotations

from protoflows.evaluation.prune import choose_prototypes, pruning_figure
from protoflows.explain.html import paragraph, picture, table
from protoflows.report.material import Material
from protoflows.report.section import Section


def pruning(material: Material) -> Section:
    """Histogram of weights with Otsu's threshold, as `protoflows prune` would cut."""
    found = choose_prototypes(material.model.mixtures)
    if found.after == found.before:
        said = "Pruning would remove none: the weights have no two groups that a threshold splits."
    else:
        said = (
            f"Pruning at Otsu's threshold, {float(found.thresholds[0]):.3f}, would remove "
            f"{found.before - found.after} of {found.before} prototypes "
            f"({100 * found.share:.0f} %). `protoflows prune` does it and measures what it costs."
        )
    body = [
        picture(pruning_figure(found), "Weights of all prototypes, and what pruning would remove."),
        paragraph(said),
    ]
    near = material.neighbours
    if near is not None:
        idle = int(((near.explained == 0) & material.model.mixtures.mask.cpu()).sum())
        body.append(
            table(
                ["prototypes", "number"],
                [
                    ["in all", str(found.before)],
                    ["without a training image that they explain", str(idle)],
                    ["below the threshold", str(found.before - found.after)],
                ],
            )
        )
    return Section(
        "pruning", "Which prototypes carry weight",
        "How many prototypes have which weight within their class. Otsu's threshold, the dashed "
        "line, splits them into light ones, which pruning would remove, and heavy ones.",
        "Otsu's method splits any set of numbers in two, whether or not there are two groups: a "
        "threshold in the middle of one hump means nothing. A light prototype may be the only one "
        "of a rare kind of image. Weights count within a class, so that classes with more "
        "prototypes have lighter ones.",
        tuple(body), short="Pruning",
    )  # fmt: skip
