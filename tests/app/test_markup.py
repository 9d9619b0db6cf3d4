"""HTML of the page: nothing that anybody wrote is taken for markup."""

import base64
import io
import re

import numpy as np
import torch
from PIL import Image

from protoflows.app import markup as m

EVIL = "<script>alert('${x}')</script>\"{{y}}"


def test_words_are_escaped_everywhere():
    parts = [
        m.tile("", EVIL), m.button("", EVIL, EVIL, EVIL), m.bar(0.5, EVIL, EVIL), m.heading(EVIL),
        m.note(EVIL), m.message(EVIL), m.table([(EVIL, EVIL)], (EVIL, EVIL)), m.img("", EVIL),
        m.chip(EVIL, EVIL, EVIL), m.slider(3, 0, EVIL, EVIL, EVIL), m.heading("", EVIL),
    ]  # fmt: skip
    for part in parts:
        assert "<script" not in part
        assert "${" not in part
        assert "{{" not in part


def test_pictures_are_in_the_page():
    image = torch.tensor([[[0, 16], [8, 4]]], dtype=torch.uint8)
    url = m.image_url(image, 17)
    kind, content = url.split(",")
    assert kind == "data:image/png;base64"
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(content))))
    assert pixels.tolist() == [[0, 255], [128, 64]]


def test_bars_stay_in_their_row():
    for share, width in ((-1.0, "0.00"), (0.25, "25.00"), (7.0, "100.00")):
        assert f"width:{width}%" in m.bar(share, "a", "b")


def test_boxes_are_placed_in_per_cent():
    box = m.box_over(torch.tensor([2, 4, 2, 1]), 8, 16)
    assert [float(v) for v in re.findall(r":([\d.]+)%", box)] == [25, 25, 6.25, 25]
