"""The whole flow: from uint8 images to a latent with its likelihood terms, and back, exactly."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from protoflows.flows.actnorm import ActNorm
from protoflows.flows.augment import CrossUnitCoupling
from protoflows.flows.base import Bijection
from protoflows.flows.chain import Chain
from protoflows.flows.config import DenseFlowConfig
from protoflows.flows.conv1x1 import InvertibleConv
from protoflows.flows.coupling import AffineCoupling, net_dtype_of
from protoflows.flows.dequantize import (
    Dequantization,
    UniformDequantization,
    VariationalDequantization,
)
from protoflows.flows.encoding import Encoding
from protoflows.flows.logit import Logit
from protoflows.flows.nets import CouplingNet, frozen_statistics
from protoflows.flows.noise import Noise, Seed, standard_normal_log_prob
from protoflows.flows.reshape import Padding, SwapHalves, channels_to_space, space_to_channels
from protoflows.flows.transition import Transition


class DenseFlowBlock(nn.Module):
    """Units at one resolution with noise channels appended between them.

    Each unit is a `Chain` of couplings (actnorm, 1x1 convolution, affine coupling, swap). Before
    every unit but the first a `CrossUnitCoupling` widens the features, seeing what entered all
    earlier units.
    """

    def __init__(self, channels: int, config: DenseFlowConfig, index: int) -> None:
        super().__init__()
        self.units = nn.ModuleList()
        self.noise = nn.ModuleList()
        growth, seen = config.noise_growth, 0
        net_dtype = net_dtype_of(config)
        for unit in range(config.units[index]):
            entering = channels
            if unit and growth:
                self.noise.append(CrossUnitCoupling(seen, growth, net_dtype, config.memory))
                channels += growth
            seen += entering
            layers: list[Bijection] = []
            for _ in range(config.couplings[index]):
                net = CouplingNet(
                    (channels + 1) // 2,
                    2 * (channels // 2),
                    config.mid_channels[index],
                    config.net_depth,
                    config.net_growth,
                    config.attention,
                )
                layers += [
                    ActNorm(channels),
                    InvertibleConv(channels),
                    AffineCoupling(net, net_dtype),
                    SwapHalves(),
                ]
            self.units.append(Chain(layers, config.memory))
        self.out_channels = channels

    def forward(self, x: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
        """Map features to wider features of the same size; return them and the terms, (N,)."""
        log_det = x.new_zeros(len(x))
        seen: list[Tensor] = []  # what came into the units so far, before noise was appended there
        for i, unit in enumerate(self.units):
            entering = x
            if i and len(self.noise):
                x, term = self.noise[i - 1](x, torch.cat(seen, 1), noise)
                log_det = log_det + term
            seen.append(entering)
            x, term = unit(x)
            log_det = log_det + term
        return x, log_det

    def inverse(self, z: Tensor) -> Tensor:
        """Undo all units; appended channels are dropped."""
        for i in reversed(range(len(self.units))):
            z = self.units[i].inverse(z)  # type: ignore[operator]
            if i and len(self.noise):
                z = self.noise[i - 1].inverse(z)  # type: ignore[operator]
        return z


class DenseFlow(nn.Module):
    """A normalising flow for images (DenseFlow, Grcić et al. 2021).

    Dequantisation, then blocks of units at ever smaller sizes with transitions between them; the
    coupling nets are dense blocks with attention. `encode` gives the latent and every likelihood
    term but the latent's own, `decode` undoes it exactly. Unconditional density and samples use a
    normal `loc`, `log_scale` per latent channel.

    Args:
        config: What the flow is made of.

    Example:
        >>> flow = DenseFlow(
        ...     DenseFlowConfig((1, 8, 8), 17, (1, 1), (2, 2), (8, 8), net_depth=2, net_growth=8)
        ... ).eval()
        >>> generator = torch.Generator().manual_seed(0)
        >>> x = torch.randint(0, 17, (3, 1, 8, 8), generator=generator).to(torch.uint8)
        >>> enc = flow.encode(x, seed=1)
        >>> torch.equal(flow.decode(enc), x), enc.latent.shape
        (True, torch.Size([3, 8, 2, 2]))
    """

    def __init__(self, config: DenseFlowConfig | None = None) -> None:
        super().__init__()
        self.config = config = config if config is not None else DenseFlowConfig()
        channels, height, width = config.image_shape
        self.padding = Padding(height, width, config.multiple)
        self.dequantization: Dequantization = (
            VariationalDequantization(config)
            if config.dequantization == "variational"
            else UniformDequantization(config.levels)
        )
        self.stretch = Logit(config.logit_alpha) if config.logit_alpha else None
        self.blocks = nn.ModuleList()
        self.transitions = nn.ModuleList()
        channels *= 4
        for index in range(len(config.units)):
            if index:
                self.transitions.append(Transition())
                channels *= 2
            block = DenseFlowBlock(channels, config, index)
            self.blocks.append(block)
            channels = block.out_channels
        self.loc = nn.Parameter(torch.zeros(channels))
        self.log_scale = nn.Parameter(torch.zeros(channels))

    def extra_repr(self) -> str:
        """Describe the flow."""
        return (
            f"image_shape={self.config.image_shape}, latent_shape={self.config.latent_shape}, "
            f"memory={self.config.memory}"
        )

    def compute_in(self, net_dtype: Literal["float32", "bfloat16"]) -> DenseFlow:
        """Let the coupling nets compute in another precision from now on; weights stay.

        bfloat16 trains faster, but only in float32 is decoding exact.
        """
        self.config = replace(self.config, net_dtype=net_dtype)
        for module in self.modules():
            if isinstance(module, AffineCoupling | CrossUnitCoupling | VariationalDequantization):
                module.net_dtype = net_dtype_of(self.config)
        return self

    def encode(self, x: Tensor, *, temperature: float = 1.0, seed: Seed = None) -> Encoding:
        """Map images to latents with one draw of the injected noise.

        At temperature 1, log_det + log p(z) is a one-sample bound on log p(x). At 0 all noise is at
        its mean: a deterministic embedding, whose log_det bounds nothing; nor does it in between.

        Args:
            x: Integer images (N, C, H, W) with values in 0…levels − 1.
            temperature: Shrinks all injected noise towards its mean.
            seed: An int, a `torch.Generator`, one int per image (N,), or None for torch's global
                state.
        """
        self._check_images(x)
        return self(x.to(self.loc.device), Noise(len(x), temperature, seed))

    def forward(self, x: Tensor, noise: Noise) -> Encoding:
        """Map images that are known to be valid, with noise from a given source.

        This is the path that training takes.
        """
        like = self.loc
        with torch.autocast(like.device.type, enabled=False):
            y, u, log_det = self.dequantization(self.padding.add(x), noise, like)
            if self.stretch is not None:
                y, term = self.stretch(y)
                log_det = log_det + term
            z = space_to_channels(y)
            factored: list[Tensor] = []
            for i, block in enumerate(self.blocks):
                if i:
                    z, out, log_prob = self.transitions[i - 1](z)
                    factored.append(out)
                    log_det = log_det + log_prob
                z, term = block(z, noise)
                log_det = log_det + term
        return Encoding(z, log_det, tuple(factored), u)

    @torch.no_grad()
    def decode(self, encoding: Encoding) -> Tensor:
        """Map an encoding back to its uint8 images, pixel for pixel."""
        if len(encoding.factored) != len(self.transitions):
            raise ValueError(
                f"encoding.factored must hold {len(self.transitions)} tensors, "
                f"got {len(encoding.factored)}"
            )
        for i, (out, shape) in enumerate(
            zip(encoding.factored, self._factored_shapes(), strict=True)
        ):
            _check_shape(f"encoding.factored[{i}]", out, (len(encoding.latent), *shape))
        padded = (self.config.image_shape[0], *self.padding.padded)
        noise = encoding.dequantization
        _check_shape("encoding.dequantization", noise, (len(encoding.latent), *padded))
        y = self._undo(encoding.latent, encoding.factored)
        return self.padding.remove(self.dequantization.inverse(y, encoding.dequantization))

    @torch.no_grad()
    def decode_latent(self, z: Tensor, *, temperature: float = 1.0, seed: Seed = None) -> Tensor:
        """Map latents alone to uint8 images.

        What transitions put out is drawn at the temperature (0: its mean).

        Args:
            z: Latents (N, C, h, w) or (N, D).
            temperature: Shrinks what is drawn towards its mean.
            seed: As in `encode`.
        """
        if isinstance(z, Tensor) and z.dim() == 2 and z.shape[1] == self.config.latent_dims:
            z = z.unflatten(1, self.config.latent_shape)
        self._check_latent(z)
        y = self._undo(z, None, Noise(len(z), temperature, seed))
        return self.padding.remove(self.dequantization.inverse(y))

    def base_log_prob(self, z: Tensor) -> Tensor:
        """Return log N(z; loc, exp(log_scale)²), one location and scale per channel, (N,)."""
        self._check_latent(z)
        shape = (1, -1, 1, 1)
        e = (z - self.loc.view(shape)) * torch.exp(-self.log_scale).view(shape)
        return standard_normal_log_prob(e) - z.shape[-2] * z.shape[-1] * self.log_scale.sum()

    def log_prob(self, x: Tensor, *, seed: Seed = None) -> Tensor:
        """Return a one-sample bound on the unconditional log p(x) in nats, (N,)."""
        encoding = self.encode(x, seed=seed)
        return encoding.log_det + self.base_log_prob(encoding.latent)

    @torch.no_grad()
    def sample(self, num: int, *, temperature: float = 1.0, seed: Seed = None) -> Tensor:
        """Draw images from the unconditional density."""
        noise = Noise(num, temperature, seed)
        e = noise.normal(self.config.latent_shape, like=self.loc)
        z = self.loc.view(1, -1, 1, 1) + self.log_scale.exp().view(1, -1, 1, 1) * e
        return self.padding.remove(self.dequantization.inverse(self._undo(z, None, noise)))

    def _undo(
        self, z: Tensor, factored: tuple[Tensor, ...] | None, noise: Noise | None = None
    ) -> Tensor:
        self._check_latent(z)
        if not bool(z.isfinite().all()):
            raise ValueError("latent holds NaN or infinite values: there is no image to decode")
        z = z.to(self.loc)
        with torch.autocast(z.device.type, enabled=False), frozen_statistics():
            for i in reversed(range(len(self.blocks))):
                z = self.blocks[i].inverse(z)  # type: ignore[operator]
                if i:
                    transition = self.transitions[i - 1]
                    assert isinstance(transition, Transition)
                    out = (
                        factored[i - 1]
                        if factored is not None
                        else transition.draw(z, noise or Noise(len(z)))
                    )
                    z = transition.inverse(z, out.to(z))
        y = channels_to_space(z)
        return y if self.stretch is None else self.stretch.inverse(y)

    def _factored_shapes(self) -> list[tuple[int, int, int]]:
        """What each transition puts out, first to last: as much as it lets through."""
        channels, (height, width) = 4 * self.config.image_shape[0], self.padding.padded
        shapes = []
        for units in self.config.units[:-1]:
            channels = 2 * (channels + (units - 1) * self.config.noise_growth)
            height, width = height // 2, width // 2
            shapes.append((channels, height // 2, width // 2))
        return shapes

    def _check_latent(self, z: Tensor) -> None:
        shape = self.config.latent_shape
        if not isinstance(z, Tensor) or z.dim() != 4 or tuple(z.shape[1:]) != shape:
            got = tuple(z.shape) if isinstance(z, Tensor) else type(z).__name__
            raise ValueError(f"latent must have shape (N, {', '.join(map(str, shape))}), got {got}")

    def _check_images(self, x: Tensor) -> None:
        if (
            not isinstance(x, Tensor)
            or x.dim() != 4
            or tuple(x.shape[1:]) != self.config.image_shape
        ):
            got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(
                f"x must have shape (N, {', '.join(map(str, self.config.image_shape))}), got {got}"
            )
        if x.is_floating_point() or x.is_complex() or x.dtype == torch.bool:
            raise ValueError(
                f"x must hold integers in 0…{self.config.levels - 1} (uint8), got {x.dtype}"
            )
        if x.numel() and (int(x.max()) >= self.config.levels or int(x.min()) < 0):
            raise ValueError(
                f"x must hold integers in 0…{self.config.levels - 1}, "
                f"got values from {int(x.min())} to {int(x.max())}"
            )


def _check_shape(name: str, value: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(value.shape) != shape:
        raise ValueError(f"{name} must have shape {shape}, got {tuple(value.shape)}")
    if not bool(value.isfinite().all()):
        raise ValueError(f"{name} holds NaN or infinite values: there is no image to decode")
