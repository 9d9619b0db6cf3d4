"""How far to trust heatmaps: relevance ordering and sanity checks."""

from __future__ import annotations

import math

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from protoflows.explain.faithfulness import RelevanceOrdering
from protoflows.explain.figures.style import COLOURS, GREY, quiet
from protoflows.explain.sanity import Randomisation, Stability, summary


def draw_relevance(found: RelevanceOrdering) -> Figure:
    """Median curves with 95 % bands on the left, each image's gap in area on the right."""
    figure = Figure(figsize=(9.0, 3.7), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[1.25, 1])
    x = (100 * found.shares).tolist()
    ends = []
    for (name, (middle, low, high)), colour, line in zip(
        found.bands().items(), (COLOURS[0], COLOURS[1]), ("-", "--"), strict=True
    ):
        label = "heatmap's order" if name == "heatmap" else f"random {found.control}"
        left.plot(x, middle.tolist(), color=colour, linestyle=line, linewidth=1.8, label=label)
        left.fill_between(x, low.tolist(), high.tolist(), color=colour, alpha=0.2, linewidth=0)
        ends.append(middle)
    if (scale := _linear_part(torch.cat(ends))) is not None:
        left.set_yscale("symlog", linthresh=scale)
    what = "z" if found.by == "latent" else "x"
    left.set(xlabel="pixels put back (%)", ylabel=f"log p({what} | prototype) (nats)")
    left.legend(fontsize=8, loc="lower right")
    left.set_title(f"median and 95 % band over {len(found.gap)} images", fontsize=8, color=GREY)
    _draw_gaps(right, found)
    for axes in (left, right):
        quiet(axes)
    return figure


def _draw_gaps(axes: Axes, found: RelevanceOrdering) -> None:
    gap, low, high = found.gap_interval()
    values = found.gap.numpy()
    bins = min(30, max(8, len(values) // 6))
    edges = np.histogram_bin_edges(values, bins)
    if (scale := _linear_part(found.gap)) is not None:
        axes.set_xscale("symlog", linthresh=scale)
        # As wide on the axis, each of them: arsinh is linear near 0 and logarithmic far out.
        edges = scale * np.sinh(np.histogram_bin_edges(np.arcsinh(values / scale), bins))
        edges[0], edges[-1] = values.min(), values.max()
    axes.hist(values, bins=edges.tolist(), color=COLOURS[4], edgecolor="white", linewidth=0.4)
    axes.axvline(0, color=GREY, linewidth=1)
    axes.axvline(gap, color=COLOURS[0], linewidth=1.8)
    axes.axvspan(low, high, color=COLOURS[0], alpha=0.2, linewidth=0)
    axes.set(xlabel="gap in area, heatmap − random (nats)", ylabel="images")
    p = found.p_value()
    shown = "p < 0.0001" if p < 1e-4 else f"p = {p:.4f}"
    axes.set_title(
        f"median {gap:+,.1f} [{low:+,.1f}, {high:+,.1f}]\n"
        f"beats {100 * float(found.wins.mean()):.0f} % of random orders, {shown} (rank test)",
        fontsize=8, color=GREY,
    )  # fmt: skip


def _linear_part(values: Tensor) -> float | None:
    """Where an axis should turn logarithmic, a power of ten; None where a linear one will do."""
    sizes = values.abs()
    typical, largest = float(sizes.quantile(0.5)), float(sizes.max())
    if typical == 0 or largest < 20 * typical:
        return None
    return float(10 ** math.floor(math.log10(typical)))


def draw_sanity(randomisation: Randomisation, stability: Stability) -> Figure:
    """Rank correlations: low is good where weights change, high where only noise does."""
    figure = Figure(figsize=(7.2, 3.6), layout="constrained")
    axes = figure.subplots()
    rows = [
        ("other draws of noise\n(should be near 1)", stability.heatmap, COLOURS[2]),
        ("next class's prototype\n(should fall)", randomisation.prototypes, COLOURS[1]),
        ("the same of the lead over\nother classes (should fall)", randomisation.lead, COLOURS[3]),
        ("flow's weights randomised\n(should be near 0)", randomisation.flow, COLOURS[0]),
    ]
    for place, (_, values, colour) in enumerate(rows):
        kept = values[values.isfinite()]
        spread = (((0.618034 * i) % 1) - 0.5 for i in range(len(kept)))
        axes.scatter(
            kept.tolist(), [place + 0.42 * s for s in spread], s=11, color=colour, alpha=0.6,
            linewidth=0,
        )  # fmt: skip
        mean = summary(values)["mean"]
        if mean is not None:
            axes.plot([mean, mean], [place - 0.32, place + 0.32], color="black", linewidth=2)
            axes.text(1.12, place, f"{mean:+.2f}", va="center", fontsize=9)
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows], fontsize=8)
    axes.invert_yaxis()
    axes.axvline(0, color=GREY, linewidth=0.8)
    axes.set(xlim=(-1.05, 1.08), xlabel="rank correlation with the heatmap (mean at the right)")
    same = float(stability.top_prototype.mean())
    axes.set_title(
        f"top prototype the same in {100 * same:.1f} % of {stability.draws} draws", fontsize=8,
        color=GREY,
    )  # fmt: skip
    quiet(axes)
    return figure
