"""Invertible 1x1 convolution, alone and many at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protoflows.flows.base import ConstantJacobian, check_features, exact_dtype


class InvertibleConv(ConstantJacobian):
    """Channel mixing z = Wx at every position, log-det H·W·log|det W|.

    The 1x1 convolution of Glow (Kingma & Dhariwal 2018). W starts as a random rotation. The inverse
    is taken in float64 (a float32 inverse of an ill-conditioned W is what breaks round trips
    elsewhere) and kept as long as W holds the same values. Those are compared, not the tensor's
    version: fused optimizers and writes to `.data` change a weight and leave its version as it was.

    Example:
        >>> layer = InvertibleConv(3)
        >>> x = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
        >>> z, log_det = layer(x)
        >>> bool(torch.allclose(layer.inverse(z), x, atol=1e-5))
        True
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels
        self.weight = nn.Parameter(torch.linalg.qr(torch.randn(channels, channels))[0].contiguous())
        self._constants: _Constants | None = None

    def extra_repr(self) -> str:
        """Describe the layer."""
        return f"{self.channels}"

    def constants(self) -> _Constants:
        """Return W⁻¹ and log|det W| without gradient, from the last time where W is what it was."""
        known = self._constants
        return known if known is not None and known.hold(self.weight) else constants_of([self])[0]

    def transform(self, x: Tensor) -> Tensor:
        """Map x to Wx."""
        check_features("x", x, self.channels)
        return mix(x, self.weight.to(x.dtype))

    def log_det_per_position(self) -> Tensor:
        """Return log|det W|."""
        if self.training or torch.is_grad_enabled():
            return torch.linalg.slogdet(self.weight).logabsdet
        return self.constants().log_det

    def inverse(self, z: Tensor, context: Tensor | None = None) -> Tensor:
        """Map z to W⁻¹z."""
        check_features("z", z, self.channels)
        return mix(z, self.inverse_weight(z))

    def inverse_weight(self, z: Tensor) -> Tensor:
        """Return W⁻¹ in the dtype of z, with its gradient where one is recorded."""
        if torch.is_grad_enabled() and (self.weight.requires_grad or z.requires_grad):
            return torch.linalg.inv(self.weight.to(exact_dtype(z))).to(z.dtype)
        return self.constants().inverse.to(z.dtype)

    def __getstate__(self) -> dict[str, object]:
        """Copy or pickle without what can be computed again."""
        return {**super().__getstate__(), "_constants": None}


class _Constants(NamedTuple):
    """What follows from a weight, with a copy of that weight."""

    weight: Tensor
    inverse: Tensor
    log_det: Tensor

    def hold(self, weight: Tensor) -> bool:
        """Tell whether they are those of this weight."""
        known = self.weight
        return (
            known.dtype == weight.dtype
            and known.device == weight.device
            and torch.equal(known, weight)
        )


def mix(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return Wx + b at every position."""
    return F.linear(x.permute(0, 2, 3, 1), weight, bias).permute(0, 3, 1, 2)


@torch.no_grad()
def constants_of(layers: Sequence[InvertibleConv]) -> list[_Constants]:
    """Compute inverse and log|det| of equally sized layers in one call; leave them with each.

    LU of many small matrices one by one is mostly overhead: a quarter of a training step in the
    paper's model.
    """
    stale = [
        layer
        for layer in layers
        if layer._constants is None or not layer._constants.hold(layer.weight)
    ]
    if stale:
        weight = torch.stack([layer.weight.detach() for layer in stale])
        exact = weight.to(exact_dtype(weight))
        logabsdet = torch.linalg.slogdet(exact).logabsdet
        singular = ~logabsdet.isfinite()
        if bool(singular.any()):
            raise ValueError(
                f"{int(singular.sum())} invertible 1x1 convolution(s) of {weight.shape[-1]} "
                "channels have a singular or non-finite weight: the flow cannot be inverted "
                "(training diverged, or the checkpoint is damaged)"
            )
        inverse = torch.linalg.inv(exact)
        for layer, *found in zip(stale, weight, inverse, logabsdet.to(weight.dtype), strict=True):
            layer._constants = _Constants(*found)
    return [layer._constants for layer in layers if layer._constants is not None]


def log_det_sum(layers: Sequence[InvertibleConv]) -> Tensor:
    """Return Σ log|det W| over equally sized layers, differentiable, in one batched call."""
    if torch.is_grad_enabled() and any(layer.weight.requires_grad for layer in layers):
        return torch.linalg.slogdet(torch.stack([layer.weight for layer in layers])).logabsdet.sum()
    return torch.stack([found.log_det for found in constants_of(layers)]).sum()
