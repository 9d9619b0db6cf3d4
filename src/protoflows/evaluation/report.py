"""An evaluation as files: figures, tables and pictures in a run's folder."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from protoflows.evaluation.evaluate import Evaluation
from protoflows.evaluation.figures import (
    draw_distances,
    draw_mc_curve,
    draw_reliability,
    draw_risk_coverage,
)

METRICS_JSON, METRICS_CSV = "metrics.json", "metrics.csv"
TABLES, FIGURES = "evaluation", "figures"
DISTANCES, NORMS = "distances.csv", "covariance_norms.csv"
_STDERR = "_stderr"


def write_report(
    folder: Path, evaluation: Evaluation, about: Mapping[str, Any], class_names: Sequence[str]
) -> list[Path]:
    """Write everything that an evaluation found; returns the files.

    metrics.json comes last and whole, so that it never stands beside tables of another evaluation
    that was cut short.

    Args:
        folder: The run's folder.
        evaluation: What was found.
        about: What was evaluated (data, split, seed), put into metrics.json with the figures.
        class_names: Names of the classes.
    """
    tables, figures = folder / TABLES, folder / FIGURES
    tables.mkdir(parents=True, exist_ok=True)
    figures.mkdir(exist_ok=True)
    written = []
    for name, rows in _tables(evaluation, class_names).items():
        _write_csv(tables / name, rows)
        written.append(tables / name)
    for name, figure in _figures(evaluation).items():
        figure.savefig(figures / name, dpi=150)
        written.append(figures / name)
    metrics = evaluation.metrics
    plain = [name for name in metrics if not name.endswith(_STDERR)]
    rows = [["metric", "value", "stderr"]]
    rows += [[name, metrics[name], metrics.get(name + _STDERR, "")] for name in plain]
    _write_csv(folder / METRICS_CSV, rows)
    _write_json(folder / METRICS_JSON, {**about, **metrics})
    return [*written, folder / METRICS_CSV, folder / METRICS_JSON]


def read_metrics(folder: Path) -> dict[str, Any]:
    """metrics.json of a run."""
    path = folder / METRICS_JSON
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder} holds no {METRICS_JSON}: run `protoflows evaluate {folder}` first"
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not readable as JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold an object, got {type(content).__name__}")
    return content


def read_distances(folder: Path) -> Tensor | None:
    """What an evaluation noted of each image's distance to its nearest prototype, or None."""
    return _read_column(folder / TABLES / DISTANCES)


def read_covariance_norms(folder: Path) -> Tensor | None:
    """What an evaluation noted of the norms of the prototypes' covariances, or None."""
    return _read_column(folder / TABLES / NORMS)


def _read_column(path: Path) -> Tensor | None:
    if not path.is_file():
        return None
    lines = path.read_text(encoding="utf-8").splitlines()[1:]
    return torch.tensor([float(line) for line in lines], dtype=torch.float64)


def _tables(evaluation: Evaluation, names: Sequence[str]) -> dict[str, Iterable[list[Any]]]:
    found: dict[str, Iterable[list[Any]]] = {}
    if evaluation.classes:
        columns = ("accuracy", "s_rob", "s_rob_baseline", "s_div")
        head = ["label", "name", "images", *(c + end for c in columns for end in ("", _STDERR))]
        rows = [
            [
                entry.label, entry.name, entry.images,
                *(cell for c in columns for cell in (getattr(entry, c) or ("", ""))),
            ]
            for entry in evaluation.classes
        ]  # fmt: skip
        found["per_class.csv"] = [head, *rows]
    if evaluation.confusion is not None:
        pairs = zip(names, evaluation.confusion.tolist(), strict=True)
        found["confusion.csv"] = [["label", *names], *([name, *row] for name, row in pairs)]
    if evaluation.curve:
        figures = tuple(evaluation.curve[0].figures)
        head = ["samples", *(c + end for c in figures for end in ("", _STDERR))]
        found["curve.csv"] = [
            head,
            *([p.samples, *(v for c in figures for v in p.figures[c])] for p in evaluation.curve),
        ]
    if evaluation.passes.distance is not None:
        found[DISTANCES] = _column("distance", evaluation.passes.distance)
        found[NORMS] = _column("covariance_norm", evaluation.covariance_norms)
    return found


def _column(name: str, values: Tensor) -> list[list[Any]]:
    return [[name], *([f"{value:.9g}"] for value in values.tolist())]


def _figures(evaluation: Evaluation) -> dict[str, Figure]:
    found = {}
    if evaluation.reliability is not None:
        found["reliability.png"] = draw_reliability(evaluation.reliability, evaluation.ece)
    if evaluation.risk is not None:
        found["risk_coverage.png"] = draw_risk_coverage(evaluation.risk)
    if len(evaluation.curve) > 1:
        found["mc_curve.png"] = draw_mc_curve(evaluation.curve)
    if evaluation.passes.distance is not None:
        found["distances.png"] = draw_distances(
            {"this run": evaluation.passes.distance}, {"this run": evaluation.covariance_norms}
        )
    return found


def _write_csv(path: Path, rows: Iterable[Iterable[Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write an object whole or not at all; what is not finite becomes null, as JSON has no NaN."""
    safe = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in content.items()
    }
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(json.dumps(safe, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    fresh.replace(path)
