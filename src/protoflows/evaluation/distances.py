"""How far embeddings lie from prototypes, and how wide prototypes are."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from protoflows.prototypes import ClassMixtures


class Quartiles(NamedTuple):
    """What three quarters, half and a quarter of the images lie beyond.

    Attributes:
        first: 25th percentile.
        median: 50th percentile.
        third: 75th percentile.
    """

    first: float
    median: float
    third: float


def quartiles(values: Tensor) -> Quartiles:
    """Quartiles of one number per image or prototype, (N,), interpolated.

    >>> quartiles(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])).median
    3.0
    """
    if values.ndim != 1 or len(values) == 0:
        raise ValueError(f"values must be (N,) with N ≥ 1, got {tuple(values.shape)}")
    shares = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)
    return Quartiles(*torch.quantile(values.double().cpu(), shares).tolist())


def covariance_norms(mixtures: ClassMixtures) -> Tensor:
    """‖Σ_{c,k}‖ = √Σ_d σ_d⁴ of every living prototype, float64: the paper sets it beside distances.

    Args:
        mixtures: The prototypes.
    """
    variance = mixtures.std.detach().double().cpu().square()
    return variance.square().sum(2).sqrt()[mixtures.mask.cpu()]
