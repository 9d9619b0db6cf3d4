"""Neighbouring layers of a chain in a joint form, where that saves passes over memory."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from protoflows.flows.actnorm import ActNorm
from protoflows.flows.base import Bijection, Rewound
from protoflows.flows.conv1x1 import InvertibleConv, mix
from protoflows.flows.coupling import AffineCoupling
from protoflows.flows.reshape import SwapHalves


def fused(layers: Iterable[Bijection]) -> list[Bijection]:
    """Return the layers, first to last, with each pair that has a joint form in one.

    What is returned shares its parameters with the layers, is made for one use, and takes part in
    chains by `rewindable`, `inverse`, `rewind` and `replay`: log-determinants of weights alone are
    the chain's business.

    Example:
        >>> [type(step).__name__ for step in fused([ActNorm(2), InvertibleConv(2), SwapHalves()])]
        ['NormalisedConv', 'SwapHalves']
    """
    steps: list[Bijection] = []
    for layer in layers:
        last = steps[-1] if steps else None
        if isinstance(last, ActNorm) and isinstance(layer, InvertibleConv):
            steps[-1] = NormalisedConv(last, layer)
        elif isinstance(last, AffineCoupling) and isinstance(layer, SwapHalves):
            steps[-1] = SwappedCoupling(last)
        else:
            steps.append(layer)
    return steps


class NormalisedConv(Bijection):
    """Actnorm, then a 1x1 convolution: one product z = We^(−l)·x − We^(−l)·shift."""

    def __init__(self, norm: ActNorm, conv: InvertibleConv) -> None:
        super().__init__()
        self.norm, self.conv = norm, conv

    def rewindable(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, None]:
        """Map x to z."""
        self.norm.prepare(x)
        shift, log_scale = self.norm.shift.to(x.dtype), self.norm.log_scale.to(x.dtype)
        weight = self.conv.weight.to(x.dtype) * torch.exp(-log_scale)
        return mix(x, weight, -(weight @ shift)), None

    def inverse(self, z: Tensor, context: Tensor | None = None) -> Tensor:
        """Map z back: x = e^l·W⁻¹z + shift."""
        shift, log_scale = self.norm.shift.to(z.dtype), self.norm.log_scale.to(z.dtype)
        weight = torch.exp(log_scale)[:, None] * self.conv.inverse_weight(z)
        return mix(z, weight, shift)


class SwappedCoupling(Bijection):
    """A coupling, then the exchange of the halves: written where they belong, not moved again."""

    def __init__(self, coupling: AffineCoupling) -> None:
        super().__init__()
        self.coupling = coupling

    def rewindable(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor]:
        """Map x to z; return z and Σ s."""
        return self.coupling(x, context, swap=True)

    def inverse(self, z: Tensor, context: Tensor | None = None) -> Tensor:
        """Map z back."""
        return self.coupling.inverse(z, context, swap=True)

    def rewind(
        self, z: Tensor, grad_z: Tensor, grad_log_det: Tensor, context: Tensor | None
    ) -> Rewound:
        """Recover x and carry the gradients back with one evaluation of the net."""
        return self.coupling.rewind(z, grad_z, grad_log_det, context, swap=True)
