"""uint8 images with labels, from anywhere: named data sets, image folders, arrays."""

from __future__ import annotations

from protoflows.data.augment import Augment, AugmentConfig
from protoflows.data.batches import Batch, SeededBatches, TensorBatches
from protoflows.data.config import DataConfig
from protoflows.data.images import image_to_tensor
from protoflows.data.registry import DATASETS, load_data
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
