"""S_div: how evenly the prototypes share the images among them."""

from __future__ import annotations

import math

from torch import Tensor

from protoflows.evaluation.estimate import Estimate


def diversity(winner: Tensor, num_prototypes: int) -> Estimate:
    """S_div = H(winning prototype) / log(K·C), from 0 (always the same) to 1 (all as often).

    The standard error is that of the plug-in entropy, √((Σ p log² p − H²)/N).

    Args:
        winner: Winning prototype of each image (`eq:ml`), as any whole number ≥ 0, (N,).
        num_prototypes: Number of prototypes that could win (K·C), at least 2.

    >>> import torch
    >>> diversity(torch.tensor([0, 1, 2, 3]), 4).value
    1.0
    """
    if num_prototypes < 2:
        raise ValueError(f"num_prototypes must be ≥ 2, got {num_prototypes}")
    if winner.ndim != 1 or len(winner) == 0:
        raise ValueError(f"winner must be (N,) with N ≥ 1, got {tuple(winner.shape)}")
    counts = winner.unique(return_counts=True)[1]
    if len(counts) > num_prototypes:
        raise ValueError(
            f"winner holds {len(counts)} prototypes, but num_prototypes is {num_prototypes}"
        )
    share = counts.double() / len(winner)
    entropy = float(-(share * share.log()).sum())
    variance = max(0.0, float((share * share.log().square()).sum()) - entropy**2)
    scale = math.log(num_prototypes)
    return Estimate(entropy / scale, math.sqrt(variance / len(winner)) / scale)
