"""Finished batches of an evaluation on disk, so that an interrupted one goes on from there."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from protoflows.data import Augment
from protoflows.model import ProtoFlow

_HEAD = "settings.json"
OnMismatch = Literal["refuse", "clear"]


class BatchStore:
    """A folder with one safetensors file for each finished batch.

    Args:
        folder: Where; made when missing.
        fingerprint: Of everything that results depend on, see `fingerprint`.
        mismatch: What to do with batches of another fingerprint: "refuse" or "clear" them.
    """

    def __init__(self, folder: Path, fingerprint: str, *, mismatch: OnMismatch = "refuse") -> None:
        if mismatch not in ("refuse", "clear"):
            raise ValueError(f"mismatch must be 'refuse' or 'clear', got {mismatch!r}")
        self.folder = folder
        found = _read_fingerprint(folder / _HEAD)
        if found is not None and found != fingerprint:
            if mismatch == "refuse":
                raise ValueError(
                    f"store: {folder} holds batches of an evaluation with another model, other "
                    "images or other settings: repeat it as it was, or begin afresh"
                )
            self.clear()
        if found is None and folder.is_dir() and any(folder.iterdir()):
            raise ValueError(f"store: {folder} holds other files: choose an empty folder")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _HEAD).write_text(json.dumps({"fingerprint": fingerprint}), encoding="utf-8")

    def read(self, start: int) -> dict[str, Tensor] | None:
        """The batch that begins at image `start`, or None where it is not finished."""
        path = self._path(start)
        if not path.is_file():
            return None
        try:
            tensors: dict[str, Tensor] = load_file(path)
        except SafetensorError:
            return None  # cut short: it is made again
        return tensors

    def write(self, start: int, batch: Mapping[str, Tensor]) -> None:
        """Keep a finished batch; the file is never half there."""
        path = self._path(start)
        fresh = path.with_suffix(".new")
        save_file({name: tensor.contiguous() for name, tensor in batch.items()}, fresh)
        fresh.replace(path)

    def clear(self) -> None:
        """Remove the folder with all that it holds."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _path(self, start: int) -> Path:
        return self.folder / f"batch-{start:09d}.safetensors"


def fingerprint(
    model: ProtoFlow, images: Tensor, augment: Augment | None, settings: Mapping[str, Any]
) -> str:
    """SHA-256 over weights, the model's configuration, images and settings."""
    digest = hashlib.sha256(json.dumps(model.config.to_dict(), sort_keys=True).encode())
    digest.update(repr((augment, sorted(settings.items()), tuple(images.shape))).encode())
    for name, tensor in model.state_dict().items():
        digest.update(repr((name, tensor.dtype)).encode())
        plain = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
        digest.update(plain.numpy().data)
    digest.update(images.detach().cpu().contiguous().numpy().data)
    return digest.hexdigest()


def _read_fingerprint(path: Path) -> str | None:
    if not path.is_file():
        return None
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["fingerprint"])
    except (ValueError, KeyError, TypeError):
        return ""  # damaged: equal to no fingerprint
