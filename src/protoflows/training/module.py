"""The training loop's body, as a LightningModule that drives its optimiser itself."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import torch
from lightning import LightningModule
from torch import Tensor

from protoflows.data import Batch, Split
from protoflows.distributed import all_reduce_sum, world_size
from protoflows.model import evaluating
from protoflows.training.config import TrainConfig
from protoflows.training.datamodule import training_order, validation_batches
from protoflows.training.ema import MovingAverage, copy_into
from protoflows.training.progress import Progress
from protoflows.training.schedule import lr_factor, share_done
from protoflows.training.task import Step, Sums, Task, Where


class TrainingDivergedError(RuntimeError):
    """Too many steps in a row had a loss or gradient that was not finite."""


class TrainingModule(LightningModule):
    """Trains a task and keeps count of it.

    Optimisation is manual: a step is skipped on all processes when it is not finite on one of them,
    and the position within an epoch is this module's own, so that a resumed run makes exactly the
    steps that were left.

    Args:
        task: What is trained.
        config: The run's settings.
        train: Training images, for the data-dependent start.
        validation: Validation images; none where it is None or empty.
        state: A checkpoint to go on from.
        best_average: The averaged weights of the best epoch so far, when going on.
    """

    def __init__(
        self,
        task: Task,
        config: TrainConfig,
        train: Split,
        validation: Split | None = None,
        state: Mapping[str, Any] | None = None,
        best_average: Mapping[str, Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.task, self.config = task, config
        self.model = task.model
        self.train_split = train
        self.validation_split = validation if validation is not None and len(validation) else None
        self.batches = training_order(len(train), config)
        self.progress = Progress()
        self.average: MovingAverage | None = None
        self.best_average = best_average
        self.best_is_new = False
        self.stop_requested = False
        self.interrupted = False
        self._state = state
        self._group_is_good = True
        self._started = 0.0
        if state is not None:
            self.progress.load_state_dict(state["progress"])

    # ---- start and state ------------------------------------------------------------------

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW; the learning rates of its groups are peaks, which `training_step` scales."""
        groups = self.task.parameter_groups()
        for group in groups:
            group["peak_lr"] = group["lr"]
        # Vectors, norms and 1x1 convolutions make hundreds of small tensors: one kernel for all.
        fused = all(p.device.type in ("cpu", "cuda", "mps") for p in self.model.parameters())
        return torch.optim.AdamW(groups, betas=(0.9, self.config.optim.beta2), fused=fused)

    def on_fit_start(self) -> None:
        """Initialise from data, or take over a checkpoint; the average begins after that."""
        self.model.train()
        self.batches = training_order(
            len(self.train_split), self.config, self.trainer.global_rank, self.trainer.world_size
        )
        self._started = time.monotonic()
        if self._state is None:
            self.task.initialize(self.train_split)
        else:
            self.model.load_state_dict(self._state["model"])
            self._adam().load_state_dict(self._state["optimizer"])
        self.average = MovingAverage(self.model, self.config.optim.ema_decay)
        if self._state is not None:
            self.average.load(self._state["average"])
            self._state = None

    def load_average(self, state: Mapping[str, Any]) -> None:
        """Take the averaged weights from a checkpoint of a run that is complete."""
        self.model.load_state_dict(state["model"])
        self.average = MovingAverage(self.model, self.config.optim.ema_decay)
        self.average.load(state["average"])

    def state(self) -> dict[str, Any]:
        """All that going on needs, as tensors and plain containers."""
        assert self.average is not None
        return {
            "model": self.model.state_dict(),
            "average": self.average.shadow,
            "optimizer": self._adam().state_dict(),
            "progress": self.progress.state_dict(),
        }

    def _adam(self) -> torch.optim.Optimizer:
        optimizer = self.optimizers(use_pl_optimizer=False)
        assert isinstance(optimizer, torch.optim.Optimizer)
        return optimizer

    # ---- a step ---------------------------------------------------------------------------

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """One batch; the optimiser steps with the last batch of every `accumulate`."""
        progress, accumulate = self.progress, self.config.optim.accumulate
        total = self.batches.total
        first = progress.batch - progress.batch % accumulate
        if progress.batch == first:
            self._group_is_good = True
        where = Where(
            progress.epoch,
            progress.batch,
            total,
            self.batches.share(progress.batch),
            self.batches.size_of(progress.batch),
            share_done(
                self.config.optim,
                progress.step,
                math.ceil(total / accumulate),
                progress.elapsed,
            ),
        )
        step = self.task.step(batch, where)
        bad_terms = [] if bool(step.losses.total.isfinite()) else step.losses.not_finite()
        if self._agree(step, bad=not bool(step.losses.total.isfinite())):
            self.manual_backward(step.losses.total / min(accumulate, total - first))
            self.task.after_step(batch, step)
        else:
            self._group_is_good = False
        progress.batch += 1
        if progress.batch % accumulate == 0 or progress.batch == total:
            self._finish_group(bad_terms)
        progress.elapsed += (time.monotonic() - self._started) / 60
        self._started = time.monotonic()

    def _agree(self, step: Step, bad: bool) -> bool:
        """Add the batch to the figures of all processes; return whether it is good on all of them.

        The same exchange settles whether anybody wants to stop, so that all do so after one step.
        """
        terms = {"loss": step.losses.total, **step.losses.terms()}
        limit = self.config.optim.max_minutes
        late = limit is not None and self.progress.elapsed >= limit
        # Everybody's clock, too: learning rates that hang on the time have to be the same.
        flags = [float(bad), float(self.stop_requested), float(late), self.progress.elapsed]
        values = list(flags)
        values += [*step.sums, *(float(t.detach()) for t in terms.values())]
        if (processes := world_size()) > 1:
            mine = torch.tensor(values, dtype=torch.float64, device=self.device)
            values = all_reduce_sum(mine).tolist()
        self.progress.elapsed = values[3] / processes
        self.interrupted = values[1] > 0
        self.progress.done = self.progress.done or values[2] > 0
        if values[0] > 0:
            return False
        count = len(flags) + len(step.sums)
        means = [value / processes for value in values[count:]]
        self.progress.count(Sums(*values[len(flags) : count]), dict(zip(terms, means, strict=True)))
        return True

    def _finish_group(self, bad_terms: list[str]) -> None:
        assert self.average is not None
        progress, config = self.progress, self.config.optim
        optimizer = self._adam()
        cause = f"loss term {' and '.join(bad_terms)}" if bad_terms else "loss"
        if self._group_is_good:
            params = [p for group in optimizer.param_groups for p in group["params"]]
            grads = [p.grad for p in params if p.grad is not None]
            norm = torch.nn.utils.get_total_norm(grads)
            if bool(norm.isfinite()):
                if config.clip_norm:
                    torch.nn.utils.clip_grads_with_norm_(params, config.clip_norm, norm)
                self._step(optimizer)
                self.average.update(self.model, progress.step)
                progress.skipped_in_a_row = 0
            else:
                self._group_is_good = False
                cause = f"gradient of {self._bad_gradient()}"
        optimizer.zero_grad(set_to_none=True)
        if not self._group_is_good:
            self._skip(cause)

    def _step(self, optimizer: torch.optim.Optimizer) -> None:
        progress, config = self.progress, self.config.optim
        steps = math.ceil(self.batches.total / config.accumulate)
        factor = lr_factor(config, progress.step, steps, progress.elapsed)
        for group in optimizer.param_groups:
            group["lr"] = group["peak_lr"] * factor
        wrapped = self.optimizers()
        assert not isinstance(wrapped, list)
        wrapped.step()
        progress.step += 1

    def _bad_gradient(self) -> str:
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None and not bool(parameter.grad.isfinite().all()):
                return name
        return "the weights (its norm overflows)"

    def _skip(self, cause: str) -> None:
        assert self.average is not None
        progress, limit = self.progress, self.config.optim.max_skipped
        progress.skipped += 1
        progress.skipped_in_a_row += 1
        self.average.mend_statistics(self.model)
        if progress.skipped_in_a_row >= limit:
            raise TrainingDivergedError(
                f"training has diverged: the {cause} was not finite in {limit} steps in a row "
                f"(epoch {progress.epoch + 1}, batch {progress.batch} of {self.batches.total}). "
                "The last good checkpoint is kept. What helps: a smaller optim.lr or "
                'optim.clip_norm, a longer optim.warmup_epochs, flow.net_dtype "float32"'
            )

    # ---- an epoch -------------------------------------------------------------------------

    def finish_epoch(self) -> dict[str, float]:
        """Validate the averaged weights, write the epoch's row, and go to the next epoch."""
        progress = self.progress
        row: dict[str, float] = {"epoch": progress.epoch + 1, "step": progress.step}
        row["lr"] = self._adam().param_groups[0]["lr"]
        row |= progress.figures()
        row |= self.validate().figures("val")
        row["skipped"] = progress.skipped
        progress.elapsed += (time.monotonic() - self._started) / 60
        self._started = time.monotonic()
        row["minutes"] = round(progress.elapsed, 3)
        progress.rows.append(row)
        self._note_best(row)
        progress.next_epoch()
        patience = self.config.trainer.patience
        stale = patience is not None and progress.epoch - progress.best_epoch >= patience
        progress.done = progress.done or stale or progress.epoch >= self.config.optim.epochs
        return row

    @torch.no_grad()
    def validate(self) -> Sums:
        """The averaged weights' sums over the validation images of all processes."""
        assert self.average is not None
        sums = Sums()
        if self.validation_split is None:
            return sums
        source = validation_batches(
            self.validation_split, self.config, self.trainer.global_rank, self.trainer.world_size
        )
        with self.average.applied(self.model), evaluating(self.model):
            for batch in source:
                if len(batch.y) == 0:  # fewer images than processes
                    continue
                moved = Batch(batch.x.to(self.device), batch.y.to(self.device), batch.index)
                sums = sums.plus(self.task.validate(moved))
        if world_size() > 1:
            mine = torch.tensor(list(sums), dtype=torch.float64, device=self.device)
            sums = Sums(*all_reduce_sum(mine).tolist())
        return sums

    def _note_best(self, row: Mapping[str, float]) -> None:
        progress, weights = self.progress, self.config.loss
        self.best_is_new = False
        if self.validation_split is None:
            return
        bits, accuracy = row["val_bits_per_dim"], row.get("val_accuracy")
        figure = bits
        if accuracy is not None and self.config.trainer.monitor == "accuracy":
            figure = -accuracy
        elif accuracy is not None and self.config.trainer.monitor == "loss":
            figure = weights.cross_entropy * row["val_cross_entropy"] + weights.elbo * bits
        if progress.best is None or figure < progress.best:
            assert self.average is not None
            progress.best, progress.best_epoch = figure, progress.epoch + 1
            self.best_is_new = True
            self.best_average = {n: t.detach().clone() for n, t in self.average.shadow.items()}

    def export_weights(self) -> None:
        """Leave the averaged weights in the model, those of the last or the best epoch."""
        assert self.average is not None
        trainer = self.config.trainer
        best = trainer.export == "best" or trainer.patience is not None
        weights = self.best_average if best and self.best_average else self.average.shadow
        copy_into(self.model, weights)
        self.model.eval()
