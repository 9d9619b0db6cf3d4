"""The headline: a few large figures, and all of them beside the paper's."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from protoflows.evaluation.paper import paper_rows_for
from protoflows.evaluation.table import Column, paper_column, table_rows
from protoflows.explain.html import paragraph, table
from protoflows.report.material import Material
from protoflows.report.section import Section, missing

# Names in metrics.json, what the tile says, factor, decimals, unit.
_TILES = (
    ("accuracy", "accuracy", 100, 2, " %"),
    ("ece", "calibration error (ECE)", 1, 4, ""),
    ("bits_per_dim", "bits per dimension", 1, 3, ""),
    ("prototypes", "prototypes", 1, 0, ""),
)
_EVALUATED = "ece"  # what `protoflows evaluate` writes and training does not


def headline(material: Material) -> Section:
    """Figures of metrics.json, and those that the report measured where there are test images."""
    stored, measured = material.source.metrics, _measured(material)
    columns = []
    if stored:
        who = "protoflows evaluate" if _EVALUATED in stored else "end of training"
        columns.append(Column(f"metrics.json ({who})", stored))
    if measured:
        plan = material.plan
        columns.append(Column(f"measured for this report, {plan.samples} draws", measured))
    body = []
    first: Mapping[str, Any] = stored if _EVALUATED in stored else measured or stored
    if columns:
        paper = [row for row in paper_rows_for(material.source.data_name)
                 if not row.figures.get("pruned")]  # fmt: skip
        tiles = dict(first)
        tiles.setdefault("prototypes", int(material.model.mixtures.mask.sum()))
        body = [_tiles(tiles)]
        columns += [paper_column(row, columns) for row in paper]
        body.append(table(["", *(column.title for column in columns)], table_rows(columns)))
        body.append(paragraph("± is one standard error, from the choice of test images.", "note"))
    if not measured:
        body.append(
            missing(
                "figures measured for this report. The run's test images are out of reach"
                + (
                    ", so those of metrics.json stand alone."
                    if stored
                    else ", and there is no metrics.json."
                )
            )  # fmt: skip
        )
    return Section(
        "headline", "How good it is",
        "Accuracy is the share of test images that get their own class. The calibration error is "
        "how far stated probabilities are from how often they hold, 0 being honest. Bits per "
        "dimension say how well the model knows what such images look like: less is better.",
        "One number hides which classes fail: see the confusion below. Bits per dimension can only "
        "be compared for the same data at the same size and number of levels; a model can have "
        "few bits and classify badly. Test images from the same source as the training images say "
        "nothing about images from elsewhere.",
        tuple(body),
    )  # fmt: skip


def _measured(material: Material) -> Mapping[str, Any]:
    return material.evaluation.metrics if material.evaluation is not None else {}


def _tiles(figures: Mapping[str, Any]) -> str:
    cells = []
    for name, title, factor, digits, unit in _TILES:
        value = figures.get(name)
        if isinstance(value, int | float):
            shown = f"{factor * value:,.{digits}f}{unit}"
            cells.append(f"<div><b>{escape(shown)}</b><span>{escape(title)}</span></div>")
    return f'<div class="tiles">{"".join(cells)}</div>'
