"""Sentences that several sections share."""

from __future__ import annotations

from protoflows.report.material import Material

NO_LABELS = (
    "it needs labelled test images, and this run's are out of reach or unlabelled. "
    "Give --data-root where the data has moved."
)
NO_TRAINING = (
    "how many training images each prototype explains, and which are nearest to it: the training "
    "images are out of reach. Give --data-root where they have moved."
)


def measured_on(material: Material) -> str:
    """How many images and draws a figure stands on."""
    assert material.test is not None
    return f"{len(material.test):,} test images, {material.plan.samples} draws of the noise each"
