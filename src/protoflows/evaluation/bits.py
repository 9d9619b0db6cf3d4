"""Bits per dimension, three ways, each with what it counts."""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

from protoflows.evaluation.estimate import Estimate, mean_estimate


class Bits(NamedTuple):
    """−log2 of a density, per dimension and per image.

    Attributes:
        marginal: −log2 p(x) per dimension, marginal over classes, by the importance-weighted bound
            log p(x) ≥ log mean_s p_s(x): the honest figure.
        mean_bound: The same by the mean of one-draw bounds, which is looser.
        best_class: −log2 p(x|c) of the class of the highest mean, its mean over draws: what the
            published code counts. No density: it forgets the class priors, up to log2 C per image.
        per_image: `marginal` times `dims`.
        dims: Values per image that the bits are shared out to (C·H·W; channels that were repeated
            count as often).
    """

    marginal: Estimate
    mean_bound: Estimate
    best_class: Estimate
    per_image: Estimate
    dims: int


def bits(
    log_prob_importance: Tensor, log_prob_mean: Tensor, log_prob_classes: Tensor, dims: int
) -> Bits:
    """Bits from log-densities of the unaugmented images, in nats.

    Args:
        log_prob_importance: log p(x), log-mean-exp over draws, (N,).
        log_prob_mean: log p(x), mean over draws, (N,).
        log_prob_classes: log p(x|c), mean over draws, (N, C).
        dims: Values per image.
    """
    if dims < 1:
        raise ValueError(f"dims must be ≥ 1, got {dims}")
    per_image = bits_per_image(log_prob_importance)
    return Bits(
        per_image.scaled(1 / dims),
        bits_per_image(log_prob_mean).scaled(1 / dims),
        bits_per_image(log_prob_classes.amax(1)).scaled(1 / dims),
        per_image,
        dims,
    )


def bits_per_image(log_prob: Tensor) -> Estimate:
    """The mean of −log2 p from log p in nats, (N,).

    >>> import torch
    >>> round(bits_per_image(torch.tensor([0.25, 0.25]).log()).value, 6)
    2.0
    """
    return mean_estimate(log_prob).scaled(-1 / math.log(2))
