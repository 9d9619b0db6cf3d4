"""Decode one picture, whatever it is, to uint8.

Grey, palette, transparent, 16-bit, CMYK, rotated by EXIF or animated: what comes out is a mode L or
RGB picture of 8 bits. Formats that run other programs when opened (EPS, PDF) are not accepted.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

Box = tuple[float, float, float, float]

_FORMATS = (
    "AVIF",
    "BMP",
    "DIB",
    "GIF",
    "ICO",
    "JPEG",
    "JPEG2000",
    "MPO",
    "PCX",
    "PNG",
    "PPM",
    "TGA",
    "TIFF",
    "WEBP",
)
PICTURE_SUFFIXES = frozenset(
    [
        ".avif",
        ".bmp",
        ".dib",
        ".gif",
        ".ico",
        ".j2k",
        ".jfif",
        ".jp2",
        ".jpe",
        ".jpeg",
        ".jpg",
        ".mpo",
        ".pbm",
        ".pcx",
        ".pgm",
        ".png",
        ".pnm",
        ".ppm",
        ".tga",
        ".tif",
        ".tiff",
        ".webp",
    ]
)

# A picture is cut to this many times its short side before it is resized: far outside the final
# crop, but it bounds the memory that a one-pixel-wide strip would ask for.
_MAX_ASPECT = 4


class PictureError(ValueError):
    """A file that cannot be used as a picture; the message says why."""


def open_picture(source: str | Path | Image.Image, box: Box | None = None) -> Image.Image:
    """Decode a picture to mode L (grey) or RGB, 8 bits per channel.

    `box` = (left, top, right, bottom) crops first, cut to the picture. An animation gives its first
    frame. Transparency is laid over white. Raises `PictureError` for anything unreadable.
    """
    if isinstance(source, Image.Image):
        return _to_eight_bits(_upright(source), box)
    path = Path(source)
    if not path.is_file():
        raise FileNotFoundError(f"no such picture: {path}")
    try:
        # Known formats only; the size is checked before anything is decoded.
        with Image.open(path, formats=_known_formats()) as picture:
            pixels = picture.width * picture.height
            if Image.MAX_IMAGE_PIXELS is not None and pixels > Image.MAX_IMAGE_PIXELS:
                raise PictureError(
                    f"{picture.width}x{picture.height} pixels, more than the limit of "
                    f"{Image.MAX_IMAGE_PIXELS} (PIL.Image.MAX_IMAGE_PIXELS)"
                )
            picture.load()
            return _to_eight_bits(_upright(picture), box)
    except PictureError:
        raise
    except UnidentifiedImageError as error:
        raise PictureError("not a picture in a known format") from error
    except Image.DecompressionBombError as error:
        raise PictureError(str(error)) from error
    except MemoryError as error:
        raise PictureError("does not fit into memory") from error
    except Exception as error:  # decoders of damaged files raise whatever they stumble over
        raise PictureError(f"damaged ({error or type(error).__name__})") from error


def _known_formats() -> list[str]:
    Image.init()
    return [name for name in _FORMATS if name in Image.OPEN]


def _upright(picture: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(picture)
    except Exception:  # damaged EXIF data do not make the pixels unreadable
        return picture


def _to_eight_bits(picture: Image.Image, box: Box | None) -> Image.Image:
    if box is not None:
        left, top = max(0, round(box[0])), max(0, round(box[1]))
        right, bottom = min(picture.width, round(box[2])), min(picture.height, round(box[3]))
        if right <= left or bottom <= top:
            raise PictureError(
                f"box {box} lies outside the picture's {picture.width}x{picture.height}"
            )
        picture = picture.crop((left, top, right, bottom))
    if picture.mode.startswith("I") or picture.mode == "F":
        return _rescale_deep(picture)
    if picture.has_transparency_data:
        rgba = picture.convert("RGBA")
        white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, rgba).convert("RGB")
    return picture.convert("L" if picture.mode in ("1", "L") else "RGB")


def _rescale_deep(picture: Image.Image) -> Image.Image:
    """Bring deep grey pictures to 8 bits by their format's range, not by their own maximum.

    Pillow's `convert` clips 16-bit values at 255. Dividing by 257 maps 0..65535 onto 0..255. A
    stretch to each picture's own range would make equal densities look different.
    """
    values = np.asarray(picture, dtype=np.float64)
    low, high = values.min(), values.max()
    if not np.isfinite(low) or not np.isfinite(high) or low < 0:
        raise PictureError("values below zero or not finite: rescale it to 8 or 16 bits first")
    top = 65535.0
    if picture.mode == "F":
        top = 1.0 if high <= 1 else 255.0
    if high > top:
        raise PictureError(
            f"values up to {high:g} in a {picture.mode} picture: rescale it to 8 or 16 bits first"
        )
    return Image.fromarray(np.rint(values * (255.0 / top)).astype(np.uint8))


def fit_square(picture: Image.Image, size: int) -> Image.Image:
    """Resize the shortest side to `size` (bicubic, antialiased) and crop the centre.

    Steps 1 and 5 of the paper's augmentation scheme (Reproducibility appendix).
    """
    short = min(picture.size)
    if max(picture.size) > _MAX_ASPECT * short:
        picture = _crop_centre(
            picture,
            min(picture.width, _MAX_ASPECT * short),
            min(picture.height, _MAX_ASPECT * short),
        )
    width = max(size, int(size * picture.width / short))
    height = max(size, int(size * picture.height / short))
    if (width, height) != picture.size:
        picture = picture.resize((width, height), Image.Resampling.BICUBIC)
    return _crop_centre(picture, size, size)


def _crop_centre(picture: Image.Image, width: int, height: int) -> Image.Image:
    if picture.size == (width, height):
        return picture
    left, top = round((picture.width - width) / 2), round((picture.height - height) / 2)
    return picture.crop((left, top, left + width, top + height))


def image_to_tensor(
    source: str | Path | Image.Image,
    channels: int | None = None,
    size: int | None = None,
    box: Box | None = None,
) -> Tensor:
    """One picture as a uint8 tensor (C, H, W), decoded exactly as the data sets decode theirs.

    `channels` is 1, 3 or None (1 where all pixels are grey, else 3); `size` None keeps the size.
    """
    if channels not in (None, 1, 3):
        raise ValueError(f"channels must be 1, 3 or None, got {channels}")
    if size is not None and size < 1:
        raise ValueError(f"size must be at least 1 pixel, got {size}")
    try:
        picture = open_picture(source, box)
    except PictureError as error:
        name = "picture" if isinstance(source, Image.Image) else str(source)
        raise PictureError(f"{name}: {error}") from error
    return picture_to_tensor(picture, channels, size)


def picture_to_tensor(picture: Image.Image, channels: int | None, size: int | None) -> Tensor:
    """An L or RGB picture as a uint8 tensor (C, H, W)."""
    if channels == 1:
        picture = picture.convert("L")
    if size is not None:
        picture = fit_square(picture, size)
    x = torch.from_numpy(np.array(picture))
    x = x.unsqueeze(0) if x.ndim == 2 else x.permute(2, 0, 1).contiguous()
    if channels is None and len(x) == 3 and bool((x == x[:1]).all()):
        x = x[:1].clone()
    return x.repeat(3, 1, 1) if channels == 3 and len(x) == 1 else x


def set_channels(images: Tensor, channels: int | None) -> Tensor:
    """Repeat grey images (N, 1, H, W) to three channels, or make grey ones of three (ITU-R 601)."""
    if channels is None or channels == images.shape[1]:
        return images
    if channels == 3 and images.shape[1] == 1:
        return images.repeat(1, 3, 1, 1)
    if channels == 1 and images.shape[1] == 3:
        weights = torch.tensor([299, 587, 114]).view(1, 3, 1, 1)
        grey = [
            (x.to(torch.int32) * weights).sum(1, keepdim=True).add(500).div(1000).to(torch.uint8)
            for x in images.split(8192)
        ]
        return torch.cat(grey)
    raise ValueError(f"channels={channels} cannot be made of images with {images.shape[1]}")


def set_size(images: Tensor, size: int | None, levels: int = 256) -> Tensor:
    """`fit_square` for a whole batch of equal images (N, C, H, W); stays within the levels."""
    height, width = images.shape[2:]
    if size is None or (height, width) == (size, size):
        return images
    short = min(height, width)
    target = (max(size, int(size * height / short)), max(size, int(size * width / short)))
    top, left = round((target[0] - size) / 2), round((target[1] - size) / 2)
    parts = []
    for x in images.split(4096):  # bounds the memory of the float copies
        big = F.interpolate(x.float(), target, mode="bicubic", antialias=True)
        big = big[:, :, top : top + size, left : left + size]
        parts.append(big.round().clamp(0, levels - 1).to(torch.uint8))
    return torch.cat(parts)
