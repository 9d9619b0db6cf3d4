"""Decoding: every mode of picture that people have, and files that are none."""

import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from protoflows.data.images import (
    PictureError,
    fit_square,
    image_to_tensor,
    open_picture,
    set_channels,
    set_size,
)

Make = Callable[..., Image.Image]


def test_grey_rgb_and_channels(tmp_path: Path) -> None:
    grey = np.array([[0, 10], [200, 255]], dtype=np.uint8)
    Image.fromarray(grey).save(tmp_path / "grey.png")
    x = image_to_tensor(tmp_path / "grey.png")
    assert x.dtype == torch.uint8
    assert x.tolist() == [[[0, 10], [200, 255]]]
    assert image_to_tensor(tmp_path / "grey.png", channels=3).tolist() == [x[0].tolist()] * 3
    # Grey saved as RGB is still grey; red is not, and weighs 0.299.
    assert image_to_tensor(Image.fromarray(grey).convert("RGB")).shape == (1, 2, 2)
    red = Image.new("RGB", (2, 2), (255, 0, 0))
    assert image_to_tensor(red).shape == (3, 2, 2)
    assert image_to_tensor(red, channels=1).unique().tolist() == [76]


def test_sixteen_bit_grey_is_rescaled_not_clipped(tmp_path: Path) -> None:
    deep = np.array([[0, 257, 300], [128 * 257, 65534, 65535]], dtype=np.uint16)
    for name in ("deep.png", "deep.tif"):
        Image.fromarray(deep).save(tmp_path / name)
        assert image_to_tensor(tmp_path / name).tolist() == [[[0, 1, 1], [128, 255, 255]]]


def test_sixteen_bit_rgb_png(tmp_path: Path) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    pixel = struct.pack(">HHH", 65535, 128 * 257, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 16, 2, 0, 0, 0))
    data += chunk(b"IDAT", zlib.compress(b"\0" + pixel)) + chunk(b"IEND", b"")
    (tmp_path / "deep.png").write_bytes(data)
    assert image_to_tensor(tmp_path / "deep.png").flatten().tolist() == [255, 128, 0]


@pytest.mark.parametrize(
    ("values", "expected"),
    [([0.0, 0.5, 1.0], [0, 128, 255]), ([0.0, 100.4, 255.0], [0, 100, 255])],
)
def test_float_tiff(tmp_path: Path, values: list[float], expected: list[int]) -> None:
    Image.fromarray(np.array([values], dtype=np.float32)).save(tmp_path / "f.tif")
    assert image_to_tensor(tmp_path / "f.tif").flatten().tolist() == expected


@pytest.mark.parametrize("values", [[0.0, 300.0], [-1.0, 1.0], [0.0, float("nan")]])
def test_float_tiff_of_unknown_range_is_refused(tmp_path: Path, values: list[float]) -> None:
    Image.fromarray(np.array([values], dtype=np.float32)).save(tmp_path / "f.tif")
    with pytest.raises(PictureError, match=r"f\.tif.*rescale it"):
        image_to_tensor(tmp_path / "f.tif")


def test_transparency_over_white(tmp_path: Path) -> None:
    rgba = np.array([[[0, 0, 0, 0], [255, 0, 0, 255], [0, 0, 0, 128]]], dtype=np.uint8)
    Image.fromarray(rgba).save(tmp_path / "a.png")
    x = image_to_tensor(tmp_path / "a.png")
    assert x[:, 0, 0].tolist() == [255, 255, 255]
    assert x[:, 0, 1].tolist() == [255, 0, 0]
    assert x[:, 0, 2].tolist() == [127, 127, 127]
    la = np.array([[[0, 0], [90, 255]]], dtype=np.uint8)
    Image.fromarray(la, "LA").save(tmp_path / "la.png")
    assert image_to_tensor(tmp_path / "la.png").tolist() == [[[255, 90]]]


def test_palette_with_and_without_transparency(tmp_path: Path) -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putpixel((1, 0), 1)
    image.save(tmp_path / "p.png")
    assert image_to_tensor(tmp_path / "p.png")[:, 0].T.tolist() == [[10, 20, 30], [40, 50, 60]]
    image.save(tmp_path / "t.png", transparency=1)
    assert image_to_tensor(tmp_path / "t.png")[:, 0].T.tolist() == [[10, 20, 30], [255] * 3]


def test_cmyk_and_one_bit(tmp_path: Path) -> None:
    Image.new("CMYK", (2, 2), (255, 0, 0, 0)).save(tmp_path / "c.tif")
    assert image_to_tensor(tmp_path / "c.tif")[:, 0, 0].tolist() == [0, 255, 255]
    Image.fromarray(np.array([[True, False]])).save(tmp_path / "b.png")
    assert image_to_tensor(tmp_path / "b.png").tolist() == [[[255, 0]]]


def test_exif_rotation(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera lay on its side: turn clockwise by 90 degrees
    image = Image.fromarray(np.array([[1, 2, 3], [4, 5, 6]], dtype=np.uint8))
    image.save(tmp_path / "r.png", exif=exif)
    assert image_to_tensor(tmp_path / "r.png").tolist() == [[[4, 1], [5, 2], [6, 3]]]


def test_animation_gives_its_first_frame(tmp_path: Path) -> None:
    frames = [Image.new("L", (4, 4), value) for value in (0, 255)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert image_to_tensor(tmp_path / "a.gif").unique().tolist() == [0]


@pytest.mark.parametrize("suffix", ["png", "jpg", "tif", "bmp"])
def test_truncated_file(tmp_path: Path, picture: Make, suffix: str) -> None:
    path = tmp_path / f"x.{suffix}"
    picture(64, 64).save(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(PictureError, match=rf"x\.{suffix}: damaged"):
        image_to_tensor(path)


@pytest.mark.parametrize(
    "content", [b"", b"hello", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 1 1"]
)
def test_not_a_picture(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.png").write_bytes(content)
    with pytest.raises(PictureError, match="not a picture"):
        image_to_tensor(tmp_path / "x.png")


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("limit", [100, 1000])  # Pillow itself only warns up to twice its limit
def test_decompression_bomb(
    tmp_path: Path, picture: Make, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    picture(40, 30).save(tmp_path / "x.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    with pytest.raises(PictureError, match="1200 pixels|40x30 pixels"):
        image_to_tensor(tmp_path / "x.png")


def test_missing_file_and_bad_arguments(tmp_path: Path, picture: Make) -> None:
    with pytest.raises(FileNotFoundError, match="nope"):
        image_to_tensor(tmp_path / "nope.png")
    with pytest.raises(ValueError, match="channels must be"):
        image_to_tensor(picture(), channels=2)
    with pytest.raises(ValueError, match="size must be"):
        image_to_tensor(picture(), size=0)


def test_box_is_cut_to_the_picture() -> None:
    image = Image.fromarray(np.arange(16, dtype=np.uint8).reshape(4, 4))
    assert image_to_tensor(image, box=(1.2, 2, 3, 99)).tolist() == [[[9, 10], [13, 14]]]
    with pytest.raises(PictureError, match="outside"):
        image_to_tensor(image, box=(4, 0, 8, 4))


def test_centre_crop_without_resizing_is_exact() -> None:
    image = Image.fromarray(np.arange(32, dtype=np.uint8).reshape(4, 8))
    assert np.array_equal(np.array(fit_square(image, 4)), np.array(image)[:, 2:6])


@pytest.mark.parametrize(("width", "height"), [(1, 500), (500, 1), (7, 5), (100, 37), (2, 2)])
def test_every_shape_becomes_the_square(picture: Make, width: int, height: int) -> None:
    assert image_to_tensor(picture(width, height), size=8).shape == (3, 8, 8)


def test_a_batch_is_resized_like_a_picture(picture: Make) -> None:
    image = picture(30, 21)
    one = image_to_tensor(image, size=12)
    whole = set_size(image_to_tensor(image).unsqueeze(0), 12)[0]
    assert (one.int() - whole.int()).abs().max() <= 1  # Pillow resamples in fixed point


def test_resizing_stays_within_the_levels() -> None:
    x = torch.zeros(3, 1, 8, 8, dtype=torch.uint8)
    x[:, :, ::2] = 16
    assert int(set_size(x, 20, levels=17).max()) == 16


def test_set_channels() -> None:
    grey = torch.tensor([[[[7, 9]]]], dtype=torch.uint8)
    assert torch.equal(set_channels(grey, 3), grey.expand(1, 3, 1, 2))
    assert torch.equal(set_channels(set_channels(grey, 3), 1), grey)
    assert set_channels(grey, None) is grey
    green = torch.tensor([0, 255, 0], dtype=torch.uint8).view(1, 3, 1, 1)
    assert set_channels(green, 1).item() == 150  # 0.587 * 255 = 149.7
    with pytest.raises(ValueError, match="channels=3 cannot"):
        set_channels(grey.expand(1, 2, 1, 2), 3)


@pytest.mark.parametrize(
    "mode", ["1", "L", "P", "RGB", "RGBA", "LA", "CMYK", "YCbCr", "HSV", "I", "F"]
)
def test_every_mode_becomes_l_or_rgb(mode: str) -> None:
    image = Image.new("L", (3, 2), 1).convert(mode)
    assert open_picture(image).mode in ("L", "RGB")
