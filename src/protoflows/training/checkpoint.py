"""Checkpoints: complete or absent on the disk, and nothing in them but tensors and plain values."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

FORMAT = 1


def write_checkpoint(path: Path, content: Mapping[str, Any]) -> None:
    """Write a checkpoint so that the file at `path` is at any moment the old one or the new one.

    Args:
        path: The file.
        content: Tensors, numbers, strings, None, and dicts, lists and tuples of them.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    try:
        with fresh.open("wb") as file:
            torch.save({"format": FORMAT, **content}, file)
            file.flush()
            os.fsync(file.fileno())  # the rename must not reach the disk before the content
        fresh.replace(path)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as the latter
        fresh.unlink(missing_ok=True)
        raise OSError(
            f"the checkpoint {path} could not be written ({error}); the one before it is kept"
        ) from error
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def read_checkpoint(path: Path, kind: str) -> dict[str, Any]:
    """Read a checkpoint; nothing in it is executed.

    Args:
        path: The file.
        kind: "classifier" or "density": what the run that goes on trains.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no checkpoint at {path}")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        # Without its cause on purpose: torch's own text advises to load the file unsafely.
        raise ValueError(
            f"{path} cannot be read as a checkpoint: it is damaged, or holds more than tensors and "
            "plain values; delete it to start this run from its beginning"
        ) from None
    except Exception as error:  # a torn or foreign file fails in many ways
        raise ValueError(
            f"{path} cannot be read as a checkpoint ({type(error).__name__}: {error}); "
            "delete it to start this run from its beginning"
        ) from error
    version = content.get("format") if isinstance(content, dict) else None
    if version != FORMAT:
        raise ValueError(
            f"{path} is a checkpoint of another version (format {version!r}; this protoflows reads "
            f"{FORMAT}): go on with the version in versions.json, or train anew with --overwrite"
        )
    if content.get("kind") != kind:
        raise ValueError(f"{path} is a {content.get('kind')} run's checkpoint, not a {kind}'s")
    return dict(content)
