"""One seed for each (image, draw), so that results do not depend on how images are batched."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_MASK = (1 << 64) - 1


def image_seeds(start_index: int, num: int, sample: int, seed: int) -> Tensor:
    """Seeds of the draw number `sample` for `num` images from `start_index` on, int64 (num,).

    A fixed function of (seed, index, sample), well mixed: neighbours share nothing. torch's CPU
    generators read 32 bits of a seed, so among a million draws a hundred pairs will coincide.

    Args:
        start_index: Place of the first image in its data set.
        num: Number of images.
        sample: Number of the Monte-Carlo draw.
        seed: What another run with other noise changes.

    >>> whole = image_seeds(0, 5, 2, seed=7)
    >>> torch.equal(whole[3:], image_seeds(3, 2, 2, seed=7))
    True
    """
    if start_index < 0 or num < 0 or sample < 0:
        raise ValueError(
            f"start_index, num and sample must be ≥ 0, got {start_index}, {num} and {sample}"
        )
    index = np.arange(start_index, start_index + num, dtype=np.uint64)
    return _as_seeds(_mix(_mix(index, seed), sample))


def draw_seeds(seed: int | Tensor, start_index: int, num: int, sample: int) -> Tensor:
    """`image_seeds`, or the same from seeds that belong to the images themselves.

    Args:
        seed: A number, or one for each image of the whole set: then an image's draws follow from
            its own number and not from its place.
        start_index: Place of the first image in the set.
        num: Number of images.
        sample: Number of the Monte-Carlo draw.
    """
    if isinstance(seed, Tensor):
        own = seed[start_index : start_index + num].to("cpu", torch.int64).numpy().view(np.uint64)
        return _as_seeds(_mix(own, sample))
    return image_seeds(start_index, num, sample, seed)


def _mix(values: np.ndarray, key: int) -> np.ndarray:
    """The finaliser of SplitMix64 (Steele et al. 2014) on values + (key + 1)·golden ratio."""
    x = values + np.array([(key + 1) * 0x9E3779B97F4A7C15 & _MASK], dtype=np.uint64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _as_seeds(values: np.ndarray) -> Tensor:
    return torch.from_numpy((values >> np.uint64(1)).astype(np.int64))
