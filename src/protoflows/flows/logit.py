"""Stretching the ends of the pixel range, where most of a drawing's or a scan's pixels lie."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from protoflows.flows.base import Bijection


class Logit(Bijection):
    """v = logit(α + (1 − 2α)(y + ½)) for y in [−½, ½] (Real NVP, Dinh et al. 2017).

    A background at 0 is a spike 1/levels wide, which couplings can only widen by e² each. The
    logit widens it at once, by up to 1/α; log-det Σ log(1 − 2α) − log p − log(1 − p).

    Args:
        alpha: What keeps the ends finite, above 0 and below ½.

    Example:
        >>> z, log_det = Logit(0.1)(torch.tensor([-0.5, 0.0]).view(1, 1, 1, 2))
        >>> [round(v, 4) for v in z.flatten().tolist()]
        [-2.1972, 0.0]
    """

    def __init__(self, alpha: float) -> None:
        super().__init__()
        if not 0 < alpha < 0.5:
            raise ValueError(f"alpha must be above 0 and below 0.5, got {alpha}")
        self.alpha = alpha

    def extra_repr(self) -> str:
        """Describe the layer."""
        return f"alpha={self.alpha:g}"

    def forward(self, x: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Map y to v."""
        p = self.alpha + (1 - 2 * self.alpha) * (x + 0.5)
        rest = self.alpha + (1 - 2 * self.alpha) * (0.5 - x)
        log_p, log_rest = p.log(), rest.log()
        term = math.prod(x.shape[1:]) * math.log(1 - 2 * self.alpha)
        return log_p - log_rest, term - (log_p + log_rest).flatten(1).sum(1)

    def inverse(self, z: Tensor, context: Tensor | None = None) -> Tensor:
        """Map v to y: both tails keep their digits, since tanh is odd about 0."""
        return 0.5 * torch.tanh(z / 2) / (1 - 2 * self.alpha)
