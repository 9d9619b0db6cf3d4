"""Flow and prototypes as one classifier: densities and samples; saved, edited, imported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protoflows._lazy import lazy_names

if TYPE_CHECKING:
    from protoflows.model.config import ModelConfig
    from protoflows.model.extras import Extras
    from protoflows.model.loading import find_model_folder, load
    from protoflows.model.montecarlo import Scores, evaluating
    from protoflows.model.protoflow import ProtoFlow
    from protoflows.model.reference import import_reference
    from protoflows.model.sampling import DrawnLatents
    from protoflows.model.seeds import image_seeds
    from protoflows.model.shipped import shipped_models
    from protoflows.model.sklearn import ProtoFlowClassifier

__all__ = [
    "DrawnLatents",
    "Extras",
    "ModelConfig",
    "ProtoFlow",
    "ProtoFlowClassifier",
    "Scores",
    "evaluating",
    "find_model_folder",
    "image_seeds",
    "import_reference",
    "load",
    "shipped_models",
]

__getattr__ = lazy_names(
    __name__,
    {
        "config": ["ModelConfig"],
        "extras": ["Extras"],
        "loading": ["find_model_folder", "load"],
        "montecarlo": ["Scores", "evaluating"],
        "protoflow": ["ProtoFlow"],
        "reference": ["import_reference"],
        "sampling": ["DrawnLatents"],
        "seeds": ["image_seeds"],
        "shipped": ["shipped_models"],
        "sklearn": ["ProtoFlowClassifier"],
    },
)
