"""Which classes are taken for which."""

from __future__ import annotations

import torch
from torch import Tensor

from protoflows.evaluation.estimate import check_scores


def confusion(scores: Tensor, labels: Tensor) -> Tensor:
    """Numbers of images by label (rows) and predicted class (columns), int64 (C, C).

    Args:
        scores: Probabilities or their logarithms, (N, C).
        labels: (N,).

    >>> confusion(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1])).tolist()
    [[1, 0], [1, 0]]
    """
    check_scores(scores, labels)
    size = scores.shape[1]
    cells = labels * size + scores.argmax(1)
    return torch.bincount(cells.cpu(), minlength=size * size).view(size, size)
