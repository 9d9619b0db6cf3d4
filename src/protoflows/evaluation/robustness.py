"""S_rob: how often an image keeps its most likely prototype when its pixels are disturbed."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from protoflows.evaluation.estimate import Estimate, mean_estimate


class Robustness(NamedTuple):
    """Shares of images that keep their winning prototype (`eq:ml`).

    Attributes:
        score: S_rob: the image with a draw of the flow's noise against the image with normal noise
            of standard deviation 0.2 on [0, 1] (clamped, requantised) and another draw.
        baseline: The same image with those two draws: what the flow's own noise changes.
    """

    score: Estimate
    baseline: Estimate


def robustness(winner: Tensor, winner_second: Tensor, winner_noisy: Tensor) -> Robustness:
    """S_rob and its baseline.

    Args:
        winner: Winning prototype of each image by a first draw, (N,).
        winner_second: By a second draw, (N,).
        winner_noisy: Of the disturbed image, by a second draw, (N,).

    >>> import torch
    >>> a, b, c = torch.tensor([0, 1]), torch.tensor([0, 1]), torch.tensor([0, 2])
    >>> robustness(a, b, c).score.value, robustness(a, b, c).baseline.value
    (0.5, 1.0)
    """
    return Robustness(
        mean_estimate((winner == winner_noisy).double()),
        mean_estimate((winner == winner_second).double()),
    )
