"""The flow's units one by one: does each undo itself, and is its log-determinant right?"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from protoflows.flows import AffineCoupling, Chain, DenseFlow

_CROP = 2
_TYPICAL = 1e-6  # keeps maps of zeros from dividing by 0


class LogDetCheck(NamedTuple):
    """A log-determinant, twice.

    Attributes:
        where: Name of the unit and the layers in it that were differentiated.
        reported: As the layers report it.
        exact: log|det| of the Jacobian that autograd finds.
        values: Size of that Jacobian.
    """

    where: str
    reported: float
    exact: float
    values: int


@torch.no_grad()
def check_units(flow: DenseFlow, images: Tensor, seeds: Tensor) -> dict[str, float]:
    """Each unit's round trip on the features it really gets: max |f⁻¹(f(x)) − x| / rms(x).

    Args:
        flow: The flow, in eval mode.
        images: uint8 (N, C, H, W).
        seeds: One seed per image.
    """
    found = {}
    for name, (unit, x) in _features(flow, images, seeds).items():
        z, _ = unit(x)
        scale = x.square().mean().sqrt().clamp_min(_TYPICAL)
        error = (unit.inverse(z) - x).abs().max() / scale
        found[name] = float(error) if bool(error.isfinite()) else float("inf")
    return found


def check_log_det(flow: DenseFlow, images: Tensor, seeds: Tensor, *, seed: int = 0) -> LogDetCheck:
    """Compare a log-determinant with the exact one, in float64 on a 2x2 crop of real features.

    A whole flow's Jacobian is out of reach, but its log-determinant is a sum over layers. Of a
    random unit, the layers up to and including a random coupling are taken, from the actnorm that
    goes before it: every kind of layer that has a log-determinant.

    Args:
        flow: The flow, in eval mode.
        images: uint8 (N, C, H, W).
        seeds: One seed per image.
        seed: Of the choice.
    """
    generator = torch.Generator().manual_seed(seed)

    def choose(count: int) -> int:
        return int(torch.randint(count, (), generator=generator))

    units = list(_features(flow, images, seeds).items())
    name, (unit, x) = units[choose(len(units))]
    ends = [i for i, layer in enumerate(unit.layers) if isinstance(layer, AffineCoupling)]
    at = choose(len(ends))
    start = ends[at - 1] + 1 if at else 0
    stop = ends[at] + 1
    with torch.no_grad():  # features as they enter those layers
        for layer in unit.layers[:start]:
            x, _ = layer(x)
    layers = copy.deepcopy(unit.layers[start:stop]).cpu().double().eval()
    for layer in layers:
        if isinstance(layer, AffineCoupling):
            layer.net_dtype = None  # bfloat16 has no digits to compare
    chain = Chain(list(layers)).eval()  # type: ignore[arg-type]
    crop = x[:1, :, :_CROP, :_CROP].cpu().double()
    with torch.no_grad():
        reported = float(chain(crop)[1])
    jacobian = _jacobian(chain, crop)
    exact = float(torch.linalg.slogdet(jacobian).logabsdet)
    where = f"{name}, layers {start}-{stop - 1}"
    return LogDetCheck(where, reported, exact, len(jacobian))


def _jacobian(chain: Chain, x: Tensor) -> Tensor:
    """∂z/∂x of one map, (D, D), a row for each copy of x in one backward pass."""
    dims = x.numel()
    copies = x.expand(dims, *x.shape[1:]).clone().requires_grad_()
    with torch.enable_grad():
        z, _ = chain(copies)
        own = z.flatten(1).diagonal().sum()  # z_i of copy i: images do not see each other
        (gradient,) = torch.autograd.grad(own, copies)
    return gradient.flatten(1)


def _features(flow: DenseFlow, images: Tensor, seeds: Tensor) -> dict[str, tuple[Chain, Tensor]]:
    """The units of all blocks with what enters them, by name."""
    seen: dict[str, tuple[Chain, Tensor]] = {}
    with _watching(flow, seen), torch.no_grad():
        flow.encode(images, seed=seeds)
    return seen


@contextmanager
def _watching(flow: DenseFlow, seen: dict[str, tuple[Chain, Tensor]]) -> Iterator[None]:
    handles = []
    for name, module in flow.named_modules():
        if name.startswith("blocks.") and isinstance(module, Chain):
            handles.append(module.register_forward_pre_hook(_keep(name, seen)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _keep(
    name: str, seen: dict[str, tuple[Chain, Tensor]]
) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
    def hook(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        assert isinstance(module, Chain)
        seen[name] = (module, args[0].detach().clone())

    return hook
