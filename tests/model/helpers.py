"""Small models away from their start."""

from __future__ import annotations

import torch
from torch import Tensor

from protoflows.flows import DenseFlowConfig
from protoflows.model import ModelConfig, ProtoFlow
from protoflows.prototypes import PrototypeConfig
from tests.flows.helpers import TINY, images, perturb


def small_model(
    num_classes: int = 3,
    num_prototypes: int = 2,
    flow: DenseFlowConfig = TINY,
    prior: str | tuple[float, ...] = "uniform",
    **changes: object,
) -> ProtoFlow:
    """A perturbed model in eval mode, with unequal prototypes."""
    torch.manual_seed(0)
    config = PrototypeConfig(num_prototypes=num_prototypes, prior=prior)
    model = ProtoFlow(ModelConfig(num_classes, flow, config, **changes))
    perturb(model.flow)
    generator = torch.Generator().manual_seed(5)
    shape = tuple(model.mixtures.mean.shape)
    model.mixtures.set_mixture(
        0.5 * torch.randn(shape, generator=generator),
        0.5 + torch.rand(shape, generator=generator),
        torch.randn(shape[:2], generator=generator),
    )
    return model.eval()


def some_images(num: int, seed: int = 0) -> Tensor:
    return images(TINY, num, seed)
