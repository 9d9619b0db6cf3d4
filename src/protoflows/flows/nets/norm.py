"""Batch normalisation that a recomputation does not count twice and that sees all processes."""

from __future__ import annotations

from contextlib import ContextDecorator
from contextvars import ContextVar, Token

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protoflows.distributed import all_reduce_sum_grad, world_size

_FROZEN: ContextVar[bool] = ContextVar("frozen_statistics", default=False)


class frozen_statistics(ContextDecorator):  # noqa: N801
    """Leave running statistics alone: for recomputed activations and for inverses in training mode.

    A context manager that can be entered any number of times, as a graph may be differentiated more
    than once.
    """

    def __init__(self) -> None:
        self._tokens: list[Token[bool]] = []

    def __enter__(self) -> None:
        """Freeze."""
        self._tokens.append(_FROZEN.set(True))

    def __exit__(self, *exception: object) -> None:
        """Return to what was before."""
        _FROZEN.reset(self._tokens.pop())


class BatchNorm(nn.BatchNorm2d):
    """Batch normalisation (Ioffe & Szegedy 2015) with torch's parameters, buffers and conventions.

    In training mode the batch is the global one where several processes train together (torch's
    SyncBatchNorm refuses CPU tensors). Inside `frozen_statistics()` the batch's own moments
    normalise but are not counted.

    Example:
        >>> layer = BatchNorm(2)
        >>> with frozen_statistics():
        ...     _ = layer(torch.randn(4, 2, 3, 3))
        >>> int(layer.num_batches_tracked)
        0
    """

    def forward(self, x: Tensor) -> Tensor:
        """Normalise every channel of (N, C, H, W).

        Statistics are float32 at least, the result has the dtype of x.
        """
        if not self.training:
            return super().forward(x)
        if world_size() > 1:
            return self._forward_global(x)
        if _FROZEN.get():
            # Throw-away copies instead of none: a checkpoint's second run has to save as many
            # tensors as its first.
            mean, var = (
                None if s is None else s.clone() for s in (self.running_mean, self.running_var)
            )
            return F.batch_norm(x, mean, var, self.weight, self.bias, True, 0.0, self.eps)
        return super().forward(x)

    def _forward_global(self, x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        local = wide.new_full((1,), float(wide[:, 0].numel()))
        sums = all_reduce_sum_grad(torch.cat([wide.sum((0, 2, 3)), local]))
        count = sums[-1].detach()
        mean = sums[:-1] / count
        centred = wide - mean.view(1, -1, 1, 1)
        var = all_reduce_sum_grad(centred.square().sum((0, 2, 3))) / count
        if not _FROZEN.get() and self.running_mean is not None and self.running_var is not None:
            with torch.no_grad():
                momentum = 0.1 if self.momentum is None else self.momentum
                assert self.num_batches_tracked is not None
                self.num_batches_tracked.add_(1)
                self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
                self.running_var.lerp_(
                    (var * (count / (count - 1))).to(self.running_var.dtype), momentum
                )
        scale = self.weight * torch.rsqrt(var + self.eps)
        return (centred * scale.view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)).to(x.dtype)
