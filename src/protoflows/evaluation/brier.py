"""The Brier score."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import one_hot

from protoflows.evaluation.estimate import Estimate, check_scores, mean_estimate


def brier(proba: Tensor, labels: Tensor) -> Estimate:
    """The mean of Σ_c (p(c|x) − [c = y])², from 0 to 2.

    The sum over all classes, as Brier defined it; with two classes it is twice scikit-learn's
    `brier_score_loss`.

    Args:
        proba: Probabilities (N, C).
        labels: (N,).

    >>> import torch
    >>> brier(torch.tensor([[0.5, 0.5]]), torch.tensor([0])).value
    0.5
    """
    check_scores(proba, labels)
    target = one_hot(labels, proba.shape[1]).to(proba.dtype)
    return mean_estimate((proba - target).square().sum(1))
