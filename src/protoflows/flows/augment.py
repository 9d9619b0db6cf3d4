"""Cross-unit coupling: noise channels appended to the features, shaped by all that came before."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from protoflows.flows.chain import recompute
from protoflows.flows.nets.attention import pointwise
from protoflows.flows.nets.spatial import conv3x3
from protoflows.flows.noise import Noise, standard_normal_log_prob


class CrossUnitCoupling(nn.Module):
    """Append e' = μ + exp(s)·e, e ~ N(0, 1), to the features (DenseFlow, Grcić et al. 2021).

    (μ, s) come from a small net that sees what entered all earlier units of the block. The layer
    widens the flow; seen as variational inference over the extra channels it adds
    −log N(e; 0, 1) + Σ s to the bound on log p(x). Its inverse drops the channels: e' is an input
    of the later layers, never needed to undo them.

    Args:
        context_channels: Channels of all that the net sees.
        growth: Channels appended.
        net_dtype: What the net computes in; None: the dtype of its input.
        memory: Whether the net's activations are stored or, in any other mode, computed again.
    """

    def __init__(
        self,
        context_channels: int,
        growth: int,
        net_dtype: torch.dtype | None = None,
        memory: str = "store",
    ) -> None:
        super().__init__()
        self.growth, self.net_dtype, self.memory = growth, net_dtype, memory
        self.net = nn.Sequential(
            nn.Conv2d(context_channels, 4 * context_channels, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(4 * context_channels, 2 * growth, 1),
        )
        last = self.net[2]
        nn.init.zeros_(last.weight)  # type: ignore[arg-type]
        nn.init.zeros_(last.bias)  # type: ignore[arg-type]
        self.to(memory_format=torch.channels_last)  # as it is computed with

    def extra_repr(self) -> str:
        """Describe the layer."""
        return f"growth={self.growth}"

    def location(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """Return (μ, s) of the appended channels given what came before."""
        dtype = self.net_dtype or context.dtype
        first, _, last = self.net
        assert isinstance(first, nn.Conv2d)
        assert isinstance(last, nn.Conv2d)
        assert first.bias is not None
        h = conv3x3(context.to(dtype), first.weight, first.bias).relu_()
        out = pointwise(last, h).to(context.dtype)
        mean, raw = out.chunk(2, 1)
        return mean, 2 * torch.tanh(raw / 2)

    def forward(self, x: Tensor, context: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
        """Return the widened features and this layer's term of the bound, (N,)."""
        mean, s = (
            recompute(self.location, context) if self.memory != "store" else self.location(context)
        )
        e = noise.normal(tuple(mean.shape[1:]), like=mean).contiguous(
            memory_format=torch.channels_last
        )
        appended = torch.addcmul(mean, s.exp(), e)
        return torch.cat([x, appended], 1), s.flatten(1).sum(1) - standard_normal_log_prob(e)

    def inverse(self, z: Tensor) -> Tensor:
        """Drop the appended channels."""
        return z[:, : z.shape[1] - self.growth]
