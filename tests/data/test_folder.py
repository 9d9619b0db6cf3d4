"""Image folders: layouts, shapes, and everything that can be wrong with one."""

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

from protoflows.data import DataConfig, image_to_tensor, load_data

MakeFolder = Callable[..., Path]


def load(folder: Path, **changes: object) -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return load_data(DataConfig(name=str(folder), **changes))


def test_classes_only(make_folder: MakeFolder) -> None:
    folder = make_folder({"dog": 10, "cat": 5, ".git": 3})
    bundle = load(folder)
    assert bundle.name == "animals"
    assert bundle.class_names == ("cat", "dog")
    assert bundle.test.labels.bincount().tolist() == [1, 2]  # a fifth
    assert bundle.train.labels.bincount().tolist() == [4, 8]
    assert bundle.image_shape == (3, 12, 12)  # all equal and small: kept as they are
    assert not bundle.flip
    assert load(folder, split_seed=5).fingerprint == bundle.fingerprint


def test_small_classes_are_tested_too(make_folder: MakeFolder) -> None:
    bundle = load(make_folder({"many": 20, "two": 2}))
    assert bundle.test.labels.bincount().tolist() == [4, 1]
    assert bundle.train.labels.bincount().tolist() == [16, 1]


def test_pixels_and_labels_stay_together(make_folder: MakeFolder) -> None:
    folder = make_folder({"train/a": 2, "train/b": 1, "test/b": 1})
    bundle = load(folder)
    assert bundle.train.labels.tolist() == [0, 0, 1]
    assert bundle.test.labels.tolist() == [1]
    for image, name in zip(
        [*bundle.train.images, *bundle.test.images],
        ["train/a/00.png", "train/a/01.png", "train/b/00.png", "test/b/00.png"],
        strict=True,
    ):
        assert torch.equal(image, image_to_tensor(folder / name))


def test_val_is_the_test_split_unless_there_is_one(make_folder: MakeFolder) -> None:
    folder = make_folder({"train/a": 2, "train/b": 2, "val/a": 1, "val/b": 2})
    bundle = load(folder)
    assert (len(bundle.train), len(bundle.test), bundle.validation) == (4, 3, None)
    for name in ("a", "b"):
        (folder / "test" / name).mkdir(parents=True)
        Image.new("RGB", (12, 12), (1, 2, 3)).save(folder / "test" / name / "x.png")
    bundle = load(folder)
    assert bundle.validation is not None
    assert (len(bundle.train), len(bundle.validation), len(bundle.test)) == (4, 3, 2)


def test_a_class_may_be_called_train(make_folder: MakeFolder) -> None:
    assert load(make_folder({"train": 3, "bus": 3})).class_names == ("bus", "train")


def test_mixed_modes_and_sizes(make_folder: MakeFolder, picture: Callable) -> None:
    folder = make_folder({"a": 3, "b": 3}, mode="L")
    assert load(folder).channels == 1
    picture(200, 90).save(folder / "a" / "big.jpg")
    Image.new("RGBA", (70, 80), (9, 9, 9, 100)).save(folder / "b" / "clear.png")
    (folder / "b" / "deeper").mkdir()
    picture(5, 4, "L").save(folder / "b" / "deeper" / "small.BMP")
    bundle = load(folder)
    assert bundle.image_shape == (3, 32, 32)
    assert len(bundle.train) + len(bundle.test) == 9
    assert load(folder, image_size=8, channels=1).image_shape == (1, 8, 8)


def test_large_pictures_become_64(make_folder: MakeFolder) -> None:
    assert load(make_folder({"a": 2, "b": 2}, width=90, height=70)).image_size == 64


def test_limit_is_applied_before_decoding(make_folder: MakeFolder) -> None:
    folder = make_folder({"train/a": 6, "train/b": 2, "test/a": 3, "test/b": 3})
    bundle = load(folder, limit=4)
    assert bundle.train.labels.bincount().tolist() == [3, 1]
    assert bundle.test.labels.bincount().tolist() == [2, 2]


def test_damaged_files_are_counted_and_named(make_folder: MakeFolder) -> None:
    folder = make_folder({"a": 4, "b": 4})
    broken = folder / "a" / "02.png"
    broken.write_bytes(broken.read_bytes()[:100])
    (folder / "b" / "page.jpg").write_text("<html>")
    (folder / "b" / "notes.txt").write_text("not meant as a picture")
    config = DataConfig(name=str(folder))
    with pytest.warns(UserWarning, match=r"2 of 9 pictures .* a/02\.png: damaged .*b/page\.jpg"):
        bundle = load_data(config)
    assert len(bundle.train) + len(bundle.test) == 7
    assert [entry.split(":")[0] for entry in bundle.skipped] == ["a/02.png", "b/page.jpg"]
    with pytest.raises(ValueError, match=r"2 of 9 pictures .*a/02\.png.*without strict"):
        load_data(DataConfig(name=str(folder), strict=True))


@pytest.mark.parametrize(
    ("counts", "match"),
    [
        ({"a": 3}, "at least two; found only one, 'a'"),
        ({"train/a": 3, "test/a": 3}, "found only one, 'a'"),
        ({"a": 3, "b": 0}, "b is empty"),
        ({"a": 3, "b": 1}, r"at least 2 readable .*'b' \(1\)"),
        ({"train/a": 1, "train/b": 1, "test/c": 1}, "class that .* does not have"),
        ({"train/a": 1, "train/b": 1, "test/a": 1, "test/b": 0}, "is empty"),
        ({"test/a": 1, "test/b": 1}, "no train/ folder"),
        ({"val/a": 1, "valid/b": 1, "train/a": 1}, "twice"),
    ],
)
def test_wrong_folders(make_folder: MakeFolder, counts: dict[str, int], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        load(make_folder(counts))


def test_no_classes_no_folder_no_directory(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="sub-folder per class, at least two; found none"):
        load(tmp_path)
    with pytest.raises(FileNotFoundError, match="no such image folder"):
        load(tmp_path / "nope")
    (tmp_path / "file.zip").write_text("x")
    with pytest.raises(ValueError, match="is a file"):
        load(tmp_path / "file.zip")


def test_a_class_that_loses_all_its_pictures(make_folder: MakeFolder) -> None:
    folder = make_folder({"train/a": 2, "train/b": 1, "test/a": 1})
    (folder / "train" / "b" / "00.png").write_bytes(b"")
    with (
        pytest.warns(UserWarning, match="1 of 4 pictures"),
        pytest.raises(ValueError, match=r"'b' \(0\)"),
    ):
        load_data(DataConfig(name=str(folder)))


def test_nothing_readable(make_folder: MakeFolder) -> None:
    folder = make_folder({"a": 1, "b": 1})
    for file in folder.rglob("*.png"):
        file.write_bytes(b"x")
    with (
        pytest.warns(UserWarning, match="2 of 2"),
        pytest.raises(ValueError, match="no readable picture"),
    ):
        load_data(DataConfig(name=str(folder)))
