"""Affine coupling: one half of the channels scales and shifts the other."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from protoflows.flows.base import Bijection, Rewound
from protoflows.flows.config import DenseFlowConfig
from protoflows.flows.reshape import halves, swapped_halves


def net_dtype_of(config: DenseFlowConfig) -> torch.dtype | None:
    """What coupling nets compute in; None: the dtype of what they are given."""
    return torch.bfloat16 if config.net_dtype == "bfloat16" else None


class AffineCoupling(Bijection):
    """Halves (a, b) → (a, shift + exp(s)·b), log-det Σ s (Real NVP, Dinh et al. 2017).

    The net maps a (and a context, where there is one) to two values per channel of b, interleaved:
    r and the shift; the log-scale is s = 2·tanh(r/2), so one coupling changes no value by more than
    e² ≈ 7.4.

    Args:
        net: From the channels of a to 2 channels per channel of b.
        net_dtype: What the net computes in; None: the dtype of x. Scales, sums and inverses stay in
            the dtype of x.

    Example:
        >>> layer = AffineCoupling(torch.nn.Conv2d(1, 2, 1))
        >>> x = torch.randn(2, 2, 3, 3, generator=torch.Generator().manual_seed(0))
        >>> z, log_det = layer(x)
        >>> bool(torch.allclose(layer.inverse(z), x, atol=1e-6))
        True
    """

    def __init__(self, net: nn.Module, net_dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.net = net
        self.net_dtype = net_dtype

    def extra_repr(self) -> str:
        """Describe the layer."""
        return f"net_dtype={self.net_dtype}" if self.net_dtype is not None else ""

    def scale_and_shift(self, a: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return (s, shift), each shaped like b."""
        working = self._working_dtype(a)
        inputs = a.to(self.net_dtype or working)
        out = self.net(inputs) if context is None else self.net(inputs, context)
        s, shift = _SplitParameters.apply(out, working)
        return s, shift

    def _working_dtype(self, a: Tensor) -> torch.dtype:
        """Return what scales are computed in: where maps are carried more exactly, the weights'."""
        weight = next(self.net.parameters(), None)
        if a.dtype != torch.float64 or weight is None:
            return a.dtype
        return torch.promote_types(weight.dtype, torch.float32)

    def forward(
        self, x: Tensor, context: Tensor | None = None, *, swap: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Map x to z; return z, on request with its halves exchanged, and Σ s."""
        a, b = self._halves(x)
        s, shift = self.scale_and_shift(a, context)
        changed = _ScaleShift.apply(b, s, shift)
        return torch.cat([changed, a] if swap else [a, changed], 1), s.sum((1, 2, 3))

    def inverse(self, z: Tensor, context: Tensor | None = None, *, swap: bool = False) -> Tensor:
        """Map z back: b = (b' − shift)·exp(−s)."""
        a, changed = self._halves(z, swap)
        s, shift = self.scale_and_shift(a, context)
        return torch.cat([a, (changed - shift) / s.exp()], 1)

    def rewind(
        self,
        z: Tensor,
        grad_z: Tensor,
        grad_log_det: Tensor,
        context: Tensor | None,
        *,
        swap: bool = False,
    ) -> Rewound:
        """Recover x and carry the gradients back with one evaluation of the net.

        a leaves the coupling unchanged, so the net can be evaluated at once; with
        b' = shift + eˢ·b, ∂L/∂b = eˢ·∂L/∂b', ∂L/∂shift = ∂L/∂b',
        ∂L/∂s = (b' − shift)·∂L/∂b' + ∂L/∂log_det.
        """
        params = [p for p in self.parameters() if p.requires_grad]
        a, changed = self._halves(z, swap)
        grad_a, grad_changed = self._halves(grad_z, swap)
        with torch.enable_grad():
            a = a.detach().requires_grad_()
            context = None if context is None else context.detach().requires_grad_()
            s, shift = self.scale_and_shift(a, context)
        with torch.no_grad():
            scaled, scale = changed - shift, s.exp()
            b = scaled / scale
            grad_s = torch.addcmul(grad_log_det.view(-1, 1, 1, 1), scaled, grad_changed)
            grad_b = grad_changed * scale
        inputs = [a, *([] if context is None else [context]), *params]
        found = list(
            torch.autograd.grad(
                [s, shift],
                inputs,
                [grad_s.to(s.dtype), grad_changed.to(shift.dtype)],
                allow_unused=True,
            )
        )
        through_net = found.pop(0)
        if through_net is not None:
            grad_a = grad_a + through_net
        grad_context = found.pop(0) if context is not None else None
        return Rewound(
            torch.cat([a.detach(), b], 1), torch.cat([grad_a, grad_b], 1), grad_context, found
        )

    @staticmethod
    def _halves(x: Tensor, swapped: bool = False) -> tuple[Tensor, Tensor]:
        if x.dim() != 4 or x.shape[1] < 2:
            raise ValueError(
                f"a coupling needs maps (N, C, H, W) of at least 2 channels, got {tuple(x.shape)}"
            )
        return swapped_halves(x) if swapped else halves(x)


class _SplitParameters(torch.autograd.Function):
    """(r, shift) interleaved by channel → s = 2·tanh(r/2) and shift.

    ∂s/∂r = 1 − (s/2)², written in place.
    """

    @staticmethod
    def forward(ctx: Any, out: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:  # noqa: ANN401
        raw, shift = out[:, 0::2], out[:, 1::2]
        s = raw.to(dtype).mul_(0.5) if raw.dtype != dtype else raw * 0.5
        s.tanh_().mul_(2)
        ctx.save_for_backward(s)
        ctx.dtype = out.dtype
        return s, shift.to(dtype, copy=True)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_s: Tensor, grad_shift: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
        (s,) = ctx.saved_tensors
        n, channels, height, width = s.shape
        grad = s.new_empty(n, height, width, 2 * channels, dtype=ctx.dtype).permute(0, 3, 1, 2)
        grad[:, 0::2] = torch.addcmul(grad_s, s * s, grad_s, value=-0.25)
        grad[:, 1::2] = grad_shift
        return grad, None


class _ScaleShift(torch.autograd.Function):
    """b' = shift + eˢ·b; needs eˢ and b alone to go back.

    b may be carried in a wider dtype than s and the shift; eˢ then is what the narrower one holds,
    so that dividing by it undoes the product to the wider one's precision.
    """

    @staticmethod
    def forward(ctx: Any, b: Tensor, s: Tensor, shift: Tensor) -> Tensor:  # noqa: ANN401
        scale = s.exp()
        ctx.save_for_backward(b, scale)
        return torch.addcmul(shift.to(b.dtype), scale.to(b.dtype), b)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # noqa: ANN401
        b, scale = ctx.saved_tensors
        grad_b = grad * scale
        return grad_b, (grad_b * b).to(scale.dtype), grad.to(scale.dtype)
