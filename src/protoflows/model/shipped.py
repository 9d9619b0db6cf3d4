"""Which models ship with the package."""

from __future__ import annotations

import importlib.resources
from contextlib import AbstractContextManager
from importlib.resources.abc import Traversable
from pathlib import Path


def shipped_home() -> Traversable:
    """The package's folder of models, one sub-folder each."""
    return importlib.resources.files("protoflows").joinpath("models")


def shipped_models() -> tuple[str, ...]:
    """Names of the models that ship with the package.

    >>> "no such model" in shipped_models()
    False
    """
    home = shipped_home()
    if not home.is_dir():
        return ()
    return tuple(sorted(m.name for m in home.iterdir() if m.joinpath("config.json").is_file()))


def shipped_folder(name: str) -> AbstractContextManager[Path]:
    """The folder of a shipped model while the context lasts, should the package be an archive."""
    return importlib.resources.as_file(shipped_home().joinpath(name))
