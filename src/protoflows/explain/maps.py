"""Maps of a model: how far prototypes lie apart, where, and with what weight."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from protoflows.explain.pictures import living_prototypes
from protoflows.model import ProtoFlow
from protoflows.prototypes import pairwise_modified_hellinger
from protoflows.prototypes.otsu import otsu_threshold

_MIN_FOR_TSNE = 4


@dataclass(frozen=True, eq=False)
class PrototypeMap:
    """All P living prototypes, in (class, index) order.

    Attributes:
        prototypes: Their (class, index), P of them.
        divergence: Modified Hellinger divergences (`eq:hell`), (P, P); NaN on the diagonal.
        positions: t-SNE of the means, (P, 2); None for fewer than four prototypes.
        weights: Mixture weights within their classes, (P,).
        threshold: Otsu's threshold of the weights, which splits them into small and large ones;
            None where all are equal.
    """

    prototypes: tuple[tuple[int, int], ...]
    divergence: Tensor
    positions: Tensor | None
    weights: Tensor
    threshold: float | None


@torch.no_grad()
def map_prototypes(
    model: ProtoFlow, *, perplexity: float | None = None, seed: int = 0
) -> PrototypeMap:
    """Compute everything that the maps show.

    Args:
        model: The model.
        perplexity: Of t-SNE, about the number of neighbours that count; at most 30 and a third of
            the prototypes when None.
        seed: Of t-SNE's start.
    """
    mixtures = model.mixtures
    pairs = living_prototypes(model)
    c, k = torch.tensor(pairs).T
    mean = mixtures.mean[c, k].detach().cpu().double()
    divergence = pairwise_modified_hellinger(mean, mixtures.std[c, k].detach().cpu().double())
    divergence.fill_diagonal_(torch.nan)
    weights = mixtures.weights[c, k].detach().cpu().double()
    threshold = otsu_threshold(weights)
    return PrototypeMap(
        tuple(pairs), divergence, _embed(mean, perplexity, seed), weights,
        threshold if math.isfinite(threshold) else None,
    )  # fmt: skip


def _embed(mean: Tensor, perplexity: float | None, seed: int) -> Tensor | None:
    count = len(mean)
    if perplexity is not None and not 0 < perplexity < count:
        raise ValueError(
            f"perplexity must be above 0 and below the number of prototypes, {count}; "
            f"got {perplexity}"
        )
    if count < _MIN_FOR_TSNE:
        return None
    from sklearn.manifold import TSNE

    chosen = min(30.0, max(1.0, (count - 1) / 3)) if perplexity is None else perplexity
    placed = TSNE(2, perplexity=chosen, random_state=seed, init="random", n_jobs=1)
    return torch.from_numpy(np.asarray(placed.fit_transform(mean.numpy()))).double()
