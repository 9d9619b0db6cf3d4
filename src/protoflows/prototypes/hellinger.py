"""The paper's modified Hellinger divergence between Gaussians, and the diversity loss on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from protoflows.prototypes.mixture import ClassMixtures

# Pairs x dimensions handled at once: 16 MB per float32 temporary.
BLOCK_NUMBERS = 1 << 22


def modified_hellinger(mean1: Tensor, std1: Tensor, mean2: Tensor, std2: Tensor) -> Tensor:
    """Modified squared Hellinger divergence of diagonal Gaussians (`eq:hell`), in [0, 1].

    The d-th root in the paper's determinants makes everything an average over dimensions. Using
    (s1^2 + s2^2) / (2 s1 s2) = 1 + (s1 - s2)^2 / (2 s1 s2) for the ratio of the determinants,

        1 - exp(-mean_d [ log1p((s1 - s2)^2 / (2 s1 s2)) / 2 + (m1 - m2)^2 / (4 (s1^2 + s2^2)) ]).

    No determinant is ever formed, so thousands of dimensions neither under- nor overflow; every
    term is a square, so equal Gaussians give exactly 0 with gradient 0.

    Args:
        mean1: means, (..., D).
        std1: standard deviations, (..., D), positive.
        mean2: means, (..., D); leading dimensions broadcast against the first Gaussian's.
        std2: standard deviations, (..., D), positive.

    Returns:
        Divergences over the broadcast leading dimensions.

    >>> m, s = torch.zeros(3), torch.ones(3)
    >>> modified_hellinger(m, s, m + 2.0, s)  # 1 - exp(-4 / 8)
    tensor(0.3935)
    """
    if len({t.shape[-1] if t.ndim else 0 for t in (mean1, std1, mean2, std2)}) != 1:
        raise ValueError(
            "means and stds must share their last dimension, got "
            f"{[tuple(t.shape) for t in (mean1, std1, mean2, std2)]}"
        )
    return -torch.expm1(-_exponent(mean1, std1, mean2, std2) / mean1.shape[-1])


def _exponent(mean1: Tensor, std1: Tensor, mean2: Tensor, std2: Tensor) -> Tensor:
    """Minus the log of the Bhattacharyya coefficient, summed over dimensions."""
    spread = torch.log1p((std1 - std2).square() / (2 * std1 * std2))
    shift = (mean1 - mean2).square() / (std1.square() + std2.square())
    return (0.5 * spread + 0.25 * shift).sum(dim=-1)


def pairwise_modified_hellinger(mean: Tensor, std: Tensor) -> Tensor:
    """All divergences `eq:hell` between P Gaussians: (P, P), symmetric, zero on the diagonal.

    Each pair is computed once and in blocks, so memory stays near P x D (without autograd).

    Args:
        mean: means (P, D).
        std: standard deviations (P, D).
    """
    if mean.ndim != 2 or mean.shape != std.shape:
        raise ValueError(
            f"mean and std must both be (P, D), got {tuple(mean.shape)} and {tuple(std.shape)}"
        )
    count, dims = mean.shape
    block = max(1, BLOCK_NUMBERS // max(1, dims))
    upper = [mean.new_zeros(0)]
    for i in range(count - 1):
        for start in range(i + 1, count, block):
            others = slice(start, start + block)
            upper.append(modified_hellinger(mean[i], std[i], mean[others], std[others]))
    rows, columns = torch.triu_indices(count, count, offset=1, device=mean.device)
    table = mean.new_zeros(count, count).index_put((rows, columns), torch.cat(upper))
    return table + table.T


def diversity_loss(mixtures: ClassMixtures) -> Tensor:
    """Minus the average divergence `eq:hell` between prototypes of one class (`eq:Ldiversity`).

    The paper's sum starts at j = i, whose terms are 0; what is left is each class's average over
    its K (K - 1) / 2 pairs, averaged over classes. That reading carries over to classes that have
    lost prototypes: pairs of living prototypes only, and classes without a pair do not count. With
    no pair at all the loss is 0.

    Args:
        mixtures: the mixtures, whose means and standard deviations receive the gradient.
    """
    mask = mixtures.mask
    i, j = torch.triu_indices(
        mixtures.num_prototypes, mixtures.num_prototypes, offset=1, device=mask.device
    )
    alive = mask[:, i] & mask[:, j]  # (C, pairs)
    classes, pairs = alive.nonzero(as_tuple=True)
    if len(classes) == 0:
        return mixtures.mean.sum() * 0.0
    divergence = _pair_divergence(mixtures.mean, mixtures.std, classes, i[pairs], j[pairs])
    per_class = alive.sum(dim=1)
    share = per_class[classes] * (per_class > 0).sum()
    return -(divergence / share).sum()


def _pair_divergence(mean: Tensor, std: Tensor, classes: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """Divergences of chosen pairs, in blocks of dimensions that the backward pass computes anew.

    Kept for autograd, the temporaries of 4,500 pairs in 5,000 dimensions would take a gigabyte.
    """

    def part(mean: Tensor, std: Tensor) -> Tensor:
        return _exponent(mean[classes, i], std[classes, i], mean[classes, j], std[classes, j])

    dims = mean.shape[-1]
    block = max(1, BLOCK_NUMBERS // len(classes))
    if block >= dims:
        return -torch.expm1(-part(mean, std) / dims)
    total = mean.new_zeros(len(classes))
    for start in range(0, dims, block):
        chosen = slice(start, start + block)
        total = total + checkpoint(part, mean[..., chosen], std[..., chosen], use_reentrant=False)
    return -torch.expm1(-total / dims)
