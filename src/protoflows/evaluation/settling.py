"""When an image's decision is settled: a sequential rule on the draws made so far."""

from __future__ import annotations

import torch
from torch import Tensor

from protoflows.prototypes.densities import accumulation_dtype

MIN_ROUNDS = 4


def looks(samples: int) -> tuple[int, ...]:
    """Numbers of draws after which the rule is applied: 4, 6, 8, 12, 16, 24, … below `samples`.

    >>> looks(20)
    (4, 6, 8, 12, 16)
    """
    found, step = [], MIN_ROUNDS
    while step < samples:
        found.append(step)
        if 3 * step // 2 < samples:
            found.append(3 * step // 2)
        step *= 2
    return tuple(found)


class Settling:
    """Says which images of a batch would keep their class if all `samples` draws were made.

    After n of S draws the best class b leads a class c by the mean gap g = mean_s(l_b − l_c), with
    l the logits of a draw. The gap after all draws differs from it by a zero-mean error of variance
    σ²(1/n − 1/S), σ² that of a draw's gap, so the lead will last at confidence 1 − α where

        g > t_{n−1}(1 − α/J) σ √(1/n − 1/S),

    with Student's t for the σ that is estimated from the same n draws. It is asked of every class
    c. J, the number of looks, spends α evenly over them (union bound), so that stopping at the
    first success errs no more often than α, as far as gaps are normal.

    Draws of different classes move together, so the gaps' variances are taken directly: means and
    squares of l_c − l_r are kept, where r leads after the first draw. If the lead passes to b ≠ r,
    σ(l_b − l_c) ≤ σ(l_b − l_r) + σ(l_c − l_r) bounds what was not kept. Memory is (N, C).

    Args:
        log_prior: log p(c), (C,), added to logits where classes are compared.
        num: Images of the batch.
        samples: Draws of the full protocol (S).
        confidence: 1 − α.
    """

    def __init__(self, log_prior: Tensor, num: int, samples: int, confidence: float) -> None:
        if not 0.5 < confidence < 1:
            raise ValueError(f"adaptive must be above 0.5 and below 1, got {confidence}")
        from scipy.stats import t

        self.looks = looks(samples)
        level = 1 - (1 - confidence) / max(1, len(self.looks))
        self._factor = {
            n: float(t.ppf(level, n - 1)) * (1 / n - 1 / samples) ** 0.5 for n in self.looks
        }
        shape = (num, len(log_prior))
        self._log_prior = log_prior
        self._reference = torch.zeros(num, dtype=torch.int64, device=log_prior.device)
        self._mean = log_prior.new_zeros(shape, dtype=accumulation_dtype(log_prior.device))
        self._squares = torch.zeros_like(self._mean)

    def add(self, index: Tensor, logits: Tensor, draw: int) -> None:
        """Take in draw number `draw` (from 0), (M, C), of the images at `index`, (M,)."""
        logits = logits.to(self._mean.dtype)
        if draw == 0:
            self._reference[index] = (logits + self._log_prior).argmax(1)
        gap = logits - logits.gather(1, self._reference[index, None])
        before = gap - self._mean[index]
        mean = self._mean[index] + before / (draw + 1)
        self._mean[index] = mean
        self._squares[index] += before * (gap - mean)

    def settled(self, index: Tensor, draws: int) -> Tensor:
        """Which of the images at `index` are settled after `draws`, one of `looks`; bool (M,)."""
        lead = self._mean[index] + self._log_prior
        std = (self._squares[index] / (draws - 1)).sqrt()
        best = lead.argmax(1, keepdim=True)
        # σ of the reference itself is 0: the sum is exact where it still leads.
        bound = self._factor[draws] * (std + std.gather(1, best))
        wins = lead.gather(1, best) - lead > bound
        return wins.scatter(1, best, True).all(1)
