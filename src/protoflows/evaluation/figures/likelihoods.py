"""Likelihoods of a model's own images and of others, as histograms over one another."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from protoflows.evaluation.figures.style import COLOURS, quiet

_BINS = 40
_REACH = 4.0  # spreads of the own images to either side that are shown


def draw_likelihoods(
    own: Tensor, other: Tensor, other_name: str, *, label: str = "log p(x), nats"
) -> Figure:
    """How far two sets of images lie apart in likelihood.

    Images of another kind can be less likely by thousands of nats, which would press the model's
    own into a line: the axis ends a few spreads about these, and what lies beyond is counted in
    the outermost bars.

    Args:
        own: log p(x) of images of the model's kind, (N,).
        other: Of the others, (M,).
        other_name: What these are.
        label: Of the axis.
    """
    if not len(own) or not len(other):
        raise ValueError(
            f"own and other must both hold values, got {len(own)} and {len(other)} of them"
        )
    mine, theirs = (np.asarray(v.double().cpu().numpy()) for v in (own, other))
    low, centre, high = np.quantile(mine, [0.05, 0.5, 0.95])
    spread = max(high - low, 1e-6 * max(abs(centre), 1.0))
    left = max(min(mine.min(), theirs.min()), centre - _REACH * spread)
    right = min(max(mine.max(), theirs.max()), centre + _REACH * spread)
    edges = np.linspace(left, right, _BINS + 1)
    figure = Figure(figsize=(6.4, 3.4), layout="constrained")
    axes = figure.subplots()
    for values, colour, style, name in (
        (mine, COLOURS[0], "-", f"its own images ({len(mine):,})"),
        (theirs, COLOURS[1], "--", f"{other_name} ({len(theirs):,})"),
    ):
        inside = np.clip(values, left, right)
        share = np.full(len(values), 100 / len(values))
        axes.hist(inside, edges.tolist(), weights=share, color=colour, alpha=0.3)
        axes.hist(
            inside, edges.tolist(), weights=share, histtype="step", color=colour, linestyle=style,
            linewidth=1.6, label=name,
        )  # fmt: skip
    axes.set(xlabel=label, ylabel="images, %")
    cut = []
    for beyond, side in (((theirs < left), "left"), ((theirs > right), "right")):
        if beyond.any():
            cut.append(f"{100 * beyond.mean():.0f} % of the others lie further {side}")
    if cut:
        axes.set_title("; ".join(cut), fontsize=8, loc="left")
    axes.legend(
        fontsize=8, frameon=False, loc="lower left", bbox_to_anchor=(0, 1.06 if cut else 1.0),
        ncols=2,
    )  # fmt: skip
    quiet(axes)
    return figure
