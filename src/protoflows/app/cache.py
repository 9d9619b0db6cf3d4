"""Values that are computed once for all visitors."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast

_T = TypeVar("_T")
_KEPT = 64


class Cache:
    """Values computed once, however many ask at the same time; the oldest are forgotten.

    Args:
        size: How many are kept.
    """

    def __init__(self, size: int = _KEPT) -> None:
        self._size = size
        self._values: OrderedDict[Hashable, Any] = OrderedDict()
        self._locks: dict[Hashable, threading.Lock] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """The value of a key, made by whoever asks first; the others wait for it."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return cast("_T", self._values[key])
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            with self._lock:
                if key in self._values:
                    return cast("_T", self._values[key])
            value = make()
            with self._lock:
                self._values[key] = value
                self._locks.pop(key, None)
                while len(self._values) > self._size:
                    self._values.popitem(last=False)
            return value
