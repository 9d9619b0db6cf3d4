"""Packages whose names are imported when they are first used (PEP 562)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy_names(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """The `__getattr__` of a package that imports a module only when one of its names is used.

    `protoflows train --help` needs the configurations' dataclasses, which live beside what needs
    torch; importing torch and Lightning would take seconds.

    Args:
        package: The package's `__name__`.
        homes: Module of the package → the public names that it defines.

    Example:
        >>> get = lazy_names("protoflows.flows", {"config": ["DenseFlowConfig"]})
        >>> get("DenseFlowConfig").__name__
        'DenseFlowConfig'
    """
    home_of = {name: module for module, names in homes.items() for name in names}

    def get(name: str) -> Any:
        home = home_of.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{package}.{home}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return get
