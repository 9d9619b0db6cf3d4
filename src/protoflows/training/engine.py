"""Lightning's trainer, set up for our module, and the two ways a person stops it."""

from __future__ import annotations

import logging
import signal
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
from lightning import Trainer
from lightning.pytorch.loggers import Logger, TensorBoardLogger
from torch import Tensor

from protoflows.data import Augment, Split
from protoflows.training.callbacks import Bar, EpochEnd, Recorder
from protoflows.training.config import TrainConfig
from protoflows.training.datamodule import TrainingData
from protoflows.training.module import TrainingModule
from protoflows.training.progress import Progress
from protoflows.training.task import Task


class Outcome(NamedTuple):
    """How a training ended.

    Attributes:
        progress: The final counters and all epochs' rows.
        signal: Number of the signal that interrupted it; 0 where it ran to its end.
        is_first_process: Whether this process is the one that writes.
    """

    progress: Progress
    signal: int
    is_first_process: bool


def fit(
    task: Task,
    config: TrainConfig,
    train: Split,
    validation: Split | None,
    augment: Augment | None,
    *,
    kind: str = "classifier",
    folder: Path | None = None,
    state: Mapping[str, Any] | None = None,
    best_average: Mapping[str, Tensor] | None = None,
) -> Outcome:
    """Train a task's model in place; it ends in eval mode with the weights to be exported.

    Args:
        task: What is trained.
        config: The run's settings.
        train: Training images.
        validation: Validation images, or None.
        augment: What moves training images about; None leaves them.
        kind: "classifier" or "density", for checkpoints.
        folder: The run's folder; None writes nothing.
        state: A checkpoint to go on from.
        best_average: The best epoch's averaged weights when going on.
    """
    module = TrainingModule(task, config, train, validation, state, best_average)
    data = TrainingData(train, config, augment, module.progress)
    with _quiet(), _stops_gently(module, active=folder is not None) as received:
        trainer = _trainer(config, module.progress, kind, folder)
        if not module.progress.done:
            trainer.fit(module, datamodule=data)
    if module.average is None:  # complete before it began: only the export is to be made again
        assert state is not None
        module.load_average(state)
    if not module.interrupted:
        module.export_weights()
    return Outcome(
        module.progress,
        received[0] if module.interrupted and received else 2 * module.interrupted,
        trainer.is_global_zero,
    )


def _trainer(config: TrainConfig, progress: Progress, kind: str, folder: Path | None) -> Trainer:
    callbacks = [EpochEnd()]
    loggers: list[Logger] = []
    if folder is not None:
        callbacks.append(Recorder(folder, kind, config.trainer.checkpoint_minutes))  # type: ignore[arg-type]
        if config.trainer.tensorboard:
            loggers.append(TensorBoardLogger(folder, name="tensorboard", version=""))
    if config.trainer.progress:
        callbacks.append(Bar())  # type: ignore[arg-type]
    return Trainer(
        accelerator=config.trainer.accelerator,
        devices=config.trainer.devices,
        num_nodes=config.trainer.num_nodes,
        strategy=_strategy(config),
        max_epochs=max(1, config.optim.epochs - progress.epoch),
        callbacks=callbacks,  # type: ignore[arg-type]
        logger=loggers or False,
        # Position, validation, checkpoints and the bar are ours, see `TrainingModule`.
        reload_dataloaders_every_n_epochs=1,
        use_distributed_sampler=False,
        limit_val_batches=0,
        num_sanity_val_steps=0,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        inference_mode=False,
    )


def _strategy(config: TrainConfig) -> Any:
    if config.world_size == 1:
        return "auto"
    from lightning.pytorch.strategies import DDPStrategy

    # Batch norm's statistics are global already: nothing to broadcast at every step.
    return DDPStrategy(broadcast_buffers=False)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Lightning's notes on hardware and loaders, made for its own users, off our output."""
    names = ("lightning.pytorch", "lightning.fabric", "lightning")
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="lightning")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextmanager
def _stops_gently(module: TrainingModule, active: bool) -> Iterator[list[int]]:
    """Turn the first Ctrl-C (or SIGTERM) into a request to stop after the present step.

    A second one stops at once, with what the last checkpoint holds. Yields the signals received.
    """
    received: list[int] = []
    if not active or threading.current_thread() is not threading.main_thread():
        yield received
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)
        module.stop_requested = True

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Give torch's global generator this seed inside the block, for weights at their start."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
