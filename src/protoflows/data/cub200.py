"""CUB-200-2011 in its original layout, every bird cropped to its bounding box (as in the paper)."""

from __future__ import annotations

from pathlib import Path

from protoflows.data.config import DataConfig
from protoflows.data.pictures import Picture, assemble
from protoflows.data.splits import DataBundle

_FOLDER = "CUB_200_2011"
_FILES = (
    "images.txt",
    "classes.txt",
    "image_class_labels.txt",
    "train_test_split.txt",
    "bounding_boxes.txt",
)


def load_cub200(root: Path, config: DataConfig) -> DataBundle:
    """Read root/CUB_200_2011: its five tables and what is there of its images.

    Images that the tables list but that are missing are skipped with a warning (or refused where
    strict), like damaged ones.
    """
    base = root / _FOLDER
    absent = [name for name in (*_FILES, "images") if not (base / name).exists()]
    if absent:
        raise FileNotFoundError(
            f"cub200 expects {base} with {', '.join(_FILES)} and images/ "
            f"(missing: {', '.join(absent)}). Unpack the official CUB_200_2011.tgz into {root}"
        )
    paths = _read_table(base / "images.txt", 1)
    classes = _read_table(base / "classes.txt", 1)
    labels = _read_table(base / "image_class_labels.txt", 1)
    train = _read_table(base / "train_test_split.txt", 1)
    boxes = _read_table(base / "bounding_boxes.txt", 4)
    ids = sorted(classes, key=int)
    position = {class_id: label for label, class_id in enumerate(ids)}
    pictures = []
    for image_id, (name,) in paths.items():
        try:
            left, top, width, height = (float(value) for value in boxes[image_id])
            label = position[labels[image_id][0]]
            part = "train" if train[image_id][0] == "1" else "test"
        except (KeyError, ValueError) as error:
            raise ValueError(
                f"the tables in {base} disagree about image {image_id} ({name}): {error!r}"
            ) from error
        box = (left, top, left + width, top + height)
        pictures.append(Picture(base / "images" / name, label, part, box))
    names = [_readable(classes[class_id][0]) for class_id in ids]
    return assemble("cub200", base / "images", pictures, names, config, default_size=64, flip=True)


def _read_table(path: Path, columns: int) -> dict[str, list[str]]:
    """A text table "id value ..." as id → values."""
    rows = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        key, *values = line.split()
        if len(values) != columns or not key.isdigit():
            raise ValueError(
                f"{path}, line {number}: expected an id and {columns} value(s), got {line!r}"
            )
        rows[key] = values
    return rows


def _readable(name: str) -> str:
    """001.Black_footed_Albatross → Black footed Albatross."""
    return name.split(".", 1)[-1].replace("_", " ")
