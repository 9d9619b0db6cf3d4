"""The moving average of all weights, which is what gets validated and exported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from protoflows.flows.nets.norm import BatchNorm


class MovingAverage:
    """w̄ ← w̄ + (1 − d)·(w − w̄) after every step, with d = min(decay, (1 + step) / (10 + step)).

    The small decay of the first steps lets go of the start, which a short training would otherwise
    end with. Batch norm's running statistics are averaged along, as they belong to the weights that
    made them; everything else that is not a floating-point parameter (masks, priors, flags) is not
    averaged but shared with the model.

    Make it after all data-dependent initialisation: an average that began with raw weights would
    drag them along.

    Args:
        model: Whose weights are averaged.
        decay: The decay that is reached in the end; 0 makes the average the weights themselves.

    Example:
        >>> layer = nn.Linear(1, 1, bias=False)
        >>> average = MovingAverage(layer, decay=0.5)
        >>> with torch.no_grad():
        ...     _ = layer.weight.add_(1.0)
        >>> average.update(layer, step=1)  # decay 2 / 11
        >>> bool((layer.weight - average.shadow["weight"] - 2 / 11).abs() < 1e-6)
        True
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.shadow = {name: t.detach().clone() for name, t in averaged_tensors(model).items()}

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Move the average towards the weights after optimiser step `step` (counted from 1)."""
        decay = min(self.decay, (1 + step) / (10 + step))
        live = averaged_tensors(model)
        torch._foreach_lerp_(list(self.shadow.values()), [live[n] for n in self.shadow], 1 - decay)

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """Let the model hold the average inside the block, and its own weights again after it."""
        own = {name: t.detach().clone() for name, t in averaged_tensors(model).items()}
        copy_into(model, self.shadow)
        try:
            yield
        finally:
            copy_into(model, own)

    @torch.no_grad()
    def mend_statistics(self, model: nn.Module) -> None:
        """Put back batch-norm statistics that NaN or infinite activations have ruined."""
        for name, tensor in statistics(model).items():
            if not bool(tensor.isfinite().all()):
                tensor.copy_(self.shadow[name])

    def load(self, shadow: Mapping[str, Tensor]) -> None:
        """Take over an average from a checkpoint, on this one's device."""
        if shadow.keys() != self.shadow.keys():
            raise ValueError("the checkpoint's moving average belongs to another model")
        for name, tensor in self.shadow.items():
            tensor.copy_(shadow[name])


def averaged_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and batch-norm statistics, by name."""
    return {**dict(model.named_parameters()), **statistics(model)}


def statistics(model: nn.Module) -> dict[str, Tensor]:
    """Running means and variances of all batch-norm layers, by name."""
    found = {}
    for prefix, module in model.named_modules():
        if isinstance(module, BatchNorm | nn.modules.batchnorm._BatchNorm):
            for name in ("running_mean", "running_var"):
                tensor = getattr(module, name)
                if tensor is not None:
                    found[f"{prefix}.{name}" if prefix else name] = tensor
    return found


@torch.no_grad()
def copy_into(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors over the model's own; in place, so that optimisers keep hold of them."""
    live = averaged_tensors(model)
    torch._foreach_copy_([live[name] for name in tensors], list(tensors.values()))
