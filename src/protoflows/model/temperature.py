"""Gaussians with all variances scaled, read off a table of log-densities that is there already."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def temper(
    log_prob: Tensor, std: Tensor, temperature: float, weight: Tensor | None = None
) -> Tensor:
    """log N(z; μ, Tσ²) from log N(z; μ, σ²), (N, C, K) → (N, C, K).

    FlowGMM (Izmailov et al. 2020) calibrates its posterior so. With log N = −½(q + ℓ), q the
    squared distance in units of the std and ℓ = Σ_d log 2πσ²_d, neither z nor means are needed:

        log N_T = (log N + ½ℓ)/T − ½ℓ − ½ D log T.

    Args:
        log_prob: log N(z; c, k); −inf stays −inf.
        std: Standard deviations (C, K, D).
        temperature: T, above 0.
        weight: Factors (N, D) that the dimensions' terms had in log_prob; None for ones.

    >>> one = torch.ones(1, 1, 1)
    >>> temper(torch.tensor([[[-0.5 * math.log(2 * math.pi)]]]), one, 4.0)  # at the mean: −log 2
    tensor([[[-1.6121]]])
    """
    terms = math.log(2 * math.pi) + 2 * std.to(log_prob.dtype).log()
    dims: Tensor | int = std.shape[2]
    if weight is None:
        half = 0.5 * terms.sum(2)
    else:
        weight = weight.to(terms.dtype)
        half = 0.5 * torch.einsum("nd,ckd->nck", weight, terms)
        dims = weight.sum(1)[:, None, None]
    return (log_prob + half) / temperature - half - 0.5 * dims * math.log(temperature)
