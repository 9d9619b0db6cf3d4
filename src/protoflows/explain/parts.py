"""Prototypical parts: how much each patch of an image raises a prototype's likelihood."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from protoflows.model import ProtoFlow, evaluating, image_seeds
from protoflows.model.sampling import check_prototype

By = Literal["latent", "image"]
_SMALL = 16
TOP_SHARE = 0.05
"""The share of pixels that the paper calls the most influential."""


@dataclass(frozen=True, eq=False)
class PartsAttribution:
    """Log-likelihoods of the baseline with one patch of the query in it (`eq:line3`).

    Attributes:
        log_likelihood: For N images, P patches and every prototype, nats (N, P, C, K); −inf where a
            class has no such prototype.
        baseline: The same of the baseline alone, (C, K).
        rows: First row of each patch, (P,).
        columns: First column of each patch, (P,).
        patch: Height and width of a patch.
        image_size: Height and width of the images.
        by: "latent" for log p(z|prototype), as in the paper; "image" for log p(x|prototype), with
            the log-determinant.
        target: Prototype that `heatmap` is for, if any.
    """

    log_likelihood: Tensor
    baseline: Tensor
    rows: Tensor
    columns: Tensor
    patch: tuple[int, int]
    image_size: tuple[int, int]
    by: By
    target: tuple[int, int] | None = None

    def heatmap(self, prototype: tuple[int, int] | None = None) -> Tensor:
        """Nats that a pixel's patches add to the baseline's log-likelihood, (N, H, W).

        Where patches overlap, the mean of them.

        Args:
            prototype: (class, index); `target` when None.
        """
        c, k = self._prototype(prototype)
        gain = self.log_likelihood[:, :, c, k] - self.baseline[c, k]
        return paint(gain, self.rows, self.columns, self.patch, self.image_size)

    def contrast(self, prototype: tuple[int, int] | None = None) -> Tensor:
        """Nats that a pixel's patches add to the prototype's lead over other classes, (N, H, W).

        The likelihood alone says most about how usual a patch is for any prototype: an empty corner
        is likelier than a stroke, whatever the class. Here that cancels: what is painted is the
        gain of log p(·|c, k) − log mean_{c' ≠ c, k'} p(·|c', k'), read off the same passes.

        Args:
            prototype: (class, index); `target` when None.
        """
        c, k = self._prototype(prototype)
        others = self.baseline.isfinite()
        others[c] = False
        if not bool(others.any()):
            raise ValueError("contrast needs prototypes of another class: this model has one class")
        gain = self._lead(self.log_likelihood, c, k, others)
        gain = gain - self._lead(self.baseline, c, k, others)
        return paint(gain, self.rows, self.columns, self.patch, self.image_size)

    @staticmethod
    def _lead(table: Tensor, c: int, k: int, others: Tensor) -> Tensor:
        """log p(·|c, k) less that of other classes' mean prototype; (…, C, K) → (…)."""
        rest = table.masked_fill(~others, -math.inf).flatten(-2).logsumexp(-1)
        return table[..., c, k] - rest  # the mean's log count cancels in every difference

    def part(self, prototype: tuple[int, int] | None = None) -> Tensor:
        """The likeliest patch of each image as boxes (row, column, height, width), (N, 4)."""
        c, k = self._prototype(prototype)
        best = self.log_likelihood[:, :, c, k].argmax(1)
        size = torch.tensor(self.patch).expand(len(best), 2)
        return torch.cat([torch.stack([self.rows[best], self.columns[best]], 1), size], 1)

    def _prototype(self, prototype: tuple[int, int] | None) -> tuple[int, int]:
        chosen = self.target if prototype is None else prototype
        if chosen is None:
            raise ValueError("prototype must be given, as attribute was called without a target")
        c, k = chosen
        classes, prototypes = self.baseline.shape
        inside = 0 <= c < classes and 0 <= k < prototypes
        if not inside or not math.isfinite(float(self.baseline[c, k])):
            raise ValueError(f"prototype must be one that the model has, got {chosen}")
        return c, k


class PrototypeParts:
    """Patch by patch against a baseline, all prototypes at once (`eq:line1` to `eq:line3`).

    Every patch of the query is set into the baseline, the mean training image, and one encoding
    reads off the likelihood under *every* prototype: patches share passes, prototypes cost nothing.
    As the whole image is the receptive field, this is an approximation like all of its kind.

    Args:
        model: The model.
    """

    def __init__(self, model: ProtoFlow) -> None:
        self.model = model

    @torch.no_grad()
    def attribute(
        self,
        x: Tensor,
        baselines: Tensor | None = None,
        target: tuple[int, int] | None = None,
        *,
        patch: int = 4,
        stride: int | None = None,
        perturbations_per_eval: int = 64,
        by: By = "latent",
        draws: int | None = None,
        seed: int = 0,
    ) -> PartsAttribution:
        """Evaluate all patches of all images.

        Args:
            x: Queries, uint8 (N, C, H, W).
            baselines: What surrounds a patch, (C, H, W), rounded to levels; the mean training image
                that the model was saved with when None.
            target: Prototype that heatmaps are for; all are computed anyway.
            patch: Side of a patch in pixels.
            stride: Distance of patches; `patch`, side by side, when None. The last patch is moved
                inwards so that every pixel is covered.
            perturbations_per_eval: Images per pass: memory is bounded by it.
            by: "latent" or "image", see `PartsAttribution.by`.
            draws: Draws of the noise to average over, the same ones for every patch; 0 for the
                noise at its mean. None takes 0 for "latent" and 4 for "image", where the
                likelihood means nothing without drawing.
            seed: Of the draws.
        """
        model = self.model
        model.flow._check_images(x)
        baseline = self.baseline(baselines)
        if target is not None:
            check_prototype(model.mixtures, *target)
        draws = check_options(by, draws, perturbations_per_eval)
        rows, columns, size = patch_grid(tuple(x.shape[2:]), patch, stride)  # type: ignore[arg-type]
        num = len(rows)
        out = torch.empty(len(x) * num, *model.mixtures.mask.shape, dtype=torch.float64)
        for start in range(0, len(out), perturbations_per_eval):
            index = torch.arange(start, min(start + perturbations_per_eval, len(out)))
            image, place = index // num, index % num
            changed = set_patches(baseline, x[image], rows[place], columns[place], size)
            out[index] = self.evaluate(changed, by=by, draws=draws, seed=seed)
        alone = self.evaluate(baseline[None], by=by, draws=draws, seed=seed)[0]
        return PartsAttribution(
            out.unflatten(0, (len(x), num)), alone, rows, columns, size,
            (x.shape[2], x.shape[3]), by, target,
        )  # fmt: skip

    def baseline(self, baselines: Tensor | None = None) -> Tensor:
        """The image around the patches, uint8 (C, H, W) (`eq:line1`)."""
        shape = tuple(self.model.config.flow.image_shape)
        if baselines is None:
            extras = self.model.extras
            if extras is None or extras.mean_image is None:
                raise ValueError(
                    "baselines must be given: this model was saved without the mean image of its "
                    "training data"
                )
            baselines = extras.mean_image
        image = baselines[0] if baselines.dim() == 4 and len(baselines) == 1 else baselines
        if tuple(image.shape) != shape:
            raise ValueError(f"baselines must have shape {shape}, got {tuple(baselines.shape)}")
        return (
            image.cpu().float().round().clamp(0, self.model.config.flow.levels - 1).to(torch.uint8)
        )

    @torch.no_grad()
    def evaluate(self, images: Tensor, *, by: By, draws: int, seed: int) -> Tensor:
        """Log-likelihoods of images under every prototype, (N, C, K), all with the same noise."""
        model, total = self.model, None
        with evaluating(model):
            for s in range(max(1, draws)):
                if draws == 0:
                    enc = model.encode(images, temperature=0.0)
                else:
                    # One draw for all patches: differences between them are then the patches' own.
                    own = image_seeds(0, 1, s, seed).expand(len(images))
                    enc = model.encode(images, seed=own)
                table = model.prototype_log_likelihood(enc)
                if by == "image":
                    table = table + enc.log_det[:, None, None]
                total = table if total is None else total + table
        assert total is not None
        return (total / max(1, draws)).cpu().double()


def default_patch(model: ProtoFlow) -> int:
    """4 as in the paper, or 2 for images below 16 pixels, which 4 would cut into too few."""
    return 4 if min(model.config.flow.image_shape[1:]) >= _SMALL else 2


def check_options(by: By, draws: int | None, perturbations_per_eval: int) -> int:
    """Refuse options that do not go together; returns the number of draws that `None` stands for.

    Args:
        by: "latent" or "image".
        draws: Draws of the noise, 0 for its mean.
        perturbations_per_eval: Images per pass.
    """
    if by not in ("latent", "image"):
        raise ValueError(f"by must be 'latent' or 'image', got {by!r}")
    if draws is None:
        draws = 0 if by == "latent" else 4
    if draws < 0 or (by == "image" and draws == 0):
        least = 1 if by == "image" else 0
        raise ValueError(f"draws must be at least {least} with by={by!r}, got {draws}")
    if perturbations_per_eval < 1:
        raise ValueError(f"perturbations_per_eval must be ≥ 1, got {perturbations_per_eval}")
    return draws


def patch_grid(
    image_size: tuple[int, int], patch: int, stride: int | None = None
) -> tuple[Tensor, Tensor, tuple[int, int]]:
    """First rows and columns of all patches, row by row, and their size.

    >>> rows, columns, size = patch_grid((5, 4), 4)
    >>> rows.tolist(), columns.tolist(), size
    ([0, 1], [0, 0], (4, 4))
    """
    stride = patch if stride is None else stride
    if patch < 1 or stride < 1:
        raise ValueError(f"patch and stride must be ≥ 1, got {patch} and {stride}")
    if stride > patch:
        raise ValueError(
            f"stride must be at most patch ({patch}), got {stride}: "
            "pixels between would be left out"
        )
    size = min(patch, image_size[0]), min(patch, image_size[1])
    starts = []
    for length, side in zip(image_size, size, strict=True):
        places = list(range(0, length - side + 1, stride))
        if places[-1] != length - side:
            places.append(length - side)
        starts.append(torch.tensor(places))
    rows, columns = torch.meshgrid(*starts, indexing="ij")
    return rows.flatten(), columns.flatten(), size


def set_patches(
    baseline: Tensor, x: Tensor, rows: Tensor, columns: Tensor, size: tuple[int, int]
) -> Tensor:
    """The baseline (C, H, W) with one patch of each image of x (M, C, H, W) in it (`eq:line2`)."""
    inside = _inside(rows, columns, size, (x.shape[2], x.shape[3]))
    return torch.where(inside[:, None], x.cpu(), baseline)


def paint(
    values: Tensor,
    rows: Tensor,
    columns: Tensor,
    size: tuple[int, int],
    image_size: tuple[int, int],
) -> Tensor:
    """Each pixel the mean of its patches' values, (N, P) → (N, H, W)."""
    inside = _inside(rows, columns, size, image_size).flatten(1).to(values)
    return (values @ inside / inside.sum(0)).unflatten(1, image_size)


def top_pixels(heatmap: Tensor, share: float = TOP_SHARE) -> Tensor:
    """The given share of pixels with the largest values, at least one, bool like heatmap (N, H, W).

    Exactly so many: equal values are taken in reading order.
    """
    if not 0 < share <= 1:
        raise ValueError(f"share must be above 0 and at most 1, got {share}")
    flat = heatmap.flatten(-2)
    count = max(1, math.ceil(share * flat.shape[-1] - 1e-9))
    order = flat.argsort(dim=-1, descending=True, stable=True)[..., :count]
    mask = torch.zeros_like(flat, dtype=torch.bool).scatter_(-1, order, True)
    return mask.view(heatmap.shape)


def crop(image: Tensor, box: Tensor) -> Tensor:
    """The box (row, column, height, width) of an image (C, H, W)."""
    row, column, height, width = (int(v) for v in box)
    return image[:, row : row + height, column : column + width]


def _inside(
    rows: Tensor, columns: Tensor, size: tuple[int, int], image_size: tuple[int, int]
) -> Tensor:
    """Whether a pixel lies in a patch, (P, H, W)."""
    y, x = torch.arange(image_size[0]), torch.arange(image_size[1])
    in_rows = (y >= rows[:, None]) & (y < rows[:, None] + size[0])
    in_columns = (x >= columns[:, None]) & (x < columns[:, None] + size[1])
    return in_rows[:, :, None] & in_columns[:, None, :]
