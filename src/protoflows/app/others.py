"""Images that are not of the model's kind: other data sets, and its own images spoilt."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from protoflows.data import DataConfig, Split, load_data
from protoflows.data.registry import resolve_name
from protoflows.data.splits import stratified_choice
from protoflows.evaluation.ood import fit_images
from protoflows.model import ProtoFlow

OTHERS = 300
"""So many of them are compared: densities differ by far more than that leaves open."""
UPSIDE_DOWN = "its test images, upside down"
INVERTED = "its test images, light and dark swapped"
SHUFFLED = "its test images, pixels shuffled"
NOISE = "uniform noise"
_DIGITS = "digits"


def made_kinds(model: ProtoFlow) -> tuple[str, ...]:
    """What can be made of a model's own images, the most like them first."""
    _, height, width = model.config.flow.image_shape
    return (UPSIDE_DOWN, INVERTED, SHUFFLED, NOISE) if height * width > 1 else (INVERTED, NOISE)


def made_images(model: ProtoFlow, split: Split, kind: str, num: int) -> Split:
    """Images that are not of the model's kind, made of those that are.

    Args:
        model: The model.
        split: Images of its kind.
        kind: One of `made_kinds`.
        num: How many, at most.
    """
    few = split.select(torch.arange(len(split))[:num])
    return Split(_spoil(few.images, kind, model.config.flow.levels), few.labels)


def _spoil(x: Tensor, kind: str, levels: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    if kind == UPSIDE_DOWN:
        return x.flip(2)
    if kind == INVERTED:
        return (levels - 1) - x
    if kind == SHUFFLED:
        # Every image in an order of its own, all channels of a pixel together.
        flat = x.flatten(2)
        order = torch.rand(len(x), flat.shape[2], generator=generator).argsort(1)
        return flat.gather(2, order[:, None].expand_as(flat)).view(x.shape)
    if kind == NOISE:
        return torch.randint(0, levels, x.shape, dtype=torch.uint8, generator=generator)
    raise ValueError(f"kind must be one of {UPSIDE_DOWN}, {INVERTED}, {SHUFFLED}, {NOISE}: {kind}")


def load_others(model: ProtoFlow, names: Sequence[str], data_root: str | None) -> dict[str, Split]:
    """Test images of other data sets, brought to what the model takes.

    scikit-learn's digits need no file and are always among them, but for a model of digits.

    Args:
        model: The model.
        names: Data sets, or paths of image folders.
        data_root: Folder that holds the data sets.
    """
    channels, height, width = model.config.flow.image_shape
    own = model.extras.data_name if model.extras is not None else ""
    wanted = [resolve_name(name) for name in names]
    if own != _DIGITS and _DIGITS not in wanted and height == width:
        wanted.append(_DIGITS)
    found = {}
    for name in wanted:
        # A folder needs to know the size and the channels; a data set has its own and is fitted.
        bundle = load_data(DataConfig(name, data_root, height, channels))
        split = bundle.test if len(bundle.test) else bundle.train
        if len(split) > OTHERS:
            split = split.select(stratified_choice(split.labels, OTHERS, 0))
        images = fit_images(model, split.images, bundle.levels)
        found[f"{bundle.name}, another data set"] = Split(images, split.labels)
    return found
