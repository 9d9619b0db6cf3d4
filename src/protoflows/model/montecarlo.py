"""Averages over draws of the injected noise, in batches of bounded size."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from protoflows.flows import Encoding
from protoflows.model.seeds import draw_seeds


class Scores(NamedTuple):
    """All that a single pass says about a batch of images.

    Attributes:
        log_prob_classes: log p(x|c) for the noise drawn, (N, C).
        prototype_log_likelihood: log N(z; c, k), (N, C, K); −inf where a prototype is absent.
        log_det: Every term of log p(x|c) but log p(z|c), (N,).
        latent: z, (N, c, h, w).
    """

    log_prob_classes: Tensor
    prototype_log_likelihood: Tensor
    log_det: Tensor
    latent: Tensor


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluate in eval mode; every submodule is left in the mode it was found in."""
    modes = [(m, m.training) for m in module.modules()]
    if not any(training for _, training in modes):
        yield
        return
    module.eval()
    try:
        yield
    finally:
        for m, training in modes:
            m.training = training


@torch.no_grad()
def average_draws(
    encode: Callable[[Tensor, Tensor], Encoding],
    evaluate: Callable[[Encoding], Tensor],
    x: Tensor,
    *,
    samples: int,
    mean: Literal["arithmetic", "importance"],
    seed: int | Tensor,
    batch_size: int,
) -> Tensor:
    """Average log-densities over draws of the noise: their mean, or the log of the mean of exp.

    Small sets travel several draws to a batch. Memory is bounded by the batch, not by the number of
    draws: only a running average is kept.

    Args:
        encode: (images, one seed each) → encoding.
        evaluate: Encoding → log-densities (batch, …).
        x: Images (N, C, H, W).
        samples: Draws per image.
        mean: "arithmetic", or "importance" for log-mean-exp.
        seed: A number, or one number per image, from which all draws follow.
        batch_size: Images per pass.
    """
    if samples < 1:
        raise ValueError(f"samples must be ≥ 1, got {samples}")
    if batch_size < 1:
        raise ValueError(f"batch_size must be ≥ 1, got {batch_size}")
    if isinstance(seed, Tensor) and (seed.is_floating_point() or tuple(seed.shape) != (len(x),)):
        raise ValueError(
            f"seed must be an int or hold one integer per image, shape ({len(x)},), "
            f"got {seed.dtype} {tuple(seed.shape)}"
        )
    if len(x) == 0:
        return evaluate(encode(x, torch.zeros(0, dtype=torch.int64)))
    parts = []
    for start in range(0, len(x), batch_size):
        images = x[start : start + batch_size]
        num = len(images)
        together = max(1, batch_size // num)
        total: Tensor | None = None
        for first in range(0, samples, together):
            draws = range(first, min(first + together, samples))
            seeds = torch.cat([draw_seeds(seed, start, num, s) for s in draws])
            repeated = images.repeat(len(draws), *[1] * (images.dim() - 1))
            table = evaluate(encode(repeated, seeds)).unflatten(0, (len(draws), num))
            for (
                row
            ) in table:  # one by one: the sum's order is that of the draws however they travel
                if total is None:
                    total = row
                else:
                    total = total + row if mean == "arithmetic" else torch.logaddexp(total, row)
        assert total is not None
        parts.append(total / samples if mean == "arithmetic" else total - math.log(samples))
    return torch.cat(parts)


def check_rule(rule: str, plain: str) -> Literal["arithmetic", "importance"]:
    """The mean that a rule stands for: `plain` is what the arithmetic one is called here."""
    if rule not in (plain, "importance"):
        raise ValueError(f"rule must be {plain!r} or 'importance', got {rule!r}")
    return "importance" if rule == "importance" else "arithmetic"


def check_labels(y: int | Tensor, num: int, num_classes: int) -> Tensor:
    """A class, or one per image, as int64 (num,)."""
    labels = torch.as_tensor(y)
    if labels.is_floating_point() or labels.dtype == torch.bool or labels.ndim > 1:
        raise ValueError(
            f"y must be a class or one class per image, got {labels.dtype} {tuple(labels.shape)}"
        )
    if labels.ndim == 1 and len(labels) != num:
        raise ValueError(f"y must hold one class for each of the {num} images, got {len(labels)}")
    if labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < num_classes:
        raise ValueError(
            f"y must be in 0…{num_classes - 1}, got values from "
            f"{int(labels.min())} to {int(labels.max())}"
        )
    return labels.to(torch.int64).expand(num)
