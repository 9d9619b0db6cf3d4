"""The named data sets that live in torchvision's folder layout. Nothing is downloaded here."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from protoflows.data.config import DataConfig
from protoflows.data.idx import read_idx_split
from protoflows.data.pictures import Picture, assemble
from protoflows.data.splits import DataBundle, Split

_FASHION = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


def load_mnist(root: Path, config: DataConfig) -> DataBundle:
    """MNIST, 60,000 + 10,000 images 1x28x28."""
    return _load_idx("mnist", root / "MNIST" / "raw", tuple("0123456789"), flip=False)


def load_fashion_mnist(root: Path, config: DataConfig) -> DataBundle:
    """Fashion-MNIST, 60,000 + 10,000 images 1x28x28."""
    return _load_idx("fashion-mnist", root / "FashionMNIST" / "raw", _FASHION, flip=True)


def _load_idx(name: str, raw: Path, class_names: tuple[str, ...], flip: bool) -> DataBundle:
    try:
        train, test = read_idx_split(raw, "train"), read_idx_split(raw, "t10k")
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{name} expects its four original files (train-images-idx3-ubyte.gz, ...) in {raw}: "
            f"{error}. Put them there, or point data.root (--data-root) to where torchvision put "
            f"them: it fetches them with {_TORCHVISION[name]}(ROOT, download=True)"
        ) from error
    return DataBundle(name, train, test, class_names, flip=flip)


def load_cifar10(root: Path, config: DataConfig) -> DataBundle:
    """CIFAR-10, 50,000 + 10,000 images 3x32x32."""
    return _load_cifar("cifar10", root)


def load_cifar100(root: Path, config: DataConfig) -> DataBundle:
    """CIFAR-100 with its 100 fine labels, 50,000 + 10,000 images 3x32x32."""
    return _load_cifar("cifar100", root)


def _load_cifar(name: str, root: Path) -> DataBundle:
    from torchvision.datasets import CIFAR10, CIFAR100

    kind: Any = {"cifar10": CIFAR10, "cifar100": CIFAR100}[name]
    try:
        # The files are pickles; torchvision opens them only if their checksums are the original's.
        train, test = kind(str(root), train=True), kind(str(root), train=False)
    except RuntimeError as error:
        archives = sorted(root.glob(f"cifar-{name.removeprefix('cifar')}-*.tar.*"))
        hint = (
            f"Unpack it first: tar xf {archives[0]} -C {root}"
            if archives
            else f"torchvision fetches it with {_TORCHVISION[name]}(ROOT, download=True)"
        )
        raise FileNotFoundError(
            f"{name} expects the original files in {root / kind.base_folder}; they are missing or "
            f"their checksums are wrong. {hint}"
        ) from error
    return DataBundle(
        name,
        Split.from_arrays(train.data, train.targets),
        Split.from_arrays(test.data, test.targets),
        tuple(readable.replace("_", " ") for readable in train.classes),
        flip=True,
    )


def load_flowers102(root: Path, config: DataConfig) -> DataBundle:
    """Flowers-102 with its official splits.

    The official test images may be left out of a copy: the val split is the test split then.
    """
    from torchvision.datasets import Flowers102

    base = root / "flowers-102"
    pictures: list[Picture] = []
    for split, part in (("train", "train"), ("val", "validation"), ("test", "test")):
        try:
            dataset = Flowers102(str(root), split=split, loader=Path)  # paths instead of pictures
        except RuntimeError as error:
            raise FileNotFoundError(
                f"flowers102 expects {base} with jpg/, imagelabels.mat and setid.mat; they are "
                "missing or their checksums are wrong. torchvision fetches them with "
                f"{_TORCHVISION['flowers102']}(ROOT, download=True)"
            ) from error
        items: Any = (dataset[i] for i in range(len(dataset)))
        pictures += [Picture(path, int(label), part) for path, label in items]
    if not any(picture.path.is_file() for picture in pictures if picture.part == "test"):
        warnings.warn(
            f"{base / 'jpg'} holds no test images: the val split is used as the test split",
            stacklevel=2,
        )
        pictures = [
            Picture(picture.path, picture.label, "test" if picture.part != "train" else "train")
            for picture in pictures
            if picture.part != "test"
        ]
    return assemble(
        "flowers102", base, pictures, Flowers102.classes, config, default_size=64, flip=True
    )


def load_oxford_pet(root: Path, config: DataConfig) -> DataBundle:
    """Oxford-IIIT Pet: cats and dogs of 37 breeds.

    Its two lists are read here, because torchvision's class gives decoded pictures only.
    """
    base = root / "oxford-iiit-pet"
    pictures: list[Picture] = []
    names: dict[int, str] = {}
    for file, part in (("trainval.txt", "train"), ("test.txt", "test")):
        table = base / "annotations" / file
        if not table.is_file() or not (base / "images").is_dir():
            raise FileNotFoundError(
                f"oxford-pet expects {base} with images/ and annotations/{file}. torchvision "
                f"fetches them with {_TORCHVISION['oxford-pet']}(ROOT, download=True)"
            )
        for number, line in enumerate(table.read_text(encoding="utf-8").splitlines(), start=1):
            if not line.strip() or line.startswith("#"):
                continue
            fields = line.split()
            if len(fields) != 4 or not fields[1].isdigit() or int(fields[1]) < 1:
                raise ValueError(f"{table}, line {number}: expected NAME CLASS SPECIES BREED")
            label = int(fields[1]) - 1
            names.setdefault(label, fields[0].rsplit("_", 1)[0].replace("_", " ").title())
            pictures.append(Picture(base / "images" / f"{fields[0]}.jpg", label, part))
    if sorted(names) != list(range(len(names))) or not names:
        raise ValueError(f"the lists in {base / 'annotations'} leave out some classes' numbers")
    class_names = [names[label] for label in range(len(names))]
    return assemble(
        "oxford-pet", base / "images", pictures, class_names, config, default_size=64, flip=True
    )


_TORCHVISION = {
    "mnist": "torchvision.datasets.MNIST",
    "fashion-mnist": "torchvision.datasets.FashionMNIST",
    "cifar10": "torchvision.datasets.CIFAR10",
    "cifar100": "torchvision.datasets.CIFAR100",
    "flowers102": "torchvision.datasets.Flowers102",
    "oxford-pet": "torchvision.datasets.OxfordIIITPet",
}
