"""Files from strangers: decoded under limits, described, and never kept."""

from __future__ import annotations

import base64
import binascii
import tempfile
from pathlib import Path

from PIL import Image

from protoflows.data.images import PictureError
from protoflows.explain.reading import Prepared, prepare_images
from protoflows.model import ProtoFlow

MIN_SIDE = 4
"""A picture of fewer pixels on a side holds nothing to classify."""


class UploadError(ValueError):
    """A file that cannot be explained; the message is for whoever sent it."""


def read_upload(model: ProtoFlow, content: bytes, limit: int) -> Prepared:
    """One picture as the model takes it, (1, C, H, W), and what was done to it.

    The bytes are decoded from a nameless temporary file, which is gone before this returns; the
    name that the file had is never asked for.

    Args:
        model: The model.
        content: The file.
        limit: Largest file that is read, in bytes.
    """
    if len(content) > limit:
        raise UploadError(
            f"The file has {len(content) / 2**20:.1f} MB; at most {limit / 2**20:g} MB are read."
        )
    if not content:
        raise UploadError("The file is empty.")
    with tempfile.NamedTemporaryFile(prefix="protoflows-upload-") as file:
        file.write(content)
        file.flush()
        path = Path(file.name)
        try:
            prepared = prepare_images(model, path)
            notes = _describe(path)
        except PictureError as error:
            why = str(error).removeprefix(f"{path}: ")
            raise UploadError(f"This cannot be read as a picture: {why}.") from error
        except ValueError as error:
            raise UploadError(f"This picture does not fit the model: {error}.") from error
    return Prepared(prepared.images, (*notes, *prepared.notes))


def read_data_url(text: object, limit: int) -> bytes:
    """The bytes of a `data:…;base64,…` address, as a browser's FileReader and canvas make it."""
    if not isinstance(text, str) or not text.startswith("data:") or ";base64," not in text[:200]:
        raise UploadError("The browser sent no file.")
    body = text.split(";base64,", 1)[1]
    if len(body) > 4 * limit // 3 + 8:
        raise UploadError(f"The file is too large; at most {limit / 2**20:g} MB are read.")
    try:
        return base64.b64decode(body, validate=True)
    except binascii.Error as error:
        raise UploadError("The file was damaged on its way.") from error


def _describe(path: Path) -> tuple[str, ...]:
    """What a picture is that its pixels no longer say; raises where it is too small."""
    with Image.open(path) as picture:
        width, height, mode = picture.width, picture.height, picture.mode
        frames = int(getattr(picture, "n_frames", 1))
    if min(width, height) < MIN_SIDE:
        raise PictureError(
            f"it is {width} x {height} pixels, and needs at least {MIN_SIDE} on each side"
        )
    notes = []
    if frames > 1:
        notes.append(f"The file holds {frames} frames; only the first is explained.")
    if mode == "CMYK":
        notes.append("The picture was in printing colours (CMYK) and was made RGB.")
    return tuple(notes)
