"""Where every random draw of a flow comes from."""

from __future__ import annotations

import math
from numbers import Integral
from typing import Literal, TypeAlias

import torch
from torch import Tensor

Seed: TypeAlias = "int | torch.Generator | Tensor | None"
"""An integer, a generator, one integer per image (a tensor of shape (N,)), or None.

None takes torch's global state.
"""


class Noise:
    """A source of the noise that a flow injects, shrunk towards its mean by a temperature.

    Normal draws are T·e with e ~ N(0, 1); uniform ones ½ + T·(u − ½). T = 1 is the model; T = 0
    makes every draw its mean and the flow deterministic. With one seed per image, an image gets the
    same noise in whatever batch it travels.

    Args:
        batch: Number of images.
        temperature: The factor T ≥ 0.
        seed: Where randomness comes from.

    Example:
        >>> Noise(1, 0.0).uniform((2,), torch.zeros(1)).tolist()
        [[0.5, 0.5]]
    """

    def __init__(self, batch: int, temperature: float = 1.0, seed: Seed = None) -> None:
        if isinstance(temperature, str) or not math.isfinite(temperature) or temperature < 0:
            raise ValueError(f"temperature must be a finite number ≥ 0, got {temperature!r}")
        self.batch, self.temperature = batch, float(temperature)
        self._generators: list[torch.Generator] | None = None
        self._generator: torch.Generator | None = None
        if isinstance(seed, Tensor):
            if seed.shape != (batch,) or seed.is_floating_point():
                raise ValueError(
                    f"seed as a tensor must hold one integer per image, shape ({batch},), "
                    f"got {seed.dtype} {tuple(seed.shape)}"
                )
            self._generators = [torch.Generator().manual_seed(int(s)) for s in seed.tolist()]
        elif isinstance(seed, torch.Generator):
            self._generator = seed
        elif isinstance(seed, Integral):  # NumPy's whole numbers, too
            self._generator = torch.Generator().manual_seed(int(seed))
        elif seed is not None:
            raise ValueError(
                "seed must be an int, a torch.Generator, a tensor of ints or None, "
                f"got {type(seed).__name__}"
            )

    def normal(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Draw T·e, e ~ N(0, 1), of shape (batch, *shape) with the dtype and device of `like`."""
        if self.temperature == 0:
            return like.new_zeros(self.batch, *shape)
        return self._draw("normal", shape, like).mul_(self.temperature)

    def uniform(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Draw ½ + T·(u − ½), u ~ U[0, 1), of shape (batch, *shape)."""
        if self.temperature == 0:
            return like.new_full((self.batch, *shape), 0.5)
        draw = self._draw("uniform", shape, like)
        return draw if self.temperature == 1 else draw.sub_(0.5).mul_(self.temperature).add_(0.5)

    def _draw(
        self, kind: Literal["normal", "uniform"], shape: tuple[int, ...], like: Tensor
    ) -> Tensor:
        dtype = torch.promote_types(like.dtype, torch.float32)
        if self._generators is not None:
            out = torch.empty(self.batch, *shape, dtype=dtype)
            for row, generator in zip(out, self._generators, strict=True):
                _fill(row, kind, generator)
            return out.to(like)
        device = like.device if self._generator is None else self._generator.device
        return _fill(
            torch.empty(self.batch, *shape, dtype=dtype, device=device), kind, self._generator
        ).to(like)


def _fill(
    out: Tensor, kind: Literal["normal", "uniform"], generator: torch.Generator | None
) -> Tensor:
    return (
        out.normal_(generator=generator) if kind == "normal" else out.uniform_(generator=generator)
    )


def standard_normal_log_prob(x: Tensor) -> Tensor:
    """Return log N(x; 0, I), summed over all but the first axis."""
    flat = x.flatten(1)
    return -0.5 * flat.square().sum(1) - 0.5 * math.log(2 * math.pi) * flat.shape[1]
