"""Training images and prototypes: which are near, which likely, and who explains whom."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from protoflows.model import ProtoFlow, evaluating, image_seeds


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The training images about every prototype, as indices into the images that were given.

    Attributes:
        nearest: Images whose latents lie nearest to a mean (Euclidean), (C, K, M).
        distances: Their distances, (C, K, M).
        likeliest: Images with the largest log p(z|c, k), (C, K, M).
        log_likelihoods: Those values, nats (C, K, M).
        explained: How many images a prototype explains: it has the largest p(c) π_ck N(z; c, k) of
            all prototypes of all classes; (C, K), sums to the number of images.
        likeliest_of_class: The image with the largest log p(z|c) for every class, (C,).
        num_images: How many images there were.
    """

    nearest: Tensor
    distances: Tensor
    likeliest: Tensor
    log_likelihoods: Tensor
    explained: Tensor
    likeliest_of_class: Tensor
    num_images: int


@torch.no_grad()
def find_neighbours(
    model: ProtoFlow, images: Tensor, *, num: int = 5, seed: int = 0, batch_size: int = 256
) -> Neighbours:
    """Encode images once, with one draw of noise, and compare with every prototype.

    Memory is bounded: only the best `num` of each prototype are kept from batch to batch.
    Prototypes that were switched off have index −1, explain nothing and are infinitely far.

    Args:
        model: The model.
        images: Training images, uint8 (N, C, H, W).
        num: Images per prototype (M); fewer where there are fewer images.
        seed: Of the noise.
        batch_size: Images per pass.
    """
    if num < 1 or batch_size < 1:
        raise ValueError(f"num and batch_size must be ≥ 1, got {num} and {batch_size}")
    if not len(images):
        raise ValueError("images must hold at least one image, got none")
    mixtures = model.mixtures
    classes, prototypes = mixtures.mask.shape
    mask = mixtures.mask.cpu()
    near, like, best_class = _Best(num), _Best(num), _Best(1)
    explained = torch.zeros(classes * prototypes, dtype=torch.int64)
    with evaluating(model):
        for start in range(0, len(images), batch_size):
            x = images[start : start + batch_size]
            enc = model.encode(x, seed=image_seeds(start, len(x), 0, seed))
            z = mixtures.flatten(enc.latent)
            table = mixtures.log_prob(z)
            joint = table + mixtures.log_weights + mixtures.log_prior[:, None]
            explained += joint.flatten(1).argmax(1).cpu().bincount(minlength=len(explained))
            means = mixtures.mean.flatten(0, 1)
            distance = torch.cdist(z.to(table), means.to(table)).cpu().double()
            near.add(-distance.masked_fill(~mask.flatten(), torch.inf), start)
            like.add(table.flatten(1).cpu().double(), start)
            best_class.add(mixtures.mix(table).cpu().double(), start)
    shape = (classes, prototypes)
    return Neighbours(
        near.index(mask), -near.values.unflatten(0, shape), like.index(mask),
        like.values.unflatten(0, shape), explained.view(shape), best_class.indices[:, 0],
        len(images),
    )  # fmt: skip


class _Best:
    """The largest values of each column so far, with their rows."""

    def __init__(self, num: int) -> None:
        self.num = num
        self.values = torch.zeros(0)
        self.indices = torch.zeros(0, dtype=torch.int64)

    def add(self, table: Tensor, start: int) -> None:
        """Take in rows (N, P), the first of which is image `start`."""
        values, indices = table.T, (start + torch.arange(len(table))).expand(table.shape[1], -1)
        if self.values.numel():
            values = torch.cat([self.values, values], 1)
            indices = torch.cat([self.indices, indices], 1)
        order = values.argsort(dim=1, descending=True, stable=True)[:, : self.num]
        self.values, self.indices = values.gather(1, order), indices.gather(1, order)

    def index(self, mask: Tensor) -> Tensor:
        """Indices (C, K, M), −1 for prototypes that are not there."""
        return self.indices.unflatten(0, tuple(mask.shape)).masked_fill(~mask[:, :, None], -1)
