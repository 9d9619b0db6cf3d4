"""What happens around training steps: checkpoints, logs, the progress bar, stopping."""

from __future__ import annotations

import csv
import math
import os
import sys
import time
from pathlib import Path
from typing import Any, cast

from lightning import Callback, LightningModule, Trainer

from protoflows.training.checkpoint import write_checkpoint
from protoflows.training.module import TrainingModule
from protoflows.training.settings import to_dict


class EpochEnd(Callback):
    """Closes an epoch on all processes, and ends training where it is complete.

    First among the callbacks: the others find the epoch's row in `module.progress.rows`.
    """

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *args: object
    ) -> None:
        """Stop in mid-epoch when time is up or somebody asked for it."""
        module = cast(TrainingModule, pl_module)
        if (module.interrupted or module.progress.done) and not _epoch_is_complete(module):
            trainer.should_stop = _at_step_boundary(module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Validate and count, unless an interruption left the epoch unfinished."""
        module = cast(TrainingModule, pl_module)
        if _epoch_is_complete(module) or module.progress.done:
            module.finish_epoch()
            trainer.should_stop = module.progress.done or module.interrupted


class Recorder(Callback):
    """Writes log.csv and checkpoints/{last,best}.ckpt of a run, in the first process alone.

    Args:
        folder: The run's folder.
        kind: "classifier" or "density".
        minutes: Longest time between checkpoints within an epoch.
    """

    def __init__(self, folder: Path, kind: str, minutes: float) -> None:
        self.folder, self.kind, self.minutes = folder, kind, minutes
        self._last = time.monotonic()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *args: object
    ) -> None:
        """Checkpoint after some time, and on being interrupted."""
        module = cast(TrainingModule, pl_module)
        if _epoch_is_complete(module) or not _at_step_boundary(module):
            return  # the epoch's end writes one; gradients of half a step are in none
        due = time.monotonic() - self._last >= 60 * self.minutes
        if (due or module.interrupted) and trainer.is_global_zero:
            self.save(module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the epoch and checkpoint."""
        module = cast(TrainingModule, pl_module)
        if module.progress.batch or not module.progress.rows or not trainer.is_global_zero:
            return
        write_log(self.folder / "log.csv", module.progress.rows)
        row = module.progress.rows[-1]
        for logger in trainer.loggers:
            figures = {name.replace("_", "/", 1): v for name, v in row.items() if name != "epoch"}
            logger.log_metrics(figures, step=int(row["epoch"]))
        if module.best_is_new:
            best = {"average": module.best_average, "epoch": module.progress.best_epoch}
            self._write("best", module, best)
        self.save(module)

    def save(self, module: TrainingModule) -> None:
        """Write last.ckpt."""
        self._write("last", module, module.state())
        self._last = time.monotonic()

    def _write(self, name: str, module: TrainingModule, content: dict[str, Any]) -> None:
        about = {"kind": self.kind, "config": to_dict(module.config)}
        write_checkpoint(self.folder / "checkpoints" / f"{name}.ckpt", {**about, **content})


class Bar(Callback):
    """Loss, accuracy, bits per dimension and the time left, on standard error.

    A bar where that is a terminal, else a line per epoch.
    """

    def __init__(self) -> None:
        self._progress: Any = None
        self._begun = 0.0
        self._before = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin counting."""
        module = cast(TrainingModule, pl_module)
        self._begun, self._before = time.monotonic(), _share_done(module)
        if trainer.is_global_zero and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.percentage:.0f} %"),
                console=Console(stderr=True),
                refresh_per_second=2,
            )
            self._task = self._progress.add_task("", total=1.0)
            self._progress.start()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *args: object
    ) -> None:
        """Move the bar on."""
        if self._progress is not None:
            module = cast(TrainingModule, pl_module)
            text = self._text(module, module.progress.figures(), module.progress.epoch + 1)
            self._progress.update(self._task, completed=_share_done(module), description=text)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the epoch's line."""
        module = cast(TrainingModule, pl_module)
        if module.progress.batch or not module.progress.rows or not trainer.is_global_zero:
            return
        text = self._text(module, module.progress.rows[-1], module.progress.epoch)
        if self._progress is None:
            print(text, file=sys.stderr, flush=True)
        else:
            self._progress.console.print(text, highlight=False, soft_wrap=True)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Give the line back."""
        self._stop()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Give the line back, an error message may need it."""
        self._stop()

    def _stop(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _text(self, module: TrainingModule, figures: dict[str, float], epoch: int) -> str:
        parts = [f"epoch {epoch}/{module.config.optim.epochs}"]
        for name, key, scale, digits, unit in (
            ("loss", "train_loss", 1, 3, ""),
            ("accuracy", "train_accuracy", 100, 2, " %"),
            ("bits/dim", "train_bits_per_dim", 1, 3, ""),
            ("validation", "val_accuracy", 100, 2, " %"),
            ("bits/dim", "val_bits_per_dim", 1, 3, ""),
        ):
            if key in figures:
                parts.append(f"{name} {scale * figures[key]:.{digits}f}{unit}")
        if module.progress.skipped:
            parts.append(f"{module.progress.skipped} steps skipped")
        gone, done = time.monotonic() - self._begun, _share_done(module)
        if 0 < done < 1 and done > self._before:
            parts.append(f"{_duration(gone * (1 - done) / (done - self._before))} left")
        return ", ".join(parts)


def write_log(path: Path, rows: list[dict[str, float]]) -> None:
    """Write one row per epoch, all at once: a resumed run repeats none and loses none."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    fresh = path.with_name(f".{path.name}.new")
    with fresh.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def _epoch_is_complete(module: TrainingModule) -> bool:
    return module.progress.batch == module.batches.total


def _at_step_boundary(module: TrainingModule) -> bool:
    return module.progress.batch % module.config.optim.accumulate == 0


def _share_done(module: TrainingModule) -> float:
    progress, optim = module.progress, module.config.optim
    share = (progress.epoch + progress.batch / module.batches.total) / optim.epochs
    if optim.max_minutes is not None:
        share = max(share, progress.elapsed / optim.max_minutes)
    return min(1.0, share)


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
