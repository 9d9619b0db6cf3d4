"""What the explaining commands share: images, classes, data and folders by what users type."""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image
from torch import Tensor

from protoflows.data import Split
from protoflows.explain.reading import prepare_images
from protoflows.model import ProtoFlow


def out_folder(name: str) -> Path:
    """The folder to write to; made when missing."""
    folder = Path(name).expanduser()
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"out: {folder} is a file, not a folder")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def read_image(model: ProtoFlow, file: str) -> Tensor:
    """One picture as the model takes it, (1, C, H, W); what was done to it is said."""
    images, notes = prepare_images(model, file)
    for note in notes:
        print(f"note: {file}: {note}", file=sys.stderr)
    return images


def class_index(model: ProtoFlow, text: str, argument: str) -> int:
    """A class by its name or, failing that, by its number."""
    names = model.config.class_names
    if text in names:
        return names.index(text)
    if text.isdecimal() and int(text) < len(names):
        return int(text)
    near = difflib.get_close_matches(text, names, 3, 0.5)
    known = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {known}"
    raise ValueError(f"{argument}: there is no class {text!r}; {hint}")


def run_split(run: str, name: str, data_root: str | None) -> Split | None:
    """A split of the data that a run was trained on; None where it is out of reach, and said."""
    return run_splits(run, (name,), data_root)[0]


def run_splits(run: str, names: Sequence[str], data_root: str | None) -> tuple[Split | None, ...]:
    """Several splits, each None where it is out of reach, and said."""
    from protoflows.cli.run_data import open_run

    try:
        opened = open_run(run, data_root=data_root)
    except (ValueError, OSError) as error:
        print(f"note: the run's data is out of reach ({error})", file=sys.stderr)
        return (None,) * len(names)
    found: list[Split | None] = []
    for name in names:
        try:
            found.append(opened.split(name))
        except ValueError as error:  # no images in it
            print(f"note: {error}", file=sys.stderr)
            found.append(None)
    return tuple(found)


def write_json(file: Path, content: Any) -> None:
    """Write JSON that any reader takes: no NaN in it."""
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
    file.write_text(text + "\n", encoding="utf-8")


def write_picture(file: Path, image: Tensor, levels: int) -> None:
    """An image (C, H, W) as a PNG, pixel for pixel, its levels stretched to bytes."""
    values = (image.float() * (255 / (levels - 1))).round().byte().cpu()
    pixels = values[0] if len(values) == 1 else values.permute(1, 2, 0)
    Image.fromarray(pixels.contiguous().numpy()).save(file)
