"""What the figures have in common: colours that colour-blind readers tell apart, and quiet axes."""

from __future__ import annotations

from matplotlib.axes import Axes

# Okabe and Ito's palette without yellow, which is too pale on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
GREY = "#777777"


def quiet(axes: Axes) -> None:
    """Leave out what frames nothing, and put a light grid behind the data."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
