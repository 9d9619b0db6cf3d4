"""What a report is about, and how much is measured for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from protoflows.data import Split
from protoflows.explain.retrieved import RetrievedParts
from protoflows.model import ProtoFlow


@dataclass(frozen=True, eq=False)
class Source:
    """A model with what is known of its run; without its data, sections that need it say so.

    Attributes:
        model: The model.
        name: What the report calls it.
        data_name: Name of the data set; empty where unknown.
        metrics: metrics.json of the run; empty where there is none.
        train: Training images.
        test: Test images.
        parts: Retrieved parts that `protoflows prototypes` stored with the run.
        notes: What readers should know of how the report came about.
    """

    model: ProtoFlow
    name: str
    data_name: str = ""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    train: Split | None = None
    test: Split | None = None
    parts: RetrievedParts | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """How much is measured: more takes longer and says more.

    Attributes:
        images: Test images that figures of quality are drawn from, at most.
        samples: Draws of the noise for each of them.
        train_images: Training images that prototypes are compared with, at most.
        relevance_images: Images of the relevance ordering test.
        examples: Decisions explained of each kind, right and wrong.
        classes: Classes whose prototypes are shown in full.
        seed: Seed of everything.
        batch_size: Images per pass.
    """

    images: int = 1000
    samples: int = 8
    train_images: int = 5000
    relevance_images: int = 48
    examples: int = 3
    classes: int = 20
    seed: int = 0
    batch_size: int = 256

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name != "seed" and (not isinstance(value, int) or value < 1):
                raise ValueError(f"{name} must be a whole number ≥ 1, got {value!r}")
