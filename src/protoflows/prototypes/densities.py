"""Diagonal Gaussian log-densities of a whole batch under all prototypes at once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

LOG_2PI = math.log(2 * math.pi)
# A block of latent dimensions holds about this many numbers per temporary: 1 MB in float64, so
# that a block stays in the cache and the memory on top of inputs and outputs stays small.
BLOCK_NUMBERS = 1 << 17
MIN_BLOCK_DIMS = 64


def accumulation_dtype(device: torch.device) -> torch.dtype:
    """The widest float of a device: float64, or float32 where there is none (Apple's GPUs)."""
    return torch.float32 if device.type == "mps" else torch.float64


def gaussian_log_prob(z: Tensor, mean: Tensor, std: Tensor, weight: Tensor | None = None) -> Tensor:
    """log N(z_n; mean_p, diag(std_p^2)) for every point n and Gaussian p (terms of `eq:gmmClass`).

    With precision q = 1/std^2 and everything centred on the average mean, the square is expanded,

        sum_d q (z - mean)^2 = z^2 . q - 2 z . (mean q) + mean^2 . q,

    which makes the whole table two matrix products instead of N x P x D broadcasts. The expansion
    cancels: with means 30 std apart and D = 5,000 its terms are a thousand times the result, and a
    result of 10^6 nats has no 0.01 left in float32. So the products are taken in float64, block by
    block over the latent dimensions, which costs memory for one block only, and the table is
    returned in float64. Where a device has no float64 everything is float32.

    Args:
        z: points (N, D).
        mean: means (P, D).
        std: standard deviations (P, D), all positive.
        weight: optional (N, D), a factor for each latent dimension's term of each point; no
            gradient is made for it.

    Returns:
        Log-densities (N, P) in `accumulation_dtype`; differentiable in z, mean and std (a second
        derivative keeps all temporaries, the first only one block of them).

    >>> gaussian_log_prob(torch.zeros(1, 2), torch.zeros(1, 2), torch.ones(1, 2))
    tensor([[-1.8379]], dtype=torch.float64)
    """
    if z.ndim != 2 or mean.ndim != 2 or mean.shape != std.shape or z.shape[1] != mean.shape[1]:
        raise ValueError(
            "z must be (N, D) and mean and std both (P, D), got "
            f"{tuple(z.shape)}, {tuple(mean.shape)} and {tuple(std.shape)}"
        )
    if weight is not None and weight.shape != z.shape:
        raise ValueError(
            f"weight must have the shape of z {tuple(z.shape)}, got {tuple(weight.shape)}"
        )
    table: Tensor = _GaussianLogProb.apply(z, mean, std, weight)
    return table


class _Block(NamedTuple):
    """One block of latent dimensions, in the accumulation dtype."""

    dims: slice
    z: Tensor  # (N, B), centred
    mean: Tensor  # (P, B), centred
    std: Tensor  # (P, B)
    precision: Tensor  # (P, B)
    weight: Tensor | None  # (N, B)


def _blocks(z: Tensor, mean: Tensor, std: Tensor, weight: Tensor | None) -> Iterator[_Block]:
    dtype = accumulation_dtype(z.device)
    size = max(MIN_BLOCK_DIMS, BLOCK_NUMBERS // max(1, len(z) + len(mean)))
    for start in range(0, z.shape[1], size):
        dims = slice(start, start + size)
        mu = mean[:, dims].to(dtype)
        centre = mu.mean(dim=0)
        sigma = std[:, dims].to(dtype)
        yield _Block(
            dims=dims,
            z=z[:, dims].to(dtype) - centre,
            mean=mu - centre,
            std=sigma,
            precision=sigma.square().reciprocal_(),
            weight=None if weight is None else weight[:, dims].to(dtype),
        )


class _GaussianLogProb(torch.autograd.Function):
    """The table of log-densities, rebuilt block by block in the backward pass."""

    @staticmethod
    def forward(z: Tensor, mean: Tensor, std: Tensor, weight: Tensor | None) -> Tensor:
        dtype = accumulation_dtype(z.device)
        with torch.autocast(z.device.type, enabled=False):
            table = torch.zeros(len(z), len(mean), dtype=dtype, device=z.device)
            if weight is None:
                constant = torch.full((len(mean),), z.shape[1] * LOG_2PI, dtype=dtype).to(z.device)
            for block in _blocks(z, mean, std, weight):
                scaled = block.mean * block.precision
                log_std = block.std.log()
                if block.weight is None:
                    constant += torch.linalg.vecdot(scaled, block.mean)
                    constant.add_(log_std.sum(dim=1), alpha=2)
                    table.addmm_(block.z.square(), block.precision.T, alpha=-0.5)
                    table.addmm_(block.z, scaled.T)
                else:
                    offset = log_std.mul_(2).addcmul_(scaled, block.mean).add_(LOG_2PI)
                    weighted = block.z * block.weight
                    table.addmm_(weighted * block.z, block.precision.T, alpha=-0.5)
                    table.addmm_(weighted, scaled.T)
                    table.addmm_(block.weight, offset.T, alpha=-0.5)
            return table if weight is not None else table.sub_(constant, alpha=0.5)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """With t_n = z_n - centre and sums s_j = sum_n grad_np weight_nd t_nd^j.

        d/dz    = weight (grad (mean q) - t (grad q))
        d/dmean = q (s_1 - mean s_0)
        d/dstd  = (q (s_2 - 2 mean s_1 + mean^2 s_0) - s_0) / std
        """
        z, mean, std, weight = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True: the gradient must be differentiable too
            return _differentiable_backward(ctx.needs_input_grad, grad, z, mean, std, weight)
        need_z, need_mean, need_std, _ = ctx.needs_input_grad
        grad_z = torch.empty_like(z) if need_z else None
        grad_mean = torch.empty_like(mean) if need_mean else None
        grad_std = torch.empty_like(std) if need_std else None
        with torch.autocast(z.device.type, enabled=False):
            total = grad.sum(dim=0)[:, None]
            for block in _blocks(z, mean, std, weight):
                dims, t, mu, q, w = block.dims, block.z, block.mean, block.precision, block.weight
                if grad_z is not None:
                    piece = (grad @ (mu * q)).addcmul_(grad @ q, t, value=-1)
                    grad_z[:, dims] = piece if w is None else piece.mul_(w)
                if grad_mean is None and grad_std is None:
                    continue
                weighted = t if w is None else t * w
                s0 = total if w is None else grad.T @ w
                residual = (grad.T @ weighted).addcmul_(mu, s0, value=-1)  # s_1 - mean s_0
                if grad_mean is not None:
                    grad_mean[:, dims] = residual * q
                if grad_std is not None:
                    # s_2 - 2 mean s_1 + mean^2 s_0 = s_2 - mean (2 (s_1 - mean s_0) + mean s_0)
                    second = grad.T @ (weighted * t)
                    second.addcmul_(mu, residual.mul_(2).addcmul_(mu, s0), value=-1)
                    grad_std[:, dims] = second.mul_(q).sub_(s0).div_(block.std)
        return grad_z, grad_mean, grad_std, None


def _differentiable_backward(
    needed: tuple[bool, ...],
    grad: Tensor,
    z: Tensor,
    mean: Tensor,
    std: Tensor,
    weight: Tensor | None,
) -> tuple[Tensor | None, ...]:
    """The same gradients out of plain operations, for second derivatives."""
    # Aliases, so that a z that depends on the means is not followed back to them here.
    z, mean, std = z.view_as(z), mean.view_as(mean), std.view_as(std)
    dtype = accumulation_dtype(z.device)
    with torch.autocast(z.device.type, enabled=False):
        centre = mean.to(dtype).mean(dim=0)
        t, mu, sigma = z.to(dtype) - centre, mean.to(dtype) - centre, std.to(dtype)
        w = torch.ones_like(t) if weight is None else weight.to(dtype)
        q = sigma.square().reciprocal()
        offset = mu.square() * q + 2 * sigma.log() + LOG_2PI
        table = (w * t) @ (mu * q).T - 0.5 * ((w * t.square()) @ q.T + w @ offset.T)
        chosen = [t for t, need in zip((z, mean, std), needed, strict=False) if need]
        grads = iter(torch.autograd.grad(table, chosen, grad, create_graph=True))
    return tuple(next(grads) if need else None for need in needed)
