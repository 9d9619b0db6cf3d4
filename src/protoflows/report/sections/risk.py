"""What abstaining would gain."""

from __future__ import annotations

from protoflows.evaluation.figures import draw_risk_coverage
from protoflows.evaluation.risk_coverage import RiskCoverage
from protoflows.explain.html import picture, table
from protoflows.report.material import Material
from protoflows.report.section import Section, missing
from protoflows.report.wording import NO_LABELS, measured_on

_COVERAGES = (1.0, 0.99, 0.95, 0.9, 0.8)


def risk(material: Material) -> Section:
    """Errors among the surest images, against how many are answered."""
    found = material.evaluation
    if found is None or found.risk is None:
        body = [missing(NO_LABELS)]
    else:
        body = [
            picture(
                draw_risk_coverage(found.risk),
                f"Errors among the images that are answered ({measured_on(material)}).",
            ),
            table(["answering", "errors among the answered"], _rows(found.risk)),
        ]
    return Section(
        "risk", "What it gains by abstaining",
        "From the right to the left the model leaves out the images that it is least sure of. The "
        "lower the curve falls, the better it knows what it does not know.",
        "It shows which images are surer than others of the same kind, not whether an image is of "
        "that kind at all: for that, look at how usual it is (its percentile of log p(x)).",
        tuple(body), short="Risk and coverage",
    )  # fmt: skip


def _rows(found: RiskCoverage) -> list[list[str]]:
    count = len(found.coverage)
    rows = []
    for share in _COVERAGES:
        place = max(1, round(share * count)) - 1
        errors = 100 * float(found.risk[place])
        rows.append([f"{100 * share:.0f} % of the images", f"{errors:.2f} %"])
    return rows
