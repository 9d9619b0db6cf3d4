"""The reliability diagram."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from protoflows.evaluation.calibration_error import Reliability
from protoflows.evaluation.estimate import Estimate, wilson_interval
from protoflows.evaluation.figures.style import COLOURS, GREY, quiet

_ONE_SIGMA = 0.6827


def draw_reliability(reliability: Reliability, ece: Estimate | None = None) -> Figure:
    """Accuracy against confidence, bin by bin, and how many images each bin holds.

    Dots stand at their bin's mean confidence, and on the diagonal where the model is calibrated.
    Confident models leave a handful of images in most bins, whose bars then say little: whiskers
    are Wilson's intervals (one standard deviation), which stay wide for a single image, and counts
    stand below on a logarithmic axis.

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
    confidence = reliability.confidence.numpy()[filled]
    known = zip(np.rint(right * count).astype(int).tolist(), count.tolist(), strict=True)
    low, high = np.array([wilson_interval(k, n, _ONE_SIGMA) for k, n in known]).T
    spread = np.clip([right - low, high - right], 0, 1)  # rounding can leave −1e-17
    axes.bar(left, right, width, align="edge", color=COLOURS[0], edgecolor="white", alpha=0.85)
    axes.errorbar(
        confidence, right, spread, fmt="none", ecolor="black", elinewidth=1, capsize=2,
        clip_on=False, zorder=4,
    )  # fmt: skip
    axes.plot(
        confidence, right, "o", color=COLOURS[1], markersize=4, clip_on=False, zorder=5,
        label="at the bin's mean confidence",
    )  # fmt: skip
    axes.plot([0, 1], [0, 1], "--", color=GREY, linewidth=1, label="calibrated")
    axes.set(xlim=(0, 1), ylim=(-0.02, 1.02), ylabel="accuracy")
    title = f"ECE {ece.value:.4f} ± {ece.stderr:.4f}" if ece is not None else None
    axes.legend(
        loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, fontsize=8, frameon=False,
        title=title, title_fontsize=9,
    )  # fmt: skip
    below.bar(left, count, width, align="edge", color=GREY, edgecolor="white")
    # From one half on: a single image has a bar, too.
    below.set(yscale="log", xlabel="confidence", ylabel="images", ylim=(0.5, 2 * count.max()))
    for part in (axes, below):
        quiet(part)
    return figure
