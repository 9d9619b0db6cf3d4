"""Files from strangers are read, described or refused, and never kept."""

import base64
import io
import tempfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from protoflows.app.uploads import UploadError, read_data_url, read_upload

LIMIT = 2**20


def encoded(image, kind="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, format=kind, **options)
    return buffer.getvalue()


def noise(*shape):
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def test_a_picture_becomes_what_the_model_takes(model):
    found = read_upload(model, encoded(Image.fromarray(noise(20, 30, 3))), LIMIT)
    assert tuple(found.images.shape) == (1, 1, 8, 8)
    assert int(found.images.max()) <= 16
    assert any("30 pixels wide and 20 high" in note for note in found.notes)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"GIF89a and then nothing", "cannot be read as a picture"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "cannot be read as a picture"),
        (bytes(LIMIT + 1), "at most 1 MB"),
        (encoded(Image.new("L", (1, 1))), "1 x 1 pixels"),
        (encoded(Image.new("L", (300, 2))), "at least 4"),
        (encoded(Image.fromarray(noise(60, 60, 3)))[:500], "cannot be read as a picture"),
    ],
)
def test_what_cannot_be_explained_is_refused_in_words(model, content, words):
    with pytest.raises(UploadError, match=words) as refused:
        read_upload(model, content, LIMIT)
    assert tempfile.gettempdir() not in str(refused.value)


def test_colours_and_frames_are_said(model):
    cmyk = read_upload(model, encoded(Image.fromarray(noise(9, 9, 4), "CMYK"), "JPEG"), LIMIT)
    assert any("CMYK" in note for note in cmyk.notes)
    frames = [Image.fromarray(noise(9, 9)), Image.new("L", (9, 9), 7)]
    moving = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    found = read_upload(model, moving, LIMIT)
    assert any("2 frames; only the first" in note for note in found.notes)


def test_nothing_is_kept(model, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    read_upload(model, encoded(Image.fromarray(noise(9, 9))), LIMIT)
    with pytest.raises(UploadError):
        read_upload(model, b"nothing", LIMIT)
    assert list(Path(tmp_path).iterdir()) == []


def test_addresses_that_hold_files():
    url = "data:image/png;base64," + base64.b64encode(b"hello").decode()
    assert read_data_url(url, LIMIT) == b"hello"
    for bad in (None, 5, "hello", "http://127.0.0.1/x", "data:text/plain,hello"):
        with pytest.raises(UploadError, match="sent no file"):
            read_data_url(bad, LIMIT)
    with pytest.raises(UploadError, match="damaged"):
        read_data_url("data:;base64,***", LIMIT)
    with pytest.raises(UploadError, match="too large"):
        read_data_url("data:;base64," + "A" * 2 * LIMIT, LIMIT)
