"""What explanations need of the training data once the data is gone."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from protoflows.model.config import ModelConfig

NUM_QUANTILES = 101
_TENSORS = ("mean_image", "log_prob_quantiles", "images", "labels")


@dataclass(frozen=True, eq=False)  # tensors have no single truth value to compare by
class Extras:
    """What training leaves behind and a model is saved with; all of it may be unknown.

    Attributes:
        mean_image: Mean training image in levels, float32 (C, H, W): the paper's baseline for
            missing parts.
        log_prob_quantiles: The 0th, 1st, … 100th percentile of log p(x) over the training images,
            float64 (101,).
        images: A few training images of each class, uint8 (M, C, H, W).
        labels: Their labels, int64 (M,).
        data_name: Name of the data set.
        data_fingerprint: Its fingerprint, see `DataBundle.fingerprint`.
        metrics: Figures measured on its test split.
        licence: Licence of the weights; empty where whoever trained them has not said.
    """

    mean_image: Tensor | None = None
    log_prob_quantiles: Tensor | None = None
    images: Tensor | None = None
    labels: Tensor | None = None
    data_name: str = ""
    data_fingerprint: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    licence: str = ""

    def __post_init__(self) -> None:
        """Bring tensors to their types and check that they fit together."""
        for name, dtype in zip(
            _TENSORS, (torch.float32, torch.float64, torch.uint8, torch.int64), strict=True
        ):
            value = getattr(self, name)
            if value is not None:
                if name == "images" and value.dtype != torch.uint8:
                    raise ValueError(f"images must be uint8, got {value.dtype}")
                object.__setattr__(self, name, value.detach().to("cpu", dtype).contiguous())
        object.__setattr__(self, "metrics", dict(self.metrics))
        if self.mean_image is not None and self.mean_image.ndim != 3:
            raise ValueError(f"mean_image must be (C, H, W), got {tuple(self.mean_image.shape)}")
        quantiles = self.log_prob_quantiles
        if quantiles is not None:
            if tuple(quantiles.shape) != (NUM_QUANTILES,):
                raise ValueError(
                    f"log_prob_quantiles must be ({NUM_QUANTILES},), got {tuple(quantiles.shape)}"
                )
            if not bool((quantiles[1:] >= quantiles[:-1]).all()):  # NaN fails too
                raise ValueError("log_prob_quantiles must ascend and hold no NaN")
        if (self.images is None) != (self.labels is None):
            raise ValueError("images and labels must be given together")
        if (
            self.images is not None
            and self.labels is not None
            and (self.images.ndim != 4 or tuple(self.labels.shape) != (len(self.images),))
        ):
            raise ValueError(
                "images must be (M, C, H, W) and labels (M,), got "
                f"{tuple(self.images.shape)} and {tuple(self.labels.shape)}"
            )

    @staticmethod
    def quantiles(log_prob: Tensor) -> Tensor:
        """The percentiles 0 … 100 of log p(x), (N,) → (101,), for `log_prob_quantiles`."""
        wide = log_prob.detach().to("cpu", torch.float64).flatten()
        if not len(wide):
            raise ValueError("log_prob must hold at least one value, got none")
        return torch.quantile(wide, torch.linspace(0, 1, NUM_QUANTILES, dtype=torch.float64))

    def percentile(self, log_prob: Tensor) -> Tensor:
        """Per cent of the training images that are less likely than this log p(x), same shape.

        Interpolated between the quantiles; amid equal ones the middle of them.
        """
        if self.log_prob_quantiles is None:
            raise ValueError(
                "this model was saved without log_prob_quantiles: nothing to compare log p(x) with"
            )
        q = self.log_prob_quantiles
        value = log_prob.detach().to("cpu", torch.float64)
        below = torch.searchsorted(q, value.contiguous())
        up_to = torch.searchsorted(q, value.contiguous(), right=True)
        lower, upper = (below - 1).clamp_min(0), below.clamp_max(NUM_QUANTILES - 1)
        gap = q[upper] - q[lower]
        between = lower + torch.where(
            gap > 0, (value - q[lower]) / gap, torch.zeros_like(value)
        ).clamp(0, 1)
        return torch.where(up_to > below, (below + up_to - 1) / 2, between)

    def check(self, config: ModelConfig) -> None:
        """Refuse extras that belong to another model."""
        shape = tuple(config.flow.image_shape)
        for name, value in (("mean_image", self.mean_image), ("images", self.images)):
            if value is not None and tuple(value.shape[-3:]) != shape:
                raise ValueError(
                    f"{name} must hold images of shape {shape} as the model's, "
                    f"got {tuple(value.shape)}"
                )
        if self.labels is not None and len(self.labels):
            low, high = int(self.labels.min()), int(self.labels.max())
            if low < 0 or high >= config.num_classes:
                raise ValueError(
                    f"labels must be in 0…{config.num_classes - 1}, got values from {low} to {high}"
                )

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that are there, by name."""
        return {name: getattr(self, name) for name in _TENSORS if getattr(self, name) is not None}

    def to_dict(self) -> dict[str, Any]:
        """What is no tensor, as JSON has it; a metric that is not finite becomes null."""
        metrics = {key: float(value) for key, value in self.metrics.items()}
        return {
            "data_name": self.data_name,
            "data_fingerprint": self.data_fingerprint,
            "metrics": {
                key: value if math.isfinite(value) else None for key, value in metrics.items()
            },
            "licence": self.licence,
        }

    @classmethod
    def from_parts(cls, content: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Extras:
        """Undo `to_dict` and `tensors`; entries of later versions are ignored."""
        known = {f.name for f in dataclasses.fields(cls)}
        values = {key: value for key, value in {**content, **tensors}.items() if key in known}
        metrics = values.get("metrics") or {}
        values["metrics"] = {
            key: math.nan if value is None else value for key, value in metrics.items()
        }
        return cls(**values)
