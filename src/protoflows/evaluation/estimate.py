"""A figure with its standard error, and the few ways in which figures get one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

RESAMPLES = 200
# Counts of a bootstrap held at once: a few tens of megabytes.
_COUNTS_AT_ONCE = 4_000_000


class Estimate(NamedTuple):
    """A figure and its standard error over the images.

    Attributes:
        value: The figure.
        stderr: Standard deviation of `value` over data sets of as many images; NaN where a single
            image tells nothing of it.
    """

    value: float
    stderr: float

    def scaled(self, factor: float) -> Estimate:
        """The figure in another unit."""
        return Estimate(self.value * factor, self.stderr * abs(factor))


def mean_estimate(values: Tensor) -> Estimate:
    """The mean of one number per image, (N,), with s/√N.

    >>> mean_estimate(torch.tensor([1.0, 3.0]))
    Estimate(value=2.0, stderr=1.0)
    """
    if values.ndim != 1 or len(values) == 0:
        raise ValueError(f"values must hold one number per image, got shape {tuple(values.shape)}")
    wide = values.double()
    spread = float(wide.std()) / math.sqrt(len(wide)) if len(wide) > 1 else math.nan
    return Estimate(float(wide.mean()), spread)


def bootstrap_stderr(
    statistic: Callable[[Tensor], Tensor], num: int, seed: int, resamples: int = RESAMPLES
) -> Tensor:
    """Standard deviation of a statistic over resampled data sets.

    Args:
        statistic: How often every image was drawn, (R, N) → the statistic for each, (R, …).
        num: Number of images (N).
        seed: Seed of the resampling.
        resamples: Number of resampled sets.
    """
    generator = torch.Generator().manual_seed(seed)
    found = []
    at_once = max(1, _COUNTS_AT_ONCE // num)
    for first in range(0, resamples, at_once):
        rows = min(at_once, resamples - first)
        drawn = torch.randint(0, num, (rows, num), generator=generator)
        counts = torch.zeros(rows, num, dtype=torch.float64)
        counts.scatter_add_(1, drawn, torch.ones(rows, num, dtype=torch.float64))
        found.append(statistic(counts))
    return torch.cat(found).double().std(0)


def wilson_interval(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's interval for a share: does not collapse where all or none succeed.

    >>> low, high = wilson_interval(1000, 1000)
    >>> round(low, 4), round(high, 4)
    (0.9962, 1.0)
    """
    if not 0 <= successes <= trials or trials < 1:
        raise ValueError(
            f"successes must be from 0 to trials, and trials ≥ 1, got {successes} of {trials}"
        )
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence}")
    from scipy.stats import norm

    z = float(norm.ppf(0.5 + confidence / 2))
    share = successes / trials
    centre = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z * math.sqrt(share * (1 - share) / trials + (z / (2 * trials)) ** 2)
    half /= 1 + z * z / trials
    return max(0.0, centre - half), min(1.0, centre + half)


def check_scores(scores: Tensor, labels: Tensor) -> None:
    """Refuse scores and labels that do not belong together.

    Args:
        scores: (N, C), no NaN.
        labels: (N,), in 0…C − 1.
    """
    if scores.ndim != 2 or len(scores) == 0 or tuple(labels.shape) != (len(scores),):
        raise ValueError(
            "scores must be (N, C) with N ≥ 1 and labels (N,), got "
            f"{tuple(scores.shape)} and {tuple(labels.shape)}"
        )
    if (
        labels.is_floating_point()
        or not 0 <= int(labels.min()) <= int(labels.max()) < scores.shape[1]
    ):
        raise ValueError(
            f"labels must be whole numbers in 0…{scores.shape[1] - 1}, got {labels.dtype} from "
            f"{float(labels.min()):g} to {float(labels.max()):g}; leave unlabelled images out"
        )
    if bool(scores.isnan().any()):
        raise ValueError("scores must hold no NaN")
