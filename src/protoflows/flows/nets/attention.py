"""Nyström self-attention over the positions of a feature map."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class NystromAttention(nn.Module):
    """Self-attention through a few landmarks (Nyströmformer, Xiong et al. 2021).

    With q, k, v of E = channels // 2 features for each of the H·W positions, and landmarks q̃, k̃
    (means over runs of consecutive rows, divided by sqrt(HW)):

        softmax(q k̃ᵀ) · softmax(q̃ k̃ᵀ)⁺ · softmax(q̃ kᵀ) v + v

    Three oddities of the published models differ from the textbook and are kept because trained
    weights depend on them: every softmax runs over the *second-to-last* axis; the (N, 3E, H, W) map
    is *reinterpreted* in memory order as (N, HW, 3E), not transposed; and the result is
    reinterpreted back likewise. The pseudo-inverse is iterated in float32 at least.

    Example:
        >>> NystromAttention(8)(torch.zeros(2, 8, 3, 5)).shape
        torch.Size([2, 8, 3, 5])
    """

    ITERATIONS = 6

    def __init__(self, channels: int, landmarks: int = 4) -> None:
        super().__init__()
        if channels < 2:
            raise ValueError(f"attention needs at least 2 channels, got channels={channels}")
        if landmarks < 1:
            raise ValueError(f"attention needs at least 1 landmark, got landmarks={landmarks}")
        self.features, self.landmarks = channels // 2, landmarks
        self.qkv = nn.Conv2d(channels, 3 * self.features, 1)
        self.out = nn.Conv2d(self.features, channels, 1)

    def extra_repr(self) -> str:
        """Describe the layer."""
        return f"features={self.features}, landmarks={self.landmarks}"

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, channels, H, W) to the same shape."""
        n, _, height, width = x.shape
        positions = height * width
        qkv = pointwise(self.qkv, x).contiguous().view(n, positions, 3 * self.features)
        q, k, v = qkv.chunk(3, -1)
        q_mark, k_mark = self._landmarks(q), self._landmarks(k)
        from_queries = (q @ k_mark.mT).softmax(-2)
        between = (q_mark @ k_mark.mT).to(torch.promote_types(x.dtype, torch.float32)).softmax(-2)
        to_values = (q_mark @ k.mT).softmax(-2) @ v
        mixed = (
            from_queries @ (pseudo_inverse(between, self.ITERATIONS).to(x.dtype) @ to_values) + v
        )
        return pointwise(self.out, mixed.reshape(n, self.features, height, width))

    def _landmarks(self, rows: Tensor) -> Tensor:
        positions = rows.shape[1]
        count = min(self.landmarks, positions)
        if positions % count == 0:
            means = rows.unflatten(1, (count, positions // count)).mean(2)
        else:
            means = F.adaptive_avg_pool1d(rows.mT, count).mT
        return means / math.sqrt(positions)


def pointwise(conv: nn.Conv2d, x: Tensor) -> Tensor:
    """Apply a 1x1 convolution as one matrix product, computed in the dtype of x."""
    weight = conv.weight.flatten(1).to(x.dtype)
    bias = None if conv.bias is None else conv.bias.to(x.dtype)
    return F.linear(x.permute(0, 2, 3, 1), weight, bias).permute(0, 3, 1, 2)


def pseudo_inverse(matrix: Tensor, iterations: int) -> Tensor:
    """Approximate the Moore-Penrose inverse (Razavi et al. 2014).

    It iterates V ← ¼V(13I − KV(15I − KV(7I − KV))). The start
    Kᵀ/(largest column sum · largest row sum) makes the iteration converge for any K.

    Example:
        >>> pseudo_inverse(torch.eye(2)[None] * 2, 8)[0].tolist()
        [[0.5, 0.0], [0.0, 0.5]]
    """
    size = matrix.abs()
    scale = size.sum(-1).amax(-1) * size.sum(-2).amax(-1)
    return _NewtonSchulz.apply(matrix, matrix.mT / scale[:, None, None], iterations)


class _NewtonSchulz(torch.autograd.Function):
    """The iteration for many tiny matrices.

    Autograd's bookkeeping would cost more than the products.

    With X = KV, T₁ = 7I − X, T₂ = 15I − XT₁, T₃ = 13I − XT₂, V' = ¼VT₃.

    Autocast is kept out of both directions: it would round products to 16 bits, and the products
    into tensors that are there already would fail.
    """

    @staticmethod
    def forward(ctx: Any, k: Tensor, v: Tensor, iterations: int) -> Tensor:  # noqa: ANN401
        with torch.autocast(k.device.type, enabled=False):
            return _NewtonSchulz._forward(ctx, k, v, iterations)

    @staticmethod
    def _forward(ctx: Any, k: Tensor, v: Tensor, iterations: int) -> Tensor:  # noqa: ANN401
        eye = torch.eye(k.shape[-1], dtype=k.dtype, device=k.device).expand_as(k)
        saved = [k]
        for _ in range(iterations):
            x = torch.bmm(k, v)
            t1 = torch.sub(7 * eye, x)
            t2 = torch.baddbmm(eye, x, t1, beta=15, alpha=-1)
            t3 = torch.baddbmm(eye, x, t2, beta=13, alpha=-1)
            saved += [v, x, t1, t2, t3]
            v = torch.bmm(v, t3).mul_(0.25)
        ctx.save_for_backward(*saved)
        return v

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:  # noqa: ANN401
        with torch.autocast(grad.device.type, enabled=False):
            return _NewtonSchulz._backward(ctx, grad)

    @staticmethod
    def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:  # noqa: ANN401
        k, *steps = ctx.saved_tensors
        grad_k = torch.zeros_like(k)
        for i in range(len(steps) - 5, -1, -5):
            v, x, t1, t2, t3 = steps[i : i + 5]
            grad = grad * 0.25
            grad_t3 = torch.bmm(v.mT, grad)
            grad_t2 = torch.bmm(x.mT, grad_t3).neg_()
            # X enters T₁, T₂ and T₃, each time with a minus; T₂ depends on T₁ and T₃ on T₂.
            grad_x = torch.baddbmm(torch.bmm(x.mT, grad_t2), grad_t2, t1.mT, alpha=-1)
            grad_x.baddbmm_(grad_t3, t2.mT, alpha=-1)
            grad_k.baddbmm_(grad_x, v.mT)
            grad = torch.baddbmm(torch.bmm(grad, t3.mT), k.mT, grad_x)
        return grad_k, grad, None
