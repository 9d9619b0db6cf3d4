"""Distances of embeddings to their nearest prototype, one or several runs in one picture."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from protoflows.evaluation.distances import quartiles
from protoflows.evaluation.figures.style import COLOURS, quiet

_BINS = 60


def draw_distances(distances: Mapping[str, Tensor]) -> Figure:
    """Histograms with quartiles as dashed lines (`fig:distance_closest_proto`).

    Args:
        distances: Distances, (N,), by what the legend calls them.
    """
    if not distances:
        raise ValueError("distances must hold at least one run, got none")
    arrays = {name: values.double().cpu().numpy() for name, values in distances.items()}
    low = min(float(values.min()) for values in arrays.values())
    high = max(float(values.max()) for values in arrays.values())
    margin = 0.02 * (high - low) or 0.5
    bins = np.linspace(low - margin, high + margin, _BINS + 1).tolist()
    figure = Figure(figsize=(5.6, 3.6), layout="constrained")
    axes = figure.subplots()
    for place, (name, values) in enumerate(arrays.items()):
        colour = COLOURS[place % len(COLOURS)]
        # Outlines differ too: colours alone are not enough when many runs overlap.
        style = ("-", "--", "-.", ":")[place % 4]
        axes.hist(values, bins, density=True, color=colour, alpha=0.25)
        axes.hist(
            values, bins, density=True, histtype="step", color=colour, linewidth=1.6,
            linestyle=style, label=name,
        )  # fmt: skip
        for quartile in quartiles(distances[name]):
            axes.axvline(quartile, color=colour, linestyle="--", linewidth=1)
    axes.set(xlabel="distance to the nearest prototype's mean", ylabel="density")
    axes.legend(fontsize=8)
    quiet(axes)
    return figure
