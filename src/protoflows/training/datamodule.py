"""Batches for the trainer, from exactly where the run stands."""

from __future__ import annotations

from collections.abc import Iterator

from lightning import LightningDataModule

from protoflows.data import Augment, Batch, SeededBatches, Split, TensorBatches
from protoflows.training.config import TrainConfig
from protoflows.training.progress import Progress


class Rest:
    """The rest of an epoch; its length is the number of batches that are left."""

    def __init__(self, source: TensorBatches) -> None:
        self.source = source

    def __len__(self) -> int:
        """Batches left."""
        return len(self.source.batches)

    def __iter__(self) -> Iterator[Batch]:
        """The batches that are left."""
        return iter(self.source)


class TrainingData(LightningDataModule):
    """Gives the trainer the rest of the present epoch, whenever it asks.

    Args:
        split: Training images.
        config: The run's settings.
        augment: What moves training images about; None leaves them.
        progress: Where the run stands.
    """

    def __init__(
        self, split: Split, config: TrainConfig, augment: Augment | None, progress: Progress
    ) -> None:
        super().__init__()
        self.split, self.config, self.augment, self.progress = split, config, augment, progress

    def train_dataloader(self) -> Rest:
        """What is left of the present epoch, on this process."""
        rank, processes = (
            (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)
        )
        order = training_order(len(self.split), self.config, rank, processes)
        order = order.at(self.progress.epoch, self.progress.batch)
        two_views = bool(self.config.loss.consistency)
        return Rest(TensorBatches(self.split, order, self.augment, two_views, self.config.seed))


def training_order(
    num: int, config: TrainConfig, rank: int = 0, world_size: int = 1
) -> SeededBatches:
    """The order of training batches on one process; fewer images than a batch are one batch."""
    if config.optim.batch_size % world_size:
        raise ValueError(
            f"optim.batch_size={config.optim.batch_size} cannot be shared equally by {world_size} "
            "processes (trainer.devices x trainer.num_nodes): choose a multiple of that"
        )
    size = min(config.optim.batch_size, num - num % world_size)
    if size < 1:
        raise ValueError(f"{num} training images are too few for {world_size} processes")
    return SeededBatches(num, size, config.seed, rank=rank, world_size=world_size, drop_last=True)


def validation_batches(
    split: Split, config: TrainConfig, rank: int = 0, world_size: int = 1
) -> TensorBatches:
    """Validation batches on one process, in the split's order."""
    size = config.trainer.eval_batch_size * world_size
    order = SeededBatches(len(split), size, rank=rank, world_size=world_size, shuffle=False)
    return TensorBatches(split, order)
