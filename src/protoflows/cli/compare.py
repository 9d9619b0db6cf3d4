"""`protoflows compare`: runs side by side, with the paper's rows."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protoflows.cli.parser import CommandParser

if TYPE_CHECKING:
    from protoflows.evaluation.table import Column


def build_parser() -> argparse.ArgumentParser:
    """Describe the options."""
    parser = CommandParser(
        prog="protoflows compare",
        description=(
            "Print the figures of evaluated runs side by side, and the paper's for the same data, "
            "each with the table it comes from. With --out also as CSV, and with the distances to "
            "prototypes and the covariances' norms of all runs in one picture."
        ),
        examples=(
            ("two runs side by side, with the paper's rows", "compare runs/digits runs/mnist"),
            ("all runs, as a table and a picture too", "compare runs/* --out comparison"),
        ),
    )
    parser.add_argument("runs", metavar="RUN", nargs="+", help="folders of runs")
    parser.add_argument("--out", metavar="DIR", help="folder for compare.csv and distances.png")
    parser.add_argument("--no-paper", action="store_true", help="leave the paper's rows out")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the command.

    Args:
        argv: The words after `compare`.
    """
    options = build_parser().parse_args(list(argv))
    from protoflows.evaluation.paper import paper_rows_for
    from protoflows.evaluation.report import read_metrics
    from protoflows.evaluation.table import Column, paper_column, text_table

    columns: list[Column] = []
    datasets, folders = [], {}
    for name in options.runs:
        folder = Path(name).expanduser()
        if len(options.runs) > 1 and not _is_run(folder):  # `runs/*` names other things too
            print(f"note: {folder} is no evaluated run: left out", file=sys.stderr)
            continue
        metrics = read_metrics(folder)
        columns.append(Column(name, metrics))
        folders[name] = folder
        datasets.append(_dataset(folder, metrics))
    if not columns:
        raise FileNotFoundError("RUN: none of these folders holds metrics.json")
    paper = []
    if not options.no_paper:
        for dataset in dict.fromkeys(datasets):
            paper += [paper_column(row, columns) for row in paper_rows_for(dataset)]
    print(text_table([*columns, *paper]))
    if options.out:
        for path in _write(Path(options.out).expanduser(), [*columns, *paper], folders):
            print(f"written: {path}")
    return 0


def _write(out: Path, columns: Sequence[Column], runs: Mapping[str, Path]) -> list[Path]:
    """compare.csv with every number, and the distances of runs that have them."""
    from protoflows.evaluation.figures import draw_distances
    from protoflows.evaluation.report import read_covariance_norms, read_distances

    out.mkdir(parents=True, exist_ok=True)
    names = list(dict.fromkeys(name for column in columns for name in column.figures))
    table = out / "compare.csv"
    with table.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["metric", *(column.title for column in columns)])
        for name in names:
            writer.writerow([name, *(column.figures.get(name, "") for column in columns)])
    written = [table]
    found = {name: read_distances(folder) for name, folder in runs.items()}
    distances = {name: values for name, values in found.items() if values is not None}
    if distances:
        picture = out / "distances.png"
        wide = {name: read_covariance_norms(runs[name]) for name in distances}
        norms = {name: values for name, values in wide.items() if values is not None}
        draw_distances(distances, norms).savefig(picture, dpi=150)
        written.append(picture)
    return written


def _is_run(folder: Path) -> bool:
    return (folder / "metrics.json").is_file()


def _dataset(folder: Path, metrics: dict[str, Any]) -> str:
    """The data a run was measured on: what evaluation noted, else what training did."""
    if isinstance(metrics.get("data"), str):
        return str(metrics["data"])
    head = folder / "versions.json"
    if head.is_file():
        return str(json.loads(head.read_text(encoding="utf-8")).get("data", ""))
    return ""
