"""The prototypes of every class: mean, samples, weight, images that they explain."""

from __future__ import annotations

import torch

from protoflows.explain.figures.gallery import draw_class_gallery, draw_sheet
from protoflows.explain.html import paragraph, picture, subheading
from protoflows.explain.pictures import living_prototypes, picture_prototype
from protoflows.report.material import Material
from protoflows.report.section import Section, missing
from protoflows.report.wording import NO_TRAINING

_SHEET = 200  # pictures on the sheet of all means
_ROWS = 10  # prototypes of one class that are shown in full
_RADII = (0.5, 1.0)


def prototypes(material: Material) -> Section:
    """A sheet of all means, and a gallery for each class."""
    model, names, near = material.model, material.class_names, material.neighbours
    pairs = living_prototypes(model)
    body = []
    if near is None:
        body.append(missing(NO_TRAINING))
    else:
        body.append(
            paragraph(
                f"“Explains” counts, of {near.num_images:,} training images, those to which a "
                "prototype is the most probable of all.",
                "note",
            )  # fmt: skip
        )
    first = pairs[:_SHEET]
    means = torch.stack([model.prototype_mean_image(c, k).cpu() for c, k in first])
    titles = [f"{names[c]} · {k}" for c, k in first]
    of = "" if len(first) == len(pairs) else f" The first {len(first)} of {len(pairs)}."
    body.append(picture(draw_sheet(model, means, titles), f"The prototypes' means.{of}"))
    classes = sorted({c for c, _ in pairs})
    for c in classes[: material.plan.classes]:
        body += _class(material, c, [pair for pair in pairs if pair[0] == c])
    if len(classes) > material.plan.classes:
        body.append(
            missing(
                f"the other {len(classes) - material.plan.classes} classes in full. Give --classes "
                "for more, or see `protoflows prototypes`."
            )
        )
    return Section(
        "prototypes", "What it has learned: its prototypes",
        "A prototype is a typical case that the model has learned for a class, and a spread about "
        "it. The mean is its centre, drawn as an image by running the flow backwards; samples are "
        "drawn around it, nearer and further out. The weight is its share of its class. Beside "
        "them, real training images: those nearest to it and those most likely under it.",
        "The mean is a picture that the model made up, not a training image; in high dimensions "
        "hardly any image lies as near to the centre as the centre itself. A prototype that "
        "explains no image takes part in no decision, however good it looks. Only part of an image "
        "is prototype: what the flow factors out on the way is the same for every class.",
        tuple(body), short="Prototypes",
    )  # fmt: skip


def _class(material: Material, label: int, pairs: list[tuple[int, int]]) -> list[str]:
    model, plan, near = material.model, material.plan, material.neighbours
    weights = model.mixtures.weights[label].detach().tolist()
    heaviest = sorted(pairs, key=lambda pair: -weights[pair[1]])[:_ROWS]
    pictures = [
        picture_prototype(
            model, pair, radii=_RADII, samples=3, seed=plan.seed, batch_size=plan.batch_size
        )
        for pair in heaviest
    ]
    name = material.class_names[label]
    images = material.train.images if material.train is not None else None
    of = "" if len(heaviest) == len(pairs) else f" The {len(heaviest)} heaviest of {len(pairs)}."
    return [
        subheading(f"Class {name}"),
        picture(
            draw_class_gallery(model, pictures, near, images),
            f"Prototypes of class {name}: mean, samples"
            + (", nearest and likeliest training images." if near is not None else ".") + of,
        ),
    ]  # fmt: skip
