"""From integers to continuous values: uniform and variational dequantisation."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protoflows.flows.base import Bijection
from protoflows.flows.chain import Chain, recompute
from protoflows.flows.config import DenseFlowConfig
from protoflows.flows.conv1x1 import InvertibleConv
from protoflows.flows.coupling import AffineCoupling, net_dtype_of
from protoflows.flows.nets import ConditionalNet, DenseBlock
from protoflows.flows.noise import Noise, standard_normal_log_prob
from protoflows.flows.reshape import channels_to_space


class Dequantized(NamedTuple):
    """y in [−½, ½], the noise u that made it, and this step's term of the bound."""

    y: Tensor
    noise: Tensor
    log_det: Tensor


class Dequantization(nn.Module):
    """y = (x + u)/levels − ½ with u in [0, 1].

    The term is −(number of values)·log levels − log q(u|x). Inverting needs u:
    round(levels·(y + ½) − u) is exact whenever y is right to within half a level, whereas
    floor(levels·(y + ½)) fails for every u within rounding error of 0 or 1.
    """

    def __init__(self, levels: int) -> None:
        super().__init__()
        self.levels = levels

    def extra_repr(self) -> str:
        """Describe the layer."""
        return f"levels={self.levels}"

    def draw(self, x: Tensor, noise: Noise, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return u and −log q(u|x) for integer images x."""
        raise NotImplementedError(f"{type(self).__name__} draws no noise")

    def forward(self, x: Tensor, noise: Noise, like: Tensor) -> Dequantized:
        """Make integer images x continuous, in the dtype and on the device of `like`."""
        u, term = self.draw(x, noise, like)
        y = (x.to(like.dtype) + u) / self.levels - 0.5
        return Dequantized(y, u, term - math.prod(x.shape[1:]) * math.log(self.levels))

    def inverse(self, y: Tensor, noise: Tensor | None = None) -> Tensor:
        """Return the uint8 image of y: by rounding where the noise is known, else by floor."""
        scaled = (y + 0.5) * self.levels
        values = scaled.floor() if noise is None else (scaled - noise).round()
        return values.clamp(0, self.levels - 1).to(torch.uint8)


class UniformDequantization(Dequantization):
    """u ~ U[0, 1), log q(u|x) = 0 (Theis et al. 2016)."""

    def draw(self, x: Tensor, noise: Noise, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return u and 0."""
        u = noise.uniform(tuple(x.shape[1:]), like=like).contiguous(
            memory_format=torch.channels_last
        )
        return u, like.new_zeros(len(x))


class SigmoidOf(Bijection):
    """u = sigmoid(v), log-det Σ(−softplus(−v) − softplus(v)).

    Example:
        >>> SigmoidOf()(torch.zeros(1, 1, 1, 1))[0].item()
        0.5
    """

    def forward(self, x: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Map v to u."""
        return x.sigmoid(), (-F.softplus(-x) - F.softplus(x)).flatten(1).sum(1)

    def inverse(self, z: Tensor, context: Tensor | None = None) -> Tensor:
        """Map u to v = log u − log(1 − u)."""
        return torch.logit(z)


class VariationalDequantization(Dequantization):
    """u drawn from a conditional flow given the image (Flow++, Ho et al. 2019).

    A normal of learned location and scale over 4C channels at half the size; 1x1 convolutions and
    couplings that see a context of the image; unsqueeze; sigmoid.
    log q(u|x) = log base − Σ log-dets.
    """

    def __init__(self, config: DenseFlowConfig) -> None:
        super().__init__(config.levels)
        channels, width = config.image_shape[0], config.dequantization_channels
        depth, growth = config.dequantization_depth, config.context_growth
        self.context = nn.Sequential(
            DenseBlock(channels, width, depth, growth),
            nn.Conv2d(width, width, 2, stride=2),
            DenseBlock(width, width, depth, growth),
        )
        self.loc = nn.Parameter(torch.zeros(4 * channels))
        self.log_scale = nn.Parameter(torch.zeros(4 * channels))
        self.net_dtype = net_dtype_of(config)
        layers: list[Bijection] = []
        for _ in range(config.dequantization_couplings):
            net = ConditionalNet(
                2 * channels, width, 4 * channels, width, depth, config.dequantization_growth
            )
            layers += [InvertibleConv(4 * channels), AffineCoupling(net, self.net_dtype)]
        self.chain = Chain([*layers, InvertibleConv(4 * channels)], config.memory)
        self.sigmoid = SigmoidOf()

    def describe(self, x: Tensor, like: Tensor) -> Tensor:
        """Return the context map of integer images x, at half their size."""
        scaled = (2 * x.to(like.dtype) / (self.levels - 1) - 1).contiguous(
            memory_format=torch.channels_last
        )
        h = scaled.to(self.net_dtype or like.dtype)
        first, down, second = self.context
        assert isinstance(down, nn.Conv2d)
        assert down.bias is not None
        h = torch.conv2d(first(h), down.weight.to(h.dtype), down.bias.to(h.dtype), stride=2)
        return second(h).to(like.dtype)

    def draw(self, x: Tensor, noise: Noise, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return u and −log q(u|x)."""
        context = (
            self.describe(x, like)
            if self.chain.memory == "store"
            else recompute(self.describe, x, like)
        )
        shape = (len(self.loc), x.shape[-2] // 2, x.shape[-1] // 2)
        e = noise.normal(shape, like=like).contiguous(memory_format=torch.channels_last)
        v = self.loc.view(1, -1, 1, 1) + self.log_scale.exp().view(1, -1, 1, 1) * e
        log_base = standard_normal_log_prob(e) - shape[1] * shape[2] * self.log_scale.sum()
        v, log_det = self.chain(v, context)
        u, log_det_sigmoid = self.sigmoid(channels_to_space(v))
        return u, log_det + log_det_sigmoid - log_base
