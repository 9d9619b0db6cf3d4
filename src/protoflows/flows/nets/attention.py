"""Nyström self-attention over the positions of a feature map."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
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
        wide = torch.promote_types(x.dtype, torch.float32)
        # In one pass: another dtype, and rows of the map as it lies in memory, channels first.
        qkv = pointwise(self.qkv, x).to(wide, memory_format=torch.contiguous_format)
        qkv = qkv.view(n, height * width, 3 * self.features)
        mixed = _Nystrom.apply(qkv, self.landmarks, self.ITERATIONS)
        mixed = mixed.view(n, self.features, height, width)
        return pointwise(self.out, mixed.to(x.dtype, memory_format=torch.channels_last))


def pointwise(conv: nn.Conv2d, x: Tensor) -> Tensor:
    """Apply a 1x1 convolution as one matrix product, computed in the dtype of x."""
    weight = conv.weight.flatten(1).to(x.dtype)
    bias = None if conv.bias is None else conv.bias.to(x.dtype)
    return F.linear(x.permute(0, 2, 3, 1), weight, bias).permute(0, 3, 1, 2)


class _Nystrom(torch.autograd.Function):
    """softmax(q k̃ᵀ) · softmax(q̃ k̃ᵀ)⁺ · softmax(q̃ kᵀ) v + v of rows (q, k, v), (N, P, 3E).

    Some hundred products of small matrices: autograd's bookkeeping would take as long as they do.

    Autocast is kept out of both directions: it would round products to 16 bits, and the products
    into tensors that are there already would fail.
    """

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, landmarks: int, iterations: int) -> Tensor:  # noqa: ANN401
        with torch.autocast(qkv.device.type, enabled=False):
            n, positions, width = qkv.shape
            average = _averaging(positions, landmarks, qkv.dtype, qkv.device).expand(n, -1, -1)
            marks = torch.bmm(average, qkv)
            q, k, v = qkv.chunk(3, -1)
            q_mark, k_mark, _ = marks.chunk(3, -1)
            from_queries = torch.bmm(q, k_mark.mT).softmax(-2)
            between = torch.bmm(q_mark, k_mark.mT).softmax(-2)
            from_marks = torch.bmm(q_mark, k.mT).softmax(-2)
            inverse, steps = _invert(between, iterations)
            values = torch.bmm(from_marks, v)
            mixed = torch.bmm(inverse, values)
            ctx.save_for_backward(
                qkv, average, marks, from_queries, from_marks, inverse, values, mixed, *steps
            )
            return torch.baddbmm(v, from_queries, mixed)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401
        with torch.autocast(grad.device.type, enabled=False):
            return _Nystrom._backward(ctx, grad), None, None

    @staticmethod
    def _backward(ctx: Any, grad: Tensor) -> Tensor:  # noqa: ANN401
        qkv, average, marks, from_queries, from_marks, inverse, values, mixed, *steps = (
            ctx.saved_tensors
        )
        q, k, v = qkv.chunk(3, -1)
        q_mark, k_mark, _ = marks.chunk(3, -1)
        grad_mixed = torch.bmm(from_queries.mT, grad)
        grad_values = torch.bmm(inverse.mT, grad_mixed)
        grad_v = torch.baddbmm(grad, from_marks.mT, grad_values)
        # Of the three softmaxes' arguments.
        by_query = _softmax_backward(torch.bmm(grad, mixed.mT), from_queries)
        by_mark = _softmax_backward(torch.bmm(grad_values, v.mT), from_marks)
        grad_between = _invert_backward(torch.bmm(grad_mixed, values.mT), steps)
        between = _softmax_backward(grad_between, steps[0])
        grad_q_mark = torch.baddbmm(torch.bmm(by_mark, k), between, k_mark)
        grad_k_mark = torch.baddbmm(torch.bmm(by_query.mT, q), between.mT, q_mark)
        direct = torch.cat([torch.bmm(by_query, k_mark), torch.bmm(by_mark.mT, q_mark)], -1)
        through_marks = torch.cat([grad_q_mark, grad_k_mark], -1)
        return torch.cat([torch.baddbmm(direct, average.mT, through_marks), grad_v], -1)


@lru_cache(maxsize=32)
@torch.inference_mode(False)  # what is kept must serve training as well
def _averaging(positions: int, landmarks: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the matrix (landmarks, positions) of means over runs of rows, over sqrt(positions).

    Where there are fewer positions than landmarks, each is one; where the number of landmarks does
    not divide that of positions, runs overlap.
    """
    count = min(landmarks, positions)
    matrix = torch.zeros(count, positions, dtype=torch.float64)
    for i in range(count):
        start, end = i * positions // count, -(-(i + 1) * positions // count)
        matrix[i, start:end] = 1 / ((end - start) * math.sqrt(positions))
    return matrix.to(device, dtype)


def _softmax_backward(grad: Tensor, out: Tensor) -> Tensor:
    """Take a gradient through a softmax over the second-to-last axis."""
    return torch.ops.aten._softmax_backward_data(grad, out, -2, out.dtype)


def pseudo_inverse(matrix: Tensor, iterations: int) -> Tensor:
    """Approximate the Moore-Penrose inverse (Razavi et al. 2014).

    It iterates V ← ¼V(13I − KV(15I − KV(7I − KV))). The start
    Kᵀ/(largest column sum · largest row sum) makes the iteration converge for any K.

    Example:
        >>> pseudo_inverse(torch.eye(2)[None] * 2, 8)[0].tolist()
        [[0.5, 0.0], [0.0, 0.5]]
    """
    return _invert(matrix, iterations)[0]


def _invert(k: Tensor, iterations: int) -> tuple[Tensor, list[Tensor]]:
    """Return `pseudo_inverse` and what its backward pass needs.

    With X = KV, T₁ = 7I − X, T₂ = 15I − XT₁, T₃ = 13I − XT₂, V' = ¼VT₃.
    """
    size = k.abs()
    row, column = size.sum(-1), size.sum(-2)
    v = k.mT / (row.amax(-1) * column.amax(-1))[:, None, None]
    eye = torch.eye(k.shape[-1], dtype=k.dtype, device=k.device)
    seven, eye = 7 * eye, eye.expand_as(k)
    saved = [k, row, column]
    for _ in range(iterations):
        x = torch.bmm(k, v)
        t1 = seven - x
        t2 = torch.baddbmm(eye, x, t1, beta=15, alpha=-1)
        t3 = torch.baddbmm(eye, x, t2, beta=13, alpha=-1)
        saved += [v, x, t1, t2, t3]
        v = torch.bmm(v, t3).mul_(0.25)
    return v, saved


def _invert_backward(grad: Tensor, saved: Sequence[Tensor]) -> Tensor:
    """Take a gradient through `_invert`."""
    k, row, column, *steps = saved
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
    # The start V = Kᵀ/s with s the largest row sum times the largest column sum; ties share.
    row_max, column_max = row.amax(-1, keepdim=True), column.amax(-1, keepdim=True)
    scale = row_max * column_max
    grad_scale = -(grad * steps[0]).sum((-2, -1)).unsqueeze(-1) / scale
    in_row, in_column = (row == row_max).to(k.dtype), (column == column_max).to(k.dtype)
    by_row = grad_scale * column_max * in_row / in_row.sum(-1, keepdim=True)
    by_column = grad_scale * row_max * in_column / in_column.sum(-1, keepdim=True)
    return (
        grad_k
        + grad.mT / scale.unsqueeze(-1)
        + k.sign() * (by_row.unsqueeze(-1) + by_column.unsqueeze(-2))
    )
