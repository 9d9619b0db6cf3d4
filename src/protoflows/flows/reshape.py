"""Layers that only move values: squeeze, swap of halves, and the padding of awkward sizes."""

from __future__ import annotations

import torch
from torch import Tensor

from protoflows.flows.base import Bijection


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """Split the channels in two; of an odd number the first half takes the extra one.

    Example:
        >>> [part.shape[1] for part in halves(torch.zeros(1, 5, 1, 1))]
        [3, 2]
    """
    # One split: one concatenation in the backward pass.
    first, second = x.split([(x.shape[1] + 1) // 2, x.shape[1] // 2], 1)
    return first, second


def swapped_halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return (first, second) of channels that hold (second, first), also for odd numbers.

    Example:
        >>> [part.shape[1] for part in swapped_halves(torch.zeros(1, 5, 1, 1))]
        [3, 2]
    """
    second, first = x.split([x.shape[1] // 2, (x.shape[1] + 1) // 2], 1)
    return first, second


def space_to_channels(x: Tensor) -> Tensor:
    """Squeeze: 2x2 positions become channels, output channel 4c + 2·dy + dx."""
    if x.dim() != 4 or x.shape[-1] % 2 or x.shape[-2] % 2:
        raise ValueError(f"squeezing needs (N, C, H, W) with even H and W, got {tuple(x.shape)}")
    n, c, h, w = x.shape
    # By hand: torch's pixel_unshuffle leaves a batch of no images as it is.
    moved = x.reshape(n, c, h // 2, 2, w // 2, 2).permute(0, 2, 4, 1, 3, 5)
    return moved.reshape(n, h // 2, w // 2, 4 * c).permute(0, 3, 1, 2)


def channels_to_space(x: Tensor) -> Tensor:
    """Unsqueeze: the inverse of `space_to_channels`."""
    if x.dim() != 4 or x.shape[1] % 4:
        raise ValueError(f"unsqueezing needs (N, 4C, H, W), got {tuple(x.shape)}")
    n, c, h, w = x.shape
    moved = x.reshape(n, c // 4, 2, 2, h, w).permute(0, 4, 2, 5, 3, 1)
    return moved.reshape(n, 2 * h, 2 * w, c // 4).permute(0, 3, 1, 2)


class Squeeze(Bijection):
    """Trade space for channels (Real NVP, Dinh et al. 2017); log-det 0.

    Example:
        >>> Squeeze()(torch.arange(4.0).view(1, 1, 2, 2))[0].flatten().tolist()
        [0.0, 1.0, 2.0, 3.0]
    """

    def forward(self, x: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Map (N, C, H, W) to (N, 4C, H/2, W/2)."""
        return space_to_channels(x), x.new_zeros(len(x))

    def inverse(self, z: Tensor, context: Tensor | None = None) -> Tensor:
        """Map (N, 4C, H/2, W/2) to (N, C, H, W)."""
        return channels_to_space(z)


class SwapHalves(Bijection):
    """Exchange the two halves of the channels; log-det 0.

    The next coupling then changes the other one.

    Example:
        >>> layer = SwapHalves()
        >>> z, _ = layer(torch.arange(3.0).view(1, 3, 1, 1))
        >>> z.flatten().tolist(), layer.inverse(z).flatten().tolist()
        ([2.0, 0.0, 1.0], [0.0, 1.0, 2.0])
    """

    def forward(self, x: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Map (first, second) to (second, first)."""
        first, second = halves(x)
        return torch.cat([second, first], 1), x.new_zeros(len(x))

    def inverse(self, z: Tensor, context: Tensor | None = None) -> Tensor:
        """Map (second, first) to (first, second), with the right sizes for odd channels, too."""
        return torch.cat(swapped_halves(z), 1)


class Padding:
    """Centred edge padding of integer images to a multiple, and its undoing.

    The padded pixels are a deterministic function of the image, so P(x) ≥ P(padded x): scoring the
    padded image with all its terms bounds the likelihood of the image's own values from below, and
    the model loses only what it fails to learn of the copying.
    """

    def __init__(self, height: int, width: int, multiple: int) -> None:
        self.height, self.width = height, width
        extra_h, extra_w = -height % multiple, -width % multiple
        self.top, self.left = extra_h // 2, extra_w // 2
        self.bottom, self.right = extra_h - self.top, extra_w - self.left
        self.padded = (height + extra_h, width + extra_w)

    @property
    def needed(self) -> bool:
        """Whether the size has to change at all."""
        return self.padded != (self.height, self.width)

    def add(self, x: Tensor) -> Tensor:
        """Repeat the edges outwards (any width, also wider than the image)."""
        if not self.needed:
            return x
        rows = torch.arange(-self.top, self.height + self.bottom, device=x.device).clamp(
            0, self.height - 1
        )
        columns = torch.arange(-self.left, self.width + self.right, device=x.device).clamp(
            0, self.width - 1
        )
        return x[..., rows[:, None], columns]

    def remove(self, x: Tensor) -> Tensor:
        """Crop the image's own values out."""
        return x[..., self.top : self.top + self.height, self.left : self.left + self.width]
