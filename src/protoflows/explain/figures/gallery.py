"""Prototypes as pictures: a class's gallery, one prototype's grid, and informativeness."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from protoflows.explain.figures.style import COLOURS, GREY, plain, quiet, show_image
from protoflows.explain.informativeness import Informativeness
from protoflows.explain.neighbours import Neighbours
from protoflows.explain.pictures import PrototypePictures, prototype_title
from protoflows.model import ProtoFlow


def draw_class_gallery(
    model: ProtoFlow,
    pictures: Sequence[PrototypePictures],
    neighbours: Neighbours | None = None,
    images: Tensor | None = None,
    shown: int = 3,
    counts: bool = True,
) -> Figure:
    """One row per prototype: mean, samples, nearest and likeliest training images.

    Args:
        model: The model.
        pictures: Of the prototypes of one class.
        neighbours: What `find_neighbours` found in `images`; None leaves these columns out.
        images: The training images that neighbours point into.
        shown: Pictures per column group.
        counts: Whether to say how many images a prototype explains.
    """
    if not pictures:
        raise ValueError("pictures must hold at least one prototype, got none")
    levels = model.config.flow.levels
    known = neighbours is not None and images is not None
    groups = ["samples (latent drawn, transitions at their mean)", "samples (everything drawn)"]
    groups += ["nearest training images", "likeliest training images"] if known else []
    columns = 1 + shown * len(groups)
    gaps = [0.95, *([0.35, *[1.0] * shown] * len(groups))]
    figure = Figure(figsize=(1.9 + 0.78 * sum(gaps), 1.05 + 0.9 * len(pictures)))
    left = 1.9 / figure.get_figwidth()
    top = 1 - 0.8 / figure.get_figheight()
    spec = figure.add_gridspec(
        len(pictures), columns + len(groups), width_ratios=gaps, wspace=0.06, hspace=0.12,
        left=left, right=0.99, top=top, bottom=0.03,
    )  # fmt: skip
    for row, pic in enumerate(pictures):
        c, k = pic.prototype
        axes = figure.add_subplot(spec[row, 0])
        show_image(axes, pic.mean, levels, "mean" if row == 0 else "", 9)
        text = [model.config.prototype_names.get((c, k)) or f"prototype {k}"]
        text[0] = plain(text[0], 24)
        text.append(f"weight {100 * float(model.mixtures.weights[c, k].detach()):.1f} %")
        if neighbours is not None and counts:
            text.append(f"explains {int(neighbours.explained[c, k])}")
        axes.set_ylabel(
            "\n".join(text), rotation=0, ha="right", va="center", fontsize=8, labelpad=6
        )
        inner = pic.grid[_moderate(pic.radii)]
        rows = [list(inner[:shown]), list(pic.drawn[:shown])]
        if neighbours is not None and images is not None:
            rows.append([images[i] for i in neighbours.nearest[c, k, :shown].tolist()])
            rows.append([images[i] for i in neighbours.likeliest[c, k, :shown].tolist()])
        for g, items in enumerate(rows):
            first = 1 + g * (shown + 1) + 1
            for j, image in enumerate(items):
                axes = figure.add_subplot(spec[row, first + j])
                show_image(axes, image, levels)
                if row == 0 and j == len(items) // 2:
                    axes.set_title(_wrapped(groups[g]), fontsize=8)
    radius = pictures[0].radii[_moderate(pictures[0].radii)]
    figure.suptitle(
        f"Prototypes of “{plain(model.config.class_names[pictures[0].prototype[0]])}”   "
        f"(samples: first group inside {radius:g} std, drawn ones inside "
        f"{pictures[0].radii[-1]:g} std)",
        fontsize=10, x=0.01, ha="left", y=1 - 0.08 / figure.get_figheight(), va="top",
    )  # fmt: skip
    return figure


def _moderate(radii: Sequence[float]) -> int:
    """The radius that says most: the largest up to 0.5, or the smallest there is."""
    inside = [i for i, r in enumerate(radii) if 0 < r <= 0.5]
    return inside[-1] if inside else 0


def _wrapped(text: str) -> str:
    return text.replace(" (", "\n(").replace(" training", "\ntraining")


def draw_truncation_grid(model: ProtoFlow, pictures: PrototypePictures) -> Figure:
    """Samples of one prototype, a row per truncation radius; a column is one direction."""
    rows, columns = pictures.grid.shape[:2]
    figure = Figure(figsize=(1.3 + 0.8 * columns, 0.65 + 0.8 * rows))
    height = figure.get_figheight()
    grid = figure.subplots(
        rows, columns, squeeze=False,
        gridspec_kw={"left": 1.1 / figure.get_figwidth(), "right": 0.99, "bottom": 0.03,
                     "top": 1 - 0.5 / height, "wspace": 0.08, "hspace": 0.08},
    )  # fmt: skip
    for r, radius in enumerate(pictures.radii):
        for s in range(columns):
            show_image(grid[r, s], pictures.grid[r, s], model.config.flow.levels)
        name = "mean" if radius == 0 else f"≤ {radius:g} std"
        grid[r, 0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=9, labelpad=6)
    figure.suptitle(
        f"{plain(prototype_title(model, pictures.prototype), 60)}: samples inside a radius",
        fontsize=10,
        y=1 - 0.1 / height, va="top",
    )  # fmt: skip
    return figure


def draw_informativeness(found: Informativeness) -> Figure:
    """Shares that come back, and log p(x), over radii; bands hold half the prototypes."""
    figure = Figure(figsize=(8.6, 3.3), layout="constrained")
    left, right = figure.subplots(1, 2)
    radii = list(found.radii)
    for name, table, colour, mark in (
        ("its class", found.class_share, COLOURS[0], "o"),
        ("its prototype", found.prototype_share, COLOURS[1], "s"),
    ):
        _band(left, radii, 100 * table, colour, mark, name)
    left.set(xlabel="truncation radius (std)", ylabel="samples given back to … (%)", ylim=(-2, 102))
    left.legend(fontsize=8)
    _band(right, radii, found.log_prob, COLOURS[2], "o", "samples")
    right.set(xlabel="truncation radius (std)", ylabel="log p(x) of the samples (nats)")
    for axes in (left, right):
        quiet(axes)
    left.set_title(
        f"mean and middle half of {len(found.prototypes)} prototypes, {found.samples} samples each",
        fontsize=8, color=GREY, loc="left",
    )  # fmt: skip
    return figure


def _band(axes: Axes, x: list[float], table: Tensor, colour: str, mark: str, name: str) -> None:
    low, high = (table.quantile(q, dim=1).tolist() for q in (0.25, 0.75))
    axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
    axes.plot(x, table.mean(1).tolist(), color=colour, marker=mark, markersize=4, label=name)


def draw_sheet(
    model: ProtoFlow, images: Tensor, titles: Sequence[str], columns: int = 10
) -> Figure:
    """Images in rows with a line under each: all means, or one image per class."""
    if len(images) != len(titles) or not len(images):
        raise ValueError(f"titles must be one per image, got {len(titles)} for {len(images)}")
    rows = -(-len(images) // columns)
    wide = min(columns, len(images))
    figure = Figure(figsize=(0.3 + 1.0 * wide, 0.2 + 1.2 * rows), layout="constrained")
    grid = figure.subplots(rows, wide, squeeze=False).ravel()
    for place, axes in enumerate(grid):
        if place < len(images):
            show_image(axes, images[place], model.config.flow.levels)
            axes.set_xlabel(plain(titles[place], 16), fontsize=7)
        else:
            axes.set_visible(False)
    return figure
