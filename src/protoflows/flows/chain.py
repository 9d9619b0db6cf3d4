"""Layers in a row, and the three ways to pay for their backward pass."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from protoflows.flows.base import Bijection, ConstantJacobian
from protoflows.flows.conv1x1 import InvertibleConv, constants_of, log_det_sum
from protoflows.flows.fused import fused
from protoflows.flows.nets.norm import frozen_statistics
from protoflows.flows.reversible import reversible_apply

MEMORY_MODES = ("store", "checkpoint", "reversible")


class Chain(Bijection):
    """A composition of bijections z = f_n(…f_1(x)), all at one resolution.

    Memory modes of the backward pass:
        store: autograd keeps every activation.
        checkpoint: each layer's input is kept, the rest is computed again.
        reversible: only the chain's ends are kept; layers are inverted from the output on.

    Args:
        layers: The bijections, first to last.
        memory: One of `MEMORY_MODES`.

    Example:
        >>> from protoflows.flows.actnorm import ActNorm
        >>> chain = Chain([ActNorm(4), InvertibleConv(4)])
        >>> z, log_det = chain(torch.randn(2, 4, 3, 3))
        >>> z.shape, log_det.shape
        (torch.Size([2, 4, 3, 3]), torch.Size([2]))
    """

    def __init__(self, layers: Sequence[Bijection], memory: str = "store") -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.memory = memory

    def extra_repr(self) -> str:
        """Describe the chain."""
        return f"memory={self.memory}"

    def forward(self, x: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Map x to z; return z and the summed log-determinant (N,)."""
        if torch.is_grad_enabled() and self.memory == "reversible":
            z, log_det = reversible_apply(self, x, context)
        else:
            recomputes = torch.is_grad_enabled() and self.memory == "checkpoint"
            run = self._run_checkpointed if recomputes else self.run
            z, log_det = run(x.to(self.carried_dtype(x)), context)
        constant = x.shape[-2] * x.shape[-1] * self.constant_log_det()
        return z.to(x.dtype), log_det.to(x.dtype) + constant.to(x.dtype)

    def carried_dtype(self, x: Tensor) -> torch.dtype:
        """Return what maps are carried in between layers, in both directions.

        float64 where nets compute in float32: then the inputs that a reversible backward pass finds
        again round to the very float32 values that the nets saw, every ReLU stands as it stood, and
        the gradient is that of stored activations. Nets in 16 bits make larger errors themselves.
        """
        if x.dtype != torch.float32 or x.device.type == "mps" or self.low_precision:
            return x.dtype
        return torch.float64

    @property
    def low_precision(self) -> bool:
        """Whether nets compute in 16 bits."""
        dtypes = {getattr(layer, "net_dtype", None) for layer in self.layers}
        return bool(dtypes & {torch.bfloat16, torch.float16})

    def run(self, x: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Apply all layers; the log-det leaves out the constant terms of `constant_log_det`."""
        log_det = x.new_zeros(len(x))
        for step in self.steps():
            x, term = step.rewindable(x, context)
            if term is not None:
                log_det = log_det + term
        return x, log_det

    def steps(self) -> list[Bijection]:
        """Return the layers as they are evaluated, pairs with a joint form as one."""
        return fused(self.layers)  # type: ignore[arg-type]

    def constant_log_det(self) -> Tensor:
        """Return Σ of `log_det_per_position` over the layers that have one.

        1x1 convolutions of equal size share one call.
        """
        convs: dict[int, list[InvertibleConv]] = defaultdict(list)
        total = (
            next(self.parameters()).new_zeros(())
            if any(True for _ in self.parameters())
            else torch.zeros(())
        )
        for layer in self.layers:
            if isinstance(layer, InvertibleConv):
                convs[layer.channels].append(layer)
            elif isinstance(layer, ConstantJacobian):
                total = total + layer.log_det_per_position()
        for group in convs.values():
            total = total + log_det_sum(group)
        return total

    def inverse(self, z: Tensor, context: Tensor | None = None) -> Tensor:
        """Map z back through all layers, last to first; running statistics stay as they are."""
        self.prepare_inverse()
        with frozen_statistics():
            x = z.to(self.carried_dtype(z))
            for step in reversed(self.steps()):
                x = step.inverse(x, context)
        return x.to(z.dtype)

    def prepare_inverse(self) -> None:
        """Invert equally sized 1x1 convolutions together."""
        convs: dict[int, list[InvertibleConv]] = defaultdict(list)
        for layer in self.layers:
            if isinstance(layer, InvertibleConv):
                convs[layer.channels].append(layer)
        for group in convs.values():
            constants_of(group)

    def _run_checkpointed(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor]:
        log_det = x.new_zeros(len(x))
        for step in self.steps():
            if not any(True for _ in step.parameters()):
                x, term = step.rewindable(x, context)
            else:
                x, term = recompute(step.rewindable, x, context)
            if term is not None:
                log_det = log_det + term
        return x, log_det


def recompute(function: Callable[..., Any], *args: Tensor | None) -> Any:  # noqa: ANN401
    """Call a function; the backward pass computes its activations again, none is kept."""
    return checkpoint(
        function, *args, use_reentrant=False, preserve_rng_state=False, context_fn=_contexts
    )


def _contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return contexts for the first run and the recomputation.

    Only the first may count statistics.
    """
    return nullcontext(), frozen_statistics()
