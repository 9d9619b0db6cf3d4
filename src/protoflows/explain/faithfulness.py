"""The relevance ordering test: do the pixels that a heatmap names first matter first?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from protoflows.explain.parts import By, PrototypeParts, check_options
from protoflows.explain.readout import read_out
from protoflows.model import ProtoFlow, image_seeds

Control = Literal["pixels", "patches"]
_STEPS = 32


@dataclass(frozen=True, eq=False)
class RelevanceOrdering:
    """Likelihood curves while pixels come back, for N images.

    Images that are half noise lie far from all that a flow knows: some of them have a likelihood of
    minus a million nats, and one such image outweighs all others in a mean. So everything here goes
    by ranks and medians, which no single image can move.

    Attributes:
        shares: Share of the image's pixels that are back, (S,), from 0 to 1.
        heatmap: Log-likelihood under each image's prototype, heatmap's order, nats (N, S).
        random: The same in O random orders, (N, O, S).
        prototypes: Each image's prototype (class, index), (N, 2).
        control: What was put into random order: single pixels, or the heatmap's patches.
        by: "latent" for log p(z|prototype), "image" for log p(x|prototype).
    """

    shares: Tensor
    heatmap: Tensor
    random: Tensor
    prototypes: Tensor
    control: Control
    by: By

    @property
    def orderings(self) -> int:
        """Number of random orderings of each image."""
        return self.random.shape[1]

    @property
    def area(self) -> Tensor:
        """Area under each image's heatmap curve: its mean over the shares, nats (N,)."""
        return torch.trapezoid(self.heatmap, self.shares)

    @property
    def random_areas(self) -> Tensor:
        """The same for every random ordering, (N, O)."""
        return torch.trapezoid(self.random, self.shares)

    @property
    def gap(self) -> Tensor:
        """The heatmap's area less the median random one, image by image, (N,)."""
        return self.area - self.random_areas.quantile(0.5, dim=1)

    @property
    def wins(self) -> Tensor:
        """Share of an image's random orderings that the heatmap beats, ties half, (N,)."""
        area, others = self.area[:, None], self.random_areas
        return ((area > others).double() + 0.5 * (area == others).double()).mean(1)

    def gap_interval(self) -> tuple[float, float, float]:
        """Median gap with its 95 % interval over images."""
        middle, low, high = _median_band(self.gap[:, None])
        return float(middle), float(low), float(high)

    def p_value(self) -> float:
        """One-sided rank test: how likely so many wins would be if the order did not matter.

        A heatmap that is no better than chance is, among an image's O + 1 areas, in each place with
        the same probability, whatever their distribution. The sum of places over images then
        follows the N-fold convolution of the uniform distribution on 0…O, which is summed exactly.
        """
        places = float(self.wins.sum()) * self.orderings
        null, uniform = np.ones(1), np.full(self.orderings + 1, 1 / (self.orderings + 1))
        for _ in range(len(self.heatmap)):
            null = np.convolve(null, uniform)
        return float(null[math.ceil(places - 1e-6) :].sum())

    def bands(self) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
        """Median curves with the ends of their 95 % bands over images, (S,) each."""
        middle = self.random.quantile(0.5, dim=1)
        return {"heatmap": _median_band(self.heatmap), "random": _median_band(middle)}

    def to_dict(self) -> dict[str, Any]:
        """Areas, gap and test, and the median curves, as JSON has them."""
        gap, low, high = self.gap_interval()
        bands = self.bands()
        return {
            "images": len(self.gap),
            "orderings": self.orderings,
            "control": self.control,
            "by": self.by,
            "area": float(self.area.quantile(0.5)),
            "random_area": float(self.random_areas.quantile(0.5)),
            "gap": gap,
            "gap_95": [low, high],
            "gap_mean": float(self.gap.mean()),
            "random_orderings_beaten": float(self.wins.mean()),
            "p_value": self.p_value(),
            "shares": self.shares.tolist(),
            "heatmap_curve": bands["heatmap"][0].tolist(),
            "random_curve": bands["random"][0].tolist(),
        }


@torch.no_grad()
def relevance_ordering(
    model: ProtoFlow,
    x: Tensor,
    *,
    baselines: Tensor | None = None,
    patch: int = 4,
    stride: int | None = None,
    step: int | None = None,
    orderings: int = 3,
    control: Control = "pixels",
    by: By = "latent",
    draws: int | None = None,
    seed: int = 0,
    batch_size: int = 256,
) -> RelevanceOrdering:
    """Put an image's pixels back into a random image, most relevant first (Gautam et al. 2023).

    Every image is judged by its own top prototype. Both orders start from the same random image and
    end in the same query, so that only the order differs.

    Args:
        model: The model.
        x: Images, uint8 (N, C, H, W).
        baselines: The heatmaps' baseline; the mean training image when None.
        patch: Side of the heatmaps' patches.
        stride: Their distance.
        step: Pixels put back between two evaluations; a 32nd of the image when None.
        orderings: Random orderings per image.
        control: "pixels" as in the paper; "patches" puts whole patches back in random order, which
            is harder to beat: patches of a picture are likelier than scattered pixels.
        by: Whose likelihood heatmaps and curves show.
        draws: Draws of the noise, see `PrototypeParts.attribute`.
        seed: Of random images, orderings and noise.
        batch_size: Images per pass.
    """
    if control not in ("pixels", "patches"):
        raise ValueError(f"control must be 'pixels' or 'patches', got {control!r}")
    if orderings < 1 or not len(x):
        raise ValueError(f"orderings and x must not be empty, got {orderings} and {len(x)} images")
    channels, height, width = x.shape[1:]
    pixels = height * width
    step = max(1, math.ceil(pixels / _STEPS)) if step is None else step
    if not 1 <= step <= pixels:
        raise ValueError(f"step must be from 1 to the image's {pixels} pixels, got {step}")
    draws = check_options(by, draws, batch_size)
    parts = PrototypeParts(model)
    tops = read_out(model, x, seed=seed, batch_size=batch_size).top_prototypes()
    counts = torch.tensor([*range(0, pixels, step), pixels])
    curves, controls = [], []
    generator = torch.Generator().manual_seed(int(image_seeds(0, 1, 1, seed)))
    for n, image in enumerate(x.cpu()):
        c, k = (int(v) for v in tops[n])
        found = parts.attribute(
            image[None], baselines, (c, k), patch=patch, stride=stride, by=by, draws=draws,
            seed=seed, perturbations_per_eval=batch_size,
        )  # fmt: skip
        start = torch.randint(
            model.config.flow.levels, tuple(image.shape), generator=generator
        ).to(torch.uint8)  # fmt: skip
        # Equal pixels, those of one patch, stand in random order too: reading order means nothing.
        orders = [_order(found.heatmap()[0].flatten(), generator)]
        for _ in range(orderings):
            ranks = torch.rand(pixels, generator=generator)
            if control == "patches":
                ranks = _patch_ranks(found.rows, found.columns, found.patch, (height, width),
                                     generator)  # fmt: skip
            orders.append(_order(ranks, generator))
        place = torch.stack(orders).argsort(1)  # when each pixel comes back
        back = (place[:, None, :] < counts[None, :, None]).view(-1, 1, height, width)
        mixed = torch.where(back, image, start)
        values = torch.cat(
            [
                parts.evaluate(chunk, by=by, draws=draws, seed=seed)[:, c, k]
                for chunk in mixed.split(batch_size)
            ]
        ).view(len(orders), len(counts))
        curves.append(values[0])
        controls.append(values[1:])
    return RelevanceOrdering(
        counts.double() / pixels, torch.stack(curves), torch.stack(controls), tops, control,
        by,
    )  # fmt: skip


def _order(values: Tensor, generator: torch.Generator) -> Tensor:
    """Pixels by falling value, equal ones shuffled."""
    shuffle = torch.randperm(len(values), generator=generator)
    return shuffle[values[shuffle].argsort(dim=0, descending=True, stable=True)]


def _patch_ranks(
    rows: Tensor,
    columns: Tensor,
    size: tuple[int, int],
    image_size: tuple[int, int],
    generator: torch.Generator,
) -> Tensor:
    """A random value for every pixel, the same within a patch; later patches lie on top."""
    ranks = torch.zeros(image_size)
    for place in torch.randperm(len(rows), generator=generator).tolist():
        row, column = int(rows[place]), int(columns[place])
        value = torch.rand((), generator=generator)
        ranks[row : row + size[0], column : column + size[1]] = value
    return ranks.flatten()


def _median_band(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Median over images and its 95 % interval by order statistics, (N, S) → (S,) three times."""
    count = len(values)
    ordered = values.sort(0).values
    # The k-th smallest of N lies above the median where fewer than k values lie below it.
    low = max(0, int(stats.binom.ppf(0.025, count, 0.5)) - 1)
    return values.quantile(0.5, dim=0), ordered[low], ordered[count - 1 - low]
