"""The risk-coverage curve."""

from __future__ import annotations

from matplotlib.figure import Figure

from protoflows.evaluation.figures.style import COLOURS, GREY, quiet
from protoflows.evaluation.risk_coverage import RiskCoverage


def draw_risk_coverage(risk: RiskCoverage) -> Figure:
    """Share of errors among the most confident images, against how many are answered.

    Args:
        risk: The curve.
    """
    figure = Figure(figsize=(4.8, 3.6), layout="constrained")
    axes = figure.subplots()
    coverage, errors = 100 * risk.coverage.numpy(), 100 * risk.risk.numpy()
    axes.step(coverage, errors, where="post", color=COLOURS[0], linewidth=1.8)
    axes.axhline(errors[-1], color=GREY, linestyle="--", linewidth=1)
    axes.annotate(
        f"answering always: {errors[-1]:.2f} %", (0, errors[-1]), xytext=(4, -12),
        textcoords="offset points", color=GREY, fontsize=8,
    )  # fmt: skip
    axes.set(
        xlim=(0, 100), xlabel="coverage: images answered, %", ylabel="errors among them, %",
        title=f"area under the curve {risk.aurc.value:.5f} ± {risk.aurc.stderr:.5f}",
    )  # fmt: skip
    axes.title.set_fontsize(9)
    axes.set_ylim(0, max(1.15 * float(errors.max()), 0.01))
    quiet(axes)
    return figure
