"""Latents drawn from the prototypes, to be decoded into images."""

from __future__ import annotations

import operator
from typing import NamedTuple

import torch
from torch import Tensor

from protoflows.prototypes import ClassMixtures, sample_truncated_normal


class DrawnLatents(NamedTuple):
    """Latents and the prototypes that they were drawn from.

    Attributes:
        latent: z, (N, D).
        labels: Classes, int64 (N,).
        prototypes: Prototypes within the classes, int64 (N,).
    """

    latent: Tensor
    labels: Tensor
    prototypes: Tensor


def as_generator(seed: int | torch.Generator | None) -> torch.Generator:
    """A CPU generator from a seed; from torch's global state where None."""
    if isinstance(seed, torch.Generator):
        return seed
    if seed is None:
        seed = int(torch.randint(2**62, ()))
    if not isinstance(seed, int):
        raise ValueError(
            f"seed must be an int, a torch.Generator or None, got {type(seed).__name__}"
        )
    return torch.Generator().manual_seed(seed)


def check_label(mixtures: ClassMixtures, label: int, name: str = "label") -> int:
    """Refuse a class that does not exist."""
    if not is_index(label) or not 0 <= label < mixtures.num_classes:
        raise ValueError(f"{name} must be a class in 0…{mixtures.num_classes - 1}, got {label!r}")
    return int(label)


def check_prototype(mixtures: ClassMixtures, label: int, prototype: int) -> int:
    """Refuse a prototype that does not exist or was switched off."""
    living = mixtures.mask[check_label(mixtures, label)].nonzero().flatten().tolist()
    if not is_index(prototype) or int(prototype) not in living:
        raise ValueError(
            f"prototype must be one that class {label} has ({', '.join(map(str, living))}), "
            f"got {prototype!r}"
        )
    return int(prototype)


def is_index(value: object) -> bool:
    """Whether a value is a whole number, NumPy's and one-element tensors included, but no bool."""
    if isinstance(value, bool):
        return False
    try:
        operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return False
    return True


@torch.no_grad()
def draw_latents(
    mixtures: ClassMixtures,
    num: int,
    label: int | None,
    prototype: int | None,
    truncation: float | None,
    generator: torch.Generator,
) -> DrawnLatents:
    """z = mean + std·e, e standard normal inside the truncation radius (`eq:prototypes`).

    Args:
        mixtures: The prototypes.
        num: How many.
        label: Class; None draws classes from the prior.
        prototype: Prototype of that class; None draws from the mixture's weights.
        truncation: Radius in units of each distribution's standard deviations; None for no limit.
        generator: Source of randomness.
    """
    if num < 0:
        raise ValueError(f"num must be ≥ 0, got {num}")
    if truncation is not None and not truncation >= 0:
        raise ValueError(f"truncation must be a number ≥ 0 or None, got {truncation}")
    if label is None:
        if prototype is not None:
            raise ValueError(
                f"prototype={prototype} needs a label: prototypes are counted within a class"
            )
        labels = _choose(mixtures.log_prior.exp().expand(num, -1), generator)
    else:
        labels = torch.full((num,), check_label(mixtures, label))
    if prototype is None:
        chosen = _choose(mixtures.weights.to("cpu")[labels], generator)
    else:
        assert label is not None
        chosen = torch.full((num,), check_prototype(mixtures, label, prototype))
    mean = mixtures.mean.detach()
    e = sample_truncated_normal(
        (num, mixtures.num_dims), truncation, generator, dtype=mean.dtype, device=mean.device
    )
    latent = mean[labels, chosen] + mixtures.std[labels, chosen] * e
    return DrawnLatents(latent, labels, chosen)


def _choose(probabilities: Tensor, generator: torch.Generator) -> Tensor:
    """One index per row of probabilities (N, M)."""
    if len(probabilities) == 0:
        return torch.zeros(0, dtype=torch.int64)
    table = probabilities.to(generator.device, torch.float32)
    return torch.multinomial(table, 1, generator=generator).flatten().cpu()
