"""Training: a configuration and data become a run folder, or arrays a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protoflows._lazy import lazy_names

if TYPE_CHECKING:
    from protoflows.training.arrays import fit_arrays
    from protoflows.training.config import LossConfig, OptimConfig, TrainConfig, TrainerConfig
    from protoflows.training.ema import MovingAverage
    from protoflows.training.losses import Losses, classifier_losses
    from protoflows.training.measuring import measure
    from protoflows.training.recipes import describe_recipe, read_recipe, recipe_names
    from protoflows.training.run import Run, pretrain, resume, train
    from protoflows.training.settings import from_dict, merge, read_yaml, to_dict

__all__ = [
    "LossConfig",
    "Losses",
    "MovingAverage",
    "OptimConfig",
    "Run",
    "TrainConfig",
    "TrainerConfig",
    "classifier_losses",
    "describe_recipe",
    "fit_arrays",
    "from_dict",
    "merge",
    "pretrain",
    "read_recipe",
    "read_yaml",
    "recipe_names",
    "resume",
    "measure",
    "to_dict",
    "train",
]

__getattr__ = lazy_names(
    __name__,
    {
        "arrays": ["fit_arrays"],
        "config": ["LossConfig", "OptimConfig", "TrainConfig", "TrainerConfig"],
        "ema": ["MovingAverage"],
        "losses": ["Losses", "classifier_losses"],
        "measuring": ["measure"],
        "recipes": ["describe_recipe", "read_recipe", "recipe_names"],
        "run": ["Run", "pretrain", "resume", "train"],
        "settings": ["from_dict", "merge", "read_yaml", "to_dict"],
    },
)
