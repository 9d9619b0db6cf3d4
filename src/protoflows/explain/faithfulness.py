"""The relevance ordering test: do the pixels that a heatmap names first matter first?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from scipy import stats
from torch import Tensor

from protoflows.explain.parts import By, PrototypeParts, check_options
from protoflows.explain.readout import read_out
from protoflows.model import ProtoFlow, image_seeds

Control = Literal["pixels", "patches"]
_STEPS = 32
_Z = 1.959964  # 97.5 % point of the normal: bands hold 95 %


@dataclass(frozen=True, eq=False)
class RelevanceOrdering:
    """Likelihood curves while pixels come back, for N images.

    Attributes:
        shares: Share of the image's pixels that are back, (S,), from 0 to 1.
        heatmap: Log-likelihood under each image's prototype, heatmap's order, nats (N, S).
        random: The same in random order, mean over orderings, (N, S).
        prototypes: Each image's prototype (class, index), (N, 2).
        orderings: Number of random orderings.
        control: What was put into random order: single pixels, or the heatmap's patches.
        by: "latent" for log p(z|prototype), "image" for log p(x|prototype).
    """

    shares: Tensor
    heatmap: Tensor
    random: Tensor
    prototypes: Tensor
    orderings: int
    control: Control
    by: By

    @property
    def area(self) -> Tensor:
        """Area under each image's heatmap curve: its mean over the shares, nats (N,)."""
        return torch.trapezoid(self.heatmap, self.shares)

    @property
    def random_area(self) -> Tensor:
        """The same for random orderings, (N,)."""
        return torch.trapezoid(self.random, self.shares)

    @property
    def gap(self) -> Tensor:
        """How much the heatmap's area is larger, pair by pair, (N,)."""
        return self.area - self.random_area

    def gap_interval(self) -> tuple[float, float, float]:
        """Mean gap with its 95 % interval over images."""
        middle, half = _band(self.gap[:, None])
        return float(middle), float(middle - half), float(middle + half)

    def p_value(self) -> float:
        """One-sided paired t-test: how likely so large a mean gap would be without any."""
        if len(self.gap) < 2:
            return math.nan
        spread = float(self.gap.std())
        if spread == 0:  # the test divides by it
            return 0.0 if float(self.gap[0]) > 0 else 1.0
        return float(stats.ttest_1samp(self.gap.numpy(), 0.0, alternative="greater").pvalue)

    def bands(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Mean curves and half-widths of their 95 % bands over images, (S,) each."""
        return {"heatmap": _band(self.heatmap), "random": _band(self.random)}

    def to_dict(self) -> dict[str, Any]:
        """Areas, gap and test, and the mean curves, as JSON has them."""
        mean, low, high = self.gap_interval()
        p = self.p_value()
        return {
            "images": len(self.gap),
            "orderings": self.orderings,
            "control": self.control,
            "by": self.by,
            "area": float(self.area.mean()),
            "random_area": float(self.random_area.mean()),
            "gap": mean,
            "gap_95": [low, high],
            "share_of_images_with_gap": float((self.gap > 0).double().mean()),
            "p_value": p if math.isfinite(p) else None,
            "shares": self.shares.tolist(),
            "heatmap_curve": self.heatmap.mean(0).tolist(),
            "random_curve": self.random.mean(0).tolist(),
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
        controls.append(values[1:].mean(0))
    return RelevanceOrdering(
        counts.double() / pixels, torch.stack(curves), torch.stack(controls), tops, orderings,
        control, by,
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


def _band(values: Tensor) -> tuple[Tensor, Tensor]:
    """Mean over images and half-width of its 95 % interval, (N, S) → (S,) twice."""
    if len(values) < 2:
        return values.mean(0), torch.zeros_like(values[0])
    return values.mean(0), _Z * values.std(0) / math.sqrt(len(values))
