"""Expected and maximum calibration error, and the bins that they are made of."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from protoflows.evaluation.accuracy import hits
from protoflows.evaluation.estimate import Estimate, bootstrap_stderr

NUM_BINS = 15


class Reliability(NamedTuple):
    """Confidence against accuracy in bins of equal width.

    Attributes:
        edges: Where bins begin and end, (B + 1,).
        counts: Images in each bin, (B,).
        confidence: Mean confidence in each bin, (B,); NaN in empty ones.
        accuracy: Share of right answers in each bin, (B,); NaN in empty ones.
    """

    edges: Tensor
    counts: Tensor
    confidence: Tensor
    accuracy: Tensor


class CalibrationError(NamedTuple):
    """ECE = Σ_b n_b/N |accuracy_b − confidence_b| and MCE, the largest of these gaps.

    Attributes:
        ece: Expected calibration error.
        mce: Maximum calibration error.
    """

    ece: Estimate
    mce: Estimate


def bin_of(confidence: Tensor, num_bins: int = NUM_BINS) -> Tensor:
    """Index of the bin of each confidence: [b/B, (b+1)/B), the last one closed.

    A confidence of exactly 1, which saturated posteriors reach all the time, belongs to the last
    bin and not to one of its own.

    >>> bin_of(torch.tensor([0.0, 0.5, 1.0]), 2).tolist()
    [0, 1, 1]
    """
    if bool(((confidence < 0) | (confidence > 1)).any()):
        raise ValueError(
            f"confidence must be in [0, 1], got {float(confidence.min()):g} to "
            f"{float(confidence.max()):g}"
        )
    edges = torch.linspace(0, 1, num_bins + 1, dtype=torch.float64)
    # Edges in the type of the confidences: 0.2 in float32 lies at the edge that 0.2 is.
    inner = edges[1:-1].to(confidence.device, confidence.dtype)
    return torch.bucketize(confidence, inner, right=True)


def reliability(proba: Tensor, labels: Tensor, num_bins: int = NUM_BINS) -> Reliability:
    """The reliability diagram's numbers.

    Args:
        proba: Probabilities (N, C).
        labels: (N,).
        num_bins: Number of bins.
    """
    confidence, right, bins = _parts(proba, labels, num_bins)
    count = torch.zeros(num_bins, dtype=torch.float64)
    ones = torch.ones_like(confidence)
    sums = [count.index_add(0, bins, value) for value in (ones, confidence, right)]
    edges = torch.linspace(0, 1, num_bins + 1, dtype=torch.float64)
    return Reliability(edges, sums[0].long(), sums[1] / sums[0], sums[2] / sums[0])


def calibration_error(
    proba: Tensor, labels: Tensor, num_bins: int = NUM_BINS, *, seed: int = 0
) -> CalibrationError:
    """ECE and MCE of the top class, with bootstrapped standard errors.

    Args:
        proba: Probabilities (N, C).
        labels: (N,).
        num_bins: Number of bins.
        seed: Seed of the bootstrap.
    """
    confidence, right, bins = _parts(proba, labels, num_bins)
    # Only Σ (right − confidence) per bin matters to both: n_b |gap_b| = |that sum|.
    terms = torch.zeros(len(bins), num_bins, dtype=torch.float64)
    terms[torch.arange(len(bins)), bins] = right - confidence
    member = torch.nn.functional.one_hot(bins, num_bins).double()

    def errors(counts: Tensor) -> Tensor:
        gap, size = (counts @ terms).abs(), counts @ member
        mce = (gap / size.clamp_min(1)).amax(1)
        return torch.stack([gap.sum(1) / counts.sum(1), mce], dim=1)

    ece, mce = errors(torch.ones(1, len(bins), dtype=torch.float64))[0].tolist()
    spread = bootstrap_stderr(errors, len(bins), seed).tolist()
    return CalibrationError(Estimate(ece, spread[0]), Estimate(mce, spread[1]))


def _parts(proba: Tensor, labels: Tensor, num_bins: int) -> tuple[Tensor, Tensor, Tensor]:
    if num_bins < 1:
        raise ValueError(f"num_bins must be ≥ 1, got {num_bins}")
    right = hits(proba, labels).double().cpu()
    # A sum of exponentials can end a rounding error above 1; more than that is no probability.
    top = proba.amax(1).cpu()
    tolerance = 16 * torch.finfo(top.dtype).eps
    top = torch.where((top > 1) & (top <= 1 + tolerance), torch.ones_like(top), top)
    return top.double(), right, bin_of(top, num_bins)
