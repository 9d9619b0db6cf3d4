"""Closed-form (expectation-maximisation) updates of the mixtures, full-batch or stepwise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from protoflows.prototypes.densities import accumulation_dtype, gaussian_log_prob
from protoflows.prototypes.initialize import check_labels
from protoflows.prototypes.mixture import ClassMixtures

# Images of one class handled at once.
_CHUNK = 4096
# A prototype that explains less than this share of its class keeps its mean and std, and its
# weight does not fall lower: the log of the weight stays finite, and it can come back.
_MIN_SHARE = 1e-8


@dataclass(frozen=True)
class EMStatistics:
    """What an E-step found; sums over images, so statistics of parts add up to those of the whole.

    Moments are taken about the mixtures' current means, which keeps them small and exact. To add
    over processes, all-reduce every tensor of `tensors()` in place.

    Attributes:
        count: (C, K), expected number of images of each prototype.
        first: (C, K, D), expected sum of z - mean.
        second: (C, K, D), expected sum of (z - mean)^2.
        log_likelihood: (), summed log p(z | y), in nats, before any update.
        num_images: (), labelled images seen.
    """

    count: Tensor
    first: Tensor
    second: Tensor
    log_likelihood: Tensor
    num_images: Tensor

    def tensors(self) -> tuple[Tensor, ...]:
        """All sums, for an in-place all-reduce."""
        return (self.count, self.first, self.second, self.log_likelihood, self.num_images)

    def __add__(self, other: EMStatistics) -> EMStatistics:
        """Statistics of both sets of images together."""
        pairs = zip(self.tensors(), other.tensors(), strict=True)
        return EMStatistics(*(a + b for a, b in pairs))


class EMHistory(NamedTuple):
    """How `fit_em` went.

    Attributes:
        log_likelihood: mean log p(z | y) per image before each step, and after the last.
        converged: whether the last step gained less than the tolerance.
    """

    log_likelihood: tuple[float, ...]
    converged: bool


@torch.no_grad()
def em_statistics(mixtures: ClassMixtures, z: Tensor, labels: Tensor) -> EMStatistics:
    """E-step: sufficient statistics of labelled embeddings under the current mixtures.

    Args:
        mixtures: the mixtures, left as they are.
        z: latents, (N, D) or (N, c, h, w).
        labels: (N,) class numbers; images with -1 are left out.
    """
    points = mixtures.flatten(z)
    labels = check_labels(labels, len(points), mixtures.num_classes).to(points.device)
    dtype = accumulation_dtype(points.device)
    zeros = torch.zeros(mixtures.mean.shape, dtype=dtype, device=points.device)
    count, first, second = zeros[..., 0].clone(), zeros, zeros.clone()
    log_likelihood = count.new_zeros(())
    std, log_weights = mixtures.std, mixtures.log_weights.to(dtype)
    for c in labels[labels >= 0].unique().tolist():
        own = (labels == c).nonzero().flatten()
        for rows in own.split(_CHUNK):
            batch = points[rows]
            table = gaussian_log_prob(batch, mixtures.mean[c], std[c]) + log_weights[c]
            log_likelihood += table.logsumexp(dim=1).sum()
            share = table.softmax(dim=1)
            _add_moments(share, batch.to(dtype), mixtures.mean[c].to(dtype), first[c], second[c])
            count[c] += share.sum(dim=0)
    return EMStatistics(count, first, second, log_likelihood, count.sum())


def _add_moments(share: Tensor, z: Tensor, mean: Tensor, first: Tensor, second: Tensor) -> None:
    """Add sum_n share (z - mean)^j for j = 1, 2, from products centred on the average mean."""
    centre = mean.mean(dim=0)
    z, mean = z - centre, mean - centre
    total = share.sum(dim=0)[:, None]
    s1 = share.T @ z
    first += s1 - mean * total
    second += share.T @ z.square() - mean * (2 * s1 - mean * total)


@torch.no_grad()
def apply_statistics(
    mixtures: ClassMixtures, statistics: EMStatistics, momentum: float = 0.0
) -> None:
    """M-step, in place, with the old mixtures as `momentum` of the statistics.

    A mixture stands for statistics of its own: per image of a class, weight pi_k, first moment 0
    and second moment pi_k std_k^2 about its means. Stepwise EM blends these with the batch's
    (divided by the class's images) and reads the new weights, means and variances off the blend.
    With momentum 0 this is ordinary EM. Classes without images stay as they are; so do the means
    and stds of masked prototypes and of those that next to no image belongs to.

    Args:
        mixtures: the mixtures that the statistics were taken under.
        statistics: from `em_statistics`, added up over batches or processes.
        momentum: share of the old statistics kept, in [0, 1).
    """
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum must be at least 0 and below 1, got {momentum}")
    if statistics.first.shape != mixtures.mean.shape:
        raise ValueError(
            f"statistics must have shape {tuple(mixtures.mean.shape)}, "
            f"got {tuple(statistics.first.shape)}"
        )
    dtype = statistics.count.dtype
    images = statistics.count.sum(dim=1, keepdim=True)
    seen = images > 0
    rate = (1 - momentum) / images.clamp_min(torch.finfo(dtype).tiny)
    old_share, old_std = mixtures.weights.to(dtype), mixtures.std.to(dtype)
    share = momentum * old_share + rate * statistics.count
    moved = (seen & mixtures.mask & (share > _MIN_SHARE))[..., None]
    divisor = share.clamp_min(_MIN_SHARE)[..., None]
    step = rate[..., None] * statistics.first / divisor
    second = momentum * old_share[..., None] * old_std.square()
    second = (second + rate[..., None] * statistics.second) / divisor
    floor = mixtures.config.min_std
    std = (second - step.square()).clamp_min(floor**2).sqrt()
    logits = torch.where(seen & mixtures.mask, share.clamp_min(_MIN_SHARE).log(), mixtures.logits)
    mixtures.set_mixture(
        torch.where(moved, mixtures.mean.to(dtype) + step, mixtures.mean.to(dtype)),
        torch.where(moved, std, old_std),
        logits,
        mixtures.mask,
    )


def em_step(
    mixtures: ClassMixtures, z: Tensor, labels: Tensor, momentum: float | None = None
) -> float:
    """One EM update on a batch, in place, without autograd.

    Args:
        mixtures: the mixtures.
        z: latents, (N, D) or (N, c, h, w).
        labels: (N,) class numbers; images with -1 are left out.
        momentum: share of the old statistics kept; `config.em_momentum` when None.

    Returns:
        Mean log p(z | y) per labelled image before the update; NaN without labelled images.
    """
    statistics = em_statistics(mixtures, z, labels)
    momentum = mixtures.config.em_momentum if momentum is None else momentum
    apply_statistics(mixtures, statistics, momentum)
    return float(statistics.log_likelihood / statistics.num_images)


def fit_em(
    mixtures: ClassMixtures,
    z: Tensor,
    labels: Tensor,
    *,
    max_steps: int = 100,
    tolerance: float = 1e-4,
) -> EMHistory:
    """Full-batch EM until a step gains less than `tolerance`; the likelihood never falls.

    Args:
        mixtures: the mixtures, changed in place; initialise them first.
        z: latents, (N, D) or (N, c, h, w).
        labels: (N,) class numbers; images with -1 are left out.
        max_steps: most updates made.
        tolerance: gain in mean log-likelihood per image (nats) that counts as none.
    """
    if max_steps < 1:
        raise ValueError(f"max_steps must be at least 1, got {max_steps}")
    check_labels(labels, len(z), mixtures.num_classes)
    if not bool((labels >= 0).any()):
        raise ValueError("labels must name at least one class, got only -1 (unlabelled)")
    history: list[float] = []
    while True:
        statistics = em_statistics(mixtures, z, labels)
        history.append(float(statistics.log_likelihood / statistics.num_images))
        converged = len(history) > 1 and history[-1] - history[-2] < tolerance
        if converged or len(history) > max_steps:
            return EMHistory(tuple(history), converged)
        apply_statistics(mixtures, statistics)
