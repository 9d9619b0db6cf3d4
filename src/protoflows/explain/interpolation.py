"""From one image to another through the latent, exact at both ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from protoflows.explain.readout import read_out
from protoflows.flows import Encoding
from protoflows.model import ProtoFlow, evaluating, image_seeds

Factored = Literal["interpolate", "keep"]


@dataclass(frozen=True, eq=False)
class Interpolation:
    """Images between a and b.

    Attributes:
        weights: How far each image is from a to b, from 0 to 1, (S,).
        images: uint8 (S, C, H, W); with "interpolate" the first is a and the last b, every pixel.
        posterior: p(c|x) of the images, encoded again with fresh noise, (S, num_classes).
        log_prob: log p(x) of them, nats (S,).
        percentile: Per cent of the training images that are less likely, (S,); None where unknown.
        factored: What became of what transitions put out.
    """

    weights: Tensor
    images: Tensor
    posterior: Tensor
    log_prob: Tensor
    percentile: Tensor | None
    factored: Factored


@torch.no_grad()
def interpolate(
    model: ProtoFlow,
    a: Tensor,
    b: Tensor,
    *,
    steps: int | Sequence[float] = 11,
    factored: Factored = "interpolate",
    samples: int = 8,
    seed: int = 0,
    batch_size: int = 256,
) -> Interpolation:
    """Interpolate latents linearly and decode: z(t) = (1 − t) z_a + t z_b.

    The noise that made an image continuous travels with its encoding and is interpolated like it,
    so that decoding is exact, and not merely near, at both ends.

    Args:
        model: The model.
        a: The first image, uint8 (C, H, W) or (1, C, H, W).
        b: The last one.
        steps: Number of images, ends included, or the weights themselves.
        factored: "interpolate" what transitions put out as well, or "keep" that of a: then only z
            changes, and the last image need not be b.
        samples: Draws for class and likelihood of the images.
        seed: Of the noise.
        batch_size: Images per pass.
    """
    if factored not in ("interpolate", "keep"):
        raise ValueError(f"factored must be 'interpolate' or 'keep', got {factored!r}")
    if isinstance(steps, int):
        if steps < 2:
            raise ValueError(f"steps must be at least 2, the two ends, got {steps}")
        weights = torch.linspace(0, 1, steps, dtype=torch.float64)
    else:
        weights = torch.tensor(list(steps), dtype=torch.float64)
        if not len(weights) or not bool(((weights >= 0) & (weights <= 1)).all()):
            raise ValueError(f"steps must be weights from 0 to 1, got {list(steps)}")
    pair = torch.cat([_one("a", a), _one("b", b)])
    with evaluating(model):
        enc = model.encode(pair, seed=image_seeds(0, 2, 0, seed))
        parts = [model.decode(between(enc, w, factored)).cpu() for w in weights.split(batch_size)]
    images = torch.cat(parts)
    # Another seed: the noise that the latents were made with must not judge them.
    found = read_out(model, images, samples=samples, seed=seed + 1, batch_size=batch_size)
    extras = model.extras
    known = extras is not None and extras.log_prob_quantiles is not None
    percentile = extras.percentile(found.log_prob_mean) if known and extras is not None else None
    return Interpolation(weights, images, found.posterior, found.log_prob, percentile, factored)


def between(enc: Encoding, weights: Tensor, factored: Factored) -> Encoding:
    """Encodings (S) between the first and the second of an encoding of two images.

    `lerp` gives both ends without rounding, which a + t (b − a) does not.
    """

    def mix(pair: Tensor) -> Tensor:
        first, second = pair[:1], pair[1:]
        w = weights.to(pair).view(-1, *[1] * (pair.dim() - 1))
        return torch.lerp(first.expand(len(w), *first.shape[1:]), second, w)

    def keep(pair: Tensor) -> Tensor:
        return pair[:1].expand(len(weights), *pair.shape[1:])

    rest = mix if factored == "interpolate" else keep
    return Encoding(
        mix(enc.latent), mix(enc.log_det), tuple(rest(f) for f in enc.factored),
        rest(enc.dequantization),
    )  # fmt: skip


def _one(name: str, image: Tensor) -> Tensor:
    x = image if image.dim() == 4 else image[None]
    if x.dim() != 4 or len(x) != 1:
        raise ValueError(f"{name} must be one image (C, H, W), got {tuple(image.shape)}")
    return x
