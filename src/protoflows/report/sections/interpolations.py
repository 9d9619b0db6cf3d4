"""From one image to another through the latent."""

from __future__ import annotations

from protoflows.explain.figures.paths import draw_interpolation
from protoflows.explain.html import picture
from protoflows.explain.interpolation import interpolate
from protoflows.report.material import Material
from protoflows.report.section import Section, missing

_STEPS = 9


def interpolations(material: Material) -> Section:
    """One path between two classes, one within a class."""
    plan, body = material.plan, []
    for (a, b), said in _pairs(material):
        images = material.shown.images
        found = interpolate(
            material.model, images[a], images[b], steps=_STEPS, samples=plan.samples,
            seed=plan.seed, batch_size=plan.batch_size,
        )  # fmt: skip
        figure = draw_interpolation(found, material.levels, material.class_names)
        body.append(picture(figure, said))
    if not body:
        body = [missing("a path needs two images.")]
    return Section(
        "interpolations", "From one image to another",
        "The first and the last image are real; between them the model walks in a straight line "
        "through its latent space and draws what it passes. Below, how usual the images on the way "
        "are, and which class the model gives them.",
        "A straight line need not stay where images lie: a dip of log p(x) in the middle means "
        "that the model itself finds these images odd. Smooth pictures are no proof that the model "
        "understands what lies between.",
        tuple(body), short="Interpolations",
    )  # fmt: skip


def _pairs(material: Material) -> list[tuple[tuple[int, int], str]]:
    """Images that the model is sure of, so that both ends are what their class looks like."""
    proba, labels = material.log_proba, material.shown.labels.cpu()
    predicted = proba.argmax(1)
    fine = (predicted == labels) | (labels < 0)
    surest = proba.amax(1).argsort(descending=True, stable=True)
    order: list[int] = surest[fine[surest]].tolist() or surest.tolist()
    first = order[0]
    pairs = []
    other = next((i for i in order if predicted[i] != predicted[first]), None)
    if other is not None:
        names = [material.class_names[int(predicted[i])] for i in (first, other)]
        pairs.append(((first, other), f"Between two classes: {names[0]} and {names[1]}."))
    same = [i for i in order if predicted[i] == predicted[first] and i != first]
    if same:
        # The least alike of the class: the way is longest.
        away = (material.shown.images[same].float() - material.shown.images[first].float()).square()
        last = same[int(away.flatten(1).sum(1).argmax())]
        name = material.class_names[int(predicted[first])]
        pairs.append(((first, last), f"Within a class: two images of {name}."))
    return pairs
