"""Retrieved parts: for every prototype the likeliest part of the training set."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from protoflows.explain.neighbours import Neighbours, find_neighbours
from protoflows.explain.parts import By, PrototypeParts
from protoflows.model import ProtoFlow, image_seeds

PARTS_FILE = "parts.safetensors"


@dataclass(frozen=True, eq=False)
class RetrievedParts:
    """The best part of the training set for each of P = C·K prototypes, in (class, index) order.

    Attributes:
        images: The training images that the parts are of, uint8 (P, C, H, W).
        boxes: Where the parts are: row, column, height, width; (P, 4).
        labels: The images' labels, (P,); −1 where unknown.
        log_likelihood: Of the baseline with the part in it, nats (P,).
        mask: Whether there is such a prototype, (C, K).
        fingerprint: Of the prototypes, by which a later edit of the model is noticed, (C, K).
    """

    images: Tensor
    boxes: Tensor
    labels: Tensor
    log_likelihood: Tensor
    mask: Tensor
    fingerprint: Tensor

    def of(self, prototype: tuple[int, int]) -> tuple[Tensor, Tensor, int]:
        """Image, box and label of a prototype's part."""
        c, k = prototype
        place = c * self.mask.shape[1] + k
        return self.images[place], self.boxes[place], int(self.labels[place])

    def save(self, folder: Path) -> None:
        """Store beside the run's model."""
        save_file({k: v.contiguous() for k, v in vars(self).items()}, folder / PARTS_FILE)


def load_parts(folder: Path, model: ProtoFlow) -> RetrievedParts | None:
    """Parts stored with a run; None where there are none, or only those of another model."""
    path = folder / PARTS_FILE
    if not path.is_file():
        return None
    try:
        parts = RetrievedParts(**load_file(path))
    except (SafetensorError, TypeError):
        return None  # damaged or of another version: it is made again
    fits = parts.mask.shape == model.mixtures.mask.shape and torch.equal(
        parts.fingerprint, _fingerprint(model)
    )
    same = tuple(parts.images.shape[1:]) == tuple(model.config.flow.image_shape)
    return parts if fits and same and torch.equal(parts.mask, model.mixtures.mask.cpu()) else None


def retrieve_parts(
    model: ProtoFlow,
    images: Tensor,
    labels: Tensor | None = None,
    *,
    candidates: int = 3,
    neighbours: Neighbours | None = None,
    patch: int = 4,
    stride: int | None = None,
    by: By = "latent",
    perturbations_per_eval: int = 256,
    seed: int = 0,
) -> RetrievedParts:
    """Search each prototype's `candidates` most likely training images for its likeliest part.

    An image that several prototypes share is evaluated once, for all of them.

    Args:
        model: The model.
        images: Training images, uint8 (N, C, H, W).
        labels: Their labels, if known.
        candidates: Images to search per prototype (M).
        neighbours: What `find_neighbours` found in the same images; found anew when None.
        patch: Side of a part.
        stride: Distance of parts; side by side when None.
        by: "latent" or "image", see `PartsAttribution.by`.
        perturbations_per_eval: Images per pass.
        seed: Of the noise.
    """
    if candidates < 1:
        raise ValueError(f"candidates must be ≥ 1, got {candidates}")
    if labels is not None and len(labels) != len(images):
        raise ValueError(f"labels must be {len(images)}, one for each image, got {len(labels)}")
    if neighbours is None or neighbours.likeliest.shape[2] < min(candidates, len(images)):
        neighbours = find_neighbours(model, images, num=candidates, seed=seed)
    searched = neighbours.likeliest[:, :, :candidates]
    mask = model.mixtures.mask.cpu()
    union = searched[mask].unique()
    found = PrototypeParts(model).attribute(
        images[union], patch=patch, stride=stride, by=by, seed=seed,
        perturbations_per_eval=perturbations_per_eval,
    )  # fmt: skip
    size = torch.tensor(found.patch)
    picked, boxes = torch.zeros(mask.numel(), dtype=torch.int64), []
    values = torch.full((mask.numel(),), -torch.inf, dtype=torch.float64)
    num_prototypes = mask.shape[1]
    for p in range(mask.numel()):
        c, k = divmod(p, num_prototypes)
        if not mask[c, k]:
            boxes.append(torch.zeros(4, dtype=torch.int64))
            continue
        rows = torch.searchsorted(union, searched[c, k].contiguous())
        table = found.log_likelihood[rows, :, c, k]
        best = int(table.argmax())
        image, place = divmod(best, table.shape[1])
        picked[p], values[p] = union[rows[image]], table[image, place]
        boxes.append(
            torch.cat([found.rows[place : place + 1], found.columns[place : place + 1], size])
        )
    known = labels[picked] if labels is not None else torch.full_like(picked, -1)
    return RetrievedParts(
        images[picked], torch.stack(boxes), known.masked_fill(~mask.flatten(), -1), values, mask,
        _fingerprint(model),
    )  # fmt: skip


def _fingerprint(model: ProtoFlow) -> Tensor:
    """A number per prototype that changes with its mean or spread."""
    mixtures = model.mixtures
    weights = torch.arange(1, mixtures.num_dims + 1, dtype=torch.float64).sin()
    parameters = mixtures.mean.detach().cpu().double() + mixtures.log_std.detach().cpu().double()
    return parameters @ weights


@dataclass(frozen=True, eq=False)
class RetrievedPart:
    """The likeliest part for one prototype.

    Attributes:
        image: The training image that it is of, uint8 (C, H, W).
        box: Row, column, height and width of the part, (4,).
        label: The image's label, −1 where unknown.
    """

    image: Tensor
    box: Tensor
    label: int


def retrieve_part(
    model: ProtoFlow,
    prototype: tuple[int, int],
    images: Tensor,
    labels: Tensor,
    *,
    candidates: int = 3,
    baselines: Tensor | None = None,
    patch: int = 4,
    stride: int | None = None,
    by: By = "latent",
    perturbations_per_eval: int = 64,
    seed: int = 0,
) -> RetrievedPart | None:
    """The same for one prototype, in images of its class; None where there are none.

    Args:
        model: The model.
        prototype: (class, index).
        images: Images to search, uint8 (N, C, H, W).
        labels: Their labels, (N,).
        candidates: How many of the likeliest images to search.
        baselines: See `PrototypeParts.attribute`.
        patch: Side of a part.
        stride: Distance of parts.
        by: "latent" or "image".
        perturbations_per_eval: Images per pass.
        seed: Of the noise.
    """
    c, k = prototype
    members = (labels == c).nonzero().flatten()
    if not len(members):
        return None
    score = model.score(images[members], seeds=image_seeds(0, len(members), 0, seed))
    likely = score.prototype_log_likelihood[:, c, k].cpu().topk(min(candidates, len(members)))
    chosen = members[likely.indices]
    found = PrototypeParts(model).attribute(
        images[chosen], baselines, prototype, patch=patch, stride=stride, by=by, seed=seed,
        perturbations_per_eval=perturbations_per_eval,
    )  # fmt: skip
    best = int(found.log_likelihood[:, :, c, k].amax(1).argmax())
    return RetrievedPart(images[chosen[best]], found.part()[best], c)
