"""Prototypes of two trainings paired off: does another seed find the same ones?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from protoflows.model import ProtoFlow, evaluating, image_seeds
from protoflows.prototypes import modified_hellinger


@dataclass(frozen=True, eq=False)
class PrototypeMatches:
    """Pairs of prototypes of the same class in two models.

    Attributes:
        pairs: (class, index in the first, index in the second), (M, 3).
        cost: What each pair differs by, from 0 (the same) to 1, (M,).
        chance: Mean cost of all pairs in the same class, (M,): what pairing at random would give.
        by: "image" or "explained".
    """

    pairs: Tensor
    cost: Tensor
    chance: Tensor
    by: Literal["image", "explained"]


@torch.no_grad()
def match_prototypes(
    first: ProtoFlow,
    second: ProtoFlow,
    *,
    images: Tensor | None = None,
    samples: int = 32,
    seed: int = 0,
    batch_size: int = 256,
) -> PrototypeMatches:
    """Pair prototypes within classes so that the total cost is least (Hungarian algorithm).

    Latents of two flows have nothing in common, so they are compared by what they mean in images.
    Without `images`, the cost is the modified Hellinger divergence (`eq:hell`) between Gaussians
    fitted to the pixels of samples of both; with them, 1 − |A ∩ B| / |A ∪ B| for the sets of images
    that both explain.

    Args:
        first: A model.
        second: Another one of the same classes and image shape.
        images: Images to be explained, uint8 (N, C, H, W), for instance a test set.
        samples: Samples of each prototype that are drawn without `images`.
        seed: Of samples and noise.
        batch_size: Images per pass.
    """
    a, b = first.config, second.config
    if a.num_classes != b.num_classes or a.flow.image_shape != b.flow.image_shape:
        raise ValueError(
            "second must have the classes and image shape of first, "
            f"{a.num_classes} and {a.flow.image_shape}, got {b.num_classes} and "
            f"{b.flow.image_shape}"
        )
    if images is None:
        if samples < 2:
            raise ValueError(f"samples must be ≥ 2 for a spread to be known, got {samples}")
        pixels = [_pixel_gaussians(m, samples, seed, batch_size) for m in (first, second)]
    else:
        sets = [_explained(m, images, seed, batch_size) for m in (first, second)]
    pairs, costs, chances = [], [], []
    for c in range(a.num_classes):
        rows, columns = (m.mixtures.mask[c].nonzero().flatten().tolist() for m in (first, second))
        if images is None:
            (m1, s1), (m2, s2) = ((mean[c], std[c]) for mean, std in pixels)
            table = modified_hellinger(
                m1[rows][:, None], s1[rows][:, None], m2[columns][None], s2[columns][None]
            )
        else:
            mine, other = sets[0][c][rows].double(), sets[1][c][columns].double()
            both = mine @ other.T
            union = mine.sum(1)[:, None] + other.sum(1) - both
            table = 1 - torch.where(union > 0, both / union.clamp_min(1), 1.0)
        i, j = linear_sum_assignment(table.numpy())
        for row, column in zip(i.tolist(), j.tolist(), strict=True):
            pairs.append([c, rows[row], columns[column]])
            costs.append(float(table[row, column]))
            chances.append(float(table.mean()))
    return PrototypeMatches(
        torch.tensor(pairs), torch.tensor(costs, dtype=torch.float64),
        torch.tensor(chances, dtype=torch.float64), "image" if images is None else "explained",
    )  # fmt: skip


def _pixel_gaussians(
    model: ProtoFlow, samples: int, seed: int, batch_size: int
) -> tuple[Tensor, Tensor]:
    """Mean and spread of the pixels of each prototype's samples, in shares of the range."""
    shape = (*model.mixtures.mask.shape, model.config.flow.dims)
    mean = torch.zeros(shape, dtype=torch.float64)
    std = torch.ones(shape, dtype=torch.float64)
    top = model.config.flow.levels - 1
    with evaluating(model):
        for c, k in model.mixtures.mask.nonzero().tolist():
            draw = int(image_seeds(c * 100_003 + k, 1, 0, seed))
            z = model.draw_latents(samples, label=c, prototype=k, seed=draw).latent
            parts = [model.decode_latent(part, seed=draw).cpu() for part in z.split(batch_size)]
            values = torch.cat(parts).double().flatten(1) / top
            mean[c, k] = values.mean(0)
            # A pixel that is black in all samples has no spread: one level is what we can see.
            std[c, k] = values.std(0).clamp_min(1 / top)
    return mean, std


def _explained(model: ProtoFlow, images: Tensor, seed: int, batch_size: int) -> Tensor:
    """Which images each prototype explains best within its class's share, bool (C, K, N)."""
    mixtures = model.mixtures
    winners = []
    for start in range(0, len(images), batch_size):
        x = images[start : start + batch_size]
        table = model.score(x, seeds=image_seeds(start, len(x), 0, seed)).prototype_log_likelihood
        joint = table + mixtures.log_weights + mixtures.log_prior[:, None]
        winners.append(joint.flatten(1).argmax(1).cpu())
    winner = torch.cat(winners)
    places = torch.arange(mixtures.mask.numel())
    return (winner == places[:, None]).unflatten(0, tuple(mixtures.mask.shape))
