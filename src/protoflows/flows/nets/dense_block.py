"""Densely connected block with a gated 1x1 convolution, written into one buffer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from protoflows.flows.nets.neighbours import rows_of
from protoflows.flows.nets.scratch import scratch
from protoflows.flows.nets.spatial import SpatialGradients, spatial_gradients


class DenseBlock(nn.Module):
    """Layers that each see all earlier channels (DenseNet, Huang et al. 2017), closed by a gate.

    Layer i: 1x1 convolution c → c, ReLU, 3x3 convolution c → growth, ReLU, appended to its input.
    At the end a 1x1 convolution to 3·out channels, in thirds (p, q, r): p + q·sigmoid(r).

    All layers write into one channels-last buffer, and so does their gradient: nothing is
    concatenated, and each 1x1 convolution is one matrix product on a strided view of the buffer.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        depth: Number of layers.
        growth: Channels that each layer adds.

    Example:
        >>> DenseBlock(6, 4, depth=2, growth=8)(torch.zeros(1, 6, 4, 4)).shape
        torch.Size([1, 4, 4, 4])
    """

    def __init__(self, in_channels: int, out_channels: int, depth: int, growth: int) -> None:
        super().__init__()
        if min(in_channels, out_channels, growth) < 1 or depth < 0:
            raise ValueError(
                "a dense block needs positive channels and growth and depth ≥ 0, got "
                f"in_channels={in_channels}, out_channels={out_channels}, depth={depth}, "
                f"growth={growth}"
            )
        widths = [in_channels + i * growth for i in range(depth)]
        self.growth = growth
        self.pointwise = nn.ModuleList(nn.Conv2d(c, c, 1) for c in widths)
        self.spatial = nn.ModuleList(nn.Conv2d(c, growth, 3, padding=1) for c in widths)
        self.gate = nn.Conv2d(in_channels + depth * growth, 3 * out_channels, 1)
        # Kept in the layout that the convolutions compute in: neither weights nor gradients are
        # reordered.
        self.to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, in, H, W) to (N, out, H, W) in the dtype of x, whatever the weights' dtype."""
        weights = [
            p
            for one, three in zip(self.pointwise, self.spatial, strict=True)
            for m in (one, three)
            for p in (m.weight, m.bias)
        ]
        gates = _DenseStack.apply(
            torch.is_grad_enabled(), x, self.gate.weight, self.gate.bias, *weights
        )
        return _Gate.apply(gates)


class _Gate(torch.autograd.Function):
    """Thirds (p, q, r) of the channels → p + q·σ(r).

    With s = σ(r) the gradient of r is the incoming one times q·s·(1 − s). Thirds lie apart in
    memory; vectorised kernels want them together, so q and s are copies.
    """

    @staticmethod
    def forward(ctx: Any, gates: Tensor) -> Tensor:  # noqa: ANN401
        p, q, r = gates.chunk(3, 1)
        q = q.clone(memory_format=torch.channels_last)
        s = r.clone(memory_format=torch.channels_last).sigmoid_()
        ctx.save_for_backward(q, s)
        return torch.addcmul(p, q, s)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # noqa: ANN401
        q, s = ctx.saved_tensors
        with torch.autocast(grad.device.type, enabled=False):
            return torch.cat([grad, grad * s, torch.ops.aten.sigmoid_backward(grad * q, s)], 1)


class _DenseStack(torch.autograd.Function):
    """The layers of a dense block and the gate's convolution.

    Backward by hand, into one gradient buffer.
    """

    @staticmethod
    def forward(ctx: Any, recording: bool, x: Tensor, *weights: Tensor) -> Tensor:  # noqa: ANN401
        n, channels, height, width = x.shape
        # What needs a gradient is the same where none is recorded.
        dtype, keep = x.dtype, recording and any(ctx.needs_input_grad)
        gate_weight, gate_bias, *layers = weights
        buffer = x.new_empty(n, height, width, gate_weight.shape[1]).permute(0, 3, 1, 2)
        buffer[:, :channels] = x
        rows = rows_of(buffer)
        saved: list[Tensor] = []
        for one, one_bias, three, three_bias in _by_layer(layers):
            one, three = one.to(dtype), three.to(dtype)
            size = (len(rows), channels)
            h = scratch("hidden", size, x) if keep else x.new_empty(size)
            torch.addmm(one_bias.to(dtype), rows[:, :channels], one.flatten(1).t(), out=h)
            # What is kept for the backward pass is written by the ReLU, not by the product.
            h = h.relu() if keep else h.relu_()
            h = h.view(n, height, width, channels).permute(0, 3, 1, 2)
            out = torch.conv2d(h, three, three_bias.to(dtype), padding=1)
            # A ReLU, straight into place.
            torch.clamp_min(out, 0, out=buffer[:, channels : channels + len(three)])
            channels += len(three)
            if keep:
                # The converted weights are kept as well: converting them again would cost the
                # backward pass as much as its sums.
                saved += [one, three, h]
        gate_weight = gate_weight.to(dtype)
        if keep:
            ctx.save_for_backward(buffer, gate_weight, *saved)
            ctx.dtypes = [w.dtype for w in weights]
        gates = torch.addmm(gate_bias.to(dtype), rows, gate_weight.flatten(1).t())
        return gates.view(n, height, width, len(gate_bias)).permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        with torch.autocast(grad.device.type, enabled=False):
            return _DenseStack._backward(ctx, grad)

    @staticmethod
    def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        buffer, gate_weight, *saved = ctx.saved_tensors
        n, channels, height, width = buffer.shape
        rows, grad_rows = rows_of(buffer), rows_of(grad)
        dtypes = _by_layer(ctx.dtypes[2:])
        gate_grads = _laid_out(
            [(grad_rows.t() @ rows).view_as(gate_weight), grad_rows.sum(0)], ctx.dtypes[:2]
        )
        total_rows = grad_rows @ gate_weight.flatten(1)
        total = total_rows.view(n, height, width, channels).permute(0, 3, 1, 2)
        after_relu = torch.ops.aten.threshold_backward.grad_input
        grads: list[Tensor] = []
        spatial: SpatialGradients | None = None
        for i in reversed(range(len(dtypes))):
            one, three, h = saved[3 * i : 3 * i + 3]
            end, channels = channels, channels - len(three)
            if spatial is None:
                spatial = spatial_gradients((n, len(three), height, width), grad)
            # Of a ReLU, the output's sign is all that its gradient needs.
            after_relu(total[:, channels:end], buffer[:, channels:end], 0, grad_input=spatial.map)
            grad_h = spatial.of_input(h, three)
            # Ahead of the product that reads h: a plain pass brings it near for less.
            grad_rows = rows_of(after_relu(grad_h, h, 0, grad_input=grad_h))
            found = [
                (grad_rows.t() @ rows[:, :channels]).view_as(one),
                grad_rows.sum(0),
                *spatial.of_weight(h, three),
            ]
            grads[:0] = _laid_out(found, dtypes[i])
            total_rows[:, :channels].addmm_(grad_rows, one.flatten(1))
        return None, total[:, :channels], *gate_grads, *grads


def _laid_out(grads: Sequence[Tensor], dtypes: Sequence[torch.dtype]) -> list[Tensor]:
    """Convert and lay out gradients as their weights lie, in one pass and while they are near."""
    return [
        g.to(dtype, memory_format=torch.channels_last) if g.dim() == 4 else g.to(dtype)
        for g, dtype in zip(grads, dtypes, strict=True)
    ]


_T = TypeVar("_T")


def _by_layer(flat: Sequence[_T]) -> list[Sequence[_T]]:
    """Group a flat list into (1x1 weight, its bias, 3x3 weight, its bias) for each layer."""
    return [flat[i : i + 4] for i in range(0, len(flat), 4)]
