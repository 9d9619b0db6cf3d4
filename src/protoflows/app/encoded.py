"""Images encoded once: what edited prototypes say about them then takes no pass through the flow.

Latents do not depend on the prototypes. A model whose prototypes were switched off or merged is
measured on latents that are there already, which takes milliseconds where the flow takes minutes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from protoflows.data import Split
from protoflows.model import ProtoFlow, evaluating, image_seeds

_BATCH = 256
Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class Encoded:
    """Images and their latents.

    Attributes:
        split: The images with their labels.
        latent: z, (S, N, D), one for each of S draws of the noise.
        log_det: Everything of log p(x|c) but the mixture, (S, N).
    """

    split: Split
    latent: Tensor
    log_det: Tensor


class Answers(NamedTuple):
    """What a model says about encoded images, as `evaluation.predict.predict_images` has it.

    Attributes:
        log_proba: log p(c|x), float64 (N, C), from the mean of logits over draws.
        log_prob: log p(x), importance-weighted bound, nats (N,).
        log_prob_mean: log p(x), mean of one-draw bounds, (N,).
        prototypes: The prototype (class, index) with the largest part in p(x), (N, 2).
    """

    log_proba: Tensor
    log_prob: Tensor
    log_prob_mean: Tensor
    prototypes: Tensor


@torch.no_grad()
def encode_split(
    model: ProtoFlow,
    split: Split,
    *,
    samples: int,
    seed: int = 0,
    progress: Progress | None = None,
) -> Encoded:
    """Encode images by several draws of the noise.

    Args:
        model: The model.
        split: The images.
        samples: Draws per image.
        seed: From which all draws follow, the ones that `predict_images` takes.
        progress: Called with the batches done and all batches.
    """
    latents, dets = [], []
    starts = range(0, len(split), _BATCH)
    with evaluating(model):
        for draw in range(samples):
            parts, det = [], []
            for number, start in enumerate(starts):
                x = split.images[start : start + _BATCH]
                enc = model.encode(x, seed=image_seeds(start, len(x), draw, seed))
                parts.append(model.mixtures.flatten(enc.latent).cpu())
                det.append(enc.log_det.cpu())
                if progress is not None:
                    progress(draw * len(starts) + number + 1, samples * len(starts))
            latents.append(torch.cat(parts))
            dets.append(torch.cat(det))
    return Encoded(split, torch.stack(latents), torch.stack(dets))


@torch.no_grad()
def answer(model: ProtoFlow, encoded: Encoded) -> Answers:
    """Class, likelihood and prototype of every image, by Bayes' rule on latents that are there.

    Args:
        model: The model that encoded, or one with its flow and other prototypes.
        encoded: The images.
    """
    mixtures = model.mixtures
    prior, weights = mixtures.log_prior, mixtures.log_weights
    samples, parts = len(encoded.latent), []
    for start in range(0, len(encoded.split), _BATCH):
        part = slice(start, start + _BATCH)
        logits = table_sum = mean = prior.new_zeros(())
        log_prob = prior.new_full((), -math.inf)
        for z, log_det in zip(encoded.latent[:, part], encoded.log_det[:, part], strict=True):
            table = mixtures.log_prob(z.to(mixtures.mean.device))
            det = log_det.to(table)[:, None]
            logits = logits + det + model.tempered_log_likelihood(table)
            marginal = (det + mixtures.mix(table) + prior).logsumexp(1)
            log_prob, mean = torch.logaddexp(log_prob, marginal), mean + marginal
            table_sum = table_sum + table
        best = (table_sum / samples + weights + prior[:, None]).flatten(1).argmax(1)
        num = table_sum.shape[2]
        parts.append(
            (
                model.classify(logits / samples).double().cpu(),
                (log_prob - math.log(samples)).double().cpu(),
                (mean / samples).double().cpu(),
                torch.stack([best // num, best % num], 1).cpu(),
            )
        )
    return Answers(*(torch.cat(values) for values in zip(*parts, strict=True)))


@torch.no_grad()
def nearest_images(
    model: ProtoFlow, encoded: Encoded, prototype: tuple[int, int], num: int = 6
) -> Tensor:
    """Indices of the images whose latents, by the first draw, lie nearest to a mean, (M,)."""
    mean = model.mixtures.mean[prototype].detach().cpu().double()
    distance = torch.cat(
        [(z.double() - mean).square().sum(1) for z in encoded.latent[0].split(_BATCH)]
    )
    return distance.argsort(stable=True)[:num]


@torch.no_grad()
def explained(model: ProtoFlow, encoded: Encoded) -> Tensor:
    """How many images each prototype explains better than all others do, (C, K)."""
    best = answer(model, encoded).prototypes
    classes, num = model.mixtures.mask.shape
    return torch.bincount(best[:, 0] * num + best[:, 1], minlength=classes * num).view(classes, num)
