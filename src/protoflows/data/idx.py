"""MNIST's file format (IDX), packed or not.

torchvision reads only unpacked files and unpacks only what it downloaded itself; a folder of the
four original .gz files, perhaps read-only, is what people have.
"""

from __future__ import annotations

import gzip
import zlib
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from protoflows.data.splits import Split

_UINT8 = 8  # the format's code for unsigned bytes


def read_idx(path: Path) -> Tensor:
    """A uint8 tensor from `path`, or from `path` + ".gz" where only that is there.

    Layout: two zero bytes, type code, number of dimensions, each dimension as a big-endian 32-bit
    integer, then the values.
    """
    packed = path.with_name(path.name + ".gz")
    if not path.is_file() and not packed.is_file():
        raise FileNotFoundError(f"neither {path} nor {packed.name} is there")
    source = path if path.is_file() else packed
    data = source.read_bytes()
    if source == packed:
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{source} is damaged ({error}): fetch it again") from error
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] != _UINT8 or not 1 <= data[3] <= 4:
        raise ValueError(f"{source} is not an IDX file of bytes (starts with {data[:4]!r})")
    start = 4 + 4 * data[3]
    shape = [int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(data[3])]
    if len(data) != start + prod(shape):
        raise ValueError(
            f"{source} is damaged: {len(data)} bytes instead of {start + prod(shape)} for {shape}"
        )
    values = np.frombuffer(data, np.uint8, offset=start).reshape(shape)
    return torch.from_numpy(values.copy())


def read_idx_split(folder: Path, prefix: str) -> Split:
    """The images and labels `folder/PREFIX-images-idx3-ubyte` and `...-labels-idx1-ubyte`."""
    images = read_idx(folder / f"{prefix}-images-idx3-ubyte")
    labels = read_idx(folder / f"{prefix}-labels-idx1-ubyte")
    return Split(images.unsqueeze(1), labels.to(torch.int64))
