"""What a data set is, and how it is divided."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from protoflows.data import (
    DataBundle,
    DataConfig,
    Split,
    hide_labels,
    hold_out,
    mean_image,
    training_splits,
)
from protoflows.data.splits import stratified_choice


def make_split(labels: list[int], value: int | None = None) -> Split:
    images = torch.arange(len(labels)) if value is None else torch.full((len(labels),), value)
    return Split(
        images.to(torch.uint8).view(-1, 1, 1, 1).repeat(1, 1, 2, 2), torch.tensor(labels).long()
    )


def identities(split: Split) -> list[int]:
    return split.images[:, 0, 0, 0].tolist()


def test_hold_out_is_stratified() -> None:
    split = make_split([0] * 50 + [1] * 30 + [2] * 20)
    rest, held = hold_out(split, 0.1, seed=3)
    assert held.labels.bincount().tolist() == [5, 3, 2]
    assert rest.labels.bincount().tolist() == [45, 27, 18]
    assert sorted(identities(rest) + identities(held)) == list(range(100))


@given(
    counts=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    fraction=st.floats(0, 0.99),
    minimum=st.integers(0, 2),
    seed=st.integers(0, 5),
)
def test_hold_out_loses_nothing_and_keeps_every_class(
    counts: list[int], fraction: float, minimum: int, seed: int
) -> None:
    split = make_split([label for label, n in enumerate(counts) for _ in range(n)])
    rest, held = hold_out(split, fraction, seed, minimum)
    assert sorted(identities(rest) + identities(held)) == list(range(len(split)))
    assert set(rest.labels.tolist()) == set(range(len(counts)))
    held_counts = held.labels.bincount(minlength=len(counts)).tolist()
    assert all(h >= min(minimum, n - 1) for h, n in zip(held_counts, counts, strict=True))
    if minimum == 0:
        room = sum(n - 1 for n in counts)
        assert len(held) == min(round(fraction * len(split)), room)
    again = hold_out(split, fraction, seed, minimum)
    assert torch.equal(again.held.images, held.images)


def test_hold_out_depends_on_the_seed() -> None:
    split = make_split([0] * 100 + [1] * 100)
    assert identities(hold_out(split, 0.2, 0).held) != identities(hold_out(split, 0.2, 1).held)


def test_small_classes_share_by_largest_remainder() -> None:
    # 10 classes of 3: a tenth is 0.3 each, 3 in all, at most one of any class.
    chosen = stratified_choice(torch.arange(30) % 10, 3, seed=0)
    assert len(set((chosen % 10).tolist())) == 3


def test_hold_out_refuses_everything() -> None:
    with pytest.raises(ValueError, match=r"fraction .* got 1"):
        hold_out(make_split([0, 1]), 1.0, 0)


def test_hide_labels() -> None:
    hidden = hide_labels(make_split([0] * 40 + [1] * 20 + [-1] * 5), 0.5, seed=0)
    assert [(hidden.labels == c).sum().item() for c in (-1, 0, 1)] == [35, 20, 10]
    almost = hide_labels(make_split([0] * 9 + [1] * 9), 0.99, seed=0)
    assert [(almost.labels == c).sum().item() for c in (0, 1)] == [1, 1]


def test_training_splits_hide_after_holding_out() -> None:
    bundle = DataBundle("x", make_split([0, 1] * 50), make_split([0, 1]), ("a", "b"))
    config = DataConfig(validation_fraction=0.2, unlabelled_fraction=0.5)
    parts = training_splits(bundle, config)
    assert [len(part) for part in parts] == [80, 20, 2]
    assert (parts.train.labels == -1).sum() == 40
    assert (parts.validation.labels >= 0).all()


def test_training_splits_take_the_data_sets_own_validation() -> None:
    own = make_split([0, 1, 1])
    bundle = DataBundle(
        "x", make_split([0, 1] * 50), make_split([0, 1]), ("a", "b"), validation=own
    )
    parts = training_splits(bundle, DataConfig())
    assert len(parts.train) == 100
    assert parts.validation is own


def test_mean_image_by_hand() -> None:
    images = torch.tensor([[[[0, 10]]], [[[255, 11]]]], dtype=torch.uint8)
    assert mean_image(Split(images, torch.zeros(2).long())).tolist() == [[[127.5, 10.5]]]
    many = make_split([0] * 20_000, value=255)  # more than one chunk, no overflow
    assert mean_image(many).unique().tolist() == [255.0]
    with pytest.raises(ValueError, match="no mean image"):
        mean_image(make_split([]))


@pytest.mark.parametrize(
    ("images", "labels", "match"),
    [
        (torch.zeros(2, 1, 4, 4), torch.zeros(2).long(), "uint8"),
        (torch.zeros(2, 4, 4, dtype=torch.uint8), torch.zeros(2).long(), r"\(N, C, H, W\)"),
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.zeros(2), "int64"),
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.zeros(3).long(), "2 and 3"),
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.tensor([0, -2]), "got -2"),
    ],
)
def test_split_refuses(images: torch.Tensor, labels: torch.Tensor, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        Split(images, labels)


def test_from_arrays() -> None:
    grey = np.arange(24).reshape(2, 3, 4)
    split = Split.from_arrays(grey, [1.0, 0.0])
    assert split.images.shape == (2, 1, 3, 4)
    assert split.images[1, 0, 2, 3] == 23
    assert split.labels.tolist() == [1, 0]
    last = np.zeros((2, 5, 4, 3), dtype=np.uint8)
    last[0, 1, 2] = [7, 8, 9]
    assert Split.from_arrays(last).images[0, :, 1, 2].tolist() == [7, 8, 9]
    assert Split.from_arrays(last).labels.tolist() == [-1, -1]
    first = torch.zeros(2, 3, 4, 3)
    assert Split.from_arrays(first).images.shape == (2, 3, 4, 3)


@pytest.mark.parametrize(
    "images",
    [
        np.full((1, 2, 2), 0.5),
        np.full((1, 2, 2), 256),
        np.full((1, 2, 2), -1),
        np.full((1, 2, 2), np.nan),
        np.zeros(4),
    ],
)
def test_from_arrays_refuses(images: np.ndarray) -> None:
    with pytest.raises(ValueError, match="images must"):
        Split.from_arrays(images, np.zeros(len(images)))


def test_from_arrays_refuses_fractional_labels() -> None:
    with pytest.raises(ValueError, match="whole numbers"):
        Split.from_arrays(np.zeros((2, 2, 2)), [0.5, 1])


def test_bundle_properties_and_fingerprint() -> None:
    bundle = DataBundle("x", make_split([0, 1, 1]), make_split([0, 1]), ("a", "b"))
    assert (bundle.num_classes, bundle.image_shape, bundle.channels, bundle.image_size) == (
        2,
        (1, 2, 2),
        1,
        2,
    )
    same = DataBundle("y", make_split([0, 1, 1]), make_split([0, 1]), ("a", "b"))
    assert bundle.fingerprint == same.fingerprint
    assert len(bundle.fingerprint) == 64
    for change in (
        {"train": make_split([0, 1, 0])},
        {"test": make_split([0, 1], value=3)},
        {"class_names": ("a", "c")},
        {"levels": 17},
    ):
        assert replace(bundle, **change).fingerprint != bundle.fingerprint


def test_printing_and_comparing_need_no_pixels() -> None:
    split = make_split([0, 1, 1])
    assert repr(split) == "Split(3 images 1x2x2)"
    assert split != make_split([0, 1, 1])
    assert "train=Split(3 images 1x2x2)" in repr(DataBundle("x", split, split, ("a", "b")))


def test_bundle_refuses_what_does_not_belong_together() -> None:
    good = make_split([0, 1])
    with pytest.raises(ValueError, match="test labels go up to 2"):
        DataBundle("x", good, make_split([2]), ("a", "b"))
    with pytest.raises(ValueError, match="value 99"):
        DataBundle("x", good, make_split([0], value=99), ("a", "b"), levels=17)
    with pytest.raises(ValueError, match="do not match"):
        DataBundle(
            "x", good, Split(torch.zeros(1, 3, 2, 2).byte(), torch.zeros(1).long()), ("a", "b")
        )
    with pytest.raises(ValueError, match="no training images"):
        DataBundle("x", make_split([]), good, ("a", "b"))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"name": ""}, "data.name is empty"),
        ({"image_size": 2}, "data.image_size"),
        ({"channels": 2}, "data.channels"),
        ({"validation_fraction": 1.0}, "data.validation_fraction"),
        ({"unlabelled_fraction": -0.1}, "data.unlabelled_fraction"),
        ({"limit": 0}, "data.limit"),
    ],
)
def test_config_refuses(change: dict[str, object], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        DataConfig(**change)
