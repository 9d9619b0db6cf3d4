"""Backward pass that recomputes activations by inversion: memory does not grow with depth."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from protoflows.distributed import all_reduce_sum, world_size
from protoflows.flows.base import Bijection, Rewound
from protoflows.flows.nets.norm import frozen_statistics

if TYPE_CHECKING:
    from protoflows.flows.chain import Chain

TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3}
TOLERANCE_LOW_PRECISION = 5e-2
"""Largest trusted round-trip error, rms(x̂ − x) / rms(x).

The former with nets in full precision, the latter in 16-bit.
"""


class RoundTripWarning(UserWarning):
    """The inverse was too inexact to differentiate through.

    The gradient was taken from stored inputs instead.
    """


def reversible_apply(chain: Chain, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor]:
    """Run the chain, keeping its two ends alone for the backward pass.

    The parameters are inputs of the autograd node and their gradients its outputs, so whatever
    hangs on a parameter's gradient (accumulation, hooks, DistributedDataParallel's buckets) works
    as it does without recomputation.
    """
    params = [p for p in chain.parameters() if p.requires_grad]
    z, log_det = _Reversible.apply(chain, x, context, *params)
    return z, log_det


class _Reversible(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        chain: Chain,
        x: Tensor,
        context: Tensor | None,
        *params: Tensor,
    ) -> tuple[Tensor, Tensor]:
        z, log_det = chain.run(x.to(chain.carried_dtype(x)), context)
        ctx.chain = chain
        ctx.save_for_backward(x, z, context)
        return z.to(x.dtype), log_det.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_z: Tensor, grad_log_det: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        x, z, context = ctx.saved_tensors
        chain: Chain = ctx.chain
        grad_z, grad_log_det = grad_z.to(z.dtype), grad_log_det.to(z.dtype)
        with torch.autocast(z.device.type, enabled=False), frozen_statistics():
            found = _rewind(chain, z, grad_z, grad_log_det, context)
            error = round_trip_error(found.x, x)
            trusted = error <= _tolerance(chain, x)  # False where the error is no number
            if not trusted:
                warnings.warn(
                    f"reversible backward: the inverse misses its input by {error:.2g} of its rms "
                    f"(trusted up to {_tolerance(chain, x):.0e}); this step's gradient was taken "
                    'from stored inputs instead. If it goes on, use memory="checkpoint", '
                    'net_dtype="float32" or a smaller learning rate',
                    RoundTripWarning,
                    stacklevel=2,
                )
            if not _by_all(trusted, chain, z):
                found = _replay(chain, x.to(z.dtype), grad_z, grad_log_det, context)
        return (None, found.grad_x.to(x.dtype), found.grad_context, *found.grad_params)


def round_trip_error(found: Tensor, true: Tensor) -> float:
    """Return rms(x̂ − x) / rms(x): not a number where either is not finite.

    The gradient's relative error is of the same size (measured on the paper's configuration with
    bfloat16 nets: 0.015 here, 0.011 there).
    """
    rms = true.square().mean().sqrt().clamp_min(torch.finfo(true.dtype).tiny)
    return float((found - true).square().mean().sqrt() / rms)


def _by_all(trusted: bool, chain: Chain, like: Tensor) -> bool:
    """Whether all processes trust their round trips.

    Batch norms that train exchange their moments: what one process evaluates again, all have to.
    """
    if world_size() == 1 or not chain.training:
        return trusted
    return float(all_reduce_sum(like.new_full((1,), float(not trusted)))) == 0


def _tolerance(chain: Chain, x: Tensor) -> float:
    return TOLERANCE_LOW_PRECISION if chain.low_precision else TOLERANCE.get(x.dtype, 1e-3)


def _rewind(
    chain: Chain, z: Tensor, grad_z: Tensor, grad_log_det: Tensor, context: Tensor | None
) -> Rewound:
    chain.prepare_inverse()
    grads = _Gradients(chain, context)
    for step in reversed(chain.steps()):
        found = step.rewind(z, grad_z, grad_log_det, context)
        grads.add(step, found)
        z, grad_z = found.x, found.grad_x
    return Rewound(z, grad_z, grads.context, grads.of_params())


def _replay(
    chain: Chain, x: Tensor, grad_z: Tensor, grad_log_det: Tensor, context: Tensor | None
) -> Rewound:
    """Take the same gradient from inputs that are computed forwards: more memory, no inverse."""
    steps, inputs = chain.steps(), [x]
    with torch.no_grad():
        for step in steps[:-1]:
            inputs.append(step.rewindable(inputs[-1], context)[0])
    grads = _Gradients(chain, context)
    for step, start in zip(reversed(steps), reversed(inputs), strict=True):
        found = step.replay(start, grad_z, grad_log_det, context)
        grads.add(step, found)
        grad_z = found.grad_x
    return Rewound(x, grad_z, grads.context, grads.of_params())


class _Gradients:
    """Collects the gradients of a chain's context and parameters.

    Those of the parameters come in the order of `chain.parameters()`.
    """

    def __init__(self, chain: Chain, context: Tensor | None) -> None:
        self._chain = chain
        self._params: dict[Tensor, Tensor | None] = {}
        self.context = None if context is None else torch.zeros_like(context)

    def add(self, layer: Bijection, step: Rewound) -> None:
        self._params.update(
            zip([p for p in layer.parameters() if p.requires_grad], step.grad_params, strict=True)
        )
        if self.context is not None and step.grad_context is not None:
            self.context += step.grad_context

    def of_params(self) -> list[Tensor | None]:
        return [self._params.get(p) for p in self._chain.parameters() if p.requires_grad]
