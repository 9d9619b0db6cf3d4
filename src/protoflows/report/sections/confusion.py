"""Which classes are taken for which."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from protoflows.explain.figures.style import COLOURS, plain
from protoflows.explain.html import paragraph, picture, table
from protoflows.report.material import Material
from protoflows.report.section import Section, missing
from protoflows.report.wording import NO_LABELS, measured_on

_PAIRS = 8
_NUMBERED = 20  # classes up to which a cell's count is legible
_NAMED = 60


def confusion(material: Material) -> Section:
    """The matrix, and the most frequent errors as a table."""
    found = material.evaluation
    if found is None or found.confusion is None:
        body = [missing(NO_LABELS)]
    else:
        counts = found.confusion
        body = [
            picture(
                draw_confusion(counts, material.class_names),
                f"True class by row, predicted class by column ({measured_on(material)}).",
            )
        ]
        pairs = frequent_errors(counts)[:_PAIRS]
        if pairs:
            size = counts.sum(1)
            names = material.class_names
            rows = [
                [f"{names[a]} taken for {names[b]}", str(n), f"{100 * n / int(size[a]):.1f} %"]
                for a, b, n in pairs
            ]
            body.append(table(["most frequent errors", "images", "of that class"], rows))
        else:
            body.append(paragraph("No test image was classified wrong."))
    return Section(
        "confusion", "Which classes are taken for which",
        "A row is a true class, a column what the model said: the diagonal is right. Errors are "
        "coloured by the share of the row's class that they are, so that rare classes count as "
        "much as frequent ones.",
        "With few test images of a class, one image changes a cell by several per cent. Labels can "
        "be wrong too: look at the errors before blaming the model.",
        tuple(body), short="Confusion",
    )  # fmt: skip


def frequent_errors(counts: Tensor) -> list[tuple[int, int, int]]:
    """Pairs (label, predicted, number) that are errors, the most frequent first.

    Args:
        counts: Labels by predicted classes, (C, C).
    """
    errors = counts.clone().fill_diagonal_(0)
    order = errors.flatten().argsort(descending=True, stable=True)
    pairs = [divmod(i, len(counts)) for i in order.tolist()[: int((errors > 0).sum())]]
    return [(a, b, int(errors[a, b])) for a, b in pairs]


def draw_confusion(counts: Tensor, class_names: tuple[str, ...]) -> Figure:
    """Errors coloured by their share of the row, counts written where they are legible.

    Args:
        counts: Labels by predicted classes, (C, C).
        class_names: Names of the classes.
    """
    size = len(counts)
    shares = 100 * counts.double() / counts.sum(1, keepdim=True).clamp_min(1)
    errors = shares.clone().fill_diagonal_(0)
    top = max(float(errors.max()), 1.0)
    side = min(9.0, 2.6 + 0.34 * size)
    figure = Figure(figsize=(side + 1.0, side), layout="constrained")
    axes = figure.subplots()
    shown = axes.imshow(errors.numpy(), cmap="Oranges", vmin=0, vmax=top, interpolation="nearest")
    figure.colorbar(shown, ax=axes, shrink=0.8, label="errors, % of the true class")
    for place in range(size):  # the diagonal is no error: blue, whatever its share
        axes.add_patch(
            Rectangle((place - 0.5, place - 0.5), 1, 1, facecolor=COLOURS[0], edgecolor="none")
        )
    if size <= _NUMBERED:
        for a in range(size):
            for b in range(size):
                number = int(counts[a, b])
                if number:
                    pale = a != b and float(errors[a, b]) < 0.6 * top
                    axes.text(
                        b, a, str(number), ha="center", va="center", fontsize=7.5,
                        color="black" if pale else "white",
                    )  # fmt: skip
    every = max(1, -(-size // _NAMED))
    names = [plain(name, 14) for name in class_names][::every]
    wide = max(map(len, names), default=0) > 2
    axes.set_xticks(range(0, size, every), names, fontsize=7, rotation=90 if wide else 0)
    axes.set_yticks(range(0, size, every), names, fontsize=7)
    axes.set(xlabel="predicted class", ylabel="true class")
    return figure
