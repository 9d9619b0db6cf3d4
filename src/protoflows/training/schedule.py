"""How far training is, and the learning rate that goes with it."""

from __future__ import annotations

import math

from protoflows.training.config import OptimConfig


def share_done(config: OptimConfig, step: int, steps_per_epoch: int, elapsed: float = 0.0) -> float:
    """How much of training is done, from 0 to 1: of its steps, or of its time if that is more.

    Args:
        config: The optimiser's settings.
        step: Steps already made.
        steps_per_epoch: Steps in one epoch.
        elapsed: Minutes of training so far.
    """
    done = step / (config.epochs * steps_per_epoch)
    if config.max_minutes is not None:
        done = max(done, elapsed / config.max_minutes)
    return min(1.0, done)


def lr_factor(config: OptimConfig, step: int, steps_per_epoch: int, elapsed: float = 0.0) -> float:
    """Factor on every learning rate for optimiser step `step` (counted from 0).

    Linear warm-up over `warmup_epochs`, then a cosine over what is left. Where the time is limited,
    the share of it that is gone counts if it is more than the share of the steps.

    Args:
        config: The optimiser's settings.
        step: Steps already made.
        steps_per_epoch: Steps in one epoch.
        elapsed: Minutes of training so far.

    Example:
        >>> config = OptimConfig(epochs=10, warmup_epochs=2)
        >>> [round(lr_factor(config, step, 1), 3) for step in (0, 1, 2, 6)]
        [0.5, 1.0, 1.0, 0.5]
    """
    total = config.epochs * steps_per_epoch
    warmup = min(round(config.warmup_epochs * steps_per_epoch), total)
    warm = min(1.0, (step + 1) / warmup) if warmup else 1.0
    if config.schedule == "constant":
        return warm
    done = max(0.0, (step - warmup) / max(1, total - warmup))
    if config.max_minutes is not None:
        done = max(done, elapsed / config.max_minutes)
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
    return warm * (config.final_lr + (1 - config.final_lr) * cosine)
