"""Do probabilities mean what they say?"""

from __future__ import annotations

from protoflows.evaluation.figures import draw_reliability
from protoflows.explain.html import picture
from protoflows.report.material import Material
from protoflows.report.section import Section, missing
from protoflows.report.wording import NO_LABELS, measured_on


def reliability(material: Material) -> Section:
    """The reliability diagram of the test images."""
    found = material.evaluation
    if found is None or found.reliability is None:
        body = [missing(NO_LABELS)]
    else:
        body = [
            picture(
                draw_reliability(found.reliability, found.ece),
                "Accuracy against confidence, and how many images each bin holds "
                f"({measured_on(material)}).",
            )
        ]
    return Section(
        "reliability", "Do its probabilities mean what they say?",
        "Images are sorted into bins by the probability of their class. A bar is the share of "
        "right answers in its bin, the dot the mean probability that the model stated: where both "
        "meet the dashed line, 90 % means nine in ten. Below, how many images a bin holds.",
        "Sure models put nearly all images into the last bin; the bars of the others then stand on "
        "a handful of images, as their error bars show. A small error over all images can hide "
        "large ones for single classes. Nothing here holds for images of another kind.",
        tuple(body), short="Reliability",
    )  # fmt: skip
