"""The tables of the paper as data, each number with the table that it comes from."""

from __future__ import annotations

import csv
import functools
import importlib.resources
import re
from dataclasses import dataclass

# Columns that hold figures, and what turns the paper's per cent into shares.
_FIGURES = {
    "accuracy": 0.01,
    "accuracy_reproduced": 0.01,
    "accuracy_top5": 0.01,
    "bits_per_dim": 1.0,
    "ece": 1.0,
    "mce": 1.0,
    "s_rob": 1.0,
    "s_div": 1.0,
    "pruned": 0.01,
}
_LOSSES = ("loss_elbo", "loss_con", "loss_div")

# Names of data sets here → in the paper.
_DATASETS = {
    "mnist": "MNIST",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "flowers102": "Flowers-102",
    "oxfordpet": "Oxford-IIIT Pet",
    "cub200": "CUB-200-2011",
}
OURS = "ProtoFlow"


@dataclass(frozen=True)
class PaperRow:
    """A row of one of the paper's tables.

    The same quantity can stand in two tables with two values (MNIST's accuracy: 99.36 % in
    `tab:clfResults`, 99.39 % in `tab:pruneResults`): both are kept.

    Attributes:
        table: The table's label in the paper's source.
        dataset: As the paper calls it.
        resolution: Side of the images, where stated.
        model: As the paper calls it; "ProtoFlow" is the paper's own.
        variant: A setting that tells rows of one model apart.
        proto_based: Whether the model has prototypes.
        flow_based: Whether it is a flow.
        figures: Metrics by their name in metrics.json; accuracies and `pruned` as shares.
        losses: Auxiliary losses that were on, by name; empty outside `tab:loss_ablate`.
        note: What else the table or its caption says.
    """

    table: str
    dataset: str
    resolution: int | None
    model: str
    variant: str
    proto_based: bool
    flow_based: bool
    figures: dict[str, float]
    losses: dict[str, bool]
    note: str


@functools.cache
def paper_rows() -> tuple[PaperRow, ...]:
    """All rows, table by table.

    >>> sorted(r.figures["accuracy"] for r in paper_rows_for("mnist") if "ece" in r.figures)
    [0.9626, 0.9936, 0.9939]
    """
    source = importlib.resources.files("protoflows.evaluation").joinpath("paper_tables.csv")
    return tuple(map(_row, csv.DictReader(source.read_text(encoding="utf-8").splitlines())))


def paper_dataset(name: str) -> str | None:
    """The paper's name of a data set of ours, or None where the paper has no such data.

    >>> paper_dataset("oxford-pet")
    'Oxford-IIIT Pet'
    """
    plain = re.sub("[-_ ]", "", name.lower())
    by_paper = {re.sub("[-_ ]", "", paper.lower()): paper for paper in _DATASETS.values()}
    return _DATASETS.get(plain) or by_paper.get(plain)


def paper_rows_for(dataset: str) -> tuple[PaperRow, ...]:
    """The paper's own model on a data set, in order of the tables; none for other data.

    The ablation is left out (models of 11 epochs), and so is the table that repeats another.

    Args:
        dataset: Our name or the paper's.
    """
    name = paper_dataset(dataset)
    return tuple(
        row
        for row in paper_rows()
        if row.dataset == name
        and row.model == OURS
        and row.table not in ("tab:loss_ablate", "tab:clfResultsFull")
    )


def _row(cells: dict[str, str]) -> PaperRow:
    # Rounded: 99.36 · 0.01 is no round number in binary.
    figures = {
        name: round(float(cells[name]) * factor, 6)
        for name, factor in _FIGURES.items()
        if cells[name]
    }
    return PaperRow(
        table=cells["table"],
        dataset=cells["dataset"],
        resolution=int(cells["resolution"]) if cells["resolution"] else None,
        model=cells["model"],
        variant=cells["variant"],
        proto_based=cells["proto_based"] == "1",
        flow_based=cells["flow_based"] == "1",
        figures=figures,
        losses={name: cells[name] == "1" for name in _LOSSES if cells[name]},
        note=cells["note"],
    )
