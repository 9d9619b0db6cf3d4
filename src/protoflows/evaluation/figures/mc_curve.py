"""Figures against the number of draws, as the paper's ablation shows them."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from protoflows.evaluation.curve import CurvePoint
from protoflows.evaluation.figures.style import COLOURS, quiet

_PANELS = (
    ("accuracy, %", 100.0, (("accuracy", ""),)),
    ("-log p(y|x), nats", 1.0, (("nll", ""),)),
    ("Brier score", 1.0, (("brier", ""),)),
    ("ECE", 1.0, (("ece", ""),)),
    ("MCE", 1.0, (("mce", ""),)),
    (
        "bits/dim",
        1.0,
        (
            ("bits_per_dim", "marginal, importance"),
            ("bits_per_dim_mean_bound", "marginal, mean bound"),
            ("bits_per_dim_best_class", "best class, mean"),
        ),
    ),
)
_STYLES = (("o", "-"), ("s", "--"), ("^", ":"))


def draw_mc_curve(points: Sequence[CurvePoint]) -> Figure:
    """One panel per kind of figure, with bands of one standard error over images.

    The band is mostly the choice of images, which all points share: differences between points are
    steadier than it.

    Args:
        points: The curve, at least one point.
    """
    if not points:
        raise ValueError("points must hold at least one point, got none: collect the curve")
    panels = [
        (title, factor, lines)
        for title, factor, lines in _PANELS
        if any(name in points[0].figures for name, _ in lines)
    ]
    rows = (len(panels) + 1) // 2
    figure = Figure(figsize=(7.6 if len(panels) > 1 else 4.2, 2.7 * rows), layout="constrained")
    grid = figure.subplots(rows, min(2, len(panels)), squeeze=False).flatten()
    draws = [point.samples for point in points]
    for axes, (title, factor, lines) in zip(grid, panels, strict=False):
        for (name, label), colour, (marker, line) in zip(lines, COLOURS, _STYLES, strict=False):
            values = [factor * point.figures[name].value for point in points]
            spread = [factor * point.figures[name].stderr for point in points]
            low = [v - s for v, s in zip(values, spread, strict=True)]
            high = [v + s for v, s in zip(values, spread, strict=True)]
            axes.fill_between(draws, low, high, color=colour, alpha=0.12, linewidth=0)
            axes.plot(draws, values, marker + line, color=colour, markersize=4, label=label)
        axes.set(xscale="log", ylabel=title, xlabel="draws")
        axes.set_xticks(draws, [str(n) for n in draws])
        axes.xaxis.set_minor_locator(NullLocator())
        if len(lines) > 1:
            axes.legend(fontsize=8)
        quiet(axes)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    return figure
