"""One seed per image for the injected noise: the same on any number of processes."""

from __future__ import annotations

import torch
from torch import Tensor

from protoflows.data.batches import derived_seed

# What a stream of noise is for; equal images and epochs never share draws between purposes.
TRAIN, SECOND_VIEW, INITIALIZE, VALIDATE, DROPOUT = range(5)
_MASK = (1 << 63) - 1


def image_noise_seeds(index: Tensor, seed: int, epoch: int, stream: int) -> Tensor:
    """Seeds (N,) that depend on nothing but the image's index, the run's seed, epoch and purpose.

    An image's noise is then the same in whatever batch and on whatever process it is seen, which
    makes training on several processes equal to training on one. The mixing is splitmix64's.

    Args:
        index: Position of each image in its split, (N,).
        seed: The run's seed.
        epoch: Epoch number; an image is seen once in each.
        stream: One of the purposes above.

    Example:
        >>> a = image_noise_seeds(torch.tensor([0, 1]), seed=0, epoch=3, stream=TRAIN)
        >>> b = image_noise_seeds(torch.tensor([1, 2]), seed=0, epoch=3, stream=TRAIN)
        >>> bool(a[1] == b[0]), bool(a[0] == a[1])
        (True, False)
    """
    base = derived_seed(stream, seed, epoch)
    x = index.cpu().to(torch.int64) * -7046029254386353131 + base  # wraps, as splitmix64 does
    x = (x ^ _shift(x, 30)) * -4658895280553007687
    x = (x ^ _shift(x, 27)) * -7723592293110705685
    return (x ^ _shift(x, 31)) & _MASK


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64, whose own one keeps the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
