"""Pictures in files, of any kind and size: a row for each, as CSV or JSON."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from protoflows.data.images import PICTURE_SUFFIXES, PictureError, image_to_tensor
from protoflows.evaluation.predict import (
    DEFAULT_SAMPLES,
    Predictions,
    content_seeds,
    predict_images,
)
from protoflows.evaluation.reject import RejectRule
from protoflows.model import ProtoFlow

_BYTE_LEVELS = 256


class PicturePrediction(NamedTuple):
    """A row of the result.

    Attributes:
        file: The picture, as it was found.
        label: Name of the most probable class; None where the model abstains.
        most_probable: Name of the most probable class, abstained or not.
        confidence: Its probability.
        proba: All probabilities by class name.
        log_prob: log p(x), importance-weighted bound, in nats.
        percentile: Per cent of the training images that are less likely; None where not known.
        prototype_class: Name of the top prototype's class.
        prototype_index: Its index within the class.
        prototype_name: The name that somebody gave it, or empty.
    """

    file: str
    label: str | None
    most_probable: str
    confidence: float
    proba: Mapping[str, float]
    log_prob: float
    percentile: float | None
    prototype_class: str
    prototype_index: int
    prototype_name: str


class FolderPredictions(NamedTuple):
    """Rows for the pictures that could be read, and "file: reason" for the others."""

    rows: list[PicturePrediction]
    skipped: list[str]


def find_pictures(path: str | Path) -> list[Path]:
    """The picture itself, or all pictures in a folder and below it, in alphabetical order.

    Raises:
        FileNotFoundError: there is nothing of that name.
        ValueError: the folder holds no file that is named like a picture.
    """
    place = Path(path).expanduser()
    if place.is_file():
        return [place]
    if not place.is_dir():
        raise FileNotFoundError(f"path: there is no picture or folder {place}")
    found = sorted(
        file
        for file in place.rglob("*")
        if file.suffix.lower() in PICTURE_SUFFIXES
        and not file.name.startswith(".")
        and file.is_file()
    )
    if not found:
        raise ValueError(
            f"path: {place} holds no file whose name ends in {', '.join(sorted(PICTURE_SUFFIXES))}"
        )
    return found


def predict_files(
    model: ProtoFlow,
    files: Sequence[Path],
    *,
    samples: int = DEFAULT_SAMPLES,
    reject: RejectRule | None = None,
    seed: int = 0,
    batch_size: int = 64,
) -> FolderPredictions:
    """Predict pictures of any kind and size; those that cannot be read are named, not fatal.

    Args:
        model: The model.
        files: Pictures, see `find_pictures`.
        samples: Draws of the noise per picture.
        reject: When to abstain; None never does.
        seed: Source of the noise; an image's own follows from its content.
        batch_size: Pictures read and evaluated at once.
    """
    rows: list[PicturePrediction] = []
    skipped: list[str] = []
    for start in range(0, len(files), batch_size):
        kept, tensors = [], []
        for file in files[start : start + batch_size]:
            try:
                tensors.append(read_picture(model, file))
                kept.append(file)
            except PictureError as error:
                skipped.append(f"{file}: {error.__cause__ or error}")
            except OSError as error:
                skipped.append(f"{file}: {error.strerror or error}")
        if kept:
            x = torch.cat(tensors)
            found = predict_images(
                model, x, samples=samples, seed=content_seeds(x, seed), batch_size=batch_size
            )
            rows.extend(_rows(model, kept, found, reject))
    return FolderPredictions(rows, skipped)


def read_picture(model: ProtoFlow, file: Path) -> Tensor:
    """One picture as the model takes it, uint8 (1, C, H, W): cropped, resized, in its levels."""
    channels, height, width = model.config.flow.image_shape
    if height != width or channels not in (1, 3):
        raise ValueError(
            "pictures can be read for models of square images in grey or colour, but this one "
            f"takes {channels} x {height} x {width}: use predict_images with tensors"
        )
    x = image_to_tensor(file, channels, height)[None]
    return requantize(x, _BYTE_LEVELS, model.config.flow.levels)


def requantize(images: Tensor, levels: int, wanted: int) -> Tensor:
    """Stretch values 0…levels − 1 to 0…wanted − 1, rounded.

    >>> requantize(torch.tensor([0, 128, 255], dtype=torch.uint8), 256, 17).tolist()
    [0, 8, 16]
    """
    if levels == wanted:
        return images
    scaled = images.to(torch.float32) * ((wanted - 1) / (levels - 1))
    return scaled.round().clamp(0, wanted - 1).to(torch.uint8)


def _rows(
    model: ProtoFlow, files: Sequence[Path], found: Predictions, reject: RejectRule | None
) -> Iterator[PicturePrediction]:
    config, extras = model.config, model.extras
    known = extras is not None and extras.log_prob_quantiles is not None
    percentiles = extras.percentile(found.log_prob_mean).tolist() if extras and known else None
    confidence, labels = found.proba.max(1)
    accepted = reject.accepts(confidence) if reject is not None else torch.ones_like(labels)
    for i, file in enumerate(files):
        c, k = found.prototypes[i].tolist()
        name = config.class_names[int(labels[i])]
        yield PicturePrediction(
            file=str(file),
            label=name if bool(accepted[i]) else None,
            most_probable=name,
            confidence=float(confidence[i]),
            proba=dict(zip(config.class_names, found.proba[i].tolist(), strict=True)),
            log_prob=float(found.log_prob[i]),
            percentile=percentiles[i] if percentiles is not None else None,
            prototype_class=config.class_names[c],
            prototype_index=k,
            prototype_name=config.prototype_names.get((c, k), ""),
        )


def format_rows(rows: Sequence[PicturePrediction], kind: Literal["csv", "json"]) -> str:
    """Rows as CSV (a column "p(class)" per class; empty where unknown or abstained) or as JSON."""
    if kind == "json":
        return json.dumps([_plain(row) for row in rows], indent=2, ensure_ascii=False) + "\n"
    if kind != "csv":
        raise ValueError(f"format must be csv or json, got {kind!r}")
    text = io.StringIO()
    fields = [field for field in PicturePrediction._fields if field != "proba"]
    classes = list(rows[0].proba) if rows else []
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*fields, *(f"p({name})" for name in classes)])
    for row in rows:
        content = _plain(row)
        writer.writerow(
            [
                *("" if content[field] is None else content[field] for field in fields),
                *row.proba.values(),
            ]
        )
    return text.getvalue()


def _plain(row: PicturePrediction) -> dict[str, Any]:
    """JSON has no NaN: a figure that is not finite is unknown."""
    content = row._asdict()
    for name in ("confidence", "log_prob", "percentile"):
        value = content[name]
        if value is not None and not math.isfinite(value):
            content[name] = None
    return {**content, "proba": {k: v if math.isfinite(v) else None for k, v in row.proba.items()}}
