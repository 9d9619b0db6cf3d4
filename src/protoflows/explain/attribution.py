"""Where in the latent a decision comes from: log-odds as exact sums, nothing approximated."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from protoflows.flows import Encoding
from protoflows.model import ProtoFlow
from protoflows.model.sampling import check_label, check_prototype
from protoflows.model.temperature import temper
from protoflows.prototypes import ClassMixtures
from protoflows.prototypes.densities import LOG_2PI, accumulation_dtype

CELL_NOTE = (
    "A cell is a position of the latent, summed over its channels. It lies over the square of "
    "pixels that it was folded from, but with attention in the nets every cell sees the whole "
    "image, and what transitions put out carries no evidence for a class."
)


@dataclass(frozen=True, eq=False)
class Attribution:
    """Log-odds as a sum: log_odds = Σ cells + weights + entropy + prior, for N images.

    Attributes:
        target: What the log-odds are for: (class, prototype), or (class, None).
        against: What they are against, in the same form.
        cells: Evidence of each position of the latent's grid, nats (N, h, w).
        weights: From the mixtures' weights, (N,); expected ones between classes.
        entropy: H(r) of the target's responsibilities less the other's, (N,); 0 for prototypes.
        prior: Log ratio of the class priors, (N,).
        log_odds: What the model itself computes, (N,), for comparison.
        cell_size: Pixels (height, width) that a cell lies over.
    """

    target: tuple[int, int | None]
    against: tuple[int, int | None]
    cells: Tensor
    weights: Tensor
    entropy: Tensor
    prior: Tensor
    log_odds: Tensor
    cell_size: tuple[int, int]

    @property
    def remainder(self) -> Tensor:
        """All that belongs to no position: weights, entropy and priors, (N,)."""
        return self.weights + self.entropy + self.prior

    @property
    def total(self) -> Tensor:
        """The sum of all terms, (N,)."""
        return self.cells.flatten(1).sum(1) + self.remainder

    @property
    def magnitude(self) -> Tensor:
        """Σ|terms|, (N,): what rounding errors of the sum are to be measured by."""
        places = self.cells.abs().flatten(1).sum(1)
        return places + self.weights.abs() + self.entropy.abs() + self.prior.abs()


@torch.no_grad()
def attribute_prototypes(
    model: ProtoFlow, enc: Encoding, target: tuple[int, int], against: tuple[int, int]
) -> Attribution:
    """Log-odds between two prototypes as an exact sum over latent positions.

        log p(c) π_ck N(z; c, k) − log p(c') π_c'k' N(z; c', k')
            = Σ_(i,j) [log N_ij(z; c, k) − log N_ij(z; c', k')] + log π_ck/π_c'k' + log p(c)/p(c').

    Variances are those that classes are compared by, `config.variance_temperature` included.

    Args:
        model: The model.
        enc: Encodings of N images.
        target: Prototype (class, index).
        against: The other one, of any class.
    """
    mixtures = model.mixtures
    for c, k in (target, against):
        check_prototype(mixtures, c, k)
    z, temperature = _latent(model, enc), model.config.variance_temperature
    (c, k), (other, j) = target, against
    shape = model.config.flow.latent_shape
    cells = _cells(mixtures, z, c, k, temperature, shape) - _cells(
        mixtures, z, other, j, temperature, shape
    )
    log_weights, prior = mixtures.log_weights.to(z), mixtures.log_prior.to(z)
    table = _table(model, z)
    log_odds = table[:, c, k] - table[:, other, j]
    weights, priors = log_weights[c, k] - log_weights[other, j], prior[c] - prior[other]
    return _attribution(
        model, target, against, cells, weights.expand(len(z)), torch.zeros_like(log_odds),
        priors.expand(len(z)), log_odds + weights + priors,
    )  # fmt: skip


@torch.no_grad()
def attribute_classes(model: ProtoFlow, enc: Encoding, target: int, against: int) -> Attribution:
    """Log-odds between two classes as an exact sum, r_k = p(k | z, c) being responsibilities.

        log p(z|c) = Σ_k r_k (log π_k + log N_k) + H(r).

    Priors and entropy belong to no position and stand as terms of their own. Everything is divided
    by `config.logit_temperature`, so that the sum is the log-odds of `model.log_posterior`.

    Args:
        model: The model.
        enc: Encodings of N images.
        target: Class.
        against: The other class.
    """
    mixtures = model.mixtures
    check_label(mixtures, target, "target")
    check_label(mixtures, against, "against")
    z = _latent(model, enc)
    table = _table(model, z)
    parts = [_class_terms(model, z, table, c) for c in (target, against)]
    cells, weights, entropy = (a - b for a, b in zip(*parts, strict=True))
    prior = mixtures.log_prior.to(z)
    tau = model.config.logit_temperature
    posterior = model.classify(mixtures.mix(table))
    return _attribution(
        model, (target, None), (against, None), cells / tau, weights / tau, entropy / tau,
        ((prior[target] - prior[against]) / tau).expand(len(z)),
        posterior[:, target] - posterior[:, against],
    )  # fmt: skip


def _latent(model: ProtoFlow, enc: Encoding) -> Tensor:
    z = model.mixtures.flatten(enc.latent)
    return z.to(accumulation_dtype(z.device))


def _table(model: ProtoFlow, z: Tensor) -> Tensor:
    """log N by the path that the model itself takes (matrix products, not sums of cells)."""
    table = model.mixtures.log_prob(z)
    temperature = model.config.variance_temperature
    return table if temperature == 1 else temper(table, model.mixtures.std, temperature)


def _cells(
    mixtures: ClassMixtures,
    z: Tensor,
    c: int,
    k: int,
    temperature: float,
    shape: tuple[int, int, int],
) -> Tensor:
    """log N(z; c, k) by position, summed over channels, (N, h, w)."""
    mean, std = mixtures.mean[c, k].to(z), mixtures.std[c, k].to(z) * math.sqrt(temperature)
    terms = -0.5 * ((z - mean) / std).square() - std.log() - 0.5 * LOG_2PI
    return terms.unflatten(1, shape).sum(1)


def _class_terms(
    model: ProtoFlow, z: Tensor, table: Tensor, c: int
) -> tuple[Tensor, Tensor, Tensor]:
    mixtures, shape = model.mixtures, model.config.flow.latent_shape
    log_weights = mixtures.log_weights[c].to(z)
    log_r = (log_weights + table[:, c]).log_softmax(1)
    r = log_r.exp()
    cells = z.new_zeros(len(z), *shape[1:])
    # One prototype at a time: memory stays at the size of the latents.
    for k in mixtures.mask[c].nonzero().flatten().tolist():
        part = _cells(mixtures, z, c, k, model.config.variance_temperature, shape)
        cells += r[:, k, None, None] * part
    alive = mixtures.mask[c]
    weights = r[:, alive] @ log_weights[alive]
    # r log r is 0 at r = 0, where log r may be −inf.
    entropy = -(r * log_r.masked_fill(r == 0, 0.0)).sum(1)
    return cells, weights, entropy


def _attribution(
    model: ProtoFlow,
    target: tuple[int, int | None],
    against: tuple[int, int | None],
    *terms: Tensor,
) -> Attribution:
    cells, weights, entropy, prior, log_odds = (term.cpu() for term in terms)
    side = model.config.flow.multiple
    return Attribution(target, against, cells, weights, entropy, prior, log_odds, (side, side))
