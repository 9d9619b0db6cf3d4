"""Where training stands: all counters that a checkpoint has to bring back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from protoflows.training.task import Sums


@dataclass
class Progress:
    """The counters of a run, the same on every process.

    Attributes:
        epoch: Epochs completed.
        batch: Batches completed in the present epoch.
        step: Optimiser steps made.
        elapsed: Minutes of training, over all sittings.
        skipped: Steps left out because of a loss or gradient that was not finite.
        skipped_in_a_row: Those since the last good step.
        sums: The present epoch's sums over images.
        terms: The present epoch's sums of the loss's terms, over batches.
        batches_counted: Batches in `terms`.
        rows: One row of figures per completed epoch, as in log.csv.
        best: Best figure of the monitored kind (smaller is better), None before the first.
        best_epoch: Epoch, counted from 1, that reached it.
        done: Whether training is complete.
    """

    epoch: int = 0
    batch: int = 0
    step: int = 0
    elapsed: float = 0.0
    skipped: int = 0
    skipped_in_a_row: int = 0
    sums: Sums = field(default_factory=Sums)
    terms: dict[str, float] = field(default_factory=dict)
    batches_counted: int = 0
    rows: list[dict[str, float]] = field(default_factory=list)
    best: float | None = None
    best_epoch: int = 0
    done: bool = False

    def count(self, sums: Sums, terms: Mapping[str, float]) -> None:
        """Add a batch to the present epoch's figures."""
        self.sums = self.sums.plus(sums)
        for name, value in terms.items():
            self.terms[name] = self.terms.get(name, 0.0) + value
        self.batches_counted += 1

    def figures(self) -> dict[str, float]:
        """The present epoch's figures on training images."""
        counted = max(1, self.batches_counted)
        losses = {f"train_{name}": value / counted for name, value in self.terms.items()}
        return {**losses, **self.sums.figures("train")}

    def next_epoch(self) -> None:
        """Go to the start of the next epoch."""
        self.epoch, self.batch = self.epoch + 1, 0
        self.sums, self.terms, self.batches_counted = Sums(), {}, 0

    def state_dict(self) -> dict[str, Any]:
        """Plain containers and numbers."""
        return {**dataclasses.asdict(self), "sums": list(self.sums)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Undo `state_dict`, in place."""
        for name in (f.name for f in dataclasses.fields(self)):
            value = state[name]
            setattr(self, name, Sums(*value) if name == "sums" else value)
