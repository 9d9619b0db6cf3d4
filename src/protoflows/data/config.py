"""What data to load and how to augment it: dataclasses, from which YAML and flags are made."""

from __future__ import annotations

from dataclasses import dataclass

DATASETS: tuple[str, ...] = (
    "digits",
    "mnist",
    "fashion-mnist",
    "cifar10",
    "cifar100",
    "flowers102",
    "oxford-pet",
    "cub200",
)
"""Names that `load_data` knows; anything else is the path of an image folder."""


@dataclass(frozen=True)
class DataConfig:
    """Which images, at which size, and how they are divided.

    Attributes:
        name: One of digits, mnist, fashion-mnist, cifar10, cifar100, flowers102, oxford-pet,
            cub200, or the path of an image folder (one sub-folder per class; optional train/ and
            test/ or val/ above them).
        root: Folder that holds the named data set in torchvision's layout. Not needed for digits
            (inside scikit-learn) or for an image folder.
        image_size: Side of the square images: the shortest side is resized to it (bicubic), then
            the centre is cropped. None keeps the native size, or takes 64 (flowers102, oxford-pet,
            cub200), or for image folders what suits their pictures (32 or 64).
        channels: 1 makes grey images, 3 repeats grey ones (as the published code does: bits per
            dimension then count every pixel three times). None keeps what the images have.
        validation_fraction: Share of the training images held out for validation, class by class.
            Not used where the data set brings a validation split of its own.
        split_seed: Seed of every split drawn here (validation, hidden labels, limit).
        unlabelled_fraction: Share of the training labels to hide (label -1), for semi-supervised
            training.
        strict: Refuse unreadable pictures instead of skipping them with a warning.
        limit: Use at most this many images of each split, class by class. None uses all.
    """

    name: str = "digits"
    root: str | None = None
    image_size: int | None = None
    channels: int | None = None
    validation_fraction: float = 0.1
    split_seed: int = 0
    unlabelled_fraction: float = 0.0
    strict: bool = False
    limit: int | None = None

    def __post_init__(self) -> None:
        """Refuse values that no data set could satisfy."""
        if not self.name:
            raise ValueError("data.name is empty: give a data set's name or an image folder's path")
        if self.image_size is not None and self.image_size < 4:
            raise ValueError(f"data.image_size must be at least 4 pixels, got {self.image_size}")
        if self.channels not in (None, 1, 3):
            raise ValueError(
                f"data.channels must be 1, 3 or None (keep native), got {self.channels}"
            )
        for field in ("validation_fraction", "unlabelled_fraction"):
            value = getattr(self, field)
            if not 0 <= value < 1:
                raise ValueError(f"data.{field} must be at least 0 and below 1, got {value}")
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"data.limit must be at least 1 (or None for all), got {self.limit}")


@dataclass(frozen=True)
class AugmentConfig:
    """How far training images may be moved about.

    Attributes:
        flip: Mirror images half of the time. None follows the data set (not for digits).
        rotate: Largest rotation to either side, in degrees.
        translate: Largest shift along either axis, as a share of the image's side.
        shear: Largest shear to either side, in degrees.
        share_unaugmented: Probability that an image is left exactly as it is (the paper: 0). Moved
            images are smoother than real ones, so a density needs some that are not.
        interpolation: bilinear or bicubic.
    """

    flip: bool | None = None
    rotate: float = 15.0
    translate: float = 0.04
    shear: float = 10.0
    share_unaugmented: float = 0.5
    interpolation: str = "bilinear"

    def __post_init__(self) -> None:
        """Refuse ranges that would leave nothing of the image."""
        if not 0 <= self.rotate <= 180:
            raise ValueError(f"augment.rotate must be from 0 to 180 degrees, got {self.rotate}")
        if not 0 <= self.translate < 1:
            raise ValueError(
                f"augment.translate is a share of the side, from 0 to below 1, got {self.translate}"
            )
        if not 0 <= self.shear < 90:
            raise ValueError(f"augment.shear must be from 0 to below 90 degrees, got {self.shear}")
        if not 0 <= self.share_unaugmented <= 1:
            raise ValueError(
                f"augment.share_unaugmented must be from 0 to 1, got {self.share_unaugmented}"
            )
        if self.interpolation not in ("bilinear", "bicubic"):
            raise ValueError(
                f"augment.interpolation must be bilinear or bicubic, got {self.interpolation!r}"
            )
