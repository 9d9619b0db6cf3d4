"""Densely connected block with a gated 1x1 convolution, written into one buffer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


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
        gates = _DenseStack.apply(x, self.gate.weight, self.gate.bias, *weights)
        p, q, r = gates.chunk(3, 1)
        return torch.addcmul(p, q, r.sigmoid())


def _rows(x: Tensor) -> Tensor:
    """View a channels-last map (N, C, H, W), or a channel slice of one, as a matrix (N·H·W, C)."""
    return x.permute(0, 2, 3, 1).flatten(0, 2)


class _DenseStack(torch.autograd.Function):
    """The layers of a dense block and the gate's convolution.

    Backward by hand, into one gradient buffer.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, *weights: Tensor) -> Tensor:  # noqa: ANN401
        n, channels, height, width = x.shape
        ctx.dtypes = [w.dtype for w in weights]
        gate_weight, gate_bias, *layers = [w.to(x.dtype) for w in weights]
        buffer = x.new_empty(n, height, width, gate_weight.shape[1]).permute(0, 3, 1, 2)
        buffer[:, :channels] = x
        rows = _rows(buffer)
        hidden: list[Tensor] = []
        for one, one_bias, three, three_bias in _by_layer(layers):
            h = torch.addmm(one_bias, rows[:, :channels], one.flatten(1).t()).relu_()
            h = h.view(n, height, width, channels).permute(0, 3, 1, 2)
            hidden.append(h)
            out = torch.conv2d(h, three, three_bias, padding=1)
            # A ReLU, straight into place.
            torch.clamp_min(out, 0, out=buffer[:, channels : channels + len(three)])
            channels += len(three)
        # The converted weights are kept: converting them again would cost the backward pass as
        # much as its sums.
        ctx.save_for_backward(buffer, gate_weight, *layers, *hidden)
        ctx.depth = len(hidden)
        gates = torch.addmm(gate_bias, rows, gate_weight.flatten(1).t())
        return gates.view(n, height, width, len(gate_bias)).permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        with torch.autocast(grad.device.type, enabled=False):
            return _DenseStack._backward(ctx, grad)

    @staticmethod
    def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        buffer, gate_weight, *saved = ctx.saved_tensors
        layers, hidden = saved[: 4 * ctx.depth], saved[4 * ctx.depth :]
        n, channels, height, width = buffer.shape
        rows, grad_rows = _rows(buffer), _rows(grad)
        grads: list[Tensor] = [(grad_rows.t() @ rows).view_as(gate_weight), grad_rows.sum(0)]
        total = (
            (grad_rows @ gate_weight.flatten(1))
            .view(n, height, width, channels)
            .permute(0, 3, 1, 2)
        )
        total_rows = _rows(total)
        layer_grads: list[Tensor] = []
        for h, (one, _, three, _) in zip(
            reversed(hidden), reversed(_by_layer(layers)), strict=True
        ):
            end, channels = channels, channels - len(three)
            # Of a ReLU, the output's sign is all that its gradient needs.
            grad_out = torch.ops.aten.threshold_backward(
                total[:, channels:end], buffer[:, channels:end], 0
            )
            grad_h, grad_three, grad_three_bias = torch.ops.aten.convolution_backward(
                grad_out.contiguous(memory_format=torch.channels_last),
                h,
                three,
                [len(three)],  # the bias's shape
                [1, 1],  # stride
                [1, 1],  # padding
                [1, 1],  # dilation
                False,  # transposed
                [0, 0],  # output padding
                1,  # groups
                [True, True, True],  # gradients of input, weight and bias
            )
            grad_h = _rows(torch.ops.aten.threshold_backward(grad_h, h, 0))
            grad_one = (grad_h.t() @ rows[:, :channels]).view_as(one)
            total_rows[:, :channels].addmm_(grad_h, one.flatten(1))
            layer_grads[:0] = [grad_one, grad_h.sum(0), grad_three, grad_three_bias]
        grads += layer_grads
        return (
            total[:, :channels],
            *(g.to(dtype) for g, dtype in zip(grads, ctx.dtypes, strict=True)),
        )


def _by_layer(weights: list[Tensor]) -> list[list[Tensor]]:
    """Group a flat list into (1x1 weight, its bias, 3x3 weight, its bias) for each layer."""
    return [weights[i : i + 4] for i in range(0, len(weights), 4)]
