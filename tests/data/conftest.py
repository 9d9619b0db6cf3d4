"""Small pictures and data sets on disk, made anew for every test."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

MakeFolder = Callable[..., Path]


@pytest.fixture
def picture() -> Callable[..., Image.Image]:
    """A function that makes a random RGB or L picture."""

    def make(width: int = 12, height: int = 12, mode: str = "RGB", seed: int = 0) -> Image.Image:
        rng = np.random.default_rng(seed)
        shape = (height, width) if mode == "L" else (height, width, 3)
        return Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8))

    return make


@pytest.fixture
def make_folder(tmp_path: Path, picture: Callable[..., Image.Image]) -> MakeFolder:
    """A function that writes an image folder from {"class or part/class": number of pictures}."""

    def make(counts: dict[str, int], mode: str = "RGB", width: int = 12, height: int = 12) -> Path:
        base = tmp_path / "animals"
        for number, (name, count) in enumerate(counts.items()):
            (base / name).mkdir(parents=True)
            for i in range(count):
                made = picture(width, height, mode, seed=1000 * number + i)
                made.save(base / name / f"{i:02d}.png")
        return base

    return make
