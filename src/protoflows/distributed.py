"""Sums over all processes, plain and differentiable; with a single process both do nothing."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor


def world_size() -> int:
    """Return how many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def all_reduce_sum(value: Tensor) -> Tensor:
    """Return the sum of `value` over all processes (no gradient)."""
    if world_size() == 1:
        return value
    total = value.detach().clone()
    dist.all_reduce(total)
    return total


def all_reduce_sum_grad(value: Tensor) -> Tensor:
    """Return the sum of `value` over all processes; its gradient is summed over them as well."""
    if world_size() == 1:
        return value
    from torch.distributed.nn.functional import all_reduce

    return all_reduce(value)
