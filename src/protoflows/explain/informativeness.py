"""How far a prototype's neighbourhood stays its own, as the paper's supplement proposes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from protoflows.explain.pictures import living_prototypes
from protoflows.explain.readout import read_out
from protoflows.model import ProtoFlow, evaluating, image_seeds

# Fresh noise has nothing to do with the noise of the samples.
_FRESH = 0x5EED


@dataclass(frozen=True, eq=False)
class Informativeness:
    """What the model makes of samples inside truncation radii.

    Attributes:
        radii: Truncation radii, R of them.
        prototypes: The P prototypes (class, index) that were sampled.
        prototype_share: Share of the samples that the model gives back to their prototype: it has
            the largest p(c, k|x) of all, (R, P).
        class_share: Share that it gives back to their class, (R, P).
        log_prob: Mean log p(x) of the samples, nats, (R, P).
        samples: Samples per radius and prototype.
    """

    radii: tuple[float, ...]
    prototypes: tuple[tuple[int, int], ...]
    prototype_share: Tensor
    class_share: Tensor
    log_prob: Tensor
    samples: int


@torch.no_grad()
def measure_informativeness(
    model: ProtoFlow,
    *,
    radii: Sequence[float] = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0),
    samples: int = 16,
    prototypes: Sequence[tuple[int, int]] | None = None,
    seed: int = 0,
    batch_size: int = 256,
) -> Informativeness:
    """Draw inside each radius, decode to uint8, encode with fresh noise, and see who comes back.

    Only the image counts: the latent that a sample was drawn from is forgotten.

    Args:
        model: The model.
        radii: Truncation radii in units of each distribution's standard deviation.
        samples: Samples per radius and prototype.
        prototypes: Which ones; all when None.
        seed: Of samples and noise.
        batch_size: Images per pass.
    """
    if samples < 1 or not radii:
        raise ValueError(f"samples and radii must not be empty, got {samples} and {tuple(radii)}")
    chosen = living_prototypes(model) if prototypes is None else list(prototypes)
    shape = (len(radii), len(chosen))
    by_prototype, by_class, log_prob = (torch.zeros(shape, dtype=torch.float64) for _ in range(3))
    wanted = torch.tensor(chosen).repeat_interleave(samples, 0)
    for r, radius in enumerate(radii):
        latents = torch.cat(
            [
                model.draw_latents(
                    samples, label=c, prototype=k, truncation=radius,
                    seed=int(image_seeds(c * 100_003 + k, 1, 0, seed)),
                ).latent
                for c, k in chosen
            ]
        )  # fmt: skip
        with evaluating(model):
            images = torch.cat(
                [
                    model.decode_latent(z, seed=image_seeds(i * batch_size, len(z), r, seed)).cpu()
                    for i, z in enumerate(latents.split(batch_size))
                ]
            )
        found = read_out(model, images, samples=1, seed=seed ^ _FRESH, batch_size=batch_size)
        mine = (found.top_prototypes() == wanted).all(1)
        own_class = found.labels == wanted[:, 0]
        for table, values in (
            (by_prototype, mine), (by_class, own_class), (log_prob, found.log_prob)
        ):  # fmt: skip
            table[r] = values.double().view(-1, samples).mean(1)
    return Informativeness(
        tuple(float(r) for r in radii), tuple(chosen), by_prototype, by_class, log_prob, samples
    )
