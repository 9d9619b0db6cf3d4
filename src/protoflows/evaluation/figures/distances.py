"""Distances of embeddings to their nearest prototype, one or several runs in one picture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from protoflows.evaluation.distances import quartiles
from protoflows.evaluation.figures.style import COLOURS, quiet

_BINS = 60
_LINES: tuple[Literal["-", "--", "-.", ":"], ...] = ("-", "--", "-.", ":")


def draw_distances(
    distances: Mapping[str, Tensor], norms: Mapping[str, Tensor] | None = None
) -> Figure:
    """Histograms with quartiles as dotted lines (`fig:distance_closest_proto`).

    Beside them, where given, the norms of the prototypes' covariances: whether images lie farther
    away because prototypes are wider.

    Args:
        distances: Distances, (N,), by what the legend calls them.
        norms: `covariance_norms` of the same runs, (K·C,), by the same names.
    """
    if not distances:
        raise ValueError("distances must hold at least one run, got none")
    figure = Figure(figsize=(9.0 if norms else 5.6, 3.6), layout="constrained")
    parts = figure.subplots(
        1, 2 if norms else 1, squeeze=False, width_ratios=(3, 2)[: 1 + bool(norms)]
    )
    _overlay(parts[0, 0], distances, list(distances))
    parts[0, 0].set(xlabel="distance to the nearest prototype's mean", ylabel="density of images")
    if norms:
        _overlay(parts[0, 1], norms, list(distances))
        parts[0, 1].set(xlabel="norm of the covariance", ylabel="density of prototypes")
    return figure


def _overlay(axes: Axes, values: Mapping[str, Tensor], order: list[str]) -> None:
    """Outlined histograms of one number per image or prototype, with their quartiles."""
    arrays = {name: v.double().cpu().numpy() for name, v in values.items()}
    low = min(float(v.min()) for v in arrays.values())
    high = max(float(v.max()) for v in arrays.values())
    margin = 0.02 * (high - low) or 0.5
    # No finer than the smallest set can fill: thirty prototypes make no sixty bars.
    count = min(_BINS, max(8, int(2 * min(len(v) for v in arrays.values()) ** 0.5)))
    bins = np.linspace(low - margin, high + margin, count + 1).tolist()
    handles = []
    for name, array in arrays.items():
        place = order.index(name) if name in order else len(order)
        colour = COLOURS[place % len(COLOURS)]
        # Outlines differ too: colours alone are not enough when many runs overlap.
        style = _LINES[place % len(_LINES)]
        axes.hist(array, bins, density=True, color=colour, alpha=0.25)
        axes.hist(
            array, bins, density=True, histtype="step", color=colour, linewidth=1.6,
            linestyle=style,
        )  # fmt: skip
        handles.append(Line2D([], [], color=colour, linewidth=1.6, linestyle=style, label=name))
        for quartile in quartiles(values[name]):
            axes.axvline(quartile, color=colour, linestyle=(0, (1, 1.5)), linewidth=1.3)
    handles.append(
        Line2D([], [], color="#444444", linestyle=(0, (1, 1.5)), linewidth=1.3, label="quartiles")
    )
    # Above the axes: inside, it would cover one of the histograms sooner or later.
    axes.legend(
        handles=handles, fontsize=8, frameon=False, loc="lower left", bbox_to_anchor=(0, 1.0),
        ncols=2 if len(handles) < 5 and max(map(len, arrays)) < 30 else 1, borderaxespad=0.2,
    )  # fmt: skip
    quiet(axes)
