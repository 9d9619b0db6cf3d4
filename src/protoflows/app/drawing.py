"""Drawings brought to where, and as large as, the training images have their ink."""

from __future__ import annotations

import io

import numpy as np
import torch
from PIL import Image

from protoflows.app.uploads import UploadError
from protoflows.explain.reading import Prepared
from protoflows.model import ProtoFlow

_INK = 0.1  # of the largest deviation from the background
_EMPTY = 16  # of 255: no stroke is that faint


def is_dark(model: ProtoFlow) -> bool:
    """Whether training images have a dark border, so that strokes are to be light."""
    mean = model.extras.mean_image if model.extras is not None else None
    if mean is None:
        return True
    border = torch.cat([mean[:, 0], mean[:, -1], mean[:, :, 0], mean[:, :, -1]], dim=1)
    return float(border.mean()) < (model.config.flow.levels - 1) / 2


def read_drawing(model: ProtoFlow, png: bytes) -> Prepared:
    """A drawing as the model takes it, (1, C, H, W).

    The ink is cropped, scaled with its proportions kept, and centred in the box that the ink of the
    mean training image fills; without a mean image the whole canvas is taken.

    Args:
        model: The model.
        png: The canvas: strokes opaque, the rest transparent.
    """
    try:
        with Image.open(io.BytesIO(png), formats=["PNG"]) as picture:
            if picture.width * picture.height > 4_000_000:
                raise UploadError("The drawing is too large.")
            ink = picture.convert("RGBA").getchannel("A")
    except UploadError:
        raise
    except Exception as error:  # decoders of damaged files raise whatever they stumble over
        raise UploadError("The browser sent no drawing.") from error
    box = ink.point(lambda v: 255 * (v > _EMPTY)).getbbox()
    if box is None:
        raise UploadError("Draw something first.")
    channels, height, width = model.config.flow.image_shape
    top, left, tall, wide = _ink_box(model)
    part = ink.crop(box)
    scale = min(tall / part.height, wide / part.width)
    size = (max(1, round(part.width * scale)), max(1, round(part.height * scale)))
    part = part.resize(size, Image.Resampling.BOX if scale < 1 else Image.Resampling.BICUBIC)
    canvas = Image.new("L", (width, height), 0)
    canvas.paste(part, (round(left + (wide - size[0]) / 2), round(top + (tall - size[1]) / 2)))
    share = np.asarray(canvas, dtype=np.float64) / 255
    if not is_dark(model):
        share = 1 - share
    pixels = np.rint(share * (model.config.flow.levels - 1)).astype(np.uint8)
    x = torch.from_numpy(pixels)[None, None].repeat(1, channels, 1, 1)
    note = "The drawing was cropped, scaled and centred as the ink of the training images is."
    return Prepared(x, (note,))


def _ink_box(model: ProtoFlow) -> tuple[int, int, int, int]:
    """Row, column, height and width of where the mean training image differs from its border."""
    _, height, width = model.config.flow.image_shape
    mean = model.extras.mean_image if model.extras is not None else None
    if mean is None:
        return 0, 0, height, width
    grey = mean.mean(0).double()
    border = torch.cat([grey[0], grey[-1], grey[:, 0], grey[:, -1]]).median()
    change = (grey - border).abs()
    ink = change > _INK * change.max()
    rows, columns = ink.any(1).nonzero().flatten(), ink.any(0).nonzero().flatten()
    if not len(rows):
        return 0, 0, height, width
    top, left = int(rows[0]), int(columns[0])
    return top, left, int(rows[-1]) - top + 1, int(columns[-1]) - left + 1
