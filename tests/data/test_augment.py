"""Augmentation: exact cases by hand, everything else against a slow reference."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from protoflows.data import Augment, AugmentConfig

# Values of the subset column that choose one kind of movement alone.
ROTATE, TRANSLATE, SHEAR = 0.5 / 7, 1.5 / 7, 3.5 / 7


def images(*shape: int, seed: int = 0, levels: int = 256) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, levels, shape, dtype=torch.uint8, generator=generator)


def draws(num: int = 1, **columns: float) -> Tensor:
    """A table of draws; movements without a value are nil (0.5 is the middle of every range)."""
    names = ["keep", "flip", "subset", "rotate", "translate_x", "translate_y", "shear"]
    neutral = {"keep": 1.0, "flip": 1.0, "subset": ROTATE}
    row = [columns.get(name, neutral.get(name, 0.5)) for name in names]
    return torch.tensor([row]).repeat(num, 1)


def augment(**changes: object) -> Augment:
    flip = bool(changes.pop("flip", False))
    return Augment(AugmentConfig(**{"share_unaugmented": 0.0, **changes}), flip=flip)


@pytest.mark.parametrize("shape", [(3, 1, 28, 28), (2, 3, 64, 64), (2, 3, 5, 8), (1, 1, 1, 7)])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_identity_is_exact(shape: tuple[int, ...], interpolation: str) -> None:
    x = images(*shape)
    still = augment(rotate=0.0, translate=0.0, shear=0.0, interpolation=interpolation)
    assert torch.equal(still(x, torch.Generator().manual_seed(0)), x)


@pytest.mark.parametrize("shape", [(2, 3, 32, 32), (2, 1, 5, 8)])
def test_flip_is_exact(shape: tuple[int, ...]) -> None:
    x = images(*shape)
    moved = augment(flip=True).apply(x, draws(2, flip=0.49))
    assert torch.equal(moved, x.flip(-1))
    assert torch.equal(augment(flip=True).apply(x, draws(2, flip=0.51)), x)
    assert torch.equal(augment(flip=False).apply(x, draws(2, flip=0.49)), x)


def test_quarter_turn_is_clockwise() -> None:
    x = images(1, 1, 6, 6)
    turned = augment(rotate=90.0).apply(x, draws(rotate=1.0))
    assert torch.equal(turned, x.rot90(-1, (2, 3)))
    back = augment(rotate=90.0).apply(x, draws(rotate=0.0))
    assert torch.equal(back, x.rot90(1, (2, 3)))


def test_half_turn_of_an_oblong() -> None:
    x = images(1, 2, 4, 7)
    assert torch.equal(augment(rotate=180.0).apply(x, draws(rotate=1.0)), x.flip(2, 3))


def test_translation_repeats_the_edge() -> None:
    x = torch.tensor([[[[1, 2, 3, 4], [5, 6, 7, 8]]]], dtype=torch.uint8)
    shift = augment(translate=0.5)  # two columns or one row at the most
    right = shift.apply(x, draws(subset=TRANSLATE, translate_x=1.0))
    assert right.tolist() == [[[[1, 1, 1, 2], [5, 5, 5, 6]]]]
    up = shift.apply(x, draws(subset=TRANSLATE, translate_y=0.0))
    assert up.tolist() == [[[[5, 6, 7, 8], [5, 6, 7, 8]]]]


def test_shear_moves_rows_against_each_other() -> None:
    x = torch.tensor([[[[1, 2, 3], [4, 5, 6], [7, 8, 9]]]], dtype=torch.uint8)
    slanted = augment(shear=45.0).apply(x, draws(subset=SHEAR, shear=1.0))
    # Row y moves by y - 1 to the right.
    assert slanted.tolist() == [[[[2, 3, 3], [4, 5, 6], [7, 7, 8]]]]


def test_half_a_pixel_is_interpolated_and_rounded() -> None:
    x = torch.tensor([[[[0, 101, 10, 10]]]], dtype=torch.uint8)
    half = augment(translate=0.125).apply(x, draws(subset=TRANSLATE, translate_x=1.0))
    # 50.5 is rounded to the even neighbour, 55.5 likewise.
    assert half.tolist() == [[[[0, 50, 56, 10]]]]


def reference(x: Tensor, row: Tensor, config: AugmentConfig, flip: bool) -> Tensor:
    """One image, pixel by pixel in plain Python, from the forward map inverted numerically."""
    keep, mirrored, which, *_ = row.tolist()
    subset = min(int(which * 7), 6) + 1
    angle, tx, ty, slant = (2 * row[3:].double() - 1).tolist()
    angle = math.radians(config.rotate) * angle if subset & 1 else 0.0
    slant = math.tan(math.radians(config.shear) * slant) if subset & 4 else 0.0
    height, width = x.shape[1:]
    move = [tx * config.translate * width, ty * config.translate * height]
    t = torch.tensor(move if subset & 2 else [0.0, 0.0], dtype=torch.float64)
    f = torch.diag(torch.tensor([-1.0 if flip and mirrored < 0.5 else 1.0, 1.0])).double()
    s = torch.tensor([[1.0, slant], [0.0, 1.0]]).double()
    cos, sin = math.cos(angle), math.sin(angle)
    r = torch.tensor([[cos, -sin], [sin, cos]]).double()
    inverse = torch.linalg.inv(r @ s @ f)
    centre = torch.tensor([(width - 1) / 2, (height - 1) / 2]).double()
    out = torch.zeros(x.shape)
    for row_, column in ((i, j) for i in range(height) for j in range(width)):
        o = torch.tensor([column, row_]).double() - centre
        px, py = (inverse @ (o - t) + centre).tolist()
        px, py = min(max(px, 0), width - 1), min(max(py, 0), height - 1)
        x0, y0 = min(int(px), max(width - 2, 0)), min(int(py), max(height - 2, 0))
        a, b = px - x0, py - y0
        x1, y1 = min(x0 + 1, width - 1), min(y0 + 1, height - 1)
        top = (1 - a) * x[:, y0, x0].double() + a * x[:, y0, x1].double()
        low = (1 - a) * x[:, y1, x0].double() + a * x[:, y1, x1].double()
        out[:, row_, column] = (1 - b) * top + b * low
    return out


@settings(max_examples=25, deadline=None)
@given(
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    channels=st.integers(1, 3),
    flip=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_against_the_reference(
    height: int, width: int, channels: int, flip: bool, seed: int
) -> None:
    x = images(1, channels, height, width, seed=seed)
    moving = augment(rotate=60.0, translate=0.3, shear=30.0, flip=flip)
    row = moving.draw(1, torch.Generator().manual_seed(seed))
    expected = reference(x[0], row[0], moving.config, flip)
    assert (moving.apply(x, row)[0].float() - expected).abs().max() < 0.51  # rounding alone


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_stays_within_the_levels(interpolation: str) -> None:
    x = images(64, 1, 8, 8, levels=17)
    config = AugmentConfig(share_unaugmented=0.0, interpolation=interpolation)
    y = Augment(config, levels=17)(x, torch.Generator().manual_seed(0))
    assert y.dtype == torch.uint8
    assert y.shape == x.shape
    assert int(y.max()) <= 16
    assert not torch.equal(x, y)


def test_reproducible_and_in_place_of_nothing() -> None:
    x = images(16, 3, 12, 12)
    before = x.clone()
    moving = augment(flip=True)
    first = moving(x, torch.Generator().manual_seed(4))
    assert torch.equal(x, before)
    assert torch.equal(first, moving(x, torch.Generator().manual_seed(4)))
    assert not torch.equal(first, moving(x, torch.Generator().manual_seed(5)))


def test_an_image_depends_on_its_own_row_alone() -> None:
    x, moving = images(12, 1, 10, 10), augment(flip=True)
    table = moving.draw(12, torch.Generator().manual_seed(0))
    whole = moving.apply(x, table)
    parts = [moving.apply(x[i : i + 5], table[i : i + 5]) for i in range(0, 12, 5)]
    assert torch.equal(torch.cat(parts), whole)


def test_share_unaugmented() -> None:
    x = images(2000, 1, 6, 6)
    config = AugmentConfig(share_unaugmented=0.3)
    y = Augment(config, flip=True)(x, torch.Generator().manual_seed(0))
    same = (x == y).flatten(1).all(1).float().mean().item()
    assert same == pytest.approx(0.3, abs=0.04)
    everything = AugmentConfig(share_unaugmented=1.0)
    assert torch.equal(Augment(everything, flip=True)(x, torch.Generator().manual_seed(0)), x)


def test_one_or_more_movements_in_equal_shares() -> None:
    moving = augment()
    table = moving.draw(7000, torch.Generator().manual_seed(0))
    linear = moving.matrices(table)
    shifted = linear[:, :, 2].abs().sum(1) > 0
    turned = linear[:, 1, 0] != 0
    slanted = (linear[:, 0, :2] - linear[:, 1, :2].flip(-1) * torch.tensor([1, -1])).norm(
        dim=1
    ) > 1e-6
    code = turned + 2 * shifted + 4 * slanted
    counts = code.bincount(minlength=8)
    assert counts[0] == 0
    assert (counts[1:] - 1000).abs().max() < 130  # more than four standard deviations


def test_ranges_are_respected() -> None:
    moving = augment()
    alone = draws(500, subset=ROTATE)
    alone[:, 3] = torch.linspace(0, 1, 500)
    angles = torch.asin(-moving.matrices(alone)[:, 1, 0])
    assert angles.min().item() == pytest.approx(-math.radians(15), abs=1e-5)
    assert angles.max().item() == pytest.approx(math.radians(15), abs=1e-5)


def test_flip_follows_the_hint_unless_told() -> None:
    assert Augment(AugmentConfig(), flip=True).flip
    assert not Augment(AugmentConfig(), flip=False).flip
    assert not Augment(AugmentConfig(flip=False), flip=True).flip
    assert Augment(AugmentConfig(flip=True), flip=False).flip


@pytest.mark.parametrize(
    "change",
    [
        {"rotate": -1.0},
        {"translate": 1.0},
        {"shear": 90.0},
        {"share_unaugmented": 1.1},
        {"interpolation": "nearest"},
    ],
)
def test_config_refuses(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f"augment.{next(iter(change))} .*got"):
        AugmentConfig(**change)


def test_wrong_input() -> None:
    with pytest.raises(ValueError, match="uint8"):
        augment().apply(torch.zeros(1, 1, 4, 4), draws())
    with pytest.raises(ValueError, match=r"draws must be of shape \(2, 7\)"):
        augment().apply(images(2, 1, 4, 4), draws())
    with pytest.raises(ValueError, match="levels"):
        Augment(AugmentConfig(), levels=1)
    assert augment()(images(0, 1, 4, 4), torch.Generator()).shape == (0, 1, 4, 4)
