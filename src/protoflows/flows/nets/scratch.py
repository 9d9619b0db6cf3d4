"""Memory that nets write intermediate results into again and again."""

from __future__ import annotations

import math
import threading

import torch
from torch import Tensor

KEPT = 2**25
"""Bytes of the largest tensor that is kept; what is larger is allocated anew each time."""


class _Kept(threading.local):
    def __init__(self) -> None:
        self.tensors: dict[tuple[str, torch.dtype], Tensor] = {}


_KEPT = _Kept()


def scratch(name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Return uninitialised memory in the dtype and on the device of `like`.

    On CPUs a second call with the same name, in the same thread, returns the same memory: by then
    the first one's content must be done with. Fresh megabytes would cost page faults, and writes
    that miss every cache, as often as a matrix product needs somewhere to put its result. For
    training, that is: threads that only look things up should not each keep memory. Other devices'
    allocators keep what they are given back.
    """
    size = math.prod(shape)
    if like.device.type != "cpu" or type(like) is not Tensor or size * like.itemsize > KEPT:
        return like.new_empty(shape)
    kept = _KEPT.tensors.get((name, like.dtype))
    if kept is None or kept.numel() < size:
        with torch.inference_mode(False):  # one that such a mode made could not be written later
            kept = torch.empty(size, dtype=like.dtype)
        _KEPT.tensors[name, like.dtype] = kept
    return kept[:size].view(shape)
