"""Invertible 1x1 convolution, alone and many at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protoflows.flows.base import ConstantJacobian, check_features, exact_dtype


class InvertibleConv(ConstantJacobian):
    """Channel mixing z = Wx at every position, log-det H·W·log|det W|.

    The 1x1 convolution of Glow (Kingma & Dhariwal 2018). W starts as a random rotation. The inverse
    is taken in float64 (a float32 inverse of an ill-conditioned W is what breaks round trips
    elsewhere) and, in eval mode, kept until W changes.

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
        self._cached: tuple[tuple[object, ...], Tensor, Tensor] | None = None

    def extra_repr(self) -> str:
        """Describe the layer."""
        return f"{self.channels}"

    def _key(self) -> tuple[object, ...]:
        weight = self.weight
        return (weight.data_ptr(), weight._version, weight.dtype, weight.device)

    def _constants(self) -> tuple[Tensor, Tensor]:
        """Return (W⁻¹, log|det W|) without gradient, from the cache where W is what it was.

        The inverse stays in the dtype it was taken in.
        """
        remember_constants([self])
        assert self._cached is not None
        return self._cached[1], self._cached[2]

    def transform(self, x: Tensor) -> Tensor:
        """Map x to Wx."""
        check_features("x", x, self.channels)
        return mix(x, self.weight.to(x.dtype))

    def log_det_per_position(self) -> Tensor:
        """Return log|det W|."""
        if self.training or torch.is_grad_enabled():
            return torch.linalg.slogdet(self.weight).logabsdet
        return self._constants()[1]

    def inverse(self, z: Tensor, context: Tensor | None = None) -> Tensor:
        """Map z to W⁻¹z."""
        check_features("z", z, self.channels)
        if torch.is_grad_enabled() and (self.weight.requires_grad or z.requires_grad):
            return mix(z, torch.linalg.inv(self.weight.to(exact_dtype(z))).to(z.dtype))
        return mix(z, self.inverse_weight().to(z.dtype))

    def inverse_weight(self) -> Tensor:
        """Return W⁻¹, in float64 where the device has it, without gradient."""
        return self._constants()[0]

    def train(self, mode: bool = True) -> InvertibleConv:
        """Change the mode and forget the cache.

        A write to `.data`, as moving averages do it, leaves no other trace.
        """
        self._cached = None
        return super().train(mode)

    def __getstate__(self) -> dict[str, object]:
        """Copy or pickle without the cache, whose key names this tensor's memory."""
        return {**super().__getstate__(), "_cached": None}


def mix(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return Wx + b at every position."""
    return F.linear(x.permute(0, 2, 3, 1), weight, bias).permute(0, 3, 1, 2)


@torch.no_grad()
def remember_constants(layers: Sequence[InvertibleConv]) -> None:
    """Compute inverse and log|det| of equally sized layers in one call; cache them on each.

    LU of many small matrices one by one is mostly overhead: a quarter of a training step in the
    paper's model.
    """
    stale = [layer for layer in layers if layer._cached is None or layer._cached[0] != layer._key()]
    if not stale:
        return
    weight = torch.stack([layer.weight.detach() for layer in stale])
    exact = weight.to(exact_dtype(weight))
    logabsdet = torch.linalg.slogdet(exact).logabsdet
    singular = ~logabsdet.isfinite()
    if bool(singular.any()):
        raise ValueError(
            f"{int(singular.sum())} invertible 1x1 convolution(s) of {weight.shape[-1]} channels "
            "have a singular or non-finite weight: the flow cannot be inverted (training diverged, "
            "or the checkpoint is damaged)"
        )
    inverse = torch.linalg.inv(exact)
    for layer, inv, log in zip(stale, inverse, logabsdet.to(weight.dtype), strict=True):
        layer._cached = (layer._key(), inv, log)


def log_det_sum(layers: Sequence[InvertibleConv]) -> Tensor:
    """Return Σ log|det W| over equally sized layers, differentiable, in one batched call."""
    if torch.is_grad_enabled() and any(layer.weight.requires_grad for layer in layers):
        return torch.linalg.slogdet(torch.stack([layer.weight for layer in layers])).logabsdet.sum()
    remember_constants(layers)
    return torch.stack([layer._constants()[1] for layer in layers]).sum()
