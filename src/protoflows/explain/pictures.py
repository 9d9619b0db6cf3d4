"""Pictures of prototypes: the mean's image and samples about it, by the flow's exact inverse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from protoflows.model import ProtoFlow, evaluating
from protoflows.model.sampling import check_prototype

DEFAULT_RADII = (0.0, 0.25, 0.5, 1.0, 2.0)


@dataclass(frozen=True, eq=False)
class PrototypePictures:
    """What a prototype looks like.

    Attributes:
        prototype: (class, index).
        mean: Image of the mean, with what transitions put out at its mean, uint8 (C, H, W).
        radii: Truncation radii, in units of each distribution's standard deviation.
        grid: Samples inside each radius, uint8 (R, S, C, H, W). Column s is one direction from the
            mean, followed outwards from row to row.
        drawn: Samples at the largest radius with what transitions put out drawn as well,
            uint8 (S, C, H, W).
    """

    prototype: tuple[int, int]
    mean: Tensor
    radii: tuple[float, ...]
    grid: Tensor
    drawn: Tensor


@torch.no_grad()
def picture_prototype(
    model: ProtoFlow,
    prototype: tuple[int, int],
    *,
    radii: Sequence[float] = DEFAULT_RADII,
    samples: int = 6,
    seed: int = 0,
    batch_size: int = 256,
) -> PrototypePictures:
    """Decode a prototype's mean and truncated samples (a truncated Gaussian, not a clipped one).

    Args:
        model: The model.
        prototype: (class, index).
        radii: Truncation radii.
        samples: Samples per radius (S).
        seed: Of the samples.
        batch_size: Latents decoded at once.
    """
    label, index = prototype
    check_prototype(model.mixtures, label, index)
    if not radii or any(not radius >= 0 for radius in radii):
        raise ValueError(f"radii must be numbers ≥ 0, got {tuple(radii)}")
    if samples < 1:
        raise ValueError(f"samples must be ≥ 1, got {samples}")
    # The same seed for every radius: the draw is an inverted distribution function, so the same
    # uniform numbers give the same directions, further out.
    latents = [
        model.draw_latents(samples, label=label, prototype=index, truncation=r, seed=seed).latent
        for r in radii
    ]
    with evaluating(model):
        grid = torch.cat(
            [
                model.decode_latent(z, temperature=0.0).cpu()
                for z in torch.cat(latents).split(batch_size)
            ]
        )
        drawn = model.decode_latent(latents[-1], seed=seed).cpu()
    mean = model.prototype_mean_image(label, index).cpu()
    return PrototypePictures(
        (label, index), mean, tuple(float(r) for r in radii),
        grid.unflatten(0, (len(latents), samples)), drawn,
    )  # fmt: skip


def living_prototypes(model: ProtoFlow, label: int | None = None) -> list[tuple[int, int]]:
    """All prototypes (class, index) that are switched on, of one class or of all."""
    pairs = [(int(c), int(k)) for c, k in model.mixtures.mask.nonzero().tolist()]
    return pairs if label is None else [pair for pair in pairs if pair[0] == label]


def prototype_title(model: ProtoFlow, prototype: tuple[int, int]) -> str:
    """What a prototype is called: the name that somebody gave it, or its class and number."""
    c, k = prototype
    name = model.config.prototype_names.get((c, k), "")
    plain = f"{model.config.class_names[c]} · prototype {k}"
    return f"{name} ({plain})" if name else plain
