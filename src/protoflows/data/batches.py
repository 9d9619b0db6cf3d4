"""Which images make up which batch: seeded, the same on any number of processes, resumable.

Everything about a batch follows from (seed, epoch, batch number): its images and the augmentation
of each. A run that stops in the middle of an epoch goes on with exactly the batches it would have
seen, and N processes see together what one would have seen alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from protoflows.data.augment import Augment
from protoflows.data.splits import Split

# What the two kinds of seeds are for, so that equal numbers never give equal streams.
_ORDER, _AUGMENT = 1, 2


def derived_seed(*parts: int) -> int:
    """A seed from several numbers. Sums would give seed 0, epoch 1 and seed 1, epoch 0 the same."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


class Batch(NamedTuple):
    """What one training step sees.

    Attributes:
        x: Images, uint8 (N, C, H, W).
        y: Labels, int64 (N,); -1 where unlabelled.
        index: Position of each image in its split.
        x2: A second view of the same images, where the consistency loss wants one.
    """

    x: Tensor
    y: Tensor
    index: Tensor  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    x2: Tensor | None = None


@dataclass(frozen=True)
class SeededBatches:
    """The order of one epoch, seen by one process; iterating yields its index tensors.

    Every global batch is cut into `world_size` runs of neighbours, one per process. Only the last
    batch of an epoch can be uneven (drop it where processes must stay in step: with fewer images
    than processes, some get none).

    Attributes:
        num: Number of images.
        batch_size: Size of the global batch, a multiple of `world_size`.
        seed: With the epoch, decides the order.
        epoch: Number of the epoch.
        rank: This process's number.
        world_size: Number of processes.
        drop_last: Leave out a last batch that is not full.
        start_batch: First batch to yield: the number of batches already done in this epoch.
        shuffle: A new order every epoch; False keeps the split's own.
    """

    num: int
    batch_size: int
    seed: int = 0
    epoch: int = 0
    rank: int = 0
    world_size: int = 1
    drop_last: bool = False
    start_batch: int = 0
    shuffle: bool = True

    def __post_init__(self) -> None:
        """Refuse numbers that do not fit each other."""
        if self.num < 1:
            raise ValueError(f"num must be at least 1 image, got {self.num}")
        if self.batch_size < 1 or self.batch_size % self.world_size:
            raise ValueError(
                f"batch_size={self.batch_size} cannot be shared equally by world_size="
                f"{self.world_size} processes: choose a multiple of it"
            )
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank must be from 0 to {self.world_size - 1}, got {self.rank}")
        if self.drop_last and self.num < self.batch_size:
            raise ValueError(
                f"batch_size={self.batch_size} is more than the {self.num} images there are: "
                "with drop_last no batch would be left"
            )
        if not 0 <= self.start_batch <= self.total:
            raise ValueError(f"start_batch must be from 0 to {self.total}, got {self.start_batch}")

    @property
    def total(self) -> int:
        """Number of batches in a whole epoch."""
        full, rest = divmod(self.num, self.batch_size)
        return full + (1 if rest and not self.drop_last else 0)

    def __len__(self) -> int:
        """Number of batches still to come in this epoch."""
        return self.total - self.start_batch

    def at(self, epoch: int, start_batch: int = 0) -> SeededBatches:
        """The same order at another position."""
        return replace(self, epoch=epoch, start_batch=start_batch)

    def permutation(self) -> Tensor:
        """All images in this epoch's order."""
        if not self.shuffle:
            return torch.arange(self.num)
        generator = torch.Generator().manual_seed(derived_seed(_ORDER, self.seed, self.epoch))
        return torch.randperm(self.num, generator=generator)

    def size_of(self, batch: int) -> int:
        """Number of images in global batch `batch`."""
        return min(self.batch_size, self.num - batch * self.batch_size)

    def share(self, batch: int) -> slice:
        """This process's part of global batch `batch`; sizes differ by one image at most."""
        size = self.size_of(batch)
        return slice(self.rank * size // self.world_size, (self.rank + 1) * size // self.world_size)

    def __iter__(self) -> Iterator[Tensor]:
        """This process's image indices, batch by batch, from `start_batch` on."""
        order = self.permutation()
        for batch in range(self.start_batch, self.total):
            start = batch * self.batch_size
            yield order[start : start + self.size_of(batch)][self.share(batch)]


class TensorBatches(IterableDataset[Batch]):
    """Batches of a split, augmented: for `DataLoader(..., batch_size=None)` or a plain loop.

    Without `augment` images come as they are. `two_views` gives a second, independently augmented
    view. With several loader workers each makes every n-th batch; their order stays the same.
    """

    def __init__(
        self,
        split: Split,
        batches: SeededBatches,
        augment: Augment | None = None,
        two_views: bool = False,
        seed: int = 0,
    ) -> None:
        """Put the parts together."""
        super().__init__()
        if batches.num != len(split):
            raise ValueError(f"batches order {batches.num} images, but the split has {len(split)}")
        self.split = split
        self.batches = batches
        self.augment = augment
        self.two_views = two_views
        self.seed = seed

    def __len__(self) -> int:
        """Number of batches in a whole epoch, whatever the position.

        A trainer that resumes in mid-epoch counts the batches already done against this number.
        """
        return self.batches.total

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch. At the epoch where it stands, keep the position there."""
        if epoch != self.batches.epoch:
            self.seek(epoch)

    def seek(self, epoch: int, start_batch: int = 0) -> None:
        """The next loop starts at batch `start_batch` of `epoch` (resuming in mid-epoch)."""
        self.batches = self.batches.at(epoch, start_batch)

    def __iter__(self) -> Iterator[Batch]:
        """The batches from the present position to the epoch's end."""
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        batches = self.batches  # a later seek is for the next loop, not for this one
        for offset, index in enumerate(batches):
            if offset % step == first:
                yield self._batch(batches, batches.start_batch + offset, index)

    def _batch(self, batches: SeededBatches, number: int, index: Tensor) -> Batch:
        where = index.to(self.split.images.device)
        x, y = self.split.images[where], self.split.labels[index.to(self.split.labels.device)]
        if self.augment is None:
            return Batch(x, y, index, x.clone() if self.two_views else None)
        generator = torch.Generator().manual_seed(
            derived_seed(_AUGMENT, self.seed, batches.epoch, number)
        )
        # Drawn for the global batch and cut like it: images meet the same fate on any process.
        share, size = batches.share(number), batches.size_of(number)
        draws = [self.augment.draw(size, generator)[share] for _ in range(1 + self.two_views)]
        views = [self.augment.apply(x, draw) for draw in draws]
        return Batch(views[0], y, index, views[1] if self.two_views else None)
