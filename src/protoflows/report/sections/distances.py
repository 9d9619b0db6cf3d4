"""How far images lie from prototypes."""

from __future__ import annotations

from protoflows.evaluation.distances import covariance_norms, quartiles
from protoflows.evaluation.figures import draw_distances
from protoflows.explain.html import picture, table
from protoflows.report.material import Material
from protoflows.report.section import Section, missing
from protoflows.report.wording import measured_on


def distances(material: Material) -> Section:
    """Distances of test images to the nearest prototype's mean, with norms of covariances."""
    found = material.evaluation
    rows = []
    if found is None or found.passes.distance is None:
        body = [missing("the distances of test images, which are out of reach.")]
    else:
        distance = found.passes.distance
        shown = {"test images": distance}
        body = [
            picture(
                draw_distances(shown),
                f"Distance of embeddings to the nearest prototype's mean ({measured_on(material)}; "
                "dashed: quartiles).",
            )
        ]
        rows.append(["distance to the nearest mean", *map(_number, quartiles(distance))])
    norms = quartiles(covariance_norms(material.model.mixtures))
    rows.append(["norm of a prototype's covariance", *map(_number, norms)])
    body.append(table(["", "first quartile", "median", "third quartile"], rows))
    return Section(
        "distances", "How far images lie from prototypes",
        "Each test image is a point in the model's latent space; counted is its distance to the "
        "nearest prototype's mean. The norms of the covariances say how wide prototypes are, which "
        "a distance has to be seen against.",
        "In many dimensions almost all of a Gaussian lies far from its mean, about the square root "
        "of the number of dimensions in standard deviations: distances that look large are "
        "normal, and a distance near 0 would be unusual. Latent spaces of different models have "
        "different units.",
        tuple(body), short="Distances",
    )  # fmt: skip


def _number(value: float) -> str:
    return f"{value:,.3f}"
