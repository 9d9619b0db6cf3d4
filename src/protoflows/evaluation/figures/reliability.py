"""The reliability diagram."""

from __future__ import annotations

from matplotlib.figure import Figure

from protoflows.evaluation.calibration_error import Reliability
from protoflows.evaluation.estimate import Estimate
from protoflows.evaluation.figures.style import COLOURS, GREY, quiet


def draw_reliability(reliability: Reliability, ece: Estimate | None = None) -> Figure:
    """Accuracy against confidence, bin by bin, and how many images each bin holds.

    Bars are where the diagonal should be. Below, counts on a logarithmic axis: confident models
    leave a handful of images in most bins, whose bars then say little.

    Args:
        reliability: The numbers.
        ece: Written into the picture.
    """
    figure = Figure(figsize=(4.6, 5.4), layout="constrained")
    axes, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    edges = reliability.edges.numpy()
    filled = (reliability.counts > 0).numpy()
    left, width = edges[:-1][filled], (edges[1:] - edges[:-1])[filled]
    count = reliability.counts.numpy()[filled]
    right = reliability.accuracy.numpy()[filled]
    spread = (right * (1 - right) / count) ** 0.5
    axes.bar(left, right, width, align="edge", color=COLOURS[0], edgecolor="white", alpha=0.85)
    axes.errorbar(
        left + width / 2, right, spread, fmt="none", ecolor="black", elinewidth=1, capsize=2
    )
    axes.plot(
        reliability.confidence.numpy()[filled], right, "o", color=COLOURS[1], markersize=4,
        label="mean confidence of the bin",
    )  # fmt: skip
    axes.plot([0, 1], [0, 1], "--", color=GREY, linewidth=1, label="calibrated")
    axes.set(xlim=(0, 1), ylim=(-0.02, 1.02), ylabel="accuracy")
    title = f"ECE {ece.value:.4f} ± {ece.stderr:.4f}" if ece is not None else None
    axes.legend(
        loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, fontsize=8, frameon=False,
        title=title, title_fontsize=9,
    )  # fmt: skip
    below.bar(left, count, width, align="edge", color=GREY, edgecolor="white")
    below.set(yscale="log", xlabel="confidence", ylabel="images")
    for part in (axes, below):
        quiet(part)
    return figure
