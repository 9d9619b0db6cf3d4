"""The named data sets, from small copies in their original formats."""

import gzip
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from protoflows.data import DATASETS, DataConfig, load_data
from protoflows.data.idx import read_idx
from protoflows.data.registry import resolve_name

Make = Callable[..., Image.Image]


def idx_bytes(values: np.ndarray) -> bytes:
    head = bytes([0, 0, 8, values.ndim])
    return head + b"".join(n.to_bytes(4, "big") for n in values.shape) + values.tobytes()


def write_mnist(raw: Path, packed: bool = True) -> dict[str, np.ndarray]:
    raw.mkdir(parents=True)
    rng = np.random.default_rng(0)
    written = {}
    for prefix, num in (("train", 30), ("t10k", 10)):
        images = rng.integers(0, 256, (num, 28, 28), dtype=np.uint8)
        labels = (np.arange(num) % 10).astype(np.uint8)
        for name, values in (("images-idx3", images), ("labels-idx1", labels)):
            data = idx_bytes(values)
            path = raw / f"{prefix}-{name}-ubyte"
            if packed:
                path.with_name(path.name + ".gz").write_bytes(gzip.compress(data))
            else:
                path.write_bytes(data)
        written[prefix] = images
    return written


def test_digits() -> None:
    bundle = load_data(DataConfig())
    assert (bundle.name, bundle.levels, bundle.flip) == ("digits", 17, False)
    assert bundle.image_shape == (1, 8, 8)
    assert (len(bundle.train), len(bundle.test)) == (1198, 599)
    assert int(bundle.train.images.max()) == 16
    # A third of every class, to within one image.
    whole = bundle.train.labels.bincount() + bundle.test.labels.bincount()
    assert (bundle.test.labels.bincount() - whole / 3).abs().max() < 1
    # The split never changes: results on it are comparable.
    other = load_data(DataConfig(split_seed=7))
    assert other.fingerprint == bundle.fingerprint


def test_digits_resized_keep_their_levels() -> None:
    bundle = load_data(DataConfig(image_size=16, channels=3, limit=50))
    assert bundle.image_shape == (3, 16, 16)
    assert (len(bundle.train), len(bundle.test)) == (50, 50)
    assert int(bundle.train.images.max()) <= 16
    assert torch.equal(bundle.train.images[:, 0], bundle.train.images[:, 2])


@pytest.mark.parametrize(
    ("name", "folder", "packed"),
    [("mnist", "MNIST", True), ("fashion-mnist", "FashionMNIST", False)],
)
def test_mnist_and_fashion(tmp_path: Path, name: str, folder: str, packed: bool) -> None:
    written = write_mnist(tmp_path / folder / "raw", packed)
    bundle = load_data(DataConfig(name=name, root=str(tmp_path)))
    assert np.array_equal(bundle.train.images[:, 0].numpy(), written["train"])
    assert np.array_equal(bundle.test.images[:, 0].numpy(), written["t10k"])
    assert bundle.test.labels.tolist() == list(range(10))
    assert (bundle.levels, bundle.flip) == (256, name == "fashion-mnist")
    resized = load_data(DataConfig(name=name, root=str(tmp_path), image_size=32, channels=3))
    assert resized.image_shape == (3, 32, 32)


def test_idx_refuses(tmp_path: Path) -> None:
    path = tmp_path / "x-idx"
    with pytest.raises(FileNotFoundError, match=r"x-idx nor x-idx\.gz"):
        read_idx(path)
    path.write_bytes(idx_bytes(np.zeros((2, 3), dtype=np.uint8))[:-1])
    with pytest.raises(ValueError, match="17 bytes instead of 18"):
        read_idx(path)
    path.write_bytes(b"<html>")
    with pytest.raises(ValueError, match="not an IDX file"):
        read_idx(path)
    path.unlink()
    (tmp_path / "x-idx.gz").write_bytes(gzip.compress(bytes(1000))[:-9])
    with pytest.raises(ValueError, match=r"x-idx\.gz is damaged"):
        read_idx(path)


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    from torchvision.datasets import CIFAR10, CIFAR100

    kind = CIFAR10 if name == "cifar10" else CIFAR100
    base = tmp_path / kind.base_folder
    base.mkdir()
    key = "labels" if name == "cifar10" else "fine_labels"
    rng = np.random.default_rng(0)
    files = [file for file, _ in kind.train_list + kind.test_list]
    data = {file: rng.integers(0, 256, (10, 3072), dtype=np.uint8) for file in files}
    for file, values in data.items():
        (base / file).write_bytes(pickle.dumps({"data": values, key: list(range(10))}))
    names = [f"small_mammal_{i}" for i in range(10)]
    (base / kind.meta["filename"]).write_bytes(pickle.dumps({kind.meta["key"]: names}))
    config = DataConfig(name=name, root=str(tmp_path))
    with pytest.raises(FileNotFoundError, match="checksums are wrong"):
        load_data(config)  # never unpickles what is not the original
    (tmp_path / f"{name.replace('r', 'r-')}-x.tar.gz").touch()
    with pytest.raises(FileNotFoundError, match=r"Unpack it first: tar xf .*-x\.tar\.gz"):
        load_data(config)
    for attribute in ("train_list", "test_list"):
        monkeypatch.setattr(kind, attribute, [[file, None] for file, _ in getattr(kind, attribute)])
    monkeypatch.setattr(kind, "meta", {**kind.meta, "md5": None})
    bundle = load_data(config)
    assert bundle.image_shape == (3, 32, 32)
    assert len(bundle.test) == 10
    assert np.array_equal(bundle.test.images.flatten(1).numpy(), data[files[-1]])
    assert bundle.class_names[3] == "small mammal 3"
    assert bundle.flip


@pytest.mark.parametrize("with_test", [False, True])
def test_flowers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, picture: Make, with_test: bool
) -> None:
    from scipy.io import savemat
    from torchvision.datasets import Flowers102

    base = tmp_path / "flowers-102"
    config = DataConfig(name="flowers102", root=str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"flowers-102 with jpg/.*setid\.mat"):
        load_data(config)
    (base / "jpg").mkdir(parents=True)
    # Ids 1..102 are train, 103..204 val, 205..306 test; labels count from 1.
    for image_id in range(1, 307 if with_test else 205):
        picture(6, 5, seed=image_id).save(base / "jpg" / f"image_{image_id:05d}.jpg")
    savemat(base / "imagelabels.mat", {"labels": np.tile(np.arange(1, 103), 3)})
    ids = np.arange(1, 307).reshape(3, 102)
    savemat(base / "setid.mat", {"trnid": ids[0], "valid": ids[1], "tstid": ids[2]})
    monkeypatch.setattr(
        Flowers102, "_file_dict", {k: (v[0], None) for k, v in Flowers102._file_dict.items()}
    )
    if with_test:
        bundle = load_data(config)
        assert bundle.validation is not None
        assert bundle.validation.labels.tolist() == list(range(102))
    else:
        with pytest.warns(UserWarning, match="the val split is used as the test split"):
            bundle = load_data(config)
        assert bundle.validation is None
    assert (len(bundle.train), len(bundle.test)) == (102, 102)
    assert bundle.skipped == ()
    assert bundle.image_shape == (3, 64, 64)
    assert bundle.class_names[0] == "pink primrose"
    assert bundle.test.labels.tolist() == list(range(102))


def test_oxford_pet(tmp_path: Path, picture: Make) -> None:
    base = tmp_path / "oxford-iiit-pet"
    config = DataConfig(name="oxford-pet", root=str(tmp_path), image_size=16)
    with pytest.raises(FileNotFoundError, match=r"annotations/trainval\.txt"):
        load_data(config)
    (base / "images").mkdir(parents=True)
    (base / "annotations").mkdir()
    names = ["Abyssinian_1", "great_pyrenees_12", "Abyssinian_2"]
    for i, name in enumerate(names):
        picture(20, 18, seed=i).save(base / "images" / f"{name}.jpg")
    table = "Abyssinian_1 1 1 1\ngreat_pyrenees_12 2 2 1\n"
    (base / "annotations" / "trainval.txt").write_text(table)
    (base / "annotations" / "test.txt").write_text("Abyssinian_2 1 1 1\ngreat_pyrenees_9 2 2 1\n")
    with pytest.warns(UserWarning, match=r"1 of 4 .*great_pyrenees_9\.jpg: not there"):
        bundle = load_data(config)
    assert bundle.class_names == ("Abyssinian", "Great Pyrenees")
    assert bundle.train.labels.tolist() == [0, 1]
    assert bundle.test.labels.tolist() == [0]
    assert bundle.image_shape == (3, 16, 16)
    (base / "annotations" / "trainval.txt").write_text("Abyssinian_1 one 1 1\n")
    with pytest.raises(ValueError, match=r"trainval\.txt, line 1"):
        load_data(config)


def write_cub(base: Path) -> None:
    """Two classes of two 16x16 images each: black but for an 8x8 box at (4, 2) of 64 blues."""
    names = []
    for c, class_name in enumerate(("001.Black_Bird", "002.Red_Bird")):
        (base / "images" / class_name).mkdir(parents=True)
        for i in range(2):
            pixels = np.zeros((16, 16, 3), dtype=np.uint8)
            pixels[2:10, 4:12] = [100 * c + 50, 10 * i, 0]
            pixels[2:10, 4:12, 2] = np.arange(64).reshape(8, 8)
            names.append(f"{class_name}/{i}.png")
            Image.fromarray(pixels).save(base / "images" / names[-1])
    tables = {
        "images": [f"{i} {name}" for i, name in enumerate(names, 1)],
        "classes": ["1 001.Black_Bird", "2 002.Red_Bird"],
        "image_class_labels": ["1 1", "2 1", "3 2", "4 2"],
        "train_test_split": ["1 1", "2 0", "3 1", "4 0"],
        "bounding_boxes": [f"{i} 4.0 2.0 8.0 8.0" for i in range(1, 5)],
    }
    for name, lines in tables.items():
        (base / f"{name}.txt").write_text("\n".join(lines) + "\n")


def test_cub_crops_to_the_box(tmp_path: Path) -> None:
    write_cub(tmp_path / "CUB_200_2011")
    bundle = load_data(DataConfig(name="cub200", root=str(tmp_path), image_size=8))
    assert bundle.class_names == ("Black Bird", "Red Bird")
    assert (bundle.train.labels.tolist(), bundle.test.labels.tolist()) == ([0, 1], [0, 1])
    red, green, blue = bundle.test.images[1]
    assert (red.unique().tolist(), green.unique().tolist()) == ([150], [10])
    assert torch.equal(blue, torch.arange(64).view(8, 8).to(torch.uint8))
    default = load_data(DataConfig(name="cub200", root=str(tmp_path)))
    assert default.image_size == 64


def test_cub_with_missing_images(tmp_path: Path) -> None:
    base = tmp_path / "CUB_200_2011"
    write_cub(base)
    (base / "images" / "002.Red_Bird" / "1.png").unlink()
    config = DataConfig(name="cub200", root=str(tmp_path))
    with pytest.warns(UserWarning, match=r"1 of 4 .*002\.Red_Bird/1\.png: not there"):
        bundle = load_data(config)
    assert bundle.skipped == ("002.Red_Bird/1.png: not there",)
    (base / "bounding_boxes.txt").write_text("1 4 2 8\n")
    with pytest.raises(ValueError, match=r"bounding_boxes\.txt, line 1: expected an id and 4"):
        load_data(config)
    (base / "bounding_boxes.txt").write_text("1 4 2 8 8\n")
    with pytest.raises(ValueError, match=r"disagree about image 2 \(001\.Black_Bird/1\.png\)"):
        load_data(config)
    (base / "classes.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"missing: classes\.txt"):
        load_data(config)


def test_names() -> None:
    assert [resolve_name(name) for name in DATASETS] == list(DATASETS)
    for alias, name in (("CIFAR-10", "cifar10"), ("Fashion_MNIST", "fashion-mnist")):
        assert resolve_name(alias) == name
    assert resolve_name("./digits") == "./digits"
    assert resolve_name("some/where") == "some/where"
    with pytest.raises(ValueError, match=r"unknown data set 'mnits'\. Did you mean 'mnist'\?"):
        resolve_name("mnits")
    with pytest.raises(ValueError, match=r"'qqqqq'\. Known are digits, mnist"):
        resolve_name("qqqqq")


def test_root_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"data\.root is needed for 'mnist'.*--data-root"):
        load_data(DataConfig(name="mnist"))
    with pytest.raises(FileNotFoundError, match=r"data\.root: no such folder"):
        load_data(DataConfig(name="mnist", root=str(tmp_path / "nope")))
    with pytest.raises(FileNotFoundError, match=r"MNIST/raw: neither .*download=True"):
        load_data(DataConfig(name="mnist", root=str(tmp_path)))


def test_a_limit_that_leaves_out_classes() -> None:
    with pytest.raises(ValueError, match=r"no training image is left of 5 classes.*limit=5"):
        load_data(DataConfig(limit=5))
