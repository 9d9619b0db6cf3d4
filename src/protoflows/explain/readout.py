"""What a model says about images, averaged over draws: all that explanations start from."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from protoflows.model import ProtoFlow, evaluating
from protoflows.model.seeds import draw_seeds
from protoflows.model.temperature import temper


class Readout(NamedTuple):
    """A model's answers for N images, on the CPU in float64.

    Attributes:
        posterior: p(c|x), (N, C), as `ProtoFlow.predict_proba` has it.
        prototype_posterior: p(c, k|x), (N, C, K): each prototype's share of the decision; sums to
            one over classes and prototypes.
        prototype_log_likelihood: log N(z; c, k), mean over draws, (N, C, K).
        class_log_prob: log p(x|c), mean of one-draw bounds, nats (N, C).
        log_prob: log p(x), importance-weighted bound, nats (N,).
        log_prob_mean: log p(x), mean of one-draw bounds: what a model's quantiles compare with.
    """

    posterior: Tensor
    prototype_posterior: Tensor
    prototype_log_likelihood: Tensor
    class_log_prob: Tensor
    log_prob: Tensor
    log_prob_mean: Tensor

    @property
    def labels(self) -> Tensor:
        """The most probable classes, (N,)."""
        return self.posterior.argmax(1)

    def top_prototypes(self) -> Tensor:
        """The prototype (class, index) with the largest share, (N, 2)."""
        num = self.prototype_posterior.shape[2]
        best = self.prototype_posterior.flatten(1).argmax(1)
        return torch.stack([best // num, best % num], 1)


@torch.no_grad()
def read_out(
    model: ProtoFlow,
    x: Tensor,
    *,
    samples: int = 8,
    seed: int | Tensor = 0,
    batch_size: int = 256,
) -> Readout:
    """Pass images through the model several times and average.

    Within the class the shares are those of p(k|c, x) ∝ π_ck N(z; c, k), with the mean of log N
    over draws and the variances that classes are compared by.

    Args:
        model: The model.
        x: uint8 (N, C, H, W).
        samples: Draws of the noise per image.
        seed: From which all draws follow, or one seed per image.
        batch_size: Images per pass; results do not depend on it.
    """
    if samples < 1 or batch_size < 1:
        raise ValueError(
            f"samples and batch_size must be ≥ 1, got samples={samples}, batch_size={batch_size}"
        )
    mixtures, config = model.mixtures, model.config
    if not len(x):
        table = torch.zeros(0, *mixtures.mask.shape, dtype=torch.float64)
        none = table.new_zeros(0)
        return Readout(table[:, :, 0], table, table, table[:, :, 0], none, none)
    parts = []
    with evaluating(model):
        for start in range(0, len(x), batch_size):
            images = x[start : start + batch_size]
            tables, dets = [], []
            for s in range(samples):
                enc = model.encode(images, seed=draw_seeds(seed, start, len(images), s))
                tables.append(model.prototype_log_likelihood(enc))
                dets.append(enc.log_det)
            table, log_det = torch.stack(tables), torch.stack(dets).to(tables[0])
            classes = log_det[:, :, None] + (mixtures.log_weights + table).logsumexp(3)
            marginal = (classes + mixtures.log_prior).logsumexp(2)
            mean = table.mean(0)
            compared = [model.tempered_log_likelihood(t) + d[:, None]
                        for t, d in zip(table, log_det, strict=True)]  # fmt: skip
            posterior = model.classify(torch.stack(compared).mean(0)).exp()
            within = mean
            if config.variance_temperature != 1:
                within = temper(mean, mixtures.std, config.variance_temperature)
            share = (mixtures.log_weights + within).softmax(2)
            parts.append(
                (
                    posterior,
                    posterior[:, :, None] * share,
                    mean,
                    classes.mean(0),
                    marginal.logsumexp(0) - math.log(samples),
                    marginal.mean(0),
                )
            )
    return Readout(*(torch.cat(p).cpu().double() for p in zip(*parts, strict=True)))
