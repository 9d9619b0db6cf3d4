"""Names → loaders: every data set enters through `load_data`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from protoflows.data.config import DATASETS, DataConfig
from protoflows.data.cub200 import load_cub200
from protoflows.data.folder import load_folder
from protoflows.data.images import set_channels, set_size
from protoflows.data.splits import DataBundle, Split, hold_out, stratified_choice
from protoflows.data.vision import (
    load_cifar10,
    load_cifar100,
    load_fashion_mnist,
    load_flowers102,
    load_mnist,
    load_oxford_pet,
)

# Loaders of data sets that live below data.root.
_LOADERS: dict[str, Callable[[Path, DataConfig], DataBundle]] = {
    "mnist": load_mnist,
    "fashion-mnist": load_fashion_mnist,
    "cifar10": load_cifar10,
    "cifar100": load_cifar100,
    "flowers102": load_flowers102,
    "oxford-pet": load_oxford_pet,
    "cub200": load_cub200,
}

_ALIASES = {
    "flowers": "flowers102",
    "pets": "oxford-pet",
    "oxfordiiitpet": "oxford-pet",
    "cub": "cub200",
    "cub2002011": "cub200",
}
_DIGITS_TEST_FRACTION = 1 / 3


def load_data(config: DataConfig) -> DataBundle:
    """Load the data set that `config` names, whole, as uint8 tensors in memory.

    Validation images are still among the training images, and no label is hidden yet: that is
    `training_splits`' part.
    """
    name = resolve_name(config.name)
    if name == "digits":
        bundle = load_digits()
    elif name in _LOADERS:
        if config.root is None:
            raise ValueError(
                f"data.root is needed for {name!r}: the folder that holds it in torchvision's "
                "layout (command line: --data-root DIR)"
            )
        root = Path(config.root).expanduser()
        if not root.is_dir():
            raise FileNotFoundError(f"data.root: no such folder: {root}")
        bundle = _LOADERS[name](root, config)
    else:
        bundle = load_folder(name, config)
    return _fit(bundle, config)


def resolve_name(name: str) -> str:
    """A known data set's canonical name, or the path of an image folder as it was given."""
    plain = re.sub(r"[-_ ]", "", name.lower())
    known = {re.sub("-", "", entry): entry for entry in DATASETS} | _ALIASES
    if plain in known:
        return known[plain]
    path = Path(name).expanduser()
    if path.exists() or len(path.parts) > 1 or name.startswith((".", "~")):
        return name
    near = difflib.get_close_matches(plain, known, n=1, cutoff=0.5)
    guess = f" Did you mean {known[near[0]]!r}?" if near else ""
    raise ValueError(
        f"data.name: unknown data set {name!r}.{guess} Known are {', '.join(DATASETS)}, "
        "or the path of an image folder (no such folder here)"
    )


def load_digits() -> DataBundle:
    """scikit-learn's 1,797 scanned digits, 1x8x8 in 17 levels; a fixed third is the test split."""
    from sklearn.datasets import load_digits as read

    images, labels = read(return_X_y=True)
    whole = Split(
        torch.as_tensor(images).to(torch.uint8).reshape(-1, 1, 8, 8),
        torch.as_tensor(labels).to(torch.int64),
    )
    train, test = hold_out(whole, _DIGITS_TEST_FRACTION, seed=0, minimum=1)
    return DataBundle("digits", train, test, tuple("0123456789"), levels=17)


def _fit(bundle: DataBundle, config: DataConfig) -> DataBundle:
    """Bring a bundle to the asked number, size and channels (no-ops where a loader has already)."""

    def fit(split: Split) -> Split:
        if config.limit is not None and len(split) > config.limit:
            split = split.select(stratified_choice(split.labels, config.limit, config.split_seed))
        images = set_channels(split.images, 1) if config.channels == 1 else split.images
        images = set_size(images, config.image_size, bundle.levels)
        return Split(set_channels(images, config.channels), split.labels)

    train = fit(bundle.train)
    absent = set(range(bundle.num_classes)) - set(train.labels.tolist())
    if absent:
        names = ", ".join(bundle.class_names[c] for c in sorted(absent))
        raise ValueError(
            f"no training image is left of {len(absent)} classes ({names}): data.limit="
            f"{config.limit} is too small for {bundle.num_classes} classes"
        )
    validation = fit(bundle.validation) if bundle.validation is not None else None
    return replace(bundle, train=train, test=fit(bundle.test), validation=validation)
