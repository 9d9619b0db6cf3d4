"""The two networks that drive affine couplings."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from protoflows.flows.nets.attention import NystromAttention, pointwise
from protoflows.flows.nets.dense_block import DenseBlock
from protoflows.flows.nets.norm import BatchNorm


def _last(conv: nn.Conv2d) -> nn.Conv2d:
    """Start a net's last layer at zero, so that its coupling starts as the identity."""
    nn.init.zeros_(conv.weight)
    if conv.bias is not None:
        nn.init.zeros_(conv.bias)
    return conv


class CouplingNet(nn.Module):
    """The flow's coupling net: a dense block fused with self-attention.

    That of DenseFlow (Grcić et al. 2021): 1x1 convolution to `mid` channels; attention and dense
    block side by side; batch norm, ReLU and a 1x1 convolution fuse them (no residual); 1x1
    convolution to `out_channels`.

    Args:
        in_channels: Channels that are passed through the coupling.
        out_channels: Two for each channel that the coupling changes.
        mid: Width of the net.
        depth: Layers of the dense block.
        growth: Growth of the dense block.
        attention: Whether attention stands beside the dense block.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        mid: int,
        depth: int,
        growth: int,
        attention: bool,
    ) -> None:
        super().__init__()
        self.project_in = nn.Conv2d(in_channels, mid, 1)
        self.dense = DenseBlock(mid, mid, depth, growth)
        self.attention = NystromAttention(mid) if attention else None
        fused = 2 * mid if attention else mid
        self.norm = BatchNorm(fused)
        self.mix = nn.Conv2d(fused, mid, 1, bias=False)
        self.project_out = _last(nn.Conv2d(mid, out_channels, 1))

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """Map (N, in, H, W) to (N, out, H, W)."""
        h = pointwise(self.project_in, x)
        dense = self.dense(h)
        fused = dense if self.attention is None else torch.cat([self.attention(h), dense], 1)
        return pointwise(self.project_out, pointwise(self.mix, self.norm(fused).relu_()))


class ConditionalNet(nn.Module):
    """The dequantiser's coupling net: sees the passed-through half and a context of the image.

    1x1 convolution, h + dense(h), 1x1 convolution.
    """

    def __init__(
        self,
        in_channels: int,
        context_channels: int,
        out_channels: int,
        mid: int,
        depth: int,
        growth: int,
    ) -> None:
        super().__init__()
        self.project_in = nn.Conv2d(in_channels + context_channels, mid, 1)
        self.dense = DenseBlock(mid, mid, depth, growth)
        self.project_out = _last(nn.Conv2d(mid, out_channels, 1))

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """Map (N, in, H, W) and a context of the same size to (N, out, H, W)."""
        if context is None:
            raise ValueError("context is missing: this coupling is conditioned on the image")
        h = pointwise(self.project_in, torch.cat([x, context.to(x.dtype)], 1))
        return pointwise(self.project_out, h + self.dense(h))
