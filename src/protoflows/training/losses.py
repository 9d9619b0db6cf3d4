"""The training objective and its terms."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from protoflows.distributed import all_reduce_sum, world_size
from protoflows.prototypes import ClassMixtures, diversity_loss
from protoflows.training.config import LossConfig


class Losses(NamedTuple):
    """The objective and its terms, each a mean over the batch; a term that is off is None.

    Attributes:
        total: Weighted sum of the terms (`eq:Ltotal`), which is minimised.
        cross_entropy: T·(-log softmax(log p(x, c) / T) at the label), nats, over labelled images;
            -log p(y|x) at the temperature T = 1.
        elbo: -log p(x|y), or -log p(x) where there is no label, bits per dimension.
        consistency: -log p(x|second view's class), bits per dimension (`eq:Lconsistency`).
        diversity: Minus the mean divergence between prototypes of a class (`eq:Ldiversity`).
    """

    total: Tensor
    cross_entropy: Tensor | None = None
    elbo: Tensor | None = None
    consistency: Tensor | None = None
    diversity: Tensor | None = None

    def terms(self) -> dict[str, Tensor]:
        """The terms that are on, by name."""
        return {name: t for name, t in self._asdict().items() if name != "total" and t is not None}

    def not_finite(self) -> list[str]:
        """Names of the terms that are NaN or infinite."""
        return [name for name, t in self.terms().items() if not bool(t.isfinite())]


def classifier_losses(
    class_log_prob: Tensor,
    log_prior: Tensor,
    labels: Tensor,
    dims: int,
    config: LossConfig,
    *,
    second_view_class: Tensor | None = None,
    epoch: float = math.inf,
    share: float = 0.0,
    mixtures: ClassMixtures | None = None,
) -> Losses:
    """The paper's objective with its ablated ELBO term (`eq:Ltotal`).

    Means are over the global batch: with several processes, of equal share each, the average of
    their results is what a single process would have got.

    Args:
        class_log_prob: log p(x|c) of the first view, nats, (N, C).
        log_prior: log p(c), (C,).
        labels: (N,), -1 where unlabelled.
        dims: Values of an image, over which bits per dimension count.
        config: Weights of the terms.
        second_view_class: Predicted class of each second view, (N,); None switches consistency off.
        epoch: Where training is, in epochs, for the consistency term's ramp.
        share: How much of training is done, from 0 to 1, for the ELBO term's weight.
        mixtures: For the diversity term; None switches it off.
    """
    known = labels >= 0
    cross_entropy = elbo = consistency = diversity = None
    joint = class_log_prob + log_prior
    total = class_log_prob.new_zeros(())
    if config.cross_entropy:
        heat = config.temperature
        cross_entropy = heat * mean_over_labelled(
            smoothed_cross_entropy(joint / heat, labels.clamp_min(0), config.label_smoothing), known
        )
        total = total + config.cross_entropy * cross_entropy
    if config.elbo:
        own = pick(class_log_prob, labels.clamp_min(0))
        log_prob = own if bool(known.all()) else torch.where(known, own, joint.logsumexp(1))
        elbo = bits_per_dim(log_prob, dims).mean()
        total = total + elbo_weight(share, config) * elbo
    if config.consistency and second_view_class is not None:
        consistency = bits_per_dim(pick(class_log_prob, second_view_class), dims).mean()
        total = total + config.consistency * ramp(epoch, config) * consistency
    if config.diversity and mixtures is not None:
        diversity = diversity_loss(mixtures)
        total = total + config.diversity * diversity
    return Losses(total, cross_entropy, elbo, consistency, diversity)


def bits_per_dim(log_prob: Tensor, dims: int) -> Tensor:
    """-log p / (log 2 · dims) of log p in nats."""
    return -log_prob / (math.log(2) * dims)


def ramp(epoch: float, config: LossConfig) -> float:
    """The consistency weight's factor: linear from 0 to 1."""
    if config.consistency_ramp_epochs == 0:
        return 1.0
    return min(1.0, epoch / config.consistency_ramp_epochs)


def elbo_weight(share: float, config: LossConfig) -> float:
    """The ELBO term's weight: w in the first third, w^(1-s)·v^s over the second, v in the last.

    Example:
        >>> config = LossConfig(elbo=1.0, elbo_final=0.25)
        >>> [elbo_weight(share, config) for share in (0.0, 1 / 3, 0.5, 2 / 3, 1.0)]
        [1.0, 1.0, 0.5, 0.25, 0.25]
    """
    if config.elbo_final is None:
        return config.elbo
    fallen = min(1.0, max(0.0, 3 * share - 1))
    return config.elbo ** (1 - fallen) * config.elbo_final**fallen


def pick(table: Tensor, columns: Tensor) -> Tensor:
    """table[n, columns[n]] for every row n."""
    return table.gather(1, columns.unsqueeze(1)).squeeze(1)


def smoothed_cross_entropy(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """-Σ_c t_c log p(c), t = (1 - s)·onehot(y) + s/C, for every image, (N,)."""
    log_posterior = logits.log_softmax(1)
    loss = -pick(log_posterior, labels)
    if smoothing:
        loss = (1 - smoothing) * loss - smoothing * log_posterior.mean(1)
    return loss


def mean_over_labelled(values: Tensor, known: Tensor) -> Tensor:
    """Mean of the labelled images' values, of all processes' where there are several; 0 of none."""
    processes = world_size()
    count = all_reduce_sum(known.sum()) / processes
    return torch.where(known, values, torch.zeros_like(values)).sum() / count.clamp_min(
        1 / processes
    )
