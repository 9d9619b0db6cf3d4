"""Negative log-likelihood of the label."""

from __future__ import annotations

from torch import Tensor

from protoflows.evaluation.estimate import Estimate, check_scores, mean_estimate


def nll(log_proba: Tensor, labels: Tensor) -> Estimate:
    """The mean of −log p(y|x), in nats.

    Args:
        log_proba: Log-probabilities (N, C): probabilities may have underflowed to 0.
        labels: (N,).

    >>> import torch
    >>> round(nll(torch.tensor([[0.5, 0.5]]).log(), torch.tensor([0])).value, 4)
    0.6931
    """
    check_scores(log_proba, labels)
    return mean_estimate(-log_proba.gather(1, labels[:, None])[:, 0])
