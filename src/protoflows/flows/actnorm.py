"""Activation normalisation with data-dependent start."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from protoflows.distributed import all_reduce_sum
from protoflows.flows.base import ConstantJacobian, check_features

CONSTANT_STD = 1e-4
"""Below this a channel counts as constant and is not scaled.

Dequantised bytes have a std of at least 1e-3.
"""


class ActNorm(ConstantJacobian):
    """Per-channel affine map z = (x − shift)·exp(−log_scale), log-det −H·W·Σ log_scale.

    The first batch seen in training mode sets shift and scale so that every channel of that batch
    leaves with mean 0 and variance 1 (Glow, Kingma & Dhariwal 2018), over all processes where there
    are several. It happens once in the life of the weights: `initialized` is saved with them.

    Example:
        >>> layer = ActNorm(2)
        >>> z, log_det = layer(torch.randn(8, 2, 4, 4, generator=torch.Generator().manual_seed(0)))
        >>> bool(z.mean((0, 2, 3)).abs().max() < 1e-5)
        True
    """

    initialized: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels
        self.shift = nn.Parameter(torch.zeros(channels))
        self.log_scale = nn.Parameter(torch.zeros(channels))
        self.register_buffer("initialized", torch.zeros((), dtype=torch.bool))
        self._known_initialized = False  # spares a device synchronisation at every step

    def extra_repr(self) -> str:
        """Describe the layer."""
        return f"{self.channels}"

    @torch.no_grad()
    def initialize(self, x: Tensor) -> None:
        """Set shift and scale from the batch x."""
        sums = torch.stack(
            [
                x.sum((0, 2, 3)),
                x.square().sum((0, 2, 3)),
                torch.full_like(self.shift, x[:, 0].numel()),
            ]
        )
        # Two passes: the first sums only locate the mean, so that the variance does not cancel.
        total, _, count = all_reduce_sum(sums)
        mean = total / count
        centred = (x - mean.view(1, -1, 1, 1)).square().sum((0, 2, 3))
        std = (all_reduce_sum(centred) / count).sqrt()
        std = torch.where(std.isfinite() & (std > CONSTANT_STD), std, torch.ones_like(std))
        if mean.isfinite().all():
            self.shift.copy_(mean)
            self.log_scale.copy_(std.log())
            self.initialized.fill_(True)

    def prepare(self, x: Tensor) -> None:
        """Check x; in training mode the first call initialises."""
        check_features("x", x, self.channels)
        if self.training and not self._known_initialized:
            if not bool(self.initialized):
                self.initialize(x.detach())
            self._known_initialized = bool(self.initialized)

    def transform(self, x: Tensor) -> Tensor:
        """Map x to z; in training mode the first call initialises."""
        self.prepare(x)
        shift, log_scale = self.shift.to(x.dtype), self.log_scale.to(x.dtype)
        return (x - shift.view(1, -1, 1, 1)) * torch.exp(-log_scale).view(1, -1, 1, 1)

    def log_det_per_position(self) -> Tensor:
        """Return −Σ log_scale."""
        return -self.log_scale.sum()

    def inverse(self, z: Tensor, context: Tensor | None = None) -> Tensor:
        """Map z back: x = z·exp(log_scale) + shift."""
        check_features("z", z, self.channels)
        shift, log_scale = self.shift.to(z.dtype), self.log_scale.to(z.dtype)
        return z * torch.exp(log_scale).view(1, -1, 1, 1) + shift.view(1, -1, 1, 1)

    def _load_from_state_dict(self, *args: object, **kwargs: object) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._known_initialized = False
