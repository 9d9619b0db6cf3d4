"""3x3 convolutions, and their gradients: the library's, or matrix products on gathered rows."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from protoflows.flows.nets.neighbours import Neighbours, rows_of

GATHERED_POSITIONS = 2048
"""Above this, what is gathered leaves the caches, and the library's way is the faster one."""


def conv3x3(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Convolve x (N, C, H, W) with a weight (O, C, 3, 3), padded by 1, in the dtype of x."""
    return _Conv3x3.apply(x, weight, bias)


class SpatialGradients(Protocol):
    """Takes the gradients of 3x3 convolutions that all put out maps of one shape (N, O, H, W)."""

    map: Tensor
    """The gradient of the output, (N, O, H, W): to be written first."""

    def of_input(self, h: Tensor, weight: Tensor) -> Tensor:
        """Return the gradient of the input h (N, C, H, W)."""
        ...

    def of_weight(self, h: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return, after `of_input`, those of the weight (O, C, 3, 3) and the bias (O,)."""
        ...


def spatial_gradients(shape: tuple[int, ...], like: Tensor) -> SpatialGradients:
    """Choose what is fastest for outputs of this shape, with O small beside C.

    On CPUs in 16 bits and for small maps gathering is faster than the library, which reorders
    weights and maps at every call.
    """
    kind = GatheredGradients if _gathers(shape, like) else LibraryGradients
    return kind(shape, like)


def _gathers(shape: tuple[int, ...], like: Tensor) -> bool:
    low = like.dtype in (torch.bfloat16, torch.float16)
    return like.device.type == "cpu" and low and _positions(shape) <= GATHERED_POSITIONS


def _positions(shape: tuple[int, ...]) -> int:
    return shape[0] * shape[2] * shape[3]


class LibraryGradients:
    """What autograd would call."""

    def __init__(self, shape: tuple[int, ...], like: Tensor) -> None:
        n, channels, height, width = shape
        self.map = like.new_empty(n, height, width, channels).permute(0, 3, 1, 2)

    def of_input(self, h: Tensor, weight: Tensor) -> Tensor:
        """Return the gradient of the input."""
        return _library(self.map, h, weight, [True, False, False])[0]

    def of_weight(self, h: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of weight and bias."""
        _, grad, grad_bias = _library(self.map, h, weight, [False, True, True])
        return grad, grad_bias


def _library(grad: Tensor, h: Tensor, weight: Tensor, wanted: list[bool]) -> tuple[Tensor, ...]:
    return torch.ops.aten.convolution_backward(
        grad,
        h,
        weight,
        [len(weight)],  # the bias's shape
        [1, 1],  # stride
        [1, 1],  # padding
        [1, 1],  # dilation
        False,  # transposed
        [0, 0],  # output padding
        1,  # groups
        wanted,  # of input, weight and bias
    )


class GatheredGradients:
    """Both gradients as plain products.

    With the output's gradient g, gathered as G = (g[p − d])_d, (P, 9·O), the input's gradient is
    G·w, the weight as a matrix w (9·O, C), and the weight's is Gᵀ·h.
    """

    def __init__(self, shape: tuple[int, ...], like: Tensor) -> None:
        self._around = Neighbours(shape, like)
        self._gathered = like
        self.map = self._around.map

    def of_input(self, h: Tensor, weight: Tensor) -> Tensor:
        """Return the gradient of the input."""
        n, channels, height, width = h.shape
        self._gathered = self._around.gather(back=True)
        grad = self._gathered @ weight.permute(2, 3, 0, 1).reshape(-1, channels)
        return grad.view(n, height, width, channels).permute(0, 3, 1, 2)

    def of_weight(self, h: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of weight and bias."""
        channels = h.shape[1]
        grad = self._gathered.t() @ rows_of(h)
        return grad.view(3, 3, -1, channels).permute(2, 3, 0, 1), self._around.rows.sum(0)


class _Conv3x3(torch.autograd.Function):
    """A convolution whose output has more channels than its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:  # noqa: ANN401
        ctx.dtypes = weight.dtype, bias.dtype
        low = weight.to(x.dtype)
        ctx.save_for_backward(x, low)
        return torch.conv2d(x, low, bias.to(x.dtype), padding=1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        x, weight = ctx.saved_tensors
        with torch.autocast(grad.device.type, enabled=False):
            if not _gathers(tuple(x.shape), x):
                found = _library(grad, x, weight, [*ctx.needs_input_grad])
            else:
                around = Neighbours(tuple(x.shape), x)
                around.map.copy_(x)
                of_weight = rows_of(grad).t() @ around.gather()
                of_weight = of_weight.view(-1, 3, 3, x.shape[1]).permute(0, 3, 1, 2)
                found = (
                    _library(grad, x, weight, [True, False, False])[0],
                    of_weight,
                    rows_of(grad).sum(0),
                )
        dtypes = x.dtype, *ctx.dtypes
        return tuple(
            g if g is None else g.to(dtype) for g, dtype in zip(found, dtypes, strict=True)
        )
