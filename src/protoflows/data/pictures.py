"""From a list of labelled picture files to a data set: decode in parallel, agree on one shape."""

from __future__ import annotations

import os
import statistics
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor

from protoflows.data.config import DataConfig
from protoflows.data.images import Box, PictureError, image_to_tensor
from protoflows.data.splits import DataBundle, Split, hold_out, stratified_choice

# A folder without a test split gives this share of every class to one.
TEST_FRACTION = 0.2
_LISTED = 5


@dataclass(frozen=True)
class Picture:
    """One file of a data set.

    Attributes:
        path: Where the file is.
        label: Its class.
        part: train, validation or test.
        box: (left, top, right, bottom) to crop to, in pixels.
    """

    path: Path
    label: int
    part: str = "train"
    box: Box | None = None


class Decoded(NamedTuple):
    """Pictures of one shape, and what could not be decoded."""

    images: Tensor
    kept: list[int]
    skipped: tuple[str, ...]


def assemble(
    name: str,
    base: Path,
    pictures: Sequence[Picture],
    class_names: Sequence[str],
    config: DataConfig,
    default_size: int | None = None,
    flip: bool = False,
) -> DataBundle:
    """Decode the pictures of a data set and put them into splits.

    `base` is what file names in messages are relative to. Without a test part, a fixed share of
    every class becomes one.
    """
    pictures = limit_pictures(pictures, config.limit, config.split_seed)
    size = config.image_size or default_size or common_size([p.path for p in pictures])
    decoded = decode_all(pictures, base, config.channels, size, config.strict)
    kept = [pictures[i] for i in decoded.kept]
    check_classes(name, kept, class_names)
    splits = {}
    for part in ("train", "validation", "test"):
        index = [i for i, picture in enumerate(kept) if picture.part == part]
        if index:
            labels = torch.tensor([kept[i].label for i in index], dtype=torch.int64)
            splits[part] = Split(decoded.images[torch.tensor(index)], labels)
    if "test" not in splits:
        # The split's own fixed seed: the test images stay the same whatever a run's seeds are.
        splits["train"], splits["test"] = hold_out(splits["train"], TEST_FRACTION, 0, minimum=1)
    return DataBundle(
        name=name,
        train=splits["train"],
        test=splits["test"],
        class_names=tuple(class_names),
        flip=flip,
        skipped=decoded.skipped,
        validation=splits.get("validation"),
    )


def limit_pictures(pictures: Sequence[Picture], limit: int | None, seed: int) -> list[Picture]:
    """At most `limit` pictures of every part, class by class (before anything is decoded)."""
    if limit is None:
        return list(pictures)
    chosen: list[Picture] = []
    for part in ("train", "validation", "test"):
        members = [picture for picture in pictures if picture.part == part]
        if len(members) > limit:
            labels = torch.tensor([picture.label for picture in members])
            members = [members[i] for i in stratified_choice(labels, limit, seed).tolist()]
        chosen += members
    return chosen


def decode_all(
    pictures: Sequence[Picture], base: Path, channels: int | None, size: int, strict: bool
) -> Decoded:
    """Decode in a pool of threads (decoders release the interpreter's lock).

    Channels: what is asked for; else 1 where every picture is grey, else 3. Unreadable files are
    skipped with a warning that counts and names them, or refused where `strict`.
    """
    Image.init()  # loading the decoders is not safe from several threads

    def decode(picture: Picture) -> Tensor | str:
        try:
            return image_to_tensor(picture.path, channels, size, picture.box)
        except FileNotFoundError:
            return "not there"
        except PictureError as error:
            return str(error.__cause__ or error)

    tensors: list[Tensor] = []
    kept: list[int] = []
    skipped: list[str] = []
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        for i, result in enumerate(pool.map(decode, pictures)):
            if isinstance(result, str):
                skipped.append(f"{relative_name(pictures[i].path, base)}: {result}")
            else:
                tensors.append(result)
                kept.append(i)
    if skipped:
        message = f"{len(skipped)} of {len(pictures)} pictures in {base} cannot be used: " + some(
            skipped
        )
        if strict:
            raise ValueError(f"{message}. Remove them, or load without strict to skip them")
        warnings.warn(f"{message}. They were skipped", stacklevel=2)
    if not tensors:
        raise ValueError(f"no readable picture in {base}")
    depth = max(len(x) for x in tensors)
    # Filled from the end, each picture freed as it goes: the peak is not two whole data sets, since
    # memory that is only reserved does not count yet.
    images = torch.empty((len(tensors), depth, size, size), dtype=torch.uint8)
    while tensors:
        x = tensors.pop()
        images[len(tensors)] = x  # a grey picture among coloured ones is repeated
    return Decoded(images, kept, tuple(skipped))


def common_size(paths: Sequence[Path]) -> int:
    """The side to resize to where nobody said: read from the pictures' headers.

    Pictures that all have one square size of at most 64 pixels (and a multiple of 4, which the
    flow's squeezes want) keep it. Others become 64 pixels, or 32 where most are smaller than 64.
    """
    sizes = []
    for path in paths:
        try:
            with Image.open(path) as picture:
                sizes.append(picture.size)
        except Exception:  # counted and named when it is decoded
            continue
    if not sizes:
        return 32
    width, height = sizes[0]
    if len(set(sizes)) == 1 and width == height and width <= 64 and width % 4 == 0:
        return width
    return 64 if statistics.median(min(size) for size in sizes) >= 64 else 32


def check_classes(name: str, pictures: Sequence[Picture], class_names: Sequence[str]) -> None:
    """Every class needs training pictures: two, where test pictures are taken from them."""
    counts = [0] * len(class_names)
    for picture in pictures:
        if picture.part == "train":
            counts[picture.label] += 1
    needed = 1 if any(picture.part == "test" for picture in pictures) else 2
    short = [f"{class_names[c]!r} ({n})" for c, n in enumerate(counts) if n < needed]
    if short:
        raise ValueError(
            f"{name}: every class needs at least {needed} readable training picture"
            f"{'s (one of them for testing)' if needed == 2 else ''}, but {len(short)} of "
            f"{len(class_names)} classes have fewer: {some(short)}. Add pictures, remove the "
            "class, or raise data.limit if it is set"
        )


def some(names: Sequence[str]) -> str:
    """The first few of many names."""
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


def relative_name(path: Path, base: Path) -> str:
    """A file's name below the data set's folder, with forward slashes."""
    return path.relative_to(base).as_posix() if path.is_relative_to(base) else path.as_posix()
