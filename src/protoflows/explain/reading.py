"""Images as the model takes them: resized, recoloured and requantised as in training, and said."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from protoflows.data import image_to_tensor
from protoflows.data.images import set_channels, set_size
from protoflows.model import ProtoFlow

_BYTE_LEVELS = 256


class Prepared(NamedTuple):
    """Images that the model takes, and what was done to them.

    Attributes:
        images: uint8 (N, C, H, W).
        notes: One sentence for each change; empty where there was none.
    """

    images: Tensor
    notes: tuple[str, ...]


def prepare_images(model: ProtoFlow, source: Tensor | str | Path) -> Prepared:
    """Bring an image to the model's channels, size and levels.

    The shorter side is resized and the centre cropped, as data sets are read. Values of a tensor
    count as bytes where one of them lies above the model's levels.

    Args:
        model: The model.
        source: A picture's file, or integer images (N, C, H, W) or (C, H, W).
    """
    channels, height, width = model.config.flow.image_shape
    levels = model.config.flow.levels
    from_file = isinstance(source, str | Path)
    if isinstance(source, str | Path):
        x = image_to_tensor(Path(source).expanduser())[None]
    else:
        x = _check(source)
    notes = []
    if x.shape[1] != channels:
        if x.shape[1] not in (1, 3) or channels not in (1, 3):
            raise ValueError(f"x must have {channels} channels, got {x.shape[1]}")
        kind = "grey" if channels == 1 else "three channels"
        if not (from_file and x.shape[1] == 1):
            notes.append(f"The image had {x.shape[1]} channels and was made {kind}.")
        x = set_channels(x, channels)
    if tuple(x.shape[2:]) != (height, width):
        if height != width:
            raise ValueError(
                f"x must be {height} x {width}, got {x.shape[2]} x {x.shape[3]}: only models of "
                "square images resize what they are given"
            )
        notes.append(
            f"The image was {x.shape[3]} pixels wide and {x.shape[2]} high and was resized to "
            f"{width} x {height} as in training (shorter side resized, centre cropped)."
        )
        x = set_size(x, height)
    if levels != _BYTE_LEVELS and (from_file or (x.numel() and int(x.max()) >= levels)):
        scaled = x.float() * ((levels - 1) / (_BYTE_LEVELS - 1))
        x = scaled.round().clamp(0, levels - 1).to(torch.uint8)
        notes.append(f"Its 256 levels were brought to the model's {levels}.")
    return Prepared(x.contiguous(), tuple(notes))


def _check(x: Tensor) -> Tensor:
    if not isinstance(x, Tensor) or x.dim() not in (3, 4):
        got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(f"x must be images (N, C, H, W) or one image (C, H, W), got {got}")
    if x.is_floating_point() or x.is_complex() or x.dtype == torch.bool:
        raise ValueError(f"x must hold integers (uint8), got {x.dtype}")
    if x.numel() == 0:
        raise ValueError(f"x must hold at least one image, got shape {tuple(x.shape)}")
    if int(x.min()) < 0 or int(x.max()) > _BYTE_LEVELS - 1:
        raise ValueError(
            f"x must hold values in 0…255, got values from {int(x.min())} to {int(x.max())}"
        )
    return (x if x.dim() == 4 else x[None]).to(torch.uint8)
