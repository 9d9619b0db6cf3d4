"""A run's folder: what is in it, and that it can be written before any time is spent."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from protoflows.data import DataBundle
from protoflows.training.config import TrainConfig
from protoflows.training.settings import to_yaml

CONFIG, VERSIONS, METRICS = "config.yaml", "versions.json", "metrics.json"
# All that a run writes; --overwrite takes away nothing else.
_OWN = (
    CONFIG,
    VERSIONS,
    METRICS,
    "metrics.csv",
    "log.csv",
    "calibration.json",
    "checkpoints",
    "evaluation",
    "figures",
    "flow",
    "model",
    "tensorboard",
)
_PACKAGES = ("protoflows", "torch", "lightning", "numpy", "scikit-learn", "safetensors")


def create_run_folder(folder: Path, *, overwrite: bool, needed_bytes: int = 0) -> None:
    """Make a folder for a new run, or refuse.

    Args:
        folder: Where.
        overwrite: Whether an earlier run there may be replaced.
        needed_bytes: Room that the run will take.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"out: {folder} is a file, not a folder")
    content = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    if CONFIG not in content and not set(content) <= set(_OWN):
        raise ValueError(
            f"out: {folder} holds other files ({', '.join(content[:5])}) but no run: choose "
            "another folder"
        )
    if content and not overwrite:
        raise ValueError(
            f"out: {folder} holds a run already: go on with it (--resume {folder}), replace it "
            "(--overwrite) or choose another folder (--out)"
        )
    check_writable(folder, needed_bytes)
    for name in _OWN:
        entry = folder / name
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink(missing_ok=True)


def check_writable(folder: Path, needed_bytes: int = 0) -> None:
    """Make the folder and write to it, so that no training is lost for want of a place."""
    probe = folder / ".probe"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"protoflows")
        probe.unlink()
    except OSError as error:
        raise ValueError(f"out: cannot write to {folder}: {error.strerror or error}") from error
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        raise ValueError(
            f"out: {folder} has {free / 2**20:.0f} MiB free, the run needs up to "
            f"{needed_bytes / 2**20:.0f} MiB: make room or choose another folder (--out)"
        )


def write_head(
    folder: Path, config: TrainConfig, bundle: DataBundle, kind: str, argv: Sequence[str] | None
) -> None:
    """Write what the run is made of, before it starts."""
    (folder / CONFIG).write_text(to_yaml(config), encoding="utf-8")
    about = {
        "seed": config.seed,
        "data": bundle.name,
        "data_fingerprint": bundle.fingerprint,
        "images": {name: len(split) for name, split in bundle.splits().items()},
        "skipped_files": list(bundle.skipped),
    }
    write_provenance(folder, kind, argv, about)


def write_provenance(
    folder: Path, kind: str, argv: Sequence[str] | None, about: Mapping[str, Any] | None = None
) -> None:
    """Write versions.json: by what program, on what machine and by what command a run was made."""
    content = {
        "kind": kind,
        "versions": {**{name: _version(name) for name in _PACKAGES}, "python": sys.version},
        "platform": platform.platform(),
        **(about or {}),
        "command": list(argv) if argv is not None else None,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    write_json(folder / VERSIONS, content)


def read_head(folder: Path) -> dict[str, Any]:
    """Read versions.json of a run that is to go on."""
    for name in (CONFIG, VERSIONS):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"resume: {folder} holds no run ({name} is missing)")
    try:
        content = json.loads((folder / VERSIONS).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"resume: {folder / VERSIONS} is damaged: {error}") from error
    return dict(content)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON so that the file is never half there."""
    fresh = path.with_name(f".{path.name}.new")
    with fresh.open("w", encoding="utf-8") as file:
        file.write(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def _version(package: str) -> str | None:
    if package == "protoflows":
        from protoflows._version import __version__

        return __version__
    if package == "torch":
        import torch

        return str(torch.__version__)  # says which build, too
    try:
        return version(package)
    except PackageNotFoundError:
        return None
