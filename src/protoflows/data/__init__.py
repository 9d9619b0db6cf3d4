"""uint8 images with labels, from anywhere: named data sets, image folders, arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protoflows._lazy import lazy_names

if TYPE_CHECKING:
    from protoflows.data.augment import Augment
    from protoflows.data.batches import Batch, SeededBatches, TensorBatches
    from protoflows.data.config import DATASETS, AugmentConfig, DataConfig
    from protoflows.data.images import image_to_tensor
    from protoflows.data.registry import load_data
    from protoflows.data.splits import (
        DataBundle,
        Split,
        hide_labels,
        hold_out,
        mean_image,
        training_splits,
    )

__all__ = [
    "DATASETS",
    "Augment",
    "AugmentConfig",
    "Batch",
    "DataBundle",
    "DataConfig",
    "SeededBatches",
    "Split",
    "TensorBatches",
    "hide_labels",
    "hold_out",
    "image_to_tensor",
    "load_data",
    "mean_image",
    "training_splits",
]

__getattr__ = lazy_names(
    __name__,
    {
        "augment": ["Augment"],
        "batches": ["Batch", "SeededBatches", "TensorBatches"],
        "config": ["DATASETS", "AugmentConfig", "DataConfig"],
        "images": ["image_to_tensor"],
        "registry": ["load_data"],
        "splits": [
            "DataBundle",
            "Split",
            "hide_labels",
            "hold_out",
            "mean_image",
            "training_splits",
        ],
    },
)
