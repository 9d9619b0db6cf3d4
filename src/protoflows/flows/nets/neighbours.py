"""The nine neighbours of every position, as rows of one matrix."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from protoflows.flows.nets.scratch import scratch

TAPS = 9


class Neighbours:
    """Gather the 3x3 surroundings of every position of a map (N, C, H, W).

    With rows g (P, C), P = N·H·W, of the map and zeros for what lies outside, the matrix
    (P, 9·C) holds

        (g[p + d])_d    or, for the way back,    (g[p − d])_d

    over the nine offsets d in reading order: a 3x3 convolution with padding 1 is a product with the
    first, its gradients are products with either.

    Example:
        >>> around = Neighbours((1, 1, 1, 3), torch.zeros(()))
        >>> _ = around.map.copy_(torch.tensor([1.0, 2.0, 3.0]).view(1, 1, 1, 3))
        >>> around.gather()[:, 3:6].tolist()
        [[0.0, 1.0, 2.0], [1.0, 2.0, 3.0], [2.0, 3.0, 0.0]]
    """

    def __init__(self, shape: tuple[int, ...], like: Tensor) -> None:
        n, channels, height, width = shape
        self._size = n, height, width
        self._padded = scratch("rows", (n * height * width + 1, channels), like)
        self._padded[-1] = 0  # what lies outside
        self.rows = self._padded[:-1]
        self.map = self.rows.view(n, height, width, channels).permute(0, 3, 1, 2)
        """To be written before `gather`."""

    def gather(self, back: bool = False) -> Tensor:
        """Return the matrix (P, 9·C), in memory that the next call uses again."""
        positions, channels = self.rows.shape
        matrix = scratch("neighbours", (positions, TAPS * channels), self.rows)
        index = _index(*self._size, back, self.rows.device)
        torch.index_select(self._padded, 0, index, out=matrix.view(-1, channels))
        return matrix


def rows_of(x: Tensor) -> Tensor:
    """View a channels-last map (N, C, H, W), or a channel slice of one, as a matrix (N·H·W, C)."""
    return x.permute(0, 2, 3, 1).flatten(0, 2)


@lru_cache(maxsize=32)
@torch.inference_mode(False)  # what is kept must serve training as well
def _index(n: int, height: int, width: int, back: bool, device: torch.device) -> Tensor:
    """Return which row each of the 9·P gathered ones is; P is what lies outside."""
    positions = torch.arange(n * height * width, device=device).view(n, height, width)
    padded = torch.nn.functional.pad(positions, (1, 1, 1, 1), value=positions.numel())
    offsets = [(y, x) for y in range(3) for x in range(3)]
    taps = [padded[:, y : y + height, x : x + width] for y, x in offsets]
    return torch.stack(taps[::-1] if back else taps, -1).flatten()
