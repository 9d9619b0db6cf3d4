"""What a data set is: uint8 images with labels, in memory, and how one is divided."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from protoflows.data.config import DataConfig

UNLABELLED = -1


@dataclass(frozen=True, eq=False)  # tensors have no single truth value to compare by
class Split:
    """Images and their labels.

    Attributes:
        images: uint8, (N, C, H, W).
        labels: int64, (N,); -1 marks an unlabelled image.
    """

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        """Check types and shapes once, so that nobody downstream has to."""
        if self.images.dtype != torch.uint8 or self.images.ndim != 4:
            raise ValueError(
                "images must be a uint8 tensor of shape (N, C, H, W), got "
                f"{self.images.dtype} of shape {tuple(self.images.shape)}; "
                "Split.from_arrays converts arrays"
            )
        if self.labels.dtype != torch.int64 or self.labels.ndim != 1:
            raise ValueError(
                "labels must be an int64 tensor of shape (N,), got "
                f"{self.labels.dtype} of shape {tuple(self.labels.shape)}"
            )
        if len(self.images) != len(self.labels):
            raise ValueError(
                f"images and labels differ in number: {len(self.images)} and {len(self.labels)}"
            )
        if len(self.labels) and int(self.labels.min()) < UNLABELLED:
            raise ValueError(
                f"labels must be -1 (unlabelled) or more, got {int(self.labels.min())}"
            )

    def __len__(self) -> int:
        """Number of images."""
        return len(self.labels)

    def __repr__(self) -> str:
        """Number and shape, not the pixels."""
        return f"Split({len(self)} images {'x'.join(map(str, self.images.shape[1:]))})"

    @classmethod
    def from_arrays(cls, images: Any, labels: Any = None) -> Split:
        """A split from NumPy arrays, tensors or nested lists.

        `images` hold whole numbers from 0 to 255 and are (N, H, W), (N, C, H, W) or (N, H, W, C);
        the last is taken where only it puts 1 or 3 in the place of the channels. `labels` are whole
        numbers; None leaves all images unlabelled.
        """
        x = torch.as_tensor(images)
        if x.ndim == 3:
            x = x.unsqueeze(1)
        if x.ndim != 4:
            raise ValueError(
                "images must have 3 or 4 dimensions (N, H, W), (N, C, H, W) or (N, H, W, C), "
                f"got shape {tuple(x.shape)}"
            )
        if x.shape[1] not in (1, 3) and x.shape[3] in (1, 3):
            x = x.permute(0, 3, 1, 2)
        if x.dtype != torch.uint8:
            low, high = (float(x.min()), float(x.max())) if x.numel() else (0.0, 0.0)
            if not (low >= 0 and high <= 255 and bool((x == x.round()).all())):  # NaN fails too
                raise ValueError(
                    "images must hold whole numbers from 0 to 255, got values between "
                    f"{low:g} and {high:g}; images scaled to [0, 1] need (255 * x).round()"
                )
            x = x.to(torch.uint8)
        if labels is None:
            return cls(x.contiguous(), torch.full((len(x),), UNLABELLED, dtype=torch.int64))
        y = torch.as_tensor(labels)
        if y.is_floating_point() and not bool((y == y.round()).all()):
            raise ValueError("labels must be whole numbers, got fractions")
        return cls(x.contiguous(), y.to(torch.int64))

    def select(self, index: Tensor) -> Split:
        """The images at `index`, in that order."""
        return Split(self.images[index], self.labels[index])


@dataclass(frozen=True, eq=False)
class DataBundle:
    """A data set with everything a run must remember of it.

    Attributes:
        name: The data set's name, or the image folder's.
        train: Training images, validation not yet held out.
        test: Test images.
        class_names: One name per label.
        levels: Number of grey levels: values run from 0 to levels - 1.
        flip: Whether mirror images belong to the same class (a hint for augmentation).
        skipped: Files that were left out, each "name: reason".
        validation: The data set's own validation split, where it has one.
    """

    name: str
    train: Split
    test: Split
    class_names: tuple[str, ...]
    levels: int = 256
    flip: bool = False
    skipped: tuple[str, ...] = ()
    validation: Split | None = None

    def __post_init__(self) -> None:
        """Check that the splits belong together."""
        if not 2 <= self.levels <= 256:
            raise ValueError(f"levels must be from 2 to 256, got {self.levels}")
        if len(self.train) == 0:
            raise ValueError(f"data set {self.name!r} has no training images")
        for part, split in self.splits().items():
            if split.images.shape[1:] != self.train.images.shape[1:]:
                raise ValueError(
                    f"{part} images of shape {tuple(split.images.shape[1:])} do not match the "
                    f"training images' {self.image_shape}"
                )
            if len(split) and int(split.labels.max()) >= len(self.class_names):
                raise ValueError(
                    f"{part} labels go up to {int(split.labels.max())}, but there are only "
                    f"{len(self.class_names)} class names"
                )
            if len(split) and int(split.images.max()) >= self.levels:
                raise ValueError(
                    f"{part} images hold the value {int(split.images.max())}, too large for "
                    f"levels={self.levels}"
                )

    def splits(self) -> dict[str, Split]:
        """The splits that exist, by name."""
        named = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: split for name, split in named.items() if split is not None}

    @property
    def num_classes(self) -> int:
        """C, the number of classes."""
        return len(self.class_names)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of every image."""
        channels, height, width = self.train.images.shape[1:]
        return channels, height, width

    @property
    def channels(self) -> int:
        """Number of colour channels."""
        return self.image_shape[0]

    @property
    def image_size(self) -> int:
        """Height of the images (whatever this package decodes is square)."""
        return self.image_shape[1]

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over every byte of images and labels, the class names and the levels."""
        digest = hashlib.sha256(repr((self.class_names, self.levels)).encode())
        for part, split in self.splits().items():
            digest.update(repr((part, tuple(split.images.shape))).encode())
            digest.update(split.images.cpu().contiguous().numpy().data)
            digest.update(split.labels.cpu().contiguous().numpy().astype("<i8").data)
        return digest.hexdigest()


class HeldOut(NamedTuple):
    """A split in two."""

    rest: Split
    held: Split


class TrainingSplits(NamedTuple):
    """What training and evaluation see."""

    train: Split
    validation: Split
    test: Split


def stratified_choice(labels: Tensor, count: int, seed: int, keep: int = 0) -> Tensor:
    """Indices (ascending) of `count` images, every label in proportion to its share.

    A label's quota is rounded by largest remainders, ties broken by the seed. `keep` images of each
    label are never chosen. Where the labels cannot give `count` images then, fewer come back.
    """
    generator = torch.Generator().manual_seed(seed)
    values, sizes = labels.cpu().unique(return_counts=True)
    room = (sizes - keep).clamp(min=0)
    share = sizes.double() * (count / max(len(labels), 1))
    quota = torch.minimum(share.floor().long(), room)
    tie_break = torch.rand(len(values), generator=generator)
    # Hand out what rounding down left, one image per label and round, largest remainder first.
    while int(quota.sum()) < min(count, int(room.sum())):
        wanting = (share - quota + 1e-6 * tie_break).masked_fill(quota >= room, -torch.inf)
        missing = min(count - int(quota.sum()), int((quota < room).sum()))
        quota[wanting.topk(missing).indices] += 1
    chosen = []
    for value, number in zip(values.tolist(), quota.tolist(), strict=True):
        members = (labels.cpu() == value).nonzero().flatten()
        chosen.append(members[torch.randperm(len(members), generator=generator)[:number]])
    return torch.cat(chosen).sort().values if chosen else torch.zeros(0, dtype=torch.int64)


def hold_out(split: Split, fraction: float, seed: int, minimum: int = 0) -> HeldOut:
    """Hold out a share of a split, class by class, the same one for the same seed.

    At least one image of every class stays. `minimum` asks for at least so many held-out images
    of every class that has more than `minimum`.
    """
    if not 0 <= fraction < 1:
        raise ValueError(f"fraction must be at least 0 and below 1, got {fraction}")
    labels = split.labels.cpu()
    chosen = stratified_choice(labels, round(fraction * len(split)), seed, keep=1)
    mask = torch.zeros(len(split), dtype=torch.bool)
    mask[chosen] = True
    for value in labels.unique().tolist() if minimum else ():
        members = (labels == value).nonzero().flatten()
        lacking = min(minimum, len(members) - 1) - int(mask[members].sum())
        if lacking > 0:
            mask[members[~mask[members]][:lacking]] = True
    return HeldOut(
        split.select((~mask).nonzero().flatten()), split.select(mask.nonzero().flatten())
    )


def hide_labels(split: Split, fraction: float, seed: int) -> Split:
    """Replace a share of the labels by -1, class by class; every class keeps one label at least."""
    if not 0 <= fraction < 1:
        raise ValueError(f"fraction must be at least 0 and below 1, got {fraction}")
    known = (split.labels.cpu() != UNLABELLED).nonzero().flatten()
    chosen = stratified_choice(split.labels.cpu()[known], round(fraction * len(known)), seed, 1)
    labels = split.labels.clone()
    labels[known[chosen].to(labels.device)] = UNLABELLED
    return Split(split.images, labels)


def training_splits(bundle: DataBundle, config: DataConfig) -> TrainingSplits:
    """Hold out validation images (unless the data set brings its own), then hide training labels.

    Labels are hidden last: an unlabelled validation image could not be scored.
    """
    if bundle.validation is not None:
        train, validation = bundle.train, bundle.validation
    else:
        train, validation = hold_out(bundle.train, config.validation_fraction, config.split_seed)
    hidden = hide_labels(train, config.unlabelled_fraction, config.split_seed)
    return TrainingSplits(hidden, validation, bundle.test)


def mean_image(split: Split) -> Tensor:
    """The mean image, float32 (C, H, W), in levels: the paper's baseline for missing parts."""
    if len(split) == 0:
        raise ValueError("a split without images has no mean image")
    total = sum(chunk.sum(0, dtype=torch.int64) for chunk in split.images.split(8192))
    return (torch.as_tensor(total).double() / len(split)).float()
