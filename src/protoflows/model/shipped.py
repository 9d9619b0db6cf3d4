"""Which models ship with the package."""

from __future__ import annotations

import importlib.resources
from importlib.resources.abc import Traversable


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
