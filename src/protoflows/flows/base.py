"""The contract of every layer: invertible, with a known log-determinant, and rewindable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Rewound(NamedTuple):
    """What one layer gives back when the backward pass goes through it by inversion."""

    x: Tensor
    grad_x: Tensor
    grad_context: Tensor | None
    grad_params: Sequence[Tensor | None]


class Bijection(nn.Module):
    """An invertible map z = f(x) on feature maps (N, C, H, W).

    `forward` returns `(z, log_det)` with log_det = log|det ∂z/∂x|, one value per image; `inverse`
    returns x. Both run in the mode (train or eval) that the module is in. Layers that are
    conditioned take a `context` map.
    """

    def forward(self, x: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Map x to z; return z and log|det ∂z/∂x| of shape (N,)."""
        raise NotImplementedError(f"{type(self).__name__} has no forward map")

    def inverse(self, z: Tensor, context: Tensor | None = None) -> Tensor:
        """Map z back to x."""
        raise NotImplementedError(f"{type(self).__name__} has no inverse map")

    def rewind(
        self, z: Tensor, grad_z: Tensor, grad_log_det: Tensor, context: Tensor | None
    ) -> Rewound:
        """Recover x from z and carry the gradients back.

        They go from (z, log_det) to x, the context and the parameters. This general version
        inverts first and then differentiates a second evaluation; layers whose inverse costs as
        much as their forward map override it with one evaluation for both.
        """
        with torch.no_grad():
            x = self.inverse(z, context)
        return self.replay(x, grad_z, grad_log_det, context)

    def replay(
        self, x: Tensor, grad_z: Tensor, grad_log_det: Tensor, context: Tensor | None
    ) -> Rewound:
        """Evaluate the layer again at a known x and carry the gradients back through that."""
        params = [p for p in self.parameters() if p.requires_grad]
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            context = None if context is None else context.detach().requires_grad_()
            z, log_det = self.rewindable(x, context)
            outputs, grads = [z], [grad_z]
            if log_det is not None and log_det.requires_grad:
                outputs, grads = [z, log_det], [grad_z, grad_log_det]
            inputs = [x, *([] if context is None else [context]), *params]
            found = list(torch.autograd.grad(outputs, inputs, grads, allow_unused=True))
        grad_x = found.pop(0)
        grad_context = found.pop(0) if context is not None else None
        return Rewound(
            x.detach(), torch.zeros_like(x) if grad_x is None else grad_x, grad_context, found
        )

    def rewindable(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """What a chain differentiates when it rewinds this layer.

        That is `forward`, less log-dets of weights alone.
        """
        return self(x, context)


class ConstantJacobian(Bijection):
    """A bijection whose log-determinant does not depend on x: H·W·`log_det_per_position()`.

    Chains evaluate that term once for the batch and outside of the data path, where equal sizes
    share one call.
    """

    def transform(self, x: Tensor) -> Tensor:
        """Map x to z alone."""
        raise NotImplementedError(f"{type(self).__name__} has no forward map")

    def log_det_per_position(self) -> Tensor:
        """Return the scalar log-determinant of one spatial position."""
        raise NotImplementedError(f"{type(self).__name__} has no log-determinant")

    def forward(self, x: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Map x to z; return z and log|det ∂z/∂x| of shape (N,)."""
        z = self.transform(x)
        height, width = x.shape[-2:]
        return z, (height * width * self.log_det_per_position()).expand(len(x))

    def rewindable(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, None]:
        """Return z alone: the chain accounts for the constant term."""
        return self.transform(x), None


def check_features(name: str, x: Tensor, channels: int) -> None:
    """Refuse anything but floating-point maps (N, channels, H, W), naming what is wrong."""
    if x.dim() != 4 or x.shape[1] != channels:
        raise ValueError(f"{name} must have shape (N, {channels}, H, W), got {tuple(x.shape)}")
    if not x.is_floating_point():
        raise ValueError(
            f"{name} must be floating point, got {x.dtype}: encode() takes integer images"
        )


def exact_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype for small linear algebra: float64 wherever the device has it."""
    return x.dtype if x.device.type == "mps" else torch.float64
