"""Data-dependent start of a model: actnorm from a batch, mixtures from embeddings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn

from protoflows.data import Split
from protoflows.data.batches import derived_seed
from protoflows.data.splits import stratified_choice
from protoflows.distributed import world_size
from protoflows.flows import ActNorm, DenseFlow, Noise
from protoflows.flows.nets import frozen_statistics
from protoflows.prototypes import ClassMixtures, initialize_mixtures
from protoflows.training import seeds
from protoflows.training.config import TrainConfig


@torch.no_grad()
def start_flow(flow: DenseFlow, split: Split, config: TrainConfig) -> None:
    """Let every actnorm see a batch of training images, each process its share of it.

    Nothing happens where weights were loaded whose actnorms have had their start.
    """
    if all(bool(m.initialized) for m in flow.modules() if isinstance(m, ActNorm)):
        return
    count = min(len(split), max(config.optim.batch_size, world_size()))
    chosen = _share(stratified_choice(split.labels, count, derived_seed(1, config.seed)))
    with _mode(flow, training=True), frozen_statistics():
        _embed(flow, split, chosen, config)


@torch.no_grad()
def start_mixtures(
    flow: DenseFlow, mixtures: ClassMixtures, split: Split, config: TrainConfig
) -> None:
    """Start the mixtures from embeddings of at most `trainer.init_images` training images.

    Every process embeds a share; the first one clusters all of them and tells the others.
    """
    count = min(len(split), config.trainer.init_images)
    chosen = _share(stratified_choice(split.labels, count, derived_seed(2, config.seed)))
    latents = []
    with _mode(flow, training=False):
        for part in chosen.split(config.trainer.eval_batch_size):
            latents.append(_embed(flow, split, part, config).flatten(1).cpu())
    z, labels = _gather(torch.cat(latents), split.labels[chosen].cpu())
    if _rank() == 0:
        initialize_mixtures(mixtures, z, labels, derived_seed(3, config.seed) % 2**32)
    if world_size() > 1:
        for tensor in [*mixtures.parameters(), *mixtures.buffers()]:
            dist.broadcast(tensor.data, src=0)


def _embed(flow: DenseFlow, split: Split, chosen: Tensor, config: TrainConfig) -> Tensor:
    per_image = seeds.image_noise_seeds(chosen, config.seed, 0, seeds.INITIALIZE)
    x = split.images[chosen.to(split.images.device)].to(flow.loc.device)
    return flow(x, Noise(len(x), 1.0, per_image)).latent


@contextmanager
def _mode(module: nn.Module, training: bool) -> Iterator[None]:
    before = module.training
    module.train(training)
    try:
        yield
    finally:
        module.train(before)


def _rank() -> int:
    return dist.get_rank() if world_size() > 1 else 0


def _share(index: Tensor) -> Tensor:
    return index[_rank() :: world_size()]


def _gather(z: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Everybody's embeddings, in an order that does not depend on the number of processes."""
    processes = world_size()
    if processes == 1:
        return z, labels
    parts: list[tuple[Tensor, Tensor] | None] = [None] * processes
    dist.all_gather_object(parts, (z, labels))
    count = sum(len(part[1]) for part in parts if part is not None)
    all_z, all_labels = z.new_empty(count, z.shape[1]), labels.new_empty(count)
    for rank, part in enumerate(parts):
        assert part is not None
        all_z[rank::processes], all_labels[rank::processes] = part
    return all_z, all_labels
