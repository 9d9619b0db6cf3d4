"""How the report came about."""

from __future__ import annotations

from protoflows._version import __version__
from protoflows.explain.html import paragraph, table
from protoflows.report.material import Material
from protoflows.report.section import Section


def making(material: Material) -> Section:
    """Everything that somebody needs to make the same page again."""
    plan, source, config = material.plan, material.source, material.model.config
    extras = material.model.extras
    channels, height, width = config.flow.image_shape
    rows = [
        ["model", source.name],
        ["data", source.data_name or "not known"],
        ["fingerprint of the training data", (extras.data_fingerprint if extras else "")[:16] or
         "not known"],
        ["images", f"{width} x {height}, {channels} channel{'s' if channels > 1 else ''}, "
                   f"{config.flow.levels} levels"],
        ["classes", str(config.num_classes)],
        ["test images looked at", _count(material.test)],
        ["training images compared with", _count(material.train)],
        ["draws of the noise", str(plan.samples)],
        ["seed", str(plan.seed)],
        ["protoflows", __version__],
    ]  # fmt: skip
    return Section(
        "making",
        "How this report was made",
        "What was measured, on how much, and with which seed: the same command gives the same "
        "figures.",
        "A report shows the run as it was when the report was made. A model that was calibrated, "
        "pruned or edited since needs a new one.",
        (table(["", ""], rows), *(paragraph(note, "note") for note in source.notes)),
        short="How it was made",
    )


def _count(split: object) -> str:
    return f"{len(split):,}" if split is not None else "none in reach"  # type: ignore[arg-type]
