"""Images on their way: interpolations and counterfactuals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from torch import Tensor

from protoflows.explain.counterfactual import Counterfactuals
from protoflows.explain.figures.style import (
    COLOURS,
    SEQUENTIAL,
    bare,
    limit_of,
    plain,
    quiet,
    show_heat,
    show_image,
)
from protoflows.explain.interpolation import Interpolation


def draw_interpolation(found: Interpolation, levels: int, class_names: Sequence[str]) -> Figure:
    """The images in a row, log p(x) and the ends' class probabilities below."""
    steps = len(found.images)
    figure = Figure(figsize=(max(6.5, 0.6 + 0.95 * steps), 4.6), layout="constrained")
    halves: Any = figure.subfigures(2, 1, height_ratios=[1, 2.3])
    top, low = halves
    row = top.subplots(1, steps, squeeze=False)[0]
    labels = found.posterior.argmax(1).tolist()
    for axes, image, weight, label in zip(
        row, found.images, found.weights.tolist(), labels, strict=True
    ):
        show_image(axes, image, levels, f"{weight:g}" if steps <= 12 else "", 7)
        axes.set_xlabel(plain(class_names[label], 12), fontsize=7)
    kept = "kept" if found.factored == "keep" else "interpolated"
    top.suptitle(f"From one image to the other (outputs of transitions {kept})", fontsize=10)
    left, right = low.subplots(1, 2)
    x = found.weights.tolist()
    left.plot(x, found.log_prob.tolist(), color=COLOURS[2], marker="o", markersize=4)
    left.set(xlabel="way from the first to the last", ylabel="log p(x) (nats)")
    styles = (("-", "o"), ("--", "s"), (":", "^"), ("-.", "D"))
    shown = list(dict.fromkeys([labels[0], labels[-1], *labels]))[:4]
    for place, label in enumerate(shown):
        line, mark = styles[place]
        right.plot(
            x, (100 * found.posterior[:, label]).tolist(), color=COLOURS[place], linestyle=line,
            marker=mark, markersize=4, label=plain(class_names[label], 12),
        )  # fmt: skip
    right.set(xlabel="way from the first to the last", ylabel="p(class | x) (%)", ylim=(-3, 103))
    right.legend(fontsize=8)
    for axes in (left, right):
        quiet(axes)
    return figure


def draw_counterfactuals(
    found: Counterfactuals, levels: int, class_names: Sequence[str], rows: int = 6
) -> Figure:
    """Image, counterfactual and what changed between them, a row for each image.

    Of grey images the sign is shown, purple where it became darker. Of coloured ones it would hide
    what changes its colour alone: there it is the mean change of the channels, without a sign.
    """
    count = min(rows, len(found.images))
    if not count:
        raise ValueError("found must hold at least one image, got none")
    figure = Figure(figsize=(7.0, 0.55 + 1.75 * count), layout="constrained")
    grid = figure.subplots(count, 4, squeeze=False, width_ratios=[1, 1, 1, 1.05])
    change = (found.images.double() - found.original.double())[:count] / (levels - 1)
    grey = change.shape[1] == 1
    change = change[:, 0] if grey else change.abs().mean(1)
    limit = limit_of(change)
    for n in range(count):
        source, target = int(found.source[n]), int(found.target[n])
        show_image(grid[n, 0], found.original[n], levels, f"was {plain(class_names[source], 12)}")
        title = f"now {plain(class_names[int(found.posterior[n].argmax())], 12)}"
        show_image(grid[n, 1], found.images[n], levels, title)
        if grey:
            shown = show_heat(grid[n, 2], change[n], limit)
        else:
            shown = grid[n, 2].imshow(change[n].numpy(), cmap=SEQUENTIAL, vmin=0, vmax=limit)
            bare(grid[n, 2])
        if n == 0:
            title = "change of brightness" if grey else "change of colour"
            grid[n, 2].set_title(title, fontsize=8)
        figure.colorbar(shown, ax=grid[n, 2], fraction=0.05, pad=0.03).ax.tick_params(labelsize=6)
        axes = grid[n, 3]
        axes.axis("off")
        wanted = plain(class_names[target], 12)
        lines = [
            f"asked for: {wanted}" + ("" if bool(found.success[n]) else " (not reached)"),
            f"p({wanted} | x) = {100 * float(found.posterior[n, target]):.1f} %",
            f"pixels change by {100 * float(found.pixel_change[n]):.1f} %",
            f"{float(found.distance[n]):.2f} std in latent space",
            f"log p(x) = {float(found.log_prob[n]):,.1f} nats",
        ]
        if found.percentile is not None:
            lines.append(f"percentile {float(found.percentile[n]):.0f} of training")
        axes.text(0, 0.5, "\n".join(lines), va="center", fontsize=7.5, linespacing=1.5)
    return figure


def draw_way(
    images: Tensor, log_likelihood: Tensor, steps: Tensor, levels: int, names: tuple[str, str]
) -> Figure:
    """A counterfactual's path: its images, and log p(x|class) of both classes on the way.

    Args:
        images: uint8 (S, C, H, W).
        log_likelihood: log p(x|c) of source and target, (S, 2).
        steps: How far along the path, (S,), 1 being the counterfactual.
        levels: Number of values of a pixel.
        names: Source and target.
    """
    count = len(images)
    figure = Figure(figsize=(max(6.0, 0.6 + 0.9 * count), 4.2), layout="constrained")
    halves: Any = figure.subfigures(2, 1, height_ratios=[1, 2.2])
    top, low = halves
    for axes, image, step in zip(
        top.subplots(1, count, squeeze=False)[0], images, steps.tolist(), strict=True
    ):
        show_image(axes, image, levels, f"{step:.2g}", 7)
    axes = low.subplots()
    for place, name in enumerate(names):
        axes.plot(
            steps.tolist(), log_likelihood[:, place].tolist(), color=COLOURS[place],
            marker="os"[place], linestyle=("-", "--")[place], label=plain(name, 12),
        )  # fmt: skip
    axes.set(xlabel="way to the counterfactual", ylabel="log p(x | class) (nats)")
    axes.legend(fontsize=8)
    quiet(axes)
    return figure
