"""Drawings end up where training images have their ink."""

import io
from dataclasses import replace

import pytest
import torch
from PIL import Image, ImageDraw

from protoflows.app.drawing import is_dark, read_drawing
from protoflows.app.uploads import UploadError
from protoflows.model import load


def canvas(*strokes, ink=(255, 255, 255, 255)):
    image = Image.new("RGBA", (280, 280), (0, 0, 0, 0))
    pen = ImageDraw.Draw(image)
    for box in strokes:
        pen.rectangle(box, fill=ink)
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()


def with_mean(run_folder, mean):
    model = load(run_folder)
    model.extras = replace(model.extras, mean_image=mean)
    return model


def test_ink_is_cropped_scaled_and_centred(run_folder):
    mean = torch.zeros(1, 8, 8)
    mean[:, 2:6, 1:7] = 10  # four rows and six columns of ink
    model = with_mean(run_folder, mean)
    assert is_dark(model)
    # A square in a corner: as high as the ink, in the middle of its width.
    x = read_drawing(model, canvas((0, 0, 39, 39))).images[0, 0]
    assert x[2:6, 2:6].tolist() == [[16] * 4] * 4
    assert int(x.sum()) == 16 * 16


def test_dark_ink_on_light_ground(run_folder):
    model = with_mean(run_folder, torch.full((1, 8, 8), 16.0))
    assert not is_dark(model)
    x = read_drawing(model, canvas((100, 0, 119, 279), ink=(0, 0, 0, 255))).images[0, 0]
    assert int(x.min()) == 0
    assert int(x[:, 0].min()) == 16


def test_no_mean_takes_the_whole_canvas(run_folder):
    model = with_mean(run_folder, None)
    assert int(read_drawing(model, canvas((0, 0, 9, 9))).images.min()) == 16


@pytest.mark.parametrize(
    ("content", "words"), [(canvas(), "Draw something"), (b"no drawing", "sent no drawing")]
)
def test_nothing_drawn(model, content, words):
    with pytest.raises(UploadError, match=words):
        read_drawing(model, content)
