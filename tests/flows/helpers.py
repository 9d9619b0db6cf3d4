"""Small flows away from their start, and exact Jacobians."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from protoflows.flows import DenseFlow, DenseFlowConfig, Noise

TINY = DenseFlowConfig(
    image_shape=(1, 4, 4),
    levels=17,
    units=(2, 1),
    couplings=(1, 2),
    mid_channels=(4, 6),
    noise_growth=2,
    net_depth=2,
    net_growth=3,
    dequantization_channels=4,
    dequantization_depth=1,
    dequantization_growth=3,
    context_growth=2,
)


def perturb(module: nn.Module, seed: int = 1, last: float = 0.3) -> nn.Module:
    """Move every weight away from its start without breaking conditioning.

    Last layers of coupling nets are included.
    """
    generator = torch.Generator().manual_seed(seed)

    def noise(p: Tensor) -> Tensor:
        return torch.randn(p.shape, generator=generator, dtype=p.dtype)

    with torch.no_grad():
        for name, p in module.named_parameters():
            if p.dim() == 2:  # an invertible 1x1 convolution
                p.add_(0.1 * noise(p) / len(p) ** 0.5)
            elif "project_out" in name or "net.2" in name:
                p.add_(last * noise(p) / (p.shape[1] ** 0.5 if p.dim() == 4 else 5))
            else:
                p.add_(0.1 * noise(p) * p.abs().mean().clamp_min(0.3))
        for name, b in module.named_buffers():
            if "running_var" in name:
                b.mul_(1 + 0.2 * torch.rand(b.shape, generator=generator, dtype=b.dtype))
            elif "running_mean" in name:
                b.add_(0.1 * noise(b))
            elif "initialized" in name:
                b.fill_(True)
    return module


def small_flow(config: DenseFlowConfig = TINY, **changes: object) -> DenseFlow:
    """Return a perturbed flow of the given configuration."""
    torch.manual_seed(0)
    flow = DenseFlow(DenseFlowConfig(**{**vars(config), **changes}))
    perturb(flow)
    return flow


def images(config: DenseFlowConfig, num: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(
        0, config.levels, (num, *config.image_shape), generator=generator, dtype=torch.uint8
    )


class GivenNoise(Noise):
    """Noise read off one flat vector per image, in the order in which the flow asks for it."""

    def __init__(self, values: Tensor) -> None:
        super().__init__(len(values), 1.0, 0)
        self.values, self.used = values, 0

    def normal(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        return self._take(shape)

    def uniform(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        return self._take(shape)

    def _take(self, shape: tuple[int, ...]) -> Tensor:
        num = torch.Size(shape).numel()
        self.used += num
        return self.values[:, self.used - num : self.used].unflatten(1, shape)


def log_abs_det(function: object, x: Tensor) -> Tensor:
    """Return log|det ∂f/∂x| of a function of one unbatched tensor, from the autograd Jacobian."""
    jacobian = torch.autograd.functional.jacobian(function, x)
    size = x.numel()
    return torch.linalg.slogdet(jacobian.reshape(size, size)).logabsdet
