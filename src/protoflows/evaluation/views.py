"""The views of an image that are evaluated: itself, augmented copies, and a noisy one."""

from __future__ import annotations

import torch
from torch import Tensor

from protoflows.data import Augment
from protoflows.data.augment import NUM_DRAWS
from protoflows.model import image_seeds

PLAIN, NOISY = 0, -1
"""Numbers of the image itself and of its noisy copy; augmented copies are 1, 2, …"""

NOISE_STD = 0.2
"""The paper's s, on images in [0, 1]."""

# Streams of draws: the image itself has numbers 0, 1, … as in `ProtoFlow.predict_proba`; every view
# has 2^32 numbers of its own, and what makes the views has them from 2^48 on.
_VIEW_STREAM, _MAKING_STREAM, _NOISY_PLACE = 1 << 32, 1 << 48, 1 << 15


def flow_seeds(start: int, num: int, view: int, sample: int, seed: int) -> Tensor:
    """Seeds of the flow's noise for draw `sample` of a view, (num,)."""
    place = _NOISY_PLACE if view == NOISY else view
    return image_seeds(start, num, place * _VIEW_STREAM + sample, seed)


def augmented_view(x: Tensor, augment: Augment, view: int, start: int, seed: int) -> Tensor:
    """The augmented copy number `view` (from 1) of uint8 images that begin at place `start`."""
    seeds = image_seeds(start, len(x), _MAKING_STREAM + view, seed)
    rows = [
        torch.rand(NUM_DRAWS, generator=torch.Generator().manual_seed(s)) for s in seeds.tolist()
    ]
    return augment.apply(x, torch.stack(rows))


def noisy_view(x: Tensor, levels: int, start: int, seed: int, std: float = NOISE_STD) -> Tensor:
    """Images with normal noise of standard deviation `std` on [0, 1], clamped and requantised."""
    seeds = image_seeds(start, len(x), _MAKING_STREAM + _NOISY_PLACE, seed)
    noise = torch.stack(
        [
            torch.randn(x.shape[1:], generator=torch.Generator().manual_seed(s))
            for s in seeds.tolist()
        ]
    )
    moved = x.float() / (levels - 1) + std * noise.to(x.device)
    return (moved.clamp(0, 1) * (levels - 1)).round().to(torch.uint8)
