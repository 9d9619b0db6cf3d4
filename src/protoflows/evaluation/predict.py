"""What a model says about images: class, likelihood and prototype from the same passes."""

from __future__ import annotations

import hashlib
import math
from typing import NamedTuple

import torch
from torch import Tensor

from protoflows.model import ProtoFlow, evaluating
from protoflows.model.seeds import draw_seeds

DEFAULT_SAMPLES = 8


class Predictions(NamedTuple):
    """What a model says about N images, averaged over draws of the noise.

    Attributes:
        proba: p(y|x), (N, C): draws' mean logits, with priors and temperatures.
        log_prob: log p(x) by the importance-weighted bound (log-mean-exp over draws), nats (N,).
        log_prob_mean: log p(x) by the mean of the one-draw bounds, (N,). The quantiles that a model
            keeps of its training images are one-draw bounds too, so this is what compares.
        prototypes: The prototype (class, index) that takes the largest part in p(x), int64 (N, 2).
        prototype_log_prob: log p(x|c, k) of that prototype, mean over draws, (N,).
    """

    proba: Tensor
    log_prob: Tensor
    log_prob_mean: Tensor
    prototypes: Tensor
    prototype_log_prob: Tensor


@torch.no_grad()
def predict_images(
    model: ProtoFlow,
    images: Tensor,
    *,
    samples: int = DEFAULT_SAMPLES,
    seed: int | Tensor = 0,
    batch_size: int = 256,
) -> Predictions:
    """Everything that a prediction reports, from one pass per image and draw.

    The top prototype maximises the mean over draws of log p(c) π_ck N(z; c, k), by the trained
    densities. `proba` is what `ProtoFlow.predict_proba` returns for the same arguments.

    Args:
        model: The model.
        images: uint8 (N, C, H, W).
        samples: Draws of the noise per image.
        seed: From which all draws follow, or one seed per image (N,).
        batch_size: Images per pass; memory is bounded by it.
    """
    if samples < 1 or batch_size < 1:
        raise ValueError(
            f"samples and batch_size must be ≥ 1, got samples={samples}, batch_size={batch_size}"
        )
    if isinstance(seed, Tensor) and tuple(seed.shape) != (len(images),):
        raise ValueError(f"seed must hold one number per image ({len(images)}), got {seed.shape}")
    with evaluating(model):
        # An empty set takes one empty pass: shapes come out right.
        starts = range(0, max(len(images), 1), batch_size)
        parts = [
            _predict_batch(model, images[start : start + batch_size], samples, seed, start)
            for start in starts
        ]
    return Predictions(*(torch.cat(values).cpu() for values in zip(*parts, strict=True)))


def _predict_batch(
    model: ProtoFlow, x: Tensor, samples: int, seed: int | Tensor, start: int
) -> Predictions:
    prior = model.mixtures.log_prior
    logits = prototypes = log_det = mean = prior.new_zeros(())
    log_prob = prior.new_full((), -math.inf)
    for draw in range(samples):
        scores = model.score(x, seeds=draw_seeds(seed, start, len(x), draw))
        table = scores.prototype_log_likelihood
        likelihood = scores.log_det[:, None] + model.tempered_log_likelihood(table)
        marginal = (scores.log_prob_classes + prior).logsumexp(1)
        logits, prototypes = logits + likelihood, prototypes + table
        log_det, mean = log_det + scores.log_det, mean + marginal
        log_prob = torch.logaddexp(log_prob, marginal)
    num_prototypes = prototypes.shape[2]
    weighted = prototypes / samples + model.mixtures.log_weights + prior[:, None]
    best = weighted.flatten(1).argmax(1)
    chosen = prototypes.flatten(1).gather(1, best[:, None])[:, 0]
    return Predictions(
        proba=model.classify(logits / samples).exp(),
        log_prob=log_prob - math.log(samples),
        log_prob_mean=mean / samples,
        prototypes=torch.stack([best // num_prototypes, best % num_prototypes], 1),
        prototype_log_prob=(chosen + log_det) / samples,
    )


def content_seeds(images: Tensor, seed: int) -> Tensor:
    """One seed per image, a hash of its bytes and of `seed`, int64 (N,).

    A picture then gets the same answer whatever other pictures are asked about with it.
    """
    key = (seed % (1 << 64)).to_bytes(8, "little")
    digests = [
        hashlib.blake2b(image.tobytes(), digest_size=8, key=key).digest()
        for image in images.cpu().contiguous().numpy()
    ]
    seeds = [int.from_bytes(digest, "little", signed=True) for digest in digests]
    return torch.tensor(seeds, dtype=torch.int64)
