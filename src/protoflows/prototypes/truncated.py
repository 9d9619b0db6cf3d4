"""Standard normal draws inside a radius: the truncation trick, without clipping."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

# The largest float64 below 1: the inverse error function of 1 itself is infinite.
_BELOW_ONE = 1.0 - 2.0**-53


def sample_truncated_normal(
    shape: Sequence[int],
    radius: float | None,
    generator: torch.Generator,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Tensor:
    """Exact draws of a standard normal, every coordinate conditioned on |e_i| <= radius.

    Scaled by a Gaussian's own standard deviations the radius counts in units of them, as the
    paper's supplement asks for. The draw inverts the distribution function: for u uniform on
    (-1, 1),

        e = sqrt(2) erfinv(u erf(radius / sqrt(2))).

    The error function is odd and linear at 0, so nothing cancels however small the radius, and
    the density inside is the normal's own shape, with no mass piled up on the edge.

    Args:
        shape: shape of the result.
        radius: truncation; None or inf for the plain normal, 0 for zeros.
        generator: source of randomness; the draw is made on its device, in float64 (float32 where
            the device has no float64).
        dtype: type of the result.
        device: device of the result; the generator's when None.

    >>> sample_truncated_normal((2,), 0.0, torch.Generator().manual_seed(0))
    tensor([0., 0.])
    """
    target = generator.device if device is None else torch.device(device)
    if radius is None or radius == math.inf:
        draw = torch.randn(tuple(shape), generator=generator, device=generator.device, dtype=dtype)
        return draw.to(target)
    if not radius >= 0:  # also refuses NaN
        raise ValueError(f"radius must be a number >= 0, inf or None, got {radius}")
    wide = torch.float32 if generator.device.type == "mps" else torch.float64
    uniform = torch.rand(tuple(shape), generator=generator, device=generator.device, dtype=wide)
    scale = math.erf(radius / math.sqrt(2.0))
    inside = uniform.mul_(2.0).sub_(1.0).mul_(scale).clamp_(-_BELOW_ONE, _BELOW_ONE)
    draw = torch.erfinv(inside).mul_(math.sqrt(2.0)).clamp_(-radius, radius)
    return draw.to(device=target, dtype=dtype)
