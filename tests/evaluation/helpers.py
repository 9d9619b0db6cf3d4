"""Probabilities to measure, and a way to see what the model is asked for."""

from __future__ import annotations

from contextlib import contextmanager

import torch
from torch import Tensor


def random_proba(num: int, classes: int, seed: int = 0, sharp: float = 2.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    logits = sharp * torch.randn(num, classes, generator=generator, dtype=torch.float64)
    return logits.softmax(1)


def random_labels(num: int, classes: int, seed: int = 1) -> Tensor:
    return torch.randint(0, classes, (num,), generator=torch.Generator().manual_seed(seed))


@contextmanager
def counted_rows(model, monkeypatch):
    """A list that grows by the number of images of every flow pass."""
    rows: list[int] = []
    encode = model.encode

    def counting(x, **options):
        rows.append(len(x))
        return encode(x, **options)

    with monkeypatch.context() as patch:
        patch.setattr(model, "encode", counting, raising=False)
        yield rows
