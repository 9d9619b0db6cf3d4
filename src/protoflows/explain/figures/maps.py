"""Maps of a model: divergences, t-SNE, weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from protoflows.explain.figures.style import COLOURS, GREY, SEQUENTIAL, plain, quiet
from protoflows.explain.maps import PrototypeMap

_MARKS = "os^Dv<>Php"
_FEW = 20


def draw_divergence(found: PrototypeMap, class_names: Sequence[str]) -> Figure:
    """Modified Hellinger divergences between all prototypes, the diagonal masked (grey)."""
    count = len(found.prototypes)
    side = min(9.0, 3.4 + 0.05 * count)
    figure = Figure(figsize=(side + 1.0, side), layout="constrained")
    axes = figure.subplots()
    colours = colormaps[SEQUENTIAL].with_extremes(bad="#bbbbbb")
    table = np.ma.masked_invalid(found.divergence.numpy())
    shown = axes.imshow(table, cmap=colours, interpolation="nearest")
    figure.colorbar(shown, ax=axes, shrink=0.85, label="modified Hellinger divergence")
    classes = [c for c, _ in found.prototypes]
    edges = [i for i in range(1, count) if classes[i] != classes[i - 1]]
    if len(set(classes)) <= 60:
        for edge in edges:
            axes.axhline(edge - 0.5, color="white", linewidth=0.6)
            axes.axvline(edge - 0.5, color="white", linewidth=0.6)
    bounds = [0, *edges, count]
    middles = [(a + b - 1) / 2 for a, b in zip(bounds, bounds[1:], strict=False)]
    names = [plain(class_names[classes[int(a)]], 14) for a in bounds[:-1]]
    every = -(-len(names) // 40)
    axes.set_xticks(middles[::every], names[::every], rotation=90, fontsize=7)
    axes.set_yticks(middles[::every], names[::every], fontsize=7)
    axes.set(title="How far prototypes lie apart")
    axes.title.set_fontsize(10)
    return figure


def draw_tsne(found: PrototypeMap, class_names: Sequence[str]) -> Figure:
    """Where the means lie: colour, mark and label say the class, the size says the weight."""
    if found.positions is None:
        raise ValueError("found has no positions: t-SNE needs at least four prototypes")
    figure = Figure(figsize=(6.4, 5.6), layout="constrained")
    axes = figure.subplots()
    classes = sorted({c for c, _ in found.prototypes})
    owner = np.array([c for c, _ in found.prototypes])
    points, weights = found.positions.numpy(), found.weights.numpy()
    sizes = 25 + 180 * weights / weights.max()
    for place, c in enumerate(classes):
        chosen = owner == c
        colour = COLOURS[place % (len(COLOURS) - 1)]
        axes.scatter(
            points[chosen, 0], points[chosen, 1], s=sizes[chosen], color=colour,
            marker=_MARKS[place % len(_MARKS)], alpha=0.8, edgecolor="white", linewidth=0.6,
        )  # fmt: skip
        if len(classes) <= _FEW:
            for x, y in points[chosen]:
                axes.annotate(
                    plain(class_names[c], 8), (x, y), textcoords="offset points", xytext=(7, 4),
                    fontsize=7,
                )  # fmt: skip
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title("t-SNE of the prototypes' means (size: weight)", fontsize=10)
    return figure


def draw_weights(found: PrototypeMap) -> Figure:
    """Histogram of the mixture weights with Otsu's threshold."""
    figure = Figure(figsize=(5.4, 3.2), layout="constrained")
    axes = figure.subplots()
    values = found.weights.numpy()
    axes.hist(values, bins=min(40, max(8, len(values) // 2)), color=COLOURS[4], edgecolor="white")
    if found.threshold is not None:
        below = int((values <= found.threshold).sum())
        axes.axvline(found.threshold, color=COLOURS[1], linestyle="--", linewidth=1.8)
        axes.set_title(
            f"Otsu's threshold {found.threshold:.3f}: {below} of {len(values)} prototypes are not "
            "above it",
            fontsize=9, color=GREY,
        )  # fmt: skip
    axes.set(xlabel="weight within the class", ylabel="prototypes")
    quiet(axes)
    return figure
