"""Risk against coverage: what a classifier gains by abstaining, and the area under the curve."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from protoflows.evaluation.estimate import Estimate, bootstrap_stderr


class RiskCoverage(NamedTuple):
    """Share of errors among the most confident images.

    Attributes:
        coverage: 1/N, 2/N, … 1, (N,).
        risk: Share of wrong answers among as many, (N,).
        aurc: Mean of `risk` over all coverages: the area under the curve.
    """

    coverage: Tensor
    risk: Tensor
    aurc: Estimate


def log_odds(log_proba: Tensor) -> Tensor:
    """log p/(1 − p) of the top class, (N, C) → (N,): orders as p does, and never saturates at 1.

    >>> log_odds(torch.tensor([[0.75, 0.25]]).log()).exp().round().tolist()
    [3.0]
    """
    if log_proba.shape[1] == 1:
        return log_proba.new_zeros(len(log_proba))
    ordered = log_proba.sort(1, descending=True).values
    return ordered[:, 0] - ordered[:, 1:].logsumexp(1)


def risk_coverage(confidence: Tensor, correct: Tensor, *, seed: int = 0) -> RiskCoverage:
    """The curve and its area.

    Equal confidences cannot be told apart: their errors are spread evenly among them, which is the
    mean over all orders.

    Args:
        confidence: Larger is surer, (N,).
        correct: bool (N,).
        seed: Seed of the bootstrap.

    >>> risk_coverage(torch.tensor([0.9, 0.8]), torch.tensor([True, False])).risk.tolist()
    [0.0, 0.5]
    """
    if confidence.ndim != 1 or len(confidence) == 0 or confidence.shape != correct.shape:
        raise ValueError(
            "confidence and correct must be (N,) with N ≥ 1, got "
            f"{tuple(confidence.shape)} and {tuple(correct.shape)}"
        )
    if bool(confidence.isnan().any()):
        raise ValueError("confidence must hold no NaN")
    order = confidence.argsort(descending=True, stable=True)
    wrong = 1 - correct[order].double().cpu()
    group = confidence[order].cpu().unique_consecutive(return_inverse=True)[1]
    size = torch.bincount(group).double()
    even = (torch.zeros_like(size).index_add(0, group, wrong) / size)[group]
    coverage = torch.arange(1, len(wrong) + 1, dtype=torch.float64)
    risk = even.cumsum(0) / coverage

    def area(counts: Tensor) -> Tensor:
        covered = counts.cumsum(1)
        errors = (counts * even).cumsum(1)
        return (counts * errors / covered.clamp_min(1)).sum(1) / covered[:, -1]

    spread = float(bootstrap_stderr(area, len(wrong), seed))
    return RiskCoverage(coverage / len(wrong), risk, Estimate(float(risk.mean()), spread))
