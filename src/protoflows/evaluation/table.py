"""Figures side by side with the paper's, as plain text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from protoflows.evaluation.paper import PaperRow

# Names in metrics.json, what they are called in a table, how many decimals, and whether per cent.
_LINES = (
    ("accuracy", "accuracy, %", 2, True),
    ("accuracy_unaugmented", "  of the image itself, %", 2, True),
    ("accuracy_importance", "  of itself, importance-weighted, %", 2, True),
    ("accuracy_top5", "accuracy @ 5, %", 2, True),
    ("ece", "ECE", 4, False),
    ("mce", "MCE", 3, False),
    ("nll", "-log p(y|x), nats", 4, False),
    ("brier", "Brier score", 4, False),
    ("aurc", "area under risk-coverage", 5, False),
    ("bits_per_dim", "bits/dim, marginal, importance", 4, False),
    ("bits_per_dim_mean_bound", "bits/dim, marginal, mean bound", 4, False),
    ("bits_per_dim_best_class", "bits/dim, best class", 4, False),
    ("bits_per_dim_paper_protocol", "bits/dim, best class, all views", 4, False),
    ("bits_per_image", "bits/image", 1, False),
    ("s_rob", "S_rob", 3, False),
    ("s_rob_baseline", "S_rob, same image", 3, False),
    ("s_div", "S_div", 3, False),
    ("pruned", "pruned, %", 1, True),
    ("distance_median", "distance to prototype, median", 2, False),
    ("covariance_norm_median", "covariance norm, median", 3, False),
    ("prototypes", "prototypes", 0, False),
    ("dims", "dims", 0, False),
    ("levels", "levels", 0, False),
    ("images", "images", 0, False),
    ("mc_samples", "draws", 0, False),
    ("mc_samples_density", "  for densities", 0, False),
    ("tta", "augmented views", 0, False),
    ("passes", "flow passes", 0, False),
    ("adaptive_passes", "  with early stopping", 0, False),
    ("adaptive_speedup", "  fewer than draws x views, times", 2, False),
    ("adaptive_agreement", "  same decisions, %", 2, True),
)
# The paper's bits are those of the published code: best class, all views. Without views the
# comparable line is the best class.
_PAPER_BITS = ("bits_per_dim_paper_protocol", "bits_per_dim_best_class")


class Column(NamedTuple):
    """A column of the table.

    Attributes:
        title: Its head.
        figures: By their name in metrics.json; `…_stderr` beside them where known.
    """

    title: str
    figures: Mapping[str, Any]


def paper_column(row: PaperRow, others: Sequence[Column]) -> Column:
    """A row of the paper, its bits on the line of `others` that counts as it did."""
    figures = dict(row.figures)
    if "bits_per_dim" in figures:
        value = figures.pop("bits_per_dim")
        line = next((n for n in _PAPER_BITS if any(n in c.figures for c in others)), _PAPER_BITS[1])
        figures[line] = value
    pruned = f", {100 * figures['pruned']:g} % pruned" if figures.get("pruned") else ""
    return Column(f"paper {row.table}: {row.dataset}{pruned}", figures)


def text_table(columns: Sequence[Column]) -> str:
    """Lines of figures with ± their standard errors; lines that no column has are left out.

    >>> print(text_table([Column("run", {"accuracy": 0.5, "accuracy_stderr": 0.01})]))
                  run
    accuracy, %   50.00 ± 1.00
    """
    rows = [["", *(_head(column.title) for column in columns)], *table_rows(columns)]
    split = [[cell.split("\n") for cell in row] for row in rows]
    widths = [max(len(line) for row in split for line in row[i]) for i in range(len(rows[0]))]
    lines = []
    for row in split:
        for level in range(max(map(len, row))):
            parts = [cell[level] if level < len(cell) else "" for cell in row]
            padded = (part.ljust(width) for part, width in zip(parts, widths, strict=True))
            lines.append("   ".join(padded).rstrip())
    return "\n".join(lines)


def table_rows(columns: Sequence[Column]) -> list[list[str]]:
    """The table's lines below its head: a title, then a cell for each column.

    >>> table_rows([Column("run", {"ece": 0.01})])
    [['ECE', '0.0100']]
    """
    return [
        [title, *(_cell(column.figures, name, digits, percent) for column in columns)]
        for name, title, digits, percent in _LINES
        if any(_says_something(column.figures, name) for column in columns)
    ]


def _head(title: str) -> str:
    """Break a long title at its first colon and spaces, so that columns stay narrow."""
    words, lines = title.replace(": ", ":\n").split("\n"), []
    for word in words:
        line = ""
        for piece in word.split(" "):
            if line and len(line) + 1 + len(piece) > 20:
                lines.append(line)
                line = piece
            else:
                line = f"{line} {piece}".strip()
        lines.append(line)
    return "\n".join(lines)


def _cell(figures: Mapping[str, Any], name: str, digits: int, percent: bool) -> str:
    value = _number(figures.get(name))
    if value is None:
        return "-"
    factor = 100 if percent else 1
    text = f"{factor * value:.{digits}f}"
    stderr = _number(figures.get(f"{name}_stderr"))
    return text if stderr is None else f"{text} ± {factor * stderr:.{digits}f}"


def _says_something(figures: Mapping[str, Any], name: str) -> bool:
    """Whether a column has a figure for a line; draws of densities where they are others."""
    value = _number(figures.get(name))
    usual = name == "mc_samples_density" and value == _number(figures.get("mc_samples"))
    return value is not None and not usual


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
