"""Accuracy, and accuracy among the k best classes."""

from __future__ import annotations

import torch
from torch import Tensor

from protoflows.evaluation.estimate import Estimate, check_scores, mean_estimate


def accuracy(scores: Tensor, labels: Tensor, k: int = 1) -> Estimate:
    """Share of images whose label is among the k classes of the highest score.

    Among equal scores the class of the lower index counts as higher, as in argmax: a model that
    says the same of every class gets no credit for it.

    Args:
        scores: Probabilities, or anything of the same order, (N, C). Prefer logarithms:
            probabilities that have underflowed to 0 are all alike.
        labels: (N,).
        k: Number of classes; more than C is all.

    >>> accuracy(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1])).value
    0.5
    """
    return mean_estimate(hits(scores, labels, k).double())


def hits(scores: Tensor, labels: Tensor, k: int = 1) -> Tensor:
    """Whether each image's label is among its k best classes, bool (N,)."""
    check_scores(scores, labels)
    if k < 1:
        raise ValueError(f"k must be ≥ 1, got {k}")
    own = scores.gather(1, labels[:, None])
    earlier = torch.arange(scores.shape[1], device=scores.device) < labels[:, None]
    ahead = (scores > own) | ((scores == own) & earlier)
    return ahead.sum(1) < k
